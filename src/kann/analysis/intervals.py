"""Confidence intervals: jackknife errors over folds, Student's and Wilson's intervals."""

from typing import Any

import numpy as np

from kann.checks import require_number
from kann.errors import KannError
from kann.typing import Array, Float, Int, Shaped


def require_level(level: float) -> float:
    """Return a confidence level, or raise if it is not between 0 and 1."""
    checked = require_number(level, "level", remedy="pass 0 < level < 1")
    if not 0 < checked < 1:
        raise KannError(f"level={level} is no confidence level; pass 0 < level < 1")
    return checked


def student_width(level: float, freedom: int | float | Shaped[Array, "..."]) -> Any:
    """Return how many standard errors an interval reaches to each side, by Student's t distribution.

    >>> round(float(student_width(0.95, 4)), 4)
    2.7764
    """
    from scipy.special import stdtrit  # here, since it takes long to import; scipy.stats takes ten times as long

    return stdtrit(freedom, (1 + level) / 2)


def jackknife_error(replicates: Float[Array, "f m"]) -> Float[Array, " m"]:
    """Return the standard error of a quantity from its values without each of f folds.

    It is √((f − 1)/f · Σ (value − mean)²). Folds may have unequal sizes if the interval has the degrees of freedom of
    `jackknife_freedom`. The jackknife that knows the sizes (delete-m_j; Busing et al. 1999) is far too small where all
    sequences of a fold share a value.
    """
    f = len(replicates)
    return np.sqrt((f - 1) / f * np.sum((replicates - replicates.mean(axis=0)) ** 2, axis=0))


def jackknife_freedom(shares: Float[Array, "f m"]) -> Float[Array, " m"]:
    """Return the degrees of freedom of jackknife errors over folds that hold these shares of the information.

    Where the sequences of a fold share a value, the fold varies in proportion to the square of its share, and few folds
    count where these are unequal: Satterthwaite's (Σ s²)² / Σ s⁴ − 1, which is f − 1 for equal shares. Estimated from
    few shares it is too small in the mean. A third of f − 1 and a bit are then the least: without them intervals of
    equal sequences cover 98 to 99 %.

    >>> jackknife_freedom(np.array([[0.25, 0.7], [0.25, 0.1], [0.25, 0.1], [0.25, 0.1]])).round(2).tolist()
    [3.0, 1.9]
    """
    squares, f = shares**2, len(shares)
    energy = np.sum(squares**2, axis=0)
    counted = np.sum(squares, axis=0) ** 2 / np.where(energy > 0, energy, 1.0) - 1
    return np.maximum(counted, (f - 1) / 3 + 0.9)


def interval_of_mean(
    scores: Float[Array, " s"], level: float, groups: Int[Array, " s"] | None = None
) -> tuple[float, float]:
    """Return the interval of a mean over sequences: Wilson's for scores of 0 or 1, else Student's or a normal one.

    Sequences with the same number in ``groups`` count as one where they are alike: errors are those of sums over groups
    (cluster-robust), and Wilson's interval has the number of independent scores with that error. Without a difference
    between scores to go by, each group is one score.

    >>> low, high = interval_of_mean(np.ones(50), 0.95)
    >>> round(low, 3), high
    (0.929, 1.0)
    >>> round(interval_of_mean(np.ones(50), 0.95, np.arange(50) % 5)[0], 3)
    0.393
    """
    from scipy.special import ndtri  # here, since it takes long to import

    n, mean, z = len(scores), float(scores.mean()), float(ndtri((1 + level) / 2))
    count, error = n, float(scores.std(ddof=min(1, n - 1))) / np.sqrt(n)
    if groups is not None and len(np.unique(groups)) < n:
        number = np.unique(groups, return_inverse=True)[1].reshape(-1)
        sizes, sums = np.bincount(number), np.bincount(number, weights=scores - mean)
        g = len(sizes)
        error = float(np.sqrt(g / max(1, g - 1) * np.sum(sums**2))) / n
        fewest = n**2 / np.sum(sizes**2)
        count = np.clip(mean * (1 - mean) / error**2, fewest, n) if error > 0 else fewest
        z = float(student_width(level, max(1, g - 1)))
    if np.isin(scores, (0.0, 1.0)).all():  # the normal interval of 50 successes in 50 would have no width
        middle = (mean + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z / (1 + z**2 / count) * np.sqrt(mean * (1 - mean) / count + z**2 / (4 * count**2))
        return max(0.0, float(middle - half)), min(1.0, float(middle + half))
    return mean - z * error, mean + z * error
