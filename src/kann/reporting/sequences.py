"""What a report shows of each sequence: its words and class, and tables with a number for every state and mode."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kann.analysis.contributions import contributions
from kann.analysis.decisions import Readout, decide, read_out
from kann.analysis.modes import magnitude, reconstruct
from kann.backends.arrays import as_numpy
from kann.checks import call_of_user, require_real
from kann.data.reduction import map_rows
from kann.data.states import States
from kann.errors import KannError
from kann.reporting.inputs import ReportInputs
from kann.reporting.packing import Packed, pack
from kann.typing import AnyArray, Array, Float, Int

MAX_EMBEDDED_STATES = 3000
"""States in the picture of principal components: more would only cover each other."""


def sequence_rows(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Length, label, prediction, and the words of each sequence."""
    states = inputs.states
    missing = [None] * len(states)
    labels, tokens = inputs.labels or missing, inputs.tokens or missing
    predictions = _predictions(inputs) or missing
    columns = zip(states.starts.tolist(), states.lengths.tolist(), labels, predictions, tokens, strict=True)
    return [
        {"length": length, "start": start, "label": label, "prediction": prediction, "tokens": words}
        for start, length, label, prediction, words in columns
    ]


def _predictions(inputs: ReportInputs) -> list[str] | None:
    """The name of the class that the network decides for at the end of each sequence; its number if it has no name."""
    if inputs.readout is None:
        return None
    classes = _predicted_classes(inputs.readout, inputs.states)
    if inputs.classes is None:
        return [str(value) for value in classes.tolist()]
    names, largest = list(inputs.classes), classes.max(initial=0)
    if largest >= len(names):
        raise KannError(f"the readout gives class {largest} and classes= has {len(names)} names; pass one for each")
    return [names[value] for value in classes.tolist()]


def _predicted_classes(readout: Readout, states: States) -> Int[Array, " s"]:
    """The number of the class of each sequence, read out from its last state."""
    ends = states.starts + states.lengths - 1
    return decide(read_out(readout, as_numpy(states.values[ends])))


def sequence_tables(inputs: ReportInputs) -> dict[str, Packed]:
    """All tables with a row for each state, by name; those that the user's arguments allow."""
    tables = {"magnitude": mode_magnitudes(inputs)}
    if inputs.readout is not None and inputs.readout_weight is not None:
        tables["contribution"] = mode_contributions(inputs, inputs.readout)
    if inputs.signals is not None:
        tables["signal"] = pack(np.concatenate(inputs.signals)[:, :1], bits=16)
        if inputs.decode is not None:
            tables |= decoded_signals(inputs, inputs.decode)
    return tables


def mode_magnitudes(inputs: ReportInputs) -> Packed:
    """The magnitude |ĥ| of each mode at each state; of a conjugate pair, that of either eigenvector."""
    firsts = [inputs.koopman.modes[number].indices[0] for number in inputs.modes_shown]

    def shown(h: AnyArray) -> Float[Array, "n k"]:
        return as_numpy(magnitude(inputs.koopman, h))[:, firsts]

    return pack(as_numpy(map_rows(inputs.states.values, shown, width=len(firsts), dtype=np.float64)))


def mode_contributions(inputs: ReportInputs, readout: Readout) -> Packed:
    """The signed contribution of each mode to the output of a linear readout at each state.

    With several outputs, it is the contribution to the one that wins at the end of the sequence, less the mean over all
    outputs: what all outputs have in common decides nothing.
    """
    weight = as_numpy(inputs.readout_weight).astype(np.float64)
    if not np.isfinite(weight).all():
        raise KannError("the weights of the readout hold NaN or Inf; pass a readout with finite weights")
    outputs = np.zeros(len(inputs.states), dtype=int)
    if len(weight) > 1:
        weight = weight - weight.mean(axis=0)
        outputs = _predicted_classes(readout, inputs.states)
    states, shown = inputs.states, list(inputs.modes_shown)
    output_of_row = np.repeat(outputs, states.lengths)
    table = np.empty((len(output_of_row), len(shown)))
    # Block by block and output by output: all modes and all outputs of all states might not fit into memory.
    for start, stop in states.ranges():
        h, rows = as_numpy(states.values[start:stop]), np.arange(start, stop)
        for output in np.unique(output_of_row[rows]).tolist():
            own = output_of_row[rows] == output
            table[rows[own]] = contributions(inputs.koopman, h[own], weight[[output]]).modes[:, shown, 0]
    return pack(table, bits=16)


def decoded_signals(inputs: ReportInputs, decode: Callable[[Any], Any]) -> dict[str, Packed]:
    """What the user's decoder makes of the states, and of each mode alone; the first channel of each."""
    whole, by_mode = [], []
    for h in map(as_numpy, inputs.states):
        parts = [reconstruct(inputs.koopman, h, number) for number in inputs.modes_shown]
        whole.append(_first_channel(decode, h))
        by_mode.append(np.stack([_first_channel(decode, part) for part in parts], axis=1))
    return {
        "decoded": pack(np.concatenate(whole)[:, None], bits=16),
        "decoded_modes": pack(np.concatenate(by_mode), bits=16),
    }


def _first_channel(decode: Callable[[Any], Any], h: Float[Array, "t d"]) -> Float[Array, " t"]:
    """The first channel of what the user's decoder returns for the states of a sequence."""
    length, remedy = len(h), "return (T,) or (T, channels)"
    values = as_numpy(call_of_user(decode, h, what="decode=", on=f"states of shape {h.shape}", remedy=remedy))
    require_real(values, what="what decode= gave")
    if values.shape[:1] != (length,) or 0 in values.shape:
        raise KannError(f"decode= gave shape {values.shape} for {length} states; {remedy}")
    if not np.isfinite(values).all():
        raise KannError("decode= gave NaN or Inf; it must return finite numbers")
    return values.reshape(length, -1)[:, 0].astype(np.float64)


def embedding(inputs: ReportInputs) -> dict[str, Any]:
    """States and fixed points in the plane of the two leading principal components of the states."""
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
        points = {
            "at": ((found - mean) @ axes.T).round(4).tolist(),
            "kinds": list(map(str, inputs.fixed_points.kinds)),
        }
    return {
        "at": ((h - mean) @ axes.T).round(4).tolist(),
        "sequence": owner.tolist(),
        "step": (picked - states.starts[owner]).tolist(),
        "points": points,
    }
