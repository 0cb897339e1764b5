"""The least-squares fit of one step, from second moments."""

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from kann.data.moments import Moments, centred
from kann.fitting.basis import GRAM_NOISE
from kann.typing import Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinearStep:
    """One step of the linear system, z[t+1] ≈ z[t] C + u[t+1] D + c, and how well it fits."""

    matrix: Float[Array, "r r"]
    """C"""
    drive: Float[Array, "p r"] | None
    """D, or None for an autonomous system."""
    offset: Float[Array, " r"] | None
    """c, or None for an autonomous system."""
    residual_gram: Float[Array, "r r"]
    """EᵀE, where the rows of E are z[t+1] − z[t] C − u[t+1] D − c."""
    state_gram: Float[Array, "r r"]
    """XᵀX in the basis; of a driven system about the mean of the pairs, which its offset explains."""


def regress(moments: Moments, shift: Float[Array, " r"], *, driven: bool, ridge: int | float) -> LinearStep:
    """Minimise Σ |z C + u D + c − z₊|² + ridge·(|C|² + |D|²): without u and c, the paper's equation for C.

    ``moments`` are those of coordinates in the basis, from which ``shift`` is still to be taken off.
    """
    if driven:
        return _driven(moments, shift, ridge=ridge)
    n, x, y = moments.pairs, moments.sum_x, moments.sum_y
    xx = _shifted(moments.xx, x, x, shift, n)
    xy = _shifted(moments.xy, x, y, shift, n)
    yy = _shifted(moments.yy, y, y, shift, n)
    matrix = solve(xx, xy, squares=np.diag(moments.xx), ridge=ridge, rounding=moments.rounding)
    residual = residual_gram(xx, xy, yy, matrix)
    return LinearStep(matrix=matrix, drive=None, offset=None, residual_gram=residual, state_gram=xx)


def _driven(moments: Moments, shift: Float[Array, " r"], *, ridge: int | float) -> LinearStep:
    """The fit with inputs and an offset, which makes it a regression about the means."""
    n, x, y, u = moments.pairs, moments.sum_x, moments.sum_y, moments.sum_u
    xx, xu = centred(moments.xx, x, x, n), centred(moments.xu, x, u, n)
    yy, uu = centred(moments.yy, y, y, n), centred(moments.uu, u, u, n)
    design = np.block([[xx, xu], [xu.T, uu]])
    target = np.vstack([centred(moments.xy, x, y, n), centred(moments.uy, u, y, n)])
    squares = np.concatenate([np.diag(moments.xx), np.diag(moments.uu)])
    coarsest = max(moments.rounding, moments.input_rounding)
    weights = solve(design, target, squares=squares, ridge=ridge, rounding=coarsest)
    matrix, drive = weights[: len(x)], weights[len(x) :]
    return LinearStep(
        matrix=matrix,
        drive=drive,
        offset=(y / n - shift) - (x / n - shift) @ matrix - (u / n) @ drive,
        residual_gram=residual_gram(design, target, yy, weights),
        state_gram=xx,
    )


def _shifted(
    products: Float[Array, "r r"],
    left: Float[Array, " r"],
    right: Float[Array, " r"],
    shift: Float[Array, " r"],
    n: int,
) -> Float[Array, "r r"]:
    """Σ(a − shift)(b − shift)ᵀ from Σabᵀ, Σa and Σb."""
    if not shift.any():
        return products
    return products - np.outer(shift, right) - np.outer(left, shift) + n * np.outer(shift, shift)


def residual_gram(
    design: Float[Array, "q q"], target: Float[Array, "q r"], total: Float[Array, "r r"], weights: Float[Array, "q r"]
) -> Float[Array, "r r"]:
    """The Gram matrix of the residuals Y − A W from AᵀA, AᵀY and YᵀY."""
    cross = weights.T @ target
    return total - cross - cross.T + weights.T @ design @ weights


def solve(
    gram: Float[Array, "q q"],
    target: Float[Array, "q r"],
    *,
    squares: Float[Array, " q"],
    ridge: int | float,
    rounding: float,
) -> Float[Array, "q r"]:
    """Least-squares weights W of AᵀA W = AᵀY, those of smallest norm where the data leave them open.

    ``squares`` are the sums of squares of the columns of A before a mean was taken off. Scaling by them keeps
    directions of little energy as accurate as the others, and shows what of a column is rounding of its mean.
    """
    energy = squares + ridge
    used = np.flatnonzero(energy > 0)
    scale = np.sqrt(energy[used])[:, None]
    unit = (gram[np.ix_(used, used)] + ridge * np.eye(len(used))) / (scale * scale.T)
    weights = np.zeros_like(target)
    if len(used):
        # Below this there is rounding noise only: of the factorisation, of the products, or of the states.
        floor = max(len(unit) * np.finfo(np.float64).eps, 8 * GRAM_NOISE, rounding**2)
        weights[used] = _solve_scaled(unit, target[used] / scale, scale, floor=floor)
    return weights


def _solve_scaled(
    unit: Float[Array, "q q"], target: Float[Array, "q r"], scale: Float[Array, "q 1"], *, floor: float
) -> Float[Array, "q r"]:
    """Weights of the scaled problem, scaled back: those of smallest norm if its columns depend on each other."""
    if _reciprocal_condition(unit) > floor:
        return np.linalg.solve(unit, target) / scale
    values, vectors = np.linalg.eigh(unit)
    kept, null = vectors[:, values > floor], vectors[:, values <= floor] / scale
    weights = kept @ ((kept.T @ target) / values[values > floor, None]) / scale
    # What remains open changes no prediction, since its columns of A cancel: take off the part along it.
    return weights - null @ np.linalg.lstsq(null, weights, rcond=None)[0]


def _reciprocal_condition(matrix: Float[Array, "q q"]) -> float:
    """LAPACK's estimate of 1/(|M| |M⁻¹|) for a symmetric matrix; 0 if it is not positive definite.

    The pivots of a Cholesky factor alone do not tell: without exchange of rows they can all be large although columns
    depend on each other.
    """
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return 0.0
    (estimate,) = scipy.linalg.get_lapack_funcs(("pocon",), (factor,))
    reciprocal, _ = estimate(factor, np.abs(matrix).sum(axis=0).max(), uplo="L")
    return float(reciprocal)
