"""Measure what a network does with some coordinates of its state alone, and without them."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from kann.analysis.coordinates import (
    Coordinates,
    Spread,
    spread_of,
)
from kann.analysis.decisions import linear_weight
from kann.analysis.intervals import require_level
from kann.backends.arrays import as_numpy
from kann.checks import require_choice, require_flag, require_instance, require_whole_number, shown
from kann.data.states import as_states
from kann.errors import KannError, UnfinishedWarning
from kann.fitting.koopman import Koopman
from kann.live._intervene import only_target, replacement, require_layer_width, require_same_width
from kann.live.completion import FILLS, fit_fills
from kann.live.directions import Job, jobs_of, modes_within, one_coordinate
from kann.live.evaluation import Running, Trials, make_trials
from kann.live.mode_search import (
    Search,
    Several,
    choose_operator,
    choose_several,
    contribution_order,
    fit_for_several,
    greedy_order,
    learned_direction,
)
from kann.live.results import Effects, Tried
from kann.live.scoring import Scorer
from kann.progress import progress as progress_bar
from kann.recording.recurrent import readout_of
from kann.recording.runner import evaluation_mode
from kann.typing import Array, Float, Int, Shaped


def readout_weight(
    model: nn.Module, readout: Any, *, layer: str | None, state: str, width: int
) -> Float[Array, "o d"] | None:
    """The weight of the readout, as wide as the state; None if it was not passed and cannot be found."""
    if readout is None:
        with contextlib.suppress(KannError):
            readout = readout_of(model, layer)
        if not isinstance(readout, nn.Linear) or "h" not in state:
            return None
    weight = as_numpy(getattr(readout, "weight", readout))
    if weight.ndim == 2 and state == "hc":  # a readout sees h alone, and nothing of c
        weight = np.pad(weight, ((0, 0), (0, max(0, width - weight.shape[1]))))
    return linear_weight(weight, width)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bench:
    """What live tests are made with; use it where the model is in evaluation mode."""

    search: Search
    """To find the operator and the order of its modes with."""
    judging: Trials
    """To judge on, on other sequences."""

    def alone(self, koopman: Any, modes: Sequence[int]) -> dict[int, tuple[float, float]]:
        """For each of these modes the score with it alone kept, and with it alone removed."""
        if not modes:
            return {}
        search = self.search
        chosen = [Coordinates.of_modes(koopman, mode) for mode in modes]
        fills = fit_fills(chosen, search.states, search.fill, spread=search.spread)
        return {
            mode: (
                float(self.judging.scores(replacement(fill, keep=True)).mean()),
                float(self.judging.scores(replacement(fill, keep=False)).mean()),
            )
            for mode, fill in zip(modes, fills, strict=True)
        }


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Live:
    """Which states of a running network are replaced, and with what."""

    model: nn.Module
    states: Any
    """Recorded states that fills are fitted to."""
    width: int
    """How many units the operator is for."""
    readout: Any
    """As in `kann.effects`."""
    fill: str
    layer: str | None
    state: str

    def trials(self, data: Any, running: Running, scorer: Scorer) -> Trials:
        """The network with sequences to run it on."""
        target = only_target(self.model, self.layer, self.state)
        require_same_width(self.width, as_states(self.states).dim, "the recorded states have")
        require_layer_width(target, self.state, self.width)
        return make_trials(self.model, data, running, target=target, state=self.state, width=self.width, scorer=scorer)

    def bench(self, choosing: Trials, judging: Trials) -> Bench:
        """Run the untouched network on the sequences for choosing and on those that are judged."""
        states, place = as_states(self.states), {"layer": self.layer, "state": self.state, "width": self.width}
        search = Search(
            trials=choosing.with_untouched(),
            states=states,
            spread=spread_of(states),
            fill=self.fill,
            weight=readout_weight(self.model, self.readout, **place),
        )
        return Bench(search=search, judging=judging.with_untouched())


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


SAME_SPAN = 1e-6
"""Directions that leave the span of others by less, of length 1, keep the same: states are recorded in float32."""


def run_jobs(jobs: Sequence[Job], judging: Trials, search: Search, *, show_progress: bool) -> list[Float[Array, " s"]]:
    """Scores of the untouched network, with nothing kept, and of each job; fewer if the user interrupts the work."""
    nothing = Coordinates.of_directions(np.empty((search.spread.dim, 0)))
    chosen = [nothing, *(job.coordinates for job in jobs)]
    first_like = places_of_same(chosen, search.spread, fill=search.fill)
    different = sorted(set(first_like))
    fills = fit_fills([chosen[place] for place in different], search.states, search.fill, spread=search.spread)
    fill_of = dict(zip(different, fills, strict=True))
    runs = list(zip(first_like, [True, *(job.keep for job in jobs)], strict=True))
    steps: Iterable[Any] = runs
    if show_progress:
        steps = progress_bar(runs, what="effects", total=len(runs), unit="run")
    known: dict[Any, Float[Array, " s"]] = {}
    results = [judging.scores(None)]
    try:
        for key, keep in steps:
            if (key, keep) not in known:  # methods may choose the same coordinates
                known[key, keep] = judging.scores(replacement(fill_of[key], keep=keep))
            results.append(known[key, keep])
    except KeyboardInterrupt:
        if len(results) < 3:
            raise
        warnings.warn(
            f"interrupted after {len(results) - 1} of {len(runs)} runs; what is missing is NaN",
            UnfinishedWarning,
            stacklevel=3,
        )
    return results


def places_of_same(chosen: Sequence[Coordinates], spread: Spread, *, fill: str) -> list[int]:
    """For each set of coordinates the place of the first that is filled alike, so that one run serves both.

    A fill follows from the span of the coordinates; only one with the mean also follows from their vectors.
    """
    spans = [each.axes(spread) for each in chosen]
    places: list[int] = []
    for place, (own, span) in enumerate(zip(chosen, spans, strict=True)):
        for other in sorted(set(places)):
            is_same = span.shape == spans[other].shape and _are_same_span(span, spans[other])
            if is_same and (fill != "mean" or np.array_equal(own.directions, chosen[other].directions)):
                places.append(other)
                break
        else:
            places.append(place)
    return places


def _are_same_span(one: Float[Array, "d q"], other: Float[Array, "d q"]) -> bool:
    """Whether orthonormal directions span the same: each of one is in the span of the other."""
    left_over = one - other @ (other.T @ one)
    return bool(np.all(np.linalg.norm(left_over, axis=0) < SAME_SPAN))


def gather(
    plan: Plan,
    results: Sequence[Float[Array, " s"]],
    judging: Trials,
    *,
    counts: tuple[int, ...],
    fill: str,
    draws: int,
    level: float,
) -> Effects:
    """The scores of all jobs, sorted by method, number of coordinates and draw."""
    sequences = judging.sequences
    order = np.argsort(sequences)
    full, none, *found = results
    blank = {job.method: np.full((max(1, draws), len(counts), len(sequences)), np.nan) for job in plan.jobs}
    scores = {True: {name: each.copy() for name, each in blank.items()}, False: blank}
    for job, result in zip(plan.jobs, found, strict=False):
        scores[job.keep][job.method][job.draw, job.row] = result[order]
    merged = {keep: {name: _mean_of_draws(name, each) for name, each in own.items()} for keep, own in scores.items()}
    spread = {keep: own.get("random", np.empty((0, len(counts), 1))).mean(axis=2) for keep, own in scores.items()}
    return Effects(
        counts=counts,
        metric=judging.scorer.name,
        outputs=judging.scorer.outputs,
        fill=fill,
        order=plan.order,
        koopman=plan.koopman,
        kept_scores=merged[True],
        removed_scores=merged[False],
        full_scores=full[order],
        none_scores=none[order],
        random_kept=spread[True],
        random_removed=spread[False],
        judged=sequences[order],
        tried=plan.tried,
        chosen={count: each.name for count, each in plan.several.items()},
        level=level,
    )


def _mean_of_draws(name: str, scores: Float[Array, "w c s"]) -> Float[Array, "c s"]:
    """The mean over draws of random directions; other methods have a single one."""
    if name == "random":
        return scores.mean(axis=0)
    return scores[0]


def effects(
    model: nn.Module,
    data: Any,
    koopman: Koopman,
    states: Any,
    *,
    readout: Any = None,
    metric: str | Callable[..., Any] | None = None,
    labels: Any = None,
    outputs: str = "class",
    threshold: float = 0.0,
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    fill: str = "curve",
    choose: bool = False,
    learn: bool = False,
    draws: int = 3,
    layer: str | None = None,
    state: str = "h",
    lengths: Any = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    batch_size: int = 128,
    device: Any = None,
    seed: int = 0,
    level: float = 0.95,
    progress: bool = True,
) -> Effects:
    """Test modes in the running network: what it still does if only they are kept of its state, or if they are removed.

    Beside the modes in the order of what they do (found by search), by contribution and by |λ|, the same number of
    principal components, of the readout's directions, and of random directions of the same variance are kept and
    removed. The order is searched on a quarter of the sequences, and everything is judged on the others. What was
    finished is returned if the work is interrupted.

    >>> import torch, kann
    >>> from torch import nn
    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)
    ...     def forward(self, x):
    ...         return self.head(self.rnn(x)[0][:, -1])
    >>> model, x = Reader(), torch.randn(40, 6, 3)
    >>> states = kann.record(model, x)
    >>> found = kann.effects(model, x, kann.fit(states, basis="pca"), states, counts=(1, 4), draws=1)
    >>> float(found.kept["modes"][1])  # all four coordinates are kept
    1.0

    Parameters
    ----------
    model
        The model that the states were recorded from.
    data
        What the model reads, as for `kann.record`; other sequences than the states are of. A list of sequences is run
        in batches of like length, and a model whose ``forward`` takes ``lengths`` is told theirs.
    koopman
        The operator whose modes are tested.
    states
        Recorded states that fills are fitted to.
    readout
        The linear readout of the state: a module or its weight (o, d). If it is not given and not found, modes are
        ordered by their variance, and nothing is called "readout".
    metric
        ``"agreement"`` with the untouched network (the default without labels), ``"accuracy"`` (the default with
        labels), ``"loss"``, or a function of two arrays, the outputs of a batch and those of the untouched network (or
        the labels, if there are any), that returns one number for each sequence.
    labels
        The class of each sequence, or of each of its steps for a model that gives (sequences, steps, outputs). With
        several outputs that are labels or values, (outputs,) of each sequence or (steps, outputs).
    outputs
        As in `kann.agreement`. ``"class"``: the largest of several outputs, or whether a single one exceeds
        ``threshold``. ``"labels"``: each output is a yes-or-no answer of its own; agreement and accuracy are fractions
        of answers. ``"values"``: regression; agreement is R² of the outputs against those of the untouched network,
        accuracy is R² against the labels, and the loss is the squared error.
    threshold
        What an output must exceed.
    counts
        How many coordinates to keep and to remove. A conjugate pair of modes has two.
    fill
        What the rest of the state becomes, as in `kann.intervene`.
    choose
        Whether to search for the operator too, among several ranks, autonomous and driven: for each of ``counts`` the
        one that keeps most with so many coordinates.
    learn
        Whether to learn a direction by gradient through the running network, started from the first mode: the upper
        bound for one coordinate, called "learned".
    draws
        How often to draw random directions.
    layer, state
        Whose states were recorded, as in `kann.record`.
    lengths, forward, collate, batch_size, device
        How to read the data and to call the model, as in `kann.record`.
    seed
        Of the random directions.
    level
        Of the intervals over sequences.
    progress
        Whether to show a progress bar if it takes long.
    """
    _require_options(koopman, counts=counts, fill=fill, choose=choose, learn=learn, draws=draws, level=level)
    scorer = Scorer.of(metric, labels, outputs=outputs, threshold=threshold)
    running = Running(lengths=lengths, forward=forward, collate=collate, batch_size=batch_size, device=device)
    live = Live(model=model, states=states, width=koopman.dim, readout=readout, fill=fill, layer=layer, state=state)
    with evaluation_mode(model):
        bench = live.bench(*split(live.trials(data, running, scorer)))
        plan = make_plan(koopman, bench.search, counts=counts, choose=choose, learn=learn, draws=draws, seed=seed)
        results = run_jobs(plan.jobs, bench.judging, bench.search, show_progress=progress)
    return gather(plan, results, bench.judging, counts=tuple(map(int, counts)), fill=fill, draws=draws, level=level)


def _require_options(koopman: Any, *, counts: Any, fill: Any, choose: Any, learn: Any, draws: Any, level: Any) -> None:
    """Refuse wrong arguments before anything runs."""
    require_instance(koopman, Koopman, "koopman")
    require_choice(fill, "fill", FILLS)
    require_flag(choose, "choose")
    require_flag(learn, "learn")
    require_whole_number(draws, "draws", least=0)
    if isinstance(counts, str) or not isinstance(counts, Iterable) or not list(counts):
        raise KannError(f"counts={shown(counts)} are no numbers of coordinates; pass some, such as (1, 2, 4)")
    for count in counts:
        require_whole_number(count, "counts")
    require_level(level)
