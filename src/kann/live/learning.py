"""Learn the one direction whose coordinate keeps most of what a network does: the upper bound for a single mode.

As in distributed alignment search, a direction is moved by gradient through the running network until its outputs, with
that coordinate alone kept, are those of the untouched network.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from kann.analysis.coordinates import Coordinates, Spread
from kann.analysis.filling import fit_fills
from kann.analysis.fills import CurveFill, CurveRest, Fill, Rest, in_few_operations
from kann.data.reduction import take_rows
from kann.data.states import States
from kann.live.interventions import as_tensors
from kann.live.ordering import Search
from kann.live.stepping import Replace
from kann.live.trials import Group
from kann.typing import Array, Float

STEPS = 40
"""Steps of Adam."""

RATE = 0.03
"""How far the direction, of length 1, turns in a step: Adam moves each of d coordinates by about this over √d."""

LEAST_VARIANCE = 1e-6
"""Fraction of the largest variance; directions in which states vary less are not stretched further."""

TESTED_EVERY = 10
"""After so many steps the direction is kept as a candidate; the best of them and of the start is taken."""

SMOOTH_KNOTS = 16
"""Knots of the curve along which gradients flow."""

SAMPLE = 20_000
"""States that the curve is fitted to anew after every step."""


def learned_direction(search: Search, start: Coordinates) -> Coordinates:
    """The best direction that gradients through the running network lead to from ``start``, by the search's own test.

    The start is returned if learning does not improve on it.
    """
    sample, scale = _sample(search.states), _whitening(search.spread)
    # In coordinates in which states vary alike, a small step changes what is read a little, whatever its direction.
    turned = torch.tensor(np.linalg.solve(scale, start.directions[:, 0]))
    turned = (turned / turned.norm()).requires_grad_()
    whitening = torch.from_numpy(scale)
    optimizer = torch.optim.Adam([turned], lr=RATE / len(turned) ** 0.5)
    groups, candidates = search.trials.groups, [start]
    for step in range(1, STEPS + 1):
        # cuDNN differentiates recurrent layers in training mode alone; torch's own kernels do in any.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            loss = _loss(search, sample, whitening @ turned, groups[step % len(groups)])
            (gradient,) = torch.autograd.grad(loss, [turned])  # and none for the model's weights
        if torch.isfinite(gradient).all():  # over hundreds of steps of a network, gradients can overflow
            turned.grad = gradient / gradient.norm().clamp(min=1e-30)  # one large gradient would drown the others
            optimizer.step()
            with torch.no_grad():
                turned /= turned.norm()
        if step % TESTED_EVERY == 0:
            candidates.append(Coordinates.of_directions((whitening @ turned.detach()).numpy()[:, None]))
    return candidates[int(search.recovered(candidates).argmax())]


def _whitening(spread: Spread) -> Float[Array, "d d"]:
    """From coordinates in which states have unit variance in all directions to directions of the units."""
    values, vectors = np.linalg.eigh(spread.covariance)
    return (
        vectors / np.sqrt(np.maximum(values, LEAST_VARIANCE * max(values[-1], np.finfo(float).tiny ** 0.5))) @ vectors.T
    )


def _sample(states: States) -> States:
    """Some of the states, spread evenly over all sequences."""
    total = int(states.lengths.sum())
    rows = np.unique(np.linspace(0, total - 1, min(SAMPLE, total)).astype(np.int64))
    return States(values=take_rows(states.values, rows), lengths=[len(rows)])


def _loss(search: Search, sample: States, direction: Tensor, group: Group) -> Tensor:
    """How far the outputs are from those of the untouched network if only the direction's coordinate is kept."""
    now = Coordinates.of_directions(direction.detach().numpy()[:, None])
    (fill,) = fit_fills([now], sample, search.fill)
    fill = replace(fill, rest=_smooth(fill.rest))
    with search.trials.running_with(_differentiable(fill, direction)):
        outputs = search.trials.outputs(group)
    own: Any = group.untouched
    return _divergence(outputs, torch.from_numpy(own).to(outputs), search.trials.scorer.outputs)


def _smooth(rest: Rest) -> Rest:
    """A curve of few knots: between the many of a fitted one its slope is mostly noise that gradients would follow."""
    if not isinstance(rest, CurveRest) or len(rest.knots) <= SMOOTH_KNOTS:
        return rest
    parts = np.array_split(np.arange(len(rest.knots)), SMOOTH_KNOTS)
    return CurveRest(
        knots=np.array([rest.knots[part].mean() for part in parts]),
        values=np.stack([rest.values[part].mean(axis=0) for part in parts]),
    )


def _differentiable(fill: Fill, direction: Tensor) -> Replace:
    """The fill as a function of the direction along which states are read; what it makes of them is taken as given.

    What it makes follows the direction when the fill is fitted anew. Gradients through that too would turn the state
    that is made away from those that the network knows.
    """
    known: dict[Any, Any] = {}

    def change(h: Tensor) -> Tensor:
        key = h.device, h.dtype
        if key not in known:
            axis = direction.to(h)
            # The sign of a fitted axis is arbitrary, and the rest was fitted for it.
            sign = torch.sign((axis.detach() * torch.from_numpy(fill.axes[:, 0]).to(h)).sum())
            read = sign * axis / axis.norm()
            own = as_tensors(in_few_operations(fill), h.device, h.dtype)
            if isinstance(own, CurveFill):
                known[key] = replace(own, axis=read)
            else:
                known[key] = replace(own, axes=read[:, None])
        return known[key].kept(h)

    return change


def _divergence(outputs: Tensor, untouched: Tensor, kind: str) -> Tensor:
    """How far outputs are from the untouched network's: cross-entropy of decisions, or squared error of values."""
    if kind == "values":
        return mse_loss(outputs, untouched)
    if kind == "labels" or outputs.ndim == 1 or outputs.shape[-1] == 1:
        return binary_cross_entropy_with_logits(outputs, torch.sigmoid(untouched))
    return cross_entropy(outputs.flatten(0, -2), untouched.flatten(0, -2).softmax(dim=-1))
