"""Learn a subspace by gradient through the running network: an upper bound for any way to choose coordinates."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from kann.live._effects import Change
from kann.typing import Array, Float
from kann_experiments.sentiment.live.bench import Bench

STEPS = 120
"""Steps of Adam."""

RATE = 0.1
"""How far directions of length 1 turn in a step: Adam moves each of d coordinates by about this over √d."""

LEAST_VARIANCE = 1e-6
"""Fraction of the largest variance; directions in which states vary less are not stretched further."""

TESTED_EVERY = 10
"""After this many steps the subspace is a candidate; the best of them and of the start is taken."""


def learned_subspace(bench: Bench, start: Float[Array, "d k"]) -> Float[Array, "d k"]:
    """The best subspace on the path of gradient descent from ``start``, by decisions kept on the validation reviews.

    The loss is the cross-entropy of the network, with the subspace alone kept and the state completed by linear
    regression, against the probabilities of the untouched network.
    """
    batches = bench.choosing.groups()
    device = bench.network.readout.weight.device
    # In coordinates in which states vary alike, a small step changes what is read a little, whatever its direction.
    scale = _whitening(bench.spread.covariance)
    whitening, covariance, mean = (
        torch.as_tensor(values, dtype=torch.float32, device=device)
        for values in (scale, bench.spread.covariance, bench.spread.mean)
    )
    turned = _orthonormal(torch.as_tensor(np.linalg.solve(scale, start), dtype=torch.float32, device=device))
    turned.requires_grad_()
    optimizer = torch.optim.Adam([turned], lr=RATE / len(turned) ** 0.5)
    untouched = [torch.sigmoid(bench.choosing.call(batch)) for batch in batches]
    candidates = [start]
    for step in range(1, STEPS + 1):
        i = step % len(batches)
        # cuDNN differentiates recurrent layers in training mode only; torch's own kernels do in any.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            with bench.replaced(_linear_fill(whitening @ turned, mean, covariance)):
                loss = binary_cross_entropy_with_logits(bench.choosing.call(batches[i]), untouched[i])
            (gradient,) = torch.autograd.grad(loss, [turned])  # and none for the weights of the network
        if torch.isfinite(gradient).all():  # over hundreds of steps of a network, gradients can overflow
            turned.grad = gradient / gradient.norm().clamp(min=1e-30)  # one large gradient would drown the others
            optimizer.step()
            with torch.no_grad():
                turned.copy_(_orthonormal(turned))
        if step % TESTED_EVERY == 0:
            candidates.append((whitening @ turned).detach().cpu().double().numpy())
    changes = {str(place): Change(directions=own) for place, own in enumerate(candidates)}
    kept = bench.kept(changes, source=bench.choosing)
    return candidates[int(np.argmax([np.mean(same) for same in kept.values()]))]


def _orthonormal(directions: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
    """Orthonormal directions of the same span, near the given ones: QR may flip signs, which would undo momentum."""
    turned, upper = torch.linalg.qr(directions)
    return turned * torch.sign(torch.diagonal(upper))


def _linear_fill(directions: Float[Tensor, "d k"], mean: Float[Tensor, " d"], covariance: Float[Tensor, "d d"]) -> Any:
    """Completion by linear regression on the coordinates along directions A: (h − mean) A (AᵀPA)⁻¹ AᵀP."""
    read = directions.T @ covariance
    completed = torch.linalg.solve(read @ directions, read)
    return lambda h: mean + (h - mean) @ directions @ completed


def _whitening(covariance: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """From coordinates in which states have unit variance in all directions to directions of the units."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors / np.sqrt(np.maximum(values, LEAST_VARIANCE * values[-1])) @ vectors.T
