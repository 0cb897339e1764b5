"""How many digits rounding leaves of a fit: when to read states again, and what to warn of."""

import math

import numpy as np

from kann.fitting.basis import ROUNDINGS, StateSVD
from kann.fitting.rank import Rank
from kann.fitting.regression import LinearStep
from kann.typing import Array, Float

EPS = float(np.finfo(np.float64).eps)

GRAM_TOLERANCE = 1e-10
"""Relative error of C that the rounding of products, ε·(σ₁/σᵣ)², may cause before float64 states are read again."""

DOUBTED_FROM = 1e-6
"""Relative error of the operator from which a warning says so, and from which states of lower precision are read again
if the error comes from their mean."""

LOST_IN_BASIS = (
    "the states have directions too small to be seen beside the others in this basis, and what belongs to them is "
    "lost; pass basis='svd' or basis='pca', or scale the units alike"
)
"""What to warn of if `directions_are_lost`."""

SMALL_VARIATION = 1e-4
"""States of lower precision that vary by less than this fraction of their size may be exact, as whole numbers are: then
it is their products that are coarse."""

FEW_ROUNDINGS = 100
"""States that vary by less than so many times their noise floor have hardly two digits."""


def gram_is_too_coarse(svd: StateSVD, rank: Rank, *, norm: float, rounding: float, ridge: float) -> bool:
    """Whether float64 states have directions that their Gram matrix cannot give to `GRAM_TOLERANCE`.

    States of lower precision never do: their own rounding changes C by ε₃₂·σ₁/σᵣ, which is above ε₆₄·(σ₁/σᵣ)² as far
    down as they resolve anything. A ridge covers what the Gram matrix gets wrong if it is large enough.
    """
    if rounding > EPS:
        return False
    needed = min(rank.count or len(svd.values), len(svd.values))
    smallest = svd.values[needed - 1]
    return bool(EPS * norm**2 > GRAM_TOLERANCE * (smallest**2 + ridge))


def step_is_too_coarse(step: LinearStep, rounding: float) -> bool:
    """Whether another reading of the states, about their mean, would give more digits of the step."""
    if rounding > EPS:
        return step.mean_error > DOUBTED_FROM
    return step.mean_error > GRAM_TOLERANCE or step.error > DOUBTED_FROM


def directions_are_lost(
    gram: Float[Array, "k k"], squares: Float[Array, " k"], matrix: Float[Array, "k r"], *, floor: float
) -> bool:
    """Whether coordinates Z have directions that the products of Z @ matrix no longer show.

    ``gram`` is ZᵀZ, perhaps about a mean, and ``squares`` are the energies relative to which it is rounded. A factor
    of it shows singular values of Z @ matrix whose squares are below ``floor``, the rounding of the products.
    """
    scale = np.sqrt(np.where(squares > 0, squares, 1.0))
    values, rotation = np.linalg.eigh(gram / scale[:, None] / scale)
    values = np.where(values > floor, values, 0.0)
    factor = np.sqrt(values)[:, None] * (rotation.T @ (scale[:, None] * matrix))
    norms = np.linalg.norm(scale[:, None] * matrix, axis=0)
    singular = np.linalg.svd(factor / np.where(norms > 0, norms, 1.0), compute_uv=False)
    return bool(np.any((singular > 10 * len(gram) * EPS) & (singular**2 <= floor)))


def doubt_of_digits(step: LinearStep, *, is_fine: bool, of_moments: bool) -> str | None:
    """What to warn of if rounding of products or of means leaves few digits of the operator.

    ``is_fine`` says that the states themselves are better than that, so that it is not their own rounding that counts.
    """
    error = step.mean_error
    if is_fine:
        error = max(error, step.error)
    if error <= DOUBTED_FROM:
        return None
    remedy = "scale the columns alike, and leave out those that nearly repeat others"
    if of_moments:
        remedy = "pass the states, which are then read again, or take a constant near the mean off before recording"
    digits = "no digits"
    if error < 0.1:
        digits = f"about {math.floor(-math.log10(error))} digits"
    return f"rounding leaves {digits} of the operator (relative error {error:.0e}); {remedy}"


def doubt_of_moments(svd: StateSVD, squares: Float[Array, " d"]) -> str | None:
    """What to warn of if moments of float64 states hide directions that these may have."""
    live = int(np.sum(squares > 0))
    if svd.resolved >= live:
        return None
    return (
        f"the moments tell {svd.resolved} of {live} directions of the states from rounding, and left out smaller ones "
        "if there are any; pass the states, which are then read again"
    )


def doubt_of_variation(svd: StateSVD, squares: Float[Array, " d"], *, variation: float, rounding: float) -> str | None:
    """What to warn of if directions were left out of states that hardly vary, as a fraction of their size."""
    left_out = int(np.sum(squares > 0)) - svd.resolved
    # Below √ε the variation is itself what rounding leaves of two sums.
    if left_out <= 0 or not EPS**0.5 < variation < FEW_ROUNDINGS * ROUNDINGS * rounding / len(squares) ** 0.5:
        return None
    return (
        f"the states vary by {variation:.0e} of their size, which leaves about two digits or fewer of their variation, "
        f"and {left_out} directions were left out as rounding noise; record the states in float64, or take a constant "
        "near their mean off first"
    )
