"""Measure the English of the manual and of docstrings against the limits of the project: ``python .ci/house_style.py``.

Each marker is a habit that makes text read as translated. Limits are per 10,000 words. ``--list`` prints every place.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

MARKERS = {
    'sentences that open with "What"': (r"(?:^|[.!?:] +|\n\s*)What [a-z]", 2.0),
    "beside": (r"\bbeside\b", 0.5),
    "is said, says": (r"\b(?:is|are|was) said\b|\bsays\b", 3.0),
    "told": (r"\btold\b", 2.0),
    "of its own": (r"\bof (?:its|their|his|your|our) own\b", 1.0),
    "so many, as many": (r"\b(?:so|as) many\b", 1.0),
    "nothing, nobody, anybody": (r"\b(?:nothing|nobody|anybody)\b", 4.0),
}
"""For each marker its pattern and its limit."""

FEWEST_VERBS = 0.8
"""Fraction of the docstrings of functions that begin with a verb, at least."""

VERBS = frozenset(
    [
        "Accept",
        "Accumulate",
        "Add",
        "Adjust",
        "Aggregate",
        "Align",
        "Allow",
        "Analyse",
        "Answer",
        "Append",
        "Apply",
        "Approximate",
        "Ask",
        "Assemble",
        "Assign",
        "Average",
        "Balance",
        "Begin",
        "Bin",
        "Bind",
        "Block",
        "Build",
        "Bypass",
        "Cache",
        "Call",
        "Cap",
        "Capture",
        "Carry",
        "Catch",
        "Centre",
        "Change",
        "Check",
        "Choose",
        "Clamp",
        "Classify",
        "Clean",
        "Clear",
        "Clip",
        "Close",
        "Collect",
        "Colour",
        "Combine",
        "Compare",
        "Compile",
        "Complete",
        "Compute",
        "Concatenate",
        "Condense",
        "Connect",
        "Construct",
        "Continue",
        "Convert",
        "Copy",
        "Correct",
        "Correlate",
        "Count",
        "Cover",
        "Create",
        "Cut",
        "Decide",
        "Decode",
        "Decompose",
        "Deduplicate",
        "Define",
        "Delete",
        "Derive",
        "Describe",
        "Detach",
        "Detect",
        "Determine",
        "Difference",
        "Discard",
        "Display",
        "Divide",
        "Download",
        "Draw",
        "Drop",
        "Embed",
        "Encode",
        "End",
        "Ensure",
        "Enter",
        "Enumerate",
        "Escape",
        "Estimate",
        "Evaluate",
        "Exchange",
        "Exclude",
        "Execute",
        "Expand",
        "Explain",
        "Export",
        "Extend",
        "Extract",
        "Factor",
        "Factorise",
        "Fetch",
        "Fill",
        "Filter",
        "Find",
        "Finish",
        "Fit",
        "Fix",
        "Flatten",
        "Flip",
        "Fold",
        "Follow",
        "Forget",
        "Format",
        "Forward",
        "Freeze",
        "Gather",
        "Generate",
        "Get",
        "Give",
        "Group",
        "Guess",
        "Hand",
        "Handle",
        "Hide",
        "Highlight",
        "Hold",
        "Hook",
        "Identify",
        "Ignore",
        "Import",
        "Include",
        "Index",
        "Initialise",
        "Insert",
        "Inspect",
        "Install",
        "Integrate",
        "Intercept",
        "Interpolate",
        "Intervene",
        "Invert",
        "Iterate",
        "Join",
        "Judge",
        "Keep",
        "Label",
        "Launch",
        "Lay",
        "Leave",
        "Let",
        "Lift",
        "Limit",
        "Linearise",
        "List",
        "Load",
        "Locate",
        "Lock",
        "Log",
        "Look",
        "Lower",
        "Make",
        "Map",
        "Mark",
        "Mask",
        "Match",
        "Mean",
        "Measure",
        "Merge",
        "Minimise",
        "Mirror",
        "Move",
        "Multiply",
        "Name",
        "Normalise",
        "Note",
        "Number",
        "Observe",
        "Offer",
        "Open",
        "Order",
        "Orthogonalise",
        "Pack",
        "Pad",
        "Pair",
        "Parse",
        "Partition",
        "Pass",
        "Perform",
        "Permute",
        "Pick",
        "Place",
        "Plot",
        "Pool",
        "Predict",
        "Prefix",
        "Prepare",
        "Print",
        "Produce",
        "Project",
        "Propose",
        "Prune",
        "Pull",
        "Push",
        "Put",
        "Quote",
        "Raise",
        "Rank",
        "Reach",
        "Read",
        "Rebuild",
        "Recognise",
        "Record",
        "Reduce",
        "Refine",
        "Register",
        "Regress",
        "Reject",
        "Release",
        "Remember",
        "Remove",
        "Render",
        "Reorder",
        "Repeat",
        "Replace",
        "Report",
        "Represent",
        "Require",
        "Rescale",
        "Reset",
        "Reshape",
        "Resolve",
        "Restore",
        "Restrict",
        "Return",
        "Reuse",
        "Reverse",
        "Rotate",
        "Round",
        "Run",
        "Sample",
        "Save",
        "Say",
        "Scale",
        "Scan",
        "Score",
        "Search",
        "See",
        "Select",
        "Send",
        "Separate",
        "Serialise",
        "Set",
        "Shade",
        "Share",
        "Shift",
        "Show",
        "Shuffle",
        "Simulate",
        "Skip",
        "Slice",
        "Smooth",
        "Solve",
        "Sort",
        "Space",
        "Split",
        "Spread",
        "Square",
        "Stack",
        "Standardise",
        "Start",
        "State",
        "Step",
        "Stop",
        "Store",
        "Stream",
        "Strip",
        "Subtract",
        "Suggest",
        "Sum",
        "Summarise",
        "Suppress",
        "Swap",
        "Switch",
        "Sync",
        "Tag",
        "Take",
        "Tell",
        "Test",
        "Thin",
        "Time",
        "Track",
        "Train",
        "Transform",
        "Translate",
        "Transport",
        "Transpose",
        "Trim",
        "Truncate",
        "Trust",
        "Try",
        "Tune",
        "Turn",
        "Undo",
        "Unfold",
        "Unite",
        "Unpack",
        "Update",
        "Use",
        "Validate",
        "Verify",
        "Visit",
        "Wait",
        "Walk",
        "Warn",
        "Watch",
        "Weigh",
        "Widen",
        "Whiten",
        "Work",
        "Wrap",
        "Write",
        "Yield",
    ]
)

NOT_PROSE = re.compile(r"```.*?```|<!--.*?-->|^\|[^\n]*$|^ *(?:>>>|\.\.\.) [^\n]*$", re.DOTALL | re.MULTILINE)
"""Code, comments and tables, whose words are numbers and names."""


@dataclass(frozen=True, slots=True)
class Text:
    """The prose of one file."""

    path: Path
    prose: str


def pages() -> Iterator[Text]:
    """Read README and the pages of the manual."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if "build" not in path.parts and path.name != "changelog.md":
            yield Text(path, NOT_PROSE.sub("", path.read_text(encoding="utf-8")))


def docstrings() -> Iterator[Text]:
    """Read the docstrings of every module of the package."""
    for path in sorted((ROOT / "src" / "kann").rglob("*.py")):
        strings = [
            node.value.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ]
        yield Text(path, NOT_PROSE.sub("", "\n\n".join(strings)))


def first_words() -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and first word of each function's docstring. Those of properties begin with nouns."""
    for path in sorted((ROOT / "src" / "kann").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node)
            decorators = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
            if text and not decorators & {"property", "cached_property"}:
                yield path, node.lineno, text.split()[0].strip(".,:;")


def main() -> int:
    """Print each measure next to its limit, and return 1 if one is exceeded."""
    show, failed = "--list" in sys.argv, False
    for name, texts in (("manual", list(pages())), ("docstrings", list(docstrings()))):
        words = sum(len(re.findall(r"[A-Za-z]+", text.prose)) for text in texts)
        for marker, (pattern, limit) in MARKERS.items():
            places = [(text.path, match) for text in texts for match in re.finditer(pattern, text.prose)]
            rate = 1e4 * len(places) / words
            failed |= rate > limit
            print(f"{name}: {marker} {rate:.1f} (limit {limit:g}){'  <-- too many' if rate > limit else ''}")
            for path, match in places if show else ():
                around = match.string[max(0, match.start() - 40) : match.end() + 40].replace("\n", " ")
                print(f"    {path.relative_to(ROOT)}: …{around}…")
    beginnings = list(first_words())
    others = [each for each in beginnings if each[2] not in VERBS]
    fraction = 1 - len(others) / len(beginnings)
    failed |= fraction < FEWEST_VERBS
    print(f"docstrings of functions that begin with a verb: {fraction:.1%} (limit {FEWEST_VERBS:.0%})")
    for path, line, word in others if show else ():
        print(f"    {path.relative_to(ROOT)}:{line}: {word}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
