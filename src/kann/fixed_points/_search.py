"""Search for fixed and slow points of a recurrent network.

This is the baseline (RENN) that the paper compares with. Its definition of the speed of a state h under a constant
input x is that of the literature, q(h) = ½|F(h, x) − h|², for a network that goes from h to F(h, x) in one step. A
fixed point has speed zero; where q is small but not zero the network is slow, as along a line attractor.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from kann.backends.arrays import as_numpy
from kann.checks import require_instance, require_number
from kann.data.states import States
from kann.errors import KannError
from kann.fixed_points.jacobians import eigenvalues_of, is_stable, jacobians
from kann.fixed_points.problem import SLOW_TOLERANCE, Problem, Recipe, Searches, distinct_fixed_points, merge
from kann.fixed_points.result import FixedPoints, describe
from kann.fixed_points.solvers import Known, descend, newton, settle
from kann.fixed_points.step_function import checked_step, starting_tensors
from kann.progress import progress
from kann.typing import AnyArray, Float, Int

STEPS_PER_UNIT = 2
"""Steps that the network is followed for each unit of its state, where that is more than the recipe says."""

MOST_WORK = 1e9
"""Limit on states · units³, the cost of one step of Newton: it starts from 60 states of 256 units, 500 of 128. From all
other states the network itself is followed."""

FEWEST_STARTS = 32
"""Newton starts from at least this many states, however wide they are."""

MAX_PAIRS = 1000
"""Most pairs of stable points that are searched between, the nearest first."""


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
    """The tolerances, if they are numbers and in order; the one for slow points may be infinite."""
    remedy = "pass 0 < tolerance <= slow_tolerance"
    tolerance = require_number(tolerance, "tolerance", remedy=remedy)
    if not isinstance(slow_tolerance, float) or slow_tolerance != math.inf:
        slow_tolerance = require_number(slow_tolerance, "slow_tolerance", remedy=remedy)
    if not 0 < tolerance <= slow_tolerance:
        raise KannError(f"tolerance={tolerance}, slow_tolerance={slow_tolerance}; {remedy}")
    return tolerance, slow_tolerance


def _explore(problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> Searches:
    """Newton from where the network goes, from between stable points, from the initial states, and by way of Adam.

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
    """Newton from the states to which the network itself goes, and which of these searches each initial state led to.

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
    """Newton from the states that `_spread_out` chooses; the searches from all others end where they begin."""
    rows = _spread_out(h)
    searches = Searches(inputs=x, ends=h, first_slow=h)
    return searches.replaced_where_slower(problem, rows, newton(problem, h[rows], x[rows], known=known))


def _merged(
    problem: Problem, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m p"], Int[Tensor, " n"]]:
    """States that represent all that are close to them, and for each state the index of its representative."""
    radius = np.full(len(h), problem.recipe.apart * problem.unit)
    chosen, group = merge(as_numpy(h), as_numpy(x), np.arange(len(h)), radius)
    return h[chosen], x[chosen], torch.from_numpy(group).to(h.device)


def _between_stable_points(problem: Problem, searches: Searches) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m p"]]:
    """The middle between each two stable points under the same input, of the nearest pairs, and that input."""
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
    """The states to start Newton from: all of them, or of many wide ones some that are far from each other."""
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
    """From the initial states whose searches did not end at a fixed point, Adam, and Newton from where Adam ends."""
    stuck = searches.not_fixed(problem)
    if not len(stuck):
        return searches
    stuck = stuck[_spread_out(h[stuck])]
    # Only where Adam stayed inside the reach: outside, every state of a GRU is slow.
    lowered, steps = descend(problem, h[stuck], x[stuck])
    near = (lowered - problem.centre).norm(dim=1) <= problem.reach(h[stuck])
    again = newton(problem, lowered[near], x[stuck[near]])
    return searches.replaced_where_slower(problem, stuck[near], dataclasses.replace(again, adam_steps=steps))
