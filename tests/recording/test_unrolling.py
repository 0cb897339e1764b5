"""Every layer and direction of torch's fused modules, against a plain loop over single steps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence

import kann
from kann.errors import KannError, PaddingWarning
from tests.recording.models import EXACT, same
from tests.recording.single_steps import KINDS, Packing, Padding, check, make, padded, reference, sequences

# What torch says once of every projected LSTM on a processor.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("form", [Padding, Packing])
def test_every_layer_and_direction_equals_a_loop_of_single_steps(kind, bidirectional, batch_first, form, rng):
    module = make(kind, num_layers=2, bidirectional=bidirectional, batch_first=batch_first)
    data = sequences(rng)
    model = form(module)
    batches = [padded(data[:2]), padded(data[2:])]
    for state in ("h", "c", "hc") if "lstm" in kind or kind == "projected" else ("h",):
        if form is Padding and bidirectional:
            with pytest.warns(PaddingWarning, match="reads the padding"):
                recorded = kann.recording.record_layers(
                    model, batches, layer="rnn.*", state=state, lengths="lengths", inputs=True
                )
        else:
            recorded = kann.recording.record_layers(
                model, batches, layer="rnn.*", state=state, lengths="lengths", inputs=True
            )
        names = ["rnn.l0", "rnn.l0_reverse", "rnn.l1", "rnn.l1_reverse"]
        assert list(recorded) == (names if bidirectional else names[::2])
        check(recorded, module, data, state)


@settings(max_examples=25)
@given(
    kind=st.sampled_from(list(KINDS)),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 99),
    state=st.sampled_from(["h", "hc"]),
)
def test_packed_sequences_of_any_lengths_depth_and_bias(kind, layers, bidirectional, bias, seed, state):
    module = make(kind, num_layers=layers, bidirectional=bidirectional, bias=bias)
    data = sequences(np.random.default_rng(seed), count=4, longest=6)
    state = state if isinstance(module, nn.LSTM) else "h"
    packed = nn.utils.rnn.pack_sequence(data, enforce_sorted=False)
    recorded = kann.recording.record_layers(module, packed, layer="*", state=state, inputs=True)
    check(recorded, module, data, state, prefix="")


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_name_means_the_last_layer(kind, rng):
    module = make(kind, num_layers=3)
    data = sequences(rng)
    states = kann.record(Padding(module), data)
    check({"l2": states}, module, data, "h", prefix="")
    check({"l2": kann.record(Padding(module), data, layer="rnn.l2")}, module, data, "h", prefix="")


@pytest.mark.parametrize("form", ["padded", "packed", "single"])
def test_initial_states_that_the_model_passes_are_used_and_can_be_included(form, rng):
    module = make("lstm", num_layers=2, bidirectional=form == "packed")
    data = sequences(rng, count=3)
    directions = 2 if module.bidirectional else 1
    hx = tuple(torch.tensor(rng.normal(size=(2 * directions, 3, 4)), dtype=torch.float32) for _ in range(2))
    if form == "single":
        data, hx = data[:1], tuple(part[:, 0] for part in hx)
        batch = data[0]
    else:
        batch = nn.utils.rnn.pad_sequence(data) if form == "padded" else nn.utils.rnn.pack_sequence(data, False)
    lengths = None if form != "padded" else np.array([len(s) for s in data])
    recorded = kann.recording.record_layers(
        module, iter([batch]), layer="*", state="hc", initial=True, lengths=lengths, forward=lambda m, x: m(x, hx)
    )
    for i, sequence in enumerate(data):
        own = tuple(part if form == "single" else part[:, i] for part in hx)
        with torch.no_grad():
            expected = reference(module, sequence, own)
        for at, (name, states) in enumerate(recorded.items()):
            np.testing.assert_allclose(states[i][1:], expected[name]["hc"], atol=EXACT)
            np.testing.assert_array_equal(states[i][0], torch.cat([part[at] for part in own]))


def test_one_sequence_without_a_batch_axis(rng):
    module = make("gru")
    (sequence,) = sequences(rng, count=1)
    check({"l0": kann.record(module, sequence)}, module, [sequence], "h", prefix="")
    batch_first = make("gru", batch_first=True)
    check({"l0": kann.record(batch_first, sequence)}, batch_first, [sequence], "h", prefix="")


def test_an_encoder_called_twice_gives_the_sequences_of_both_calls(rng):
    class Siamese(Padding):
        def forward(self, x):
            return self.rnn(x)[0] - self.rnn(-x)[0]

    model = Siamese(make("gru", batch_first=True))
    x = torch.tensor(rng.normal(size=(3, 5, 2)), dtype=torch.float32)
    states = kann.record(model, x)
    check({"l0": states}, model.rnn, [*x, *-x], "h", prefix="")


def test_a_bidirectional_encoder_called_twice_gives_the_sequences_of_both_calls(rng):
    class Siamese(Padding):
        def forward(self, x):
            _, h = self.rnn(x)
            return self.rnn(-x, h * 0)[0]

    model = Siamese(make("gru", bidirectional=True, batch_first=True))
    x = torch.tensor(rng.normal(size=(3, 5, 2)), dtype=torch.float32)
    check(kann.recording.record_layers(model, x), model.rnn, [*x, *-x], "h")


@pytest.mark.parametrize("size", [1, 2])
def test_a_module_called_step_by_step_or_in_stretches_is_one_sequence(size, rng):
    class Decoder(Padding):
        def forward(self, x):
            h, outputs = None, []
            for part in x.split(size, dim=1):
                y, h = self.rnn(part, h)
                outputs.append(y)
            return torch.cat(outputs, dim=1)

    model = Decoder(make("lstm", num_layers=2, batch_first=True))
    data = sequences(rng, count=4, longest=8)
    recorded = kann.recording.record_layers(model, data, layer="rnn.*", state="hc", inputs=True)
    check(recorded, model.rnn, data, "hc")


def test_a_module_changed_in_place_afterwards_is_recorded_as_it_was(rng):
    class InPlace(Padding):
        def forward(self, x):
            y = self.rnn(x)[0]
            x.zero_()
            return y.mul_(0)

    model = InPlace(make("gru", batch_first=True))
    data = sequences(rng)
    check({"l0": kann.record(model, data, inputs=True)}, model.rnn, data, "h", prefix="")


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_subclass_and_weights_under_a_parametrization_are_recorded(kind, rng):
    class Own(type(make(kind))):
        def forward(self, x):
            return super().forward(2 * x)

    torch.manual_seed(0)
    model = Padding(Own(2, 4, num_layers=2, batch_first=True))
    data = sequences(rng)
    recorded = kann.recording.record_layers(model, data, layer="rnn.*")
    check(recorded, model.rnn, [2 * sequence for sequence in data], "h")


def test_cell_states_are_for_lstms():
    with pytest.raises(KannError, match="state='hc' is for LSTMs; 'rnn' is GRU"):
        kann.record(Padding(make("gru")), torch.zeros(2, 3, 2), state="hc")


def test_packed_data_with_a_packed_sequence_inside_a_batch(rng):
    class Takes(Padding):
        def forward(self, packed: PackedSequence):
            return self.rnn(packed)[0]

    data = sequences(rng)
    model = Takes(make("lstm"))
    loader = [(nn.utils.rnn.pack_sequence(data, enforce_sorted=False), torch.zeros(len(data)))]
    check({"l0": kann.record(model, loader, state="c")}, model.rnn, data, "c", prefix="")


def runs(model, x):
    """Whether torch can run a model on this processor."""
    try:
        with torch.no_grad():
            model(x)
    except RuntimeError:
        return False
    return True


def test_mixed_precision(monkeypatch):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 4, num_layers=2, batch_first=True)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.rnn(x)[0]

    model = Mixed()
    x = torch.randn(4, 6, 3)
    # oneDNN has LSTMs in bfloat16 for some processors alone, torch itself for all.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", runs(model, x))
    rough = kann.recording.record_layers(model, x, layer="rnn.*", state="hc")
    with torch.no_grad():
        exact = [reference(model.rnn, sequence) for sequence in x]
    for name in ("l0", "l1"):
        # bfloat16 has 8 bits, and its roundings add up over steps and layers.
        values = torch.as_tensor(rough[f"rnn.{name}"].values).float()
        np.testing.assert_allclose(values, torch.cat([path[name]["hc"] for path in exact]), atol=0.05)


def test_dropout_between_layers_while_the_model_trains_in_its_forward():
    class Sampling(nn.Module):
        """Keeps its dropout, to draw many answers."""

        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 8, num_layers=2, dropout=0.9, batch_first=True)

        def forward(self, x):
            self.rnn.train()
            return self.rnn(x)[0]

    model, x = Sampling(), torch.randn(2, 6, 3)
    recorded = kann.recording.record_layers(model, x, layer="rnn.*", inputs=True)
    with torch.no_grad():
        lower = torch.cat([reference(model.rnn, sequence)["l0"]["h"] for sequence in x]).numpy()
    np.testing.assert_allclose(recorded["rnn.l0"].values, lower, atol=EXACT)
    dropped = recorded["rnn.l1"].inputs == 0
    assert 0.7 < dropped.mean() < 1
    # One unit in ten is kept, and made ten times as large for it.
    np.testing.assert_allclose(recorded["rnn.l1"].inputs[~dropped], 10 * lower[~dropped], atol=10 * EXACT)


@pytest.mark.parametrize("initial", [2, 3])
def test_a_module_called_with_another_number_of_sequences_begins_new_ones(initial):
    class Beams(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            _, h = self.rnn(x)
            return self.rnn(x.repeat(2, 1, 1), h.repeat(1, 2, 1))[0]

    model, x = Beams(), torch.randn(initial, 5, 3)
    states = kann.record(model, x)
    assert states.lengths.tolist() == [5] * (3 * initial)
    with torch.no_grad():
        first, h = model.rnn(x)
        second = model.rnn(x.repeat(2, 1, 1), h.repeat(1, 2, 1))[0]
    same(states, kann.States.from_padded(torch.cat([first, second])))
