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

LARGEST_SQUARE = 1e300
"""Sums of squares above this leave no room for what is computed from them in float64."""

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
    _require_possible_sums(arrays, states=states, pairs=pairs)


def _require_possible_sums(arrays: dict[str, Array], *, states: int, pairs: int) -> None:
    """Refuse sums that no states of this number can have."""
    for name in ("hh", "xx", "yy", "uu"):
        if name in arrays:
            _require_gram(name, arrays[name])
    for name, count in (("h", states), ("x", pairs), ("y", pairs), ("u", pairs)):
        if f"sum_{name}" in arrays:
            _require_sums(f"sum_{name}", arrays[f"sum_{name}"], arrays[2 * name], count)
    for name in ("xy", "xu", "uy"):
        if name in arrays:
            _require_products(name, arrays[name], arrays[2 * name[0]], arrays[2 * name[1]])


def _require_gram(name: str, matrix: Array) -> None:
    noise = SYMMETRIC_TO * np.abs(matrix).max()
    if np.abs(matrix - matrix.T).max() > noise or matrix.diagonal().min() < -noise:
        raise ValueError(f"{name!r} is no Gram matrix: it is not symmetric, or has negative squares")
    _require_products(name, matrix, matrix, matrix)


def _require_sums(name: str, sums: Array, gram: Array, count: int) -> None:
    """Refuse sums that squares of this size cannot have: |Σa| is at most √(n Σa²)."""
    most = np.sqrt(count * np.abs(gram.diagonal()))
    if (np.abs(sums) > (1 + SYMMETRIC_TO) * most + SYMMETRIC_TO * most.max()).any():
        raise ValueError(f"{name!r} holds sums that the sums of squares rule out")


def _require_products(name: str, products: Array, left: Array, right: Array) -> None:
    """Refuse sums of products that squares of this size cannot have: |Σab| is at most √(Σa² Σb²)."""
    most = np.outer(np.sqrt(np.abs(left.diagonal())), np.sqrt(np.abs(right.diagonal())))
    if most.max() > LARGEST_SQUARE or (np.abs(products) > (1 + SYMMETRIC_TO) * most + SYMMETRIC_TO * most.max()).any():
        raise ValueError(f"{name!r} holds sums of products that the sums of squares rule out")
