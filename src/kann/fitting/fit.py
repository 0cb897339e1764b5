"""Fit one linear operator to how hidden states evolve."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, namespace
from kann.data.moments import Moments, centre_in_place, in_basis, require_pairs, state_moments
from kann.data.rows import MappedRows
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.basis import DATA_BASES, GRAM_NOISE, Basis, Scatter, choose, require_known, scatter
from kann.fitting.koopman import Koopman
from kann.fitting.regression import regress
from kann.fitting.spectrum import decompose, residuals
from kann.typing import AnyArray, Array, Float

EXACT = 1e-10
"""Relative error of C that is tolerated from the rounding of the Gram, ε·(σ₁/σᵣ)², before the states are read again."""

WIDE = 1024
"""From so many units on, a rank of at most a quarter of them is fitted in two readings: HᵀH alone, then pairs in the
basis. That is half the work of multiplying pairs of whole states, with two d × d matrices at a time instead of five."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Coordinates:
    """How the rows a of which there are moments relate to states: h − mean = (a − shift) @ back."""

    shift: Float[Array, " k"]
    """Zero unless a mean is to be taken off."""
    back: Float[Array, "k d"] | None = None
    """None where the rows are the states themselves."""


def fit(
    data: States | Moments | AnyArray,
    *,
    rank: Any = None,
    basis: str | AnyArray = "svd",
    lengths: Any = None,
    driven: bool = False,
    ridge: int | float = 0.0,
) -> Koopman:
    """Fit one linear operator to how hidden states evolve.

    >>> turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> path = np.stack([np.linalg.matrix_power(turn, t)[0] for t in range(9)])
    >>> fit(path[None])
    Koopman(autonomous, 2 units, rank 2, |λ| = 1.0000, 1.0000)

    Parameters
    ----------
    data
        `States`, `Moments`, an array (S, T, d), a list of arrays (T_i, d), (N, d) rows of all sequences with their
        ``lengths``, or the path or address of a store. Arrays are numpy, torch or dask. On a GPU everything is computed
        there but the small eigenproblem. Dask arrays and stores at an address (``s3://…``) are read in chunks by Dask,
        on the current client or in this process.
    rank
        How many basis directions to keep: a whole number, a share of explained variance such as ``0.99``, or None for
        every direction that the data resolve.
    basis
        ``"svd"`` (the paper's), ``"pca"`` (the same about the mean), ``"fourier"`` (which looks at no data), or an
        orthonormal (d, r) array.
    lengths
        For an array: how many steps of each sequence are real. Without it padding is fitted too.
    driven
        Fit z[t+1] ≈ z[t] C + u[t+1] D + c to states that were recorded with their inputs u: what the network does by
        itself, apart from what its input makes it do.
    ridge
        Adds ridge·(|C|² + |D|²) to the sum of squares over all pairs.
    """
    require_known(basis)
    if not ridge >= 0:
        raise KannError(f"ridge={ridge} would reward large operators; pass ridge>=0")
    source = _source(data, lengths, driven=driven)
    if isinstance(source, States) and _is_wide(source, rank, basis):
        chosen, pairs, shift = _in_two_readings(source, rank=rank, basis=basis, driven=driven, exact=not ridge)
    else:
        chosen, pairs, shift = _from_pairs(source, rank=rank, basis=basis, driven=driven, exact=not ridge)
    step = regress(pairs, shift, driven=driven, ridge=ridge)
    near = source.sum_h if isinstance(source, Moments) else source.values[:0]
    spectrum = decompose(step.matrix, near=near)
    return Koopman(
        matrix=step.matrix,
        basis=chosen.vectors,
        mean=chosen.mean,
        explained=chosen.explained,
        eigenvalues=spectrum.eigenvalues,
        right=spectrum.right,
        left=spectrum.left,
        residuals=residuals(spectrum.right, step.error, step.energy),
        condition=spectrum.condition,
        drive=step.drive,
        offset=step.offset,
    )


def _source(data: States | Moments | AnyArray, lengths: Any, *, driven: bool) -> States | Moments:
    """What the user passed, as states that can be read more than once, or as moments."""
    if isinstance(data, States | Moments) and lengths is not None:
        raise KannError("lengths are for arrays; States and Moments know theirs")
    source = data if isinstance(data, Moments) else as_states(data, lengths)
    has_inputs = source.inputs is not None if isinstance(source, States) else source.input_dim
    if driven and not has_inputs:
        raise KannError("driven=True needs the inputs that drove the states; pass States with inputs")
    return source


def _whole(rank: Any) -> int | None:
    """A rank that is a number of directions, or None."""
    return int(rank) if isinstance(rank, int | np.integer) and not isinstance(rank, bool) and rank > 0 else None


def _is_wide(states: States, rank: Any, basis: str | AnyArray) -> bool:
    whole = _whole(rank)
    chosen_by_data = isinstance(basis, str) and basis in DATA_BASES
    return chosen_by_data and whole is not None and states.dim >= max(WIDE, 4 * whole)


def _in_two_readings(
    states: States, *, rank: Any, basis: str | AnyArray, driven: bool, exact: bool
) -> tuple[Basis, Moments, Float[Array, " r"]]:
    """The basis from HᵀH alone, then moments of the pairs in it: products of d × r, where others are of d × d."""
    found, mean, size, rounding = _scatter_of(states, rank, basis)
    if exact and _blurred(found, rank, size=size, rounding=rounding):
        return _from_pairs(states, rank=rank, basis=basis, driven=driven, exact=True)
    chosen = choose(basis, rank, found, mean)
    pairs = _mapped_moments(states, chosen.vectors, mean, driven=driven)
    pairs.rounding = rounding
    return chosen, pairs, np.zeros(len(chosen.explained))


def _scatter_of(states: States, rank: Any, basis: str | AnyArray) -> tuple[Scatter, Float[Array, " d"], float, float]:
    """Where the states lie, about which mean, how large and how coarse they are. What is d × d is gone afterwards."""
    energy = state_moments(states)
    require_pairs(energy)
    mean, size = _mean(energy, basis), _size(energy)
    gram = centre_in_place(energy.hh, energy.sum_h, energy.states) if mean.any() else energy.hh
    found = scatter(gram, size=size, rounding=energy.rounding, largest=_whole(rank))
    return found, mean, size, energy.rounding


def _from_pairs(
    source: States | Moments, *, rank: Any, basis: str | AnyArray, driven: bool, exact: bool
) -> tuple[Basis, Moments, Float[Array, " r"]]:
    """Basis and pairs from one set of moments. Where these are blurred and ``exact`` is True, states are read again.

    Returns the basis, moments of the pairs in coordinates along it, and what is to be taken off those.
    """
    moments = source if isinstance(source, Moments) else Moments.of(source, inputs=driven)
    require_pairs(moments)
    mean, size = _mean(moments, basis), _size(moments)
    gram = _gram(moments, mean)
    by_data = isinstance(basis, str) and basis in DATA_BASES
    found = scatter(gram, size=size, rounding=moments.rounding, largest=_whole(rank) if by_data else None)
    at = Coordinates(shift=mean)
    if isinstance(source, States) and exact and _blurred(found, rank, size=size, rounding=moments.rounding):
        if len(found.values) < len(mean):
            found = scatter(gram, size=size, rounding=moments.rounding)
        moments, at, found = _sharpen(source, found, mean, size=size, driven=driven)
    chosen = choose(basis, rank, found, mean)
    to_basis = chosen.vectors if at.back is None else at.back @ chosen.vectors
    return chosen, in_basis(moments, to_basis), at.shift @ to_basis


def _mean(moments: Moments, basis: str | AnyArray) -> Float[Array, " d"]:
    """What is taken off a state before it is projected."""
    is_pca = isinstance(basis, str) and basis == "pca"
    return as_numpy(moments.sum_h) / moments.states if is_pca else np.zeros(moments.dim)


def _size(moments: Moments) -> float:
    """|H|, the root of the sum of all squares."""
    return float(namespace(moments.hh).trace(moments.hh)) ** 0.5


def _gram(moments: Moments, mean: Float[Array, " d"]) -> AnyArray:
    """Products of all states, about their mean where one is taken off, where the moments are."""
    return centre_in_place(moments.hh + 0, moments.sum_h, moments.states) if mean.any() else moments.hh


def _mapped_moments(states: States, matrix: Float[Array, "d r"], mean: Float[Array, " d"], *, driven: bool) -> Moments:
    """Moments of the rows (h − mean) @ matrix, which are computed as the states are read."""
    rows = MappedRows(states.values, matrix, mean)
    return Moments.of(States(values=rows, lengths=states.lengths, inputs=states.inputs), inputs=driven).numpy()


def _blurred(found: Scatter, rank: Any, *, size: float, rounding: float) -> bool:
    """Whether float64 states have directions that their Gram cannot give to `EXACT`.

    States of lower precision never do: their own rounding changes C by ε₃₂·σ₁/σᵣ, which is above ε₆₄·(σ₁/σᵣ)² as far
    down as they resolve anything.
    """
    eps = np.finfo(np.float64).eps
    if rounding > eps:
        return False
    needed = int(rank) if isinstance(rank, int | np.integer) else len(found.values)
    smallest = found.values[min(needed, len(found.values)) - 1]
    return bool(eps * size**2 > EXACT * smallest**2)


def _sharpen(
    states: States, found: Scatter, mean: Float[Array, " d"], *, size: float, driven: bool
) -> tuple[Moments, Coordinates, Scatter]:
    """Moments in coordinates in which the states are nearly orthonormal, where a Gram is as exact as a QR factor.

    This is QR by Cholesky: one reading of the states gives coordinates good to σ/σ₁ ≈ 1e-7, the next one to 1e-14. A
    Householder QR of all pairs would do it in one reading, at some twenty times the cost of these products.
    """
    eps = np.finfo(np.float64).eps
    for reading in (1, 2):
        floor = np.sqrt(GRAM_NOISE) ** reading * found.values[0]
        width = np.maximum(found.values, floor)
        moments = _mapped_moments(states, found.vectors / width, mean, driven=driven)
        at = Coordinates(back=width[:, None] * found.vectors.T, shift=np.zeros(len(width)))
        found = scatter(moments.hh, size=size, rounding=eps, map_back=at.back)
        if not found.resolved or eps * floor**2 < EXACT * found.values[found.resolved - 1] ** 2:
            break
    return moments, at, found
