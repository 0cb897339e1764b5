"""What a network decides from a state: its readout, and the class that wins."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kann.analysis.modes import chosen_modes
from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.typing import Array, Complex, Float, Int, Shaped

Readout = Callable[[Any], Any]
"""From states (n, d) to outputs (n,) or (n, o): a function of a numpy array, or a torch module."""


def decision_map(
    koopman: Koopman, mode: int | Mode, readout: Readout, grid: Complex[Array, "..."]
) -> Int[Array, "..."]:
    """Which output wins for a state that holds one mode alone, Re(z u_j), for every z of ``grid``.

    u_j is the row of U = V⁻¹, since z u_j + z̄ ū_j has no coordinate along any other mode. Re(z u_j) is half of that:
    its coordinate along a complex mode is z/2, and Re z along a real one.
    """
    (chosen,) = chosen_modes(koopman, mode)
    grid = np.asarray(grid)
    states = np.real(grid.reshape(-1, 1) * koopman.left[chosen.indices[0]])
    return decide(read_out(readout, koopman.decode(states))).reshape(grid.shape)


def read_out(readout: Readout, h: Float[Array, "n d"]) -> Float[Array, "n ..."]:
    """Outputs of a readout. A torch module gets a tensor of its own type and device, anything else a numpy array."""
    parameters = getattr(readout, "parameters", None)
    if parameters is None:
        return as_numpy(readout(h))
    own = next(iter(parameters()), None)
    if own is None:
        raise KannError("the readout is a torch module without parameters, so its type is unknown; pass a function")
    module: Any = readout
    training = [part for part in module.modules() if part.training]
    try:
        module.eval()  # dropout would make answers differ from call to call
        return as_numpy(module(own.detach().new_tensor(h)))
    finally:
        for part in training:
            part.training = True


def decide(outputs: Shaped[Array, "n ..."], *, threshold: float = 0.0) -> Int[Array, " n"]:
    """The class of each row: the largest of several outputs, or whether a single one exceeds the threshold."""
    outputs = outputs.reshape(len(outputs), -1)
    if outputs.shape[1] == 1:
        return (outputs[:, 0] > threshold).astype(np.int64)
    return outputs.argmax(axis=1)
