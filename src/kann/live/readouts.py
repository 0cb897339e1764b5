"""The linear readout that decides by a network's state."""

import contextlib
from typing import Any

import numpy as np
from torch import nn

from kann.analysis.readout_weights import linear_weight
from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.recording.recurrent import readout_of
from kann.typing import Array, Float


def readout_weight(
    model: nn.Module, readout: Any, *, layer: str | None, state: str, width: int
) -> Float[Array, "o d"] | None:
    """The weight of the readout, as wide as the state; None if it was not passed and cannot be found."""
    if readout is None:
        with contextlib.suppress(KannError):
            readout = readout_of(model, layer)
        if not isinstance(readout, nn.Linear) or "h" not in state:
            return None
    weight = as_numpy(getattr(readout, "weight", readout))
    if weight.ndim == 2 and state == "hc":  # a readout sees h alone, and nothing of c
        weight = np.pad(weight, ((0, 0), (0, max(0, width - weight.shape[1]))))
    return linear_weight(weight, width)
