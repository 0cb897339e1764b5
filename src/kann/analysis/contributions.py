"""A linear readout, split into what each mode contributes to it."""

from dataclasses import dataclass

import numpy as np

from kann.backends.arrays import as_numpy, require_width
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Contributions:
    """A linear readout split into signed shares that sum to it."""

    modes: Float[Array, "... m o"]
    """The share of each mode in each output."""
    rest: Float[Array, "... o"]
    """The share of what lies outside the operator's basis."""
    bias: Float[Array, " o"]
    """What does not depend on the state: the readout's bias and, for a PCA basis, the readout of the mean."""

    @property
    def total(self) -> Float[Array, "... o"]:
        """The readout itself."""
        return self.modes.sum(axis=-2) + self.rest + self.bias


def contributions(koopman: Koopman, h: AnyArray, weight: AnyArray, bias: AnyArray | None = None) -> Contributions:
    """Signed share of each mode in the readout ``h @ weight.T + bias``; weight is (o, d), as in `torch.nn.Linear`.

    Unlike a magnitude, a share says which way a mode pushes an output, and nothing is lost: the shares of all modes,
    of what lies outside the basis, and of the bias sum to the readout.
    """
    h, weight = as_numpy(h), as_numpy(weight).astype(np.float64)
    if weight.ndim != 2:
        raise KannError(f"weight of shape {weight.shape} is no linear readout; pass (outputs, {koopman.dim})")
    require_width(weight, koopman.dim, what="readout weights", of="the operator")
    z = koopman.encode(h)
    per_vector = z @ koopman.right, koopman.left @ (koopman.basis.T @ weight.T)  # (..., r) and (r, o)
    shares = [
        (per_vector[0][..., list(mode.indices)] @ per_vector[1][list(mode.indices)]).real for mode in koopman.modes
    ]
    outside = h - koopman.decode(z)
    constant = np.zeros(len(weight)) if bias is None else as_numpy(bias).astype(np.float64)
    return Contributions(
        modes=np.stack(shares, axis=-2), rest=outside @ weight.T, bias=constant + koopman.mean @ weight.T
    )


def contribution_changes(contribution: Float[Array, "t ..."]) -> Float[Array, "t ..."]:
    """How much each step of one sequence adds to a contribution.

    Before the first step a contribution is 0, so the changes sum to its value at the end.

    >>> contribution_changes(np.array([0.5, 2.0, 1.0]))
    array([ 0.5,  1.5, -1. ])
    """
    return np.diff(contribution, axis=0, prepend=0.0)
