"""All commands of ``kann``.

The commands import torch and jinja2 only when they run, so that ``kann --help`` answers at once. Their parameters are
the options of the command line, as ``--help`` lists them, by themselves or in groups of `kann.cli.loading`.
"""

import re
import sys
from importlib.metadata import entry_points
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

import kann
from kann._format import finite_or_none, fixed, percent, significant
from kann.cli import loading
from kann.cli.demo import demo
from kann.cli.errors import SHOW_TRACEBACKS, one_line_errors, print_result, require_free
from kann.cli.highlight import highlight
from kann.data.store import require_store_name
from kann.errors import KannError
from kann.progress import progress


def record(
    network: loading.Network,
    out: Annotated[str, typer.Option("--out", "-o", help="The store to write, such as states.zarr.")],
    weights: loading.Weights = None,
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Also record the inputs of the layer, for 'kann fit --driven'.")
    ] = False,
    force: loading.Force = False,
    as_json: loading.AsJson = False,
) -> None:
    """Run a model over data and write the hidden states of a layer to a store."""
    with one_line_errors(f"interrupted before anything was written to {out}; run the same command again"):
        require_store_name(out, verb="record")
        loading.require_present(network.data)
        require_free(Path(out), force=force)
        if set("*?[").intersection(network.layer or ""):
            raise KannError(
                f"--layer {network.layer} may name several layers; pass one, or call kann.recording.record_layers from "
                "Python"
            )
        with loading.model_and_data(network, weights, command="record") as (model, values, run):
            states = kann.record(model, values, inputs=inputs, into=out, **run)
        numbers = {"sequences": len(states), "states": int(states.lengths.sum()), "units": states.dim, "path": out}
        print_result(repr(states), out, numbers=numbers, as_json=as_json)


@one_line_errors()
def fit(
    states: Annotated[
        str, typer.Argument(help="States (zarr store or its address such as s3://…, .npy, .npz) or moments (.npz).")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The operator to write.")] = Path("operator.npz"),
    rank: Annotated[
        str | None,
        typer.Option(
            show_default="auto, or all directions of moments and of fewer than three sequences",
            help="How many directions to keep: a number such as 16, a fraction of the variance such as 0.99, or auto.",
        ),
    ] = None,
    basis: Annotated[str, typer.Option(help="pca, svd or fourier.")] = "pca",
    offset: Annotated[bool, typer.Option(help="Fit a constant too. The paper's operator has none.")] = True,
    driven: Annotated[bool, typer.Option("--driven", help="Fit the effect of the inputs separately.")] = False,
    ridge: Annotated[float, typer.Option(min=0, help="Penalty on the size of the operator.")] = 0.0,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler whose workers read the store: tcp://….")
    ] = None,
    force: loading.Force = False,
    as_json: loading.AsJson = False,
) -> None:
    """Fit the operator of recorded states, write it, and print its leading eigenvalues and which modes to trust.

    With --json, all modes are printed. Trust is measured on sequences that are held out in turn.
    """
    data = loading.states_or_moments(states)
    require_free(out, force=force)
    if driven:
        loading.require_inputs(data, states)
    with loading.dask_workers(scheduler, data) as workers:
        if workers:
            typer.echo(workers, err=True)
        directions = loading.rank(rank, data)
        koopman = kann.fit(data, rank=directions, basis=basis, offset=offset, driven=driven, ridge=ridge)
        known = loading.trust_in(koopman, data)
    koopman.save(out)
    numbers = loading.operator_numbers(koopman, known) | {"path": str(out)}
    print_result(repr(koopman), loading.trust_in_words(known), str(out), numbers=numbers, as_json=as_json)


@one_line_errors()
def report(
    operator: Annotated[Path, typer.Argument(help="The file that 'kann fit' wrote.")],
    states: Annotated[str, typer.Argument(help="The states to show (zarr store or its address, .npy, .npz).")],
    out: loading.Page = Path("report.html"),
    tokens: loading.Tokens = None,
    labels: loading.Labels = None,
    driven: Annotated[Path | None, typer.Option(help="An operator fitted with --driven, to compare with.")] = None,
    title: Annotated[str, typer.Option(help="The heading.")] = "What this network remembers by",
    about: Annotated[str, typer.Option(help="A paragraph about the network and the data.")] = "",
    modes: Annotated[int, typer.Option(min=1, help="How many modes to show for each sequence.")] = 20,
    force: loading.Force = False,
) -> None:
    """Write a report that can be opened offline and explored."""
    koopman, shown = loading.operator(operator), loading.states(states)
    require_free(out, force=force)
    page = loading.json_lists(tokens=tokens, labels=labels)
    if driven is not None:
        page["others"] = {"reading the inputs": loading.operator(driven)}
    typer.echo(kann.report(out, koopman, shown, title=title, about=about, modes=modes, **page))


@one_line_errors()
def effects(
    network: loading.Network,
    operator: Annotated[Path, typer.Option(help="The file that 'kann fit' wrote.")],
    states: Annotated[str, typer.Option(help="Recorded states that fills are fitted to: a zarr store, .npy or .npz.")],
    weights: loading.Weights = None,
    labels: loading.Labels = None,
    outputs: Annotated[
        str,
        typer.Option(help="The kind of outputs: class, labels (several yes-or-no answers) or values (regression)."),
    ] = "class",
    threshold: Annotated[float, typer.Option(help="What an output must exceed to be a yes.")] = 0.0,
    counts: Annotated[str, typer.Option(help="How many coordinates to keep and to remove.")] = "1,2,4,8,16",
    fill: Annotated[str, typer.Option(help="How to complete the state: auto, linear or curve.")] = "auto",
    plot: Annotated[Path | None, typer.Option(help="A figure to write, such as effects.svg.")] = None,
    force: loading.Force = False,
    as_json: loading.AsJson = False,
) -> None:
    """Test modes in the running network: what it still does if only they are kept, or if they are removed."""
    loading.require_present(network.data)
    require_free(plot, force=force)
    koopman, recorded = loading.operator(operator), loading.states(states)
    asked = {"counts": _numbers(counts), "fill": fill, "outputs": outputs, "threshold": threshold}
    asked |= loading.json_lists(labels=labels)
    with loading.model_and_data(network, weights, command="effects") as (model, values, run):
        found = kann.effects(model, values, koopman, recorded, **asked, **run)
    if plot is not None:
        _draw(found, plot)
    from kann.explaining.explanation import effects_numbers

    print_result(str(found), numbers=effects_numbers(found), as_json=as_json)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers that the user typed with commas between them.

    >>> _numbers("1,2, 4")
    (1, 2, 4)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise KannError(f"--counts {text} are not whole numbers; pass some with commas, such as 1,2,4") from None


def _draw(found: Any, path: Path) -> None:
    """Write the figure: coordinates kept on the left, removed on the right."""
    from matplotlib import pyplot

    from kann.reporting import plots

    with pyplot.rc_context(plots.STYLE):
        figure, axes = pyplot.subplots(1, 2, figsize=(7, 3), layout="constrained", sharey=True)
        plots.draw_effects(found, ax=axes[0])
        plots.draw_effects(found, ax=axes[1], removed=True)
        figure.savefig(path)
        pyplot.close(figure)


@one_line_errors()
def explain(
    network: loading.Network,
    weights: loading.Weights = None,
    out: loading.Page = Path("report.html"),
    readout: Annotated[str | None, typer.Option(help="The name of the module that reads the states.")] = None,
    axis: Annotated[str | None, typer.Option(help="time, or depth to take layers as steps; found if left out.")] = None,
    labels: loading.Labels = None,
    tokens: loading.Tokens = None,
    classes: Annotated[str | None, typer.Option(help="The names of the classes, with commas between them.")] = None,
    channels: Annotated[str | None, typer.Option(help="The names of the channels of a signal, with commas.")] = None,
    outputs: Annotated[str | None, typer.Option(help="The kind of outputs: class, labels or values.")] = None,
    seconds: Annotated[float | None, typer.Option(help="A budget of time.")] = None,
    step_seconds: Annotated[float | None, typer.Option(help="How long a step lasts.")] = None,
    force: loading.Force = False,
    as_json: loading.AsJson = False,
) -> None:
    """Explain what a network learned: print a few sentences with figures, and write the page that shows them."""
    loading.require_present(network.data)
    require_free(out, force=force)
    asked = {"readout": readout, "axis": axis, "outputs": outputs, "seconds": seconds, "step_seconds": step_seconds}
    asked |= loading.json_lists(labels=labels, tokens=tokens)
    for name, listed in (("classes", classes), ("channels", channels)):
        if listed is not None:
            asked[name] = [each.strip() for each in listed.split(",")]
    with loading.model_and_data(network, weights, command="explain") as (model, values, run):
        found = kann.explain(model, values, **asked, **run)
    found.report(out)
    numbers = found.numbers() | {"path": str(out)}
    print_result("\n\n".join([*found.sentences, str(out)]), numbers=numbers, as_json=as_json)


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
    force: loading.Force = False,
    as_json: loading.AsJson = False,
) -> None:
    """Measure how far apart networks are inside, and print each one's nearest."""
    require_free(out, csv, force=force)
    networks = {name: loading.operator_states_or_moments(file) for name, file in _names(files).items()}
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


def _finite(values: Any) -> Any:
    """Return an array of any shape as lists, with None where JSON has no number."""
    return finite_or_none(float(values)) if values.ndim == 0 else [_finite(value) for value in values]


@one_line_errors()
def watch(
    network: loading.Network,
    checkpoints: Annotated[
        Path, typer.Option(help="A folder of weights (.safetensors, .pt), the step of training in each name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The film to write, a page.")] = Path("film.html"),
    history: Annotated[Path | None, typer.Option(help="Also write the history, such as history.npz.")] = None,
    rank: Annotated[str, typer.Option(help="The rank of the operators.")] = "0.99",
    force: loading.Force = False,
    as_json: loading.AsJson = False,
) -> None:
    """Fit an operator at each checkpoint of a training, follow its modes, and write the film."""
    loading.require_present(network.data)
    require_free(out, history, force=force)
    files = checkpoint_files(checkpoints)
    with loading.model_and_data(network, command="watch") as (model, values, run):
        monitor = kann.Monitor(model, values, every=1, rank=loading.number(rank), **run)
        for step, file in progress(files.items(), what="checkpoints", total=len(files), unit="checkpoint"):
            loading.load_weights(model, file)
            monitor.update(step=step)
    seen = monitor.history
    if history is not None:
        seen.save(history)
    kann.plots.film(out, seen, about=f"{len(files)} checkpoints of {network.factory}, from {checkpoints}.")
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


# The program

app = typer.Typer(
    name="kann",
    help="Koopman Analysis of Neural Networks: explain a trained sequence network through one linear operator.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"kann {kann.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Read the options of all commands."""
    SHOW_TRACEBACKS.set(debug)
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no ä gets a question mark, and not a traceback
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


EXAMPLES = {
    explain: "kann explain mypackage.models:build --weights w.safetensors --data x.npy --out report.html",
    record: "kann record mypackage.models:build --weights w.safetensors --data x.npy -o states.zarr",
    fit: "kann fit states.zarr -o operator.npz --rank 0.99 --driven, "
    "or kann fit s3://bucket/states.zarr --scheduler tcp://host:8786",
    report: "kann report operator.npz states.zarr -o report.html --tokens tokens.json",
    effects: "kann effects mypackage.models:build --weights w.safetensors --data x.npy --operator operator.npz "
    "--states states.zarr",
    compare: "kann compare a.npz b.npz c.npz -o compare.html --kind spectrum --csv pairs.csv",
    watch: "kann watch mypackage.models:build --checkpoints runs/7 --data x.npy -o film.html",
    highlight: 'kann highlight "The plot is not bad at all, and the acting is amazing."',
    demo: "kann demo --out demo",
}
"""The example that the help of each command ends with, in the order in which ``kann --help`` lists the commands."""

for command, example in EXAMPLES.items():
    app.command(epilog=f"Example: {example}")(loading.with_groups(command))
# Packages of a clone add commands of their own: `kann_experiments` adds `reproduce` and `data`.
for entry_point in entry_points(group="kann.commands"):
    app.add_typer(entry_point.load(), name=entry_point.name)
