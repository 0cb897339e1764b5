"""Trainings that are watched: the loss, the norm of the gradient and the operator at every checkpoint."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.data.atomic_write import remove
from kann.data.serialization import load_arrays, save_arrays
from kann.live._monitor import Monitor
from kann.live.history import History
from kann.typing import Array, Float
from kann_experiments.comparing.networks import CONFIGS, COPY, FLIPFLOP
from kann_experiments.copy import task as copy_task
from kann_experiments.flipflop import task as flipflop_task
from kann_experiments.training import generator, require_folder, train

EVERY = 20
"""Iterations between checkpoints."""

PROBED = 32
"""Sequences of the probe."""

SILENT = 24
"""Steps of the probe in which nothing is read after the digits or pulses: what is kept then is memory."""

KIND = "kann_experiments.learning"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Watched:
    """One training."""

    task: str
    seed: int
    history: History
    """The operator at every checkpoint."""
    losses: Float[Array, " i"]
    """The loss at every iteration."""
    gradients: Float[Array, " i"]
    """The norm of the gradient at every iteration, before it is clipped."""


def watched(
    task: str, arch: str, *, seed: int, folder: Path, iterations: int | None = None, shuffled: bool = False
) -> Watched:
    """Train a network and watch it; one that is in ``folder`` already is read.

    With ``shuffled`` each sequence of a batch is given the answer of the one before it: weights move as in any
    training, and there is nothing to remember.
    """
    folder = require_folder(folder)
    config = CONFIGS[task, arch]
    if iterations is not None:
        config = replace(config, training=replace(config.training, iterations=iterations))
    paths = [folder / name for name in ("network.safetensors", "history.npz", "gradients.npz")]
    if not all(path.exists() for path in paths):
        for path in paths:  # a training that was stopped has watched only a part: it is made again
            remove(path)
        _train(task, config, seed=seed, folder=folder, shuffled=shuffled)
    arrays = load_arrays(paths[2], kind=KIND)[1]
    return Watched(task=task, seed=seed, history=History.load(paths[1]), **arrays)


def _train(task: str, config: Any, *, seed: int, folder: Path, shuffled: bool) -> None:
    """Train with the settings of the other experiments, and write the history and the norms of gradients."""
    network, optimizer, batch_loss = _parts(task, config, seed, shuffled=shuffled)
    monitor = Monitor(network, silent_probe(task), every=EVERY)
    norms = _GradientNorms(network)

    def loss(iteration: int) -> Tensor:
        norms.next()
        value = batch_loss(iteration)
        monitor.update(step=iteration, loss=value)
        return value

    made_by: dict[str, Any] = {"experiment": "learning", "task": task, "seed": seed}
    if shuffled:
        made_by["shuffled"] = True
    losses = train(network, optimizer, loss, plan=config.training, path=folder / "network.safetensors", made_by=made_by)
    monitor.history.save(folder / "history.npz")
    save_arrays(folder / "gradients.npz", kind=KIND, arrays={"losses": losses, "gradients": norms.values()})


def _parts(task: str, config: Any, seed: int, *, shuffled: bool) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """The network, its optimizer, and the loss of a batch by its number."""

    def given(answer: Tensor) -> Tensor:
        if not shuffled:
            return answer
        return answer.roll(1, dims=0)  # sequences are drawn independently of each other

    if task == "copy":
        network = copy_task.build(config, seed=seed)

        def copy_loss(iteration: int) -> Tensor:
            digits = config.task.draw(generator(seed, copy_task.TRAINING, iteration), config.batch)
            x, answer = config.task.sequences(digits)
            return nn.functional.cross_entropy(network(x).flatten(0, 1), given(answer).flatten())

        return network, copy_task.build_optimizer(network, config), copy_loss
    holder = flipflop_task.build(config, seed=seed)

    def flipflop_loss(iteration: int) -> Tensor:
        pulses, answer = config.task.draw(generator(seed, flipflop_task.TRAINING, iteration), config.batch)
        return nn.functional.mse_loss(holder(pulses), given(answer))

    return holder, torch.optim.Adam(holder.parameters(), lr=config.rate), flipflop_loss


def silent_probe(task: str) -> Float[Tensor, "s t p"]:
    """Sequences with something to remember first, and nothing to read afterwards."""
    if task == "copy":
        x, _ = replace(COPY, blanks=SILENT).sequences(COPY.every()[:PROBED])
        return x[:, : COPY.digits + SILENT]
    x, _ = FLIPFLOP.draw(generator(0, flipflop_task.FITTED), PROBED, rate=0.0, steps=SILENT + 1)
    return x


class _GradientNorms:
    """Measures the norm of the whole gradient in each iteration, as soon as it is there and before it is clipped."""

    def __init__(self, network: nn.Module):
        self._squares: list[float] = []
        for parameter in network.parameters():
            parameter.register_post_accumulate_grad_hook(self._add)

    def next(self) -> None:
        """Begin an iteration."""
        self._squares.append(0.0)

    def _add(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._squares[-1] += float(parameter.grad.square().sum())

    def values(self) -> Float[Array, " i"]:
        """The norm at each iteration."""
        return np.array([math.sqrt(square) for square in self._squares])
