"""Make all runs of a plan on the sequences that are judged, and gather their scores."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kann.analysis.coordinates import Coordinates
from kann.analysis.filling import fit_fills
from kann.analysis.live_effects import Effects
from kann.errors import UnfinishedWarning
from kann.live.interventions import replacement
from kann.live.methods import Job
from kann.live.ordering import Search
from kann.live.planning import Plan
from kann.live.trials import Trials
from kann.progress import progress as progress_bar
from kann.typing import Array, Float


def run_jobs(jobs: Sequence[Job], judging: Trials, search: Search, *, show_progress: bool) -> list[Float[Array, " s"]]:
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
