"""Modes in a state and over time: coordinates, magnitudes, importance, reconstruction."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, to_device_of
from kann.checks import (
    require_choice,
    require_dense,
    require_float,
    require_instance,
    require_whole_number,
    require_width,
    short_repr,
)
from kann.data.moments import MeanAndCovariance, refuse_not_finite
from kann.data.reduction import Block, SumOverBlocks, accumulate, map_rows
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.typing import AnyArray, Array, Complex, Float


def project(koopman: Koopman, h: AnyArray) -> Complex[AnyArray, "... r"]:
    """Compute the coordinates of states along the Koopman eigenvectors, Ĥ = H B V.

    One step multiplies the j-th coordinate by about λ_j.

    Parameters
    ----------
    koopman
        The operator.
    h
        States (..., d), `States`, or the path of a store, whose rows are taken one after the other.

    Returns
    -------
    array (..., r)
        Complex coordinates: a numpy array, for states on a GPU a tensor there, for a dask array a lazy dask array.

    Examples
    --------
    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states, basis="svd", offset=False)
    >>> along = kann.project(koopman, states)
    >>> (along[0, 1] / along[0, 0]).real.round(6)
    array([0.9, 0.5])
    """
    return _map_states(partial(_project, koopman), koopman, h, dtype=np.complex128)


def magnitude(koopman: Koopman, h: AnyArray) -> Float[AnyArray, "... r"]:
    """Measure how strongly each eigenvector is present in a state: the paper's s(j, h) = |h B V_j|.

    Parameters
    ----------
    koopman, h
        The operator and the states, as in `kann.project`.

    Returns
    -------
    array (..., r)
        Magnitudes, on the device where `kann.project` puts coordinates.

    Examples
    --------
    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> kann.magnitude(koopman, states).shape
    (20, 12, 2)
    """
    return _map_states(partial(_magnitude, koopman), koopman, h, dtype=np.float64)


def _map_states(function: Callable[[AnyArray], AnyArray], koopman: Koopman, h: AnyArray, *, dtype: Any) -> AnyArray:
    """Apply a function from single states to one number for each eigenvector to all states."""
    require_instance(koopman, Koopman, "koopman")
    require_dense(h)
    if isinstance(h, States | str | os.PathLike):
        h = as_states(h).values
    if hasattr(h, "ndim"):
        require_float(h, what="states")
        require_width(h, koopman.dim, what="states", of="the operator")
    return map_rows(h, function, width=koopman.rank, dtype=dtype)


def _project(koopman: Koopman, h: AnyArray) -> Complex[AnyArray, "... r"]:
    z = koopman.encode(h)
    # Two real products: half the work of a complex one, and torch has none of real with complex.
    return z @ to_device_of(z, np.real(koopman.right)) + 1j * (z @ to_device_of(z, np.imag(koopman.right)))


def _magnitude(koopman: Koopman, h: AnyArray) -> Float[AnyArray, "... r"]:
    return abs(_project(koopman, h))


def importance(koopman: Koopman, states: Any) -> Float[Array, " r"]:
    """Sum the magnitude of each eigenvector over time and average it over sequences: the paper's ξ.

    Parameters
    ----------
    koopman
        The operator.
    states
        `States`, or what can be read as states, wherever they are.

    Returns
    -------
    array (r,)
        One number per eigenvector; the two of a conjugate pair have the same.

    Examples
    --------
    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> kann.importance(koopman, states).round(2)  # the slow mode is present for longer
    array([4.69, 1.21])
    """
    require_instance(koopman, Koopman, "koopman")
    states = as_states(states)
    require_width(states.values, koopman.dim, what="states", of="the operator")
    make = partial(SumOverBlocks, partial(_summed_magnitude, koopman))
    total = accumulate(states, make, what="importance")
    if not np.isfinite(total).all():
        refuse_not_finite(states, inputs=False)
    return total / len(states)


def _summed_magnitude(koopman: Koopman, block: Block) -> Float[Array, " r"]:
    return as_numpy(_magnitude(koopman, block.values).sum(0))


def reconstruct(
    koopman: Koopman, h: AnyArray, modes: int | Mode | Iterable[int | Mode], part: str = "real"
) -> Float[AnyArray, "... d"]:
    """Keep only some modes of states: h B V_S U_S Bᵀ.

    Parameters
    ----------
    koopman
        The operator.
    h
        States (..., d).
    modes
        The modes to keep, from ``koopman.modes`` or by their numbers there.
    part
        ``"real"``: the exact projection onto the modes. It is real because conjugate pairs stay together, and all modes
        together give back the part of the state in the basis. ``"modulus"``: the paper's h B |V_S U_S| Bᵀ, whose
        elementwise modulus loses the signs.

    Returns
    -------
    array (..., d)
        The states without the other modes.

    Examples
    --------
    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> kept = kann.reconstruct(koopman, states, 0)  # the fast unit stays at its mean
    >>> bool(np.allclose(kept[..., 0], states[..., 0])), bool(np.allclose(kept[..., 1], states[..., 1].mean()))
    (True, True)
    """
    require_choice(part, "part", ("real", "modulus"))
    indices = sorted({index for mode in chosen_modes(koopman, modes) for index in mode.indices})
    projection = koopman.right[:, indices] @ koopman.left[indices]
    kept = np.abs(projection) if part == "modulus" else np.real(projection)
    z = koopman.encode(h)
    return koopman.decode(z @ to_device_of(z, kept))


def chosen_modes(koopman: Koopman, modes: int | Mode | Iterable[int | Mode]) -> list[Mode]:
    """Return the modes that a user names, by themselves or by their numbers in ``koopman.modes``."""
    require_instance(koopman, Koopman, "koopman")
    every = koopman.modes
    require_dense(modes)
    if isinstance(modes, Mode) or not isinstance(modes, Iterable) or getattr(modes, "ndim", 1) == 0:
        return [_chosen_mode(every, modes)]
    if isinstance(modes, str | bytes):
        raise KannError(f"modes={short_repr(modes)} names no modes; pass numbers of koopman.modes, or modes from there")
    return [_chosen_mode(every, mode) for mode in modes]


def _chosen_mode(every: Sequence[Mode], mode: Any) -> Mode:
    if not isinstance(mode, Mode):
        mode = require_whole_number(mode, "mode", least=None)
        if not -len(every) <= mode < len(every):
            raise KannError(f"mode {short_repr(mode)} does not exist; the operator has modes 0 to {len(every) - 1}")
        return every[mode]
    if not any((mode.indices, mode.eigenvalue) == (own.indices, own.eigenvalue) for own in every):
        raise KannError("a mode of another operator was passed; take it from koopman.modes of this one")
    return mode


def mode_vectors(koopman: Koopman, mode: int | Mode) -> tuple[Float[Array, "d k"], Float[Array, "k d"]]:
    """Return directions A and vectors W of a mode: `kann.reconstruct` keeps (h − mean) A W of a state.

    A real mode has one coordinate z v, a conjugate pair two: its real and its imaginary part.
    """
    (chosen,) = chosen_modes(koopman, mode)
    right, left = koopman.right[:, chosen.indices[0]], koopman.left[chosen.indices[0]]
    if len(chosen.indices) == 1:
        directions, vectors = np.real(right)[:, None], np.real(left)[None]
    else:  # z v u + z̄ v̄ ū = 2 Re(z v) Re u − 2 Im(z v) Im u
        directions = np.stack([np.real(right), np.imag(right)], axis=1)
        vectors = np.stack([2 * np.real(left), -2 * np.imag(left)])
    return koopman.basis @ directions, vectors @ koopman.state_vectors


def mode_directions(koopman: Koopman, modes: int | Mode | Iterable[int | Mode]) -> Float[Array, "d k"]:
    """Return the directions of the coordinates of several modes, side by side."""
    parts = [mode_vectors(koopman, mode)[0] for mode in chosen_modes(koopman, modes)]
    return np.concatenate([np.empty((koopman.dim, 0)), *parts], axis=1)


def first_modes(koopman: Koopman, order: Sequence[int], count: int) -> list[int]:
    """Select the first modes of an order that have ``count`` coordinates together, of which a conjugate pair has two.

    Where only one coordinate is left, the next real mode is taken; if there is none, the first pair.
    """
    chosen, left = [], count
    for number in order:
        size = len(koopman.modes[number].indices)
        if size <= left:
            chosen.append(number)
            left -= size
    return chosen or list(order[:1])


def mode_variances(
    koopman: Koopman, spread: MeanAndCovariance, weight: Float[Array, "o d"] | None
) -> Float[Array, " m"]:
    """Compute the variance of each mode's contribution to the outputs, summed; without a readout, to the state itself.

    A mode contributes (h − mean) A W weightᵀ, with A and W as in `mode_vectors`.
    """
    found = []
    for mode in koopman.modes:
        directions, effect = mode_vectors(koopman, mode)
        if weight is not None:
            effect = effect @ weight.T
        found.append(np.trace(effect.T @ spread.along(directions) @ effect))
    return np.array(found)
