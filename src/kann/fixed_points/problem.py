"""Which of many states count as the same point."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from kann.backends.arrays import as_numpy
from kann.checks import shown
from kann.data.additive import Additive
from kann.errors import KannError
from kann.fixed_points.step_function import StepFunction
from kann.typing import Array, Float, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to search, and what counts as the same point."""

    dtype: Literal["float32", "float64"] = "float64"
    """Precision of Adam. All else is float64, as far as the step can be computed in it."""
    follow_steps: int = 50
    """Newton also starts from where the network itself goes from each initial state: so many steps, or twice as many as
    the state has units, since a step of Newton costs as much as some hundred of these."""
    settle_steps: int = 60
    """Implicit steps by which states follow the network further, at most, where it is not slow after those."""
    newton_steps: int = 100
    """Steps of damped Newton, at most; 0 leaves it out, and Adam is all."""
    adam_steps: int = 300
    """Steps of Adam, at most. Where there is Newton, Adam is only for initial states from which Newton found no fixed
    point, and Newton is tried again from where it ends."""
    learning_rate: float = 0.1
    """Adam's rate at the start."""
    schedule: Literal["linear", "plateau", "constant"] = "linear"
    """How the rate falls: to zero in a straight line, by 5 % after 5 steps without gain, or not at all."""
    average: bool = False
    """Minimise the mean of the speeds, not their sum. Adam divides by the size of the gradient, so this matters only
    where the gradient is as small as Adam's epsilon, 1e-8."""
    stop: Literal["each", "change", "mean"] = "each"
    """Stop Adam when each speed is within the tolerance, or else has stopped changing, or when their mean is."""
    relative: bool = True
    """Rates and distances are in units of the spread of the initial states in one hidden unit, not absolute."""
    distinct: float = 1e-3
    """Fixed points that differ by no more than this in any hidden unit are one point."""
    apart: float = 0.05
    """The same for slow points. A slow manifold is a continuum: this is how finely it is sampled."""
    outlier: float = 3.0
    """Points farther from the centre of the initial states than this many times their mean distance are outliers.
    Newton goes out there only from states that are there already."""
    slow_tolerance: float = 1e-6
    """Speed up to which a point is kept as slow, unless the caller says otherwise."""


RECIPES = {
    "kann": Recipe(),
    # FixedPointFinder (Golub & Sussillo 2018), defaults of FixedPointFinderTorch: lr_init=1.0, lr_patience=5,
    # lr_factor=0.95 for torch's Adam and ReduceLROnPlateau; of FixedPointFinderBase: dtype float32, max_iters=5000,
    # method "joint" (the mean of all speeds), tol_q=1e-12 (here the caller's tolerance), tol_dq=1e-20,
    # tol_unique=1e-3 along any dimension, outlier_distance_scale=10. It has no filter on the speed: every candidate
    # comes back. It drops outliers, which here are marked like all others.
    "fpf": Recipe(
        dtype="float32",
        follow_steps=0,
        newton_steps=0,
        adam_steps=5000,
        learning_rate=1.0,
        schedule="plateau",
        average=True,
        stop="change",
        relative=False,
        distinct=1e-3,
        apart=1e-3,
        outlier=10.0,
        slow_tolerance=math.inf,
    ),
    # The published code of "Reverse engineering neural networks" (Maheswaranathan et al. 2019): find_fixed_points
    # has steps=range(1000) and stops when the mean speed is within the tolerance; its sentiment notebook passes
    # adam(0.01). float32 is jax's default. Points are neither merged nor left out (exclude_outliers: threshold=inf).
    "renn": Recipe(
        dtype="float32",
        follow_steps=0,
        newton_steps=0,
        adam_steps=1000,
        learning_rate=0.01,
        schedule="constant",
        average=True,
        stop="mean",
        relative=False,
        distinct=0.0,
        apart=0.0,
        outlier=math.inf,
        slow_tolerance=math.inf,
    ),
}
"""Recipes by name."""


def recipe_of(preset: str | Recipe) -> Recipe:
    """A recipe as it is, or the one of this name."""
    if isinstance(preset, Recipe):
        return preset
    if not isinstance(preset, str) or preset not in RECIPES:
        raise KannError(f"preset={shown(preset)} is unknown; pass one of {', '.join(map(repr, RECIPES))}, or a Recipe")
    return RECIPES[preset]


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
class Searches(Additive):
    """Where searches went: those from the initial states first, then any others."""

    inputs: Float[Tensor, "m p"]
    """The constant input of each."""
    ends: Float[Tensor, "m d"]
    """The state at which each ended."""
    first_slow: Float[Tensor, "m d"]
    """The first slow state that each came to; its end where there is none before."""
    adam_steps: int = 0
    newton_steps: int = 0
    ADDED_BY: ClassVar = dict.fromkeys(("inputs", "ends", "first_slow"), lambda *both: torch.cat(both)) | dict.fromkeys(
        ("adam_steps", "newton_steps"), max
    )

    def rows(self, places: Int[Tensor, " r"]) -> "Searches":
        """Some of the searches."""
        return dataclasses.replace(
            self, inputs=self.inputs[places], ends=self.ends[places], first_slow=self.first_slow[places]
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
