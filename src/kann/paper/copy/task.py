"""The copy task: read some digits, wait, and repeat them. Its sequences, and the networks that learn it.

The paper's example, ``928---:--`` in and ``------928`` out, has three digits and three blanks. ``-`` is a blank, and
``:`` tells the network to start; the first digit is due in the step in which it reads that.
"""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from kann.paper.orthogonal import OrthogonalRNN
from kann.paper.training import Training, seeded
from kann.typing import Array, Float, Int

TRAINING, ANALYSED, HALVES = 0, 1, 2
"""Purposes of random numbers, see `generator`: batches of training, the sequences that are analysed, and those that
stand-ins are fitted to."""

BLANK = 0
"""The character that stands for a blank, read and written; the digits are 1, 2, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The size of the task."""

    digits: int = 3
    """How many digits there are to remember."""
    blanks: int = 30
    """How many steps there are to wait."""
    letters: int = 9
    """How many different digits there are: 1 to 9, since the paper's example has a 9 and it writes a blank as 0."""

    @property
    def length(self) -> int:
        """Steps of a sequence: digits, blanks, the sign to start, and the rest of the answer."""
        return 2 * self.digits + self.blanks

    @property
    def width(self) -> int:
        """Inputs of the network, of which one is 1 and the others 0: blank, digits, the sign to start."""
        return self.letters + 2

    def sequences(self, digits: Int[Array, "s k"]) -> tuple[Float[Tensor, "s t p"], Int[Tensor, "s t"]]:
        """What the network reads, and what it should answer.

        >>> x, answer = Task(blanks=3).sequences(np.array([[9, 2, 8]]))
        >>> x.shape, answer.tolist()
        (torch.Size([1, 9, 11]), [[0, 0, 0, 0, 0, 0, 9, 2, 8]])
        """
        read = torch.full((len(digits), self.length), BLANK)
        answer = read.clone()
        read[:, : self.digits] = answer[:, -self.digits :] = torch.as_tensor(digits)
        read[:, self.digits + self.blanks] = self.width - 1
        return nn.functional.one_hot(read, self.width).float(), answer

    def draw(self, rng: np.random.Generator, count: int) -> Int[Array, "s k"]:
        """Random digits of ``count`` sequences."""
        return rng.integers(1, self.letters, size=(count, self.digits), endpoint=True)

    def every(self) -> Int[Array, "s k"]:
        """Digits of all sequences that there are: 729 of three digits."""
        return np.array(list(itertools.product(range(1, self.letters + 1), repeat=self.digits)))


Arch = Literal["dtriv", "rnn", "gru", "lstm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A network for the task and how it is trained, always with RMSprop."""

    arch: Arch
    """Which recurrent layer."""
    units: int
    """Hidden units."""
    rate: float
    """Learning rate."""
    training: Training
    """How long, and how the rate falls."""
    hidden_rate: float = 1.0
    """Learning rate of the hidden matrix of ``dtriv`` or an RNN, as a fraction of that of the other weights."""
    orthogonal_start: bool = False
    """Whether the hidden matrix of an RNN is orthogonal at first."""
    forget_bias: float = 0.0
    """What is added to the bias of an LSTM's forget gates at first: they then start open."""
    batch: int = 128
    """Sequences in a batch. The paper does not say; this is what the published code of dtriv takes for this task."""
    task: Task = field(default_factory=Task)
    """What is learnt."""


PRINTED = {
    "dtriv": Config(arch="dtriv", units=48, rate=1e-3, training=Training(iterations=500)),
    "rnn": Config(
        arch="rnn",
        units=64,
        rate=5e-3,
        training=Training(iterations=10_000, schedule="exponential", gamma=0.85, clip=5.0),
    ),
    "gru": Config(arch="gru", units=48, rate=1e-2, training=Training(iterations=285)),
    "lstm": Config(arch="lstm", units=48, rate=5e-3, training=Training(iterations=6500, clip=10.0)),
}
"""The paper's table of hyperparameters. It does not say how often the RNN's rate falls: here ten times in all."""

CONFIGS = {
    # At the full rate the hidden matrix makes the loss jump. The published code of dtriv trains it at a tenth too, and
    # it is what keeps an RNN that starts orthogonal from forgetting.
    "dtriv": replace(PRINTED["dtriv"], hidden_rate=0.1, training=Training(iterations=2000, schedule="linear")),
    "rnn": replace(
        PRINTED["rnn"],
        hidden_rate=0.1,
        orthogonal_start=True,
        training=Training(iterations=16_000, schedule="linear", clip=1.0),
    ),
    "gru": replace(PRINTED["gru"], batch=32, training=Training(iterations=2500, schedule="linear")),
    "lstm": replace(
        PRINTED["lstm"], forget_bias=3.0, batch=64, training=Training(iterations=6500, schedule="linear", clip=10.0)
    ),
}
"""What trains each of them to the end, as close to the paper's table as was found."""


class CopyNetwork(nn.Module):
    """A recurrent layer and a linear readout of each of its states."""

    def __init__(self, recurrent: nn.Module, units: int, outputs: int):
        super().__init__()
        self.recurrent = recurrent
        self.readout = nn.Linear(units, outputs)

    def forward(self, x: Float[Tensor, "s t p"]) -> Float[Tensor, "s t o"]:
        """Scores of blank and digits at each step."""
        return self.readout(self.recurrent(x)[0])


def build(config: Config, *, seed: int) -> CopyNetwork:
    """An untrained network."""
    with seeded(seed):
        return CopyNetwork(_recurrent(config), config.units, config.task.letters + 1)


def _recurrent(config: Config) -> nn.Module:
    """The untrained recurrent layer, with the starting weights that the configuration asks for."""
    if config.arch == "dtriv":
        return OrthogonalRNN(config.task.width, config.units)
    kind = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[config.arch]
    layer: Any = kind(config.task.width, config.units, batch_first=True)
    if config.orthogonal_start:
        nn.init.orthogonal_(layer.weight_hh_l0)
    if config.forget_bias:
        with torch.no_grad():  # the gates of torch's LSTM are stored in the order input, forget, cell, output
            layer.bias_hh_l0[config.units : 2 * config.units] += config.forget_bias
    return layer


def build_optimizer(network: CopyNetwork, config: Config) -> torch.optim.Optimizer:
    """RMSprop, in which the hidden matrix learns at a rate of its own if the configuration says so."""
    if config.hidden_rate == 1:
        return torch.optim.RMSprop(network.parameters(), lr=config.rate)
    hidden = _hidden_parameters(network)
    # Compared by identity: `in` would compare tensors element by element.
    rest = [parameter for parameter in network.parameters() if all(parameter is not other for other in hidden)]
    groups = [{"params": rest, "lr": config.rate}, {"params": hidden, "lr": config.rate * config.hidden_rate}]
    return torch.optim.RMSprop(groups)


def _hidden_parameters(network: CopyNetwork) -> list[nn.Parameter]:
    """The parameters of the hidden matrix; of an orthogonal one, those of its matrix exponential."""
    layer: Any = network.recurrent
    if isinstance(layer, OrthogonalRNN):
        return list(layer.cell.turn.parameters())
    return [layer.weight_hh_l0]
