"""What the sequences shown are grouped by, so that the course of a mode can be drawn for each group."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kann._format import significant
from kann.analysis.decisions import decide
from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.reporting.inputs import ReportInputs, read_from_ends
from kann.typing import Array, Float

VALUES_NAMED = 4
"""Of a network that predicts numbers, so many of them are written out."""


def last_outputs(inputs: ReportInputs) -> Float[Array, "s ..."] | None:
    """What the network gives out at the end of each sequence, itself or by the readout of its last state."""
    return read_from_last(inputs) if inputs.network_outputs is None else inputs.network_outputs


def readout_is_all(inputs: ReportInputs) -> bool:
    """Whether the readout of the last state decides as the network; not if its head reads other states as well."""
    own, read = inputs.network_outputs, read_from_last(inputs)
    if own is None or read is None or own.shape != read.shape:
        return True
    if inputs.outputs_kind == "class":
        return bool((decide(own, threshold=inputs.threshold) == decide(read, threshold=inputs.threshold)).all())
    return bool(np.allclose(own, read, rtol=0, atol=0.01 * own.std()))


def read_from_last(inputs: ReportInputs) -> Float[Array, "s ..."] | None:
    """What the readout makes of the last state of each sequence; None without a readout."""
    return None if inputs.readout is None else read_from_ends(inputs.readout, inputs.states)


def predictions(inputs: ReportInputs, outputs: Float[Array, "s ..."] | None) -> list[str] | None:
    """What the network says at the end of each sequence, in words."""
    if outputs is None:
        return None
    if inputs.outputs_kind == "values":
        return [_numbers(row) for row in outputs]
    if inputs.outputs_kind == "labels":
        names = output_names(inputs, outputs.reshape(len(outputs), -1).shape[1])
        return [_those_set(row.reshape(-1) > inputs.threshold, names) for row in outputs]
    classes = decide(outputs, threshold=inputs.threshold)
    if inputs.classes is None:
        return [str(value) for value in classes.tolist()]
    names, largest = list(inputs.classes), classes.max(initial=0)
    if largest >= len(names):
        raise KannError(f"the readout gives class {largest} and classes= has {len(names)} names; pass one for each")
    return [names[value] for value in classes.tolist()]


def output_names(inputs: ReportInputs, count: int) -> list[str]:
    """The names of the outputs; of a single output with two classes, that of the class which it speaks for."""
    names = list(inputs.classes or ())
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
    found: list[str | None] = []
    for own, length in zip(inputs.labels, inputs.states.lengths.tolist(), strict=True):
        several = as_steps(own, length, kind=inputs.outputs_kind)
        if several is not None:
            own = several[-1]
        found.append(_label_text(own, inputs))
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
        return list(inputs.classes or ())[number]
    return str(number)


def _those_set(is_set: Sequence[bool] | Array, names: Sequence[str]) -> str:
    return ", ".join(name for name, own in zip(names, is_set, strict=True) if own) or "none"


def _numbers(row: Float[Array, "..."]) -> str:
    values = np.asarray(row, dtype=np.float64).reshape(-1)
    return ", ".join([*map(significant, values[:VALUES_NAMED]), *["…"][: len(values) > VALUES_NAMED]])


def groups_of(inputs: ReportInputs, outputs: Float[Array, "s ..."] | None, number: int) -> list[str | None]:
    """The group of each sequence: its class, or how the output that the mode moves most comes out.

    Of yes-or-no outputs that is yes or no; of numbers, whether it is above or below the median. Without a readout it is
    the label of the sequence.
    """
    if inputs.outputs_kind == "class" or outputs is None:
        labels = label_texts(inputs)
        return [said or label for said, label in zip(predictions(inputs, outputs) or labels, labels, strict=True)]
    table = outputs.reshape(len(outputs), -1)
    place = _output_moved_most(inputs, number)
    name, own = output_names(inputs, table.shape[1])[place], table[:, place]
    if inputs.outputs_kind == "labels":
        return [f"{name}: {answer}" for answer in np.where(own > inputs.threshold, "yes", "no").tolist()]
    return [f"{name} {side} its median" for side in np.where(own > np.median(own), "above", "below").tolist()]


def _output_moved_most(inputs: ReportInputs, number: int) -> int:
    """The place of the output that one standard deviation of the mode moves most; the first if that is not known."""
    movers = inputs.movers
    if movers is None or movers.outputs is None or number not in movers.modes:
        return 0
    return int(np.abs(movers.outputs[movers.modes.index(number)]).argmax())
