"""The least-squares fit of one step, from second moments."""

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from kann.data.moments import Moments, centred
from kann.fitting.basis import GRAM_NOISE
from kann.typing import Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Step:
    """One step of the linear system, z[t+1] ≈ z[t] C + u[t+1] D + c, and how well it fits."""

    matrix: Float[Array, "r r"]
    """C"""
    drive: Float[Array, "p r"] | None
    """D, or None for an autonomous system."""
    offset: Float[Array, " r"] | None
    """c, or None for an autonomous system."""
    error: Float[Array, "r r"]
    """EᵀE, where E holds what the step misses, pair by pair."""
    energy: Float[Array, "r r"]
    """XᵀX in the basis; of a driven system about the mean of the pairs, which its offset explains."""


def regress(moments: Moments, shift: Float[Array, " r"], *, driven: bool, ridge: int | float) -> Step:
    """Minimise Σ |z C + u D + c − z₊|² + ridge·(|C|² + |D|²): without u and c, the paper's equation for C.

    ``moments`` are those of coordinates in the basis, from which ``shift`` is still to be taken off.
    """
    n, x, y = moments.pairs, moments.sum_x, moments.sum_y
    xx, xy, yy = moments.xx, moments.xy, moments.yy
    if not driven:
        design, target, total = (_about(*part, shift, n) for part in ((xx, x, x), (xy, x, y), (yy, y, y)))
        matrix = solve(design, target, size=np.diag(xx), ridge=ridge, rounding=moments.rounding)
        error = _missed(design, target, total, matrix)
        return Step(matrix=matrix, drive=None, offset=None, error=error, energy=design)
    # The offset makes it a regression about the means.
    r, u = len(x), moments.sum_u
    xu, uy = centred(moments.xu, x, u, n), centred(moments.uy, u, y, n)
    energy = centred(xx, x, x, n)
    design = np.block([[energy, xu], [xu.T, centred(moments.uu, u, u, n)]])
    target = np.vstack([centred(xy, x, y, n), uy])
    size = np.concatenate([np.diag(xx), np.diag(moments.uu)])
    coarsest = max(moments.rounding, moments.input_rounding)
    weights = solve(design, target, size=size, ridge=ridge, rounding=coarsest)
    matrix, drive = weights[:r], weights[r:]
    offset = (y / n - shift) - (x / n - shift) @ matrix - (u / n) @ drive
    error = _missed(design, target, centred(yy, y, y, n), weights)
    return Step(matrix=matrix, drive=drive, offset=offset, error=error, energy=energy)


def _about(
    gram: Float[Array, "r r"], left: Float[Array, " r"], right: Float[Array, " r"], shift: Float[Array, " r"], n: int
) -> Float[Array, "r r"]:
    """Σ(a − shift)(b − shift)ᵀ from Σabᵀ, Σa and Σb."""
    if not shift.any():
        return gram
    return gram - np.outer(shift, right) - np.outer(left, shift) + n * np.outer(shift, shift)


def _missed(
    design: Float[Array, "q q"], target: Float[Array, "q r"], total: Float[Array, "r r"], weights: Float[Array, "q r"]
) -> Float[Array, "r r"]:
    """Gram of the residuals Y − A W from the Grams AᵀA, AᵀY and YᵀY."""
    cross = weights.T @ target
    return total - cross - cross.T + weights.T @ design @ weights


def solve(
    gram: Float[Array, "q q"],
    target: Float[Array, "q r"],
    *,
    size: Float[Array, " q"],
    ridge: int | float,
    rounding: float,
) -> Float[Array, "q r"]:
    """Least-squares weights W of AᵀA W = AᵀY, those of smallest norm where the data leave them open.

    ``size`` is the sum of squares of each column before a mean was taken off. Scaling by it keeps directions of little
    energy as accurate as the others, and shows what of a column is rounding of its mean. A Cholesky factorisation with
    pivots then tells which columns depend on others, at a fraction of the cost of eigenvalues.
    """
    energy = size + ridge
    alive = np.flatnonzero(energy > 0)
    scale = np.sqrt(energy[alive])
    unit = (gram[np.ix_(alive, alive)] + ridge * np.eye(len(alive))) / np.outer(scale, scale)
    # Below this there is rounding noise only: of the factorisation, of the products, or of the states.
    floor = max(len(unit) * np.finfo(np.float64).eps, 8 * GRAM_NOISE, rounding**2)
    weights = np.zeros_like(target)
    if not len(unit) or unit.diagonal().max() <= floor:  # LAPACK takes the first pivot whatever it is
        return weights
    (pstrf,) = scipy.linalg.get_lapack_funcs(("pstrf",), (unit,))
    factor, pivots, rank, _ = pstrf(unit, lower=1, tol=floor)
    order = alive[pivots - 1]
    scale = scale[pivots - 1, None]
    weights[order[:rank]] = scipy.linalg.cho_solve((factor[:rank, :rank], True), (target[order] / scale)[:rank])
    weights[order] /= scale
    if rank < len(unit):
        weights[order] -= _along_null(factor, rank, scale, weights[order])
    return weights


def _along_null(
    factor: Float[Array, "q q"], rank: int, scale: Float[Array, "q 1"], weights: Float[Array, "q r"]
) -> Float[Array, "q r"]:
    """The part of the weights that changes no prediction, since its columns of A cancel."""
    dependence = scipy.linalg.solve_triangular(factor[:rank, :rank], factor[rank:, :rank].T, trans=1, lower=True)
    null = np.vstack([-dependence, np.eye(len(factor) - rank)]) / scale
    return null @ np.linalg.lstsq(null, weights, rcond=None)[0]
