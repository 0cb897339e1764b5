# ruff: noqa: D101, D102  # models in tests say what they are by their names
"""Models that take lengths or a mask are told what is padding, and decoders have lengths of their own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import kann
from kann import KannError
from tests.recording.models import EXACT, Tagger, by_hand, same


class Packing(Tagger):
    """Takes lengths, as a model does that packs its sequences."""

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][0])


class MaybePacking(Packing):
    def forward(self, words, src_lens=None):
        if src_lens is None:
            return self.head(self.rnn(self.embed(words))[1][0])
        return super().forward(words, src_lens)


WORDS = [torch.tensor([3, 1, 4, 1]), torch.tensor([5, 9]), torch.tensor([2, 6, 5, 3, 5])]


@pytest.mark.parametrize("make", [Packing, MaybePacking])
@pytest.mark.parametrize("kind", ["tensors", "lists", "padded"])
def test_a_model_that_takes_lengths_is_told_them(make, kind):
    model = make()
    data, options = WORDS, {}
    if kind == "lists":
        data = [word.tolist() for word in WORDS]
    elif kind == "padded":
        data, options = pad_sequence(WORDS, batch_first=True), {"lengths": [4, 2, 5]}
    same(kann.record(model, data, batch_size=2, **options), by_hand(model, WORDS))


def test_without_lengths_every_step_of_a_tensor_is_real():
    model, words = Packing(), torch.randint(20, (3, 6))
    same(kann.record(model, words), by_hand(model, list(words)))


@pytest.mark.parametrize("name", ["attention_mask", "src_key_padding_mask"])
def test_padding_of_a_list_does_not_reach_a_model_with_attention(name):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True), 2)
    model = encoder
    if name == "attention_mask":

        class Reader(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = encoder

            def forward(self, x, attention_mask=None):
                padding = None if attention_mask is None else attention_mask == 0
                return self.encoder(x, src_key_padding_mask=padding)

        model = Reader()
    layer = "layers.1" if model is encoder else "encoder.layers.1"
    data = [torch.randn(n, 8) for n in (4, 7, 5)]
    together = kann.record(model, data, layer=layer)
    for i, own in enumerate(data):
        np.testing.assert_allclose(together[i], kann.record(model, own[None], layer=layer)[0], atol=EXACT)
    deep = kann.record(model, data, layer=layer.replace("1", "*"), axis="depth")
    np.testing.assert_allclose(deep.padded()[:, -1], together.values, atol=EXACT)


class Translator(nn.Module):
    """An encoder-decoder with arguments and results as transformers has them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.encoder, self.decoder = nn.GRU(4, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)

    def forward(self, input_ids, attention_mask=None, decoder_input_ids=None, decoder_attention_mask=None, **options):
        read, said = self.embed(input_ids), self.embed(decoder_input_ids)
        hidden = self.encoder(read)[0]
        given = self.decoder(said, hidden[:, -1][None].contiguous())[0]
        states = {}
        if options.get("output_hidden_states"):
            states = {"encoder_hidden_states": (read, hidden), "decoder_hidden_states": (said, given)}
        return SimpleNamespace(logits=given, **states)


@pytest.fixture
def batch():
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    words = torch.randint(9, (2, 8))
    return {"input_ids": words[:, :5], "attention_mask": mask, "decoder_input_ids": words[:, 5:]}


def test_a_decoder_has_lengths_of_its_own(batch):
    model, masked = Translator(), batch | {"decoder_attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}
    for data, steps in ((batch, [3, 3]), (masked, [2, 3])):
        both = kann.recording.record_layers(model, data, layer=["encoder", "decoder"])
        assert both["encoder"].lengths.tolist() == [5, 3]
        assert both["decoder"].lengths.tolist() == steps
        hidden = kann.record(model, data, layer="decoder_hidden_states.1")
        same(hidden, both["decoder"])
        assert len(kann.record(model, data, axis="depth", layer="decoder_hidden_states")) == sum(steps)
        assert len(kann.record(model, data, axis="depth", layer="encoder_hidden_states")) == 8


def test_an_encoder_decoder_without_a_layer_says_which_there_are(batch):
    message = "holds no hidden_states; pass layer='encoder_hidden_states' or layer='decoder_hidden_states'"
    with pytest.raises(KannError, match=message):
        kann.record(Translator(), batch, axis="depth")


def test_transformers_models_are_recorded_as_they_return_their_states():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(**small, intermediate_size=32)).eval()
    words = [torch.randint(5, 60, (n,)) for n in (7, 4)]
    states = kann.record(model, words, axis="depth")
    with torch.no_grad():
        alone = [model(word[None], output_hidden_states=True).hidden_states for word in words]
    expected = torch.cat([torch.stack(each)[:, 0].transpose(0, 1) for each in alone])
    np.testing.assert_allclose(states.padded(), expected, atol=1e-5)
    t5 = transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    data = {"input_ids": torch.stack([words[0]] * 2), "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2])}
    data |= {"decoder_input_ids": data["input_ids"][:, :4]}
    decoded = kann.record(transformers.T5Model(t5).eval(), data, layer="decoder.block.1")
    assert decoded.lengths.tolist() == [4, 4]
