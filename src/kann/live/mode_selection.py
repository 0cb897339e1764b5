"""Which modes a reader should look at: those that carry the network's decisions, or else those that can be trusted."""

from collections.abc import Mapping, Sequence

import numpy as np

from kann.analysis._movers import Movers
from kann.analysis._trust import Trust
from kann.analysis.modes import first_modes
from kann.fitting.koopman import Koopman
from kann.live.results import Effects

MOST_MODES = 6
"""More modes than this nobody compares card by card."""

ADDS = 0.02
"""A mode adds something if it brings back this fraction of the score: of 200 decisions, chance makes as much."""

DECIDES_ALONE = 0.5
"""A mode also matters if it brings back this fraction of the score alone, though others do so already."""


def modes_that_matter(
    koopman: Koopman,
    *,
    trust: Trust | None = None,
    effects: Effects | None = None,
    movers: Movers | None = None,
    alone: Mapping[int, tuple[float, float]] | None = None,
) -> list[int]:
    """Numbers of the modes that a reader should look at, the most important first; at most six.

    These are the first modes of the live test, as long as they add to the score, and those that bring back half of the
    score alone. Where nothing was tested live, or no mode kept anything, they are the trusted modes: by contribution
    if ``movers`` are known, else the slowest first.

    >>> import kann, numpy as np
    >>> modes_that_matter(kann.fit(np.random.default_rng(0).normal(size=(20, 10, 3))))
    []
    """
    found: list[int] = []
    if effects is not None:
        found = _modes_that_decide(koopman, effects) + _modes_enough_alone(effects, alone or {})
    if not found and trust is not None:
        by_contribution = range(len(koopman.modes))
        if movers is not None:
            by_contribution = [*movers.modes, *by_contribution]
        found = [number for number in by_contribution if number in trust.trusted]
    return list(dict.fromkeys(found))[:MOST_MODES]


def opened_mode(matter: Sequence[int], shown: Sequence[int], trust: Trust | None) -> int:
    """The mode that the page opens on: the first that matters and can be trusted, or else one that can be trusted.

    >>> opened_mode([3, 1], [0, 1, 3], None)
    3
    """
    candidates = [*matter, *shown, 0]
    if trust is not None:
        candidates = [number for number in candidates if number in trust.trusted] or candidates
    return candidates[0]


def _modes_that_decide(koopman: Koopman, effects: Effects) -> list[int]:
    """The first modes of the order, up to the number of coordinates after which nothing is added."""
    recovered = effects.recovered.get("modes", np.full(1, np.nan))
    if not np.nanmax(recovered, initial=0.0) > ADDS:
        return []
    enough = int(np.argmax(recovered >= np.nanmax(recovered) - ADDS))
    return first_modes(koopman, effects.order, effects.counts[enough])


def _modes_enough_alone(effects: Effects, alone: Mapping[int, tuple[float, float]]) -> list[int]:
    """The modes that bring back much of the score alone, the best first."""
    gap = effects.full - effects.none
    if not gap:
        return []
    recovered = {number: (kept - effects.none) / gap for number, (kept, _) in alone.items()}
    best_first = sorted(recovered, key=lambda number: -recovered[number])
    return [number for number in best_first if recovered[number] >= DECIDES_ALONE]
