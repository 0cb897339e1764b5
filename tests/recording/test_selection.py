"""Which layers a name, a pattern, a list or a function means."""

import re

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import kann
from kann.errors import KannError
from tests.recording.models import Tagger, by_hand, same
from tests.recording.single_steps import reference


def test_several_layers_at_once_give_a_dict(words):
    model = Tagger(layers=2)
    recorded = kann.recording.record_layers(model, words, layer=["embed", "rnn.l0", "rnn", "dropout"])
    assert list(recorded) == ["embed", "rnn.l0", "rnn", "dropout"]
    with torch.no_grad():
        embedded = [model.embed(w) for w in words]
        lower = kann.States.from_sequences([reference(model.rnn, x)["l0"]["h"].numpy() for x in embedded])
    same(recorded["embed"], kann.States.from_sequences([x.numpy() for x in embedded]))
    same(recorded["rnn"], by_hand(model, words))
    same(recorded["dropout"], by_hand(model, words))  # evaluation mode
    same(recorded["rnn.l0"], lower)
    same(kann.record(model, words, layer="rnn.l0"), lower)


def test_patterns_match_part_by_part(words):
    model = nn.ModuleDict({"a": nn.GRU(3, 4, num_layers=2, bidirectional=True), "b": nn.LSTM(3, 4)})
    x = torch.randn(5, 2, 3)

    def run(model, x):
        return model["a"](x)[0], model["b"](x)[0]

    def names(layer):
        return list(kann.recording.record_layers(model, iter([x]), layer=layer, forward=run))

    assert names("a") == ["a.l1", "a.l1_reverse"]
    assert names("*.l0*") == ["a.l0", "a.l0_reverse", "b.l0"]
    assert names("*.*_reverse") == ["a.l0_reverse", "a.l1_reverse"]
    assert names("?") == ["a.l1", "a.l1_reverse", "b"]
    with pytest.raises(KannError, match=r"no layer matches 'c.*'"):
        names("c.*")
    with pytest.raises(KannError, match="names no layer"):
        names([])


def test_a_function_of_the_output(model, words):
    padded = pad_sequence(words, batch_first=True)
    states = kann.record(model, padded, layer=lambda output: output * 2)
    with torch.no_grad():
        expected = 2 * model.eval()(padded)
    same(states, kann.States.from_padded(expected))
    with pytest.raises(KannError, match=re.escape("layer(output) gave (5, 7), without a time axis")):
        kann.record(model, padded, layer=lambda output: output[..., 0])
    with pytest.raises(KannError, match="gave tuple, without a time axis"):
        kann.record(model, padded, layer=lambda output: (output,))
    with pytest.raises(KannError, match="have no inputs, initial or cell states"):
        kann.record(model, padded, layer=lambda output: output, inputs=True)


def test_a_shared_module_is_recorded_under_either_name(words):
    model = Tagger()
    model.alias = model.rnn
    for name in ("rnn", "alias"):
        same(kann.record(model, words, layer=name), by_hand(model, words))


def test_an_unknown_layer_is_answered_with_close_names(model, words):
    with pytest.raises(KannError, match="no layer 'embd'; close to it are 'embed'"):
        kann.record(model, words, layer="embd")
    with pytest.raises(KannError, match=re.escape("no layer 'rnn.l7'; close to it are 'rnn.l0'")):
        kann.record(model, words, layer="rnn.l7")
    with pytest.raises(KannError, match="layer is GRU; pass a name"):
        kann.record(model, words, layer=model.rnn)


def test_a_layer_that_was_never_called(model, words):
    model.spare = nn.Linear(5, 5)
    model.spare_rnn = nn.GRU(5, 5)
    for layer in ("spare", "spare_rnn"):
        with pytest.raises(KannError, match=f"layer '{layer}' was never called"):
            kann.record(model, words, layer=layer)
    with pytest.raises(KannError, match="layer 'spare' was never called"):
        kann.record(model, words, axis="depth", layer=["spare", "head"])
    with pytest.raises(KannError, match="layer 'spare' was never called"):
        kann.record(model, words, axis="depth", layer="head", embedding="spare")


def test_no_recurrent_module_or_several(model, words):
    with pytest.raises(KannError, match=r"no recurrent module of torch's, .*; pass layer=, such as one of '0', '1'"):
        kann.record(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.zeros(2, 3, 2))
    with pytest.raises(KannError, match="such as one of '0', '1', '2', '3', '4', '5', '6', '7', …"):
        kann.record(nn.Sequential(*(nn.ReLU() for _ in range(9))), torch.zeros(2, 3, 2))
    model.second = nn.LSTMCell(2, 2)
    with pytest.raises(KannError, match="2 recurrent modules: 'rnn', 'second'; pass layer="):
        kann.record(model, words)
