"""Search for fixed and slow points of a recurrent network.

This is the baseline (RENN) that the paper compares with. Its definition of the speed of a state h under a constant
input x is that of the literature, q(h) = ½|F(h, x) − h|², for a network that goes from h to F(h, x) in one step. A
fixed point has speed zero; where q is small but not zero the network is slow, as along a line attractor.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from kann.backends.arrays import as_numpy
from kann.checks import require_instance, require_number
from kann.data.reduction import Additive
from kann.data.states import States
from kann.errors import KannError
from kann.fixed_points.result import FixedPoints
from kann.fixed_points.step_function import (
    StepFunction,
    checked_step,
    eigenvalues_of,
    implicit_step,
    is_stable,
    jacobians,
    row_blocks,
    starting_tensors,
    step_with_slopes,
)
from kann.progress import progress
from kann.typing import AnyArray, Array, Float, Int


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


STEPS_PER_UNIT = 2
"""Steps that the network is followed for each unit of its state, where that is more than in the recipe."""

MOST_WORK = 1e9
"""Limit on states · units³, the cost of one step of Newton: it starts from 60 states of 256 units, 500 of 128. From all
other states the network itself is followed."""

FEWEST_STARTS = 32
"""Newton starts from at least this many states, however wide they are."""

MAX_PAIRS = 1000
"""Most pairs of stable points that are searched between, the nearest first."""


Known = tuple[Float[Tensor, "k d"], Float[Tensor, "k p"]]
"""Fixed points that were found before, and their inputs."""


def find_fixed_points(
    step: Any,
    initial: AnyArray | States | Mapping[str, States],
    *,
    inputs: AnyArray | None = None,
    tolerance: float = 1e-10,
    slow_tolerance: float = SLOW_TOLERANCE,
    recipe: Recipe | None = None,
) -> FixedPoints:
    """Find the fixed and slow points of a network under constant input, starting from many states.

    >>> W = torch.diag(torch.tensor([2.0, 0.5], dtype=torch.float64))
    >>> points = find_fixed_points(lambda h, x: torch.tanh(h @ W), np.random.default_rng(0).normal(size=(50, 2)))
    >>> points.points[points.stable, 0].round(3)  # the solutions of h = tanh(2h) but zero, which is unstable
    array([-0.958,  0.958])

    All in float64, damped Newton (Levenberg–Marquardt) on the speed q = ½|step(h, x) − h|² starts from each initial
    state and from where the network itself goes from there, and converges to stable and unstable fixed points alike.
    Where the network is still moving after that, implicit steps follow it until it comes to rest; where all of this
    ends in a local minimum of q, Newton starts again from where Adam leads. It also starts halfway
    between each two stable points, since that is where to look for the saddle that parts them. A slow state that a
    search comes by, and from which it leaps far to a fixed point, is kept too: slow manifolds are shown, not skipped.
    If no search comes to a slow state, the result is empty and gives the smallest speed that was reached.

    Parameters
    ----------
    step
        ``step(h, x)`` goes from states (n, d) and inputs (n, p), torch tensors, to the next states (n, d), by
        differentiable operations and each row by itself. A module is copied to float64 and to evaluation mode, and is
        itself left alone. `kann.recording.step_of` makes a step of any recurrent layer in a model, which is
        searched in float64 too. torch's own cells and ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` of one direction
        may also be passed as they are, although they take (x, h). The state of an LSTM is h and c side by side,
        (n, 2·hidden); that of several layers is theirs side by side, the lowest first. A function is called
        with float64 tensors; if it fails on them, because it holds float32 weights, it is called with float32
        ones, and the points are only as exact as that: see `FixedPoints.precision`.
    initial
        `States`, or (n, d) rows of them, numpy or torch: states that the network visits, since what is found depends
        on them. `kann.record` gives them; what it gives for all layers of a module (``layer="rnn.*"``, a dict) is put
        side by side.
    inputs
        The constant input (p,), or one for each initial state (n, p). Without it a step whose input width is known,
        such as torch's cells and layers, gets zeros, and any other gets None.
    tolerance
        Speed up to which a point is called fixed. The search itself goes on as long as it gains.
    slow_tolerance
        Speed up to which a point is kept and called slow. With ``math.inf`` the end of every search comes back, local
        minima of the speed among them.
    recipe
        A `kann.fixed_points.Recipe`: steps of each method, and distances between points.

    Returns
    -------
    FixedPoints
        The points with speeds, Jacobians and eigenvalues, fixed ones first; empty if no search came to a slow state.
    """
    recipe = Recipe() if recipe is None else recipe
    require_instance(recipe, Recipe, "recipe")
    tolerance, slow_tolerance = checked_tolerances(tolerance, slow_tolerance)
    # A caller may have switched gradients off; the last context computes the weights of parametrised modules once.
    with torch.inference_mode(False), torch.enable_grad(), parametrize.cached():
        h, x = starting_tensors(step, initial, inputs)
        function, dtype = checked_step(step, h, x, has_inputs=inputs is not None)
        problem = Problem(h, function, dtype, recipe=recipe, tolerance=tolerance, slow_tolerance=slow_tolerance)
        return describe(problem, _explore(problem, h, x), initial=len(h))


def checked_tolerances(tolerance: Any, slow_tolerance: Any) -> tuple[float, float]:
    """Return the tolerances, if they are numbers and in order; the one for slow points may be infinite."""
    remedy = "pass 0 < tolerance <= slow_tolerance"
    tolerance = require_number(tolerance, "tolerance", remedy=remedy)
    if not isinstance(slow_tolerance, float) or slow_tolerance != math.inf:
        slow_tolerance = require_number(slow_tolerance, "slow_tolerance", remedy=remedy)
    if not 0 < tolerance <= slow_tolerance:
        raise KannError(f"tolerance={tolerance}, slow_tolerance={slow_tolerance}; {remedy}")
    return tolerance, slow_tolerance


def _explore(problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> Searches:
    """Search from where the network goes, from between stable points, from the initial states, and after Adam.

    An initial state from which Newton gets stuck leads to where the network goes from there or, if Newton got stuck
    there too, to where Adam does. Adam is last: on a GRU it drives states out of the cube that the network lives in, to
    where its update gate saturates and every state is slow.
    """
    followed, place = _follow(problem, h, x)
    between = newton(problem, *_between_stable_points(problem, followed))
    # Most searches from initial states come to points that are known by now; to end there saves the last steps.
    known = distinct_fixed_points(problem, followed + between)
    searches = _newton_from_some(problem, h, x, known=known)
    stuck = searches.not_fixed(problem)
    stuck = stuck[place[stuck] >= 0]
    searches = searches.replaced_where_slower(problem, stuck, followed.rows(place[stuck]))
    if problem.recipe.adam_steps:
        searches = _retry_after_adam(problem, searches, h, x)
    return searches + followed + between


def _follow(problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> tuple[Searches, Int[Tensor, " n"]]:
    """Search from the states to which the network goes; return which search each initial state led to.

    Where Newton gets stuck, the network is followed further by implicit steps until it comes to rest. States close
    together are searched from once. −1 is for an initial state from which the network diverged.
    """
    place = torch.full((len(h),), -1, device=h.device)
    if not problem.recipe.follow_steps:
        return newton(problem, h[:0], x[:0]), place
    steps = max(problem.recipe.follow_steps, STEPS_PER_UNIT * h.shape[1])
    with torch.no_grad():
        for _ in progress(range(steps), what="following", unit="step"):
            h = problem.step(h, x)
    finite = torch.isfinite(h).all(dim=1)
    h, x, place[finite] = _merged(problem, h[finite], x[finite])
    searches = _newton_from_some(problem, h, x)
    moving = (problem.speed(searches.ends, x) > problem.slow_tolerance).nonzero()[:, 0]
    settled, inputs, group = _merged(problem, settle(problem, h[moving], x[moving], first_leap=steps / 5), x[moving])
    again = newton(problem, settled, inputs).rows(group)
    return searches.replaced_where_slower(problem, moving, again), place


def _newton_from_some(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], *, known: Known | None = None
) -> Searches:
    """Search from the states that `_spread_out` chooses; the searches from all others end where they begin."""
    rows = _spread_out(h)
    searches = Searches(inputs=x, ends=h, first_slow=h)
    return searches.replaced_where_slower(problem, rows, newton(problem, h[rows], x[rows], known=known))


def _merged(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m p"], Int[Tensor, " n"]]:
    """Return states that represent all that are close to them, and for each state the index of its representative."""
    radius = np.full(len(h), problem.recipe.apart * problem.unit)
    chosen, group = merge(as_numpy(h), as_numpy(x), np.arange(len(h)), radius)
    return h[chosen], x[chosen], torch.from_numpy(group).to(h.device)


def _between_stable_points(problem: Problem, searches: Searches) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m p"]]:
    """Return the middle between each two stable points under the same input, of the nearest pairs, and that input."""
    h, x = distinct_fixed_points(problem, searches)
    if len(h) < 2:
        return h[:0], x[:0]
    _, of_h, _ = jacobians(problem.step, h, x)
    stable = is_stable(eigenvalues_of(as_numpy(of_h)))
    h, x = h[stable], x[stable]
    one, other = torch.triu_indices(len(h), len(h), offset=1, device=h.device)
    alike = (x[one] == x[other]).all(dim=1)
    one, other = one[alike], other[alike]
    nearest = (h[one] - h[other]).norm(dim=1).argsort(stable=True)[:MAX_PAIRS]
    # Where two basins of attraction meet there is a saddle, and halfway is the best guess of where they meet.
    return ((h[one] + h[other]) / 2)[nearest], x[one][nearest]


def _spread_out(h: Float[Tensor, "n d"]) -> Int[Tensor, " m"]:
    """Return the states to start Newton from: all of them, or of many wide ones some that are far from each other."""
    count = max(FEWEST_STARTS, int(MOST_WORK / h.shape[1] ** 3))
    if len(h) <= count:
        return torch.arange(len(h), device=h.device)
    chosen = [int((h - h.mean(dim=0)).norm(dim=1).argmax())]
    distance = (h - h[chosen[0]]).norm(dim=1)
    for _ in range(count - 1):
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (h - h[chosen[-1]]).norm(dim=1))
    return torch.tensor(chosen, device=h.device)


def _retry_after_adam(
    problem: Problem, searches: Searches, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> Searches:
    """Run Adam, and Newton after it, from initial states whose searches did not end at a fixed point."""
    stuck = searches.not_fixed(problem)
    if not len(stuck):
        return searches
    stuck = stuck[_spread_out(h[stuck])]
    # Only where Adam stayed inside the reach: outside, every state of a GRU is slow.
    lowered, steps = descend(problem, h[stuck], x[stuck])
    near = (lowered - problem.centre).norm(dim=1) <= problem.reach(h[stuck])
    again = newton(problem, lowered[near], x[stuck[near]])
    return searches.replaced_where_slower(problem, stuck[near], dataclasses.replace(again, adam_steps=steps))


# Newton, implicit steps and Adam, on the speeds of many states at once


DAMPING_AFTER_GAIN = 0.1
"""Factor of the damping after a step that lowers the speed."""

DAMPING_AFTER_LOSS = 5.0
"""Factor of the damping after a step that does not."""

MAX_STEPS_WITHOUT_GAIN = 6
"""Newton gives a state up after this many steps in a row without gain."""

GAIN = 0.9
"""A step gains if it lowers the speed to less than this fraction."""


def newton(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], *, known: Known | None = None
) -> Searches:
    """Return damped Newton from each state by itself. A search that comes upon a known fixed point ends there."""
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


# The points that come back: filtered, merged, sorted and linearised

SHARP_ROUNDING = 1e4
"""A fixed point is known sharply if its speed is within this many times rounding."""


def describe(problem: Problem, searches: Searches, *, initial: int) -> FixedPoints:
    """Filter candidates by speed, merge those that are one point, sort them, and linearise the network about them.

    The first ``initial`` searches are those from the initial states, which are counted.
    """
    states, inputs = torch.cat([searches.ends, searches.first_slow]), searches.inputs.repeat(2, 1)
    speeds = as_numpy(problem.speed(states, inputs))
    speeds = np.where(np.isfinite(speeds), speeds, np.inf)
    # The first slow state of a search counts by itself only if the search went elsewhere from there.
    farthest = as_numpy((searches.ends - searches.first_slow).abs().amax(dim=1))
    left = farthest > problem.recipe.apart * problem.unit
    counted = np.concatenate([np.ones_like(left), left])
    kept = np.flatnonzero(counted & np.isfinite(speeds) & (speeds <= problem.slow_tolerance))
    h, x, own = states[kept], inputs[kept], speeds[kept]
    # Where Newton did not come to rest, or only came by, a point is a sample of a manifold, however slow.
    sharp = (kept < len(searches.ends)) & (own <= problem.tolerance)
    sharp &= own <= SHARP_ROUNDING * as_numpy(problem.rounding(h))
    radius = np.where(sharp, problem.recipe.distinct, problem.recipe.apart) * problem.unit
    chosen, group = merge(as_numpy(h), as_numpy(x), np.lexsort((own, ~sharp)), radius)
    from_initial = kept % len(searches.ends) < initial
    counts = np.bincount(group[from_initial], minlength=len(chosen))
    # The last key counts first: fixed points before slow ones, then those that more initial states led to.
    order = np.lexsort((chosen, -counts, own[chosen] > problem.tolerance))
    # argsort of an order says to which place each group moved.
    reached = np.full(initial, -1)
    reached[kept[kept < initial]] = np.argsort(order)[group[kept < initial]]
    h, x = h[chosen[order]], x[chosen[order]]
    following, of_h, of_x = jacobians(problem.step, h, x)
    points, point_speeds = as_numpy(h), as_numpy(half_square(following - h))
    eigenvalues = eigenvalues_of(as_numpy(of_h))
    return FixedPoints(
        points=points,
        inputs=as_numpy(x),
        speeds=point_speeds,
        kinds=np.where(point_speeds <= problem.tolerance, "fixed", "slow"),
        jacobians=as_numpy(of_h),
        input_jacobians=as_numpy(of_x),
        eigenvalues=eigenvalues,
        stable=is_stable(eigenvalues),
        outlier=np.linalg.norm(points - as_numpy(problem.centre), axis=1) > problem.border,
        counts=counts[order],
        reached=reached,
        candidate_speeds=speeds[:initial],
        tolerance=problem.tolerance,
        slow_tolerance=problem.slow_tolerance,
        adam_steps=searches.adam_steps,
        newton_steps=searches.newton_steps,
        precision=str(problem.dtype).removeprefix("torch."),
    )
