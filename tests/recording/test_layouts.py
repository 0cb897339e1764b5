# ruff: noqa: D102  # models in tests say what they are by their names
"""Layers that give whole sequences, in any order of axes."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import kann
from kann.errors import KannError
from tests.recording.models import EXACT, Output, ResNet, Tagger, same


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_encoder_along_time_and_depth(batch_first, norm_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=batch_first and not norm_first)
    for parameter in model.parameters():  # the layers start as copies of each other
        parameter.data += 0.1 * torch.randn_like(parameter)
    data = [torch.randn(n, 8) for n in (6, 2, 4)]
    lengths = torch.tensor([len(x) for x in data])
    padded = pad_sequence(data, batch_first=batch_first)
    batch = {"src": padded, "src_key_padding_mask": torch.arange(6) >= lengths[:, None]}

    expected = []
    with torch.no_grad():
        for x in data:  # each sequence by itself needs no padding
            h = x[None] if batch_first else x[:, None]
            path = [h]
            for block in model.eval().layers:
                path.append(block(path[-1]))
            expected.append(torch.stack([part.squeeze(0 if batch_first else 1) for part in path]).numpy())  # (5, T, 8)

    options = {"lengths": "src_key_padding_mask"}
    for k in range(4):
        states = kann.record(model, iter([batch]), layer=f"layers.{k}", inputs=True, **options)
        same(states, kann.States.from_sequences([path[k + 1] for path in expected]))
        np.testing.assert_allclose(states.inputs, np.concatenate([path[k] for path in expected]), atol=EXACT)
    depth = kann.record(model, iter([batch]), axis="depth", layer="layers.*", embedding=True, **options)
    same(depth, kann.States.from_sequences([h for path in expected for h in path.transpose(1, 0, 2)]))
    assert len(depth) == 12
    assert depth.lengths.tolist() == [5] * 12


def test_attention_alone_gives_its_output_and_not_its_weights():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)

    model = Reader()
    x = torch.randn(3, 5, 4)
    with torch.no_grad():
        expected = model(x)[0]
    same(kann.record(model, x, layer="attention"), kann.States.from_padded(expected))


class Block(nn.Module):
    """A block of a temporal convolutional network, on (B, C, T)."""

    def __init__(self, width_in, width):
        super().__init__()
        convolution = nn.Conv1d(width_in, width, 3, padding=2)
        self.convolution = nn.utils.parametrizations.weight_norm(convolution)
        self.narrow = nn.Conv1d(width_in, width, 1)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.activation(self.convolution(x)[..., : x.shape[-1]]) + self.narrow(x)


@pytest.mark.parametrize("steps", [6, 4])
def test_temporal_convolutions_have_their_channels_first(steps):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(Block(2, 4), Block(4, 4))
            self.head = nn.Linear(4, 1)

        def forward(self, x):  # (B, T, 2)
            return self.head(self.blocks(x.transpose(1, 2)).transpose(1, 2))

    model = Net()
    x = torch.randn(3, steps, 2)
    recorded = kann.recording.record_layers(model, x, layer=["blocks.1", "blocks"], inputs=True)
    wide = kann.record(model, x, layer="blocks.0.convolution")
    with torch.no_grad():
        first = model.blocks[0](x.transpose(1, 2))
        last = kann.States.from_padded(model.blocks[1](first).transpose(1, 2))
        # The activation behind it works in place.
        raw = model.blocks[0].convolution(x.transpose(1, 2))
    same(recorded["blocks.1"], last)
    same(recorded["blocks"], last)
    np.testing.assert_allclose(recorded["blocks.1"].inputs, first.transpose(1, 2).reshape(-1, 4), atol=EXACT)
    np.testing.assert_allclose(wide.padded(), raw.transpose(1, 2), atol=EXACT)


def test_convolutions_that_change_the_number_of_steps_have_no_inputs_to_their_states():
    with pytest.raises(KannError, match="reads 6 steps and gives 4, so that no input belongs to each state"):
        kann.record(nn.Conv1d(2, 4, 3), torch.randn(3, 2, 6), layer="", inputs=True)


class StateSpace(nn.Module):
    """A diagonal linear state-space layer in its step-by-step and its whole form."""

    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(4))
        self.drive = nn.Linear(2, 4)

    def forward(self, x, h=None):
        h = torch.zeros(len(x), 4) if h is None else h
        path = []
        for u in self.drive(x).unbind(1):
            h = self.decay * h + u
            path.append(h)
        return torch.stack(path, dim=1), h


def test_a_layer_called_one_step_at_a_time_is_one_sequence():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.ssm = StateSpace()

        def forward(self, x):
            return self.ssm(x)[0]

    class Stepwise(Whole):
        def forward(self, x):
            h = None
            for now in x.split(1, dim=1):
                _, h = self.ssm(now, h)

    x = torch.randn(3, 6, 2)
    whole, stepwise = Whole(), Stepwise()
    stepwise.load_state_dict(whole.state_dict())
    with torch.no_grad():
        expected = kann.States.from_padded(whole.ssm(x)[0])
    same(kann.record(stepwise, x, layer="ssm"), expected)
    same(kann.record(whole, x, layer="ssm"), expected)


def test_layers_that_return_objects_and_models_that_take_anything():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(3, 4)

        def forward(self, x):
            return Output(self.mix(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer()

        def forward(self, **batch):
            return self.layer(batch["x"]).last_hidden_state

    model, x = Net(), torch.randn(2, 5, 3)
    with torch.no_grad():
        expected = model(x=x, anything=None)
    same(kann.record(model, {"x": x, "anything": torch.zeros(2)}, layer="layer"), kann.States.from_padded(expected))


def test_an_output_without_a_time_axis():
    class Last(Tagger):
        def forward(self, words):
            return self.head(self.rnn(self.embed(words))[0][:, -1])

    with pytest.raises(KannError, match=re.escape("layer 'head' gave (4, 2) in a single call, without a time axis")):
        kann.record(Last(), torch.zeros(4, 3, dtype=torch.int64), layer="head")
    with pytest.raises(KannError, match="without a time axis"):
        kann.record(ResNet(), torch.randn(2, 3, 6, 6), layer="stem")

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x):
            return self.inner(x)

    with pytest.raises(KannError, match="layer 'inner' returns Tensor without real numbers"):
        kann.record(Words(), torch.zeros(4, 3, dtype=torch.int64), layer="inner")


def test_what_cannot_be_recorded_beside_the_states(model, words):
    with pytest.raises(KannError, match="has neither an initial state nor a cell state"):
        kann.record(model, words, layer="head", initial=True)
    with pytest.raises(KannError, match=r"layer '0' reads no .B, T, p. of numbers; pass inputs=False"):
        kann.record(nn.Sequential(nn.Flatten(2)), torch.randn(3, 5, 2, 2), layer="0", inputs=True)
    read = kann.record(model, words, layer="embed", inputs=True)  # whole numbers are inputs of width one
    np.testing.assert_array_equal(read.inputs[:, 0], np.concatenate(words))

    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(3):
                x = self.step(x)
            return x

    with pytest.raises(KannError, match="layer 'step' reads nothing but its own state"):
        kann.record(Alone(), torch.randn(3, 4), layer="step", inputs=True)


def test_a_users_block_around_attention_that_works_time_first():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)

        def forward(self, x):
            return x + self.attention(x, x, x)[0]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Around()

        def forward(self, x):
            return self.block(x.transpose(0, 1)).transpose(0, 1)

    model, x = Net(), torch.randn(3, 5, 4)
    with torch.no_grad():
        expected = kann.States.from_padded(model(x))
    same(kann.record(model, iter([x]), layer="block"), expected)
    same(kann.record(model, x, layer="block"), expected)
