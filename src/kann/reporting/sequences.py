"""The sequences of a report: words, label, prediction, group, and tables with a row for every state."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kann._format import significant
from kann.analysis.decisions import decide, read_out
from kann.analysis.modes import project
from kann.backends.arrays import as_numpy
from kann.data.reduction import map_rows
from kann.errors import KannError
from kann.reporting.inputs import ReportInputs
from kann.reporting.offline import Packed, pack
from kann.typing import AnyArray, Array, Float

MAX_EMBEDDED_STATES = 3000
"""States in the picture of principal components: more would only cover each other."""


def embedding(inputs: ReportInputs) -> dict[str, Any]:
    """Return states and fixed points in the plane of the two leading principal components of the states."""
    states = inputs.states
    picked = np.unique(np.linspace(0, len(states.values) - 1, MAX_EMBEDDED_STATES).astype(int))
    h = np.concatenate([as_numpy(states.values[int(i) : int(i) + 1]) for i in picked]).astype(np.float64)
    mean, axes = h.mean(axis=0), np.zeros((2, h.shape[1]))
    components = np.linalg.svd(h - mean, full_matrices=False)[2][:2]
    axes[: len(components)] = components  # a network of a single unit has one component only; the other axis stays 0
    owner = np.searchsorted(states.starts, picked, side="right") - 1
    points = None
    if inputs.fixed_points is not None:
        # Fixed points of an LSTM hold its cell state too, behind the hidden state.
        found = np.asarray(inputs.fixed_points.points)[:, : inputs.koopman.dim]
        points = {"at": ((found - mean) @ axes.T).round(4).tolist(), "kinds": kinds_of_points(inputs.fixed_points)}
    return {
        "at": ((h - mean) @ axes.T).round(4).tolist(),
        "sequence": owner.tolist(),
        "step": (picked - states.starts[owner]).tolist(),
        "points": points,
    }


def kinds_of_points(fixed_points: Any) -> list[str]:
    """Classify each point as "stable", "saddle" or "unstable" if it is fixed, else as "slow".

    A saddle draws states in along some directions and drives them away along others; an unstable point drives them away
    along all.
    """
    kinds = list(map(str, fixed_points.kinds))
    stable, eigenvalues = getattr(fixed_points, "stable", None), getattr(fixed_points, "eigenvalues", None)
    if stable is None or eigenvalues is None:
        return kinds
    for i, moduli in enumerate(map(np.abs, eigenvalues)):
        if kinds[i] == "fixed":
            drives_away = moduli.size and (moduli > 1).all()
            kinds[i] = "stable" if stable[i] else "unstable" if drives_away else "saddle"
    return kinds


OUTPUTS_LISTED = 50
"""Outputs that a reader can choose from. Of more, those that win are listed first."""

OUTPUTS_DRAWN = 12
"""Lines of outputs in a chart: more cannot be told apart."""

CHANNELS_DRAWN = 12
"""Channels of a signal in a chart. More would not fit on a screen."""


def sequence_rows(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Return length, label, prediction and words of each sequence, and labels of its steps if they are numbers."""
    states = inputs.states
    missing = [None] * len(states)
    said, words, labels = predictions(inputs) or missing, inputs.tokens or missing, label_texts(inputs)
    rows = []
    for i, (start, length) in enumerate(zip(states.starts.tolist(), states.lengths.tolist(), strict=True)):
        steps = as_steps(inputs.labels[i], length, kind=inputs.outputs_kind) if inputs.labels else None
        if steps is not None and (steps.size != length or steps.dtype.kind not in "iufb"):
            steps = None
        row = {"length": length, "start": start, "label": labels[i], "prediction": said[i], "tokens": words[i]}
        rows.append(row | {"at_steps": None if steps is None else steps.reshape(-1).astype(float).tolist()})
    return rows


def sequence_tables(inputs: ReportInputs) -> dict[str, Packed]:
    """Return all tables with a row for each state, by name; those that the user's arguments allow."""
    tables = {"coordinate": mode_coordinates(inputs)}
    if inputs.readout is not None:
        tables["output"] = pack(_outputs(inputs), bits=16)
    if inputs.signals is not None:
        tables["signal"] = pack(np.concatenate(inputs.signals)[:, :CHANNELS_DRAWN], bits=16)
    return tables


def mode_coordinates(inputs: ReportInputs) -> Packed:
    """Return the coordinate of each mode at each state: real parts of all modes, then imaginary parts of all.

    Magnitudes and contributions to any output follow from it on the page.
    """
    firsts = [inputs.koopman.modes[number].indices[0] for number in inputs.modes_shown]

    def parts(h: AnyArray) -> Float[Array, "n k"]:
        own = as_numpy(project(inputs.koopman, h))[:, firsts]
        return np.concatenate([np.real(own), np.imag(own)], axis=1)

    width = 2 * len(firsts)
    return pack(as_numpy(map_rows(inputs.states.values, parts, width=width, dtype=np.float64)), bits=12)


def output_gains(inputs: ReportInputs) -> dict[str, Any] | None:
    """Return the factor from the coordinate of each mode to its contribution to each output; None if unknown.

    The contribution is the real part of the product. Of classes, the mean over all is taken off: what all outputs have
    in common has no effect on the decision. ``decided`` is the class that wins at the end of each sequence.
    """
    weight, outputs = inputs.readout_weight, inputs.last_outputs
    if weight is None or outputs is None:
        return None
    if not np.isfinite(weight).all():
        raise KannError("the weights of the readout hold NaN or Inf; pass a readout with finite weights")
    names, decided = output_names(inputs, len(weight)), None
    if inputs.outputs_kind == "class" and len(weight) > 1:
        weight, decided = weight - weight.mean(axis=0), decide(outputs)
    winners = np.unique(decided).tolist() if decided is not None and len(weight) > OUTPUTS_LISTED else []
    listed = sorted(list(dict.fromkeys([*winners, *range(len(weight))]))[:OUTPUTS_LISTED])
    place_of = {output: place for place, output in enumerate(listed)}
    koopman = inputs.koopman
    effects = koopman.left @ (koopman.state_vectors @ weight[listed].T)
    gains = []
    for number in inputs.modes_shown:
        indices = koopman.modes[number].indices
        own = len(indices) * effects[indices[0]]  # a pair contributes twice the real part of either
        gains.append([[value.real, -value.imag] for value in own.tolist()])
    places = None if decided is None else [place_of.get(output, 0) for output in decided.tolist()]
    return {"names": [names[output] for output in listed], "gains": gains, "decided": places}


def _outputs(inputs: ReportInputs) -> Float[Array, "n k"]:
    """Return the outputs of the network after each step, only the first if there are many."""
    states, parts = inputs.states, []
    assert inputs.readout is not None  # noqa: S101 - only asked for where there is one
    for start, stop in states.ranges():
        rows = read_out(inputs.readout, as_numpy(states.values[start:stop]))
        parts.append(rows.reshape(len(rows), -1)[:, :OUTPUTS_DRAWN].astype(np.float64))
    return np.concatenate(parts)


# Labels, predictions and groups in words

VALUES_NAMED = 4
"""Number of predicted values that are written out."""


def predictions(inputs: ReportInputs) -> list[str] | None:
    """Write the network's answer at the end of each sequence."""
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
    """Return the names of ``count`` outputs, those of the network by default.

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
    """Return the label of each sequence, in words; of labels at every step, the last."""
    if inputs.labels is None:
        return [None] * len(inputs.states)
    kind, found = inputs.outputs_kind, []
    for own, length in zip(inputs.labels, inputs.states.lengths.tolist(), strict=True):
        steps = as_steps(own, length, kind=kind)
        found.append(_label_text(own if steps is None else steps[-1], inputs))
    return found


def as_steps(label: Any, length: int, *, kind: str) -> Array | None:
    """Return the labels of every step of a sequence, (T,) or (T, ...); None if one label is for all steps."""
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
    """Return the group of each sequence: its class, or how the output that the mode moves most comes out.

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
