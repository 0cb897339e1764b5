"""``kann compare``: how far apart several networks are inside, from files of operators, moments or states."""

from pathlib import Path
from typing import Annotated, Any

import typer

import kann
from kann._format import significant
from kann.cli import loading
from kann.cli.errors import AsJson, Force, one_line_errors, print_result, require_free
from kann.errors import KannError
from kann.reporting.packing import finite_or_none


def compare(
    files: Annotated[
        list[str], typer.Argument(help="Two files or more: operators ('kann fit'), moments, or recorded states.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A page to write, such as compare.html.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="A table of all pairs to write.")] = None,
    kind: Annotated[str, typer.Option(help="What to compare: response, spectrum or subspace.")] = "response",
    rank: Annotated[str, typer.Option(help="The rank of operators that are fitted here.")] = "0.99",
    weights: Annotated[
        str, typer.Option(help="How much eigenvalues, or directions of states, count: carried or equal.")
    ] = "carried",
    steps: Annotated[int, typer.Option(min=1, help="For responses, over how many steps.")] = 64,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure how far apart networks are inside, and print each one's nearest."""
    with one_line_errors():
        for path in filter(None, (out, csv)):
            require_free(path, force=force)
        networks = {name: _network(file) for name, file in _names(files).items()}
        found = kann.compare(networks, kind=kind, rank=loading.number(rank), weights=weights, steps=steps)
        if csv is not None:
            found.csv(csv)
        if out is not None:
            from kann.reporting import comparison_page

            comparison_page.write(out, found)
        print_result(_in_words(found), _in_numbers(found), as_json=as_json)


def _names(files: list[str]) -> dict[str, str]:
    """The files by short names: without folder and ending where that tells them apart."""
    short = [Path(file.rstrip("/")).stem for file in files]
    if len(set(short)) < len(files):
        short = files
    if len(set(short)) < len(files):
        raise KannError("a file is named twice; pass each once")
    return dict(zip(short, files, strict=True))


def _network(file: str) -> Any:
    """An operator, or else moments or states."""
    if file.endswith(".npz") and loading.is_operator(file):
        return loading.operator(Path(file))
    return loading.states_or_moments(file)


def _in_words(found: kann.Comparison) -> str:
    lines = [repr(found)]
    for i, j in enumerate(found.nearest().tolist()):
        lines.append(
            f"{found.names[i]}: nearest {found.names[j]}, {significant(found.matrix[i, j], 4)} (floor "
            f"{significant(found.floor[i])})"
        )
    return "\n".join(lines)


def _in_numbers(found: kann.Comparison) -> dict[str, Any]:
    """The result in numbers, for ``--json``."""

    def finite(matrix: Any) -> list[list[float | None]]:
        return [[finite_or_none(value) for value in row] for row in matrix.tolist()]

    return {
        "kind": found.kind,
        "names": list(found.names),
        "matrix": finite(found.matrix),
        "low": finite(found.low),
        "high": finite(found.high),
        "floor": [finite_or_none(value) for value in found.floor.tolist()],
    }
