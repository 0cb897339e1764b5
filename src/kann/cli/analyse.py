"""``kann record``, ``fit``, ``report``, ``effects`` and ``explain``: one network, from files."""

from pathlib import Path
from typing import Annotated, Any

import typer

import kann
from kann.cli import loading, options
from kann.cli.errors import one_line_errors, print_result, require_free
from kann.data.store import require_store_name
from kann.errors import KannError


def record(
    factory: options.Factory,
    data: options.Data,
    out: Annotated[str, typer.Option("--out", "-o", help="The store to write, such as states.zarr.")],
    lengths: options.Lengths = None,
    weights: options.Weights = None,
    layer: options.Layer = None,
    state: options.State = "h",
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Also record the inputs of the layer, for 'kann fit --driven'.")
    ] = False,
    batch_size: options.BatchSize = 32,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a model over data and write the hidden states of a layer to a store."""
    with one_line_errors(f"interrupted before anything was written to {out}; run the same command again"):
        require_store_name(out, verb="record")
        loading.require_data(data)
        require_free(Path(out), force=force)
        if set("*?[").intersection(layer or ""):
            raise KannError(
                f"--layer {layer} may name several layers; pass one, or call kann.recording.record_layers from Python"
            )
        with loading.model_and_data(factory, weights, data, lengths, command="record") as (model, values, known):
            states = kann.record(
                model,
                values,
                lengths=known,
                layer=layer,
                state=state,
                inputs=inputs,
                batch_size=batch_size,
                into=out,
            )
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
    force: options.Force = False,
    as_json: options.AsJson = False,
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
    out: options.Page = Path("report.html"),
    tokens: options.Tokens = None,
    labels: options.Labels = None,
    driven: Annotated[Path | None, typer.Option(help="An operator fitted with --driven, to compare with.")] = None,
    title: Annotated[str, typer.Option(help="The heading.")] = "What this network remembers by",
    about: Annotated[str, typer.Option(help="A paragraph about the network and the data.")] = "",
    modes: Annotated[int, typer.Option(min=1, help="How many modes to show for each sequence.")] = 20,
    force: options.Force = False,
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
    factory: options.Factory,
    data: options.Data,
    operator: Annotated[Path, typer.Option(help="The file that 'kann fit' wrote.")],
    states: Annotated[str, typer.Option(help="Recorded states that fills are fitted to: a zarr store, .npy or .npz.")],
    weights: options.Weights = None,
    lengths: options.Lengths = None,
    labels: options.Labels = None,
    outputs: Annotated[
        str,
        typer.Option(help="The kind of outputs: class, labels (several yes-or-no answers) or values (regression)."),
    ] = "class",
    threshold: Annotated[float, typer.Option(help="What an output must exceed to be a yes.")] = 0.0,
    layer: options.Layer = None,
    state: options.State = "h",
    counts: Annotated[str, typer.Option(help="How many coordinates to keep and to remove.")] = "1,2,4,8,16",
    fill: Annotated[str, typer.Option(help="How to complete the state: auto, linear or curve.")] = "auto",
    batch_size: options.BatchSize = 128,
    plot: Annotated[Path | None, typer.Option(help="A figure to write, such as effects.svg.")] = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Test modes in the running network: what it still does if only they are kept, or if they are removed."""
    loading.require_data(data)
    require_free(plot, force=force)
    koopman, recorded = loading.operator(operator), loading.states(states)
    with loading.model_and_data(factory, weights, data, lengths, command="effects") as (model, values, known):
        found = kann.effects(
            model,
            values,
            koopman,
            recorded,
            lengths=known,
            layer=layer,
            state=state,
            counts=_numbers(counts),
            fill=fill,
            outputs=outputs,
            threshold=threshold,
            batch_size=batch_size,
            **loading.json_lists(labels=labels),
        )
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
    factory: options.Factory,
    data: options.Data,
    weights: options.Weights = None,
    out: options.Page = Path("report.html"),
    readout: Annotated[str | None, typer.Option(help="The name of the module that reads the states.")] = None,
    axis: Annotated[str | None, typer.Option(help="time, or depth to take layers as steps; found if left out.")] = None,
    layer: options.Layer = None,
    state: Annotated[str | None, typer.Option(help="Which state of an LSTM: h, c or hc.")] = None,
    labels: options.Labels = None,
    tokens: options.Tokens = None,
    classes: Annotated[str | None, typer.Option(help="The names of the classes, with commas between them.")] = None,
    channels: Annotated[str | None, typer.Option(help="The names of the channels of a signal, with commas.")] = None,
    outputs: Annotated[str | None, typer.Option(help="The kind of outputs: class, labels or values.")] = None,
    lengths: options.Lengths = None,
    seconds: Annotated[float | None, typer.Option(help="A budget of time.")] = None,
    step_seconds: Annotated[float | None, typer.Option(help="How long a step lasts.")] = None,
    batch_size: options.BatchSize = 128,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Explain what a network learned: print a few sentences with figures, and write the page that shows them."""
    loading.require_data(data)
    require_free(out, force=force)
    more = loading.json_lists(labels=labels, tokens=tokens)
    for name, listed in (("classes", classes), ("channels", channels)):
        if listed is not None:
            more[name] = [each.strip() for each in listed.split(",")]
    with loading.model_and_data(factory, weights, data, lengths, command="explain") as (model, values, known):
        found = kann.explain(
            model,
            values,
            lengths=known,
            readout=readout,
            axis=axis,
            layer=layer,
            state=state,
            outputs=outputs,
            seconds=seconds,
            step_seconds=step_seconds,
            batch_size=batch_size,
            **more,
        )
    found.report(out)
    numbers = found.numbers() | {"path": str(out)}
    print_result("\n\n".join([*found.sentences, str(out)]), numbers=numbers, as_json=as_json)
