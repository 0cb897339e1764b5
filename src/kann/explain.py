"""What each mode does: in a state, over time, and in the network's output."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.arrays import as_numpy, require_width
from kann.errors import KannError
from kann.operator import Koopman
from kann.spectrum import Mode
from kann.states import as_states
from kann.typing import AnyArray, Array, Complex, Float, Int, Shaped

Readout = Callable[[Any], Any]
"""From states (n, d) to outputs (n,) or (n, o): a function of a numpy array, or a torch module."""


def project(koopman: Koopman, h: AnyArray) -> Complex[Array, "... r"]:
    """Coordinates of states along the Koopman eigenvectors: Ĥ = H B V. One step multiplies the j-th by about λ_j."""
    return koopman.encode(h) @ koopman.right


def magnitude(koopman: Koopman, h: AnyArray) -> Float[Array, "... r"]:
    """How strongly each eigenvector is present in a state: the paper's s(j, h) = |h B V_j|."""
    return np.abs(project(koopman, h))


def importance(koopman: Koopman, states: Any) -> Float[Array, " r"]:
    """ξ: the magnitude of each eigenvector, summed over time and averaged over sequences."""
    states = as_states(states)
    total = np.zeros(koopman.rank)
    for start, stop in states.ranges():
        total += magnitude(koopman, states.values[start:stop]).sum(axis=0)
    return total / len(states)


def reconstruct(
    koopman: Koopman,
    h: AnyArray,
    modes: int | Mode | Iterable[int | Mode],
    part: str = "real",
) -> Float[Array, "... d"]:
    """States of which only these modes are kept: h B V_S U_S Bᵀ.

    Modes are given as they stand in ``koopman.modes``, or by their number there. With ``part="real"`` this is the exact
    projection onto the modes, which is real since conjugate pairs stay together, and all modes together give back what
    lies in the basis. ``part="modulus"`` is the paper's h B |V_S U_S| Bᵀ, whose elementwise modulus loses the signs.
    """
    if part not in ("real", "modulus"):
        raise KannError(f"part={part!r} is unknown; pass 'real' or 'modulus'")
    indices = sorted({index for mode in _chosen(koopman, modes) for index in mode.indices})
    keep = koopman.right[:, indices] @ koopman.left[indices]
    return koopman.decode(koopman.encode(h) @ (np.real(keep) if part == "real" else np.abs(keep)))


def _chosen(koopman: Koopman, modes: int | Mode | Iterable[int | Mode]) -> list[Mode]:
    """Modes, of which some may be given as numbers."""
    every = koopman.modes
    listed = [modes] if isinstance(modes, int | np.integer | Mode) else list(modes)
    for mode in listed:
        if not isinstance(mode, Mode) and not -len(every) <= mode < len(every):
            raise KannError(f"mode {mode} does not exist; the operator has modes 0 to {len(every) - 1}")
    chosen = [mode if isinstance(mode, Mode) else every[int(mode)] for mode in listed]
    known = {(mode.indices, mode.eigenvalue) for mode in every}
    if any((mode.indices, mode.eigenvalue) not in known for mode in chosen):
        raise KannError("a mode of another operator was passed; take it from koopman.modes of this one")
    return chosen


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
    weight = as_numpy(weight).astype(np.float64)
    if weight.ndim != 2:
        raise KannError(f"weight of shape {weight.shape} is no linear readout; pass (outputs, {koopman.dim})")
    require_width(weight, koopman.dim, what="readout weights", of="the operator")
    z = koopman.encode(h)
    per_vector = z @ koopman.right, koopman.left @ (koopman.basis.T @ weight.T)  # (..., r) and (r, o)
    shares = [
        (per_vector[0][..., list(mode.indices)] @ per_vector[1][list(mode.indices)]).real for mode in koopman.modes
    ]
    outside = as_numpy(h) - koopman.decode(z)
    constant = np.zeros(len(weight)) if bias is None else as_numpy(bias).astype(np.float64)
    return Contributions(
        modes=np.stack(shares, axis=-2), rest=outside @ weight.T, bias=constant + koopman.mean @ weight.T
    )


def decision_map(
    koopman: Koopman, mode: int | Mode, readout: Readout, grid: Complex[Array, "..."]
) -> Int[Array, "..."]:
    """Which output wins for a state that holds one mode alone, Re(z u_j), for every z of ``grid``.

    u_j is the row of U = V⁻¹, since z u_j + z̄ ū_j has no coordinate along any other mode. Re(z u_j) is half of that:
    its coordinate along a complex mode is z/2, and Re z along a real one.
    """
    (chosen,) = _chosen(koopman, mode)
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
