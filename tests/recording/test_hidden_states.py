# ruff: noqa: D101, D102  # models in tests say what they are by their names
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
    every = kann.recording.record_layers(model, data, layer="hidden_states.*", batch_size=2)
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


class Config:
    output_hidden_states = False


class HidesTheOption(Pretrained):
    """As HuggingFace's models are written now: the option is not among the names that forward takes."""

    def forward(self, input_ids, attention_mask=None, **kwargs):
        return super().forward(input_ids, attention_mask, kwargs.pop("output_hidden_states", None), **kwargs)


class AskedByConfig(Pretrained):
    """Takes no option, but has a switch in its configuration."""

    def __init__(self):
        super().__init__()
        self.config = Config()

    def forward(self, input_ids):
        return super().forward(input_ids, output_hidden_states=self.config.output_hidden_states)


class Wrapped(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids)


@pytest.mark.parametrize("make", [HidesTheOption, AskedByConfig, lambda: Wrapped(AskedByConfig())])
def test_hidden_states_are_asked_for_where_the_option_is_hidden(make, words):
    model = make()
    inner = getattr(model, "model", model)
    paths = block_by_block(inner, words[:1])
    tokens = words[0][None]
    same(kann.record(model, tokens, axis="depth"), kann.States.from_padded(paths[0].transpose(1, 0, 2)))
    same(kann.record(model, tokens, layer="hidden_states.1"), kann.States.from_padded(paths[0][1:2]))
    if hasattr(inner, "config"):
        assert inner.config.output_hidden_states is False


def test_the_switch_in_the_configuration_is_restored_after_an_error(words):
    model = AskedByConfig()
    with pytest.raises(kann.KannError, match="'embed' has 20 rows"):
        kann.record(model, words[0][None] + 100, axis="depth")
    assert model.config.output_hidden_states is False


def test_a_model_that_passes_the_option_on_to_what_does_not_take_it(words):
    class PassesOn(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = AskedByConfig()

        def forward(self, input_ids, **kwargs):
            return self.model(input_ids, **kwargs)

    with pytest.raises(KannError, match=r"PassesOn does not take output_hidden_states .*pass forward="):
        kann.record(PassesOn(), words[0][None], axis="depth")
