"""How well the untouched network does on held-out sequences, beside what needs no network."""

from dataclasses import replace
from typing import Any

import numpy as np

from kann.analysis.live_effects import interval_of_mean
from kann.backends.arrays import as_numpy
from kann.explaining.findings import Findings, Rightness
from kann.explaining.outputs import Outputs
from kann.live.bench import Bench
from kann.live.scoring import Scorer
from kann.typing import Array, Float, Int, Shaped

LEVEL = 0.95
"""Probability with which the interval holds the score on all sequences like these."""


def measure_rightness(found: Findings, bench: Bench) -> None:
    """Compare the outputs for held-out sequences with their labels, if there are any that fit."""
    outputs = found.outputs
    if found.options.labels is None or outputs is None:
        return
    labels = _labels_of(found, outputs)
    if labels is None:
        return
    scorer = Scorer.of("accuracy", labels, outputs=outputs.kind, threshold=outputs.threshold)
    groups = [*bench.search.trials.groups, *bench.judging.groups]
    scores = replace(bench.judging, groups=groups, scorer=scorer).scores(None)
    low, high = interval_of_mean(scores, LEVEL)
    baseline = 0.0
    if outputs.kind != "values":
        baseline = _most_frequent(labels, found.held_out)
    found.rightness = Rightness(
        outputs=outputs.kind, score=float(scores.mean()), low=float(low), high=float(high), baseline=baseline
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
        if isinstance(found.options.labels[0], str):
            found.choices.append(
                "How often the network is right was not measured: labels are names, and classes= does not say which "
                "output each of them is."
            )
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
    if any(each.dtype.kind not in "iub" for each in whole):
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
