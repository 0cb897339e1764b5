"""``kann compare`` and ``kann watch``: several networks, or one at several times of its training, from files."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

import kann
from kann._format import finite_or_none, fixed, percent, significant
from kann.cli import loading, options
from kann.cli.errors import one_line_errors, print_result, require_free
from kann.errors import KannError
from kann.progress import progress

ENDINGS = (".safetensors", ".pt", ".pth")
"""Endings of checkpoint files."""


@one_line_errors()
def compare(
    files: Annotated[
        list[str], typer.Argument(help="Two files or more: operators ('kann fit'), moments, or recorded states.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A page to write, such as compare.html.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="A table of all pairs to write.")] = None,
    kind: Annotated[str, typer.Option(help="The distance to measure: response, spectrum or subspace.")] = "response",
    rank: Annotated[str, typer.Option(help="The rank of operators that are fitted here.")] = "0.99",
    weights: Annotated[
        str, typer.Option(help="How much eigenvalues, or directions of states, count: carried or equal.")
    ] = "carried",
    steps: Annotated[int, typer.Option(min=1, help="For responses, over how many steps.")] = 64,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure how far apart networks are inside, and print each one's nearest."""
    require_free(out, csv, force=force)
    networks = {name: _network(file) for name, file in _names(files).items()}
    found = kann.compare(networks, kind=kind, rank=loading.number(rank), weights=weights, steps=steps)
    if csv is not None:
        found.csv(csv)
    if out is not None:
        from kann.reporting import comparison_page

        comparison_page.write(out, found)
    rows = [["network", "nearest", "distance", "floor"]]
    for i, (name, nearest) in enumerate(found.nearest().items()):
        distance = found.matrix[i, found.names.index(nearest)]
        rows.append([name, nearest, significant(distance, 4), significant(found.floor[i])])
    numbers = {"kind": found.kind, "names": list(found.names)}
    numbers |= {name: _finite(getattr(found, name)) for name in ("matrix", "low", "high", "floor")}
    print_result(repr(found), rows, numbers=numbers, as_json=as_json)


def _names(files: list[str]) -> dict[str, str]:
    """Return the files by short names: without folder and ending where that tells them apart."""
    short = [Path(file.rstrip("/")).stem for file in files]
    if len(set(short)) < len(files):
        short = files
    if len(set(short)) < len(files):
        raise KannError("a file is named twice; pass each once")
    return dict(zip(short, files, strict=True))


def _network(file: str) -> Any:
    """Read an operator, or else moments or states."""
    if file.endswith(".npz") and loading.is_operator(file):
        return loading.operator(Path(file))
    return loading.states_or_moments(file)


def _finite(values: Any) -> Any:
    """Return an array of any shape as lists, with None where JSON has no number."""
    return finite_or_none(float(values)) if values.ndim == 0 else [_finite(value) for value in values]


@one_line_errors()
def watch(
    factory: options.Factory,
    checkpoints: Annotated[
        Path, typer.Option(help="A folder of weights (.safetensors, .pt), the step of training in each name.")
    ],
    data: options.Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The film to write: .html, .gif or .mp4.")] = Path(
        "film.html"
    ),
    history: Annotated[Path | None, typer.Option(help="Also write the history, such as history.npz.")] = None,
    layer: options.Layer = None,
    state: options.State = "h",
    rank: Annotated[str, typer.Option(help="The rank of the operators.")] = "0.99",
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Fit an operator at each checkpoint of a training, follow its modes, and write the film."""
    loading.require_data(data)
    require_free(out, history, force=force)
    files = checkpoint_files(checkpoints)
    with loading.model_and_data(factory, None, data, command="watch") as (model, values, lengths):
        monitor = kann.Monitor(
            model, values, every=1, layer=layer, state=state, rank=loading.number(rank), lengths=lengths
        )
        for step, file in progress(files.items(), what="checkpoints", total=len(files), unit="checkpoint"):
            loading.load_weights(model, file)
            monitor.update(step=step)
    seen = monitor.history
    if history is not None:
        seen.save(history)
    kann.plots.film(out, seen, about=f"{len(files)} checkpoints of {factory}, from {checkpoints}.")
    rows = [["step", "slowest trusted |λ|", "held-out error", "copying", "trusted modes"]]
    for step, own in zip(seen.steps.tolist(), (each.figures for each in seen), strict=True):
        error, copying = percent(own["error"]), percent(own["copying"])
        rows.append([str(step), fixed(own["slow"]), error, copying, f"{own['trusted']:.0f}"])
    figures = {name: [finite_or_none(each.figures[name]) for each in seen] for name in seen[0].figures}
    numbers = {"steps": seen.steps.tolist(), "figures": figures, "path": str(out)}
    print_result(repr(seen), rows, str(out), numbers=numbers, as_json=as_json)


def checkpoint_files(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder by their steps: the last whole number in each name."""
    if not folder.is_dir():
        raise KannError(f"{folder} is no folder; pass the one that holds the checkpoints")
    found: dict[int, Path] = {}
    for file in sorted(folder.iterdir()):
        numbers = re.findall(r"\d+", file.stem)
        if file.suffix not in ENDINGS or not numbers:
            continue
        step = int(numbers[-1])
        if step in found:
            raise KannError(f"{found[step].name} and {file.name} are both of step {step}; leave one of them out")
        found[step] = file
    if not found:
        raise KannError(
            f"{folder} holds no checkpoint; pass a folder of {', '.join(ENDINGS)} files with the step in their names, "
            "such as step-100.safetensors"
        )
    return dict(sorted(found.items()))
