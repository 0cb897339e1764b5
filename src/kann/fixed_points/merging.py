"""Which of many states count as the same point."""

import numpy as np
from torch import Tensor

from kann.backends.arrays import as_numpy
from kann.fixed_points.problem import Problem, Searches
from kann.typing import Array, Float, Int


def merge(
    points: Float[Array, "m d"], inputs: Float[Array, "m p"], order: Int[Array, " m"], radius: Float[Array, " m"]
) -> tuple[Int[Array, " k"], Int[Array, " m"]]:
    """Points that stand for all others, chosen in the given order, and for each point which of them stands for it.

    One stands for another with the same input that differs from it by no more than the other's radius in any hidden
    unit.
    """
    group = np.full(len(points), -1)
    chosen: list[int] = []
    for i in order:
        if group[i] < 0:
            near = (np.abs(points - points[i]).max(axis=1) <= radius) & (inputs == inputs[i]).all(axis=1)
            group[near & (group < 0)] = len(chosen)
            chosen.append(int(i))
    return np.array(chosen, dtype=np.int64), group


def distinct_fixed_points(problem: Problem, searches: Searches) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k p"]]:
    """The fixed points among the ends of searches, each once, and their inputs."""
    speeds = as_numpy(problem.speed(searches.ends, searches.inputs))
    fixed = np.flatnonzero(speeds <= problem.tolerance)
    h, x = searches.ends[fixed], searches.inputs[fixed]
    radius = np.full(len(h), problem.recipe.distinct * problem.unit)
    chosen, _ = merge(as_numpy(h), as_numpy(x), np.argsort(speeds[fixed]), radius)
    return h[chosen], x[chosen]
