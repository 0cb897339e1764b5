"""Files that are written whole or not at all, and that run no code when they are read."""

import contextlib
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kann.errors import KannError
from kann.typing import Array


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside ``path``; when the block ends well, put what was written there in its place.

    When the block fails, a full disk included, the temporary file or folder is removed and ``path`` is as before.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        _move(temporary, path)
    except OSError as error:
        raise OSError(
            error.errno, f"could not save: {error.strerror or error}; what was there before is unchanged", str(path)
        ) from error
    finally:
        remove(temporary)


def _move(source: Path, target: Path) -> None:
    """Put ``source`` where ``target`` is; a folder that a folder replaces moves aside first and is then removed."""
    if target.is_dir() and not source.is_dir():
        raise KannError(f"{target} is a folder; pass the name of a file")
    if not target.is_dir():
        os.replace(source, target)
        return
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.old")
    os.replace(target, aside)
    try:
        os.replace(source, target)
    except OSError:
        os.replace(aside, target)
        raise
    remove(aside)


def remove(path: Path) -> None:
    """Remove a file or a whole folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def save_npz(path: str | os.PathLike[str], *, kind: str, version: int, arrays: Mapping[str, Array | None]) -> None:
    """Write named arrays and a header that says what they are. Arrays that are None are left out."""
    if Path(path).is_dir():
        raise KannError(f"{path} is a folder; pass the name of a file")
    header = np.frombuffer(json.dumps({"kind": kind, "version": version}).encode(), dtype=np.uint8)
    present: dict[str, Any] = {name: array for name, array in arrays.items() if array is not None}
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, header=header, **present)


def load_npz(path: str | os.PathLike[str], *, kind: str, version: int) -> dict[str, Array]:
    """Read what `save_npz` wrote; refuse what is truncated, foreign, of another kind or newer."""
    try:
        arrays = read_npz(path)
        header = json.loads(bytes(arrays.pop("header")))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise KannError(f"{path} is not a whole kann file ({error}); save it again with .save()") from error
    require_format(header, kind=kind, version=version, path=path)
    return arrays


def read_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """All arrays of an ``.npz`` file; nothing that is pickled."""
    # numpy leaves the file open when it is no archive, hence a handle of our own.
    with open(path, "rb") as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it holds one bare array, as .npy files do")
        return {name: archive[name] for name in archive.files}


def require_format(header: Mapping, *, kind: str, version: int, path: str | os.PathLike[str]) -> None:
    """Refuse a header of another kind, or of a version that this release does not know."""
    got = header.get("kind")
    if got != kind:
        raise KannError(f"{path} holds {got or 'something else'}, not {kind}; pass a file that {kind}.save() wrote")
    if header["version"] > version:
        raise KannError(
            f"{path} has format {header['version']}; this release reads up to {version}; upgrade kann to read it"
        )
