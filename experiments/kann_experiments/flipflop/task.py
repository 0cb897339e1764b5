"""The flip-flop task: remember the sign of the last pulse on each of several lines. Its sequences, and its networks.

Each input is mostly 0 and now and then a pulse of ±1; each output is the sign of the last pulse on its line. It is the
field's standard example of memories: a network that solves it holds 2ⁿ stable states.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from kann.typing import Array, Float
from kann_experiments.training import Training, seeded

TRAINING, FITTED, JUDGED, LIVE = 0, 1, 2, 3
"""Purposes of random numbers, see `generator`: batches of training, sequences that operators are fitted to, those that
they are judged on, and those of the network that runs with its states replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The size of the task."""

    bits: int = 3
    """How many lines there are."""
    steps: int = 100
    """Steps of a sequence in training."""

    def draw(
        self, rng: np.random.Generator, count: int, *, rate: float | None = None, steps: int | None = None
    ) -> tuple[Float[Tensor, "s t b"], Float[Tensor, "s t b"]]:
        """Pulses and what to answer to them; every line has a pulse in the first step.

        Without a ``rate``, the probability of a pulse, each sequence has one of its own between 0.01 and 0.3.

        >>> pulses, answer = Task(bits=2).draw(np.random.default_rng(0), 5, rate=0.1, steps=20)
        >>> pulses.shape, bool((answer[pulses != 0] == pulses[pulses != 0]).all())
        (torch.Size([5, 20, 2]), True)
        """
        shape = (count, steps or self.steps, self.bits)
        rates = np.exp(rng.uniform(np.log(0.01), np.log(0.3), size=(count, 1, 1)))
        if rate is not None:
            rates = np.full((count, 1, 1), rate)
        is_pulse = rng.random(shape) < rates
        is_pulse[:, 0] = True
        signs = rng.choice([-1.0, 1.0], size=shape)
        last = np.maximum.accumulate(np.where(is_pulse, np.arange(shape[1])[:, None], 0), axis=1)
        answer = np.take_along_axis(signs, last, axis=1)
        return _tensor(signs * is_pulse), _tensor(answer)


def _tensor(values: Array) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A network for the task and how it is trained, always with Adam."""

    arch: str = "gru"
    """Which recurrent layer."""
    units: int = 48
    """Hidden units."""
    rate: float = 5e-3
    """Learning rate."""
    batch: int = 64
    """Sequences in a batch."""
    training: Training = field(default_factory=lambda: Training(iterations=1000, schedule="linear", clip=1.0))
    """How long, and how the rate falls."""
    task: Task = field(default_factory=Task)
    """What is learnt."""


CONFIGS = {"gru": Config()}
"""The paper has no flip-flop: these settings are what trains every seed to the end in about a minute."""


class FlipFlopNetwork(nn.Module):
    """A recurrent layer and a linear readout of each of its states."""

    def __init__(self, config: Config):
        super().__init__()
        kind = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[config.arch]
        self.recurrent = kind(config.task.bits, config.units, batch_first=True)
        self.readout = nn.Linear(config.units, config.task.bits)

    def forward(self, x: Float[Tensor, "s t b"]) -> Float[Tensor, "s t b"]:
        """What is answered at each step; its sign is the bit."""
        return self.readout(self.recurrent(x)[0])


def build(config: Config, *, seed: int) -> FlipFlopNetwork:
    """An untrained network."""
    with seeded(seed):
        return FlipFlopNetwork(config)
