# ruff: noqa: D102  # models in tests say what they are by their names
"""Models whose states are replaced in the tests, one for each kind of layer that can be recorded."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import kann


class Reader(nn.Module):
    """A fused recurrent module, padded or packed, and what it returns besides its output."""

    def __init__(self, rnn, *, packed=False, batch_first=True):
        super().__init__()
        self.rnn, self.packed, self.batch_first = rnn, packed, batch_first

    def forward(self, x):
        if not self.batch_first:
            x = x.transpose(0, 1)
        if not self.packed:
            return self.rnn(x)
        lengths = 1 + torch.arange(len(x)) * 7 % x.shape[1]
        lengths[0] = x.shape[1]
        output, hidden = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(output, batch_first=True), hidden


class Loop(nn.Module):
    """A cell that is called once a step."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def initial(self, x):
        if isinstance(self.cell, OwnCell):
            return x.new_zeros(len(x), 4), x.new_zeros(len(x), 4)
        return None

    def forward(self, x):
        states, outputs = self.initial(x), []
        for t in range(x.shape[1]):
            states = self.cell(x[:, t], states)
            outputs.append(states)
        return outputs


class OwnCell(nn.Module):
    """A cell of the user's own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTMCell(3, 4)

    def forward(self, x, states):
        h, c = self.inner(x, states)
        return h, c


class Blocks(nn.Module):
    """Two transformer blocks."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(3, 4)
        make = lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)  # noqa: E731
        self.blocks = nn.ModuleList([make(), make()])

    def forward(self, x):
        x = self.read(x)
        for block in self.blocks:
            x = block(x)
        return x


def inputs(sequences=40, steps=9):
    return torch.randn(sequences, steps, 3)


def fitted(model, x, **where):
    """The states of a layer, and their operator of full rank."""
    states = kann.record(model, x, progress=False, batch_size=128, **where)
    return states, kann.fit(states, basis="pca")


def flat(output):
    """All real numbers that a model returned, one after the other."""
    return torch.cat(
        [part.flatten() for part in kann.recording.sequence_data.tensors_of(output) if part.is_floating_point()]
    )


def every(koopman):
    """The numbers of all modes."""
    return range(len(koopman.modes))
