"""Newton, implicit steps and Adam on the speeds of many states at once."""

import math

import torch
from torch import Tensor

from kann.fixed_points.jacobians import implicit_step, row_blocks, step_with_slopes
from kann.fixed_points.problem import SLOW_TOLERANCE, Problem, Searches, half_square
from kann.progress import progress
from kann.typing import Float

DAMPING_AFTER_GAIN = 0.1
"""Factor of the damping after a step that lowers the speed."""

DAMPING_AFTER_LOSS = 5.0
"""Factor of the damping after a step that does not."""

MAX_STEPS_WITHOUT_GAIN = 6
"""Newton gives a state up after this many steps in a row without gain."""

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
        searches = searches + _newton_at_once(problem, h[rows].clone(), x[rows], known or (h[:0], x[:0]))
    return searches


def _newton_at_once(problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], known: Known) -> Searches:
    """Move states by Newton at the same time, each with its damping; ``h`` is overwritten.

    The damping is in proportion to |r|, which keeps convergence quadratic even where J − I is singular. A row is done
    when its speed is down to rounding, or when it hardly falls any more, as at a local minimum.
    """
    speeds, reach = problem.speed(h, x), problem.reach(h)
    damping, without_gain = torch.ones_like(speeds), torch.zeros_like(speeds)
    # However much the caller keeps in the end, as with slow_tolerance=inf.
    slow_limit = min(problem.slow_tolerance, SLOW_TOLERANCE)
    is_slow, first_slow = speeds <= slow_limit, h.clone()
    active = torch.isfinite(speeds).nonzero()[:, 0]
    steps = 0
    for _ in progress(range(problem.recipe.newton_steps), what="Newton", unit="step"):
        steps += 1
        here, inputs, before = h[active], x[active], speeds[active]
        trial = _moved_to_known(problem, _newton_step(problem, here, inputs, damping[active]), inputs, known)
        moved = problem.speed(trial, inputs)
        # A trial out of reach counts as one that gained nothing, so the damping grows and the next step is shorter.
        moved[(trial - problem.centre).norm(dim=1) > reach[active]] = math.inf
        better = moved < before  # false where the trial is not finite
        without_gain[active] = torch.where(moved < GAIN * before, 0.0, without_gain[active] + 1)
        h[active] = torch.where(better[:, None], trial, here)
        speeds[active] = torch.where(better, moved, before)
        damping[active] *= torch.where(better, DAMPING_AFTER_GAIN, DAMPING_AFTER_LOSS)
        # A row's first slow state follows its state until that is slow.
        first_slow = torch.where(is_slow[:, None], first_slow, h)
        is_slow |= speeds <= slow_limit
        done = (speeds <= problem.rounding(h)) | (without_gain >= MAX_STEPS_WITHOUT_GAIN)
        active = active[~done[active]]
        if not len(active):
            break
    return Searches(inputs=x, ends=h, first_slow=first_slow, newton_steps=steps)


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


LARGEST_CHANGE = 5.0
"""Largest ratio of the lengths of an implicit step and the one before."""

LARGEST_GROWTH = 10.0
"""Largest growth of |F(h) − h| in an implicit step; with more, a shorter step is tried."""

MAX_REFUSED = 8
"""A state is given up after this many refused steps."""


def settle(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], *, first_leap: float
) -> Float[Tensor, "n d"]:
    """Follow the network from each state until it comes to rest or is given up.

    Newton and Adam lower the speed, and a wide LSTM has local minima of it everywhere. The network itself does not get
    stuck in them: it follows dh/dt = r(h) = F(h, x) − h with steps of length 1. An implicit step of length τ along the
    same path is h + (I/τ − A)⁻¹ r, with A = J − I, and the longer it is the more it is a step of Newton. Steps grow as
    fast as |r| falls (pseudo-transient continuation; Kelley & Keyes 1998). The first is worth ``first_leap`` of the
    network's own.
    """
    ends = [_settle_at_once(problem, h[rows].clone(), x[rows], first_leap) for rows in row_blocks(*h.shape)]
    return torch.cat([h[:0], *ends])


def _settle_at_once(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], first_leap: float
) -> Float[Tensor, "n d"]:
    """Move states along the network at the same time, each with its length of steps; ``h`` is overwritten."""
    residuals = (2 * problem.speed(h, x)).sqrt()
    leaps, refused = torch.full_like(residuals, first_leap), torch.zeros_like(residuals)
    active = torch.arange(len(h), device=h.device)
    for _ in progress(range(problem.recipe.settle_steps), what="settling", unit="step"):
        if not len(active):
            break
        here, inputs, before = h[active], x[active], residuals[active]
        trial = implicit_step(problem.step, here, inputs, leaps[active])
        moved = (2 * problem.speed(trial, inputs)).sqrt().nan_to_num(math.inf)
        accepted = moved <= LARGEST_GROWTH * before
        h[active] = torch.where(accepted[:, None], trial, here)
        residuals[active] = torch.where(accepted, moved, before)
        change = (before / moved).clamp(1 / LARGEST_CHANGE, LARGEST_CHANGE)  # the shortest where it was refused
        leaps[active] *= change.nan_to_num(LARGEST_CHANGE)  # 0 / 0: at rest before and after
        refused[active] += (~accepted).to(h.dtype)
        done = (residuals**2 / 2 <= problem.tolerance) | (refused >= MAX_REFUSED)
        active = active[~done[active]]
    return h


def descend(problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> tuple[Float[Tensor, "n d"], int]:
    """Lower the speeds with Adam; return the states it came to, and how many steps it made."""
    h, most, steps = h.clone().requires_grad_(), problem.recipe.adam_steps, 0
    rate = problem.recipe.learning_rate * problem.unit
    adam = torch.optim.Adam([h], lr=rate)
    for steps in progress(range(1, most + 1), what="descent", unit="step"):
        speeds = half_square(problem.step(h, x) - h)
        # Not backward(), which would also add to the gradients of the network's own parameters.
        (h.grad,) = torch.autograd.grad(speeds.sum(), h)
        adam.step()
        adam.param_groups[0]["lr"] = rate * (1 - steps / most)
        if (speeds <= problem.tolerance).all():
            break
    return h.detach(), steps
