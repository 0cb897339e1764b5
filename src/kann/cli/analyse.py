"""``kann explain``: what a network learned, from files, as sentences and a page."""

from pathlib import Path
from typing import Annotated, Any

import typer

import kann
from kann.cli import loading
from kann.cli import loading as recording
from kann.cli.errors import AsJson, Force, errors_of_model, one_line_errors, print_result, require_free
from kann.errors import KannError


def record(
    factory: Annotated[str, typer.Argument(metavar="PKG.MODULE:FACTORY", help="A function that returns the model.")],
    data: Annotated[Path, typer.Option(help="What the model reads: .npy, or .npz with 'data' and maybe 'lengths'.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The store to write, such as states.zarr.")],
    lengths: Annotated[
        Path | None,
        typer.Option(help="How many steps of each sequence are real: .npy; also for a model that reads them."),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The weights of the model: .safetensors or .pt.")] = None,
    layer: Annotated[str | None, typer.Option(help="The layer to record; not needed if only one is recurrent.")] = None,
    state: Annotated[str, typer.Option(help="Which state of an LSTM: h, c or hc.")] = "h",
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Also record what the layer reads, for 'kann fit --driven'.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="How many sequences to run at once.")] = 32,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run a model over data and write the hidden states of a layer to a store."""
    with one_line_errors(recording.what_is_left(out)):
        recording.require_store_name(out)
        loading.require_data(data)
        require_free(out, force=force)
        if layer is not None and any(character in layer for character in "*?["):
            raise KannError(f"--layer {layer} may name several layers; pass one, or call kann.record from Python")
        model, (values, own_lengths) = loading.model(factory, weights), loading.model_data(data)
        if lengths is not None:
            own_lengths = loading.sequence_lengths(lengths)
        options = {"layer": layer, "state": state, "inputs": inputs, "batch_size": batch_size, "into": out}
        states = recording.record(model, values, own_lengths, source=data, options=options)
        numbers = {"sequences": len(states), "states": int(states.lengths.sum()), "units": states.dim, "path": str(out)}
        print_result(f"{states!r}\n{out}", numbers, as_json=as_json)


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
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit the operator of recorded states, write it, and print its leading eigenvalues and which modes to trust.

    With --json, all modes are printed. Trust is measured on sequences that are held out in turn.
    """
    with one_line_errors():
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
        print_result(f"{koopman!r}\n{loading.trust_in_words(known)}\n{out}", numbers, as_json=as_json)


def report(
    operator: Annotated[Path, typer.Argument(help="The file that 'kann fit' wrote.")],
    states: Annotated[str, typer.Argument(help="The states to show (zarr store or its address, .npy, .npz).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    tokens: Annotated[Path | None, typer.Option(help="JSON: for each sequence a list of words.")] = None,
    labels: Annotated[Path | None, typer.Option(help="JSON: the label of each sequence.")] = None,
    driven: Annotated[Path | None, typer.Option(help="An operator fitted with --driven, to compare with.")] = None,
    title: Annotated[str, typer.Option(help="The heading.")] = "What this network remembers by",
    about: Annotated[str, typer.Option(help="A paragraph about the network and the data.")] = "",
    modes: Annotated[int, typer.Option(min=1, help="How many modes to show for each sequence.")] = 20,
    force: Force = False,
) -> None:
    """Write a report that can be opened offline and explored."""
    with one_line_errors():
        koopman, shown = loading.operator(operator), loading.states(states)
        require_free(out, force=force)
        settings: dict[str, Any] = {"title": title, "about": about, "modes": modes}
        if tokens is not None:
            settings["tokens"] = loading.json_list(tokens)
        if labels is not None:
            settings["labels"] = loading.json_list(labels)
        if driven is not None:
            settings["driven"] = loading.operator(driven)
        typer.echo(kann.report(out, koopman, shown, **settings))


def effects(
    factory: Annotated[str, typer.Argument(metavar="PKG.MODULE:FACTORY", help="A function that returns the model.")],
    data: Annotated[Path, typer.Option(help="What the model reads: .npy, or .npz with 'data' and maybe 'lengths'.")],
    operator: Annotated[Path, typer.Option(help="The file that 'kann fit' wrote.")],
    states: Annotated[str, typer.Option(help="Recorded states that fills are fitted to: a zarr store, .npy or .npz.")],
    weights: Annotated[Path | None, typer.Option(help="The weights of the model: .safetensors or .pt.")] = None,
    lengths: Annotated[Path | None, typer.Option(help="How many steps of each sequence are real: .npy.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="JSON: the label of each sequence, or a list of those of its steps, to measure accuracy."),
    ] = None,
    outputs: Annotated[
        str,
        typer.Option(help="What the model gives: class, labels (several yes-or-no answers) or values (regression)."),
    ] = "class",
    threshold: Annotated[float, typer.Option(help="What an output must exceed to be a yes.")] = 0.0,
    layer: Annotated[str | None, typer.Option(help="The layer that was recorded.")] = None,
    state: Annotated[str, typer.Option(help="Which state of an LSTM was recorded: h, c or hc.")] = "h",
    counts: Annotated[str, typer.Option(help="How many coordinates to keep and to remove.")] = "1,2,4,8,16",
    fill: Annotated[str, typer.Option(help="What the rest becomes: curve, linear, mean or resample.")] = "curve",
    choose: Annotated[bool, typer.Option("--choose", help="Also search for the best operator.")] = False,
    learn: Annotated[bool, typer.Option("--learn", help="Also learn the best single direction.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="How many sequences to run at once.")] = 128,
    plot: Annotated[Path | None, typer.Option(help="A figure to write, such as effects.svg.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Test modes in the running network: what it still does if only they are kept, or if they are removed."""
    with one_line_errors():
        loading.require_data(data)
        if plot is not None:
            require_free(plot, force=force)
        model, (values, own_lengths) = loading.model(factory, weights), loading.model_data(data)
        if lengths is not None:
            own_lengths = loading.sequence_lengths(lengths)
        options: dict[str, Any] = {"layer": layer, "state": state, "fill": fill, "counts": _numbers(counts)}
        options |= {
            "outputs": outputs,
            "threshold": threshold,
            "choose": choose,
            "learn": learn,
            "batch_size": batch_size,
        }
        if labels is not None:
            options["labels"] = loading.json_list(labels)
        koopman, recorded = loading.operator(operator), loading.states(states)
        read, lengths_of = recording.as_called(model, values, own_lengths)
        with errors_of_model(str(data), command="effects"):
            found = kann.effects(model, read, koopman, recorded, lengths=lengths_of, **options)
        from kann.explaining.explanation import effects_numbers

        if plot is not None:
            _draw(found, plot)
        print_result(str(found), effects_numbers(found), as_json=as_json)


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that the user typed with commas between them.

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


def explain(
    factory: Annotated[str, typer.Argument(metavar="PKG.MODULE:FACTORY", help="A function that returns the model.")],
    data: Annotated[Path, typer.Option(help="What the model reads: .npy, or .npz with 'data' and maybe 'lengths'.")],
    weights: Annotated[Path | None, typer.Option(help="The weights of the model: .safetensors or .pt.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    readout: Annotated[str | None, typer.Option(help="The name of the module that reads the states.")] = None,
    axis: Annotated[str | None, typer.Option(help="time, or depth to take layers as steps; found if left out.")] = None,
    layer: Annotated[str | None, typer.Option(help="The layer to explain; found if left out.")] = None,
    state: Annotated[str | None, typer.Option(help="Which state of an LSTM: h, c or hc.")] = None,
    labels: Annotated[Path | None, typer.Option(help="JSON: the label of each sequence.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="JSON: for each sequence a list of words.")] = None,
    classes: Annotated[str | None, typer.Option(help="The names of the classes, with commas between them.")] = None,
    channels: Annotated[str | None, typer.Option(help="The names of the channels of a signal, with commas.")] = None,
    outputs: Annotated[str | None, typer.Option(help="What the model gives: class, labels or values.")] = None,
    lengths: Annotated[Path | None, typer.Option(help="How many steps of each sequence are real: .npy.")] = None,
    seconds: Annotated[float | None, typer.Option(help="A budget of time.")] = None,
    step_seconds: Annotated[float | None, typer.Option(help="How long a step lasts.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="How many sequences to run at once.")] = 128,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Explain what a network learned: print a few sentences with figures, and write the page that shows them."""
    with one_line_errors():
        loading.require_data(data)
        require_free(out, force=force)
        model, (values, own_lengths) = loading.model(factory, weights), loading.model_data(data)
        if lengths is not None:
            own_lengths = loading.sequence_lengths(lengths)
        options: dict[str, Any] = {"readout": readout, "axis": axis, "layer": layer, "state": state}
        options |= {"outputs": outputs, "seconds": seconds, "step_seconds": step_seconds, "batch_size": batch_size}
        for name, path in (("labels", labels), ("tokens", tokens)):
            if path is not None:
                options[name] = loading.json_list(path)
        for name, listed in (("classes", classes), ("channels", channels)):
            if listed is not None:
                options[name] = [each.strip() for each in listed.split(",")]
        read, lengths_of = recording.as_called(model, values, own_lengths)
        with errors_of_model(str(data), command="explain"):
            found = kann.explain(model, read, lengths=lengths_of, **options)
        found.report(out)
        print_result("\n\n".join([*found.sentences, str(out)]), found.numbers() | {"path": str(out)}, as_json=as_json)
