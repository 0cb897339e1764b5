# ruff: noqa: D101, D102  # models in tests say what they are by their names
import copy
import doctest
import random
import re
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import kann
from kann.errors import KannError
from kann.recording import sinks
from kann.recording.running import evaluation_mode, to_device

EXACT = 1e-6
"""Rounding of float32 in a few layers of states of size 1."""


@pytest.fixture(autouse=True)
def _seed(request):
    torch.manual_seed(request.config.getoption("--seed"))


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


@pytest.fixture
def model():
    return Tagger()


@pytest.fixture
def words(rng):
    return [torch.tensor(rng.integers(0, 20, size=n)) for n in (4, 7, 1, 5, 3)]


def by_hand(model, words):
    """States of each sequence by itself, so that there is no padding."""
    with torch.no_grad():
        return kann.States.from_sequences([model.rnn(model.embed(w[None]))[0][0].numpy() for w in words])


def same(recorded, expected, atol=EXACT):
    np.testing.assert_array_equal(recorded.lengths, expected.lengths)
    np.testing.assert_allclose(recorded.values, expected.values, atol=atol, rtol=EXACT)


# data and lengths


class Words(IterableDataset):
    def __init__(self, words):
        self.words = words

    def __iter__(self):
        return iter(self.words)


def collated(samples):
    return {"words": pad_sequence(samples, batch_first=True), "n": torch.tensor([len(s) for s in samples])}


def forms(words):
    """The same sequences in every form that data may have."""
    padded = pad_sequence(words, batch_first=True)
    lengths = np.array([len(w) for w in words])
    mask = torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None]
    labels = torch.zeros(len(words))
    return {
        "list": (words, {}),
        "list of arrays": ([w.numpy() for w in words], {}),
        "tensor": (padded, {"lengths": lengths}),
        "tensor and list of lengths": (padded, {"lengths": lengths.tolist()}),
        "array and tensor of lengths": (padded.numpy(), {"lengths": torch.tensor(lengths)}),
        "mask": (padded, {"lengths": mask}),
        "loader": (DataLoader(TensorDataset(padded, labels), batch_size=2), {"lengths": lengths}),
        "loader with lengths": (
            DataLoader(TensorDataset(padded, torch.tensor(lengths), labels), batch_size=2),
            {"lengths": 1},
        ),
        "loader of a stream": (DataLoader(Words(words), batch_size=2, collate_fn=collated), {"lengths": "n"}),
        "batches by key": ([collated(words[:3]), collated(words[3:])], {"lengths": "n"}),
        "attention mask": ({"words": padded, "attention_mask": mask.long()}, {}),
        "key_padding_mask": ({"words": padded, "key_padding_mask": ~mask}, {"lengths": "key_padding_mask"}),
        "function of the batch": ((collated([w]) for w in words), {"lengths": lambda batch: batch["n"]}),
        "samples": (words, {"collate": collated, "lengths": "n"}),
        "dataset": (TensorDataset(padded), {"collate": lambda s: torch.stack([x for (x,) in s]), "lengths": lengths}),
        "own call": (
            [(labels, {"text": padded})],
            {"forward": lambda model, batch: model(batch[1]["text"]), "lengths": lambda batch: lengths},
        ),
    }


@pytest.mark.parametrize("form", forms([torch.zeros(1, dtype=torch.int64)] * 4))
@pytest.mark.parametrize("batch_size", [2, 32])
def test_data_and_lengths_in_every_form_give_the_same_states(model, words, form, batch_size):
    data, options = forms(words)[form]
    same(kann.record(model, data, batch_size=batch_size, **options), by_hand(model, words))


@pytest.mark.parametrize("form", ["list", "loader with lengths", "function of the batch", "samples", "attention mask"])
@pytest.mark.parametrize("count", [1, 3, 4, 99])
def test_max_sequences_stops_in_the_middle_of_a_batch(model, words, form, count):
    data, options = forms(words)[form]
    recorded = kann.record(model, data, batch_size=2, max_sequences=count, **options)
    same(recorded, by_hand(model, words[:count]))


def test_max_sequences_of_packed_data(rng):
    module = nn.GRU(2, 3)
    data = [torch.randn(n, 2) for n in (3, 5, 2)]
    packed = nn.utils.rnn.pack_sequence(data, enforce_sorted=False)
    same(kann.record(module, packed, max_sequences=2), kann.record(module, data[:2]))


def test_without_lengths_every_step_counts(model, words):
    padded = pad_sequence(words, batch_first=True)
    assert kann.record(model, padded).lengths.tolist() == [7] * 5


def test_a_time_first_module_by_itself_takes_time_first_tensors_and_lists():
    module = nn.GRU(2, 3)
    data = torch.randn(6, 5, 2)
    expected = kann.States.from_padded(module(data)[0].transpose(0, 1))
    same(kann.record(module, data, batch_size=2), expected)
    same(kann.record(module, list(data.transpose(0, 1)), batch_size=2), expected)


def test_packing_inside_the_model_needs_no_lengths(words):
    class Packing(Tagger):
        def forward(self, words, n):
            return self.rnn(pack_padded_sequence(self.embed(words), n, batch_first=True, enforce_sorted=False))

    model = Packing()
    batches = [collated(words[:3]), collated(words[3:])]
    same(kann.record(model, batches), by_hand(model, words))


def test_numbers_from_numpy_are_read_in_the_models_precision(rng):
    module = nn.GRU(2, 3, batch_first=True)
    data = rng.normal(size=(4, 5, 2))
    same(kann.record(module, data), kann.record(module, torch.tensor(data, dtype=torch.float32)))


# layers


def test_several_layers_at_once_give_a_dict(words):
    model = Tagger(layers=2)
    recorded = kann.record(model, words, layer=["embed", "rnn.l0", "rnn", "dropout"])
    assert list(recorded) == ["embed", "rnn.l0", "rnn", "dropout"]
    same(recorded["rnn"], by_hand(model, words))
    same(recorded["dropout"], recorded["rnn"])  # evaluation mode
    alone = kann.record(model, words, layer="rnn.l0")
    same(alone, recorded["rnn.l0"])


def test_patterns_match_part_by_part(words):
    model = nn.ModuleDict({"a": nn.GRU(3, 4, num_layers=2, bidirectional=True), "b": nn.LSTM(3, 4)})
    x = torch.randn(5, 2, 3)

    def run(model, x):
        return model["a"](x)[0], model["b"](x)[0]

    def names(layer):
        return list(kann.record(model, iter([x]), layer=layer, forward=run))

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


def test_left_padding_is_dropped_for_layers_that_mask_it():
    model, x = nn.Linear(3, 3), torch.randn(2, 4, 3)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    states = kann.record(model, {"input": x, "attention_mask": mask}, layer="")
    assert states.lengths.tolist() == [2, 4]
    same(states, kann.record(model, [x[0, 2:], x[1]], layer=""))


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
    recorded = kann.record(model, x, layer=["blocks.1", "blocks"], inputs=True)
    wide = kann.record(model, x, layer="blocks.0.convolution")
    with torch.no_grad():
        first = model.blocks[0](x.transpose(1, 2))
        same(recorded["blocks.1"], kann.States.from_padded(model.blocks[1](first).transpose(1, 2)))
        # The activation behind it works in place.
        raw = model.blocks[0].convolution(x.transpose(1, 2))
    same(recorded["blocks"], recorded["blocks.1"])
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
    same(kann.record(stepwise, x, layer="ssm"), kann.record(whole, x, layer="ssm"))


# depth


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


def test_a_residual_network_along_depth():
    model, x = ResNet().eval(), torch.randn(3, 3, 6, 6)
    states = kann.record(model, x, axis="depth", layer="stage1.*", embedding="stem", batch_size=2)
    with torch.no_grad():
        path = [model.stem(x)]
        for block in model.stage1:
            path.append(block(path[-1]))
    expected = torch.stack(path, dim=1)  # (3, 4, 4, 6, 6): picture, depth, channel, row, column
    assert (len(states), states.dim) == (3 * 36, 4)
    np.testing.assert_allclose(
        states.padded().reshape(3, 6, 6, 4, 4), expected.permute(0, 3, 4, 1, 2).numpy(), atol=EXACT
    )
    fewer = kann.record(model, x, axis="depth", layer="stage1.*", max_sequences=2)
    assert (len(fewer), set(fewer.lengths.tolist())) == (2 * 36, {3})


def test_blocks_of_different_width_are_listed_with_the_longest_run_of_equal_ones():
    with pytest.raises(KannError) as caught:
        kann.record(ResNet(), torch.randn(2, 3, 6, 6), axis="depth", layer=["stage1.*", "stage2.*"], embedding="stem")
    assert "stage1.2: 4 at 36, stage2.0: 6 at 9" in str(caught.value)
    assert "layer=['stem', 'stage1.0', 'stage1.1', 'stage1.2']" in str(caught.value)


def test_a_stack_without_positions_and_a_block_called_again_and_again():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(3):
                x = torch.tanh(self.block(x))
            return x

    model, x = Shared(), torch.randn(5, 4)
    states = kann.record(model, x, axis="depth", layer="block", embedding=True)
    with torch.no_grad():
        path = [x, model.block(x)]
        path += [model.block(torch.tanh(path[-1]))]
        path += [model.block(torch.tanh(path[-1]))]
    np.testing.assert_allclose(states.padded(), torch.stack(path, dim=1), atol=EXACT)


def test_what_depth_cannot_do(model, words):
    with pytest.raises(KannError, match="depth has one state, 'head'"):
        kann.record(model, words, axis="depth", layer="head")
    with pytest.raises(KannError, match="states along depth have no inputs"):
        kann.record(model, words, axis="depth", layer=["head"], inputs=True)
    with pytest.raises(KannError, match="blocks along depth are modules of their own"):
        kann.record(Tagger(layers=2), words, axis="depth", layer="rnn.*")
    with pytest.raises(KannError, match="pass axis='depth' with it"):
        kann.record(model, words, embedding="embed")
    with pytest.raises(KannError, match=r"the model's output .Tensor. holds no hidden_states"):
        kann.record(model, words, axis="depth")


# HuggingFace


@dataclass
class Output:
    """What such a model returns."""

    last_hidden_state: torch.Tensor
    hidden_states: tuple | None = None


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


@pytest.mark.parametrize("as_dict", [False, True])
def test_hidden_states_that_a_model_returns(as_dict, words):
    model = Pretrained(as_dict)
    padded = pad_sequence(words, batch_first=True)
    mask = torch.arange(7) < torch.tensor([len(w) for w in words])[:, None]
    data = {"input_ids": padded, "attention_mask": mask.long(), "labels": torch.zeros(5)}
    every = kann.record(model, data, layer="hidden_states.*", batch_size=2)
    assert list(every) == [f"hidden_states.{k}" for k in range(4)]
    for k in (0, 1, 2):
        same(every[f"hidden_states.{k + 1}"], kann.record(model, data, layer=f"blocks.{k}"))
    same(kann.record(model, data, layer="hidden_states.-1"), every["hidden_states.3"])
    depth = kann.record(model, data, axis="depth")
    along = kann.record(model, data, axis="depth", layer="blocks.*", embedding="embed")
    same(depth, along)
    assert (len(depth), depth.lengths[0]) == (sum(map(len, words)), 4)
    with pytest.raises(KannError, match=r"hidden_states.9 does not exist; the model returns 4 hidden states"):
        kann.record(model, data, layer="hidden_states.9")
    with pytest.raises(KannError, match="holds no hidden_states"):
        kann.record(model, data, layer="hidden_states.1", forward=lambda m, batch: m(batch["input_ids"]))
    with pytest.raises(KannError, match="hold its embedding already"):
        kann.record(model, data, axis="depth", embedding=True)


# into


@pytest.mark.parametrize("block", [1, 64, 10**6])
@pytest.mark.parametrize("driven", [False, True])
def test_moments_give_the_operator_that_recording_and_then_fitting_gives(driven, block, rng, monkeypatch):
    monkeypatch.setattr(sinks, "block_rows", lambda values, width: block)  # how many rows are used at a time
    module = nn.LSTM(3, 6, num_layers=2, batch_first=True).double()
    data = [torch.tensor(rng.normal(size=(n, 3))) for n in rng.integers(1, 30, size=14)]
    options = {"layer": "*", "state": "hc", "inputs": driven, "batch_size": 4}
    states, moments = (kann.record(module, data, into=into, **options) for into in ("states", "moments"))
    for name in ("l0", "l1"):
        full, streamed = (kann.fit(d[name], driven=driven, rank=8) for d in (states, moments))
        np.testing.assert_allclose(full.matrix, streamed.matrix, atol=1e-10)
        np.testing.assert_allclose(full.eigenvalues, streamed.eigenvalues, atol=1e-10)
        if driven:
            np.testing.assert_allclose(full.drive, streamed.drive, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_float64(dtype, rng):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(dtype)
    data = torch.randn(50, 9, 4, dtype=dtype)
    states, moments = (kann.record(model, data, layer="1", into=into) for into in ("states", "moments"))
    rows = torch.as_tensor(states.values).double()
    np.testing.assert_allclose(moments.hh, rows.T @ rows, rtol=1e-12)
    assert moments.rounding == torch.finfo(dtype).eps


def test_mixed_precision(rng):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 4, num_layers=2, batch_first=True)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.rnn(x)[0]

    model = Mixed()
    x = torch.randn(4, 6, 3)
    rough = kann.record(model, x, layer="rnn.*", state="hc")
    fine = kann.record(model.rnn, x, layer="*", state="hc")
    for name in ("l0", "l1"):
        # bfloat16 has 8 bits, and its roundings add up over steps and layers.
        values = torch.as_tensor(rough[f"rnn.{name}"].values).float()
        np.testing.assert_allclose(values, fine[name].values, atol=0.05)


def test_states_on_disk_equal_states_in_memory(tmp_path, words):
    model = Tagger(layers=2)
    path = tmp_path / "one.zarr"
    stored = kann.record(model, words, into=path, inputs=True, batch_size=2)
    held = kann.record(model, words, inputs=True, batch_size=2)
    same(kann.States.open(path), held)
    np.testing.assert_array_equal(np.asarray(stored.inputs[:]), held.inputs)
    several = kann.record(model, words, layer="rnn.*", into=str(tmp_path / "all"))
    assert list(several) == ["rnn.l0", "rnn.l1"]
    same(kann.States.open(tmp_path / "all" / "rnn.l1"), held)
    with pytest.raises(KannError, match="is taken, and several layers need a folder"):
        kann.record(model, words, layer="rnn.*", into=path)


class Failure(Exception):  # noqa: N818
    """Something that goes wrong in a model."""


class Stops(Tagger):
    """Raises in its third batch, after the layer that is recorded."""

    def __init__(self, error):
        super().__init__()
        self.error, self.calls = error, 0

    def forward(self, words):
        result = super().forward(words)
        self.calls += 1
        torch.rand(1)
        if self.calls == 3:
            raise self.error
        return result


@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
def test_what_was_written_before_an_error_stays_readable(error, tmp_path, words):
    model = Stops(error)
    with pytest.raises(error):
        kann.record(model, words, into=tmp_path / "part.zarr", batch_size=2)
    same(kann.States.open(tmp_path / "part.zarr"), by_hand(model, words[:4]))


@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
def test_moments_that_are_added_to_keep_what_was_finished(error, words):
    model, moments = Stops(error), kann.Moments()
    with pytest.raises(error):
        kann.record(model, words, into=moments, batch_size=2)
    expected = kann.record(model, words[:4], into="moments")
    assert (moments.sequences, moments.states) == (expected.sequences, expected.states)
    np.testing.assert_allclose(moments.xy, expected.xy, rtol=1e-5)
    assert kann.record(model, words[4:], into=moments) is moments
    np.testing.assert_allclose(moments.hh, kann.record(model, words, into="moments").hh, rtol=1e-5)


def test_a_batch_that_is_not_finite_costs_no_other():
    batches = [torch.zeros(2, 5, 3), torch.ones(2, 5, 3), torch.full((2, 5, 3), torch.nan)]
    moments = kann.Moments()
    with pytest.raises(KannError, match="sequence 4, step 0"):
        kann.record(nn.GRU(3, 4, batch_first=True), iter(batches), into=moments)
    assert moments.sequences == 4

    def stopping():
        yield from batches[1:]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kann.record(nn.GRU(3, 4, batch_first=True), stopping(), into=moments)
    assert moments.sequences == 6


def test_moments_of_several_layers_are_not_added_to_one(words):
    with pytest.raises(KannError, match="several layers cannot be added to one"):
        kann.record(nn.GRU(3, 4, num_layers=2), torch.zeros(2, 5, 3), layer="*", into=kann.Moments())


def test_a_store_that_stands_there_survives_a_recording_that_never_begins(tmp_path, model, words):
    kann.record(model, words, into=tmp_path / "a.zarr")
    with pytest.raises(KannError):
        kann.record(model, [], into=tmp_path / "a.zarr")
    with pytest.raises(Failure):
        kann.record(model, words, into=tmp_path / "a.zarr", forward=lambda m, b: (_ for _ in ()).throw(Failure))
    same(kann.States.open(tmp_path / "a.zarr"), by_hand(model, words))


# the model is as it was


def condition(model):
    """Everything about a model and the random numbers that recording could disturb."""
    return {
        "parameters": {name: (p.detach().clone(), p.requires_grad, p.grad) for name, p in model.named_parameters()},
        "buffers": {name: b.clone() for name, b in model.named_buffers()},
        "modes": [m.training for m in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in vars(m)) for m in model.modules()],
        # Python's own numbers have a test of their own: beartype, which checks types here, draws from them.
        "random": (torch.get_rng_state(), np.random.get_state()[1].copy()),  # noqa: NPY002
        "grad": (torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()),
    }


def equal(a, b):
    if isinstance(a, torch.Tensor | np.ndarray):
        return bool((torch.as_tensor(a) == torch.as_tensor(b)).all())
    if isinstance(a, dict):
        return all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


class Stateful(Stops):
    """Counts its calls in one buffer, puts a new tensor into another, and has a layer that is frozen in eval mode."""

    def __init__(self, error):
        super().__init__(error)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1))
        self.norm = nn.BatchNorm1d(3)
        self.norm.eval()
        self.head.weight.requires_grad_(False)

    def forward(self, words):
        self.count += 1
        self.last = self.count * 2
        np.random.rand()  # noqa: NPY002
        return super().forward(words)


@pytest.mark.parametrize("error", [None, Failure, KeyboardInterrupt])
@pytest.mark.parametrize("layer", ["rnn", "rnn.*", "embed"])
def test_model_hooks_modes_grads_and_random_numbers_are_as_before(error, layer, words):
    model = Stateful(error).train()
    model.norm.eval()
    if error is None:
        model.calls = 99
    before = copy.deepcopy(condition(model))
    loader = DataLoader(words, batch_size=1, shuffle=True)
    if error is None:
        kann.record(model, loader, layer=layer)
    else:
        with pytest.raises(error):
            kann.record(model, loader, layer=layer)
    after = condition(model)
    for key in before:
        assert equal(before[key], after[key]), key
    model(words[0][None]).sum().backward()  # gradients flow, and the same layers are trained


def test_pythons_random_numbers_are_as_before(model):
    before = random.getstate()
    with pytest.raises(Failure), evaluation_mode(model):
        random.random()  # noqa: S311
        raise Failure
    assert random.getstate() == before


def test_recording_leaves_the_outputs_of_the_network_alone(words):
    """Layers run one by one give the model what it would have had."""
    model = Tagger(layers=3).eval()
    seen = []
    kann.record(model, words, layer="rnn.*", forward=lambda m, batch: seen.append(m(batch)))
    with torch.no_grad():
        np.testing.assert_allclose(seen[0], model(pad_sequence(words, batch_first=True)), atol=EXACT)


def test_a_forward_that_was_replaced_before_is_put_back(model, words):
    plain = model.rnn.forward
    model.rnn.forward = lambda *args: plain(*args)
    mine = model.rnn.forward
    same(kann.record(model, words), by_hand(model, words))
    assert model.rnn.forward is mine


def test_a_compiled_model_is_recorded_as_it_was_written(model, words):
    compiled = torch.compile(model, backend="eager")
    same(kann.record(compiled, words), by_hand(model, words))


# errors


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
    with pytest.raises(KannError, match="no recurrent module of torch's; pass layer=, such as one of '0', '1'"):
        kann.record(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.zeros(2, 3, 2))
    model.second = nn.LSTMCell(2, 2)
    with pytest.raises(KannError, match="2 recurrent modules: 'rnn', 'second'; pass layer="):
        kann.record(model, words)


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


def test_lengths_that_do_not_fit(model, words):
    padded = pad_sequence(words, batch_first=True)
    for layer in ("rnn", "embed"):
        with pytest.raises(KannError, match=rf"lengths reach 9 \(sequence 1 of the batch\); layer '{layer}' gave 7"):
            kann.record(model, padded, lengths=[1, 9, 1, 1, 1], layer=layer)
    with pytest.raises(KannError, match="3 lengths and more sequences"):
        kann.record(model, padded, lengths=[1, 2, 3])
    with pytest.raises(KannError, match="6 lengths for 5 sequences"):
        kann.record(model, padded, lengths=[1] * 6)
    with pytest.raises(KannError, match="sequence 2 has length 0"):
        kann.record(model, padded, lengths=[1, 1, 0, 1, 1])
    with pytest.raises(KannError, match=re.escape("lengths are float64 of shape (5,)")):
        kann.record(model, padded, lengths=np.ones(5))
    with pytest.raises(KannError, match=r"lengths='m' is no key of the batch, which has .'n', 'words'."):
        kann.record(model, [collated(words)], lengths="m")
    with pytest.raises(KannError, match="mask of sequence 1 of the batch has holes: 2 real steps between 0 and 2"):
        kann.record(model, padded[:2, :3], lengths=[[1, 1, 1], [1, 0, 1]])
    with pytest.raises(KannError, match="layer 'rnn' gave 5 sequences; there are 2 lengths for this batch"):
        kann.record(model, [{"words": padded}], lengths=lambda batch: [1, 2])


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


def test_nothing_to_record(model):
    for data in ([], iter([]), DataLoader(Words([]))):
        with pytest.raises(KannError, match="the data hold no batches"):
            kann.record(model, data)


def test_data_that_cannot_be_used(model, words):
    padded = pad_sequence(words, batch_first=True)
    with pytest.raises(KannError, match="data is int; pass a tensor"):
        kann.record(model, 3)
    with pytest.raises(KannError, match="TensorDataset is a dataset of samples; pass DataLoader"):
        kann.record(model, TensorDataset(padded))
    with pytest.raises(KannError, match="DataLoader has its own collate_fn"):
        kann.record(model, DataLoader(words), collate=collated)
    with pytest.raises(KannError, match=re.escape("data[1] has shape (2, 3), data[0] has (2, 4)")):
        kann.record(model, [torch.zeros(2, 4), torch.zeros(2, 3)])
    with pytest.raises(KannError, match="do not hold equally many sequences"):
        kann.record(model, {"words": padded, "n": torch.zeros(3)})
    with pytest.raises(KannError, match=re.escape("keys ['a'] and the model takes ['words']")):
        kann.record(model, {"a": padded})
    with pytest.raises(KannError, match="batch_size=0 and max_sequences=None must be at least 1"):
        kann.record(model, padded, batch_size=0)
    with pytest.raises(KannError, match="has no axis of sequences"):
        kann.record(model, torch.tensor(3))
    with pytest.raises(KannError, match="state='x' is unknown"):
        kann.record(model, padded, state="x")
    with pytest.raises(KannError, match="axis='x' is unknown"):
        kann.record(model, padded, axis="x")


def test_axes_that_are_confused_are_noticed():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 3)

        def forward(self, x):
            return self.rnn(x)[0]

    data = torch.randn(9, 4, 2)  # nine sequences, which the model takes for nine steps
    with pytest.raises(KannError, match="batch holds 9 sequences and layer 'rnn' saw 4"):
        kann.record(TimeFirst(), data)
    model = TimeFirst()
    right = kann.record(model, data, collate=lambda samples: torch.stack(samples, dim=1), batch_size=5)
    assert right.lengths.tolist() == [4] * 9
    same(kann.record(model, iter([data.transpose(0, 1)])), right)


@pytest.mark.parametrize("into", ["states", "moments"])
@pytest.mark.parametrize("block", [1, 10**6])
def test_a_model_that_diverges_says_in_which_sequence_and_step(into, block, monkeypatch):
    monkeypatch.setattr(sinks, "block_rows", lambda values, width: block)
    model = nn.Sequential(nn.Identity())
    data = torch.randn(7, 5, 2)
    data[6, 3, 1] = torch.nan
    with pytest.raises(KannError, match="states of layer '0' hold nan at sequence 6, step 3, unit 1"):
        kann.record(model, data, layer="0", into=into, batch_size=2)
    data[2, 4, 0] = torch.inf
    with pytest.raises(KannError, match="states of layer '0' hold inf at sequence 1, step 1, unit 0"):
        kann.record(model, [*data[1:2], data[2, 3:]], layer="0", into=into, batch_size=1)


def test_what_cannot_be_recorded_beside_the_states(model, words):
    with pytest.raises(KannError, match="has neither an initial state nor a cell state"):
        kann.record(model, words, layer="head", initial=True)
    with pytest.raises(KannError, match=r"layer 'embed' reads no .B, T, p. of real numbers"):
        kann.record(model, words, layer="embed", inputs=True)

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


# steps and readouts


@pytest.mark.parametrize("cell", [nn.RNNCell(3, 4, nonlinearity="relu"), nn.GRUCell(3, 4), nn.LSTMCell(3, 4)])
def test_a_step_is_the_cells_own_and_can_be_differentiated(cell):
    step = kann.step_of(nn.ModuleDict({"cell": cell}))
    h, x = torch.randn(5, step.dim), torch.randn(5, 3)
    state = tuple(h.chunk(2, dim=1)) if isinstance(cell, nn.LSTMCell) else h
    result = cell(x, state)
    expected = torch.cat(result, dim=1) if isinstance(result, tuple) else result
    torch.testing.assert_close(step(h, x), expected)
    jacobian = torch.func.vmap(torch.func.jacrev(step))(h, x)
    slow = torch.stack([torch.autograd.functional.jacobian(lambda a, b=x[i]: step(a, b), h[i]) for i in range(5)])
    torch.testing.assert_close(jacobian, slow)
    assert step(h.double(), x).dtype == torch.float64
    with pytest.raises(KannError, match=re.escape("step of 'cell' takes states")):
        step(h[:, 1:], x)


def test_a_step_follows_the_weights():
    cell = nn.GRUCell(2, 3)
    step = kann.step_of(cell)
    h, x = torch.randn(1, 3), torch.randn(1, 2)
    before = step(h, x)
    with torch.no_grad():
        cell.weight_hh += 1
    assert not torch.equal(before, step(h, x))
    assert repr(step) == "Step('', 3 units, 2 inputs)"


def test_steps_of_what_is_not_one_recurrent_layer():
    both = nn.ModuleDict({"rnn": nn.GRU(2, 3, bidirectional=True), "head": nn.Linear(6, 2)})
    with pytest.raises(KannError, match=re.escape("layer=None means ['rnn.l0', 'rnn.l0_reverse']; pass one of them")):
        kann.step_of(both)
    with pytest.raises(KannError, match="'head' is Linear, not one of torch's recurrent modules"):
        kann.step_of(both, "head")


def test_readouts_are_found_or_named(model):
    assert kann.readout_of(model) is model.head
    model.reader = nn.Linear(5, 3)
    with pytest.raises(KannError, match="read the 5 units of 'rnn': 'head', 'reader'; pass name="):
        kann.readout_of(model)
    assert kann.readout_of(model, name="reader") is model.reader
    with pytest.raises(KannError, match=r"'hidden_states.1' is no module"):
        kann.readout_of(model, name="hidden_states.1")

    deep = nn.ModuleDict(
        {
            "before": nn.Linear(6, 6),
            "rnn": nn.LSTM(6, 4, bidirectional=True, proj_size=3),
            "head": nn.Sequential(nn.Dropout(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
        }
    )
    assert kann.readout_of(deep) is deep["head"]
    assert kann.readout_of(deep, "rnn.l0") is deep["head"]
    plain = nn.Sequential(nn.GRU(2, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    with pytest.raises(KannError, match="read the 3 units of '0': '1', '2'; pass name="):
        kann.readout_of(plain)
    assert kann.readout_of(plain, name="2") is plain[2]
    with pytest.raises(KannError, match="read the 3 units of 'rnn': none; pass name="):
        kann.readout_of(nn.ModuleDict({"rnn": nn.GRU(2, 3)}))
    with pytest.raises(KannError, match="Linear is not recurrent, so its width is unknown"):
        kann.readout_of(model, "head")


def test_the_examples_in_the_documentation_run():
    page = Path(__file__).parents[2] / "docs" / "recording.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 10
    assert failed == 0


class TimeFirst(nn.Module):
    """Reads (B, T) words and works on (T, B, d) inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.norm = nn.Embedding(20, 3), nn.GRU(3, 4), nn.LayerNorm(4)

    def forward(self, words: Tensor) -> Tensor:
        return self.norm(self.rnn(self.embed(words).transpose(0, 1))[0])


def test_layers_that_work_time_first_are_recorded_sequence_by_sequence_from_a_loader():
    words = torch.randint(20, (6, 9))
    from_loader = kann.record(TimeFirst(), DataLoader(words, batch_size=6), layer=["rnn", "norm"])
    assert [states.lengths.tolist() for states in from_loader.values()] == [[9] * 6] * 2


class TwoRuns(nn.Module):
    """Runs its cell over x and over x + 1, each time from a learned initial state."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.start = cell, nn.Parameter(torch.randn(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        for shift in (0, 1):
            h = self.start.expand(len(x), -1)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t] + shift, h)
        return h


class OwnCell(nn.Module):
    """A cell that is none of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(7, 4)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.mix(torch.cat([x, h], dim=1)))


@pytest.mark.parametrize("cell", [nn.GRUCell(3, 4), OwnCell()])
def test_two_runs_from_a_learned_initial_state_are_two_sequences(cell):
    states = kann.record(TwoRuns(cell), torch.randn(4, 6, 3), layer="cell")
    assert states.lengths.tolist() == [6] * 8


def test_lists_of_numbers_are_sequences_and_lists_of_three_axes_are_batches():
    model = nn.Sequential(nn.Embedding(10, 3), nn.GRU(3, 4, batch_first=True))
    assert kann.record(model, [[1, 2, 3], [4, 5]]).lengths.tolist() == [3, 2]
    batches = [torch.randn(2, 5, 3), torch.randn(3, 4, 3)]
    assert kann.record(nn.GRU(3, 4, batch_first=True), batches).lengths.tolist() == [5, 5, 4, 4, 4]
    assert kann.record(nn.GRU(3, 4, batch_first=True), iter([b.numpy() for b in batches])).lengths.sum() == 22


def test_a_mistyped_destination_makes_no_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KannError, match="record to a folder"):
        kann.record(nn.GRU(2, 3), torch.randn(4, 5, 2), into="s3://bucket/states.zarr")
    with pytest.raises(KannError, match=r"into='moment' is neither 'states' nor 'moments'; .* such as moment\.zarr"):
        kann.record(nn.GRU(3, 4), torch.randn(2, 5, 3), into="moment")
    assert not list(tmp_path.iterdir())


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


def test_lengths_beside_packed_sequences_are_theirs():
    data = [torch.randn(n, 2) for n in (2, 4, 3)]
    packed = nn.utils.rnn.pack_sequence(data, enforce_sorted=False)
    model = nn.GRU(2, 3)
    expected = kann.record(model, packed)
    for lengths in (0, [2, 4, 3]):
        same(kann.record(model, [(packed, torch.zeros(3))], lengths=lengths), expected)
    with pytest.raises(KannError, match="a batch of type str holds no tensor"):
        kann.record(model, ["words"], lengths=[2, 4, 3], forward=lambda m, batch: m(packed))


def test_dropout_between_layers_while_the_model_trains_in_its_forward():
    class Sampling(nn.Module):
        """Keeps its dropout, to draw many answers."""

        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 8, num_layers=2, dropout=0.9, batch_first=True)

        def forward(self, x):
            self.rnn.train()
            return self.rnn(x)[0]

    model = Sampling()
    recorded = kann.record(model, torch.randn(2, 6, 3), layer="rnn.*", inputs=True)
    dropped = recorded["rnn.l1"].inputs == 0
    assert 0.7 < dropped.mean() < 1
    np.testing.assert_allclose(recorded["rnn.l1"].inputs[~dropped], 10 * recorded["rnn.l0"].values[~dropped], rtol=1e-5)


@pytest.mark.parametrize("initial", [2, 3])
def test_a_module_called_with_another_number_of_sequences_begins_new_ones(initial):
    class Beams(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            _, h = self.rnn(x)
            return self.rnn(x.repeat(2, 1, 1), h.repeat(1, 2, 1))[0]

    states = kann.record(Beams(), torch.randn(initial, 5, 3))
    assert states.lengths.tolist() == [5] * (3 * initial)


def test_errors_of_the_model_and_of_the_moments_come_through(words):
    def broken(model, batch):
        raise RuntimeError("out of ideas")

    with pytest.raises(RuntimeError, match="out of ideas"):
        kann.record(Tagger(), words, forward=broken)
    huge = torch.full((2, 3, 2), 1e200, dtype=torch.float64)
    with pytest.raises(KannError, match="squares of the states exceed float64"):
        kann.record(nn.Identity(), huge, layer="", into="moments")
    with pytest.raises(KannError, match="block 'embed' has Tensor without real numbers"):
        kann.record(
            nn.ModuleDict({"embed": nn.Identity(), "rest": nn.Identity()}),
            words,
            axis="depth",
            layer=["embed", "rest"],
            forward=lambda m, batch: m["rest"](m["embed"](batch)),
        )
    flat = Output(torch.zeros(2, 3), (torch.zeros(2, 3),))
    with pytest.raises(KannError, match=re.escape("layer 'hidden_states.0' gave (2, 3), without a time axis")):
        kann.record(nn.Linear(1, 1), [words], layer="hidden_states.0", forward=lambda m, batch: flat)
    with pytest.raises(KannError, match=r"'hidden_states\.0' is no module; pass name="):
        kann.readout_of(Tagger(), "hidden_states.0")


def test_moments_of_another_width_are_refused_at_once():
    moments = kann.Moments().update(np.random.default_rng(0).normal(size=(2, 5, 7)))
    seen = []

    def batches():
        for number in range(50):
            seen.append(number)
            yield torch.randn(64, 100, 2)

    with pytest.raises(KannError, match="moments of 4 units and 0 inputs cannot be added to moments of 7"):
        kann.record(nn.GRU(2, 4, batch_first=True), batches(), into=moments)
    assert len(seen) < 50
    assert moments.states == 10
