"""Options that several commands share: one by one, or in groups."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Weights = Annotated[Path | None, typer.Option(help="The weights of the model: .safetensors or .pt.")]
Labels = Annotated[
    Path | None, typer.Option(help="JSON: the label of each sequence, or a list of the labels of its steps.")
]
Tokens = Annotated[Path | None, typer.Option(help="JSON: for each sequence a list of words.")]
Page = Annotated[Path, typer.Option("--out", "-o", help="The page to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network that a command runs, its data, and the layer to look at."""

    factory: Annotated[str, typer.Argument(metavar="PKG.MODULE:FACTORY", help="A function that returns the model.")]
    data: Annotated[Path, typer.Option(help="The inputs of the model: .npy, or .npz with 'data' and maybe 'lengths'.")]
    lengths: Annotated[
        Path | None,
        typer.Option(help="The number of real steps of each sequence: .npy; also for a model that reads it."),
    ] = None
    layer: Annotated[str | None, typer.Option(help="The layer to look at; not needed if only one is recurrent.")] = None
    state: Annotated[str | None, typer.Option(help="Which state of an LSTM: h, c or hc.")] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Number of sequences to run at once.")] = 128


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Make the fields of every group that a command takes options of the command line."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        types = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = parameter.empty if field.default is MISSING else field.default
            own = inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=types[field.name])
            parameters.append(own)

    @functools.wraps(command)
    def grouped(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    grouped.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return grouped
