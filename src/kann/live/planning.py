"""Which sequences serve to choose and which are judged, and what is to be judged."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kann.analysis.live_effects import Tried
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.live.choosing import Several, choose_several, fit_for_several
from kann.live.learning import learned_direction
from kann.live.methods import Job, jobs_of, modes_within, one_coordinate
from kann.live.ordering import Search, choose_operator, contribution_order, greedy_order
from kann.live.trials import Trials
from kann.typing import Array, Int, Shaped

CHOOSE_ONE_IN = 4
"""One batch in so many is kept for choosing, and the others are judged."""

MOST_FOR_CHOOSING = 512
"""Sequences kept for choosing, at most: agreement is then known to 2 %, which is enough to tell good modes from bad."""


def split(trials: Trials) -> tuple[Trials, Trials]:
    """Some batches to choose with, and all others to judge on; batches of all lengths are among both."""
    count = len(trials.groups)
    if count < 2:
        raise KannError(
            "the data are a single batch, and the order of modes is searched on other sequences than it is judged on; "
            "pass at least two sequences, or more batches"
        )
    places, sequences = [], 0
    for place in range(0, count, CHOOSE_ONE_IN):
        if not places or sequences + len(trials.groups[place]) <= MOST_FOR_CHOOSING:
            places.append(place)
            sequences += len(trials.groups[place])
    return trials.part(places), trials.part([place for place in range(count) if place not in places])


def set_apart(together: Int[Array, " s"], *, seed: int) -> Shaped[Array, " s"]:
    """Which sequences serve to choose with: one in four, at random; those with the same number are on one side.

    >>> set_apart(np.array([0, 0, 1, 1, 2, 2, 3, 3]), seed=0).tolist()
    [False, False, False, False, True, True, False, False]
    """
    chosen = np.zeros(len(together), dtype=bool)
    wanted = min(max(1, len(together) // CHOOSE_ONE_IN), MOST_FOR_CHOOSING)
    for number in np.random.default_rng(seed).permutation(np.unique(together)):
        own = together == number
        if not chosen.any() or (chosen | own).sum() <= wanted:
            chosen |= own
    if chosen.all():
        raise KannError(
            "the sequences that are held out belong to one group, and the order of modes is searched on another than "
            "it is judged on; pass more and smaller groups"
        )
    return chosen


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Plan:
    """What is to be judged, found on the sequences for choosing."""

    koopman: Koopman
    """The operator that was passed, or the one that was chosen."""
    order: tuple[int, ...]
    """Its modes by what they do."""
    tried: tuple[Tried, ...]
    """The operators that were compared, best first."""
    several: dict[int, Several]
    """By the number of coordinates, if operators were compared: the modes that are kept together."""
    jobs: Sequence[Job]
    """All runs that are to be made."""


def make_plan(
    koopman: Koopman, search: Search, *, counts: Sequence[int], choose: bool, learn: bool, draws: int, seed: int
) -> Plan:
    """Find the operator, the order of its modes and what is to be judged, on the sequences of the search."""
    tried: list[Tried] = []
    if choose:
        tried = choose_operator(koopman, search)
        koopman = tried[0].koopman
    by_contribution = contribution_order(koopman, search)
    order = greedy_order(koopman, search, by_contribution, most=max(counts), first=[each.mode for each in tried[:1]])
    several: dict[int, Several] = {}
    if choose:
        several = _several(koopman, order, search, counts)
    orders = {"modes": order, "contribution": by_contribution, "slowest": list(range(len(koopman.modes)))}
    jobs = jobs_of(
        koopman,
        search.spread,
        orders=orders,
        several={count: each.coordinates for count, each in several.items()},
        weight=search.weight,
        counts=counts,
        draws=draws,
        seed=seed,
        outputs=search.trials.scorer.outputs,
    )
    if learn and 1 in counts:
        learned = learned_direction(search, one_coordinate(koopman, order[0]))
        row = list(counts).index(1)
        jobs += [Job(method="learned", row=row, coordinates=learned, keep=keep) for keep in (True, False)]
    return Plan(koopman=koopman, order=tuple(order), tried=tuple(tried), several=several, jobs=jobs)


def _several(koopman: Koopman, order: Sequence[int], search: Search, counts: Sequence[int]) -> dict[int, Several]:
    """For each number of coordinates above one, the modes that keep most together, of any operator.

    Those of the operator whose single mode keeps most, in the order of what they do, are among the candidates.
    """
    operators, found = fit_for_several(search), {}
    for count in [count for count in counts if count > 1]:
        more, own = [], modes_within(koopman, order, count)
        if own is not None:
            more = [Several(name="the operator of the first mode, by what its modes do", coordinates=own)]
        best = choose_several(operators, search, count, more=more)
        if best is not None:
            found[count] = best
    return found
