"""Order modes by what they do in the running network, and choose among operators by the same test.

Both are searched on sequences that are kept for choosing; what is found is judged on others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kann.analysis.coordinates import Coordinates, Spread, mode_variances
from kann.analysis.filling import fit_fills
from kann.analysis.live_effects import Tried
from kann.data.moments import Moments
from kann.data.states import States
from kann.fitting.fit import fit
from kann.fitting.koopman import Koopman
from kann.live.interventions import replacement
from kann.live.methods import one_coordinate
from kann.live.stepping import Replace
from kann.live.trials import Trials
from kann.typing import Array, Float

PICKS = 4
"""Modes that are searched one after the other; the rest follow by their contribution, which costs no run."""

BY_CONTRIBUTION, SLOWEST = 4, 2
"""Candidates for each pick: those that contribute most, and the slowest ones, of those not picked yet."""

RANKS = (4, 8, 16, 32, 64, 100, 128, 200)
"""Ranks of the operators that are compared: in trials the best one was anything from 8 to 200."""

SURVIVE = 3
"""Of the operators that are compared, one in so many is tested on twice as many sequences; at least so many."""

SAME_TO = 1e-6
"""Operators whose numbers differ by less are the same: a fit to moments rounds otherwise than one to states."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Search:
    """What a search tests with: sequences kept for choosing, and the states that fills are fitted to."""

    trials: Trials
    states: States
    spread: Spread
    fill: str
    weight: Float[Array, "o d"] | None
    """The weight of the network's linear readout, if there is one."""
    none: dict[bytes, float] = field(default_factory=dict)
    """By the sequences that were tested, the mean score with nothing kept."""

    def recovered(self, chosen: Sequence[Coordinates], trials: Trials | None = None) -> Float[Array, " n"]:
        """How much of the network's score each set of coordinates keeps: 1 for all, 0 for what the mean alone keeps."""
        trials = trials or self.trials
        fills = fit_fills(chosen, self.states, self.fill, spread=self.spread)
        kept = np.array([trials.scores(replacement(each, keep=True)).mean() for each in fills])
        tested = trials.sequences.tobytes()
        if tested not in self.none:
            self.none[tested] = float(trials.scores(self.nothing_kept()).mean())
        none, full = self.none[tested], trials.scores(None).mean()
        if full == none:
            return -np.abs(kept - full)
        return (kept - none) / (full - none)

    def nothing_kept(self) -> Replace:
        """What holds the state at its mean, or with ``fill="resample"`` at a recorded state."""
        nothing = Coordinates.of_directions(np.empty((self.spread.dim, 0)))
        (fill,) = fit_fills([nothing], self.states, self.fill, spread=self.spread)
        return replacement(fill, keep=True)


def contribution_order(koopman: Koopman, search: Search) -> list[int]:
    """The modes by the variance of their contribution to the readout, or to the state if there is no readout."""
    return np.argsort(-mode_variances(koopman, search.spread, search.weight), kind="stable").tolist()


def greedy_order(
    koopman: Koopman, search: Search, by_contribution: Sequence[int], *, most: int, first: Sequence[int] = ()
) -> list[int]:
    """The modes in the order in which each next one keeps most of the network's score, together with those before.

    ``most`` is the number of coordinates after which nobody asks; ``first`` are modes that are picked already.
    """
    order, best = list(first), -np.inf
    while len(order) < PICKS and _coordinates(koopman, order) < most:
        left = [mode for mode in by_contribution if mode not in order]
        slow = [mode for mode in sorted(left) if mode not in left[:BY_CONTRIBUTION]]
        candidates = left[:BY_CONTRIBUTION] + slow[:SLOWEST]
        if not candidates:
            break
        sets = [Coordinates.of_modes(koopman, [*order, mode]) for mode in candidates]
        scores = search.recovered(sets)
        order.append(candidates[int(scores.argmax())])
        if scores.max() >= 1 or scores.max() <= best:  # all is kept, or no candidate adds anything
            break
        best = float(scores.max())
    return order + [mode for mode in by_contribution if mode not in order]


def _coordinates(koopman: Koopman, modes: Sequence[int]) -> int:
    return sum(len(koopman.modes[mode].indices) for mode in modes)


def choose_operator(koopman: Koopman, search: Search) -> list[Tried]:
    """Operators and modes, the best single coordinate first, by tests on more and more of the sequences for choosing.

    Operators of several ranks, autonomous and driven where inputs were recorded, are fitted to the states; of each, the
    slowest mode and the one with the largest contribution are tried.
    """
    tried = _candidates(koopman, search)
    ranked = rank_live([one_coordinate(each.koopman, each.mode) for each in tried], search, first=1)
    return [replace(tried[place], recovered=score, sequences=count) for place, score, count in ranked]


def rank_live(sets: Sequence[Coordinates], search: Search, *, first: int) -> list[tuple[int, float, int]]:
    """Sets of coordinates, the best first: the place of each, what it recovers, and on how many sequences.

    All are tested on ``first`` groups of sequences for choosing, and the best of them on twice as many, until all
    groups are used. Those that did badly follow in the order in which they were left out.
    """
    left, finished = list(range(len(sets))), []
    places, groups = spread_evenly(len(search.trials.groups)), first
    while True:
        trials = search.trials.part(places[:groups])
        scores = search.recovered([sets[place] for place in left], trials)
        ranked = [(left[i], float(scores[i]), len(trials.sequences)) for i in np.argsort(-scores, kind="stable")]
        if groups >= len(places):
            return ranked + finished
        survivors = max(SURVIVE, len(ranked) // SURVIVE)
        finished = ranked[survivors:] + finished
        left, groups = [place for place, _, _ in ranked[:survivors]], 2 * groups


def spread_evenly(count: int) -> list[int]:
    """The numbers below ``count`` in an order of which every beginning is spread evenly over all of them.

    Groups of sequences are sorted by length, so that a test on some of them is one on sequences of all lengths.

    >>> spread_evenly(8)
    [4, 2, 6, 1, 5, 3, 7, 0]
    """
    bits = max(1, (count - 1).bit_length())
    mirrored = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(2**bits)]
    return [number for number in [*mirrored[1:], 0] if number < count]


def _candidates(koopman: Koopman, search: Search) -> list[Tried]:
    """The operator that was passed and those of all ranks, with two modes each."""
    fitted, found = operators_of(search, RANKS), []
    operators = {"the operator that was passed": koopman}
    operators |= {name: each for name, each in fitted.items() if not _are_same(each, koopman)}
    for name, each in operators.items():
        modes = {"slowest": 0, "largest contribution": contribution_order(each, search)[0]}
        if len(set(modes.values())) == 1:
            modes = {"slowest and largest contribution": 0}
        for which, mode in modes.items():
            found.append(Tried(koopman=each, name=f"{name}, {which}", mode=mode, recovered=np.nan, sequences=0))
    return found


def operators_of(search: Search, ranks: Sequence[int]) -> dict[str, Koopman]:
    """Operators of several ranks by name, fitted to the states: autonomous, and driven where inputs were recorded."""
    moments, kinds = Moments.of(search.states), {"autonomous": False}
    if search.states.inputs is not None:
        kinds["driven"] = True
    return {
        f"{kind}, rank {rank}": fit(moments, basis="pca", rank=rank, driven=driven)
        for rank in ranks
        if rank < search.spread.dim
        for kind, driven in kinds.items()
    }


def _are_same(one: Koopman, other: Koopman) -> bool:
    """Whether two operators are the same but for rounding."""
    if one.basis.shape != other.basis.shape or (one.drive is None) != (other.drive is None):
        return False
    pairs = ((one.matrix, other.matrix), (one.basis, other.basis), (one.mean, other.mean))
    return all(np.allclose(ours, theirs, atol=SAME_TO) for ours, theirs in pairs)
