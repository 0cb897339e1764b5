"""A linear readout, split into what each mode contributes to it."""

from dataclasses import dataclass

import numpy as np

from kann.backends.arrays import as_numpy, require_width
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Contributions:
    """A linear readout split into signed contributions that sum to it."""

    modes: Float[Array, "... m o"]
    """What each mode contributes to each output."""
    rest: Float[Array, "... o"]
    """What is in no mode: the part of the state outside the operator's basis, and what the eigenvectors of a defective
    operator cannot represent."""
    bias: Float[Array, " o"]
    """What does not depend on the state: the readout's bias and, for a PCA basis, the readout of the mean."""

    @property
    def total(self) -> Float[Array, "... o"]:
        """The readout itself."""
        return self.modes.sum(axis=-2) + self.rest + self.bias


def contributions(koopman: Koopman, h: AnyArray, weight: AnyArray, bias: AnyArray | None = None) -> Contributions:
    """Signed contribution of each mode to ``h @ weight.T + bias``; weight is (o, d), as in `torch.nn.Linear`.

    Unlike a magnitude, a contribution says which way a mode pushes an output, and nothing is lost: the contributions
    of all modes, of what is in no mode, and of the bias sum to the readout.
    """
    h, weight = as_numpy(h), as_numpy(weight).astype(np.float64)
    if weight.ndim != 2:
        raise KannError(f"weight of shape {weight.shape} is no linear readout; pass (outputs, {koopman.dim})")
    require_width(weight, koopman.dim, what="readout weights", of="the operator")
    z = koopman.encode(h)
    coordinates, weights = z @ koopman.right, koopman.left @ (koopman.basis.T @ weight.T)  # (..., r) and (r, o)
    per_mode = []
    for mode in koopman.modes:
        indices = list(mode.indices)
        per_mode.append((coordinates[..., indices] @ weights[indices]).real)
    constant = koopman.mean @ weight.T
    if bias is not None:
        constant = constant + as_numpy(bias).astype(np.float64)
    modes = np.stack(per_mode, axis=-2)
    # What is left of the readout, not the readout of what lies outside the basis: a defective operator has fewer
    # eigenvectors than its basis has directions, and its modes do not sum to all that lies inside.
    rest = (h - koopman.mean) @ weight.T - modes.sum(axis=-2)
    return Contributions(modes=modes, rest=rest, bias=constant)


def contribution_changes(contribution: Float[Array, "t ..."]) -> Float[Array, "t ..."]:
    """How much each step of one sequence adds to a contribution.

    Before the first step a contribution is 0, so the changes sum to its value at the end.

    >>> contribution_changes(np.array([0.5, 2.0, 1.0]))
    array([ 0.5,  1.5, -1. ])
    """
    return np.diff(contribution, axis=0, prepend=0.0)
