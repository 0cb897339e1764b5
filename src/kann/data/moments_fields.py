"""What the file of saved moments holds, and which of its fields must agree."""

import numpy as np

from kann.data.fields import Field
from kann.typing import Array

FIELDS = (
    {name: Field(numbers="whole") for name in ("sequences", "states", "pairs")}
    | {name: Field() for name in ("rounding", "input_rounding")}
    | {name: Field(axes="d", group="states") for name in ("sum_h", "sum_x", "sum_y")}
    | {name: Field(axes="d d", group="states") for name in ("hh", "xx", "xy", "yy")}
    | {
        "sum_u": Field(axes="p", group="inputs"),
        "uu": Field(axes="p p", group="inputs"),
        "xu": Field(axes="d p", group="inputs"),
        "uy": Field(axes="p d", group="inputs"),
    }
)
"""What saved moments hold."""

SYMMETRIC_TO = 1e-6
"""How far a saved Gram matrix may be from one, relative to its largest entry; rounding stays far below."""


def require_consistent(arrays: dict[str, Array]) -> None:
    """Refuse saved fields that contradict each other: counts, and Gram matrices that are none."""
    sequences, states, pairs = (int(arrays[name]) for name in ("sequences", "states", "pairs"))
    if sequences > states or pairs > states - sequences or (states > 0) != ("hh" in arrays):
        raise ValueError(f"{sequences} sequences, {states} states and {pairs} pairs contradict each other or the sums")
    if "uu" in arrays and "hh" not in arrays:
        raise ValueError("it holds sums of inputs without states")
    for name in ("rounding", "input_rounding"):
        if not 0 <= arrays[name] < 1:
            raise ValueError(f"{name!r} is {arrays[name]}, which is no spacing of numbers")
    for name in ("hh", "xx", "yy", "uu"):
        if name in arrays:
            _require_gram(name, arrays[name])


def _require_gram(name: str, matrix: Array) -> None:
    noise = SYMMETRIC_TO * np.abs(matrix).max()
    if np.abs(matrix - matrix.T).max() > noise or matrix.diagonal().min() < -noise:
        raise ValueError(f"{name!r} is no Gram matrix: it is not symmetric, or has negative squares")
