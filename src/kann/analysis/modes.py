"""What each mode does in a state and over time."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, block_rows, is_dask, require_width, to_device_of
from kann.data.reduction import Piece, is_spread, map_rows, total
from kann.data.rows import LazyRows
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.typing import AnyArray, Array, Complex, Float


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
    return z @ to_device_of(z, np.real(koopman.right)) + 1j * (z @ to_device_of(z, np.imag(koopman.right)))


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
    indices = sorted({index for mode in chosen_modes(koopman, modes) for index in mode.indices})
    keep = koopman.right[:, indices] @ koopman.left[indices]
    z = koopman.encode(h)
    return koopman.decode(z @ to_device_of(z, np.real(keep) if part == "real" else np.abs(keep)))


def chosen_modes(koopman: Koopman, modes: int | Mode | Iterable[int | Mode]) -> list[Mode]:
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
