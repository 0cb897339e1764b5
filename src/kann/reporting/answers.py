"""What the sequences shown are grouped by, so that the course of a mode can be drawn for each group."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kann._format import significant
from kann.analysis.decisions import decide
from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.reporting.inputs import ReportInputs
from kann.typing import Array, Float

VALUES_NAMED = 4
"""Of a network that predicts numbers, so many of them are written out."""


def readout_is_all(inputs: ReportInputs) -> bool:
    """Whether the readout of the last state decides as the network; not if its head reads other states as well."""
    own, read = inputs.last_outputs, inputs.last_read
    if own is None or read is None:
        return True
    if inputs.outputs_kind == "class":
        return bool((decide(own, threshold=inputs.threshold) == decide(read, threshold=inputs.threshold)).all())
    return bool(np.allclose(own, read, rtol=0, atol=0.01 * own.std()))


def predictions(inputs: ReportInputs) -> list[str] | None:
    """What the network says at the end of each sequence, in words."""
    outputs = inputs.last_outputs
    if outputs is None:
        return None
    if inputs.outputs_kind == "values":
        return [_numbers(row) for row in outputs]
    if inputs.outputs_kind == "labels":
        return [_those_set(row.reshape(-1) > inputs.threshold, output_names(inputs)) for row in outputs]
    classes = decide(outputs, threshold=inputs.threshold)
    if inputs.classes is None:
        return [str(value) for value in classes.tolist()]
    largest = classes.max(initial=0)
    if largest >= len(inputs.classes):
        raise KannError(
            f"the readout gives class {largest} and classes= has {len(inputs.classes)} names; pass one for each"
        )
    return [inputs.classes[value] for value in classes.tolist()]


def output_names(inputs: ReportInputs, count: int | None = None) -> list[str]:
    """The names of ``count`` outputs, those of the network by default.

    Of a single output with two classes it is that of the class which the output speaks for.
    """
    if count is None:
        count = 0 if inputs.last_outputs is None else int(inputs.last_outputs[0].size)
    names = inputs.classes or []
    if count == 1 and len(names) == 2:
        return names[1:]
    if len(names) == count:
        return names
    word = "class" if inputs.outputs_kind == "class" else "output"
    return ["output"] if count == 1 else [f"{word} {number}" for number in range(count)]


def label_texts(inputs: ReportInputs) -> list[str | None]:
    """The label of each sequence, in words; of labels at every step, the last."""
    if inputs.labels is None:
        return [None] * len(inputs.states)
    kind, found = inputs.outputs_kind, []
    for own, length in zip(inputs.labels, inputs.states.lengths.tolist(), strict=True):
        steps = as_steps(own, length, kind=kind)
        found.append(_label_text(own if steps is None else steps[-1], inputs))
    return found


def as_steps(label: Any, length: int, *, kind: str) -> Array | None:
    """Labels of every step of a sequence, (T,) or (T, ...); None if the label is one for the whole sequence."""
    if isinstance(label, str) or not hasattr(label, "__len__"):
        return None
    array = as_numpy(label)
    # A row of yes-or-no labels has one dimension too; only with two is it known that there is one for each step.
    if array.ndim == 0 or len(array) != length or (kind == "labels" and array.ndim == 1):
        return None
    return array


def _label_text(label: Any, inputs: ReportInputs) -> str:
    if isinstance(label, str):
        return label
    if hasattr(label, "__len__") and np.ndim(label):
        values = as_numpy(label).reshape(-1)
        if inputs.outputs_kind == "labels":
            return _those_set(values > 0, output_names(inputs, len(values)))
        return _numbers(values)
    number = getattr(label, "item", lambda: label)()
    if isinstance(number, float):
        return f"{number:.4g}"
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(inputs.classes or ()):
        return (inputs.classes or [])[number]
    return str(number)


def _those_set(is_set: Sequence[bool] | Array, names: Sequence[str]) -> str:
    return ", ".join(name for name, own in zip(names, is_set, strict=True) if own) or "none"


def _numbers(row: Float[Array, "..."]) -> str:
    values = np.asarray(row, dtype=np.float64).reshape(-1)
    return ", ".join([*map(significant, values[:VALUES_NAMED]), *["…"][: len(values) > VALUES_NAMED]])


def groups_of(inputs: ReportInputs, number: int) -> list[str | None]:
    """The group of each sequence: its class, or how the output that the mode moves most comes out.

    Of yes-or-no outputs that is yes or no; of numbers, whether it is above or below the median. Without a readout it is
    the label of the sequence.
    """
    outputs, movers = inputs.last_outputs, inputs.movers
    if inputs.outputs_kind == "class" or outputs is None:
        labels = label_texts(inputs)
        return [said or label for said, label in zip(predictions(inputs) or labels, labels, strict=True)]
    place = 0
    if movers is not None and movers.outputs is not None and number in movers.modes:
        place = int(np.abs(movers.outputs[movers.modes.index(number)]).argmax())
    name, own = output_names(inputs)[place], outputs.reshape(len(outputs), -1)[:, place]
    if inputs.outputs_kind == "labels":
        return [f"{name}: {answer}" for answer in np.where(own > inputs.threshold, "yes", "no").tolist()]
    return [f"{name} {side} its median" for side in np.where(own > np.median(own), "above", "below").tolist()]
