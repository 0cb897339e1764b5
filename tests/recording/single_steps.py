# ruff: noqa: D101, D102  # models in tests say what they are by their names
"""torch's fused recurrent modules as a plain loop over single steps, and what compares recordings with it."""

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.recording.models import EXACT

KINDS = {
    "rnn": lambda *a, **k: nn.RNN(*a, **k),
    "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
    "gru": lambda *a, **k: nn.GRU(*a, **k),
    "lstm": lambda *a, **k: nn.LSTM(*a, **k),
    "projected": lambda *a, **k: nn.LSTM(*a, proj_size=3, **k),
}


def cell_step(module, suffix, x, h, c):
    """One step of one layer, written out from torch's documentation."""
    gates = x @ getattr(module, f"weight_ih{suffix}").T
    recurrent = h @ getattr(module, f"weight_hh{suffix}").T
    if module.bias:
        gates, recurrent = gates + getattr(module, f"bias_ih{suffix}"), recurrent + getattr(module, f"bias_hh{suffix}")
    if isinstance(module, nn.RNN):
        return (torch.relu if module.nonlinearity == "relu" else torch.tanh)(gates + recurrent), c
    if isinstance(module, nn.GRU):
        r, z, n = gates.chunk(3)
        hr, hz, hn = recurrent.chunk(3)
        update = torch.sigmoid(z + hz)
        return (1 - update) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + update * h, c
    i, f, g, o = (gates + recurrent).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h @ getattr(module, f"weight_hr{suffix}").T if module.proj_size else h), c


def reference(module, sequence, hx=None):
    """States by layer name: (T, d) h and c of every layer and direction in its own order of time, and what it read."""
    out, width = module.proj_size or module.hidden_size, module.hidden_size
    directions = 2 if module.bidirectional else 1
    result, read = {}, sequence
    for level in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            name = f"l{level}" + "_reverse" * direction
            order = read.flip(0) if direction else read
            at = level * directions + direction
            h, c = sequence.new_zeros(out), sequence.new_zeros(width)
            if hx is not None:
                h, c = (hx[0][at], hx[1][at]) if isinstance(hx, tuple) else (hx[at], c)
            path = []
            for x in order:
                h, c = cell_step(module, f"_{name}", x, h, c)
                path.append((h, c))
            hs, cs = (torch.stack(part) for part in zip(*path, strict=True))
            result[name] = {"h": hs, "c": cs, "hc": torch.cat([hs, cs], 1), "inputs": order}
            outputs.append(hs.flip(0) if direction else hs)
        read = torch.cat(outputs, dim=1)
    return result


class Padding(nn.Module):
    """Runs a recurrent module on padded batches, as far too many models do."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, lengths=None):
        return self.rnn(x if self.rnn.batch_first else x.transpose(0, 1))[0]


class Packing(Padding):
    def forward(self, x, lengths):
        x = x if self.rnn.batch_first else x.transpose(0, 1)
        packed = pack_padded_sequence(x, lengths, batch_first=self.rnn.batch_first, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=self.rnn.batch_first)[0]


def make(kind, **options):
    torch.manual_seed(0)
    module = KINDS[kind](2, 4, **options)
    for parameter in module.parameters():  # as large as in a trained network, so that steps are not nearly linear
        parameter.data *= 1.5
    return module


def sequences(rng, count=5, longest=9, width=2):
    lengths = rng.integers(1, longest + 1, size=count)
    return [torch.tensor(rng.normal(size=(n, width)), dtype=torch.float32) for n in lengths]


def padded(data, fill=0.0):
    """One batch as a loader would give it."""
    lengths = torch.tensor([len(sequence) for sequence in data])
    return {"x": nn.utils.rnn.pad_sequence(data, batch_first=True, padding_value=fill), "lengths": lengths}


def check(recorded, module, data, state, *, prefix="rnn."):
    for name, states in recorded.items():
        assert len(states) == len(data)
        for i, sequence in enumerate(data):
            with torch.no_grad():
                expected = reference(module, sequence)[name.removeprefix(prefix)]
            np.testing.assert_allclose(states[i], expected[state], atol=EXACT, rtol=0)
            if states.inputs is not None:
                inputs = states.inputs[int(states.starts[i]) : int(states.starts[i] + states.lengths[i])]
                np.testing.assert_allclose(inputs, expected["inputs"], atol=EXACT, rtol=0)


class Loop(nn.Module):
    """Calls a cell at every step."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state, outputs = None, []
        for now in x.unbind(1):
            state = self.cell(now, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, dim=1)
