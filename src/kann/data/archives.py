"""The one way to read ``.npy`` and ``.npz`` files: none unpacks to more than its size allows."""

import contextlib
import math
import os
import stat
import struct
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kann.checks import LONGEST_REASON, short_repr
from kann.data.atomic_write import require_plain
from kann.errors import KannError
from kann.typing import Array

MAX_EXPANSION = 32
"""Largest ratio of unpacked to packed size. Numbers that mean something hardly compress; states with
much padding may shrink to a tenth."""

ALWAYS_UNPACKED = 64 * 2**20
"""Bytes to which any file may unpack, whatever its size."""

MOST_NAMED = 8
"""Largest number of files named when a folder was passed instead of one of them."""

LOCAL_HEADER = struct.Struct("<4s5H3L2H")
"""Header of a member of a zip archive; the last two numbers are the lengths of its name and extra field."""

MAX_DESCRIPTOR = 24
"""Bytes that may follow a member whose size was not known when it was begun."""


@contextlib.contextmanager
def damage_explained(path: str | os.PathLike[str], *, problem: str, remedy: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its readers raise into one line that names the file and the remedy.

    All exceptions are caught: on damaged bytes zipfile, zlib, numpy, zarr and Python's own parser raise anything, from
    MemoryError to SyntaxError. Errors of kann, a missing package and a missing file come through as they are.
    """
    try:
        yield
    except (KannError, ImportError):
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
            raise
        raise KannError(f"{path} {problem} ({reason(error)}); {remedy}") from error


def reason(error: Exception) -> str:
    """Return the message of an error as one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"


def require_file(path: str | os.PathLike[str]) -> None:
    """Raise for a folder, a device, a FIFO or a socket; what is missing raises FileNotFoundError."""
    if stat.S_ISDIR(require_plain(path).st_mode):
        inside = ", ".join(str(each) for each in sorted(Path(path).glob("*.npz"))[:MOST_NAMED])
        hint = f", such as one of those in it: {inside}" if inside else ""
        raise KannError(f"{path} is a folder; pass the name of a file{hint}")


class NpzReader:
    """The arrays of an open ``.npz`` file. Damage raises all sorts of errors; see `damage_explained`."""

    def __init__(self, file: Any):
        magic = file.read(6)
        if magic == b"\x93NUMPY":
            raise ValueError("it holds one bare array, as .npy files do")
        self._archive = zipfile.ZipFile(file)
        self._members = _honest_members(self._archive, os.fstat(file.fileno()).st_size)

    @property
    def names(self) -> list[str]:
        """The names of all arrays."""
        return list(self._members)

    def array_header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Read the shape and type of an array; raise if the archive has no room for such an array."""
        member = self._members[name]
        with self._archive.open(member) as file:
            return _array_header(file, name=repr(name), size=member.file_size)

    def read(self, name: str) -> Array:
        """Return one array, in the byte order of this machine."""
        self.array_header(name)
        with self._archive.open(self._members[name]) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            file.read(1)  # at the end of a member zipfile compares its checksum
        return array.astype(array.dtype.newbyteorder("="), copy=False)


def _honest_members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive by name; raise for any that numpy does not write, or with false sizes."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in members:
            raise ValueError(f"it holds {name!r} twice")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name!r} is packed in a way that numpy does not use")
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            raise ValueError(f"{name!r} claims two different sizes")
        members[name] = info
    _require_all_listed(archive)
    packed = sum(info.compress_size for info in members.values())
    unpacked = sum(info.file_size for info in members.values())
    if packed > size:
        raise ValueError(f"its arrays claim {packed} bytes, and the file has {size}")
    if unpacked > max(ALWAYS_UNPACKED, MAX_EXPANSION * packed):
        raise ValueError(f"it would unpack from {packed} to {unpacked} bytes; numpy.savez does not compress")
    return members


def _require_all_listed(archive: zipfile.ZipFile) -> None:
    """Raise for a directory that leaves out the last members, or that calls one of them by another name.

    A damaged count at the end of a file, and a damaged name, would drop an array without a word. Members follow each
    other up to the directory; numpy leaves no gap between two of them.
    """
    file: Any = archive.fp
    end = 0
    for info in archive.infolist():
        file.seek(info.header_offset + LOCAL_HEADER.size - 4)
        length, extra = struct.unpack("<HH", file.read(4))
        encoding = "utf-8" if info.flag_bits & 0x800 else "cp437"  # that of DOS
        if file.read(length) != info.orig_filename.encode(encoding):
            raise ValueError(f"its directory calls an array {short_repr(info.orig_filename)}, which has another name")
        end = max(end, info.header_offset + LOCAL_HEADER.size + length + extra + info.compress_size)
    if archive.start_dir - end > MAX_DESCRIPTOR:
        raise ValueError(f"{archive.start_dir - end} bytes before its directory belong to no array")


def _array_header(file: Any, *, name: str, size: int) -> tuple[tuple[int, ...], np.dtype]:
    """Read the shape and type of an array that has ``size`` bytes in all."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"{name} has version {version} of numpy's format, which is not for plain numbers")
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which could run code")
    if min(shape, default=0) < 0 or file.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name} claims shape {shape} of {dtype}, which is not what the file has room for")
    return shape, dtype


NOT_PLAIN = "cannot be read as plain arrays"


@contextlib.contextmanager
def _open_npz(path: str | os.PathLike[str]) -> Iterator[NpzReader]:
    require_file(path)
    with damage_explained(path, problem=NOT_PLAIN, remedy="save it again with numpy.savez"), open(path, "rb") as file:
        yield NpzReader(file)


def read_npz(path: str | os.PathLike[str], names: Collection[str] | None = None) -> dict[str, Array]:
    """Return the arrays of an ``.npz`` file, all or those of these names; pickled ones raise."""
    with _open_npz(path) as reader:
        return {name: reader.read(name) for name in reader.names if names is None or name in names}


def npz_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the arrays of an ``.npz`` file, without unpacking any."""
    with _open_npz(path) as reader:
        return reader.names


def open_npy(path: str | os.PathLike[str]) -> Array:
    """Return the array of an ``.npy`` file, which stays on disk until it is used; a pickled one raises."""
    require_file(path)
    with damage_explained(path, problem=NOT_PLAIN, remedy="save it again with numpy.save"):
        with open(path, "rb") as file:
            _array_header(file, name="its array", size=os.fstat(file.fileno()).st_size)
        return np.lib.format.open_memmap(Path(path), mode="r")
