"""Gradient descent on the speeds with Adam, as the published recipes do it."""

import math

import torch
from torch import Tensor

from kann.fixed_points.problem import Problem, half_square
from kann.fixed_points.recipes import Recipe
from kann.progress import progress
from kann.typing import Float

TOL_DQ = 1e-20
"""FixedPointFinder's tol_dq: a speed that changes by less than this times the learning rate has stopped changing."""


def descend(problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> tuple[Float[Tensor, "n d"], int]:
    """Lower the speeds with Adam in the recipe's precision; where each state came to, and the steps made."""
    recipe = problem.recipe
    dtype = getattr(torch, recipe.dtype)
    h, x = h.to(dtype, copy=True).requires_grad_(), x.to(dtype)
    first_rate = recipe.learning_rate * problem.unit
    adam = torch.optim.Adam([h], lr=first_rate)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=0.95, patience=5)
    speeds_before = torch.full_like(h[:, 0], math.inf)
    steps = 0
    for steps in progress(range(1, recipe.adam_steps + 1), what="descent", unit="step"):
        speeds = half_square(problem.adam_step(h, x) - h)
        loss = _loss(recipe, speeds)
        # Not loss.backward(), which would also add to the gradients of the network's own parameters.
        (h.grad,) = torch.autograd.grad(loss, h)
        adam.step()
        if recipe.schedule == "linear":
            adam.param_groups[0]["lr"] = first_rate * (1 - steps / recipe.adam_steps)
        elif recipe.schedule == "plateau":
            plateau.step(loss.detach())
        least_change = TOL_DQ * adam.param_groups[0]["lr"]
        if _is_done(problem, speeds, speeds_before, least_change=least_change):
            break
        speeds_before = speeds.detach()
    return h.detach().double(), steps


def _loss(recipe: Recipe, speeds: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    if recipe.average:
        return speeds.mean()
    return speeds.sum()


def _is_done(
    problem: Problem, speeds: Float[Tensor, " n"], before: Float[Tensor, " n"], *, least_change: float
) -> bool:
    """Whether the recipe stops at these speeds, those of the step before being ``before``."""
    stop = problem.recipe.stop
    if stop == "mean":
        return bool(speeds.mean() <= problem.tolerance)
    done = speeds <= problem.tolerance
    if stop == "change":
        done |= (speeds - before).abs() < least_change
    return bool(done.all())
