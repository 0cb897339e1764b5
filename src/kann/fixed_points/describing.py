"""From the ends of searches to the points that come back: filtered, merged, sorted and linearised."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kann.backends.arrays import as_numpy
from kann.fixed_points.jacobians import eigenvalues_of, is_stable, jacobians
from kann.fixed_points.merging import merge
from kann.fixed_points.problem import Problem, Searches, half_square
from kann.fixed_points.result import FixedPoints
from kann.typing import Array, Float, Int, Shaped

SHARP_ROUNDING = 1e4
"""A fixed point is known sharply if its speed is within this many times rounding."""


def describe(problem: Problem, searches: Searches, *, initial: int) -> FixedPoints:
    """Filter candidates by speed, merge those that are one point, sort them, and linearise the network about them.

    The first ``initial`` searches are those from the initial states, which are counted.
    """
    kept, speeds = _candidates(problem, searches)
    h = torch.cat([searches.ends, searches.first_slow])[kept]
    x = searches.inputs.repeat(2, 1)[kept]
    chosen, group = _merge_candidates(problem, h, x, speeds[kept], is_end=kept < len(searches.ends))
    from_initial = kept % len(searches.ends) < initial
    counts = np.bincount(group[from_initial], minlength=len(chosen))
    # The last key counts first: fixed points before slow ones, then those that more initial states led to.
    order = np.lexsort((chosen, -counts, speeds[kept][chosen] > problem.tolerance))
    # argsort of an order says to which place each group moved.
    reached = np.full(initial, -1)
    reached[kept[kept < initial]] = np.argsort(order)[group[kept < initial]]
    return _linearise(
        problem,
        h[chosen[order]],
        x[chosen[order]],
        counts=counts[order],
        reached=reached,
        candidate_speeds=speeds[:initial],
        adam_steps=searches.adam_steps,
        newton_steps=searches.newton_steps,
    )


def _candidates(problem: Problem, searches: Searches) -> tuple[Int[Array, " c"], Float[Array, " m2"]]:
    """Which rows of the ends, followed by the first slow states, are points to keep; and the speeds of all rows."""
    states = torch.cat([searches.ends, searches.first_slow])
    speeds = as_numpy(problem.speed(states, searches.inputs.repeat(2, 1)))
    speeds = np.where(np.isfinite(speeds), speeds, np.inf)
    # The first slow state of a search counts by itself only if the search went elsewhere from there.
    farthest = as_numpy((searches.ends - searches.first_slow).abs().amax(dim=1))
    left = farthest > problem.recipe.apart * problem.unit
    counted = np.concatenate([np.ones_like(left), left])
    kept = np.flatnonzero(counted & np.isfinite(speeds) & (speeds <= problem.slow_tolerance))
    return kept, speeds


def _merge_candidates(
    problem: Problem,
    h: Float[Tensor, "c d"],
    x: Float[Tensor, "c p"],
    speeds: Float[Array, " c"],
    *,
    is_end: Shaped[Array, " c"],
) -> tuple[Int[Array, " k"], Int[Array, " c"]]:
    """Which candidates stand for all, and for each candidate which of them stands for it."""
    # Where Newton did not come to rest, or only came by, a point is a sample of a manifold, however slow.
    sharp = is_end & (speeds <= problem.tolerance) & (speeds <= SHARP_ROUNDING * as_numpy(problem.rounding(h)))
    radius = np.where(sharp, problem.recipe.distinct, problem.recipe.apart) * problem.unit
    return merge(as_numpy(h), as_numpy(x), np.lexsort((speeds, ~sharp)), radius)


def _linearise(problem: Problem, h: Float[Tensor, "k d"], x: Float[Tensor, "k p"], **rest: Any) -> FixedPoints:
    """Speeds, Jacobians, eigenvalues, stability, kinds and outliers of points."""
    following, of_h, of_x = jacobians(problem.step, h, x)
    points, speeds = as_numpy(h), as_numpy(half_square(following - h))
    eigenvalues = eigenvalues_of(as_numpy(of_h))
    return FixedPoints(
        points=points,
        inputs=as_numpy(x),
        speeds=speeds,
        kinds=np.where(speeds <= problem.tolerance, "fixed", "slow"),
        jacobians=as_numpy(of_h),
        input_jacobians=as_numpy(of_x),
        eigenvalues=eigenvalues,
        stable=is_stable(eigenvalues),
        outlier=np.linalg.norm(points - as_numpy(problem.centre), axis=1) > problem.border,
        tolerance=problem.tolerance,
        slow_tolerance=problem.slow_tolerance,
        precision=str(problem.dtype).removeprefix("torch."),
        **rest,
    )
