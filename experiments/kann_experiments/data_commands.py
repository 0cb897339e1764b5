"""``kann data``: the data sets of the paper's experiments."""

from enum import StrEnum

import typer

from kann.cli.errors import one_line_errors

commands = typer.Typer(
    help="The data sets of the paper's experiments: what is on this machine, and how to get the rest.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DataName = StrEnum("DataName", ["ecg5000", "imdb"])


@commands.command("list", epilog="Example: kann data list")
def list_data() -> None:
    """List the data sets, and where they are on this machine."""
    with one_line_errors():
        from kann_experiments.data import status

        for each in status():
            where = each.path or f"not here; 'kann data fetch {each.name}' downloads it"
            typer.echo(f"{each.name}: {each.about}, {each.size / 1e6:.0f} MB\n  {where}")


@commands.command(epilog="Example: kann data fetch ecg5000")
def fetch(name: DataName) -> None:
    """Download a data set into the cache folder, check it, and print its path."""
    with one_line_errors():
        from kann_experiments.data import fetch

        typer.echo(fetch(str(name)))


@commands.command(epilog="Example: kann data path imdb")
def path(name: DataName) -> None:
    """Print where a data set is on this machine, or where it should be."""
    with one_line_errors():
        from kann_experiments.data import locate

        typer.echo(locate(str(name)))
