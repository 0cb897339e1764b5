"""Choose several modes of one operator that are kept together: for each number of them by tests of just as many.

The operator whose single mode keeps most is seldom the one whose eight modes do. So every number of coordinates has a
search of its own, on sequences that are kept for choosing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kann.analysis.coordinates import Coordinates
from kann.fitting.koopman import Koopman
from kann.live.methods import modes_within
from kann.live.ordering import Search, contribution_order, operators_of, rank_live

RANKS_OF_SEVERAL = (4, 8, 12, 16, 24, 32, 64)
"""Ranks of the operators whose modes are kept together. Of the shipped GRU eight modes of ranks 12 to 16 keep 99 % of
the decisions, of rank 8 and of ranks above 24 less than 98 %."""

FIRST_TEST = 4
"""All candidates are tested on one in so many groups of sequences."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Several:
    """Coordinates that were chosen together."""

    name: str
    """Such as "driven, rank 16, slowest"."""
    coordinates: Coordinates


def fit_for_several(search: Search) -> dict[str, Koopman]:
    """The operators that `choose_several` compares, by name."""
    return operators_of(search, RANKS_OF_SEVERAL)


def choose_several(
    operators: Mapping[str, Koopman], search: Search, count: int, *, more: Sequence[Several] = ()
) -> Several | None:
    """The modes of one operator that keep most of the network's score together; None if no operator has so many.

    Of each operator the slowest modes and those of the largest contribution are tried, and the sets in ``more``.
    """
    candidates = list(more)
    for name, koopman in operators.items():
        for each in _candidates(name, koopman, search, count):
            if not any(_are_same(each.coordinates, other.coordinates) for other in candidates):
                candidates.append(each)
    if not candidates:
        return None
    first = max(1, len(search.trials.groups) // FIRST_TEST)
    best, _, _ = rank_live([each.coordinates for each in candidates], search, first=first)[0]
    return candidates[best]


def _candidates(name: str, koopman: Koopman, search: Search, count: int) -> Iterator[Several]:
    """Sets of ``count`` coordinates of an operator.

    Where a conjugate pair has one coordinate too many, the next real mode takes its place, or its real part is kept.
    """
    if count > koopman.rank:
        return
    orders = {"slowest": list(range(len(koopman.modes))), "largest contribution": contribution_order(koopman, search)}
    for which, order in orders.items():
        whole = modes_within(koopman, order, count)
        if whole is not None and whole.count == count:
            yield Several(name=f"{name}, {which}", coordinates=whole)
        cut = Coordinates.of_modes(koopman, order).first(count)
        yield Several(name=f"{name}, {which}, the last pair cut", coordinates=cut)


def _are_same(one: Coordinates, other: Coordinates) -> bool:
    return one.directions.shape == other.directions.shape and np.allclose(one.directions, other.directions)
