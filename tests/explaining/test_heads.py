# ruff: noqa: D101, D102  # models in tests say what they are by their names
"""Heads behind ReLU, heads of pooled states, and heads that are convolutions over single steps."""

import pytest
import torch
from torch import nn

import kann
from kann.explaining.options import Options
from kann.explaining.setup import look, record_states

WAYS = {
    "last": (lambda h: h[:, -1].relu(), "behind ReLU of its last state,"),
    "every": (lambda h: h.relu(), "behind ReLU of the state at every step,"),
    "rectified mean": (lambda h: h.mean(dim=1).relu(), "behind ReLU of the mean of its states,"),
    "mean of rectified": (lambda h: h.relu().mean(dim=1), "behind ReLU of the mean of its states, each behind ReLU,"),
    "sum": (lambda h: h.sum(dim=1), "a linear readout of the sum of its states,"),
}


class Reader(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.rnn, self.head, self.pool = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 2), pool

    def forward(self, x):
        return self.head(self.pool(self.rnn(x)[0]))


class VoiceReader(Reader):
    """As Silero's detector: a convolution over single steps reads the states behind ReLU."""

    def __init__(self):
        super().__init__(None)
        self.head = nn.Conv1d(6, 2, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0].relu().transpose(1, 2)).transpose(1, 2)


def reading_of(model):
    """What is said about the readout, and the readout itself."""
    found = record_states(look(model, torch.randn(30, 10, 3), Options(progress=False)))
    return found.choices[-1], found


@pytest.mark.parametrize("way", WAYS)
def test_how_a_head_reads_the_states_is_found(way):
    pool, words = WAYS[way]
    said, _ = reading_of(Reader(pool))
    assert f"{words} found and checked against" in said


def test_a_head_that_is_a_convolution_reads_states():
    model = VoiceReader()
    said, found = reading_of(model)
    assert "a head behind ReLU of the state at every step" in said
    head, h = kann.recording.readout_of(model), torch.randn(5, 6)
    assert isinstance(head, nn.Linear)
    expected = model.head(h.relu()[:, :, None])[:, :, 0].detach()
    torch.testing.assert_close(head(h.relu()), expected)
    torch.testing.assert_close(torch.as_tensor(found.reading.readout(h.numpy())).float(), expected)
