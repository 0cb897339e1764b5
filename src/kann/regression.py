"""The least-squares fit of one step, from second moments."""

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from kann.basis import GRAM_NOISE, Basis
from kann.moments import Moments
from kann.typing import Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Coordinates:
    """How the rows a of which there are moments relate to states: h − mean = (a − shift) @ back."""

    back: Float[Array, "k d"]
    shift: Float[Array, " k"]


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
    """XᵀX in the basis, about its mean."""


def regress(moments: Moments, basis: Basis, at: Coordinates, *, driven: bool, ridge: float) -> Step:
    """Minimise Σ |z C + u D + c − z₊|² + ridge·(|C|² + |D|²), the paper's equation for C where there is no u and no c."""
    to_basis = at.back @ basis.vectors
    shift = at.shift @ to_basis
    n = moments.pairs
    x, y = moments.sum_x @ to_basis, moments.sum_y @ to_basis
    xx, xy, yy = (to_basis.T @ gram @ to_basis for gram in (moments.xx, moments.xy, moments.yy))
    energy = _about(xx, x, x, shift, n)
    if driven:
        return _driven(moments, to_basis, (x / n - shift, y / n - shift), (xx, xy, yy), energy, ridge)
    xy, yy = _about(xy, x, y, shift, n), _about(yy, y, y, shift, n)
    matrix = solve(energy, xy, ridge=ridge, rounding=moments.rounding)
    return Step(matrix=matrix, drive=None, offset=None, error=_missed(energy, xy, yy, matrix), energy=energy)


def _driven(
    moments: Moments,
    to_basis: Float[Array, "k r"],
    means: tuple[Array, Array],
    grams: tuple[Array, Array, Array],
    energy: Float[Array, "r r"],
    ridge: float,
) -> Step:
    """Regress on states and inputs together; the offset makes it a regression about the means."""
    (mean_x, mean_y), (xx, xy, yy), n = means, grams, moments.pairs
    r, u = len(mean_x), moments.sum_u
    x, y = moments.sum_x @ to_basis, moments.sum_y @ to_basis
    xu, uy = to_basis.T @ moments.xu - np.outer(x, u) / n, moments.uy @ to_basis - np.outer(u, y) / n
    xx, xy, yy = xx - np.outer(x, x) / n, xy - np.outer(x, y) / n, yy - np.outer(y, y) / n
    design = np.block([[xx, xu], [xu.T, moments.uu - np.outer(u, u) / n]])
    target = np.vstack([xy, uy])
    weights = solve(design, target, ridge=ridge, rounding=moments.rounding)
    matrix, drive = weights[:r], weights[r:]
    offset = mean_y - mean_x @ matrix - (u / n) @ drive
    error = _missed(design, target, yy, weights)
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
    gram: Float[Array, "q q"], target: Float[Array, "q r"], *, ridge: float, rounding: float
) -> Float[Array, "q r"]:
    """Least-squares weights W of AᵀA W = AᵀY, those of smallest norm where the data leave them open.

    Scaling to a unit diagonal first keeps directions of little energy as accurate as the others. A Cholesky
    factorisation does nearly always, at a tenth of the cost of the eigenvalues that a rank-deficient system needs.
    """
    gram = gram + ridge * np.eye(len(gram))
    scale = np.sqrt(np.maximum(np.diag(gram), 0.0))
    scale[scale == 0] = 1.0
    unit = gram / np.outer(scale, scale)
    # Below this share of the largest eigenvalue there is rounding noise only: of the product, or of the states.
    floor = max(8 * GRAM_NOISE, rounding**2)
    factor, failed = scipy.linalg.lapack.dpotrf(unit, lower=1)
    if not failed:
        reciprocal_condition, _ = scipy.linalg.lapack.dpocon(factor, np.linalg.norm(unit, 1), uplo="L")
        if reciprocal_condition > floor:
            return scipy.linalg.cho_solve((factor, True), target / scale[:, None]) / scale[:, None]
    values, vectors = np.linalg.eigh(unit)
    kept = values > floor * values[-1]
    seen, unseen = vectors[:, kept], vectors[:, ~kept]
    weights = (seen / values[kept]) @ (seen.T @ (target / scale[:, None])) / scale[:, None]
    null = np.linalg.qr(unseen / scale[:, None])[0]
    return weights - null @ (null.T @ weights)
