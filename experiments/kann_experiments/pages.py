"""Fill the tables of the manual from the results of the experiments: ``python -m kann_experiments.pages runs docs``.

A table that is filled stands below a comment that names the results: ``<!-- results copy/dtriv -->`` for all rows of
``runs/copy/dtriv/results.json``, ``<!-- results copy/dtriv: -live_ -->`` for all but those whose keys begin so, or
``<!-- results copy/rnn copy/gru: accuracy recall -->`` for a column of each and these rows. A page keeps the tables
whose results are not there.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kann.data.atomic_write import replacing
from kann.errors import KannError
from kann_experiments.results import Printed, Quantity, Row, markdown_table

ARCHITECTURES = {"gru": "GRU", "lstm": "LSTM", "rnn": "RNN"}
"""How architectures are written in tables, where that differs from the names of their folders."""

TABLE = re.compile(r"<!-- results ([^:>]+?)(?:: ([^>]+?))? -->\n(?P<table>(?:\|.*\n)*)")
"""A comment that names results and maybe rows, and the table below it."""


def fill_tables(runs: Path, docs: Path) -> tuple[str, ...]:
    """Fill all tables of all pages whose results are there; returns what was filled, as ``page: results``."""
    filled = []
    for page in sorted(docs.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new, names = text, []
        for match in TABLE.finditer(text):
            folders = match[1].split()
            if all((runs / folder / "results.json").is_file() for folder in folders):
                lines = _table([_read_rows(runs / folder) for folder in folders], folders, (match[2] or "").split())
                comment = match[0].partition("\n")[0]
                new = new.replace(match[0], "\n".join([comment, *lines, ""]))
                names.append(f"{page.name}: {match[1]}")
        if new != text:
            with replacing(page) as temporary:
                temporary.write_text(new, encoding="utf-8")
        filled += names
    return tuple(filled)


def _read_rows(folder: Path) -> dict[str, Row]:
    """The rows of ``results.json`` in a folder, by key."""
    content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return {key: _row(key, entry) for key, entry in content["rows"].items()}


def _row(key: str, entry: dict[str, Any]) -> Row:
    """A row as it was before it was written to JSON."""
    quantity = Quantity(key=key, what=entry["what"], format=entry["format"])
    printed = None
    if entry["paper"] is not None:
        printed = Printed(paper=float(entry["paper"]), holds=entry["side"], as_printed=entry["as_printed"])
    return Row(quantity=quantity, values=tuple(map(float, entry["values"])), printed=printed)


def _table(results: list[dict[str, Row]], folders: list[str], keys: list[str]) -> list[str]:
    """Lines of Markdown: everything of one run, or some rows of several."""
    left_out = tuple(key[1:] for key in keys if key.startswith("-"))
    if len(results) == 1 and len(left_out) == len(keys):
        return markdown_table([row for key, row in results[0].items() if not key.startswith(left_out)])
    names = [ARCHITECTURES.get(Path(folder).name, Path(folder).name) for folder in folders]
    return ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|", *_compared(results, names, keys)]


def _compared(results: list[dict[str, Row]], names: list[str], keys: list[str]) -> Iterator[str]:
    """A line for each key, with a cell for each run."""
    for key in keys:
        missing = [name for name, rows in zip(names, results, strict=True) if key not in rows]
        if missing:
            raise KannError(f"the results of {missing[0]} have no row {key!r}; run the experiment again")
        cells = [_cell(rows[key]) for rows in results]
        what = results[0][key].quantity.what.replace("    ", "– ").replace("|", "∣")
        yield f"| {what} | " + " | ".join(cells) + " |"


def _cell(row: Row) -> str:
    """Mean and range, such as ``99.5 % (99.4 % – 99.7 %)``; the paper's number follows in italics."""
    _, paper, mean, span, _ = row.cells()
    text = mean
    if span != mean:
        text += f" ({span})"
    if row.printed is not None:
        text += f" *{paper}*"
    return text


if __name__ == "__main__":
    for line in fill_tables(*map(Path, sys.argv[1:3])):
        sys.stdout.write(f"{line}\n")
