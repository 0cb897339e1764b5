# ruff: noqa: D101, D102  # models in tests say what they are by their names
"""Models and data that the tests of recording share."""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset

import kann

EXACT = 1e-6
"""Rounding of float32, some 1e-7 a step, of states of size 1 over some ten steps and a few layers."""


class Tagger(nn.Module):
    """Words to classes: the usual model."""

    def __init__(self, layers=1):
        super().__init__()
        self.embed = nn.Embedding(20, 3)
        self.rnn = nn.GRU(3, 5, num_layers=layers, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(5, 2)

    def forward(self, words):
        return self.head(self.dropout(self.rnn(self.embed(words))[0]))


def outputs_of(module, sequences):
    """What a recurrent module itself gives for each sequence alone, (T, p), so that there is no padding."""
    with torch.no_grad():
        return kann.States.from_sequences([module(sequence)[0].numpy() for sequence in sequences])


def by_hand(model, words):
    """The states of a Tagger for each sequence alone."""
    with torch.no_grad():
        return outputs_of(model.rnn, [model.embed(w) for w in words])


def same(recorded, expected, atol=EXACT):
    np.testing.assert_array_equal(recorded.lengths, expected.lengths)
    np.testing.assert_allclose(recorded.values, expected.values, atol=atol, rtol=EXACT)


class Words(IterableDataset):
    def __init__(self, words):
        self.words = words

    def __iter__(self):
        return iter(self.words)


def collated(samples):
    return {"words": pad_sequence(samples, batch_first=True), "n": torch.tensor([len(s) for s in samples])}


@dataclass
class Output:
    """What a HuggingFace model returns."""

    last_hidden_state: torch.Tensor
    hidden_states: tuple | None = None


class Failure(Exception):  # noqa: N818
    """Something that goes wrong in a model."""


class Stops(Tagger):
    """Raises in its third batch, after the layer that is recorded; the first one runs twice."""

    def __init__(self, error):
        super().__init__()
        self.error, self.calls = error, itertools.count(1)  # not a number, which would be restored before each call

    def forward(self, words):
        result = super().forward(words)
        torch.rand(1)
        if next(self.calls) == 4 and self.error is not None:
            raise self.error
        return result


class Residual(nn.Module):
    def __init__(self, width_in, width, stride=1):
        super().__init__()
        self.convolution = nn.Conv2d(width_in, width, 3, padding=1, stride=stride)
        self.norm = nn.BatchNorm2d(width)
        self.shortcut = nn.Conv2d(width_in, width, 1, stride=stride) if width_in != width else nn.Identity()

    def forward(self, x):
        return torch.relu_(self.norm(self.convolution(x)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.stage1 = nn.Sequential(Residual(4, 4), Residual(4, 4), Residual(4, 4))
        self.stage2 = nn.Sequential(Residual(4, 6, stride=2), Residual(6, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.stage2(self.stage1(self.stem(x))).mean(dim=(2, 3)))
