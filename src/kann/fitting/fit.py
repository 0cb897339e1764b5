"""Fit one linear operator to how hidden states evolve."""

import warnings
from typing import Any

from kann.checks import require_flag, require_number
from kann.data.moments import Moments
from kann.data.states import States, as_states
from kann.errors import KannError, PrecisionWarning
from kann.fitting.basis import parse_basis
from kann.fitting.koopman import Koopman
from kann.fitting.precision import doubt_of_digits, step_is_too_coarse
from kann.fitting.rank import parse_rank
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

    >>> import numpy as np
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
    if not ridge >= 0:
        raise KannError(f"ridge={ridge} would reward large operators; pass ridge>=0")
    request = Request(rank=parse_rank(rank), kind=parse_basis(basis), driven=driven, ridge=float(ridge))
    source = _source(data, lengths, driven=driven)
    if isinstance(source, States) and _is_wide(source, request):
        pairs = read_twice(source, request)
    else:
        pairs = read_once(source, request)
    step = _regress(pairs, request)
    if isinstance(source, States) and not pairs.is_final and step_is_too_coarse(step, pairs.moments.rounding):
        pairs = read_in_orthonormal_coordinates(source, request, pairs.first)
        step = _regress(pairs, request)
    doubt = doubt_of_digits(step, is_fine=pairs.is_fine, of_moments=isinstance(source, Moments))
    for message in filter(None, (*pairs.doubts, doubt)):
        warnings.warn(message, PrecisionWarning, stacklevel=2)
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
        ridge=request.ridge,
    )
