"""Make all runs of a plan on the sequences that are judged, and gather their scores."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kann.analysis.coordinates import Coordinates, Spread
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
