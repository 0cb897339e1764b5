"""The one gate for the fields of saved results: names, types, shapes that fit each other, and finite numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kann.data.archives import Claim
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
