"""Readouts: the outputs of a state, the class that wins, and what each mode contributes to them."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kann import _display
from kann.analysis.modes import chosen_modes
from kann.backends.arrays import as_numpy
from kann.checks import call_of_user, require_all_finite, require_instance, require_number, require_real, short_repr
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.typing import AnyArray, Array, Complex, Float, Int, Shaped


def linear_weight(readout: Any, width: int, *, name: str = "readout") -> Float[Array, "o d"] | None:
    """Return the weight of a linear readout, a module or an array, or None; raise if it is not ``width`` wide.

    >>> linear_weight([[1, 2, 3]], 3)
    array([[1., 2., 3.]])
    """
    return None if readout is None else require_linear(readout, width, name=name)


def require_linear(readout: Any, width: int, *, name: str = "the readout") -> Float[Array, "o d"]:
    """Return the weight of a linear readout, a module or an array, for states of ``width`` units; raise for others."""
    weight = as_numpy(getattr(readout, "weight", readout))
    require_real(weight, what="readout weights")
    if weight.ndim != 2 or weight.shape[1] != width:
        raise KannError(f"{name} has a weight of shape {weight.shape}; pass a linear one of (outputs, {width})")
    return weight.astype(np.float64)


Readout = Callable[[Any], Any]
"""From states (n, d) to outputs (n,) or (n, o): a function of a numpy array, or a torch module."""

OUTPUTS = ("class", "labels", "values")
"""Kinds of outputs: scores of classes, several yes-or-no answers, or numbers that are predicted."""

_MODULE_LOCK = threading.Lock()
"""Held while a module is in evaluation mode: of Dask's several threads, one must not end it for another."""


def decision_map(
    koopman: Koopman, mode: int | Mode, readout: Readout, grid: Complex[Array, "..."]
) -> Int[Array, "..."]:
    """Find the output that wins for a state made of one mode, Re(z u_j), for every z of ``grid``.

    u_j is the row of U = V⁻¹, since z u_j + z̄ ū_j has no coordinate along any other mode. Re(z u_j) is half of that:
    its coordinate along a complex mode is z/2, and Re z along a real one.

    Parameters
    ----------
    koopman
        The operator.
    mode
        One mode of ``koopman.modes``, or its number.
    readout
        From states (n, d) to outputs (n,) or (n, o): a function of a numpy array, or a torch module.
    grid
        Complex numbers z, of any shape.

    Returns
    -------
    array
        For each z the number of the largest output; for a single output 1 if it is positive, else 0.

    Examples
    --------
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
    """Return the outputs of a readout: finite real numbers, one row for each state; raise for anything else.

    A torch module gets a tensor of its type and device, anything else a numpy array.
    """
    if not callable(readout):
        raise KannError(f"readout={short_repr(readout)} cannot be called; pass a function of states or a torch module")
    call = partial(_call_module, readout) if hasattr(readout, "parameters") else readout
    remedy = f"pass one that takes (n, {h.shape[1]}) and returns (n,) or (n, outputs)"
    return _checked_outputs(
        call_of_user(call, h, what="the readout", on=f"states of shape {h.shape}", remedy=remedy), len(h)
    )


def _checked_outputs(outputs: Any, n: int) -> Float[Array, "n ..."]:
    """Return what a readout returned for n states as an array; raise unless it has one row of numbers for each."""
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
    """Call a torch module in evaluation mode, and restore the mode that it was in."""
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
    """Choose the class of each row: the largest of several outputs, or whether a single one exceeds the threshold."""
    threshold = require_number(threshold, "threshold", remedy="pass the value that an output must exceed")
    outputs = _in_columns(outputs)
    return (outputs[:, 0] > threshold).astype(np.int64) if outputs.shape[1] == 1 else outputs.argmax(axis=1)


def answers(outputs: Shaped[Array, "n ..."], *, kind: str, threshold: float) -> Shaped[Array, "n ..."]:
    """Return the decision for each row: its class, or which outputs exceed the threshold if ``kind`` is "labels"."""
    return _in_columns(outputs) > threshold if kind == "labels" else decide(outputs, threshold=threshold)


def _in_columns(outputs: Shaped[Array, "n ..."]) -> Shaped[Array, "n o"]:
    """Reshape outputs to one row for each state."""
    return outputs.reshape(len(outputs), math.prod(outputs.shape[1:]))


# What each mode contributes

ROWS_SHOWN, OUTPUTS_SHOWN = 8, 6
"""How many modes and outputs a notebook shows."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Contributions:
    """A linear readout split into signed contributions that sum to it.

    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> parts = kann.contributions(koopman, states, np.array([[1.0, -2.0]]), np.array([0.5]))
    >>> parts
    Contributions(2 modes to 1 outputs, states (20, 12))
    >>> bool(np.allclose(parts.total, states @ np.array([[1.0, -2.0]]).T + 0.5))
    True
    """

    modes: Float[Array, "... m o"]
    """Contribution of each mode to each output."""
    rest: Float[Array, "... o"]
    """Contribution of the state outside all modes: outside the operator's basis, or, for a defective operator, outside
    the span of its eigenvectors."""
    bias: Float[Array, " o"]
    """Part that does not depend on the state: the readout's bias and, for a PCA basis, the readout of the mean."""

    def __repr__(self) -> str:
        *states, modes, outputs = self.modes.shape
        return f"Contributions({modes} modes to {outputs} outputs, states {tuple(states)})"

    def _repr_html_(self) -> str:
        """Show the modes that contribute most, by mean size; then what is not in any mode."""
        *_, modes, outputs = self.modes.shape
        sizes = np.abs(self.modes).reshape(-1, modes, outputs).mean(axis=0)
        means = self.modes.reshape(-1, modes, outputs).mean(axis=0)
        rows = []
        for mode in np.argsort(-sizes.max(axis=1), kind="stable")[:ROWS_SHOWN].tolist():
            cells = zip(means[mode, :OUTPUTS_SHOWN], sizes[mode, :OUTPUTS_SHOWN], strict=True)
            rows.append([f"mode {mode}", *(f"{mean:+.3g} ({size:.3g})" for mean, size in cells)])
        rest = self.rest.reshape(-1, outputs)[:, :OUTPUTS_SHOWN]
        cells = zip(rest.mean(axis=0), np.abs(rest).mean(axis=0), strict=True)
        rows.append(["outside the basis", *(f"{mean:+.3g} ({size:.3g})" for mean, size in cells)])
        rows.append(["bias", *(f"{value:+.3g}" for value in np.broadcast_to(self.bias, (outputs,))[:OUTPUTS_SHOWN])])
        head = ["mean (mean size)", *(f"output {i}" for i in range(min(outputs, OUTPUTS_SHOWN)))]
        return _display.table(repr(self), head, rows)

    @property
    def total(self) -> Float[Array, "... o"]:
        """The readout itself."""
        return self.modes.sum(axis=-2) + self.rest + self.bias


def contributions(koopman: Koopman, h: AnyArray, weight: AnyArray, bias: AnyArray | None = None) -> Contributions:
    """Split a linear readout ``h @ weight.T + bias`` into signed contributions of the modes.

    Unlike a magnitude, a contribution shows which way a mode pushes an output. The contributions of all modes, of the
    part of the state in no mode, and of the bias sum to the readout.

    Parameters
    ----------
    koopman
        The operator.
    h
        States (..., d).
    weight
        The readout's weight (o, d), as in `torch.nn.Linear`, or the module itself.
    bias
        Its bias (o,), or one number for all outputs; none by default.

    Returns
    -------
    Contributions
        ``modes`` (..., m, o), ``rest`` (..., o) and ``bias`` (o,), whose sum is ``total``.

    Examples
    --------
    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> parts = kann.contributions(koopman, states[0, 0], np.array([[1.0, 0.0]]))  # reads the slow unit alone
    >>> parts.modes.round(6)[1]  # the fast mode has no part in it
    array([0.])
    >>> bool(np.allclose(parts.total, states[0, 0, 0]))
    True
    """
    require_instance(koopman, Koopman, "koopman")
    h, weight = as_numpy(h), require_linear(weight, koopman.dim)
    z = koopman.encode(h)
    coordinates, weights = z @ koopman.right, koopman.left @ (koopman.state_vectors @ weight.T)  # (..., r) and (r, o)
    per_mode = []
    for mode in koopman.modes:
        indices = list(mode.indices)
        per_mode.append((coordinates[..., indices] @ weights[indices]).real)
    constant = koopman.mean @ weight.T
    if bias is not None:
        bias = as_numpy(bias)
        require_real(bias, what="the readout's biases")
        if bias.shape not in ((), (1,), (len(weight),)):
            raise KannError(f"bias of shape {bias.shape} does not fit {len(weight)} outputs; pass ({len(weight)},)")
        constant = constant + bias.astype(np.float64)
    modes = np.stack(per_mode, axis=-2)
    # What is left of the readout, not the readout of what lies outside the basis: a defective operator has fewer
    # eigenvectors than its basis has directions, and its modes do not sum to all that lies inside.
    rest = (h - koopman.mean) @ weight.T - modes.sum(axis=-2)
    return Contributions(modes=modes, rest=rest, bias=constant)


def contribution_changes(contribution: Float[Array, "t ..."], *, before: float = 0.0) -> Float[Array, "t ..."]:
    """Compute how much each step of a sequence adds to a contribution, which is ``before`` ahead of the first step.

    The changes sum to the contribution at the end, less ``before``. That is 0 for a network that starts at zero, unless
    the mean of the states is taken off them.

    >>> contribution_changes(np.array([0.5, 2.0, 1.0]))
    array([ 0.5,  1.5, -1. ])
    """
    return np.diff(contribution, axis=0, prepend=before)
