"""Batches go to the model's device; lengths stay on the host."""

from collections import namedtuple

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import kann
from kann.errors import KannError
from kann.recording.sequence_data import to_device
from tests.recording.models import Tagger, by_hand, same


def test_data_on_a_device_that_cannot_be_moved(model, words):
    with pytest.raises(KannError, match="data are on the meta device and hold no numbers to move to cpu"):
        kann.record(model, pad_sequence(words, batch_first=True).to("meta"))
    with pytest.raises(KannError, match="the model is on cpu and device='meta'"):
        kann.record(model, words, device="meta")
    with pytest.raises(KannError, match="the model is on the meta device and its weights hold no numbers"):
        kann.record(Tagger().to("meta"), words)
    same(kann.record(model, words, device="cpu"), by_hand(model, words))


def test_batches_are_moved_whole_and_lengths_stay_on_the_host():
    class Encoding(dict):
        """Knows how to move itself, as a tokenizer's result does."""

        def to(self, device):
            return Encoding({key: value.to(device) for key, value in self.items()})

    point = namedtuple("point", "x y")
    lengths, meta = torch.tensor([1, 2]), torch.device("meta")
    whole = to_device(Encoding(x=torch.zeros(2)), meta)
    assert isinstance(whole, Encoding)
    assert whole["x"].device == meta
    nested = to_device({"a": [torch.zeros(1), point(torch.zeros(1), "text")], "n": lengths}, meta, except_for=lengths)
    assert nested["a"][0].device == nested["a"][1].x.device == meta
    assert nested["a"][1].y == "text"
    assert nested["n"] is lengths


def test_a_model_whose_parts_are_on_different_devices(model, words):
    def forward(model, batch):
        return model(batch) + torch.ones(1).add(torch.zeros(2, device="meta"))

    with pytest.raises(KannError, match="different devices"):
        kann.record(model, words, forward=forward)
