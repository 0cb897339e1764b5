"""Labels as users have them for training, without what only the loss or the batch needed."""

from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.explaining.outputs import Outputs
from kann.explaining.sequences import Sequences
from kann.typing import Array, Shaped


def plain_labels(labels: Any, outputs: Outputs, sequences: Sequences, *, has_steps: bool) -> Any:
    """Labels without padding, and without the last axis that a single output has; names stay as they are."""
    if any(isinstance(label, str) for label in labels):
        return labels
    plain = [as_numpy(label) for label in labels]
    if any(label.dtype.kind not in "iubf" for label in plain):
        return labels
    if outputs.kind == "class" and outputs.count == 1:
        plain = [_without_last_axis(label, axes=int(has_steps)) for label in plain]
    # A label without axes is one for all steps, and so is one whose only axis is that of several outputs.
    axes = 1 + int(outputs.kind != "class" and outputs.count > 1)
    if has_steps and sequences.knows_positions and all(label.ndim >= axes for label in plain):
        return _without_padding(plain, sequences)
    return plain


def _without_last_axis(label: Shaped[Array, "..."], *, axes: int) -> Shaped[Array, "..."]:
    """A label of ``axes`` axes, if it has one more of size 1, as BCEWithLogitsLoss wants it."""
    if label.ndim == axes + 1 and label.shape[-1] == 1:
        return label[..., 0]
    return label


def _without_padding(labels: list[Shaped[Array, "..."]], sequences: Sequences) -> list[Shaped[Array, "..."]]:
    """Labels of the real steps of each sequence, if all are as long as the longest sequence, or longer.

    Labels of several lengths, or for sequences of one length, are not padded: if they are too long, that is a mistake.
    """
    numbers, sizes = np.arange(len(labels)), {len(label) for label in labels}
    lengths, starts = sequences.positions(numbers), sequences.starts(numbers)
    longest = int(lengths.max())
    if len(sizes) > 1 or min(sizes) < longest or int(lengths.min()) == longest:
        return labels
    if starts.any() and len(sequences.steps(0)) not in sizes:  # not padded as the data are
        return labels
    ends = starts + lengths
    return [label[start:end] for label, start, end in zip(labels, starts.tolist(), ends.tolist(), strict=True)]
