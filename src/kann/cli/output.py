"""What commands have in common when they write: files are replaced only on request, results printed as text or JSON."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kann.errors import KannError

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
