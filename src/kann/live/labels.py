"""The labels of a batch in the shape of a network's outputs, or an error that says which label does not fit."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.typing import Array, Float, Int, Shaped


def labels_of_classes(
    labels: Any, sequences: Int[Array, " b"], starts: Int[Array, " b"], *, steps: int, has_steps: bool
) -> Int[Array, "b t"]:
    """The class of each sequence, or of each of its steps; 0 where a sequence has ended.

    ``starts`` are the first real steps of sequences that are padded on the left. A network that decides once for a
    sequence has one step, and ``has_steps`` is False.
    """
    found = np.zeros((len(sequences), steps), dtype=np.int64)
    for row, label, number, start in _numbered(labels, sequences, starts):
        if label.ndim > int(has_steps):
            expected = "one class"
            if has_steps:
                expected = "one class for each step"
            raise KannError(
                f"the label of sequence {number} has shape {label.shape}, and {expected} is needed; for several labels "
                "or values of each decision pass outputs='labels' or outputs='values'"
            )
        _put(found[row], label, start, number)
    return found


def labels_of_outputs(
    labels: Any, sequences: Int[Array, " b"], starts: Int[Array, " b"], *, steps: int, width: int, has_steps: bool
) -> Float[Array, "b t o"]:
    """The label of each of ``width`` outputs, for each sequence or each of its steps; 0 where a sequence has ended."""
    found = np.zeros((len(sequences), steps, width))
    for row, label, number, start in _numbered(labels, sequences, starts):
        if width == 1 and label.ndim <= int(has_steps):  # a single output needs no axis of its own
            label = label[..., None]
        if label.ndim not in (1, 1 + has_steps) or label.shape[-1] != width:
            expected = f"({width},)"
            if has_steps:
                expected = f"(steps, {width}) or ({width},)"
            raise KannError(
                f"the label of sequence {number} has shape {label.shape}, and the network has {width} outputs; pass "
                f"{expected} for each sequence"
            )
        if label.ndim == 1:
            found[row] = label
        else:
            _put(found[row], label, start, number)
    return found


def _numbered(
    labels: Any, sequences: Int[Array, " b"], starts: Int[Array, " b"]
) -> Iterator[tuple[int, Shaped[Array, "..."], int, int]]:
    """Row in the batch, label, number in the data and first real step of each sequence."""
    for row, (number, start) in enumerate(zip(sequences.tolist(), starts.tolist(), strict=True)):
        yield row, as_numpy(labels[number]), number, start


def _put(row: Array, label: Array, start: int, number: int) -> None:
    """Write the labels of the steps of one sequence, or one label for all of them."""
    if not label.ndim:
        row[:] = label
        return
    if start + len(label) > len(row):
        raise KannError(
            f"sequence {number} has labels for {len(label)} steps, and the network gave {len(row) - start}; pass one "
            "for each step"
        )
    row[start : start + len(label)] = label
