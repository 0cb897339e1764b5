"""Ragged rows on disk: a zarr v3 group whose chunks end where sequences end.

Layout: ``values/000000``, ``values/000001``, … are arrays of whole sequences, one chunk each, with the sequences'
lengths among their attributes; ``inputs/…`` stand beside them. (zarr has regular chunks only, and sequences are not
regular, hence one array per chunk.) The root counts the parts that are complete, and is written after each of them: a
store whose writer was killed opens with what was finished.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.data.files import require_format
from kann.data.rows import LazyRows
from kann.errors import KannError
from kann.typing import AnyArray, Array, Int, Shaped

KIND = "kann.States"
VERSION = 1
PART_BYTES = 8 * 2**20
"""How many bytes of states a part holds, unless a single sequence is longer."""
PARALLEL_REQUESTS = 32
"""How many parts of a store are opened at a time: in a network each waits for an answer."""


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise ImportError("states on disk need zarr: pip install 'kann[zarr]'") from error
    return zarr


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether this is an address such as ``s3://bucket/states.zarr``."""
    return isinstance(path, str) and "://" in path


def is_zarr(array: Any) -> bool:
    """Whether this is a zarr array."""
    zarr = sys.modules.get("zarr")
    return zarr is not None and isinstance(array, zarr.Array)


def is_remote(array: Any) -> bool:
    """Whether a zarr array was opened by an address."""
    return isinstance(array.store, _zarr().storage.FsspecStore)


class ReachableArray:
    """A zarr array that kann did not write, for workers to read.

    Where a worker does not find it, reading is an error; zarr alone would give zeros.
    """

    def __init__(self, array: Any):
        if isinstance(array.store, _zarr().storage.LocalStore):
            # A worker's current folder may be another one.
            array = _zarr().open_array(os.path.abspath(array.store.root), path=array.path, mode="r")
        self._array = array
        self.shape, self.dtype, self.ndim, self.chunks = array.shape, array.dtype, array.ndim, array.chunks

    def __getitem__(self, key: Any) -> Array:
        try:
            here = _zarr().open_array(self._array.store, path=self._array.path, mode="r")
        except (OSError, ValueError, KeyError):
            here = None
        if here is None:
            raise KannError(
                f"a worker finds no states at {self._array.store}; pass an address that all of them can reach"
            )
        if (here.shape, here.dtype) != (self.shape, self.dtype):
            raise KannError(
                f"a worker finds other states at {self._array.store}; pass an address that means the same to all"
            )
        return here[key]


def part_rows(width: int, itemsize: int) -> int:
    """How many rows a part holds, unless a single sequence is longer."""
    return max(1, PART_BYTES // (width * itemsize))


class Writer:
    """Append whole sequences to a store. Close it, or use it in ``with``: what was appended is then on disk."""

    def __init__(self, path: str | os.PathLike[str]):
        zarr = _zarr()
        require_replaceable(path)
        self._root = zarr.open_group(str(path), mode="w", zarr_format=3)
        self._root.attrs.update({"kind": KIND, "version": VERSION, "parts": 0})
        self._parts = 0
        self._waiting: dict[str, list[Array]] = {}
        self._waiting_rows = 0

    def note_direction(self, *, reverse: bool) -> None:
        """Keep with the store whether the sequences were read from their end."""
        if reverse:  # a store without the attribute was read forwards, as those of earlier versions were
            self._root.attrs["reverse"] = True

    def append(self, rows: AnyArray, lengths: Int[Array, " s"], inputs: AnyArray | None = None) -> None:
        """Add sequences, given as their rows one after the other."""
        # Copies: the caller may reuse its buffers before the part is full.
        arrays = {"values": as_numpy(rows).copy()}
        if inputs is not None:
            arrays["inputs"] = as_numpy(inputs).copy()
        full = part_rows(rows.shape[1], arrays["values"].itemsize)
        stops = np.cumsum(lengths)
        for start, stop in zip(stops - lengths, stops, strict=True):
            for what, array in arrays.items():
                self._waiting.setdefault(what, []).append(array[start:stop])
            self._waiting_rows += int(stop - start)
            if self._waiting_rows >= full:
                self._write_part()

    def _write_part(self) -> None:
        for what, sequences in self._waiting.items():
            self._write(what, sequences)
        self._parts += 1
        self._root.attrs["parts"] = self._parts
        self._waiting, self._waiting_rows = {}, 0

    def _write(self, what: str, sequences: Sequence[Array]) -> None:
        rows = np.concatenate(sequences)
        chunk = part_rows(rows.shape[1], rows.itemsize)
        if len(sequences) > 1:  # a single long sequence has several chunks, so that it is never read whole
            chunk = max(chunk, *map(len, sequences))
        array = self._root.create_array(
            f"{what}/{self._parts:06d}",
            shape=rows.shape,
            dtype=rows.dtype,
            chunks=(min(len(rows), 2 * chunk), rows.shape[1]),
            compressors=None,  # hidden states hardly compress, and compressing would be slower than the disk
            fill_value=np.nan,  # a chunk that was lost reads as NaN, which `StoredRows` refuses
            attributes={"lengths": [len(sequence) for sequence in sequences]},
        )
        array[:] = rows

    def close(self) -> None:
        """Write what is still waiting."""
        if self._waiting:
            self._write_part()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # After a failed write, trying once more would only hide the first error.
        if not isinstance(error, OSError):
            self.close()


class StoredRows(LazyRows):
    """The rows of a store. Keeps the part that was read last."""

    def __init__(self, parts: Sequence[Any], *, path: str | os.PathLike[str], first: int = 0):
        self._parts, self.path, self._first = parts, path, first
        self._stops = np.cumsum([part.shape[0] for part in parts])
        self._last: tuple[int, Array] | None = None
        self.reverse = False
        """Whether the sequences were read from their end."""
        self.shape = (int(self._stops[-1]), int(parts[0].shape[1]))
        self.dtype = np.dtype(parts[0].dtype)

    @property
    def part_stops(self) -> Int[Array, " k"]:
        """The row at which each part ends; sequences end there too."""
        return self._stops

    def read(self, start: int, stop: int) -> Shaped[Array, "n d"]:
        """Rows of the parts that ``start:stop`` touches."""
        if start == stop:
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        first, last = np.searchsorted(self._stops, [start, stop - 1], side="right")
        pieces = list(self._pieces(range(first, last + 1), start, stop))
        if len(pieces) == 1:
            return pieces[0]  # without a copy
        return np.concatenate(pieces)

    def _pieces(self, numbers: range, start: int, stop: int) -> Iterator[Array]:
        for number in numbers:
            part = self._parts[number]
            offset = int(self._stops[number]) - part.shape[0]
            low, high = max(start - offset, 0), min(stop - offset, part.shape[0])
            if part.shape[0] > part.chunks[0]:  # one long sequence, in several chunks: never read whole
                yield self._read(number, slice(low, high))
                continue
            if self._last is None or self._last[0] != number:
                self._last = (number, self._read(number, slice(None)))
            yield self._last[1][low:high]

    def _read(self, number: int, rows: slice) -> Array:
        name = f"part {self._first + number} of {self.path}"
        try:
            values = self._parts[number][rows]
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise KannError(f"{name} is damaged ({error}); record or save it again") from error
        if values.size and np.isnan(values[0]).all() and np.isnan(values).all():
            raise KannError(f"{name} is missing or empty; record or save it again")
        return values


def read(path: str | os.PathLike[str], parts: slice = slice(None)) -> tuple[Any, Int[Array, " s"] | None, Any]:
    """Open a store, or some of its parts: its values, lengths if it has any, and inputs or None.

    Only metadata are read.
    """
    zarr = _zarr()
    try:
        node = zarr.open(str(path), mode="r")
    except ModuleNotFoundError as error:
        raise ImportError("stores at addresses need fsspec: pip install 'kann[dask]'") from error
    except (OSError, ValueError, KeyError) as error:
        if is_url(path):
            raise KannError(f"there is no zarr store at {path} ({error}); pass one, as s3://bucket/x.zarr") from error
        raise KannError(f"{path} is not a zarr store ({error}); pass one that States.save() wrote") from error
    if isinstance(node, zarr.Array) or "kind" not in node.attrs:
        return _foreign(node, path)
    require_format(node.attrs, kind=KIND, version=VERSION, path=path)
    numbers = range(node.attrs["parts"])[parts]
    try:
        opened = {what: _parts(node, what, numbers) for what in ("values", "inputs") if what in node}
    except (KeyError, OSError, ValueError) as error:
        raise KannError(f"{path} is truncated ({error}); record or save it again") from error
    if not opened.get("values"):
        raise KannError(f"{path} holds no sequences; the recording ended before its first part was written")
    lengths = np.concatenate([np.asarray(part.attrs["lengths"], dtype=np.int64) for part in opened["values"]])
    rows = {what: StoredRows(arrays, path=path, first=numbers[0]) for what, arrays in opened.items()}
    rows["values"].reverse = _direction(node.attrs, path)
    return rows["values"], lengths, rows.get("inputs")


def _direction(attributes: Any, path: str | os.PathLike[str]) -> bool:
    """Whether the sequences of a store were read from their end, as the recorder noted."""
    reverse = attributes.get("reverse", False)
    if not isinstance(reverse, bool):
        raise KannError(f"{path} is damaged (reverse is {reverse!r}); record or save it again")
    return reverse


def _parts(root: Any, what: str, numbers: range) -> list[Any]:
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        return list(pool.map(lambda number: root[f"{what}/{number:06d}"], numbers))


def _foreign(node: Any, path: str | os.PathLike[str]) -> tuple[Any, Any, Any]:
    """Read zarr that kann did not write: an array, or a group of ``values`` and perhaps ``lengths`` and ``inputs``."""
    if not hasattr(node, "members"):
        return node, None, None
    try:
        if "values" not in node:
            raise KannError(
                f"{path} has no array 'values'; it has {sorted(node)}; pass a store that States.save() wrote"
            )
        lengths = node.get("lengths", None)
        if lengths is not None:
            if lengths.dtype.kind not in "iu":
                raise KannError(f"lengths in {path} are {lengths.dtype}; store one whole number per sequence")
            lengths = lengths[:]
        return node["values"], lengths, node.get("inputs", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, KannError):
            raise
        raise KannError(f"{path} holds arrays that cannot be read ({error}); store plain numbers") from error


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse to write over anything but a store of states or an empty folder."""
    path = Path(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        kind = json.loads((path / "zarr.json").read_text()).get("attributes", {}).get("kind")
    except (OSError, ValueError):
        kind = None
    if kind != KIND:
        raise KannError(f"{path} exists and is no store of states; pass another path or remove it first")
