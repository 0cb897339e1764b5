"""Kinds of outputs and labels: classes, yes-or-no labels or values, per sequence or per step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann._format import percent
from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.explaining.options import Options
from kann.explaining.sequences import Sequences
from kann.typing import Array, Shaped

RARE = 0.02
"""If a single output has the same sign for all but this fraction of sequences, it is taken for a value, not a class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What outputs are, and how that was told."""

    kind: str
    """"class", "labels" or "values"."""
    threshold: float
    """What an output must exceed to be a yes."""
    count: int
    """How many outputs there are for each decision."""
    why: str

    def require_names(self, classes: Sequence[str] | None) -> None:
        """Refuse another number of names than there are classes, or answers."""
        told = self.count
        if self.kind == "class":
            told = max(2, self.count)
        if classes is not None and self.kind != "values" and len(classes) != told:
            raise KannError(
                f"classes= has {len(classes)} names, and the network's {self.count} outputs tell {told} {self._told} "
                "apart; pass one name for each, or outputs= if they are something else"
            )

    @property
    def _told(self) -> str:
        return {"class": "classes", "labels": "answers", "values": "values"}[self.kind]


def kind_of_outputs(outputs: Shaped[Array, "s ..."], inputs: Shaped[Array, "t ..."], options: Options) -> Outputs:
    """What the outputs of some sequences are; ``inputs`` are what one of them reads."""
    real = outputs[np.isfinite(outputs)]
    if not len(real):
        raise KannError("all outputs of the network are NaN or Inf, so that they say nothing; look at its weights")
    threshold = 0.0
    if real.min() >= 0 and real.max() <= 1:
        threshold = 0.5
    kind, reason = options.outputs, "as you asked"
    if kind is None:
        kind, reason = _told_by_labels(options.labels, outputs) or _told_by_shape(outputs, inputs, options)
    names = {
        "class": "a class (the largest output, or whether a single one exceeds the threshold)",
        "labels": "several yes-or-no answers",
        "values": "values, compared by R²",
    }
    why = f"Outputs are taken as {names[kind]}: {reason}."
    if options.outputs is None:
        why += " Pass outputs= if they are something else."
    count = 1
    if outputs.ndim > 1:
        count = outputs.shape[-1]
    return Outputs(kind=kind, threshold=threshold, count=count, why=why)


def _told_by_labels(labels: Any, outputs: Shaped[Array, "s ..."]) -> tuple[str, str] | None:
    """What the first label says; None if it says nothing."""
    if labels is None:
        return None
    if isinstance(labels[0], str):
        return "class", "labels are names"
    first = [as_numpy(labels[i]) for i in range(min(len(labels), 50))]
    values = np.concatenate([each.ravel().astype(np.float64) for each in first])
    has_axis = first[0].ndim == outputs.ndim - 1 and outputs.ndim > 1
    are_marks = set(np.unique(values)) <= {0.0, 1.0} or set(np.unique(values)) <= {-1.0, 1.0}
    if has_axis and are_marks and outputs.shape[-1] > 1:
        return "labels", "each label has a mark for each output"
    if not np.array_equal(values, np.round(values)):
        return "values", "labels are real numbers"
    return "class", "labels are whole numbers"


def _told_by_shape(
    outputs: Shaped[Array, "s ..."], inputs: Shaped[Array, "t ..."], options: Options
) -> tuple[str, str]:
    """What shapes and signs of the outputs say."""
    if options.classes is not None:
        return "class", "their classes were named"
    is_real = inputs.dtype.kind == "f"
    if is_real and outputs.shape[1:] in (inputs.shape, (*inputs.shape, 1), inputs.shape[:-1]):
        return "values", "they have the shape of what the network reads"
    width = 1
    if outputs.ndim > 1:
        width = outputs.shape[-1]
    if width > 1 and not (outputs.ndim == 2 and is_real and outputs.shape[1] == len(inputs) > 1):
        return "class", f"there are {width} for each decision"
    real = outputs[np.isfinite(outputs)]
    positive = float((real > 0).mean())
    if real.min() >= 0 and real.max() <= 1:
        positive = float((real > 0.5).mean())
    if RARE <= positive <= 1 - RARE:
        return "class", f"there is one, and {percent(positive)} of them say yes"
    return "values", "there is one, and nearly all of them have the same sign"


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
