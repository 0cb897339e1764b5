"""Fit one linear operator to how hidden states evolve."""

import warnings
from dataclasses import replace
from typing import Any, Literal, overload

from kann.backends.arrays import threads_for
from kann.checks import require_choice, require_flag, short_repr
from kann.data.moments import Moments
from kann.data.reduction import are_summed_over_ranks, summed_over_ranks
from kann.data.states import States, as_states, only_pairs
from kann.errors import DependenceWarning, FewPairsWarning, KannError, PrecisionWarning
from kann.fitting.basis import Rank, parse_basis, parse_rank
from kann.fitting.bilinear import Bilinear
from kann.fitting.features import parse_features
from kann.fitting.gated_sums import fit_bilinear
from kann.fitting.horizons import rank_curve
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import require_ridge
from kann.fitting.passes import LinearStep, PairsInBasis, Request, read_along, read_by_qr, read_once, read_twice
from kann.fitting.spectrum import decompose, residuals
from kann.typing import AnyArray

TWO_READINGS_FROM = 1024
"""Number of units from which a rank of at most a quarter of them is fitted in two readings: HᵀH, then pairs in the
basis. That is half the work of multiplying pairs of whole states, with two d × d matrices at a time instead of five."""

LARGEST_AUTO_RANK = 256
"""Of many units, ``rank="auto"`` tries no larger rank than this: operators of more could not be read by anyone."""

PAIRS_PER_UNKNOWN = 5
"""Minimum number of pairs of states per unknown of a column. With fewer, the fit mostly reflects noise: even with five,
a fifth of the variance of pure noise seems to be predicted."""

LARGEST_INFLATION = 1e4
"""Variance inflation of the operator, 1 / (1 − R²), up to which states and inputs are called independent. Above it,
noise of 1 % in the states changes eigenvalues by as much as they are."""


@overload
def fit(
    data: States | Moments | AnyArray,
    *,
    rank: Any = None,
    basis: Any = "pca",
    offset: bool = True,
    lengths: Any = None,
    driven: bool = False,
    where: Any = None,
    ridge: int | float | None = None,
    groups: Any = None,
    over_ranks: bool = False,
) -> Koopman: ...
@overload
def fit(
    data: States | AnyArray,
    *,
    rank: Any = None,
    basis: Any = "pca",
    lengths: Any = None,
    driven: Literal["bilinear"],
    features: Any = None,
    lift: Literal["squares"] | None = None,
    where: Any = None,
    ridge: int | float | None = None,
    groups: Any = None,
    over_ranks: bool = False,
) -> Bilinear: ...
def fit(
    data: States | Moments | AnyArray,
    *,
    rank: Any = None,
    basis: Any = "pca",
    offset: bool = True,
    lengths: Any = None,
    driven: bool | str = False,
    features: Any = None,
    lift: str | None = None,
    where: Any = None,
    ridge: int | float | None = None,
    groups: Any = None,
    over_ranks: bool = False,
) -> Koopman | Bilinear:
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
        The number of basis directions to keep: a whole number, a fraction of explained variance such as ``0.99``, None
        for every direction that the data resolve, or ``"auto"``: the smallest rank whose error up to ten steps ahead,
        on held-out sequences, is within 5 % of the best rank's or 1 % of what copying the state misses.
        ``koopman.rank_curve`` keeps all errors.
    basis
        ``"pca"``, directions of largest variation about the mean of the states; ``"svd"``, directions of largest energy
        about zero; ``"fourier"``, which looks at no data; a `Balance`; or an array (d, k) of directions, whose columns
        need not be orthonormal. ``"paper"`` is the paper's operator: ``"svd"``, no constant, and all directions but
        the last, or those that the data resolve if these are fewer. In the coordinates of a `Balance` or an array,
        states are restored by their regression on the coordinates, and errors are those of the coordinates: the rest of
        a state is not modelled.
    offset
        Fit a constant c too. Without it, and without taking the mean off, the mean of the states is a direction that
        hardly changes: a mode with λ ≈ 1 that passes for memory. With ``basis="paper"`` there is none.
    lengths
        For an array: how many steps of each sequence are real. Without it padding is fitted too.
    driven
        Fit z[t+1] ≈ z[t] C + u[t+1] D + c to states that were recorded with their inputs u: what the network does by
        itself, apart from what its input makes it do. ``"bilinear"`` also lets features φ of the input change the
        matrix, z[t] C + φ D + c + Σ φ_k z[t] E_k, which gives a `Bilinear`: gated networks multiply.
    features
        With ``driven="bilinear"``, the functions φ of the inputs: ``"inputs"`` (the default), ``"squares"`` for them
        and their squares, ``"products"`` for them and the products of all pairs, ``"pca"``, ``"fourier"`` for random
        Fourier features, ``"tokens"`` for a column for each token; one of `kann.features`, such as
        ``kann.features.Components(128)``; or a function from inputs (n, p) to (n, k).
    lift
        With ``driven="bilinear"``, ``"squares"`` adds products z_i z_j of coordinates to what the next state is
        predicted from.
    where
        Which steps to fit: a mask with a truth value for each state, whether the step that reached it counts, or a
        function from inputs (n, p) to such values, as ``lambda u: (u == 0).all(-1)`` for steps without input.
    ridge
        Adds ridge·(|C|² + |D|²) to the sum of squares over all pairs; none by default. Of a bilinear operator it is
        counted per pair, in units of the variance of each column, and chosen on held-out sequences by default.
    groups
        For ``rank="auto"``, and for ridges that are chosen: the source of each sequence, such as a patient, a speaker
        or a text. Sequences of one group are held out together, as `kann.trust` does it.
    over_ranks
        In a program that torch.distributed runs in several processes: each rank passes its own sequences, and all of
        them get the operator of all. Every rank must call it, with the same options.

    Returns
    -------
    Koopman or Bilinear
        The operator; a `Bilinear` with ``driven="bilinear"``.
    """
    is_paper = isinstance(basis, str) and basis == "paper"
    if is_paper:
        basis, offset = "svd", False
    kind = _require_options(driven, features=features, lift=lift, offset=offset, ridge=ridge)
    request = Request(
        rank=parse_rank(rank),
        kind=parse_basis(basis, offset=offset),
        driven=kind == "driven",
        offset=offset,
        ridge=float(ridge or 0),
    )
    chooses_ridge = kind == "bilinear" and ridge is None
    if groups is not None and not (request.rank.is_auto or chooses_ridge):
        raise KannError(
            f"groups= is for rank='auto' and for the ridge of a bilinear operator, which hold groups out; with "
            f"rank={short_repr(rank)} leave it out"
        )
    source = _source(data, lengths, driven=kind != "autonomous")
    if is_paper and rank is None:
        request = replace(request, rank=Rank(count=max(1, source.dim - 1), is_limit=True))
    if where is not None:
        if not isinstance(source, States):
            raise KannError("where= chooses pairs of states, which moments no longer hold; pass states")
        if groups is not None:
            raise KannError("where= cuts sequences into pieces, which groups= would not fit; pass one of the two")
        source, groups = only_pairs(source, where)  # pieces of a sequence are held out together
    require_flag(over_ranks, "over_ranks")
    if over_ranks and not isinstance(source, States):
        raise KannError("over_ranks=True sums over states; of moments call moments.all_reduce() and leave it out")
    if over_ranks and request.rank.is_auto:
        raise KannError("rank='auto' holds sequences of one process out; pass a number with over_ranks=True")
    rows = source.values.shape[0] if isinstance(source, States) else 0
    with summed_over_ranks(over_ranks), threads_for(max(rows, source.dim) * source.dim**2):
        if kind == "bilinear":
            gates: dict[str, Any] = {"features": parse_features(features), "lift": lift is not None, "ridge": ridge}
            return _fit_bilinear(source, request, groups=groups, **gates)
        return _fit_linear(source, request, groups)


def _require_options(driven: Any, *, features: Any, lift: Any, offset: Any, ridge: Any) -> str:
    """Raise if options contradict each other; return the kind of operator that is asked for."""
    require_flag(offset, "offset")
    if isinstance(driven, str):
        require_choice(driven, "driven", ("bilinear",))
        kind = "bilinear"
    else:
        require_flag(driven, "driven")
        kind = "driven" if driven else "autonomous"
    if kind != "autonomous" and not offset:
        raise KannError(f"a {kind} operator has an offset, which the mean of its inputs needs; leave offset=False out")
    if kind != "bilinear" and (features is not None or lift is not None):
        raise KannError("features= and lift= are for inputs that gate; pass driven='bilinear' with them")
    if lift is not None:
        require_choice(lift, "lift", ("squares",))
    require_ridge(ridge)
    return kind


def _fit_bilinear(source: States | Moments, request: Request, **gates: Any) -> Bilinear:
    """Fit a gated step in a basis from the states."""
    if not isinstance(source, States):
        raise KannError("driven='bilinear' multiplies states and features, which moments do not hold; pass states")
    if request.rank.is_auto:
        raise KannError("rank='auto' is for operators without gates; pass a number, such as rank=24")
    pairs = _read(source, request)
    for message in pairs.doubts:
        warnings.warn(message, PrecisionWarning, stacklevel=3)
    koopman, count, unknowns = fit_bilinear(source, pairs.basis, pairs.variance, **gates)
    _warn_of_few(count, unknowns, remedy="a smaller rank, or fewer features", stacklevel=4)
    return koopman


def _fit_linear(source: States | Moments, request: Request, groups: Any) -> Koopman:
    """Fit an autonomous or a driven operator."""
    curve = None
    if request.rank.is_auto:
        if not isinstance(source, States):
            raise KannError("rank='auto' needs states, some of which are held out; pass them, or a number")
        most = Rank(count=LARGEST_AUTO_RANK, is_limit=True) if source.dim >= TWO_READINGS_FROM else Rank()
        curve = rank_curve(source, _read(source, replace(request, rank=most)).basis, request, groups=groups)
        request = replace(request, rank=Rank(count=curve.chosen))
    pairs = _read(source, request)
    step = pairs.step(offset=request.offset, ridge=request.ridge)
    if isinstance(source, States) and pairs.need_qr(step):
        pairs = read_by_qr(source, request, pairs.first)
        step = pairs.step(offset=request.offset, ridge=request.ridge)
    _warn(pairs, step, of_moments=isinstance(source, Moments))
    spectrum = decompose(step.matrix, device_of=source.sum_h if isinstance(source, Moments) else source.values[:0])
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
        decoder=pairs.basis.decoder,
    )


def _read(source: States | Moments, request: Request) -> PairsInBasis:
    """Read a basis and the pairs in it, in the cheapest way."""
    largest = request.largest
    if not isinstance(source, States) or largest is None or source.dim < max(TWO_READINGS_FROM, 4 * largest):
        return read_once(source, request)
    if request.kind.own is not None:
        return read_along(source, request)
    # Over ranks moments are summed on their devices, which Gram matrices alone are not.
    return read_once(source, request) if are_summed_over_ranks() else read_twice(source, request)


def _warn(pairs: PairsInBasis, step: LinearStep, *, of_moments: bool) -> None:
    """Warn of rounding, of a rank that is too large for the data, and of inputs that almost determine the state."""
    for message in filter(None, (*pairs.doubts, pairs.doubt_of_digits(step, of_moments=of_moments))):
        warnings.warn(message, PrecisionWarning, stacklevel=4)
    unknowns = len(pairs.equations.gram) - (step.offset is None)
    if _warn_of_few(pairs.equations.pairs, unknowns, remedy="a smaller rank", stacklevel=5):
        return
    if step.dependence > 1 - 1 / LARGEST_INFLATION:
        warnings.warn(
            f"the inputs almost determine a direction of the previous state (R² = 1 − {1 - step.dependence:.0e}), so "
            "their effects cannot be separated and eigenvalues may be arbitrary; leave out inputs that hold the state",
            DependenceWarning,
            stacklevel=4,
        )


def _warn_of_few(count: int, unknowns: int, *, remedy: str, stacklevel: int) -> bool:
    """Warn of fewer pairs than the unknowns need; return whether there were too few."""
    if count >= PAIRS_PER_UNKNOWN * unknowns:
        return False
    warnings.warn(
        f"{count} pairs of states for {unknowns} unknowns in each column of the operator: it fits noise as well as "
        f"the network; pass more sequences, or {remedy}, so that at most {count // PAIRS_PER_UNKNOWN} unknowns remain",
        FewPairsWarning,
        stacklevel=stacklevel,
    )
    return True


def _source(data: States | Moments | AnyArray, lengths: Any, *, driven: bool) -> States | Moments:
    """Return the data as states that can be read more than once, or as moments."""
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
