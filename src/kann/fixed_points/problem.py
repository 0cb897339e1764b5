"""A network to search, how to search it, and which of many states count as the same point."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from kann.backends.arrays import as_numpy
from kann.data.reduction import Additive
from kann.fixed_points.step_function import StepFunction
from kann.typing import Array, Float, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How long to search by each method, and which states count as the same point.

    Rates and distances are in units of the spread of the initial states in one hidden unit.
    """

    follow_steps: int = 50
    """Newton also starts from where the network itself goes from each initial state: after this number of steps, or two
    per unit of the state if that is more, since a step of Newton costs as much as some hundred of these."""
    settle_steps: int = 60
    """Most implicit steps by which states that are still moving after that follow the network further."""
    newton_steps: int = 100
    """Most steps of damped Newton."""
    adam_steps: int = 300
    """Steps of Adam, from initial states from which Newton found no fixed point; Newton is tried again from their
    ends."""
    learning_rate: float = 0.1
    """Adam's rate at the start; it falls to zero in a straight line."""
    distinct: float = 1e-3
    """Fixed points that differ by no more than this in any hidden unit are one point."""
    apart: float = 0.05
    """The same for slow points. A slow manifold is a continuum: this is how finely it is sampled."""
    outlier: float = 3.0
    """Points farther from the centre of the initial states than this many times their mean distance are outliers.
    Newton goes out there only from states that are there already."""


SLOW_TOLERANCE = 1e-6
"""Speed up to which a point is kept as slow, by default."""

ROUNDING = {torch.float64: 1e-28, torch.float32: 1e-13}
"""Speeds up to this much relative to |h|² are rounding, by the precision of the step. In float64 this is (50 ε)², since
F sums over some hundreds of units. In float32 that would be above the usual tolerance, and it is (3 ε)²: a search that
cannot come so low ends when it no longer gains."""

MAX_OUTWARD_RATIO = 1.1
"""A search that starts outside the border goes at most this many times as far from the centre as it starts."""


class Problem:
    """A network, how to search it, and the region to search, which is around the initial states."""

    def __init__(
        self,
        h: Float[Tensor, "n d"],
        step: StepFunction,
        dtype: torch.dtype,
        *,
        recipe: Recipe,
        tolerance: float,
        slow_tolerance: float,
        unit: float | None = None,
    ):
        self.step, self.dtype = step, dtype
        """The network as a function of float64 tensors, and the precision in which it computes."""
        self.recipe, self.tolerance, self.slow_tolerance = recipe, tolerance, slow_tolerance
        """Speeds up to ``tolerance`` are fixed, and up to ``slow_tolerance`` points are kept."""
        self.centre = h.mean(0)
        """Mean of the initial states."""
        self.spread = float((h - self.centre).norm(dim=1).mean()) or float(h.norm(dim=1).mean()) or 1.0
        """Mean distance of the initial states from their centre; of a single one its length, or 1 if that is zero."""
        self.border = math.inf if (h == h[0]).all() else recipe.outlier * self.spread
        """Distance from the centre beyond which points are outliers."""
        self.unit = self.spread / math.sqrt(h.shape[1]) if unit is None else unit
        """The length in one hidden unit that the recipe's rates and distances are multiples of."""

    def speed(self, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """Return the speed ½|step(h, x) − h|² of each state, without gradients."""
        with torch.no_grad():
            return half_square(self.step(h, x) - h)

    def rounding(self, h: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Return the speed of each state below which there is only rounding."""
        return ROUNDING[self.dtype] * (h.square().sum(dim=1) + self.spread**2)

    def reach(self, start: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Return the largest distance from the centre that a search from each state may reach.

        Far out a GRU's update gate saturates and every state is slow. Without a border, searches that find no point
        inside come back from there with slow points where the network never is.
        """
        return (MAX_OUTWARD_RATIO * (start - self.centre).norm(dim=1)).clamp(min=self.border)


def half_square(moves: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Compute ½|r|² of each row r: the speed of a state that one step moves by r."""
    return 0.5 * moves.square().sum(dim=1)


def _joined(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([one, other])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Searches(Additive):
    """The course of searches: those from the initial states first, then any others."""

    inputs: Float[Tensor, "m p"]
    """The constant input of each."""
    ends: Float[Tensor, "m d"]
    """The state at which each ended."""
    first_slow: Float[Tensor, "m d"]
    """The first slow state that each came to; its end where there is none before."""
    adam_steps: int = 0
    newton_steps: int = 0
    ADDED_BY: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {
        "inputs": _joined,
        "ends": _joined,
        "first_slow": _joined,
        "adam_steps": max,
        "newton_steps": max,
    }

    def rows(self, places: Int[Tensor, " r"]) -> "Searches":
        """Return some of the searches."""
        return dataclasses.replace(
            self, inputs=self.inputs[places], ends=self.ends[places], first_slow=self.first_slow[places]
        )

    def replaced_where_slower(self, problem: Problem, rows: Int[Tensor, " r"], again: "Searches") -> "Searches":
        """Replace first searches by second ones that ended at a lower speed."""
        first = problem.speed(self.ends[rows], again.inputs).nan_to_num(math.inf)
        second = problem.speed(again.ends, again.inputs).nan_to_num(math.inf)
        better = second < first
        ends, first_slow = self.ends.clone(), self.first_slow.clone()
        ends[rows[better]] = again.ends[better]
        first_slow[rows[better]] = again.first_slow[better]
        return Searches(
            inputs=self.inputs,
            ends=ends,
            first_slow=first_slow,
            adam_steps=max(self.adam_steps, again.adam_steps),
            newton_steps=max(self.newton_steps, again.newton_steps),
        )

    def not_fixed(self, problem: Problem) -> Int[Tensor, " r"]:
        """Return the indices of searches that did not end at a fixed point."""
        return (~(problem.speed(self.ends, self.inputs) <= problem.tolerance)).nonzero()[:, 0]  # NaN is not fixed


def merge(
    points: Float[Array, "m d"], inputs: Float[Array, "m p"], order: Int[Array, " m"], radius: Float[Array, " m"]
) -> tuple[Int[Array, " k"], Int[Array, " m"]]:
    """Choose points that represent all others, in the given order, and return the representative of each point.

    A point represents another with the same input if they differ by no more than the other's radius in any hidden unit.
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
    """Return the fixed points among the ends of searches, each once, and their inputs."""
    speeds = as_numpy(problem.speed(searches.ends, searches.inputs))
    fixed = np.flatnonzero(speeds <= problem.tolerance)
    h, x = searches.ends[fixed], searches.inputs[fixed]
    radius = np.full(len(h), problem.recipe.distinct * problem.unit)
    chosen, _ = merge(as_numpy(h), as_numpy(x), np.argsort(speeds[fixed]), radius)
    return h[chosen], x[chosen]
