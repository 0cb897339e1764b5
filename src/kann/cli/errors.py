"""Errors and results on the command line."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer

from kann._display import visible
from kann.data.archives import reason
from kann.errors import KannError, KannWarning

SHOW_TRACEBACKS = ContextVar("show_tracebacks", default=False)
"""Whether errors are shown with their traceback, as ``kann --debug`` asks for."""

PIPED_WIDTH = 200
"""Columns of a table that is not printed to a terminal."""

INTERRUPTED = 130
"""The exit status that shells expect of a program that was stopped with Ctrl-C: 128 + SIGINT."""


@contextlib.contextmanager
def one_line_errors(interrupted: str = "interrupted") -> Iterator[None]:
    """Turn an error inside this block into one line on standard error and exit status 1.

    After Ctrl-C the line is ``interrupted``, or the notes on the interruption, which say what was finished.
    """
    if SHOW_TRACEBACKS.get():
        yield
        return
    try:
        with _one_line_warnings():
            yield
    except BrokenPipeError:
        # The reader of our output (such as `head`) has closed it. Python would flush the rest at exit and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except KeyboardInterrupt as error:
        notes = getattr(error, "__notes__", [])
        typer.echo(visible("; ".join(["interrupted", *notes]) if notes else interrupted), err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        message = _message(error)
        if not message:
            raise
        typer.echo(f"error: {visible(message)}", err=True)
        raise typer.Exit(1) from None


def named(error: Exception) -> str:
    """Return the type and the message of an error in one short line."""
    return f"{type(error).__name__}: {reason(error)}"


@contextlib.contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show warnings of kann's own as one line each, without the line of code that they come from."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def in_one_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, KannWarning):
                typer.echo(f"warning: {visible(' '.join(str(message).split()))}", err=True)
            else:
                show(message, category, *where, **more)

        warnings.showwarning = in_one_line
        yield


def _message(error: Exception) -> str:
    """Return the message of an error that the user can do something about; empty for a bug in kann."""
    text = " ".join(str(error).split())
    if isinstance(error, ImportError):
        return text if "install" in text.lower() else f"{text}; pip install 'kann[cli]'"
    if isinstance(error, KannError | OSError):
        return text
    # Dask's exceptions have no base class in common, and importing them would need Dask.
    return f"the Dask cluster gave up ({text})" if type(error).__module__.startswith("distributed") else ""


def require_free(*paths: Path | None, force: bool) -> None:
    """Raise if a path exists and the user does not force it, or if it is neither a file nor a folder."""
    for path in filter(None, paths):
        if str(path) == "-":
            raise KannError("- names no file, and results are not written to standard output; pass the name of a file")
        if path.exists() and not path.is_file() and not path.is_dir():
            raise KannError(f"{path} is not a regular file; pass another path")
        if path.exists() and not force:
            raise KannError(f"{path} exists; pass --force to replace it, or another path")


Rows = list[list[str]]
"""A table: its head, and its rows."""


def print_result(*parts: str | Rows, numbers: dict[str, Any], as_json: bool) -> None:
    """Print lines and tables for people, or the numbers for programs."""
    if as_json:
        typer.echo(json.dumps(numbers, allow_nan=False))
        return
    for part in parts:
        if isinstance(part, str):
            typer.echo(part)
        else:
            _print_table(part)


def _print_table(rows: Rows) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # In a pipe each row keeps its own line, so that other programs can read it.
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for place, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if place else "left")
    for row in rows[1:]:
        table.add_row(*map(visible, row))
    console.print(table)
