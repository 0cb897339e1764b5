"""Measure what a network does with some coordinates of its state alone, and without them."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from kann.analysis.coordinates import Coordinates, spread_of
from kann.analysis.filling import FILLS, fit_fills
from kann.backends.arrays import as_numpy
from kann.checks import (
    require_choice,
    require_flag,
    require_instance,
    require_number,
    require_real,
    require_whole_number,
    shown,
)
from kann.data.states import as_states
from kann.errors import KannError, UnfinishedWarning
from kann.fitting.koopman import Koopman
from kann.live.interventions import replacement, require_layer_width, require_same_width
from kann.live.learning import learned_direction
from kann.live.methods import Job, jobs_of, one_coordinate
from kann.live.ordering import Search, choose_operator, contribution_order, greedy_order
from kann.live.replacing import only_target
from kann.live.result import Effects, Tried
from kann.live.scoring import Scorer
from kann.live.trials import Trials, make_trials
from kann.progress import progress as progress_bar
from kann.recording.recurrent import readout_of
from kann.recording.running import evaluation_mode
from kann.typing import Array, Float

CHOOSE_ONE_IN = 4
"""One batch in so many is kept for choosing, and the others are judged."""

MOST_FOR_CHOOSING = 512
"""Sequences kept for choosing, at most: agreement is then known to 2 %, which is enough to tell good modes from bad."""


def effects(
    model: nn.Module,
    data: Any,
    koopman: Koopman,
    states: Any,
    *,
    readout: Any = None,
    metric: str | Callable[..., Any] | None = None,
    labels: Any = None,
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
        The class of each sequence, or of each of its steps for a model that gives (sequences, steps, outputs).
    counts
        How many coordinates to keep and to remove. A conjugate pair of modes has two.
    fill
        What the rest of the state becomes, as in `kann.intervene`.
    choose
        Whether to search for the operator too, among several ranks, autonomous and driven.
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
    target, recorded = only_target(model, layer, state), as_states(states)
    require_same_width(koopman.dim, recorded.dim, "the recorded states have")
    require_layer_width(target, state, koopman.dim)
    weight = readout_weight(model, readout, layer=layer, state=state, width=koopman.dim)
    with evaluation_mode(model):
        trials = make_trials(
            model,
            data,
            target=target,
            state=state,
            width=koopman.dim,
            scorer=Scorer.of(metric, labels),
            lengths=lengths,
            forward=forward,
            collate=collate,
            batch_size=batch_size,
            device=device,
        )
        choosing, judging = _split(trials)
        search = Search(
            trials=choosing.with_untouched(), states=recorded, spread=spread_of(recorded), fill=fill, weight=weight
        )
        plan = _plan(koopman, search, counts=counts, choose=choose, learn=learn, draws=draws, seed=seed)
        judging = judging.with_untouched()
        results = _run(plan.jobs, judging, search, show_progress=progress)
    return _effects(plan, results, judging, counts=tuple(map(int, counts)), fill=fill, draws=draws, level=level)


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
    if not 0 < require_number(level, "level", remedy="pass 0 < level < 1") < 1:
        raise KannError(f"level={level} is no probability; pass 0 < level < 1")


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
    require_real(weight, what="readout weights")
    if weight.ndim == 2 and state == "hc":  # a readout sees h alone, and nothing of c
        weight = np.pad(weight, ((0, 0), (0, max(0, width - weight.shape[1]))))
    if weight.ndim != 2 or weight.shape[1] != width:
        raise KannError(f"readout has a weight of shape {weight.shape}; pass a linear one of ({width},) units, or None")
    return weight.astype(np.float64)


def _split(trials: Trials) -> tuple[Trials, Trials]:
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Plan:
    """What is to be judged, found on the sequences for choosing."""

    koopman: Koopman
    order: tuple[int, ...]
    tried: tuple[Tried, ...]
    jobs: Sequence[Job]


def _plan(
    koopman: Koopman, search: Search, *, counts: Sequence[int], choose: bool, learn: bool, draws: int, seed: int
) -> _Plan:
    tried: list[Tried] = []
    if choose:
        tried = choose_operator(koopman, search)
        koopman = tried[0].koopman
    by_contribution = contribution_order(koopman, search)
    order = greedy_order(koopman, search, by_contribution, most=max(counts), first=[each.mode for each in tried[:1]])
    orders = {"modes": order, "contribution": by_contribution, "slowest": list(range(len(koopman.modes)))}
    jobs = jobs_of(koopman, search.spread, orders=orders, weight=search.weight, counts=counts, draws=draws, seed=seed)
    if learn and 1 in counts:
        learned = learned_direction(search, one_coordinate(koopman, order[0]))
        row = list(counts).index(1)
        jobs += [Job(method="learned", row=row, coordinates=learned, keep=keep) for keep in (True, False)]
    return _Plan(koopman=koopman, order=tuple(order), tried=tuple(tried), jobs=jobs)


def _run(jobs: Sequence[Job], judging: Trials, search: Search, *, show_progress: bool) -> list[Float[Array, " s"]]:
    """Scores of the untouched network, with nothing kept, and of each job; fewer if the user interrupts the work."""
    nothing = Coordinates.of_directions(np.empty((search.spread.dim, 0)))
    different = {_key(nothing): nothing} | {_key(job.coordinates): job.coordinates for job in jobs}
    fills = fit_fills(list(different.values()), search.states, search.fill, spread=search.spread)
    fill_of = dict(zip(different, fills, strict=True))
    runs = [(_key(nothing), True), *((_key(job.coordinates), job.keep) for job in jobs)]
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


def _key(coordinates: Coordinates) -> tuple[int, bytes]:
    """The same for the same directions."""
    return coordinates.count, coordinates.directions.tobytes()


def _effects(
    plan: _Plan,
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
        fill=fill,
        order=plan.order,
        koopman=plan.koopman,
        kept_scores=merged[True],
        removed_scores=merged[False],
        full=full[order],
        none=none[order],
        random_kept=spread[True],
        random_removed=spread[False],
        judged=sequences[order],
        tried=plan.tried,
        level=level,
    )


def _mean_of_draws(name: str, scores: Float[Array, "w c s"]) -> Float[Array, "c s"]:
    """The mean over draws of random directions; other methods have a single one."""
    if name == "random":
        return scores.mean(axis=0)
    return scores[0]
