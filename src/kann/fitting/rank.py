"""How many basis directions to keep, as users say it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.checks import shown
from kann.errors import KannError
from kann.typing import Array, Float, Int, Shaped

TOLERANCE = 0.05
"""``rank="auto"`` takes the smallest rank whose error is within this fraction of the best rank's, …"""

NEGLIGIBLE = 0.01
"""… or exceeds it by no more than this fraction of what copying the state misses: where an operator is nearly exact, no
rank but the largest would be within a fraction of its tiny error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A number of directions, a fraction of explained variance, or (if neither is set) all directions."""

    count: int | None = None
    fraction: float | None = None
    is_limit: bool = False
    """Whether ``count`` is only the most that is wanted."""
    is_auto: bool = False
    """Whether held-out sequences are to choose the number."""

    def columns(self, explained: Float[Array, " r"], *, of_units: bool) -> int:
        """How many of the columns that explain these fractions of the variance are kept.

        ``of_units`` says that there is a column for every hidden unit, for the words of an error.
        """
        available = len(explained)
        if self.fraction is not None:
            # A fraction that rounding keeps just out of reach means everything.
            reached = np.searchsorted(np.cumsum(explained), self.fraction * (1 - 1e-12))
            return min(int(reached) + 1, available)
        if self.count is None:
            return available
        if self.is_limit:
            return min(self.count, available)
        if self.count > available:
            what = "columns of the basis"
            if of_units:
                what = "hidden units recorded"
            raise KannError(f"rank={self.count} exceeds the {available} {what}; pass rank<={available} or rank=None")
        return self.count


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankCurve:
    """Held-out errors of operators of several ranks: what ``rank="auto"`` chose from."""

    ranks: Int[Array, " k"]
    """The ranks that were tried."""
    horizons: Int[Array, " h"]
    """How many steps ahead states were predicted."""
    errors: Float[Array, "k h"]
    """The errors of each rank on held-out sequences, as fractions of the variance."""
    copying: Float[Array, " h"]
    """The errors of copying the state instead."""

    @property
    def chosen(self) -> int:
        """The smallest rank that is nearly as good as the best: in the mean over all horizons, and at the longest."""
        mean = self.errors.mean(axis=1)
        near = _is_near_best(mean, self.copying.mean()) & _is_near_best(self.errors[:, -1], self.copying[-1])
        if not near.any():  # one rank has the best mean, another is best in the end
            return int(self.ranks[mean.argmin()])
        return int(self.ranks[near].min())


def _is_near_best(errors: Float[Array, " k"], copying: float | np.floating) -> Shaped[Array, " k"]:
    """Which errors are within the tolerance of the smallest."""
    best = errors.min()
    return errors <= best + max(TOLERANCE * best, NEGLIGIBLE * copying)


def parse_rank(rank: Any) -> Rank:
    """Read a whole number, a fraction of explained variance such as 0.99, "auto", or None for all directions."""
    if rank is None:
        return Rank()
    if isinstance(rank, str) and rank == "auto":
        return Rank(is_auto=True)
    if isinstance(rank, bool) or not isinstance(rank, int | float | np.number):
        raise KannError(
            f"rank={shown(rank)} is no number; pass a whole number, a fraction such as 0.99, 'auto' or None"
        )
    if isinstance(rank, float | np.floating):
        if not 0 < rank <= 1:
            raise KannError(f"rank={rank} is no fraction of explained variance; pass 0 < rank <= 1, or a whole number")
        return Rank(fraction=float(rank))
    if rank < 1:
        raise KannError(f"rank={rank} keeps nothing; pass rank>=1 or rank=None")
    return Rank(count=int(rank))
