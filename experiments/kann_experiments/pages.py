"""Fill README and the manual from the committed results: ``python -m kann_experiments.pages [RUNS]``.

With ``RUNS`` the results of these runs are first written to ``experiments/results``, as small files that are committed:
``runs/copy/dtriv/results.json`` becomes ``experiments/results/copy/dtriv.json``.

A comment on a page names what follows it:

- ``<!-- results copy/dtriv -->``, a table of all rows of these results; ``<!-- results copy/dtriv: -live -->``, of all
  but ``live`` and ``live_…``; ``<!-- results copy/rnn copy/gru: accuracy recall -->``, a column of each and these rows.
- ``<!-- claims copy/dtriv-as-printed copy/dtriv -->``, a table of what the paper printed, with a column for each of
  these runs: mean, range and verdict; keys after a colon choose rows as above.
- ``<!-- lines sentiment/gru paths -->``, lines of Markdown that the experiment wrote under this name.
- ``<!-- value copy/dtriv recall -->91.7 %<!-- end -->``, one number in the text: the mean, or with another word behind
  the key the ``range``, ``both``, the ``verdict`` or the ``paper``'s number.

Runs without committed results have no column, and a block of such runs alone stays as it is. A picture
``images/paper/copy.dtriv.accuracy.png`` that a page shows is the figure ``runs/copy/dtriv/accuracy.png``, made smaller.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kann.data.atomic_write import replacing
from kann.errors import KannError
from kann_experiments.results import Printed, Row, markdown_table, printed_for, write_json

RESULTS = Path(__file__).parents[1] / "results"
"""The committed results."""

DOCS = Path(__file__).parents[2] / "docs"
"""The pages of the manual."""

KEPT = (
    *("experiment", "seeds", "made_on", "versions", "config", "differences", "rows", "lines"),
    *("accuracy", "counts", "sequences", "agreement"),  # of profiles along depth
)
"""The entries of ``results.json`` that are committed."""

SEEDS = 5
"""Seeds of most runs. Tables name the number of another."""

ARCHITECTURES = {"gru": "GRU", "lstm": "LSTM", "rnn": "RNN"}
"""How architectures are written in tables, where that differs from the names of their folders."""

BLOCK = re.compile(r"<!-- (results|claims|lines) ([^:>]+?)(?:: ([^>]+?))? -->\n((?:\|.*\n|>.*\n)*)")
"""A comment that names results and maybe rows, and the table below it."""

VALUE = re.compile(r"<!-- value (\S+) (\S+?)(?: (\w+))? -->(.*?)<!-- end -->", re.DOTALL)
"""One number in the text."""

FIGURE = re.compile(r"images/paper/([\w.-]+\.png)")
"""A picture of a page that is a figure of an experiment."""

WIDEST, COLOURS = 1000, 256
"""Points along the wider side of such pictures, and how many colours they have at most."""

VALUES: dict[str | None, Callable[[Row], str]] = {
    None: lambda row: row.quantity.text(row.mean),
    "range": lambda row: row.range_text,
    "both": lambda row: _mean_and_range(row),
    "verdict": lambda row: row.verdict,
    "paper": lambda row: row.paper_text,
}
"""What can be quoted of a row."""


def collect(runs: Path, results: Path = RESULTS) -> tuple[Path, ...]:
    """Write the results of all runs in a folder as small files; returns these."""
    written = []
    for path in sorted(runs.glob("*/*/results.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        place = results / path.parent.parent.name / f"{path.parent.name}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, {key: content[key] for key in KEPT if key in content})
        written.append(place)
    return tuple(written)


def collect_figures(runs: Path, docs: Path = DOCS) -> tuple[Path, ...]:
    """Copy the figures of runs that pages show, with fewer points and colours; returns the copies."""
    from PIL import Image

    shown = {match[1] for page in docs.rglob("*.md") for match in FIGURE.finditer(page.read_text(encoding="utf-8"))}
    written = []
    for name in sorted(shown):
        task, arch, figure, _ = name.split(".")
        source, place = runs / task / arch / f"{figure}.png", docs / "images" / "paper" / name
        if source.is_file():
            with Image.open(source) as image:
                image.thumbnail((WIDEST, 2 * WIDEST))
                place.parent.mkdir(parents=True, exist_ok=True)
                image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(place, optimize=True)
            written.append(place)
    return tuple(written)


def fill(docs: Path = DOCS, results: Path = RESULTS) -> tuple[str, ...]:
    """Fill README (next to the folder of pages) and all pages; returns the names of those that changed."""
    changed = []
    for page in [*docs.parent.glob("README.md"), *sorted(docs.rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        new = filled(text, results)
        if new != text:
            with replacing(page) as temporary:
                temporary.write_text(new, encoding="utf-8")
            changed.append(page.name)
    return tuple(changed)


def filled(text: str, results: Path = RESULTS) -> str:
    """The text of a page with its tables and numbers taken from the results."""

    def block(match: re.Match[str]) -> str:
        kind, names, keys, old = match[1], match[2].split(), (match[3] or "").split(), match[4]
        folders = names[:1] if kind == "lines" else names
        found = {folder: content for folder in folders if (content := _read(results, folder)) is not None}
        if not found:
            return match[0]
        contents = list(found.values())
        if kind == "lines":
            lines = contents[0].get("lines", {}).get(names[1])
            if lines is None:
                raise KannError(f"the results of {names[0]} have no lines {names[1]!r}; run the experiment again")
        else:
            table = _claims if kind == "claims" else _table
            lines = table([_rows(content) for content in contents], list(map(_title, found, contents)), keys)
        return match[0].removesuffix(old) + "".join(f"{line}\n" for line in lines)

    def value(match: re.Match[str]) -> str:
        content = _read(results, match[1])
        if content is None:
            return match[0]
        row = _rows(content).get(match[2])
        if row is None or match[3] not in VALUES:
            raise KannError(
                f"the results of {match[1]} have no {match[2]!r} {match[3] or ''}; run the experiment again"
            )
        return match[0].removesuffix(f"{match[4]}<!-- end -->") + VALUES[match[3]](row) + "<!-- end -->"

    return VALUE.sub(value, BLOCK.sub(block, text))


def _read(results: Path, folder: str) -> dict[str, Any] | None:
    """The committed results of a run, such as ``copy/dtriv``; None if there are none."""
    path = results / f"{folder}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _rows(content: Mapping[str, Any]) -> dict[str, Row]:
    """The rows of a run by key, compared with ``expected.toml`` as it is today."""
    rows = {key: Row.from_json(key, entry) for key, entry in content["rows"].items()}
    if "config" not in content:  # of several architectures together, of which the paper prints nothing
        return rows
    printed = printed_for(content["experiment"], content["config"]["arch"])
    return {key: _compared_with(row, printed.get(key), rows) for key, row in rows.items()}


def _compared_with(row: Row, printed: Printed | None, rows: Mapping[str, Row]) -> Row:
    baseline = rows[printed.baseline].values if printed is not None and printed.baseline else ()
    return replace(row, printed=printed, baseline=baseline)


def _title(folder: str, content: Mapping[str, Any]) -> str:
    """How a run is called at the head of a column: ``sentiment/gru-as-printed`` becomes ``GRU, as printed``."""
    arch, _, setting = Path(folder).name.partition("-")
    setting = setting.replace("as-printed-", "as-printed, ").replace("-", " ")
    count = len(content["seeds"])
    fewer = f" ({count} seed{'s' * (count > 1)})" if count != SEEDS else ""
    return ", ".join(filter(None, [ARCHITECTURES.get(arch, arch), setting])) + fewer


def _left_out(key: str, keys: Sequence[str]) -> bool:
    """Whether ``-name`` is among the keys for this one, or for a name that it begins with: whole words only."""
    names = [name[1:].rstrip("_") for name in keys if name.startswith("-")]
    return any(key == name or key.startswith(f"{name}_") for name in names)


def _shown(rows: Mapping[str, Row], keys: Sequence[str]) -> list[str]:
    """Return the keys of the rows that a table shows: those that are named, or all but those left out.

    A row whose name goes on with that of another, such as "– held-out sequences", stands below that one.
    """
    shown = [key for key in keys if not key.startswith("-")] or [key for key in rows if not _left_out(key, keys)]
    heads, above = {}, ""
    for key, row in rows.items():
        above = above if _goes_on(row) else key
        heads[key] = above
    above = ""
    for key in shown:
        if key in rows and not _goes_on(rows[key]):
            above = key
        elif key in rows and heads[key] != above:
            raise KannError(f"the row {key!r} goes on with {heads[key]!r}; name that one before it")
    return shown


def _goes_on(row: Row) -> bool:
    return row.quantity.what.startswith("    ")


def _table(results: list[dict[str, Row]], titles: list[str], keys: list[str]) -> list[str]:
    """Lines of Markdown: everything of one run, or some rows of several."""
    shown = _shown(results[0], keys)
    if len(results) == 1 and all(key.startswith("-") for key in keys):
        return markdown_table([results[0][key] for key in shown])
    return ["| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|", *_compared(results, titles, shown)]


def _compared(results: list[dict[str, Row]], titles: list[str], keys: list[str]) -> Iterator[str]:
    """A line for each key, with a cell for each run."""
    for key in keys:
        missing = [name for name, rows in zip(titles, results, strict=True) if key not in rows]
        if missing:
            raise KannError(f"the results of {missing[0]} have no row {key!r}; run the experiment again")
        yield f"| {_what(results[0][key])} | " + " | ".join(_cell(rows[key]) for rows in results) + " |"


def _claims(results: list[dict[str, Row]], titles: list[str], keys: list[str]) -> list[str]:
    """Lines of Markdown: what the paper printed, and for each run its numbers and the verdict."""
    lines = ["| | paper | " + " | ".join(titles) + " |", "|---" * (len(titles) + 2) + "|"]
    printed = {key: row for key, row in results[0].items() if row.printed is not None}
    for key in _shown(printed, keys):
        first, rows = printed[key], [found.get(key) for found in results]
        cells = " | ".join(f"{_mean_and_range(row)}<br>**{row.verdict}**" if row else "–" for row in rows)
        lines.append(f"| {_what(first)} | {first.paper_text} | {cells} |")
    return lines


def _what(row: Row) -> str:
    """The name of a row; a bar would end the cell."""
    return row.quantity.what.replace("    ", "– ").replace("|", "∣")


def _mean_and_range(row: Row) -> str:
    """Mean and range, such as ``99.5 % (99.4 % – 99.7 %)``."""
    mean, span = row.quantity.text(row.mean), row.range_text
    return mean if span == mean else f"{mean} ({span})"


def _cell(row: Row) -> str:
    """Mean and range; the paper's number follows in italics."""
    return _mean_and_range(row) + (f" *{row.paper_text}*" if row.printed is not None else "")


if __name__ == "__main__":
    for runs in sys.argv[1:]:
        sys.stdout.writelines(f"{path}\n" for path in (*collect(Path(runs)), *collect_figures(Path(runs))))
    sys.stdout.writelines(f"{page}\n" for page in fill())
