"""What is searched, and where searches went: the two things that all parts of a search hand to each other."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kann.fixed_points.recipes import Recipe
from kann.fixed_points.step_function import StepFunction
from kann.typing import Float, Int

ROUNDING = {torch.float64: 1e-28, torch.float32: 1e-13}
"""Speeds up to this much relative to |h|² are rounding, by the precision of the step. In float64 this is (50 ε)², since
F sums over some hundreds of units. In float32 that would be above the usual tolerance, and it is (3 ε)²: a search that
cannot come so low ends when it no longer gains."""

MAX_OUTWARD_RATIO = 1.1
"""A search that starts outside the border goes at most this many times as far from the centre as it starts."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Problem:
    """A network, how to search it, and the region to search."""

    step: StepFunction
    """The network as a function of float64 tensors."""
    adam_step: StepFunction
    """The network as a function of tensors in the precision of Adam."""
    dtype: torch.dtype
    """The precision in which ``step`` computes."""
    recipe: Recipe
    tolerance: float
    """Speed up to which a point is fixed."""
    slow_tolerance: float
    """Speed up to which a point is kept."""
    centre: Float[Tensor, " d"]
    """Mean of the initial states."""
    spread: float
    """Mean distance of the initial states from their centre, or, where they are all the same, a length to go by."""
    border: float
    """Distance from the centre beyond which points are outliers: infinite where all initial states are the same."""

    @property
    def unit(self) -> float:
        """The length that the recipe's rates and distances in one hidden unit are multiples of."""
        if not self.recipe.relative:
            return 1.0
        return self.spread / math.sqrt(len(self.centre))

    def speed(self, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """The speed ½|step(h, x) − h|² of each state, without gradients."""
        with torch.no_grad():
            return half_square(self.step(h, x) - h)

    def rounding(self, h: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The speed of each state below which there is only rounding."""
        return ROUNDING[self.dtype] * (h.square().sum(dim=1) + self.spread**2)

    def reach(self, start: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """How far from the centre a search from each state may go.

        Far out a GRU's update gate saturates and every state is slow. Without a border, searches that find nothing
        inside come back from there with slow points where the network never is.
        """
        return (MAX_OUTWARD_RATIO * (start - self.centre).norm(dim=1)).clamp(min=self.border)


def half_square(moves: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """½|r|² of each row r: the speed of a state that one step moves by r."""
    return 0.5 * moves.square().sum(dim=1)


def spread_of(h: Float[Tensor, "n d"]) -> float:
    """Mean distance of states from their centre; of a single one its length, or 1 if that is zero too."""
    spread = float((h - h.mean(0)).norm(dim=1).mean())
    return spread or float(h.norm(dim=1).mean()) or 1.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Searches:
    """Where searches went: those from the initial states first, then any others."""

    inputs: Float[Tensor, "m p"]
    """The constant input of each."""
    ends: Float[Tensor, "m d"]
    """The state at which each ended."""
    first_slow: Float[Tensor, "m d"]
    """The first slow state that each came to; its end where there is none before."""
    adam_steps: int = 0
    newton_steps: int = 0

    def rows(self, places: Int[Tensor, " r"]) -> "Searches":
        """Some of the searches."""
        return dataclasses.replace(
            self, inputs=self.inputs[places], ends=self.ends[places], first_slow=self.first_slow[places]
        )

    def __add__(self, other: "Searches") -> "Searches":
        return Searches(
            inputs=torch.cat([self.inputs, other.inputs]),
            ends=torch.cat([self.ends, other.ends]),
            first_slow=torch.cat([self.first_slow, other.first_slow]),
            adam_steps=max(self.adam_steps, other.adam_steps),
            newton_steps=max(self.newton_steps, other.newton_steps),
        )

    def replaced_where_slower(self, problem: Problem, rows: Int[Tensor, " r"], again: "Searches") -> "Searches":
        """Put second searches in the place of first ones wherever they ended at a lower speed."""
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
        """Which searches did not end at a fixed point."""
        return (~(problem.speed(self.ends, self.inputs) <= problem.tolerance)).nonzero()[:, 0]  # NaN is not fixed
