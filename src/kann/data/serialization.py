"""Save results to npz files and load them without executing code."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.data.archives import Claim, NpzReader, damage_explained, read_npz, require_file
from kann.data.atomic_write import remove, replacing
from kann.errors import KannError
from kann.typing import Array

TYPES = {"real": (np.float64,), "complex": (np.complex128,), "whole": (np.int32, np.int64)}
"""What the numbers of a field may be, and the types that kann writes for it; Windows has had both for whole numbers."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Field:
    """What an array of a saved result must be."""

    axes: str = ""
    """Names of its axes, such as ``"d r"``: axes of the same name have the same size in all fields."""
    numbers: str = "real"
    """``"real"``, ``"complex"`` or ``"whole"``."""
    group: str | None = None
    """Fields of one group are all there or all missing. A field without one is always there."""
    may_be_infinite: bool = False
    """Whether it may hold infinity."""
    may_be_nan: bool = False
    """Whether it may hold NaN, for what is not known."""


def require_claims(claims: Mapping[str, Claim], fields: Mapping[str, Field]) -> None:
    """Refuse arrays that are unknown or missing, or whose types or shapes are not those of the fields.

    Nothing has been unpacked yet: arrays that do not fit each other never are. Errors are plain: who opens the file
    adds its name and the remedy.
    """
    unknown = sorted(set(claims) - set(fields))
    if unknown:
        raise ValueError(f"it holds {', '.join(map(repr, unknown))}, which is not part of it")
    groups = {field.group for name, field in fields.items() if name in claims}
    missing = [name for name, field in fields.items() if name not in claims and field.group in {None, *groups}]
    if missing:
        raise ValueError(f"it lacks {', '.join(map(repr, missing))}")
    sizes: dict[str, tuple[int, str]] = {}
    for name, claim in claims.items():
        _require_claim(name, claim, fields[name], sizes)


def _require_claim(name: str, claim: Claim, field: Field, sizes: dict[str, tuple[int, str]]) -> None:
    """Compare one array with its field. ``sizes`` are those of the axes so far, each with the array it came from."""
    if claim.dtype.newbyteorder("=") not in TYPES[field.numbers]:
        raise ValueError(f"{name!r} is {claim.dtype}, not {np.dtype(TYPES[field.numbers][-1])}")
    axes = field.axes.split()
    if len(claim.shape) != len(axes) or 0 in claim.shape:
        raise ValueError(f"{name!r} has shape {claim.shape}, not ({', '.join(axes)})")
    for axis, size in zip(axes, claim.shape, strict=True):
        known, source = sizes.setdefault(axis, (size, name))
        if known != size:
            raise ValueError(f"{name!r} has shape {claim.shape}; its {axis} is {known} in {source!r}")


def require_numbers(arrays: Mapping[str, Array], fields: Mapping[str, Field]) -> None:
    """Refuse NaN, infinity where a field may not hold it, and negative whole numbers."""
    for name, array in arrays.items():
        field = fields[name]
        if field.numbers == "whole":
            valid = (array >= 0).all()
        else:
            valid = True
            if not field.may_be_infinite:
                valid = not np.isinf(array).any()
            if not field.may_be_nan:
                valid = valid and not np.isnan(array).any()
        if not valid:
            raise ValueError(f"{name!r} holds numbers that it cannot hold: NaN, infinite or negative ones")


__all__ = ["load_npz", "read_npz", "remove", "replacing", "require_format", "save_npz"]

LONGEST_HEADER = 10_000
"""Bytes of a header that are read; ours have some hundreds."""

LONGEST_KIND = 80
"""Characters of the kind that a foreign file claims to be which are shown."""


def save_npz(path: str | os.PathLike[str], *, kind: str, version: int, arrays: Mapping[str, Array | None]) -> None:
    """Write named arrays and a header that says what they are. Arrays that are None are left out."""
    if os.path.isdir(path):
        raise KannError(f"{path} is a folder; pass the name of a file")
    present: dict[str, Any] = {name: array for name, array in arrays.items() if array is not None}
    says = json.dumps({"kind": kind, "version": version, "arrays": list(present)})
    header = np.frombuffer(says.encode(), dtype=np.uint8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, header=header, **present)


def load_npz(
    path: str | os.PathLike[str],
    *,
    kind: str,
    version: int,
    fields: Mapping[str, Field] | None = None,
    check: Callable[[dict[str, Array]], None] | None = None,
) -> dict[str, Array]:
    """Read what `save_npz` wrote; refuse what is damaged, edited, foreign, of another kind or newer.

    All arrays must be as ``fields`` say; without them, any arrays will do. ``check`` compares them with each other, and
    raises ValueError with the reason if they contradict each other.
    """
    require_file(path)
    with (
        damage_explained(path, problem="is not a whole kann file", remedy="save it again with .save()"),
        open(path, "rb") as file,
    ):
        reader = NpzReader(file)
        header = _header(reader)
        require_format(header, kind=kind, version=version, path=path)
        names = [name for name in reader.names if name != "header"]
        _require_all(names, header)
        if fields is not None:
            require_claims({name: reader.claim(name) for name in names}, fields)
        arrays = {name: reader.read(name) for name in names}
        if fields is not None:
            require_numbers(arrays, fields)
        if check is not None:
            check(arrays)
    return arrays


def _require_all(names: list[str], header: Mapping[str, Any]) -> None:
    """Refuse a file that lacks an array that its header lists; the first version's headers listed none."""
    lost = [name for name in header.get("arrays", ()) if name not in names]
    if lost:
        raise ValueError(f"it lacks {', '.join(map(repr, lost))}")


def _header(reader: NpzReader) -> Any:
    """What the file says that it is."""
    if "header" not in reader.names:
        raise ValueError("it has no header")
    claim = reader.claim("header")
    if claim.dtype != np.uint8 or len(claim.shape) != 1 or claim.shape[0] > LONGEST_HEADER:
        raise ValueError("its header is no text")
    return json.loads(bytes(reader.read("header")))


def require_format(header: Any, *, kind: str, version: int, path: str | os.PathLike[str]) -> None:
    """Refuse a header of another kind, or of a version that this release does not know."""
    got = None
    if isinstance(header, Mapping):
        got = header.get("kind")
    if got != kind:
        if not isinstance(got, str) or not got:
            got = "something else"
        raise KannError(f"{path} holds {got[:LONGEST_KIND]}, not {kind}; pass a file that {kind}.save() wrote")
    found = header.get("version")
    if type(found) is not int or found < 1:
        raise KannError(f"{path} has no valid format version; save it again with {kind}.save()")
    if found > version:
        raise KannError(f"{path} has format {found}; this release reads up to {version}; upgrade kann to read it")
