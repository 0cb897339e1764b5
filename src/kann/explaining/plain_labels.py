"""Labels as users have them for training, without what only the loss or the batch needed."""

from typing import Any

from kann.backends.arrays import as_numpy
from kann.explaining.outputs import Outputs
from kann.typing import Array, Shaped


def plain_labels(labels: Any, outputs: Outputs, *, has_steps: bool) -> Any:
    """Labels without the last axis that a single output has; what is no array of numbers stays as it is."""
    if any(isinstance(label, str) for label in labels):
        return labels
    plain = [as_numpy(label) for label in labels]
    if any(label.dtype.kind not in "iubf" for label in plain):
        return labels
    if outputs.kind == "class" and outputs.count == 1:
        plain = [_without_last_axis(label, axes=int(has_steps)) for label in plain]
    return plain


def _without_last_axis(label: Shaped[Array, "..."], *, axes: int) -> Shaped[Array, "..."]:
    """A label of ``axes`` axes, if it has one more of size 1, as BCEWithLogitsLoss wants it."""
    if label.ndim == axes + 1 and label.shape[-1] == 1:
        return label[..., 0]
    return label
