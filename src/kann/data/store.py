"""Ragged rows in a zarr v3 group whose chunks end where sequences end, and the paths of such stores."""

import contextlib
import itertools
import json
import math
import os
import re
import stat
import threading
import uuid
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.data.archives import ALWAYS_UNPACKED, MAX_EXPANSION, MOST_NAMED, damage_explained, reason
from kann.data.atomic_write import beside, put_in_place, remove, require_plain_tree, resolve_target
from kann.data.reduction import LazyRows
from kann.data.serialization import require_format
from kann.errors import KannError, UnfinishedWarning
from kann.typing import AnyArray, Array, Int, Shaped

KIND = "kann.States"
VERSION = 1
PART_BYTES = 8 * 2**20
"""Bytes of states in a part, unless a single sequence is longer."""
PARALLEL_REQUESTS = 32
"""Number of parts opened at a time: in a network each waits for an answer."""
AGAIN = "record or save it again"
"""The remedy for a damaged store."""


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise ImportError("states on disk need zarr: pip install 'kann[zarr]'") from error
    return zarr


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether this is an address such as ``s3://bucket/states.zarr``."""
    return isinstance(path, str) and "://" in path


class ForeignArray:
    """A zarr array that kann did not write, opened anew for each reading, by workers of Dask too.

    Where it is not found, and where a chunk is damaged, reading is an error that names the array; zarr alone would give
    zeros for an array that is missing.
    """

    def __init__(self, array: Any):
        storage = _zarr().storage
        self.is_remote = isinstance(array.store, storage.FsspecStore)
        if isinstance(array.store, storage.LocalStore):  # a worker's current folder may be another one
            array = _zarr().open_array(os.path.abspath(array.store.root), path=array.path, mode="r")
        self._array = array
        self.shape, self.dtype, self.ndim, self.chunks = array.shape, array.dtype, array.ndim, array.chunks

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        path = self._array.store_path
        try:
            here = _zarr().open_array(self._array.store, path=self._array.path, mode="r")
        except (OSError, ValueError, KeyError):
            raise KannError(f"there are no states at {path}; pass an address that all workers can reach") from None
        if (here.shape, here.dtype) != (self.shape, self.dtype):
            raise KannError(f"there are other states at {path}; pass an address that means the same to all workers")
        with damage_explained(str(path), problem="is damaged", remedy="write it again"):
            return here[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype=dtype)


def part_rows(width: int, itemsize: int) -> int:
    """Return the number of rows of a part, unless a single sequence is longer."""
    return max(1, PART_BYTES // (width * itemsize))


class Writer:
    """Append whole sequences to a new store. Close it, or use it in ``with``: what was appended is then on disk.

    After an error in the ``with``, what was appended is written too, and the store stays marked as unfinished.
    """

    def __init__(self, path: str | os.PathLike[str]):
        zarr = _zarr()
        self._root = zarr.open_group(str(path), mode="w-", zarr_format=3)
        self._counts = {"parts": 0, "sequences": 0, "states": 0, "inputs": False}
        """Counts of what is on disk: attributes of the store."""
        identity = {"kind": KIND, "version": VERSION, "id": uuid.uuid4().hex}
        self._root.update_attributes(identity | {"complete": False} | self._counts)
        self._waiting: list[dict[str, Array]] = []
        self._waiting_rows = 0
        self._turn = threading.Lock()

    def note(self, *, reverse: bool, parts: Sequence[Any] = ()) -> None:
        """Keep with the store whether the sequences were read from their end, and the parts of the states."""
        # A store without the attributes was read forwards and has no parts, as those of earlier versions.
        known = {"reverse": True} if reverse else {}
        self._root.update_attributes(known | ({"state_parts": list(parts)} if parts else {}))

    def append(self, rows: AnyArray, lengths: Int[Array, " s"], inputs: AnyArray | None = None) -> None:
        """Add sequences, given as their rows one after the other."""
        # Copies: the caller may reuse its buffers before the part is full.
        arrays = {"values": as_numpy(rows).copy()}
        if inputs is not None:
            arrays["inputs"] = as_numpy(inputs).copy()
        full = part_rows(rows.shape[1], arrays["values"].itemsize)
        stops = np.cumsum(lengths)
        for start, stop in zip(stops - lengths, stops, strict=True):
            self._waiting.append({what: array[start:stop] for what, array in arrays.items()})
            self._waiting_rows += int(stop - start)
            if self._waiting_rows >= full:
                self.flush()

    def flush(self) -> None:
        """Write what waits, in a thread that Ctrl-C does not reach: a part that was begun is also finished."""
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self._write_waiting).result()

    def _write_waiting(self) -> None:
        with self._turn:  # after a second Ctrl-C, `close` may come while the first writing still runs
            if not self._waiting:
                return
            for what in self._waiting[0]:
                self._write(what, [sequence[what] for sequence in self._waiting])
            states = sum(len(sequence["values"]) for sequence in self._waiting)
            for name, more in {"parts": 1, "sequences": len(self._waiting), "states": states}.items():
                self._counts[name] += more
            self._counts["inputs"] = "inputs" in self._waiting[0]
            self._waiting, self._waiting_rows = [], 0
            self._root.update_attributes(self._counts)  # in one step, unlike attrs.update

    def _write(self, what: str, sequences: Sequence[Array]) -> None:
        rows = np.concatenate(sequences)
        chunk = part_rows(rows.shape[1], rows.itemsize)
        if len(sequences) > 1:  # a single long sequence has several chunks, so that it is never read whole
            chunk = max(chunk, *map(len, sequences))
        array = self._root.create_array(
            f"{what}/{self._counts['parts']:06d}",
            shape=rows.shape,
            dtype=rows.dtype,
            chunks=(min(len(rows), 2 * chunk), rows.shape[1]),
            # Hidden states hardly compress, and compressing would be slower than the disk: chunks get a checksum alone.
            compressors=[_zarr().codecs.Crc32cCodec()],
            fill_value=np.nan,  # a chunk that was lost reads as NaN, which `StoredRows` refuses
            attributes={"lengths": [len(sequence) for sequence in sequences]},
            overwrite=True,  # a part whose writing failed half way
        )
        array[:] = rows

    def close(self) -> None:
        """Write what is still waiting, and that the store is complete."""
        self.flush()
        self._root.update_attributes({"complete": True} | self._counts)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif not isinstance(error, OSError):  # after a failed write, another would only hide the first error
            self.flush()


class StoredRows(LazyRows):
    """The rows of a store. Keeps the part that was read last."""

    def __init__(
        self,
        parts: Sequence[Any],
        *,
        path: str | os.PathLike[str],
        identity: str | None,
        first: int = 0,
        reverse: bool = False,
        state_parts: Sequence[Any] = (),
    ):
        self._parts, self._first = parts, first
        self.path, self.is_remote = path, is_url(path)
        self.identity = identity
        """The random identity of this store, unlike that of another at its path; None for stores of older releases."""
        self.reverse = reverse
        """Whether the sequences were read from their end."""
        self.state_parts = state_parts
        """The parts of the states, as `StatePart.of_list` reads them."""
        self.part_stops: Int[Array, " k"] = np.cumsum([part.shape[0] for part in parts])
        """The row at which each part ends; sequences end there too."""
        self._last: tuple[int, Array] | None = None
        self.shape = (int(self.part_stops[-1]), int(parts[0].shape[1]))
        self.dtype = np.dtype(parts[0].dtype)

    def read(self, start: int, stop: int) -> Shaped[Array, "n d"]:
        """Return rows of the parts that ``start:stop`` touches."""
        if start == stop:
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        first, last = np.searchsorted(self.part_stops, [start, stop - 1], side="right")
        pieces = list(self._pieces(range(first, last + 1), start, stop))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)  # a single one without a copy

    def _pieces(self, numbers: range, start: int, stop: int) -> Iterator[Array]:
        for number in numbers:
            part = self._parts[number]
            offset = int(self.part_stops[number]) - part.shape[0]
            low, high = max(start - offset, 0), min(stop - offset, part.shape[0])
            if part.shape[0] > part.chunks[0]:  # one long sequence, in several chunks: never read whole
                yield self._read(number, slice(low, high))
                continue
            if self._last is None or self._last[0] != number:
                self._last = (number, self._read(number, slice(None)))
            yield self._last[1][low:high]

    def _read(self, number: int, rows: slice) -> Array:
        name, part = f"part {self._first + number} of {self.path}", self._parts[number]
        try:
            with damage_explained(name, problem="is damaged", remedy=AGAIN):
                _require_chunks(part, rows, name)
                values = part[rows]
        finally:
            _require_unchanged(self.path, self.identity)
        if values.size and np.isnan(values[0]).all() and np.isnan(values).all():
            raise KannError(f"{name} is missing or empty; {AGAIN}")
        return values


def _require_chunks(part: Any, rows: slice, name: str) -> None:
    """Raise for chunks of a folder that are missing, or not as large as the metadata claim, before memory is taken."""
    checksums = [type(codec).__name__ == "Crc32cCodec" for codec in part.compressors]
    if not isinstance(part.store, _zarr().storage.LocalStore) or not all(checksums) or part.shards is not None:
        return
    expected = math.prod(part.chunks) * part.dtype.itemsize + 4 * len(checksums)
    start, stop, _ = rows.indices(part.shape[0])
    for number in range(start // part.chunks[0], -(-stop // part.chunks[0])):
        try:
            chunk = (part.store.root / part.path / "c" / str(number) / "0").stat()
        except FileNotFoundError:
            raise KannError(f"{name} is missing or empty; {AGAIN}") from None
        if not stat.S_ISREG(chunk.st_mode) or chunk.st_size != expected:
            raise ValueError(f"chunk {number} has {chunk.st_size} bytes, not {expected}")


def _require_unchanged(path: str | os.PathLike[str], identity: str | None) -> None:
    """Raise if the folder holds another store now; at an address, workers compare identities."""
    if not is_url(path) and _attributes(Path(path)).get("id") != identity:
        raise KannError(f"{path} was replaced or removed after it was opened; open it again")


def read(path: str | os.PathLike[str], parts: slice = slice(None)) -> tuple[Any, Int[Array, " s"] | None, Any]:
    """Open a store, or some of its parts: its values, lengths if it has any, and inputs or None.

    Only metadata are read. Warns if the whole store is opened and its recording was stopped.
    """
    if not is_url(path):
        require_plain_tree(path)
    node = _open_node(path)
    if not hasattr(node, "members") or "kind" not in node.attrs:
        return _foreign(node, path)
    attributes = dict(node.attrs)
    require_format(attributes, kind=KIND, version=VERSION, path=path)
    is_whole, identity, reverse = parts == slice(None), attributes.get("id"), attributes.get("reverse", False)
    try:
        with damage_explained(path, problem="is truncated or damaged", remedy=AGAIN):
            if attributes["parts"] == 0:
                raise KannError(f"{path} holds no sequences; the recording ended before its first part was written")
            numbers = range(attributes["parts"])[parts]
            arrays = {"values": _parts(node, "values", numbers)}
            if attributes.get("inputs", "inputs" in node):  # older releases did not say
                arrays["inputs"] = _parts(node, "inputs", numbers)
            lengths = np.concatenate([_lengths(part) for part in arrays["values"]])
            _require_alike(**arrays)
            # Older releases did not say how many there are.
            counts = {"sequences": len(lengths), "states": int(lengths.sum())}
            if is_whole and "complete" in attributes and counts != {name: attributes.get(name) for name in counts}:
                raise ValueError(f"its parts hold {counts}, which is not what it was written with")
            complete = attributes.get("complete", True)
            if not (isinstance(reverse, bool) and isinstance(complete, bool)):
                raise ValueError(f"reverse is {reverse!r} and complete {complete!r}, not true or false")
    finally:
        _require_unchanged(path, identity)  # else these may be parts of two stores
    if is_whole and not complete:
        warnings.warn(
            f"{path} is unfinished: its recording was stopped, and it holds {len(lengths)} sequences with "
            f"{lengths.sum()} states; record again if you need the rest",
            UnfinishedWarning,
            stacklevel=3,  # the line that calls States.open
        )
    rows = {
        what: StoredRows(
            found,
            path=path,
            identity=identity,
            first=numbers[0],
            reverse=reverse,
            state_parts=attributes.get("state_parts", ()),
        )
        for what, found in arrays.items()
    }
    return rows["values"], lengths, rows.get("inputs")


def _open_node(path: str | os.PathLike[str]) -> Any:
    """Return the array or group at a path or an address."""
    try:
        return _zarr().open(str(path), mode="r")
    except ModuleNotFoundError as error:
        raise ImportError("stores at addresses need fsspec: pip install 'kann[dask]'") from error
    except Exception as error:  # damaged metadata make zarr raise anything
        if is_url(path):
            message = f"there is no zarr store at {path} ({reason(error)}); pass one, as s3://bucket/x.zarr"
            raise KannError(message) from error
        inside = sorted(str(each.parent) for each in Path(path).glob("*/zarr.json"))[:MOST_NAMED]
        remedy = (
            f"it is a folder of stores: pass {' or '.join(inside)}" if inside else "pass one that States.save() wrote"
        )
        raise KannError(f"{path} is not a zarr store ({reason(error)}); {remedy}") from error


def _parts(root: Any, what: str, numbers: range) -> list[Any]:
    """Open some parts. A few at a time: a number of parts that is made up ends at the first that is missing."""
    found, waiting = [], iter(numbers)
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        while some := list(itertools.islice(waiting, 8 * PARALLEL_REQUESTS)):
            found += pool.map(lambda number: root[f"{what}/{number:06d}"], some)
    return found


def _lengths(part: Any) -> Int[Array, " s"]:
    """Return the lengths of the sequences of a part, which must be all of its rows."""
    lengths = part.attrs["lengths"]
    if not lengths or not all(type(n) is int and n > 0 for n in lengths) or sum(lengths) != part.shape[0]:
        raise ValueError(f"the lengths of {part.path} are not those of its {part.shape[0]} rows")
    return np.array(lengths, dtype=np.int64)


def _require_alike(values: Sequence[Any], inputs: Sequence[Any] | None = None) -> None:
    """Raise for parts of different width or type, and inputs that do not go with the values."""
    for parts in (values, inputs or values):
        for part, rows in zip(parts, values, strict=True):
            expected = (rows.shape[0], parts[0].shape[1]), parts[0].dtype
            if (part.shape, part.dtype) != expected or part.chunks[1] != part.shape[1]:
                raise ValueError(f"{part.path} is {part.dtype} of shape {part.shape} in chunks of {part.chunks}")


def _foreign(node: Any, path: str | os.PathLike[str]) -> tuple[Any, Any, Any]:
    """Read zarr that kann did not write: an array, or a group of ``values`` and perhaps ``lengths`` and ``inputs``."""
    values, lengths, inputs = node, None, None
    with damage_explained(path, problem="holds arrays that cannot be read", remedy="store plain numbers"):
        if hasattr(node, "members"):
            if "values" not in node:
                raise KannError(
                    f"{path} has no array 'values'; it has {sorted(node)}; pass a store that States.save() wrote"
                )
            values, lengths, inputs = node["values"], node.get("lengths"), node.get("inputs")
        if lengths is not None and lengths.dtype.kind not in "iu":
            raise KannError(f"lengths in {path} are {lengths.dtype}; store one whole number per sequence")
        _require_honest_count(values, lengths, path)
        read = None if lengths is None else lengths[:]
        return ForeignArray(values), read, None if inputs is None else ForeignArray(inputs)


def _require_honest_count(values: Any, lengths: Any, path: str | os.PathLike[str]) -> None:
    """Raise if metadata claim more than the chunks can hold, before memory is taken for it."""
    sequences = (values.shape[0] if values.ndim == 3 else 1) if lengths is None else math.prod(lengths.shape)
    claimed = math.prod(values.shape) * values.dtype.itemsize  # zarr's own nbytes fails where this exceeds 64 bits
    if max(claimed, sequences * np.dtype(np.int64).itemsize) <= ALWAYS_UNPACKED:
        return
    if not values.store.supports_listing:  # the size is known nowhere but in the metadata
        return
    stored = values.nbytes_stored()
    if sequences > math.prod(values.shape[:-1]) or claimed > MAX_EXPANSION * stored:
        raise KannError(
            f"{path} claims {sequences} sequences in values of shape {values.shape}, and holds {stored} bytes; "
            "write it again"
        )


NUMPY_FILES = (".npy", ".npz")
"""Endings of files that `States.open` reads with numpy."""

UNFINISHED = "unfinished"
"""Suffix of the name of a store while it is recorded."""

OWN_PATHS = re.compile(r"zarr\..*|(values|inputs)(/zarr\..*|/\d{6,}(/zarr\..*|/c(/\d+)?(/\d+(\.\w+\.partial)?)?)?)?")
"""The files of a store of states, and the temporary files of zarr (``….partial``) that a kill leaves in it."""


@contextlib.contextmanager
def recording_to(path: str | os.PathLike[str]) -> Iterator[Writer]:
    """Give a writer of a store that takes the name ``path`` when it is complete.

    This is the rule:

    - While a store is recorded it is called ``NAME.0123abcd.unfinished``. A store of that name is not touched.
    - When the block ends well, the store takes its name in one step, and a store that stood there is removed.
    - When the block fails or is interrupted, the finished sequences take the name if it is free, marked as unfinished;
      else they keep the temporary one. A note on the error names their number and place. If none is finished,
      no file stays.
    - When the process is killed, they keep the temporary name. `States.open` warns that they are unfinished, and, if
      no store has the name, where they are.
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
    """Return the attributes of the root of a store; empty if there is none, or a damaged one."""
    try:
        attributes = json.loads((path / "zarr.json").read_text())["attributes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return attributes if isinstance(attributes, dict) else {}


def require_store_name(path: str | os.PathLike[str], *, verb: str) -> None:
    """Raise for a path under which no store could be written, or from which it could not be opened."""
    if is_url(path):
        raise KannError(
            f"{path} is an address; {verb} to a folder, and copy it there with fsspec or your cloud's tools"
        )
    if Path(path).suffix in NUMPY_FILES:
        raise KannError(f"{path} would be read as a numpy file; pass a name such as {Path(path).stem}.zarr")


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise if writing would replace anything but a plain store of states, or an empty folder."""
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
