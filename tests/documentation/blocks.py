"""The code blocks of README and the manual: where they stand, what is in them, and which of them run."""

import ast
import builtins
import importlib.util
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"# Not run: \S")
"""A block that needs data, a GPU, a cluster or minutes begins with this line and the reason, which readers see too."""

# Notebooks run when the manual is built, and the changelog and the notes for developers have no code.
PAGES = sorted(
    page
    for page in (ROOT / "README.md", ROOT / "AGENTS.md", *(ROOT / "docs").rglob("*.md"))
    if "build" not in page.parts and "{code-cell}" not in page.read_text(encoding="utf-8")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One code block of a page."""

    page: Path
    line: int
    """The line of the page that its code begins on."""
    language: str
    """What stands behind the fence; nothing for plain text and many commands."""
    code: str

    @property
    def where(self) -> str:
        """Its page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_session(self) -> bool:
        """Whether it is a session with ``>>>``, which doctest runs."""
        return self.code.lstrip().startswith(">>>")

    @property
    def runs(self) -> bool:
        """Whether it is run, and not only compiled with its names checked."""
        return not NOT_RUN.match(self.code)

    @property
    def names_of_reader(self) -> set[str]:
        """Words of the line that says why it does not run: it may also say which names are the reader's."""
        return set() if self.runs else set(re.findall(r"\w+", self.code.splitlines()[0]))

    def tree(self) -> ast.Module:
        """Its syntax tree, with line numbers of the page."""
        return ast.parse("\n" * (self.line - 1) + self.code, filename=self.where)


def blocks_of(page: Path) -> list[Block]:
    """All code blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page=page, line=text[: found.start(2)].count("\n") + 1, language=found[1], code=found[2])
        for found in FENCE.finditer(text)
    ]


def python_blocks(page: Path) -> list[Block]:
    """The blocks of a page that are Python, without those that are sessions with ``>>>``, which doctest runs."""
    return [block for block in blocks_of(page) if block.language == "python" and not block.is_session]


def commands_of(page: Path) -> Iterator[tuple[str, str]]:
    """Where a page shows a command of kann, and the command, its continued lines put together."""
    for block in blocks_of(page):
        if block.language in ("", "bash", "sh", "console"):
            for line in block.code.replace("\\\n", " ").splitlines():
                if line.startswith("kann "):
                    yield block.where, line


def defined_names(tree: ast.Module) -> set[str]:
    """Every name that a block binds, in any scope."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return found


def unknown_names(tree: ast.Module, known: set[str]) -> set[str]:
    """Names that a block reads and nobody has defined."""
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return read - defined_names(tree) - known - set(vars(builtins))


def wrong_names_of_kann(tree: ast.Module) -> list[str]:
    """Names below ``kann`` that do not exist, and arguments that the functions there do not take."""
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kann":
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if not hasattr(module, alias.name) and not importlib.util.find_spec(name):
                    wrong.append(name)
        if isinstance(node, ast.Attribute) and _of_kann(node) is AttributeError:
            wrong.append(ast.unparse(node))
        if isinstance(node, ast.Call):
            wrong += _wrong_arguments(node, _of_kann(node.func))
    return wrong


def _of_kann(node: ast.expr) -> Any:
    """What ``kann.a.b`` is; None if the expression is something else, AttributeError if it does not exist."""
    names = ast.unparse(node).split(".")
    if names[0] != "kann" or not all(name.isidentifier() for name in names):
        return None
    thing: Any = importlib.import_module("kann")
    # Other modules below kann become its attributes only when something has imported them.
    if len(names) > 1 and names[1] not in thing.__all__ and inspect.ismodule(getattr(thing, names[1], None)):
        return AttributeError
    for number, name in enumerate(names[1:], start=2):
        try:
            thing = getattr(thing, name)
        except AttributeError:
            try:
                thing = importlib.import_module(".".join(names[:number]))
            except ImportError:
                return AttributeError
    return thing


def _wrong_arguments(call: ast.Call, function: Any) -> list[str]:
    """Keywords of a call that the function does not take."""
    if not inspect.isfunction(function):
        return []
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    unknown = [keyword.arg for keyword in call.keywords if keyword.arg and keyword.arg not in parameters]
    return [f"{ast.unparse(call.func)}(..., {name}=)" for name in unknown]
