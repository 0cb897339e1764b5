"""Where a store may be written, and how a recording takes its name."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kann.data.placing import all_beside, beside, put_in_place, remove, resolve_target
from kann.data.store import KIND, Writer, is_url
from kann.errors import KannError

NUMPY_FILES = (".npy", ".npz")
"""Endings of files that `States.open` reads with numpy."""

UNFINISHED = "unfinished"
"""What the name of a store ends with while it is recorded."""

OWN_PATHS = re.compile(r"zarr\..*|(values|inputs)(/zarr\..*|/\d{6,}(/zarr\..*|/c(/\d+)?(/\d+(\.\w+\.partial)?)?)?)?")
"""What a store of states consists of, and the temporary files of zarr (``….partial``) that a kill leaves in it."""


@contextlib.contextmanager
def recording_to(path: str | os.PathLike[str]) -> Iterator[Writer]:
    """Give a writer of a store that takes the name ``path`` when it is complete.

    This is the rule:

    - While a store is recorded it stands beside its name, as ``NAME.0123abcd.unfinished``. What stood under the name
      before is not touched.
    - When the block ends well, the store takes its name in one step, and a store that stood there is removed.
    - When the block fails or is interrupted, the finished sequences take the name if it is free, marked as unfinished;
      else they stay beside it. A note on the error says how many there are and where. If none is finished, nothing
      stays.
    - When the process is killed, they stay beside it. `States.open` warns that they are unfinished, and if there is
      nothing under the name it says where they are.
    """
    target = resolve_target(path)
    require_replaceable(target)
    unfinished = beside(target, UNFINISHED)
    try:
        with Writer(unfinished) as writer:
            yield writer
        require_replaceable(target)  # much may have happened since the beginning
        put_in_place(unfinished, target)
    except BaseException as error:
        error.add_note(_keep_finished(unfinished, target))
        raise
    remove(unfinished)  # after an exchange this is the old store


def _keep_finished(unfinished: Path, target: Path) -> str:
    """Put what a recording finished where its user finds it, and say where that is."""
    sequences = _attributes(unfinished).get("sequences", 0)
    if not sequences:
        with contextlib.suppress(OSError):
            remove(unfinished)
        return f"no sequence was finished; {target} is as before"
    if target.exists():
        return f"{sequences} finished sequences are in {unfinished}; {target} is as before"
    try:
        put_in_place(unfinished, target)
    except OSError:
        return f"{sequences} finished sequences are in {unfinished}"
    return f"{sequences} finished sequences are in {target}"


def _attributes(path: Path) -> dict[str, Any]:
    """The attributes of the root of a store; empty if there is none, or a damaged one."""
    try:
        attributes = json.loads((path / "zarr.json").read_text())["attributes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(attributes, dict):
        return {}
    return attributes


def unfinished_beside(path: str | os.PathLike[str]) -> list[Path]:
    """Stores whose recording under this name was killed."""
    return all_beside(Path(os.path.realpath(path)), UNFINISHED)


def require_store_name(path: str | os.PathLike[str], *, verb: str) -> None:
    """Refuse a path under which no store could be written, or from which it could not be opened."""
    if is_url(path):
        raise KannError(
            f"{path} is an address; {verb} to a folder, and copy it there with fsspec or your cloud's tools"
        )
    if Path(path).suffix in NUMPY_FILES:
        raise KannError(f"{path} would be read as a numpy file; pass a name such as {Path(path).stem}.zarr")


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse to write over anything but a store of states that holds nothing else, or an empty folder."""
    path = Path(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if _attributes(path).get("kind") != KIND:
        raise KannError(f"{path} exists and is no store of states; pass another path or remove it first")
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            inside = Path(folder, name).relative_to(path).as_posix()
            if not OWN_PATHS.fullmatch(inside):
                raise KannError(f"{path} also holds {inside}, which is not part of a store; move it away first")
