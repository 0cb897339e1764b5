"""The networks that are compared: two tasks, three architectures, several seeds, each of them recorded with its inputs.

Both tasks are small enough for a CPU, and read four inputs each, so that responses can be compared across tasks: the
copy task has two different digits, a blank and the sign to start, and the flip-flop four lines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kann
from kann.data.states import States
from kann.progress import progress
from kann.typing import Array, Float
from kann_experiments import copy, flipflop
from kann_experiments.copy import task as copy_task
from kann_experiments.flipflop import task as flipflop_task
from kann_experiments.training import Training, generator

UNITS = 32
"""Hidden units of every network, so that subspaces could be compared wherever units were the same."""

PROBED = 64
"""Flip-flop sequences that are recorded; of the copy task all 32 there are."""

TASKS = ("copy", "flipflop")
ARCHITECTURES = ("rnn", "gru", "lstm")

COPY = copy_task.Task(digits=5, blanks=8, letters=2)
FLIPFLOP = flipflop_task.Task(bits=4, steps=40)


def _copy(arch: Any, *, iterations: int, rate: float, **settings: Any) -> copy_task.Config:
    plan = Training(iterations=iterations, schedule="linear", clip=1.0)
    return copy_task.Config(arch=arch, units=UNITS, rate=rate, batch=32, task=COPY, training=plan, **settings)


def _flipflop(arch: str, *, iterations: int, rate: float) -> flipflop_task.Config:
    plan = Training(iterations=iterations, schedule="linear", clip=1.0)
    return flipflop_task.Config(arch=arch, units=UNITS, rate=rate, batch=32, task=FLIPFLOP, training=plan)


CONFIGS: dict[tuple[str, str], Any] = {
    ("copy", "rnn"): _copy("rnn", iterations=3000, rate=3e-3, hidden_rate=0.1, orthogonal_start=True),
    ("copy", "gru"): _copy("gru", iterations=800, rate=1e-2),
    ("copy", "lstm"): _copy("lstm", iterations=2000, rate=5e-3, forget_bias=3.0),
    ("flipflop", "rnn"): _flipflop("rnn", iterations=1500, rate=5e-3),
    ("flipflop", "gru"): _flipflop("gru", iterations=600, rate=1e-2),
    ("flipflop", "lstm"): _flipflop("lstm", iterations=1000, rate=1e-2),
}
"""What trains each of them to the end in half a minute on one core."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trained:
    """One trained network and what it does on its probe."""

    task: str
    arch: str
    seed: int
    accuracy: float
    """Fraction of the answers that are right on the probe: recalled digits, or bits."""
    states: States
    """Hidden states (of an LSTM its output h) with their inputs, on the probe of its task."""
    common: Float[Array, "n d"]
    """States on the probes of both tasks, the same rows for all networks, which CKA needs."""

    @property
    def name(self) -> str:
        """Task, architecture and seed, such as "copy gru 0"."""
        return f"{self.task} {self.arch} {self.seed}"


def train_all(out: Path, *, seeds: Sequence[int], iterations: int | None = None) -> Iterator[Trained]:
    """Train all networks, or read those that are in ``out`` already; ``iterations`` makes all trainings shorter."""
    wanted = [(task, arch, seed) for task in TASKS for arch in ARCHITECTURES for seed in seeds]
    for task, arch, seed in progress(wanted, what="networks", total=len(wanted), unit="network"):
        config = CONFIGS[task, arch]
        if iterations is not None:
            config = replace(config, training=replace(config.training, iterations=iterations))
        folder = out / task / arch / f"seed-{seed}"
        network = _trained(task, config, seed=seed, folder=folder)
        x, right = probe(task, network)
        states = kann.record(network, x, inputs=True, progress=False)
        both = [kann.record(network, sequences(each)[0], progress=False).values for each in TASKS]
        yield Trained(
            task=task, arch=arch, seed=seed, accuracy=right, states=states, common=np.concatenate(both).astype(float)
        )


def _trained(task: str, config: Any, *, seed: int, folder: Path) -> nn.Module:
    if task == "copy":
        return copy.trained(config, seed=seed, folder=folder)
    return flipflop.trained(config, seed=seed, folder=folder)


def sequences(task: str) -> tuple[Float[Tensor, "s t p"], Tensor]:
    """The sequences on which all networks of a task are recorded, and the answers."""
    if task == "copy":
        return COPY.sequences(COPY.every())
    return FLIPFLOP.draw(generator(0, flipflop_task.FITTED), PROBED)


@torch.no_grad()
def probe(task: str, network: nn.Module) -> tuple[Float[Tensor, "s t p"], float]:
    """The sequences of a task, and the fraction of answers that are right."""
    x, answer = sequences(task)
    if task == "copy":
        right = network(x).argmax(dim=-1) == answer
        return x, float(right[:, -COPY.digits :].float().mean())
    return x, float(((network(x) > 0) == (answer > 0)).float().mean())
