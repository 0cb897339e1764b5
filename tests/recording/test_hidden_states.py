# ruff: noqa: D102  # models in tests say what they are by their names
"""Hidden states that a model returns by itself, as those of HuggingFace do."""

import re

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import kann
from kann.errors import KannError
from tests.recording.models import Output, same


class Pretrained(nn.Module):
    """Looks like a HuggingFace encoder from outside."""

    def __init__(self, as_dict=False):
        super().__init__()
        self.embed = nn.Embedding(20, 4)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True) for _ in range(3))
        self.as_dict = as_dict

    def forward(self, input_ids, attention_mask=None, output_hidden_states=None):
        path = [self.embed(input_ids)]
        for block in self.blocks:
            path.append(block(path[-1], src_key_padding_mask=None if attention_mask is None else attention_mask == 0))
        states = tuple(path) if output_hidden_states else None
        if self.as_dict:
            return {"last_hidden_state": path[-1], "hidden_states": states}
        return Output(path[-1], states)


def block_by_block(model, words):
    """(4, T, d) for each sequence alone, so that there is no padding: the embedding and what each block makes of it."""
    paths = []
    with torch.no_grad():
        for w in words:
            path = [model.embed(w[None])]
            for block in model.eval().blocks:
                path.append(block(path[-1]))
            paths.append(torch.cat(path).numpy())
    return paths


@pytest.mark.parametrize("as_dict", [False, True])
def test_hidden_states_that_a_model_returns(as_dict, words):
    model = Pretrained(as_dict)
    padded = pad_sequence(words, batch_first=True)
    mask = torch.arange(7) < torch.tensor([len(w) for w in words])[:, None]
    data = {"input_ids": padded, "attention_mask": mask.long(), "labels": torch.zeros(5)}
    paths = block_by_block(model, words)
    layers = [kann.States.from_sequences([path[k] for path in paths]) for k in range(4)]
    every = kann.record(model, data, layer="hidden_states.*", batch_size=2)
    assert list(every) == [f"hidden_states.{k}" for k in range(4)]
    for k in range(4):
        same(every[f"hidden_states.{k}"], layers[k])
    for k in range(3):
        same(kann.record(model, data, layer=f"blocks.{k}"), layers[k + 1])
    same(kann.record(model, data, layer="hidden_states.-1"), layers[3])
    along_depth = kann.States.from_sequences([h for path in paths for h in path.transpose(1, 0, 2)])
    assert (len(along_depth), along_depth.lengths[0]) == (sum(map(len, words)), 4)
    same(kann.record(model, data, axis="depth"), along_depth)
    same(kann.record(model, data, axis="depth", layer="blocks.*", embedding="embed"), along_depth)
    with pytest.raises(KannError, match=r"hidden_states.9 does not exist; the model returns 4 hidden states"):
        kann.record(model, data, layer="hidden_states.9")
    with pytest.raises(KannError, match="holds no hidden_states"):
        kann.record(model, data, layer="hidden_states.1", forward=lambda m, batch: m(batch["input_ids"]))
    with pytest.raises(KannError, match="hold its embedding already"):
        kann.record(model, data, axis="depth", embedding=True)


def test_hidden_states_without_a_time_axis(words):
    flat = Output(torch.zeros(2, 3), (torch.zeros(2, 3),))
    with pytest.raises(KannError, match=re.escape("layer 'hidden_states.0' gave (2, 3), without a time axis")):
        kann.record(nn.Linear(1, 1), [words], layer="hidden_states.0", forward=lambda m, batch: flat)
