"""All commands of ``kann``.

Their modules import torch and plotly only when a command runs, so that ``kann --help`` answers at once.
"""

import sys
from importlib.metadata import entry_points
from io import TextIOWrapper
from typing import Annotated

import typer

import kann
from kann.cli.analyse import effects, explain, fit, record, report
from kann.cli.demo import demo
from kann.cli.errors import SHOW_TRACEBACKS
from kann.cli.highlight import highlight
from kann.cli.networks import compare, watch

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
    """Options of all commands."""
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
    app.command(epilog=f"Example: {example}")(command)
# Packages of a clone add commands of their own: `kann_experiments` adds `reproduce` and `data`.
for entry_point in entry_points(group="kann.commands"):
    app.add_typer(entry_point.load(), name=entry_point.name)
