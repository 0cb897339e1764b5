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

from kann.analysis.coordinates import Coordinates
from kann.analysis.filling import fit_fills
from kann.analysis.fills import Fill
from kann.data.reduction import take_rows
from kann.data.states import States
from kann.live.interventions import as_tensors
from kann.live.ordering import Search
from kann.live.stepping import Replace
from kann.live.trials import Group

STEPS = 40
"""Steps of Adam."""

RATE = 0.03
"""Their size, for a direction of length 1: forty of them can turn it anywhere."""

SAMPLE = 20_000
"""States that the curve is fitted to anew after every step."""


def learned_direction(search: Search, start: Coordinates) -> Coordinates:
    """The best direction that gradients through the running network lead to from ``start``, by the search's own test.

    The start is returned if learning does not improve on it.
    """
    sample = _sample(search.states)
    direction = torch.tensor(start.directions[:, 0] / np.linalg.norm(start.directions[:, 0]))
    direction.requires_grad_()
    optimizer = torch.optim.Adam([direction], lr=RATE)
    groups = search.trials.groups
    for step in range(STEPS):
        # cuDNN differentiates recurrent layers in training mode alone; torch's own kernels do in any.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            loss = _loss(search, sample, direction, groups[step % len(groups)])
            (gradient,) = torch.autograd.grad(loss, [direction])  # and none for the model's weights
        if not torch.isfinite(gradient).all():  # over hundreds of steps of a network, gradients can overflow
            continue
        direction.grad = gradient
        optimizer.step()
        with torch.no_grad():
            direction /= direction.norm()
    found = Coordinates.of_directions(direction.detach().numpy()[:, None])
    scores = search.recovered([start, found])
    if scores[1] > scores[0]:
        return found
    return start


def _sample(states: States) -> States:
    """Some of the states, spread evenly over all sequences."""
    total = int(states.lengths.sum())
    rows = np.unique(np.linspace(0, total - 1, min(SAMPLE, total)).astype(np.int64))
    return States(values=take_rows(states.values, rows), lengths=[len(rows)])


def _loss(search: Search, sample: States, direction: Tensor, group: Group) -> Tensor:
    """How far the outputs are from those of the untouched network if only the direction's coordinate is kept."""
    now = Coordinates.of_directions(direction.detach().numpy()[:, None])
    (fill,) = fit_fills([now], sample, search.fill)
    with search.trials.running_with(_differentiable(fill, direction)):
        outputs = search.trials.outputs(group)
    own: Any = group.untouched
    return _divergence(outputs, torch.from_numpy(own).to(outputs), search.trials.scorer.outputs)


def _differentiable(fill: Fill, direction: Tensor) -> Replace:
    """The fill as a function of its direction too; what it says about the rest is taken as given."""
    known: dict[Any, Fill] = {}

    def change(h: Tensor) -> Tensor:
        key = h.device, h.dtype
        if key not in known:
            axis = direction.to(h)
            # The sign of a fitted axis is arbitrary, and the rest was fitted for it.
            sign = torch.sign((axis.detach() * torch.from_numpy(fill.axes[:, 0]).to(h)).sum())
            known[key] = replace(as_tensors(fill, h.device, h.dtype), axes=(sign * axis / axis.norm())[:, None])
        return known[key].kept(h)

    return change


def _divergence(outputs: Tensor, untouched: Tensor, kind: str) -> Tensor:
    """How far outputs are from the untouched network's: cross-entropy of decisions, or squared error of values."""
    if kind == "values":
        return mse_loss(outputs, untouched)
    if kind == "labels" or outputs.ndim == 1 or outputs.shape[-1] == 1:
        return binary_cross_entropy_with_logits(outputs, torch.sigmoid(untouched))
    return cross_entropy(outputs.flatten(0, -2), untouched.flatten(0, -2).softmax(dim=-1))
