"""Fit one linear operator to how hidden states evolve."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, namespace
from kann.checks import require_flag, require_number
from kann.data.moments import Moments, StateGram, centre_in_place, moments_of, state_gram
from kann.data.rows import Projection
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.basis import (
    GRAM_NOISE,
    Basis,
    BasisKind,
    StateSVD,
    choose_basis,
    parse_basis,
    svd_from_coordinates,
    svd_from_gram,
)
from kann.fitting.koopman import Koopman
from kann.fitting.rank import Rank, parse_rank
from kann.fitting.regression import regress
from kann.fitting.spectrum import decompose, residuals
from kann.typing import AnyArray, Array, Float

GRAM_TOLERANCE = 1e-10
"""Relative error of C that the rounding of the Gram matrix, ε·(σ₁/σᵣ)², may cause before the states are read again."""

TWO_READINGS_FROM = 1024
"""From so many units on, a rank of at most a quarter of them is fitted in two readings: HᵀH alone, then pairs in the
basis. That is half the work of multiplying pairs of whole states, with two d × d matrices at a time instead of five."""

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Request:
    """What is to be fitted."""

    rank: Rank
    kind: BasisKind
    driven: bool
    exact: bool
    """Whether states are read again where the Gram matrix is too coarse; a ridge covers what it gets wrong."""

    @property
    def largest(self) -> int | None:
        """How many of the largest singular vectors suffice; None for all of them."""
        if self.kind.is_from_data:
            return self.rank.count
        return None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _PairsInBasis:
    """A basis, and moments of the pairs in coordinates along it."""

    basis: Basis
    moments: Moments
    shift: Float[Array, " r"]
    """What is still to be taken off the coordinates; zero unless the moments are not yet about the mean."""


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
        How many basis directions to keep: a whole number, a fraction of explained variance such as ``0.99``, or None
        for every direction that the data resolve.
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
    require_flag(driven, "driven")
    require_number(ridge, "ridge", remedy="pass ridge>=0")
    request = _Request(rank=parse_rank(rank), kind=parse_basis(basis), driven=driven, exact=not ridge)
    if not ridge >= 0:
        raise KannError(f"ridge={ridge} would reward large operators; pass ridge>=0")
    source = _source(data, lengths, driven=driven)
    if isinstance(source, States) and _is_wide(source, request):
        pairs = _in_two_readings(source, request)
    else:
        pairs = _in_one_reading(source, request)
    step = regress(pairs.moments, pairs.shift, driven=driven, ridge=ridge)
    spectrum = decompose(step.matrix, device_of=_sample(source))
    return Koopman(
        matrix=step.matrix,
        basis=pairs.basis.vectors,
        mean=pairs.basis.mean,
        explained=pairs.basis.explained,
        eigenvalues=spectrum.eigenvalues,
        right=spectrum.right,
        left=spectrum.left,
        residuals=residuals(spectrum.right, step.residual_gram, step.state_gram),
        condition=spectrum.condition,
        drive=step.drive,
        offset=step.offset,
    )


def _source(data: States | Moments | AnyArray, lengths: Any, *, driven: bool) -> States | Moments:
    """What the user passed, as states that can be read more than once, or as moments."""
    if isinstance(data, Moments):
        if lengths is not None:
            raise KannError("lengths are for arrays; States and Moments know theirs")
        source, has_inputs = data, data.input_dim > 0
    else:
        source = as_states(data, lengths)
        has_inputs = source.inputs is not None
    if driven and not has_inputs:
        raise KannError("driven=True needs the inputs that drove the states; pass States with inputs")
    return source


def _sample(source: States | Moments) -> AnyArray:
    """An array on the device where the data are."""
    if isinstance(source, Moments):
        return source.sum_h
    return source.values[:0]


def _is_wide(states: States, request: _Request) -> bool:
    """Whether two readings are cheaper than one: many units, of which few directions are wanted."""
    return request.largest is not None and states.dim >= max(TWO_READINGS_FROM, 4 * request.largest)


def _in_two_readings(states: States, request: _Request) -> _PairsInBasis:
    """The basis from HᵀH alone, then moments of the pairs in it: products of d × r, where others are of d × d."""
    svd, mean, norm, rounding = _svd_in_place(states, request)
    if request.exact and _gram_is_too_coarse(svd, request.rank, norm=norm, rounding=rounding):
        return _in_one_reading(states, request)
    basis = choose_basis(request.kind, request.rank, svd, mean)
    moments = moments_of(states, inputs=request.driven, projection=Projection(matrix=basis.vectors, mean=mean)).numpy()
    return _PairsInBasis(basis=basis, moments=moments, shift=np.zeros(len(basis.explained)))


def _svd_in_place(states: States, request: _Request) -> tuple[StateSVD, Float[Array, " d"], float, float]:
    """SVD, mean, norm and rounding of the states. The d × d matrices it needs are freed when it returns."""
    if states.values.shape[0] == len(states):
        Moments(sequences=len(states), states=len(states)).require_pairs()
    found = state_gram(states)
    mean, norm = _mean(found, request.kind), _norm(found)
    gram = found.hh
    if mean.any():
        gram = centre_in_place(gram, found.sum_h, found.states)
    svd = svd_from_gram(gram, norm=norm, rounding=found.rounding, largest=request.largest)
    return svd, mean, norm, found.rounding


def _in_one_reading(source: States | Moments, request: _Request) -> _PairsInBasis:
    """Basis and pairs from one set of moments. Where these are too coarse, states are read again."""
    moments = source
    if isinstance(moments, States):
        moments = moments_of(moments, inputs=request.driven)
    moments.require_pairs()
    mean, norm = _mean(moments, request.kind), _norm(moments)
    gram = moments.hh
    if mean.any():
        gram = centre_in_place(gram + 0, moments.sum_h, moments.states)
    svd = svd_from_gram(gram, norm=norm, rounding=moments.rounding, largest=request.largest)
    is_too_coarse = request.exact and _gram_is_too_coarse(svd, request.rank, norm=norm, rounding=moments.rounding)
    if is_too_coarse and isinstance(source, States):
        if len(svd.values) < moments.dim:
            svd = svd_from_gram(gram, norm=norm, rounding=EPS)
        return _in_orthonormal_coordinates(source, request, svd, mean, norm=norm)
    basis = choose_basis(request.kind, request.rank, svd, mean)
    return _PairsInBasis(basis=basis, moments=moments.in_basis(basis.vectors), shift=mean @ basis.vectors)


def _mean(moments: Moments | StateGram, kind: BasisKind) -> Float[Array, " d"]:
    """What is taken off a state before it is projected."""
    total = as_numpy(moments.sum_h)
    if kind.is_centred:
        return total / moments.states
    return np.zeros_like(total)


def _norm(moments: Moments | StateGram) -> float:
    """|H|, the root of the sum of all squares."""
    return float(namespace(moments.hh).trace(moments.hh)) ** 0.5


def _gram_is_too_coarse(svd: StateSVD, rank: Rank, *, norm: float, rounding: float) -> bool:
    """Whether float64 states have directions that their Gram matrix cannot give to `GRAM_TOLERANCE`.

    States of lower precision never do: their own rounding changes C by ε₃₂·σ₁/σᵣ, which is above ε₆₄·(σ₁/σᵣ)² as far
    down as they resolve anything.
    """
    if rounding > EPS:
        return False
    needed = min(rank.count or len(svd.values), len(svd.values))
    smallest = svd.values[needed - 1]
    return bool(EPS * norm**2 > GRAM_TOLERANCE * smallest**2)


def _in_orthonormal_coordinates(
    states: States, request: _Request, svd: StateSVD, mean: Float[Array, " d"], *, norm: float
) -> _PairsInBasis:
    """Basis and pairs from coordinates in which the states are nearly orthonormal.

    A Gram matrix there is as exact as a QR factor. This is QR by Cholesky: one reading of the states gives coordinates
    good to σ/σ₁ ≈ 1e-7, the next one to 1e-14. A Householder QR of all pairs would do it in one reading, at some
    twenty times the cost of these products.
    """
    for reading in (1, 2):
        floor = np.sqrt(GRAM_NOISE) ** reading * svd.values[0]
        width = np.maximum(svd.values, floor)
        back = width[:, None] * svd.vectors.T  # from coordinates to states
        projection = Projection(matrix=svd.vectors / width, mean=mean)
        moments = moments_of(states, inputs=request.driven, projection=projection).numpy()
        svd = svd_from_coordinates(moments.hh, back=back, norm=norm, rounding=EPS)
        if not svd.resolved or EPS * floor**2 < GRAM_TOLERANCE * svd.values[svd.resolved - 1] ** 2:
            break
    basis = choose_basis(request.kind, request.rank, svd, mean)
    return _PairsInBasis(
        basis=basis, moments=moments.in_basis(back @ basis.vectors), shift=np.zeros(len(basis.explained))
    )
