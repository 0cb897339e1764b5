"""Where a network comes to rest by itself, reached by implicit steps, each of which is worth many of its own."""

import math

import torch
from torch import Tensor

from kann.fixed_points.jacobians import row_blocks, step_with_slopes
from kann.fixed_points.problem import Problem, half_square
from kann.progress import progress
from kann.recording import RecurrentStep
from kann.recording.slopes import solve_shifted
from kann.typing import Float

LARGEST_CHANGE = 5.0
"""How many times as long as the last one an implicit step may be."""

LARGEST_GROWTH = 10.0
"""How many times as large |F(h) − h| may become in an implicit step; with more, the step is tried again, shorter."""

MAX_REFUSED = 8
"""After so many refused steps in all, a state is given up."""


def settle(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], *, first_leap: float
) -> Float[Tensor, "n d"]:
    """Where the network goes from each state in the long run, if it comes to rest; else where it was given up.

    Newton and Adam lower the speed, and a wide LSTM has local minima of it everywhere. The network itself does not get
    stuck in them: it follows dh/dt = r(h) = F(h, x) − h with steps of length 1. An implicit step of length τ along the
    same path is h + (I/τ − A)⁻¹ r, with A = J − I, and the longer it is the more it is a step of Newton. Steps grow as
    fast as |r| falls (pseudo-transient continuation; Kelley & Keyes 1998). The first is worth ``first_leap`` of the
    network's own.
    """
    ends = [_Settling(problem, h[rows], x[rows], first_leap).run() for rows in row_blocks(*h.shape)]
    return torch.cat([h[:0], *ends])


class _Settling:
    """States that follow the network at the same time, each with steps of a length of its own."""

    def __init__(self, problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], first_leap: float):
        self._problem, self._h, self._x = problem, h.clone(), x
        self._residuals = (2 * problem.speed(h, x)).sqrt()
        self._leaps = torch.full_like(self._residuals, first_leap)
        self._refused = torch.zeros_like(self._residuals)
        self._active = torch.arange(len(h), device=h.device)

    def run(self) -> Float[Tensor, "n d"]:
        """Make steps until every state is at rest or given up, or as many as the recipe allows."""
        for _ in progress(range(self._problem.recipe.settle_steps), what="settling", unit="step"):
            if not len(self._active):
                break
            self._step()
        return self._h

    def _step(self) -> None:
        """One implicit step of every active state, refused where |r| grows much."""
        problem, active = self._problem, self._active
        h, x, leaps = self._h[active], self._x[active], self._leaps[active]
        trial = _implicit_step(problem, h, x, leaps)
        moved = (2 * problem.speed(trial, x)).sqrt().nan_to_num(math.inf)
        before = self._residuals[active]
        accepted = moved <= LARGEST_GROWTH * before
        self._h[active] = torch.where(accepted[:, None], trial, h)
        self._residuals[active] = torch.where(accepted, moved, before)
        change = (before / moved).clamp(1 / LARGEST_CHANGE, LARGEST_CHANGE)  # the shortest where it was refused
        self._leaps[active] = leaps * change.nan_to_num(LARGEST_CHANGE)  # 0 / 0: at rest before and after
        self._refused[active] += (~accepted).to(h.dtype)
        speeds = half_square(self._residuals[active][:, None])
        done = (speeds <= problem.tolerance) | (self._refused[active] >= MAX_REFUSED)
        self._active = active[~done]


def _implicit_step(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], leaps: Float[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """Add (I/τ − A)⁻¹ r to h, for r = F(h, x) − h, its Jacobian A = J − I and the length τ of each step."""
    if isinstance(problem.step, RecurrentStep):
        with torch.no_grad():
            return problem.step.implicit(h, x, leaps)
    following, slopes = step_with_slopes(problem.step, h, x)
    return h + solve_shifted(slopes, 1 + 1 / leaps, following - h)
