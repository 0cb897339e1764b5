"""Published searches for fixed points, to compare with `kann.find_fixed_points`: Adam on the speeds, nothing else."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from kann.fixed_points import FixedPoints, Recipe
from kann.fixed_points._search import Problem, Searches, checked_tolerances, describe, half_square
from kann.fixed_points.step_function import StepFunction, checked_step, starting_tensors
from kann.progress import progress
from kann.typing import AnyArray, Float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamRecipe:
    """Adam in float32 on the mean of all speeds, with rates and distances as they are, in no unit of the states."""

    steps: int
    """Steps at most."""
    learning_rate: float
    schedule: Literal["plateau", "constant"]
    """How the rate falls: by 5 % after 5 steps without gain, or not at all."""
    stop: Literal["change", "mean"]
    """Stop when each speed is within the tolerance or has stopped changing, or when their mean is within it."""
    distinct: float
    """Points that differ by no more than this in any hidden unit are one."""
    outlier: float
    """Points farther from the centre of the initial states than this many times their mean distance are outliers."""


RECIPES = {
    # FixedPointFinder (Golub & Sussillo 2018), defaults of FixedPointFinderTorch: lr_init=1.0, lr_patience=5,
    # lr_factor=0.95 for torch's Adam and ReduceLROnPlateau; of FixedPointFinderBase: dtype float32, max_iters=5000,
    # method "joint" (the mean of all speeds), tol_q=1e-12 (here the caller's tolerance), tol_dq=1e-20,
    # tol_unique=1e-3 along any dimension, outlier_distance_scale=10. It has no filter on the speed: every candidate
    # comes back. It drops outliers, which here are marked like all others.
    "fpf": AdamRecipe(steps=5000, learning_rate=1.0, schedule="plateau", stop="change", distinct=1e-3, outlier=10.0),
    # The published code of "Reverse engineering neural networks" (Maheswaranathan et al. 2019): find_fixed_points
    # has steps=range(1000) and stops when the mean speed is within the tolerance; its sentiment notebook passes
    # adam(0.01). float32 is jax's default. Points are neither merged nor left out (exclude_outliers: threshold=inf).
    "renn": AdamRecipe(
        steps=1000, learning_rate=0.01, schedule="constant", stop="mean", distinct=0.0, outlier=math.inf
    ),
}
"""Recipes by name."""

TOL_DQ = 1e-20
"""FixedPointFinder's tol_dq: a speed that changes by less than this times the learning rate has stopped changing."""


def find_fixed_points(
    step: Any,
    initial: AnyArray,
    *,
    recipe: AdamRecipe,
    inputs: AnyArray | None = None,
    tolerance: float = 1e-10,
    slow_tolerance: float = math.inf,
) -> FixedPoints:
    """Search as `kann.find_fixed_points` does, from the same states and with the same tolerances, by a recipe.

    Every candidate within ``slow_tolerance`` comes back, by default all. Speeds, Jacobians and eigenvalues are float64.
    """
    tolerance, slow_tolerance = checked_tolerances(tolerance, slow_tolerance)
    with torch.inference_mode(False), torch.enable_grad(), parametrize.cached():
        h, x = starting_tensors(step, initial, inputs)
        function, dtype = checked_step(step, h, x, has_inputs=inputs is not None)
        single, _ = checked_step(step, h.float(), x.float(), has_inputs=inputs is not None)
        problem = Problem(
            h,
            function,
            dtype,
            recipe=Recipe(distinct=recipe.distinct, apart=recipe.distinct, outlier=recipe.outlier),
            tolerance=tolerance,
            slow_tolerance=slow_tolerance,
            unit=1.0,
        )
        ends, steps = _descend(single, h.float(), x.float(), recipe, tolerance=tolerance)
        return describe(problem, Searches(inputs=x, ends=ends, first_slow=ends, adam_steps=steps), initial=len(h))


def _descend(
    step: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], recipe: AdamRecipe, *, tolerance: float
) -> tuple[Float[Tensor, "n d"], int]:
    """Lower the mean speed with Adam; return the states it came to in float64, and how many steps it made."""
    h = h.clone().requires_grad_()
    adam = torch.optim.Adam([h], lr=recipe.learning_rate)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=0.95, patience=5)
    before, steps = torch.full_like(h[:, 0], math.inf), 0
    for steps in progress(range(1, recipe.steps + 1), what="descent", unit="step"):  # noqa: B007
        speeds = half_square(step(h, x) - h)
        (h.grad,) = torch.autograd.grad(speeds.mean(), h)
        adam.step()
        if recipe.schedule == "plateau":
            plateau.step(speeds.mean().detach())
        if recipe.stop == "mean":
            done = speeds.mean() <= tolerance
        else:
            least_change = TOL_DQ * adam.param_groups[0]["lr"]
            done = ((speeds <= tolerance) | ((speeds - before).abs() < least_change)).all()
        if done:
            break
        before = speeds.detach()
    return h.detach().double(), steps
