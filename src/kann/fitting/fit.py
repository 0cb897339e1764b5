"""Fit one linear operator to how hidden states evolve."""

import warnings
from dataclasses import replace
from typing import Any

from kann.checks import require_flag, require_number, shown
from kann.data.moments import Moments
from kann.data.states import States, as_states
from kann.errors import DependenceWarning, FewPairsWarning, KannError, PrecisionWarning
from kann.fitting.auto_rank import rank_curve
from kann.fitting.basis import parse_basis
from kann.fitting.koopman import Koopman
from kann.fitting.precision import doubt_of_digits, step_is_too_coarse
from kann.fitting.rank import Rank, RankCurve, parse_rank
from kann.fitting.readings import (
    PairsInBasis,
    Request,
    read_in_orthonormal_coordinates,
    read_once,
    read_twice,
)
from kann.fitting.regression import LinearStep, regress
from kann.fitting.spectrum import decompose, residuals
from kann.typing import AnyArray

TWO_READINGS_FROM = 1024
"""From so many units on, a rank of at most a quarter of them is fitted in two readings: HᵀH alone, then pairs in the
basis. That is half the work of multiplying pairs of whole states, with two d × d matrices at a time instead of five."""

LARGEST_AUTO_RANK = 256
"""Of many units, ``rank="auto"`` tries no larger rank than this: operators of more could not be read by anyone."""

PAIRS_PER_UNKNOWN = 5
"""So many pairs of states for each unknown of a column are the least from which a fit says more about the network than
about noise: with five, noise that cannot be predicted at all still seems to be predicted by a fifth."""

LARGEST_INFLATION = 1e4
"""Variance inflation of the operator, 1 / (1 − R²), up to which states and inputs are called independent. Above it,
noise of 1 % in the states changes eigenvalues by as much as they are."""


def fit(
    data: States | Moments | AnyArray,
    *,
    rank: Any = None,
    basis: str | AnyArray = "pca",
    offset: bool = True,
    lengths: Any = None,
    driven: bool = False,
    ridge: int | float = 0.0,
    groups: Any = None,
) -> Koopman:
    """Fit one linear operator to how hidden states evolve: z[t+1] ≈ z[t] C + c for coordinates z = (h − mean) B.

    >>> import numpy as np
    >>> turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> path = np.stack([np.linalg.matrix_power(turn, t)[0] for t in range(20)])
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
        How many basis directions to keep: a whole number, a fraction of explained variance such as ``0.99``, None for
        every direction that the data resolve, or ``"auto"``: the smallest rank whose error up to ten steps ahead, on
        sequences that were not fitted, is within 5 % of the best rank's or 1 % of what copying the state misses.
        ``koopman.rank_curve`` keeps all errors.
    basis
        ``"pca"``, directions of largest variation about the mean of the states; ``"svd"``, directions of largest energy
        about zero; ``"fourier"``, which looks at no data; or an orthonormal (d, r) array.
    offset
        Fit a constant c too. Without it, and without taking the mean off, the mean of the states is a direction that
        hardly changes: a mode with λ ≈ 1 that passes for memory. The paper's operator is that one:
        ``basis="svd", offset=False, rank=d - 1``.
    lengths
        For an array: how many steps of each sequence are real. Without it padding is fitted too.
    driven
        Fit z[t+1] ≈ z[t] C + u[t+1] D + c to states that were recorded with their inputs u: what the network does by
        itself, apart from what its input makes it do.
    ridge
        Adds ridge·(|C|² + |D|²) to the sum of squares over all pairs.
    groups
        For ``rank="auto"``: for each sequence who it comes from, such as a patient or a speaker. Sequences of one group
        are held out together, as `kann.trust` does it.
    """
    require_flag(driven, "driven")
    require_flag(offset, "offset")
    if driven and not offset:
        raise KannError("a driven operator has an offset, which the mean of its inputs needs; leave offset=False out")
    require_number(ridge, "ridge", remedy="pass ridge>=0")
    if not ridge >= 0:
        raise KannError(f"ridge={ridge} would reward large operators; pass ridge>=0")
    request = Request(rank=parse_rank(rank), kind=parse_basis(basis), driven=driven, offset=offset, ridge=float(ridge))
    if groups is not None and not request.rank.is_auto:
        raise KannError(f"groups= is for rank='auto', which holds groups out; with rank={shown(rank)} leave it out")
    source = _source(data, lengths, driven=driven)
    curve = None
    if request.rank.is_auto:
        curve = _rank_curve(source, request, groups)
        request = replace(request, rank=Rank(count=curve.chosen))
    pairs = _read(source, request)
    step = _regress(pairs, request)
    if isinstance(source, States) and not pairs.is_final and step_is_too_coarse(step, pairs.moments.rounding):
        pairs = read_in_orthonormal_coordinates(source, request, pairs.first)
        step = _regress(pairs, request)
    _warn(pairs, step, of_moments=isinstance(source, Moments))
    spectrum = decompose(step.matrix, device_of=_sample(source))
    return Koopman(
        matrix=step.matrix,
        basis=pairs.basis.vectors,
        mean=pairs.basis.mean,
        explained=pairs.basis.explained,
        eigenvalues=spectrum.eigenvalues,
        right=spectrum.right,
        left=spectrum.left,
        residuals=residuals(spectrum.right, step.residual_gram, step.state_gram, step.noise),
        condition=spectrum.condition,
        drive=step.drive,
        offset=step.offset,
        ridge=request.ridge,
        rank_curve=curve,
    )


def _read(source: States | Moments, request: Request) -> PairsInBasis:
    """A basis and the pairs in it, in the cheapest way."""
    if isinstance(source, States) and _is_wide(source, request):
        return read_twice(source, request)
    return read_once(source, request)


def _rank_curve(source: States | Moments, request: Request, groups: Any) -> RankCurve:
    """The held-out errors of ranks up to all that the states resolve, or to `LARGEST_AUTO_RANK` of many units."""
    if not isinstance(source, States):
        raise KannError("rank='auto' needs states, some of which are held out; pass them, or a number")
    rank = Rank()
    if source.dim >= TWO_READINGS_FROM:
        rank = Rank(count=LARGEST_AUTO_RANK, is_limit=True)
    largest = replace(request, rank=rank)
    return rank_curve(
        source,
        _read(source, largest).basis,
        driven=request.driven,
        offset=request.offset,
        ridge=request.ridge,
        groups=groups,
    )


def _warn(pairs: PairsInBasis, step: LinearStep, *, of_moments: bool) -> None:
    """Warn of rounding, of a rank that the data cannot bear, and of inputs that tell the state."""
    doubt = doubt_of_digits(step, is_fine=pairs.is_fine, of_moments=of_moments)
    for message in filter(None, (*pairs.doubts, doubt)):
        warnings.warn(message, PrecisionWarning, stacklevel=3)
    count, unknowns = pairs.moments.pairs, step.unknowns
    if count < PAIRS_PER_UNKNOWN * unknowns:
        warnings.warn(
            f"{count} pairs of states for {unknowns} unknowns in each column of the operator: it fits noise as well as "
            f"the network; pass more sequences, or a rank that leaves at most {count // PAIRS_PER_UNKNOWN} unknowns",
            FewPairsWarning,
            stacklevel=3,
        )
    elif step.dependence > 1 - 1 / LARGEST_INFLATION:
        warnings.warn(
            f"the inputs tell a direction of the states before them (R² = 1 − {1 - step.dependence:.0e}), so that what "
            "states and what inputs do cannot be told apart, and eigenvalues may be arbitrary; leave out inputs that "
            "contain the state",
            DependenceWarning,
            stacklevel=3,
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


def _is_wide(states: States, request: Request) -> bool:
    """Whether two readings are cheaper than one: many units, of which few directions are wanted."""
    return request.largest is not None and states.dim >= max(TWO_READINGS_FROM, 4 * request.largest)


def _regress(pairs: PairsInBasis, request: Request) -> LinearStep:
    return regress(
        pairs.moments,
        pairs.shift,
        energies=pairs.energies,
        input_mean=pairs.input_mean,
        driven=request.driven,
        offset=request.offset,
        ridge=request.ridge,
    )
