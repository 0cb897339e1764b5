"""How well the untouched network does on held-out sequences, beside what needs no network."""

from typing import Any

import numpy as np

from kann.analysis.intervals import interval_of_mean
from kann.backends.arrays import as_numpy
from kann.checks import short_repr
from kann.errors import KannError
from kann.explaining.context import Findings, Rightness
from kann.explaining.options import Options
from kann.explaining.outputs import Outputs
from kann.explaining.sequences import Sequences
from kann.live.evaluation import Scorer, labels_of_classes, labels_of_outputs, score_runs
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import SequenceData
from kann.typing import Array, Float, Int, Shaped

LEVEL = 0.95
"""Probability with which the interval holds the score on all sequences like these."""


def measure_rightness(found: Findings, source: SequenceData, numbers: Int[Array, " h"]) -> None:
    """Compare the outputs for held-out sequences with their labels, if there are any that fit.

    ``source`` gives these sequences to the network; ``numbers`` are theirs among all sequences.
    """
    outputs = found.outputs
    if found.options.labels is None or outputs is None:
        return
    labels = _labels_of(found, outputs)
    if labels is None:
        return
    own = [labels[number] for number in numbers]
    scorer = Scorer.of("accuracy", own, outputs=outputs.kind, threshold=outputs.threshold)
    with evaluation_mode(found.model):
        _, (scores,) = score_runs(source, [], scorer, what="accuracy")
    low, high = interval_of_mean(scores, LEVEL)
    baseline = 0.0
    if outputs.kind != "values":
        baseline = _most_frequent(labels, found.held_out)
    found.rightness = Rightness(
        outputs=outputs.kind, score=float(scores.mean()), low=float(low), high=float(high), baseline=baseline
    )


def require_labels_that_fit(
    options: Options, outputs: Outputs, given: Shaped[Array, "k ..."], sequences: Sequences, numbers: Int[Array, " k"]
) -> None:
    """Refuse labels that cannot be compared with outputs; ``given`` are those of the sequences ``numbers``."""
    labels: Any = options.labels
    if labels is None:
        return
    has_steps = given.ndim > 2
    steps, width = 1, int(np.prod(given.shape[1:], dtype=int))
    if has_steps:
        steps, width = given.shape[1], int(np.prod(given.shape[2:], dtype=int))
    starts = np.zeros(len(numbers), dtype=np.int64)
    if outputs.kind == "class":
        _require_known_names(labels, options.classes)
        known = class_numbers(labels, options.classes)
        if known is None:
            return
        labels_of_classes(known, numbers, starts, steps=steps, has_steps=has_steps)
        own_axes = 0
    elif any(isinstance(label, str) for label in labels):
        return
    else:
        known = [as_numpy(label) for label in labels]
        labels_of_outputs(known, numbers, starts, steps=steps, width=width, has_steps=has_steps)
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


def _require_known_names(labels: Any, classes: Any) -> None:
    """Refuse names of classes that do not say which output they are."""
    names = [label for label in labels if isinstance(label, str)]
    if not names:
        return
    if classes is None:
        raise KannError(
            f"labels are names, such as {short_repr(names[0])}, and nothing says which output each of them stands for; "
            f"pass classes={short_repr(sorted(set(names)))}, in the order of the outputs"
        )
    unknown = next((name for name in names if name not in classes), None)
    if unknown is not None:
        raise KannError(
            f"the label {short_repr(unknown)} is not among classes={short_repr(list(classes))}; pass all names"
        )


def _labels_of(found: Findings, outputs: Outputs) -> list[Any] | None:
    """The labels as numbers that outputs can be compared with; None if they do not fit, and why is said."""
    labels: Any = found.options.labels
    if outputs.kind == "class":
        return _classes_of(found, outputs)
    if any(isinstance(label, str) for label in labels):
        found.choices.append(
            "How well the network does was not measured: labels are names, and outputs are no classes."
        )
        return None
    numbers = [as_numpy(label).astype(np.float64) for label in labels]
    if outputs.kind == "labels":  # marks may be 0 and 1, or −1 and 1
        return [(label > 0).astype(np.float64) for label in numbers]
    return numbers


def _classes_of(found: Findings, outputs: Outputs) -> list[Any] | None:
    labels = class_numbers(found.options.labels, found.options.classes)
    if labels is None:
        return None
    every = np.concatenate([np.ravel(labels[i]) for i in found.held_out])
    classes = max(2, outputs.count)
    if every.min() < 0 or every.max() >= classes:
        found.choices.append(
            f"How often the network is right was not measured: labels run from {every.min()} to {every.max()}, and "
            f"its outputs tell classes 0 to {classes - 1} apart."
        )
        return None
    return labels


def class_numbers(labels: Any, classes: Any) -> list[Any] | None:
    """Labels as numbers of classes; None if there are none, or if names do not say which output they are."""
    if isinstance(labels[0], str):
        if classes is None or not set(labels) <= set(classes):
            return None
        return [list(classes).index(label) for label in labels]
    whole = [as_numpy(label) for label in labels]
    if any(each.dtype.kind not in "iubf" or (each != np.round(each)).any() for each in whole):
        return None
    return [each.astype(np.int64) for each in whole]


def _most_frequent(labels: list[Any], held_out: Int[Array, " h"]) -> float:
    """The fraction that is right of held-out labels, if the most frequent label of all sequences is always given.

    Of several yes-or-no labels each output has a most frequent one.
    """
    columns = [_in_columns(np.asarray(label)) for label in labels]
    every = np.concatenate(columns)
    usual = np.array([_mode_of(every[:, column]) for column in range(every.shape[1])])
    return float(np.mean([(columns[i] == usual).mean() for i in held_out]))


def _in_columns(label: Shaped[Array, "..."]) -> Float[Array, "t o"]:
    """One row for each label of a step: whole numbers are one column, rows of marks several."""
    if label.dtype.kind == "f":
        return label.reshape(-1, label.shape[-1])
    return label.reshape(-1, 1).astype(np.float64)


def _mode_of(values: Float[Array, " n"]) -> float:
    found, counts = np.unique(values, return_counts=True)
    return float(found[counts.argmax()])
