"""Damped Newton (Levenberg–Marquardt) on the speeds of many states at the same time."""

import math

import torch
from torch import Tensor

from kann.fixed_points.jacobians import row_blocks, step_with_slopes
from kann.fixed_points.problem import Problem, Searches
from kann.progress import progress
from kann.typing import Float

DAMPING_AFTER_GAIN = 0.1
"""What the damping is multiplied with after a step that lowers the speed."""

DAMPING_AFTER_LOSS = 5.0
"""What the damping is multiplied with after a step that does not."""

MAX_STEPS_WITHOUT_GAIN = 6
"""After so many steps in a row, none of which gains, Newton gives a state up."""

GAIN = 0.9
"""A step gains if it lowers the speed to less than this fraction."""

Known = tuple[Float[Tensor, "k d"], Float[Tensor, "k p"]]
"""Fixed points that were found before, and their inputs."""


def newton(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], *, known: Known | None = None
) -> Searches:
    """Damped Newton from each state by itself. A search that comes upon a known fixed point ends there."""
    searches = Searches(inputs=x[:0], ends=h[:0], first_slow=h[:0])
    for rows in row_blocks(*h.shape):
        batch = _Batch(problem, h[rows], x[rows], known or (h[:0], x[:0]))
        searches = searches + batch.run()
    return searches


class _Batch:
    """States that Newton moves at the same time, each with a damping of its own.

    The damping is in proportion to |r|, which keeps convergence quadratic even where J − I is singular. A row leaves
    the batch when its speed is down to rounding, or when it hardly falls any more, as at a local minimum.
    """

    def __init__(self, problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], known: Known):
        self._problem, self._known = problem, known
        self._h, self._x = h.clone(), x
        self._speeds = problem.speed(h, x)
        self._damping = torch.ones_like(self._speeds)
        self._steps_without_gain = torch.zeros_like(self._speeds)
        self._reach = problem.reach(h)
        # However much the caller keeps in the end, as with slow_tolerance=inf.
        self._slow_limit = min(problem.slow_tolerance, problem.recipe.slow_tolerance)
        self._is_slow, self._first_slow = self._speeds <= self._slow_limit, h.clone()
        self._active = torch.isfinite(self._speeds).nonzero()[:, 0]

    def run(self) -> Searches:
        """Make steps until no row is left, or as many as the recipe allows."""
        steps = 0
        for _ in progress(range(self._problem.recipe.newton_steps), what="Newton", unit="step"):
            self._step()
            steps += 1
            if not len(self._active):
                break
        return Searches(inputs=self._x, ends=self._h, first_slow=self._first_slow, newton_steps=steps)

    def _step(self) -> None:
        """Try one step of every active row, and keep it where it lowers the speed."""
        problem, active = self._problem, self._active
        h, x, speeds = self._h[active], self._x[active], self._speeds[active]
        trial = _newton_step(problem, h, x, self._damping[active])
        trial = _moved_to_known(problem, trial, x, self._known)
        trial_speeds = problem.speed(trial, x)
        # A trial out of reach counts as one that gained nothing, so the damping grows and the next step is shorter.
        trial_speeds[(trial - problem.centre).norm(dim=1) > self._reach[active]] = math.inf
        better = trial_speeds < speeds  # false where the trial is not finite
        without_gain = self._steps_without_gain[active] + 1
        self._steps_without_gain[active] = torch.where(trial_speeds < GAIN * speeds, 0.0, without_gain)
        self._h[active] = torch.where(better[:, None], trial, h)
        self._speeds[active] = torch.where(better, trial_speeds, speeds)
        self._damping[active] *= torch.where(better, DAMPING_AFTER_GAIN, DAMPING_AFTER_LOSS)
        # A row's first slow state follows its state until that is slow.
        self._first_slow = torch.where(self._is_slow[:, None], self._first_slow, self._h)
        self._is_slow |= self._speeds <= self._slow_limit
        done = (self._speeds <= problem.rounding(self._h)) | (self._steps_without_gain >= MAX_STEPS_WITHOUT_GAIN)
        self._active = active[~done[active]]


def _newton_step(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], damping: Float[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """Add −(AᵀA + μ I)⁻¹ Aᵀ r to h, for r = F(h, x) − h, its Jacobian A = J − I, and μ = damping · |r| / spread."""
    following, slope = step_with_slopes(problem.step, h, x)
    slope.diagonal(dim1=1, dim2=2).sub_(1)
    residual = following - h
    normal = slope.mT @ slope
    normal.diagonal(dim1=1, dim2=2).add_((damping * residual.norm(dim=1) / problem.spread)[:, None])
    factor, _ = torch.linalg.cholesky_ex(normal)  # one that fails gives a trial that gains nothing
    return h - torch.cholesky_solve(slope.mT @ residual[:, :, None], factor)[:, :, 0]


def _moved_to_known(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], known: Known
) -> Float[Tensor, "n d"]:
    """Move states to a known point where they differ from it by so little that they would count as the same."""
    points, inputs = known
    if not len(points):
        return h
    distance = torch.cdist(h, points, p=math.inf)
    distance[~torch.isfinite(h).all(dim=1)] = math.inf  # cdist says 0 for them
    distance[(x[:, None] != inputs).any(dim=2)] = math.inf
    least, place = distance.min(dim=1)
    near = least <= problem.recipe.distinct * problem.unit
    return torch.where(near[:, None], points[place], h)
