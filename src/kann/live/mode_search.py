"""Order modes by what they do in the running network, and choose among operators by the same test."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from kann.analysis.coordinates import Coordinates, Spread, mode_variances
from kann.data.moments import Moments
from kann.data.reduction import take_rows
from kann.data.states import States
from kann.fitting._fit import fit
from kann.fitting.koopman import Koopman
from kann.live._intervene import Replace, as_tensors, replacement
from kann.live.completion import CurveFill, CurveRest, Fill, Rest, fit_fills, in_few_operations
from kann.live.directions import modes_within, one_coordinate
from kann.live.evaluation import Group, Trials
from kann.live.results import Tried
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
        for each in _candidates_for_several(name, koopman, search, count):
            if not any(_are_same_modes(each.coordinates, other.coordinates) for other in candidates):
                candidates.append(each)
    if not candidates:
        return None
    first = max(1, len(search.trials.groups) // FIRST_TEST)
    best, _, _ = rank_live([each.coordinates for each in candidates], search, first=first)[0]
    return candidates[best]


def _candidates_for_several(name: str, koopman: Koopman, search: Search, count: int) -> Iterator[Several]:
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


def _are_same_modes(one: Coordinates, other: Coordinates) -> bool:
    return one.directions.shape == other.directions.shape and np.allclose(one.directions, other.directions)


STEPS = 40
"""Steps of Adam."""

RATE = 0.03
"""How far the direction, of length 1, turns in a step: Adam moves each of d coordinates by about this over √d."""

LEAST_VARIANCE = 1e-6
"""Fraction of the largest variance; directions in which states vary less are not stretched further."""

TESTED_EVERY = 10
"""After so many steps the direction is kept as a candidate; the best of them and of the start is taken."""

SMOOTH_KNOTS = 16
"""Knots of the curve along which gradients flow."""

SAMPLE = 20_000
"""States that the curve is fitted to anew after every step."""


def learned_direction(search: Search, start: Coordinates) -> Coordinates:
    """The best direction that gradients through the running network lead to from ``start``, by the search's own test.

    The start is returned if learning does not improve on it.
    """
    sample, scale = _sample(search.states), _whitening(search.spread)
    # In coordinates in which states vary alike, a small step changes what is read a little, whatever its direction.
    turned = torch.tensor(np.linalg.solve(scale, start.directions[:, 0]))
    turned = (turned / turned.norm()).requires_grad_()
    whitening = torch.from_numpy(scale)
    optimizer = torch.optim.Adam([turned], lr=RATE / len(turned) ** 0.5)
    groups, candidates = search.trials.groups, [start]
    for step in range(1, STEPS + 1):
        # cuDNN differentiates recurrent layers in training mode alone; torch's own kernels do in any.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            loss = _loss(search, sample, whitening @ turned, groups[step % len(groups)])
            (gradient,) = torch.autograd.grad(loss, [turned])  # and none for the model's weights
        if torch.isfinite(gradient).all():  # over hundreds of steps of a network, gradients can overflow
            turned.grad = gradient / gradient.norm().clamp(min=1e-30)  # one large gradient would drown the others
            optimizer.step()
            with torch.no_grad():
                turned /= turned.norm()
        if step % TESTED_EVERY == 0:
            candidates.append(Coordinates.of_directions((whitening @ turned.detach()).numpy()[:, None]))
    return candidates[int(search.recovered(candidates).argmax())]


def _whitening(spread: Spread) -> Float[Array, "d d"]:
    """From coordinates in which states have unit variance in all directions to directions of the units."""
    values, vectors = np.linalg.eigh(spread.covariance)
    return (
        vectors / np.sqrt(np.maximum(values, LEAST_VARIANCE * max(values[-1], np.finfo(float).tiny ** 0.5))) @ vectors.T
    )


def _sample(states: States) -> States:
    """Some of the states, spread evenly over all sequences."""
    total = int(states.lengths.sum())
    rows = np.unique(np.linspace(0, total - 1, min(SAMPLE, total)).astype(np.int64))
    return States(values=take_rows(states.values, rows), lengths=[len(rows)])


def _loss(search: Search, sample: States, direction: Tensor, group: Group) -> Tensor:
    """How far the outputs are from those of the untouched network if only the direction's coordinate is kept."""
    now = Coordinates.of_directions(direction.detach().numpy()[:, None])
    (fill,) = fit_fills([now], sample, search.fill)
    fill = replace(fill, rest=_smooth(fill.rest))
    with search.trials.running_with(_differentiable(fill, direction)):
        outputs = search.trials.outputs(group)
    own: Any = group.untouched
    return _divergence(outputs, torch.from_numpy(own).to(outputs), search.trials.scorer.outputs)


def _smooth(rest: Rest) -> Rest:
    """A curve of few knots: between the many of a fitted one its slope is mostly noise that gradients would follow."""
    if not isinstance(rest, CurveRest) or len(rest.knots) <= SMOOTH_KNOTS:
        return rest
    parts = np.array_split(np.arange(len(rest.knots)), SMOOTH_KNOTS)
    return CurveRest(
        knots=np.array([rest.knots[part].mean() for part in parts]),
        values=np.stack([rest.values[part].mean(axis=0) for part in parts]),
    )


def _differentiable(fill: Fill, direction: Tensor) -> Replace:
    """The fill as a function of the direction along which states are read; what it makes of them is taken as given.

    What it makes follows the direction when the fill is fitted anew. Gradients through that too would turn the state
    that is made away from those that the network knows.
    """
    known: dict[Any, Any] = {}

    def change(h: Tensor) -> Tensor:
        key = h.device, h.dtype
        if key not in known:
            axis = direction.to(h)
            # The sign of a fitted axis is arbitrary, and the rest was fitted for it.
            sign = torch.sign((axis.detach() * torch.from_numpy(fill.axes[:, 0]).to(h)).sum())
            read = sign * axis / axis.norm()
            own = as_tensors(in_few_operations(fill), h.device, h.dtype)
            if isinstance(own, CurveFill):
                known[key] = replace(own, axis=read)
            else:
                known[key] = replace(own, axes=read[:, None])
        return known[key].kept(h)

    return change


def _divergence(outputs: Tensor, untouched: Tensor, kind: str) -> Tensor:
    """How far outputs are from the untouched network's: cross-entropy of decisions, or squared error of values."""
    if kind == "values":
        return mse_loss(outputs, untouched)
    if kind == "labels" or outputs.ndim == 1 or outputs.shape[-1] == 1:
        return binary_cross_entropy_with_logits(outputs, torch.sigmoid(untouched))
    return cross_entropy(outputs.flatten(0, -2), untouched.flatten(0, -2).softmax(dim=-1))
