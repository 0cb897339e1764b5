"""Choose coordinates by live tests on validation reviews: one of an operator, several of another, and a learned one."""

from dataclasses import dataclass, replace

import kann
from kann.analysis.coordinates import Coordinates
from kann.live.directions import one_coordinate
from kann.live.mode_search import choose_operator, choose_several, fit_for_several, learned_direction
from kann.live.results import Tried
from kann_experiments.sentiment.live.bench import Bench
from kann_experiments.sentiment.operators import fit_as_in_paper

COUNTS = (2, 4, 8, 16)
"""How many coordinates are kept together, with a linear fill."""


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
    operators: dict[int, str]
    """By the same numbers: whose modes these are, and in which order."""


def choose_coordinates(bench: Bench) -> Chosen:
    """Search for the best single coordinate, learn a better one from it, and search for the best few modes."""
    paper = fit_as_in_paper(kann.Moments.of(bench.states))  # the paper's way of fitting is one of those compared
    tried = choose_operator(paper, bench.search)
    one = one_coordinate(tried[0].koopman, tried[0].mode)
    linear = replace(bench.search, fill="linear")
    operators = {"the operator of the one coordinate": tried[0].koopman} | fit_for_several(linear)
    found = {count: choose_several(operators, linear, count) for count in COUNTS}
    several = {count: each for count, each in found.items() if each is not None}
    return Chosen(
        tried=tuple(tried),
        one=one,
        learned=learned_direction(bench.search, one),
        several={count: each.coordinates for count, each in several.items()},
        operators={count: each.name for count, each in several.items()},
    )
