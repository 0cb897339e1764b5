"""``kann effects``: the modes of an operator, tested in the running network."""

from pathlib import Path
from typing import Annotated, Any

import typer

import kann
from kann.cli import loading, recording
from kann.cli.errors import errors_of_model, one_line_errors
from kann.cli.output import AsJson, Force, print_result, require_free
from kann.errors import KannError


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
        from kann.explaining.figures import effects_numbers

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
