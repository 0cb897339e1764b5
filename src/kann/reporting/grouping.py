"""What the sequences shown are grouped by, so that the course of a mode can be drawn for each group."""

from typing import Any

import numpy as np

from kann.reporting.answers import output_names
from kann.reporting.inputs import ReportInputs
from kann.typing import Array, Float


def groups_of(
    inputs: ReportInputs, rows: list[dict[str, Any]], outputs: Float[Array, "s ..."] | None, number: int
) -> list[str | None]:
    """The group of each sequence: its class, or how the output that the mode moves most comes out.

    Of yes-or-no outputs that is yes or no; of numbers, whether it is above or below the median. Without a readout it is
    the label of the sequence.
    """
    if inputs.outputs_kind == "class" or outputs is None:
        return [row["prediction"] or row["label"] for row in rows]
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
