"""What a network decides from a state: its readout, and the class that wins."""

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kann.analysis.modes import chosen_modes
from kann.backends.arrays import as_numpy
from kann.checks import call_of_user, require_all_finite, require_number, require_real, short_repr
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.typing import Array, Complex, Float, Int, Shaped


def linear_weight(readout: Any, width: int, *, name: str = "readout") -> Float[Array, "o d"] | None:
    """The weight of a linear readout, a module or an array, if there is one; refuse one that is not ``width`` wide.

    >>> linear_weight([[1, 2, 3]], 3)
    array([[1., 2., 3.]])
    """
    return None if readout is None else require_linear(readout, width, name=name)


def require_linear(readout: Any, width: int, *, name: str = "the readout") -> Float[Array, "o d"]:
    """The weight of a linear readout, a module or an array, for states of ``width`` units; raise for any other."""
    weight = as_numpy(getattr(readout, "weight", readout))
    require_real(weight, what="readout weights")
    if weight.ndim != 2 or weight.shape[1] != width:
        raise KannError(f"{name} has a weight of shape {weight.shape}; pass a linear one of (outputs, {width})")
    return weight.astype(np.float64)


Readout = Callable[[Any], Any]
"""From states (n, d) to outputs (n,) or (n, o): a function of a numpy array, or a torch module."""

OUTPUTS = ("class", "labels", "values")
"""What outputs of a network can be: scores of classes, several yes-or-no answers, or numbers that are predicted."""

_MODULE_LOCK = threading.Lock()
"""Held while a module is in evaluation mode: of Dask's several threads, one must not end it for another."""


def decision_map(
    koopman: Koopman, mode: int | Mode, readout: Readout, grid: Complex[Array, "..."]
) -> Int[Array, "..."]:
    """Which output wins for a state that holds one mode alone, Re(z u_j), for every z of ``grid``.

    u_j is the row of U = V⁻¹, since z u_j + z̄ ū_j has no coordinate along any other mode. Re(z u_j) is half of that:
    its coordinate along a complex mode is z/2, and Re z along a real one.

    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> x = np.linspace(-1, 1, 3)
    >>> grid = x[None, :] + 1j * x[:, None]
    >>> kann.decision_map(koopman, 0, lambda h: h[:, :1], grid)  # the output is whether the slow unit is positive
    array([[0, 0, 1],
           [0, 0, 1],
           [0, 0, 1]])
    """
    chosen = chosen_modes(koopman, mode)
    if len(chosen) != 1:
        raise KannError(f"{len(chosen)} modes were passed; a decision map is of one mode; pass one")
    grid = as_numpy(grid)
    if grid.dtype.kind not in "fciu":
        raise KannError(f"grid is {grid.dtype}; pass complex numbers, such as x + 1j * y")
    require_all_finite(grid, what="the grid's numbers", remedy="pass finite ones")
    states = np.real(grid.reshape(-1, 1) * koopman.left[chosen[0].indices[0]])
    return decide(read_out(readout, koopman.decode(states))).reshape(grid.shape)


def read_out(readout: Readout, h: Float[Array, "n d"]) -> Float[Array, "n ..."]:
    """Outputs of a readout: finite real numbers, one row for each state; anything else is refused.

    A torch module gets a tensor of its own type and device, anything else a numpy array.
    """
    if not callable(readout):
        raise KannError(f"readout={short_repr(readout)} cannot be called; pass a function of states or a torch module")
    call = partial(_call_module, readout) if hasattr(readout, "parameters") else readout
    remedy = f"pass one that takes (n, {h.shape[1]}) and returns (n,) or (n, outputs)"
    return _checked_outputs(
        call_of_user(call, h, what="the readout", on=f"states of shape {h.shape}", remedy=remedy), len(h)
    )


def _checked_outputs(outputs: Any, n: int) -> Float[Array, "n ..."]:
    """What a readout returned for n states, if it can be what it should be."""
    if isinstance(outputs, tuple | dict):
        raise KannError(
            f"the readout returned a {type(outputs).__name__}; return one array with {n} rows, such as its logits"
        )
    outputs = as_numpy(outputs)
    require_real(outputs, what="the readout's outputs")
    if outputs.ndim == 0 or len(outputs) != n or 0 in outputs.shape[1:]:
        raise KannError(f"the readout returned shape {outputs.shape} for {n} states; return ({n},) or ({n}, outputs)")
    require_all_finite(outputs, what="the readout's outputs", remedy="find out for which state it fails")
    if outputs.dtype.kind != "f":  # classes as whole numbers or truth values
        return outputs.astype(np.float64)
    return outputs


def _call_module(readout: Readout, h: Float[Array, "n d"]) -> Any:
    """Outputs of a torch module in evaluation mode, in which it was or not."""
    module: Any = readout
    own = next(iter(module.parameters()), None)
    if own is None:
        raise KannError("the readout is a torch module without parameters, so its type is unknown; pass a function")
    with _MODULE_LOCK:
        training = [part for part in module.modules() if part.training]
        try:
            module.eval()  # dropout would make answers differ from call to call
            return module(own.detach().new_tensor(h))
        finally:
            for part in training:
                part.training = True


def decide(outputs: Shaped[Array, "n ..."], *, threshold: float = 0.0) -> Int[Array, " n"]:
    """The class of each row: the largest of several outputs, or whether a single one exceeds the threshold."""
    threshold = require_number(threshold, "threshold", remedy="pass the value that an output must exceed")
    outputs = _in_columns(outputs)
    return (outputs[:, 0] > threshold).astype(np.int64) if outputs.shape[1] == 1 else outputs.argmax(axis=1)


def answers(outputs: Shaped[Array, "n ..."], *, kind: str, threshold: float) -> Shaped[Array, "n ..."]:
    """What a network decides for each row: its class, or if ``kind`` is ``"labels"`` which outputs say yes."""
    return _in_columns(outputs) > threshold if kind == "labels" else decide(outputs, threshold=threshold)


def _in_columns(outputs: Shaped[Array, "n ..."]) -> Shaped[Array, "n o"]:
    """One row for each state, also where the outputs of a state are no vector."""
    return outputs.reshape(len(outputs), math.prod(outputs.shape[1:]))
