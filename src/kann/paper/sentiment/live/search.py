"""Choose coordinates by live tests on validation reviews: one of an operator, several of another, and a learned one."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

import kann
from kann.analysis.coordinates import Coordinates
from kann.analysis.live_effects import Tried
from kann.live.learning import learned_direction
from kann.live.methods import modes_within, one_coordinate
from kann.live.ordering import Search, choose_operator, contribution_order
from kann.paper.sentiment.live.bench import Bench
from kann.paper.sentiment.operators import fit_as_in_paper

COUNTS = (2, 4, 8, 16)
"""How many coordinates are kept together, with a linear fill."""

MOST_RANK = 64
"""Largest rank of an operator whose modes are kept together: in trials the best had 12 and 16."""

FINALISTS = 3
"""Candidates that are tested on all validation reviews, after a first test on a quarter of them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Chosen:
    """Coordinates that were chosen on validation reviews."""

    tried: tuple[Tried, ...]
    """Operators and modes that were compared, one coordinate on its curve, the best first."""
    one: Coordinates
    """The coordinate of the best of them."""
    learned: Coordinates
    """The direction that gradients through the running network lead to from there."""
    several: dict[int, Coordinates]
    """By their number: modes of one operator that keep most together."""


def choose_coordinates(bench: Bench) -> Chosen:
    """Search for the best single coordinate, learn a better one from it, and search for the best few modes."""
    paper = fit_as_in_paper(kann.Moments.of(bench.states))  # the paper's way of fitting is one of those compared
    tried = choose_operator(paper, bench.search)
    one = one_coordinate(tried[0].koopman, tried[0].mode)
    operators = {id(each.koopman): each.koopman for each in tried if each.koopman.rank <= MOST_RANK}
    linear = replace(bench.search, fill="linear")
    several = {count: _best_modes(operators.values(), linear, count) for count in COUNTS}
    return Chosen(
        tried=tuple(tried),
        one=one,
        learned=learned_direction(bench.search, one),
        several={count: chosen for count, chosen in several.items() if chosen is not None},
    )


def _best_modes(operators: Iterable[kann.Koopman], search: Search, count: int) -> Coordinates | None:
    """The slowest modes, or those of the largest contribution, of the operator of which they keep most."""
    candidates = []
    for koopman in operators:
        for order in (range(len(koopman.modes)), contribution_order(koopman, search)):
            found = modes_within(koopman, order, count)
            if found is not None and found.count == count:
                candidates.append(found)
    if not candidates:
        return None
    few = search.trials.part(range(max(1, len(search.trials.groups) // 4)))
    finalists = np.argsort(-search.recovered(candidates, few), kind="stable")[:FINALISTS]
    scores = search.recovered([candidates[i] for i in finalists])
    return candidates[finalists[int(scores.argmax())]]
