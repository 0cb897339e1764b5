"""A linear readout, split into what each mode contributes to it."""

from dataclasses import dataclass

import numpy as np

from kann import _display
from kann.analysis.decisions import require_linear
from kann.backends.arrays import as_numpy
from kann.checks import require_instance, require_real
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float

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
    """What each mode contributes to each output."""
    rest: Float[Array, "... o"]
    """What is in no mode: the part of the state outside the operator's basis, and what the eigenvectors of a defective
    operator cannot represent."""
    bias: Float[Array, " o"]
    """What does not depend on the state: the readout's bias and, for a PCA basis, the readout of the mean."""

    def __repr__(self) -> str:
        *states, modes, outputs = self.modes.shape
        return f"Contributions({modes} modes to {outputs} outputs, states {tuple(states)})"

    def _repr_html_(self) -> str:
        """The modes that contribute most, by the mean size of their contribution; then what is not in any mode."""
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
    """Signed contribution of each mode to ``h @ weight.T + bias``; weight is (o, d), as in `torch.nn.Linear`.

    Unlike a magnitude, a contribution says which way a mode pushes an output, and nothing is lost: the contributions
    of all modes, of what is in no mode, and of the bias sum to the readout.

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
        constant = constant + _bias(bias, outputs=len(weight))
    modes = np.stack(per_mode, axis=-2)
    # What is left of the readout, not the readout of what lies outside the basis: a defective operator has fewer
    # eigenvectors than its basis has directions, and its modes do not sum to all that lies inside.
    rest = (h - koopman.mean) @ weight.T - modes.sum(axis=-2)
    return Contributions(modes=modes, rest=rest, bias=constant)


def _bias(bias: AnyArray, *, outputs: int) -> Float[Array, " o"]:
    """The bias of a readout; a single number serves all outputs."""
    bias = as_numpy(bias)
    require_real(bias, what="the readout's biases")
    if bias.shape not in ((), (1,), (outputs,)):
        raise KannError(f"bias of shape {bias.shape} does not fit {outputs} outputs; pass shape ({outputs},)")
    return np.broadcast_to(bias.astype(np.float64), (outputs,))


def contribution_changes(contribution: Float[Array, "t ..."], *, before: float = 0.0) -> Float[Array, "t ..."]:
    """How much each step of one sequence adds to a contribution, which is ``before`` when nothing was read yet.

    The changes sum to the contribution at the end, less ``before``. That is 0 for a network that starts at zero, unless
    the mean of the states is taken off them.

    >>> contribution_changes(np.array([0.5, 2.0, 1.0]))
    array([ 0.5,  1.5, -1. ])
    """
    return np.diff(contribution, axis=0, prepend=before)
