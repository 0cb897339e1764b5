"""Errors and results on the command line."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer

from kann._display import visible
from kann.data.archives import reason
from kann.errors import KannError, KannWarning

SHOW_TRACEBACKS = ContextVar("show_tracebacks", default=False)
"""Whether errors are shown with their traceback, as ``kann --debug`` asks for."""

INTERRUPTED = 130
"""The exit status that shells expect of a program that was stopped with Ctrl-C: 128 + SIGINT."""


@contextlib.contextmanager
def one_line_errors(interrupted: str | Callable[[], str] = "interrupted") -> Iterator[None]:
    """Turn an error inside this block into one line on standard error and exit status 1.

    ``interrupted`` is what is printed after Ctrl-C, or a function that finds out what to print.
    """
    if SHOW_TRACEBACKS.get():
        yield
        return
    try:
        with _one_line_warnings():
            yield
    except BrokenPipeError:
        # Whoever reads our output (such as `head`) has closed it. Python would flush the rest at exit and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        if not isinstance(interrupted, str):
            interrupted = interrupted()
        typer.echo(visible(interrupted), err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        message = _message(error)
        if not message:
            raise
        typer.echo(f"error: {visible(message)}", err=True)
        raise typer.Exit(1) from None


@contextlib.contextmanager
def errors_of_model(source: str, *, command: str) -> Iterator[None]:
    """Turn whatever the user's model raises inside this block into a `KannError` that names its data."""
    try:
        yield
    except (KannError, OSError, ImportError):
        raise
    except Exception as error:  # the user's model may raise anything
        raise KannError(
            f"the model cannot run on {source} ({type(error).__name__}: {reason(error)}); see 'kann --debug {command}'"
        ) from error


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
    """What to tell the user about an error that they can do something about; empty for a bug in kann."""
    text = " ".join(str(error).split())
    if isinstance(error, ImportError):
        if "install" in text.lower():
            return text
        return f"{text}; pip install 'kann[cli]'"
    if isinstance(error, KannError | OSError):
        return text
    # Dask's exceptions have no base class in common, and importing them would need Dask.
    if type(error).__module__.startswith("distributed"):
        return f"the Dask cluster gave up ({text})"
    return ""


Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def require_free(path: Path, *, force: bool) -> None:
    """Refuse to replace what exists unless the user forces it, and in any case what is neither a file nor a folder."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise KannError(f"{path} is not a regular file; pass another path")
    if path.exists() and not force:
        raise KannError(f"{path} exists; pass --force to replace it, or another path")


def print_result(text: str, numbers: dict[str, Any], *, as_json: bool) -> None:
    """Print the text for people, or the numbers for programs."""
    if as_json:
        text = json.dumps(numbers, allow_nan=False)
    typer.echo(text)
