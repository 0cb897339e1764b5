"""Order modes by what they do in the running network, and choose among operators by the same test.

Both are searched on sequences that are kept for choosing; what is found is judged on others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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

    def recovered(self, chosen: Sequence[Coordinates], trials: Trials | None = None) -> Float[Array, " n"]:
        """How much of the network's score each set of coordinates keeps: 1 for all, 0 for what the mean alone keeps."""
        trials = trials or self.trials
        nothing = Coordinates.of_directions(np.empty((self.spread.dim, 0)))
        fills = fit_fills([nothing, *chosen], self.states, self.fill, spread=self.spread)
        none, *kept = [trials.scores(replacement(each, keep=True)).mean() for each in fills]
        full = trials.scores(None).mean()
        if full == none:
            return -np.abs(np.array(kept) - full)
        return (np.array(kept) - none) / (full - none)


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
    finished: list[Tried] = []
    groups = 1
    while True:
        trials = search.trials.part(range(min(groups, len(search.trials.groups))))
        sets = [one_coordinate(each.koopman, each.mode) for each in tried]
        scores = search.recovered(sets, trials)
        ranked = [
            replace(each, recovered=float(score), sequences=len(trials.sequences))
            for each, score in zip(tried, scores, strict=True)
        ]
        ranked.sort(key=lambda each: -each.recovered)
        if groups >= len(search.trials.groups):
            return ranked + finished
        survivors = max(SURVIVE, len(ranked) // SURVIVE)
        finished = ranked[survivors:] + finished
        tried, groups = ranked[:survivors], 2 * groups


def _candidates(koopman: Koopman, search: Search) -> list[Tried]:
    """The operator that was passed and those of all ranks, with two modes each."""
    moments, found = Moments.of(search.states), []
    operators = {"the operator that was passed": koopman}
    kinds = [False]
    if search.states.inputs is not None:
        kinds.append(True)
    for rank in [rank for rank in RANKS if rank < search.spread.dim]:
        for driven in kinds:
            name = f"{['autonomous', 'driven'][driven]}, rank {rank}"
            fitted = fit(moments, basis="pca", rank=rank, driven=driven)
            if not _are_same(fitted, koopman):
                operators[name] = fitted
    for name, each in operators.items():
        modes = {"slowest": 0, "largest contribution": contribution_order(each, search)[0]}
        if len(set(modes.values())) == 1:
            modes = {"slowest and largest contribution": 0}
        for which, mode in modes.items():
            found.append(Tried(koopman=each, name=f"{name}, {which}", mode=mode, recovered=np.nan, sequences=0))
    return found


def _are_same(one: Koopman, other: Koopman) -> bool:
    """Whether two operators are the same but for rounding."""
    if one.basis.shape != other.basis.shape or (one.drive is None) != (other.drive is None):
        return False
    pairs = ((one.matrix, other.matrix), (one.basis, other.basis), (one.mean, other.mean))
    return all(np.allclose(ours, theirs, atol=SAME_TO) for ours, theirs in pairs)
