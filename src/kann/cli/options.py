"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Factory = Annotated[str, typer.Argument(metavar="PKG.MODULE:FACTORY", help="A function that returns the model.")]
Data = Annotated[Path, typer.Option(help="The inputs of the model: .npy, or .npz with 'data' and maybe 'lengths'.")]
Lengths = Annotated[
    Path | None, typer.Option(help="The number of real steps of each sequence: .npy; also for a model that reads it.")
]
Weights = Annotated[Path | None, typer.Option(help="The weights of the model: .safetensors or .pt.")]
Layer = Annotated[str | None, typer.Option(help="The layer to look at; not needed if only one is recurrent.")]
State = Annotated[str, typer.Option(help="Which state of an LSTM: h, c or hc.")]
BatchSize = Annotated[int, typer.Option(min=1, help="How many sequences to run at once.")]
Labels = Annotated[
    Path | None, typer.Option(help="JSON: the label of each sequence, or a list of the labels of its steps.")
]
Tokens = Annotated[Path | None, typer.Option(help="JSON: for each sequence a list of words.")]
Page = Annotated[Path, typer.Option("--out", "-o", help="The page to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
