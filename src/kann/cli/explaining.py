"""``kann explain``: what a network learned, from files, as sentences and a page."""

from pathlib import Path
from typing import Annotated, Any

import typer

import kann
from kann.cli import loading, recording
from kann.cli.errors import errors_of_model, one_line_errors
from kann.cli.output import AsJson, Force, print_result, require_free


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
