"""The command line: parse, call, print."""

import contextlib
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import kann
from kann.errors import KannError

try:
    import typer
except ImportError as error:
    raise ImportError("the command line needs typer and rich: pip install 'kann[paper]'") from error

if TYPE_CHECKING:
    from kann.paper.results import Reproduction

PIPED_WIDTH = 140
"""Columns of a table that is not printed to a terminal."""

app = typer.Typer(
    name="kann",
    help="Koopman Analysis of Neural Networks: explain a trained sequence network through one linear operator.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(
    help="Repeat an experiment of the paper: train, analyse, print the table 'paper / ours', draw the figures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(reproduce, name="reproduce")


class Architecture(StrEnum):
    """What the copy task can be learnt with."""

    dtriv = "dtriv"
    rnn = "rnn"
    gru = "gru"
    lstm = "lstm"
    all = "all"


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"kann {kann.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of all commands."""


@reproduce.command(
    epilog="Example: kann reproduce copy --arch gru --seeds 3 --out runs/copy",
    short_help="The copy task: remember three digits over thirty blanks.",
)
def copy(
    arch: Annotated[Architecture, typer.Option(help="The recurrent layer, or all four.")] = Architecture.dtriv,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, mps.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for networks, figures and results.json.")] = Path("runs/copy"),
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, one network each.")] = 5,
    as_printed: Annotated[
        bool, typer.Option("--as-printed", help="Train as the paper's table says, even where that does not suffice.")
    ] = False,
) -> None:
    """Repeat the paper's copy task: remember three digits over thirty blanks.

    Networks that are in the folder already are used again, and a run that was interrupted goes on where it stopped.
    """
    with _one_line_errors():
        from kann.paper.copy import reproduce

        chosen = [each for each in Architecture if each is not Architecture.all] if arch == "all" else [arch]
        for each in chosen:
            _show(reproduce(each.value, out=out, seeds=range(seed, seed + seeds), device=device, printed=as_printed))


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Say what went wrong in one line, without a traceback, and exit with status 1."""
    try:
        yield
    except ImportError as error:
        remedy = "" if "pip install" in str(error) else "; pip install 'kann[paper]'"
        typer.echo(f"error: {error}{remedy}", err=True)
        raise typer.Exit(1) from None
    except (KannError, OSError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to go on", err=True)
        raise typer.Exit(130) from None


def _show(result: "Reproduction") -> None:
    """Print the table, how the training differs from the paper's, and where the files are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    count = len(result.seeds)
    table = Table(title=f"{result.title}, {count} seed{'s' * (count > 1)}", box=SIMPLE_HEAD)
    for name, side in (("", "left"), ("paper", "right"), ("ours, mean", "right"), ("from – to", "right"), ("", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for row in result.rows:
        table.add_row(*row.cells(), style=None if row.holds is not False else "bold")
    console.print(table)
    if result.notes:
        console.print(f"Trained otherwise than the paper's table says: {', '.join(result.notes)}.")
    console.print(f"Results and figures: {result.files[0].parent}")
