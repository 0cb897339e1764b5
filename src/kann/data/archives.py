"""Whatever a damaged file makes its readers raise, as one line that names the file and the remedy."""

import contextlib
import os
import stat
from collections.abc import Iterator

from kann.errors import KannError

LONGEST_REASON = 200
"""Characters of a foreign error that are shown: some libraries quote the whole file."""


@contextlib.contextmanager
def damage_explained(path: str | os.PathLike[str], *, problem: str, remedy: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its readers raise into one line that names the file and the remedy.

    All exceptions are caught: on damaged bytes zipfile, zlib, numpy, torch and Python's own parser raise anything, from
    MemoryError to SyntaxError. What kann says itself, and a missing package, come through as they are.
    """
    try:
        yield
    except (KannError, ImportError):
        raise
    except Exception as error:
        raise KannError(f"{path} {problem} ({reason(error)}); {remedy}") from error


def reason(error: Exception) -> str:
    """What an error says, in one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if len(text) > LONGEST_REASON:
        text = f"{text[:LONGEST_REASON]}…"
    return text


def require_file(path: str | os.PathLike[str]) -> None:
    """Refuse a folder, a device, a FIFO or a socket; what is missing raises FileNotFoundError."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise KannError(f"{path} is a folder; pass the name of a file")
    if not stat.S_ISREG(mode):
        raise KannError(f"{path} is not a regular file; pass the path of a file")
