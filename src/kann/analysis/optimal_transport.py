"""The cheapest way to move what lies at some points to others: a transport simplex, exact, for unequal amounts.

A general solver of linear programs spends most of its time on preparations: it took ten times as long as this for the
spectra of two operators of 32 units, and twice as long for 100 points on each side.
"""

import numpy as np

from kann.errors import KannError
from kann.typing import Array, Float, Int

PERTURBATION = 1e-13
"""All amounts together are changed by this fraction while ways are chosen, so that no step moves nothing: that is how a
simplex would come to turn in a circle. The result is of the true amounts."""

NO_CHEAPER = 1e-13
"""A way that saves less than this fraction of the largest cost saves nothing: rounding."""

MOST_EXCHANGES = 100
"""Exchanges for each point after which the search is given up; 4 for each point is the most that was seen."""


def least_cost(cost: Float[Array, "n m"], leaving: Float[Array, " n"], arriving: Float[Array, " m"]) -> float:
    """The least cost of moving what leaves some points to where it arrives; both amounts add up to the same.

    >>> least_cost(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.5, 0.5]), np.array([0.2, 0.8]))
    0.3

    The search starts with the first points going to the first ones. It ends soonest if both sides are sorted such that
    this is nearly right.
    """
    n, m = cost.shape
    slack = PERTURBATION * float(leaving.sum()) / n
    more_arriving = arriving.copy()
    more_arriving[-1] += n * slack
    ways = _Ways(cost, *_first_ways(leaving + slack, more_arriving))
    amounts = ways.amounts(leaving + slack, more_arriving)
    tolerance = NO_CHEAPER * float(cost.max())
    for _ in range(MOST_EXCHANGES * (n + m)):
        saving, i, j = ways.cheapest()
        if saving <= tolerance:
            return float(ways.costs @ ways.amounts(leaving, arriving))
        ways.exchange(i, j, saving, amounts)
    raise KannError(f"no transport between {n} and {m} points was found; pass operators of lower rank")


def _first_ways(leaving: Float[Array, " n"], arriving: Float[Array, " m"]) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
    """From where and to where things go if the first points go to the first ones: n + m − 1 ways."""
    ends = np.concatenate([np.cumsum(leaving)[:-1], np.cumsum(arriving)[:-1]])
    next_row = np.argsort(ends, kind="stable") < len(leaving) - 1
    return np.concatenate([[0], np.cumsum(next_row)]), np.concatenate([[0], np.cumsum(~next_row)])


class _Ways:
    """The n + m − 1 ways in use, which join all points without a circle.

    Each amount is then a sum of what leaves and arrives with factors 1, 0 and −1. So the inverse of the equations is
    made of these three numbers, and an exchange of one way for another changes it without rounding.
    """

    def __init__(self, cost: Float[Array, "n m"], rows: Int[Array, " k"], columns: Int[Array, " k"]):
        n, m = cost.shape
        numbers = np.arange(n + m - 1)
        equations = np.zeros((n + m, n + m - 1))
        equations[rows, numbers] = equations[n + columns, numbers] = 1.0
        self._cost = cost
        self._inverse = np.round(np.linalg.inv(equations[:-1]))  # the last equation follows from the others
        self.costs = cost[rows, columns]
        """What each way costs."""
        self._prices = self.costs @ self._inverse

    def amounts(self, leaving: Float[Array, " n"], arriving: Float[Array, " m"]) -> Float[Array, " k"]:
        """How much takes each way."""
        return self._inverse @ np.concatenate([leaving, arriving[:-1]])

    def cheapest(self) -> tuple[float, int, int]:
        """The way that would save most, as what it saves, from where and to where."""
        n, m = self._cost.shape
        saving = self._prices[:n, None] - self._cost
        saving[:, :-1] += self._prices[n:]
        i, j = divmod(int(saving.argmax()), m)
        return float(saving[i, j]), i, j

    def exchange(self, i: int, j: int, saving: float, amounts: Float[Array, " k"]) -> None:
        """Send as much as possible from i to j, and give up the way that is empty then; change ``amounts`` too."""
        n, m = self._cost.shape
        less = self._inverse[:, i].copy()
        if j < m - 1:
            less += self._inverse[:, n + j]
        emptied = np.flatnonzero(less > 0)
        given_up = emptied[amounts[emptied].argmin()]
        row, moved = self._inverse[given_up].copy(), amounts[given_up]
        changed = np.flatnonzero(less)
        amounts[changed] -= moved * less[changed]
        self._inverse[changed] -= less[changed, None] * row
        amounts[given_up], self._inverse[given_up] = moved, row
        self._prices -= saving * row
        self.costs[given_up] = self._cost[i, j]
