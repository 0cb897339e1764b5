"""The weight of a linear readout."""

from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.checks import require_real
from kann.errors import KannError
from kann.typing import Array, Float


def linear_weight(readout: Any, width: int, *, name: str = "readout") -> Float[Array, "o d"] | None:
    """The weight of a linear readout, a module or an array, if there is one; refuse one that is not ``width`` wide.

    >>> linear_weight([[1, 2, 3]], 3)
    array([[1., 2., 3.]])
    """
    if readout is None:
        return None
    weight = as_numpy(getattr(readout, "weight", readout))
    require_real(weight, what="readout weights")
    if weight.ndim != 2 or weight.shape[1] != width:
        raise KannError(
            f"{name} has a weight of shape {weight.shape}; pass a linear one of (outputs, {width}), or None"
        )
    return weight.astype(np.float64)
