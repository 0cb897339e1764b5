"""Kinds of outputs and labels: classes, yes-or-no labels or values, per sequence or per step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann._format import percent
from kann.analysis.intervals import interval_of_mean
from kann.backends.arrays import as_numpy
from kann.checks import short_repr
from kann.data.serialization import Stored
from kann.errors import KannError
from kann.explaining.options import Options
from kann.explaining.sequences import Sequences
from kann.live.evaluation import IGNORED, Scorer, kind_by_labels, labels_by_step, score_runs
from kann.recording.runner import evaluation_mode
from kann.typing import Array, Int, Shaped

LEVEL = 0.95
"""Confidence level of the interval of the score."""

RARE = 0.02
"""If a single output has the same sign for all but this fraction of sequences, it is taken for a value, not a class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Kind of the outputs, and the evidence for it."""

    kind: str
    """"class", "labels" or "values"."""
    threshold: float
    """An output above this value is a yes."""
    count: int
    """How many outputs there are for each decision."""
    why: str

    def require_names(self, classes: Sequence[str] | None) -> None:
        """Raise for another number of names than there are classes, or answers."""
        told, of = (max(2, self.count), "classes") if self.kind == "class" else (self.count, "answers")
        if classes is not None and self.kind != "values" and len(classes) != told:
            raise KannError(
                f"classes= has {len(classes)} names, and the network's {self.count} outputs tell {told} {of} apart; "
                "pass one name for each, or outputs= if they are something else"
            )


def kind_of_outputs(outputs: Shaped[Array, "s ..."], inputs: Shaped[Array, "t ..."], options: Options) -> Outputs:
    """Find the kind of the outputs of some sequences; ``inputs`` are those of one of them."""
    real = outputs[np.isfinite(outputs)]
    if not len(real):
        raise KannError("all outputs of the network are NaN or Inf, so that they say nothing; look at its weights")
    threshold = 0.5 if real.min() >= 0 and real.max() <= 1 else 0.0
    told = (options.outputs, "as you asked") if options.outputs else kind_by_labels(options.labels, outputs)
    kind, reason = told or _told_by_shape(outputs, inputs, options, threshold)
    names = {
        "class": "a class (the largest output, or whether a single one exceeds the threshold)",
        "labels": "several yes-or-no answers",
        "values": "values, compared by R²",
    }
    remedy = "" if options.outputs else " Pass outputs= if they are something else."
    why = f"Outputs are taken as {names[kind]}: {reason}.{remedy}"
    count = outputs.shape[-1] if outputs.ndim > 1 else 1
    return Outputs(kind=kind, threshold=threshold, count=count, why=why)


def _told_by_shape(
    outputs: Shaped[Array, "s ..."], inputs: Shaped[Array, "t ..."], options: Options, threshold: float
) -> tuple[str, str]:
    """Find the kind of outputs by their shapes and signs."""
    if options.classes is not None:
        return "class", "their classes were named"
    is_real, own = inputs.dtype.kind == "f", outputs.shape[1:]
    if is_real and (own in (inputs.shape, (*inputs.shape, 1)) or (*own, 1) == inputs.shape):
        return "values", "they have the shape of what the network reads"
    width = outputs.shape[-1] if outputs.ndim > 1 else 1
    if width > 1 and not (outputs.ndim == 2 and is_real and outputs.shape[1] == len(inputs) > 1):
        return "class", f"there are {width} for each decision"
    positive = float((outputs[np.isfinite(outputs)] > threshold).mean())
    if RARE <= positive <= 1 - RARE:
        return "class", f"there is one, and {percent(positive)} of them say yes"
    return "values", "there is one, and nearly all of them have the same sign"


def without_one_hot(labels: Any, outputs: Shaped[Array, "s ..."], kind: str | None) -> Any:
    """Return classes for labels that are one-hot rows, or rows of one class; other labels as they are."""
    if labels is None or kind not in (None, "class") or outputs.ndim < 2 or outputs.shape[-1] < 2 or has_names(labels):
        return labels
    rows = [as_numpy(label) for label in labels]
    widths = {row.shape[-1] if row.ndim == outputs.ndim - 1 else 0 for row in rows}
    if widths == {1} and class_numbers(rows, None) is not None:
        return [row[..., 0] for row in rows]
    if widths != {outputs.shape[-1]}:
        return labels
    if not all(np.isin(row, (0, 1)).all() and (row.sum(axis=-1) == 1).all() for row in rows):
        return labels
    return [row.argmax(axis=-1) for row in rows]


def has_names(labels: Any) -> bool:
    """Return True if some labels are names of classes."""
    return any(isinstance(label, str) for label in labels)


def plain_labels(labels: Any, outputs: Outputs, sequences: Sequences, *, has_steps: bool) -> Any:
    """Return labels without padding, and without the last axis that a single output has; names stay as they are."""
    if has_names(labels):
        return labels
    plain = [as_numpy(label) for label in labels]
    if any(label.dtype.kind not in "iubf" for label in plain):
        return labels
    if outputs.kind == "class" and outputs.count == 1:  # BCEWithLogitsLoss wants an axis of size 1
        plain = [each[..., 0] if each.ndim == 1 + has_steps and each.shape[-1] == 1 else each for each in plain]
    # A label without axes is one for all steps, and so is one whose only axis is that of several outputs.
    axes = 1 + int(outputs.kind != "class" and outputs.count > 1)
    if has_steps and sequences.knows_positions and all(label.ndim >= axes for label in plain):
        return _without_padding(plain, sequences)
    return plain


def _without_padding(labels: list[Shaped[Array, "..."]], sequences: Sequences) -> list[Shaped[Array, "..."]]:
    """Return labels of the real steps of each sequence, if all are as long as the longest sequence, or longer.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy(Stored):
    """The score of the network on held-out sequences with labels."""

    outputs: str
    """"class" or "labels", whose score is the fraction that is right; or "values", whose score is R²."""
    score: float
    low: float
    high: float
    """The interval of the score over sequences."""
    baseline: float
    """The score of the most frequent label, or of the mean of values."""
    of_steps: bool = False
    """True if single steps have labels."""

    @property
    def is_clear(self) -> bool:
        """True if the network does better than its baseline, beyond chance."""
        return self.low > self.baseline


def require_labels_that_fit(
    options: Options, outputs: Outputs, given: Shaped[Array, "k ..."], sequences: Sequences, numbers: Int[Array, " k"]
) -> None:
    """Raise for labels that cannot be compared with outputs; ``given`` are those of the sequences ``numbers``."""
    labels: Any = options.labels
    if labels is None:
        return
    has_steps = given.ndim > 2
    steps = given.shape[1] if has_steps else 1
    width = int(np.prod(given.shape[1 + has_steps :], dtype=int))
    starts = np.zeros(len(numbers), dtype=np.int64)
    if outputs.kind == "class":
        _require_known_names(labels, options.classes)
        known = class_numbers(labels, options.classes)
        if known is None:
            return
        first = int(numbers[0])
        if has_steps and not np.ndim(known[first]):
            raise KannError(
                f"the label of sequence {first} is one class, and the network gave outputs at {steps} steps; pass one "
                f"label for each step, with {IGNORED} at those that do not count"
            )
        labels_by_step(known, numbers, starts, steps=steps, has_steps=has_steps)
        _require_known_classes(known, max(2, outputs.count))
        own_axes = 0
    elif has_names(labels):
        return
    else:
        known = [as_numpy(label) for label in labels]
        labels_by_step(known, numbers, starts, steps=steps, width=width, has_steps=has_steps)
        own_axes = 1 - int(width == 1 and known[int(numbers[0])].ndim == 1)
    if not has_steps or not sequences.knows_positions:
        return
    for number, real in zip(numbers.tolist(), sequences.positions(numbers).tolist(), strict=True):
        label = np.asarray(known[number])
        if label.ndim > own_axes and len(label) < min(steps, real):
            raise KannError(
                f"the label of sequence {number} has shape {label.shape}, and the network gave outputs at "
                f"{min(steps, real)} steps; pass one label for each step"
            )


def _require_known_classes(labels: list[Any], count: int) -> None:
    """Raise for labels that no output stands for."""
    every = np.unique(np.concatenate([np.ravel(label) for label in labels]))
    every = every[every != IGNORED]
    if len(every) and not 0 <= every[0] <= every[-1] < count:
        remedy = "labels that are numbers of these classes"
        if every.tolist() == [-1, 1]:
            remedy = "(labels > 0)"
        elif every[-1] - every[0] < count:
            remedy = f"labels - {every[0]}" if every[0] > 0 else f"labels + {-every[0]}"
        raise KannError(
            f"labels run from {every[0]} to {every[-1]}, and the outputs are classes 0 to {count - 1}; pass {remedy}, "
            f"and {IGNORED} where a label does not count"
        )


def _require_known_names(labels: Any, classes: Any) -> None:
    """Raise for names of classes that do not say which output they are."""
    names = [label for label in labels if isinstance(label, str)]
    if names and classes is None:
        raise KannError(
            f"labels are names, such as {short_repr(names[0])}, and nothing says which output each of them stands for; "
            f"pass classes={short_repr(sorted(set(names)))}, in the order of the outputs"
        )
    unknown = next((name for name in names if name not in classes), None)
    if unknown is not None:
        raise KannError(
            f"the label {short_repr(unknown)} is not among classes={short_repr(list(classes))}; pass all names"
        )


def measure_accuracy(
    sequences: Sequences,
    held_out: Int[Array, " h"],
    together: Int[Array, " n"],
    outputs: Outputs | None,
    options: Options,
) -> tuple[Accuracy | None, tuple[str, ...]]:
    """Compare the outputs for held-out sequences with their labels; None if there are none that fit, and why.

    Sequences with the same number in ``together`` count together in the interval.
    """
    if outputs is None or options.labels is None:
        return None, ()
    numbers = sequences.sorted_by_length(held_out)
    labels = _comparable(options, outputs, numbers)
    if isinstance(labels, str):
        return None, (labels,)
    own = [labels[number] for number in numbers]
    scorer = Scorer.of("accuracy", own, outputs=outputs.kind, threshold=outputs.threshold)
    with evaluation_mode(sequences.model):
        judged, (scores,) = score_runs(sequences.data(numbers), [], scorer, what="accuracy")
    low, high = interval_of_mean(scores, LEVEL, together[numbers[judged]])
    found = Accuracy(
        outputs=outputs.kind,
        score=float(scores.mean()),
        low=float(low),
        high=float(high),
        baseline=0.0 if outputs.kind == "values" else _most_frequent(labels, numbers),
        of_steps=outputs.kind == "class" and np.ndim(own[0]) > 0,
    )
    return found, ()


def _comparable(options: Options, outputs: Outputs, held_out: Int[Array, " h"]) -> list[Any] | str:
    """Return the labels as numbers that outputs can be compared with; if they do not fit, why."""
    labels: Any = options.labels
    if outputs.kind != "class":
        if has_names(labels):
            return "How well the network does was not measured: labels are names, and outputs are no classes."
        numbers = [as_numpy(label).astype(np.float64) for label in labels]
        # Marks may be 0 and 1, or −1 and 1.
        return [(label > 0).astype(np.float64) for label in numbers] if outputs.kind == "labels" else numbers
    known = class_numbers(labels, options.classes)
    if known is None:
        return "How well the network does was not measured: labels are no whole numbers."
    every = np.concatenate([np.ravel(known[i]) for i in held_out])
    if not (every != IGNORED).any():
        return f"How often the network is right was not measured: all labels are {IGNORED}."
    return known


def class_numbers(labels: Any, classes: Any) -> list[Any] | None:
    """Return labels as numbers of classes; None if there are none, or if names do not identify outputs."""
    if isinstance(labels[0], str):
        if classes is None or not set(labels) <= set(classes):
            return None
        return [list(classes).index(label) for label in labels]
    whole = [as_numpy(label) for label in labels]
    if any(each.dtype.kind not in "iubf" or (each != np.round(each)).any() for each in whole):
        return None
    return [each.astype(np.int64) for each in whole]


def _most_frequent(labels: list[Any], held_out: Int[Array, " h"]) -> float:
    """Compute the fraction of held-out labels that equal the most frequent label of all sequences.

    Of several yes-or-no labels each output has a most frequent one.
    """
    columns = [np.asarray(label) for label in labels]  # one of whole numbers, or several of marks
    columns = [each.reshape(-1, each.shape[-1] if each.dtype.kind == "f" and each.ndim else 1) for each in columns]
    usual = []
    for own in np.concatenate(columns).T:
        values, counts = np.unique(own[own != IGNORED], return_counts=True)
        usual.append(values[counts.argmax()])
    held = (columns[i] for i in held_out)
    return float(np.mean([(own == usual)[own != IGNORED].mean() for own in held if (own != IGNORED).any()]))
