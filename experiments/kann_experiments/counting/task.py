"""Count words and name the class with the largest count: sequences, networks and training.

The synthetic task of Aitken et al., "The geometry of integration in text classification RNNs" (2020). Each word is
evidence for one of N classes or neutral; the label is the class with the most evidence. A network needs the N − 1
differences between the counts, so the number of coordinates that it computes with is known.
"""

import os
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from kann.typing import Float, Int
from kann_experiments.configs import as_json
from kann_experiments.training import Training, generator, require_device, require_folder, seeded, train

TRAINING, ANALYSED, JUDGED = 0, 1, 2
"""Purposes of random numbers: training batches, sequences to analyse, sequences to judge on."""

CLASSES = tuple(range(2, 11))
"""The numbers of classes in the experiment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A network for the task and how it is trained, always with Adam."""

    classes: int
    arch: str = "gru"
    units: int = 64
    steps: int = 30
    """Words in a sequence."""
    batch: int = 128
    rate: float = 5e-3
    training: Training = field(default_factory=lambda: Training(iterations=1500, schedule="linear", clip=1.0))

    @property
    def words(self) -> int:
        """One word for each class, and a neutral one."""
        return self.classes + 1


CONFIGS = {
    "gru": {},
    "lstm": {},
    # Plain RNNs start from the identity, as in the sentiment experiment, and need smaller steps.
    "rnn": {"rate": 1e-3, "training": Training(iterations=3000, schedule="linear", clip=1.0)},
}
"""How each architecture departs from the defaults of `Config`."""


def draw(rng: np.random.Generator, count: int, config: Config) -> tuple[Float[Tensor, "s t w"], Int[Tensor, " s"]]:
    """One-hot words (sequences, steps, words) and labels; sequences whose best two classes tie are drawn again.

    >>> x, labels = draw(np.random.default_rng(0), 4, Config(classes=3))
    >>> bool((x.sum(1)[:, :3].argmax(1) == labels).all())
    True
    """
    words = np.empty((0, config.steps), dtype=np.int64)
    while len(words) < count:
        new = rng.integers(config.words, size=(2 * count, config.steps))
        counts = (new[..., None] == np.arange(config.classes)).sum(axis=1)  # (s, classes)
        best = np.sort(counts, axis=1)
        words = np.concatenate([words, new[best[:, -1] > best[:, -2]]])
    chosen = torch.as_tensor(words[:count])
    x = nn.functional.one_hot(chosen, config.words).float()
    return x, x.sum(dim=1)[:, : config.classes].argmax(dim=1)


class CountingNetwork(nn.Module):
    """A recurrent layer and a linear readout of its last state."""

    def __init__(self, config: Config):
        super().__init__()
        kind = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[config.arch]
        self.recurrent = kind(config.words, config.units, batch_first=True)
        self.readout = nn.Linear(config.units, config.classes)
        if config.arch == "rnn":
            with torch.no_grad():
                nn.init.eye_(self.recurrent.weight_hh_l0)
                self.recurrent.weight_ih_l0 *= 0.1
                self.recurrent.bias_hh_l0.zero_()
                self.recurrent.bias_ih_l0.zero_()

    def forward(self, x: Float[Tensor, "s t w"]) -> Float[Tensor, "s c"]:
        """The score of each class after the last word."""
        return self.readout(self.recurrent(x)[0][:, -1])


def trained(config: Config, *, seed: int, folder: str | os.PathLike[str], device: str = "cpu") -> CountingNetwork:
    """Train a network; one that is in ``folder`` already is used again, or trained to the end."""
    path = require_folder(folder) / "network.safetensors"
    torch_device = require_device(device)
    with seeded(seed):
        network = CountingNetwork(config).to(torch_device)

    def loss(iteration: int) -> Tensor:
        x, labels = draw(generator(seed, TRAINING, iteration), config.batch, config)
        return nn.functional.cross_entropy(network(x.to(torch_device)), labels.to(torch_device))

    optimizer = torch.optim.Adam(network.parameters(), lr=config.rate)
    made_by = {"experiment": "counting", "seed": seed, "config": as_json(config)}
    train(network, optimizer, loss, plan=config.training, path=path, made_by=made_by)
    return network.cpu()
