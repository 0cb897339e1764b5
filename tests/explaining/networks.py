# ruff: noqa: D102  # models in tests say what they are by their names
"""Small networks of all kinds that are explained in the tests."""

from pathlib import Path

import numpy as np
import torch
from kann_experiments.copy.task import CopyNetwork
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from kann.zoo.copy_task import OrthogonalRNN

SEQUENCES, STEPS = 24, 12
"""Enough for folds, a live test, and for states to forget."""


class PackedReader(nn.Module):
    """Two bidirectional layers over packed words; both directions' last states decide."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 3)
        self.lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        return self.head(torch.cat([h[-2], h[-1]], dim=1))


class Reader(nn.Module):
    """A recurrent layer whose last state a head reads."""

    def __init__(self, layer, head):
        super().__init__()
        self.rnn, self.head = layer, head

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Tagger(nn.Module):
    """Stacked GRUs that decide at every step."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 3)
        self.rnn = nn.GRU(3, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, words):
        return self.head(self.rnn(self.embedding(words))[0])


class Autoencoder(nn.Module):
    """Gives back what it reads."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(2, 5, batch_first=True)
        self.decoder = nn.GRU(5, 5, batch_first=True)
        self.readout = nn.Linear(5, 2)

    def forward(self, x):
        h = self.encoder(x)[0][:, -1]
        return self.readout(self.decoder(h[:, None].expand(-1, x.shape[1], -1).contiguous())[0])


class LinearUnit(nn.Module):
    """h[t+1] = h[t] diag(λ) + u[t+1] B."""

    def __init__(self, eigenvalues, inputs):
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(eigenvalues))
        self.read = nn.Linear(inputs, len(eigenvalues), bias=False)

    def reset_parameters(self):
        """As before training, when it forgot at once."""
        nn.init.uniform_(self.decay, 0.0, 0.1)

    def forward(self, x):
        driven, h, states = self.read(x), torch.zeros(len(x), len(self.decay)), []
        for t in range(x.shape[1]):
            h = h * self.decay + driven[:, t]
            states.append(h)
        return torch.stack(states, dim=1)


class LinearNetwork(nn.Module):
    """A linear unit of which two modes reach the output."""

    EIGENVALUES = (0.95, 0.9, 0.7, 0.5, 0.2)
    REACHING = (1, 3)

    def __init__(self):
        super().__init__()
        self.unit = LinearUnit(self.EIGENVALUES, 2)
        self.readout = nn.Linear(5, 1)
        with torch.no_grad():
            self.readout.weight.zero_()
            self.readout.weight[0, list(self.REACHING)] = torch.tensor([1.0, -1.5])

    def forward(self, x):
        return self.readout(self.unit(x)[:, -1])


def orthogonal_copier(task, angles):
    """A dtriv network for the copy task whose hidden matrix turns pairs of coordinates by known angles.

    With thresholds of zero modReLU is the identity, so that its eigenvalues are exp(±i angle). The readout is the
    least-squares one, and answers all sequences.
    """
    units = 2 * len(angles)
    network = CopyNetwork(OrthogonalRNN(task.width, units), units, task.letters + 1)
    turns = [torch.tensor([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]).float() for a in angles]
    basis = torch.linalg.qr(torch.randn(units, units))[0]
    with torch.no_grad():
        network.recurrent.cell.turn.weight = basis @ torch.block_diag(*turns) @ basis.T
        network.recurrent.cell.threshold.zero_()
        x, answers = task.sequences(task.every())
        states = network.recurrent(x)[0].flatten(0, 1).double()
        known = torch.cat([states, torch.ones(len(states), 1)], dim=1)
        wanted = nn.functional.one_hot(answers.flatten(), task.letters + 1).double()
        weights = torch.linalg.lstsq(known, wanted).solution
        network.readout.weight.copy_(weights[:-1].T)
        network.readout.bias.copy_(weights[-1])
    return network


class Encoder(nn.Module):
    """A transformer encoder whose mean over positions decides."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, words):
        return self.head(self.encoder(self.embedding(words)).mean(dim=1))


class Block(nn.Module):
    """A residual block."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1))

    def forward(self, x):
        return x + 0.3 * self.inner(x)


class ResNet(nn.Module):
    """Convolutional blocks of one width."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.blocks = nn.Sequential(*(Block() for _ in range(5)))
        self.head = nn.Linear(6, 3)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))


class PooledReader(nn.Module):
    """The mean of all states of a packed GRU decides, behind a ReLU."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 5, batch_first=True)
        self.head = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(states.sum(dim=1) / lengths[:, None])


class DepthTagger(nn.Module):
    """Two bidirectional layers that give the depth of brackets at every step; only reading forwards tells it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.lstm = nn.LSTM(4, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, words):
        return self.head(self.lstm(self.embedding(words))[0])


class Parity(nn.Module):
    """Tells at every step whether an odd number of ones was read."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def trained(network, name):
    """A network with the weights that weights/make.py wrote."""
    network.load_state_dict(load_file(Path(__file__).parent / "weights" / f"{name}.safetensors"))
    return network.eval()


def brackets(count, steps, generator):
    """Words 0 ".", 1 "(" and 2 ")", and the depth after each, from 0 to 3."""
    words, depth, depths = torch.zeros(count, steps, dtype=torch.long), torch.zeros(count, dtype=torch.long), []
    for step in range(steps):
        drawn = torch.rand(count, generator=generator)
        opens, closes = (drawn < 0.35) & (depth < 3), (drawn > 0.65) & (depth > 0)
        words[:, step] = opens.long() + 2 * closes.long()
        depth = depth + opens.long() - closes.long()
        depths.append(depth)
    return words, torch.stack(depths, dim=1)


def bits(count, steps, generator):
    """Zeros and ones, and whether an odd number of ones was read."""
    x = torch.randint(0, 2, (count, steps, 1), generator=generator).float()
    return x, x[..., 0].cumsum(dim=1).long() % 2


def seeded(make):
    """A network that is the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()


def words(generator, *, ragged=False):
    """Sequences of numbers of words."""
    all_words = torch.randint(0, 9, (SEQUENCES, STEPS), generator=generator)
    if not ragged:
        return all_words
    return [row[: 8 + i % 5] for i, row in enumerate(all_words)]


def numbers(generator, width=2):
    """Sequences of real numbers."""
    return torch.randn(SEQUENCES, STEPS, width, generator=generator)
