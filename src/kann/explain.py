"""What each mode does: in a state, over time, and in the network's output."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.arrays import as_numpy, beside, block_rows, is_dask, require_width
from kann.cluster import Piece, is_spread, map_rows, total
from kann.errors import KannError
from kann.operator import Koopman
from kann.rows import LazyRows
from kann.spectrum import Mode
from kann.states import States, as_states
from kann.typing import AnyArray, Array, Complex, Float, Int, Shaped

Readout = Callable[[Any], Any]
"""From states (n, d) to outputs (n,) or (n, o): a function of a numpy array, or a torch module."""


def project(koopman: Koopman, h: AnyArray) -> Complex[AnyArray, "... r"]:
    """Coordinates of states along the Koopman eigenvectors: Ĥ = H B V. One step multiplies the j-th by about λ_j.

    ``h`` are states (..., d), or `States` or the path of a store, whose rows are taken one after the other. The result
    is a numpy array; of states on a GPU a tensor there, and of a dask array a dask array, as lazy as it.
    """
    return _by_row(_project, koopman, h, dtype=np.complex128)


def magnitude(koopman: Koopman, h: AnyArray) -> Float[AnyArray, "... r"]:
    """How strongly each eigenvector is present in a state: the paper's s(j, h) = |h B V_j|; where, as in `project`."""
    return _by_row(_magnitude, koopman, h, dtype=np.float64)


def _by_row(function: Callable[..., AnyArray], koopman: Koopman, h: AnyArray, *, dtype: Any) -> AnyArray:
    """A function of single states, for all of them; those on disk are read in blocks."""
    if isinstance(h, States | str | os.PathLike):
        h = as_states(h).values
    if is_dask(h):
        require_width(h, koopman.dim, what="states", of="the operator")
        return map_rows(h, function, width=koopman.rank, dtype=dtype, shared=(koopman,))
    if not isinstance(h, LazyRows):
        return function(h, koopman)
    result = np.empty((len(h), koopman.rank), dtype=dtype)
    step = block_rows(h[0:1], koopman.dim)
    for start in range(0, len(h), step):
        result[start : start + step] = as_numpy(function(h[start : start + step], koopman))
    return result


def _project(h: AnyArray, koopman: Koopman) -> Complex[AnyArray, "... r"]:
    z = koopman.encode(h)
    # Two real products: half the work of a complex one, and torch has none of real with complex.
    return z @ beside(np.real(koopman.right), z) + 1j * (z @ beside(np.imag(koopman.right), z))


def _magnitude(h: AnyArray, koopman: Koopman) -> Float[AnyArray, "... r"]:
    return abs(_project(h, koopman))


def importance(koopman: Koopman, states: Any) -> Float[Array, " r"]:
    """ξ: the magnitude of each eigenvector, summed over time and averaged over sequences."""
    states = as_states(states)
    if is_spread(states):
        return total(states, _presence, shared=(koopman,)) / len(states)
    return _summed(states, koopman) / len(states)


def _presence(piece: Piece, koopman: Koopman) -> Float[Array, " r"]:
    return _summed(piece.states, koopman)


def _summed(states: States, koopman: Koopman) -> Float[Array, " r"]:
    """Magnitudes summed over all states."""
    present = np.zeros(koopman.rank)
    for start, stop in states.ranges():
        present += as_numpy(_magnitude(states.values[start:stop], koopman).sum(0))
    return present


def reconstruct(
    koopman: Koopman,
    h: AnyArray,
    modes: int | Mode | Iterable[int | Mode],
    part: str = "real",
) -> Float[AnyArray, "... d"]:
    """States of which only these modes are kept: h B V_S U_S Bᵀ.

    Modes are given as they stand in ``koopman.modes``, or by their number there. With ``part="real"`` this is the exact
    projection onto the modes, which is real since conjugate pairs stay together, and all modes together give back what
    lies in the basis. ``part="modulus"`` is the paper's h B |V_S U_S| Bᵀ, whose elementwise modulus loses the signs.
    """
    if part not in ("real", "modulus"):
        raise KannError(f"part={part!r} is unknown; pass 'real' or 'modulus'")
    indices = sorted({index for mode in _chosen(koopman, modes) for index in mode.indices})
    keep = koopman.right[:, indices] @ koopman.left[indices]
    z = koopman.encode(h)
    return koopman.decode(z @ beside(np.real(keep) if part == "real" else np.abs(keep), z))


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
