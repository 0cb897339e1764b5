"""Least squares with a ridge that is in units of the columns' variance, and its choice on held-out sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from kann.errors import KannError
from kann.fitting.designs import Design, sum_of
from kann.fitting.regression import ColumnEnergies, factor_if_independent, noise_floor, solve
from kann.typing import Array, Float

RIDGES = (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Ridges that are tried, for each pair of states. In trials 1e-5 was right for gated networks of 256 units."""

CONSTANT_BELOW = 1e-13
"""A column whose variance is below this fraction of its mean square is constant up to rounding of the sums."""

SAME_ERROR = 1e-13
"""Errors that differ by less are rounding: states that a smaller ridge predicts exactly need no larger one."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class UnitDesign:
    """The normal equations of a design about the means of its columns, each scaled to unit variance."""

    gram: Float[Array, "m m"]
    """Correlations of the columns; a constant column is replaced by one that has none with any other."""
    target: Float[Array, "m r"]
    """Covariances of the unit columns with the next coordinates."""
    mean: Float[Array, " m"]
    scale: Float[Array, " m"]
    target_mean: Float[Array, " r"]

    @staticmethod
    def of(design: Design) -> "UnitDesign":
        """From the sums of a design whose last column is constant."""
        pairs = design.gram[-1, -1]
        mean, target_mean = design.gram[-1, :-1] / pairs, design.target[-1] / pairs
        gram = design.gram[:-1, :-1] / pairs
        squares = np.diag(gram).copy()
        gram -= np.outer(mean, mean)
        variance = np.diag(gram).copy()
        is_constant = variance <= CONSTANT_BELOW * squares
        scale = np.sqrt(np.where(is_constant, 1.0, variance))
        gram /= scale
        gram /= scale[:, None]
        target = (design.target[:-1] / pairs - np.outer(mean, target_mean)) / scale[:, None]
        gram[is_constant], gram[:, is_constant], target[is_constant] = 0.0, 0.0, 0.0
        np.fill_diagonal(gram, 1.0)
        return UnitDesign(gram=gram, target=target, mean=mean, scale=scale, target_mean=target_mean)

    def weights(self, ridge: float) -> Float[Array, "q r"] | None:
        """The weights of all columns, the constant last; None if columns depend on each other and the ridge is small.

        The ridge does not hold the constant down.
        """
        gram = self.gram.copy()
        gram[np.diag_indices_from(gram)] += ridge
        factor = factor_if_independent(gram, noise_floor(len(gram), 0.0))
        if factor is None:
            return None
        return self._unscaled(scipy.linalg.cho_solve((factor.T, False), self.target))

    def smallest_weights(self, ridge: float) -> Float[Array, "q r"]:
        """The weights, the smallest ones where columns depend on each other; slow for thousands of columns."""
        ones = np.ones(len(self.gram))
        energies = ColumnEnergies(multiplied=ones, constant_below=0 * ones)
        floor = noise_floor(len(ones), 0.0)
        found = solve(self.gram, self.target, squares=ones, energies=energies, ridge=ridge, floor=floor)
        return self._unscaled(found.weights)

    def _unscaled(self, weights: Float[Array, "m r"]) -> Float[Array, "q r"]:
        weights = weights / self.scale[:, None]
        return np.vstack([weights, self.target_mean - self.mean @ weights])


def ridge_weights(design: Design, ridge: float) -> Float[Array, "q r"]:
    """The weights of a design with this ridge."""
    unit = UnitDesign.of(design)
    found = unit.weights(ridge)
    if found is None:
        found = unit.smallest_weights(ridge)
    return found


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RidgeCurve:
    """Held-out errors of the ridges that were tried."""

    ridges: Float[Array, " n"]
    errors: Float[Array, " n"]
    """Fraction of the variance of the next coordinates, each scaled to unit variance, that is missed one step ahead on
    held-out sequences; infinite where columns depend on each other too closely for the ridge."""

    @property
    def chosen(self) -> float:
        """The ridge with the smallest error, up to rounding of the sums."""
        return float(self.ridges[np.argmax(self.errors <= self.errors.min() + SAME_ERROR)])


def ridge_curve(designs: Sequence[Design], *, held_out: int, ridges: Sequence[float] = RIDGES) -> RidgeCurve:
    """Errors of all ridges on each of the first ``held_out`` designs, by weights that are fitted to the others."""
    judged, errors = sum_of(designs[:held_out]), np.zeros(len(ridges))
    for design in designs[:held_out]:
        unit = UnitDesign.of(sum_of([other for other in designs if other is not design]))
        for i, ridge in enumerate(ridges):
            weights = unit.weights(ridge)
            if weights is None:
                errors[i] = np.inf
            else:
                errors[i] += design.missed(weights)
    if not np.isfinite(errors).any():
        raise KannError(
            f"no ridge up to {max(ridges)} tells the columns apart on held-out sequences; pass a larger ridge=, or "
            "fewer features"
        )
    mean = judged.target[-1] / judged.pairs
    variance = float(np.trace(judged.total) - judged.pairs * mean @ mean)
    if variance <= 0:  # nothing varies, and every ridge is as good
        variance = 1.0
    return RidgeCurve(ridges=np.array(ridges), errors=np.maximum(errors, 0.0) / variance)
