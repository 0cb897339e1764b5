# ruff: noqa: D101, D102  # models in tests say what they are by their names
"""Recorded states of torch's fused modules and cells against a plain loop over single steps."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import kann
from kann.errors import KannError, PaddingWarning

# What torch says once of every projected LSTM on a processor.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

EXACT = 1e-6
"""Rounding of float32, some 1e-7 a step, of states of size 1 over some ten steps."""

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
            h, c = torch.zeros(out), torch.zeros(width)
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
                recorded = kann.record(model, batches, layer="rnn.*", state=state, lengths="lengths", inputs=True)
        else:
            recorded = kann.record(model, batches, layer="rnn.*", state=state, lengths="lengths", inputs=True)
        names = ["rnn.l0", "rnn.l0_reverse", "rnn.l1", "rnn.l1_reverse"]
        assert list(recorded) == (names if bidirectional else names[::2])
        check(recorded, module, data, state)


@settings(deadline=None, max_examples=25)
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
    recorded = kann.record(module, packed, layer="*", state=state, inputs=True)
    check(recorded, module, data, state, prefix="")


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_name_means_the_last_layer(kind, rng):
    module = make(kind, num_layers=3)
    data = sequences(rng)
    states = kann.record(Padding(module), data)
    check({"l2": states}, module, data, "h", prefix="")
    again = kann.record(Padding(module), data, layer="rnn.l2")
    np.testing.assert_array_equal(states.values, again.values)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_garbage_in_the_padding_changes_nothing(kind, bidirectional, rng):
    model = Padding(make(kind, num_layers=2, bidirectional=bidirectional, batch_first=True))
    data = sequences(rng)
    state = "hc" if kind == "lstm" else "h"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PaddingWarning)
        clean, *dirty = (
            kann.record(model, [padded(data, fill)], layer="rnn.*", state=state, lengths="lengths", inputs=True)
            for fill in (0.0, 1e6, float("nan"))
        )
    for name, other in ((name, part[name]) for part in dirty for name in clean):
        np.testing.assert_array_equal(clean[name].values, other.values)
        np.testing.assert_array_equal(clean[name].inputs, other.inputs)


def test_without_lengths_the_padding_is_recorded_as_the_network_saw_it(rng):
    module = make("gru", bidirectional=True, batch_first=True)
    data = sequences(rng)
    batch = padded(data)["x"]
    recorded = kann.record(module, batch)
    check(recorded, module, list(batch), "h", prefix="")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["h", "hc"])
def test_recorded_inputs_replayed_through_the_networks_own_step_give_the_recorded_states(kind, state, rng):
    module = make(kind, num_layers=2, bidirectional=True)
    if state == "hc" and not isinstance(module, nn.LSTM):
        state = "h"
    elif isinstance(module, nn.LSTM):
        state = "hc"
    packed = nn.utils.rnn.pack_sequence(sequences(rng), enforce_sorted=False)
    recorded = kann.record(module, packed, layer="*", state=state, inputs=True, initial=True)
    for name, states in recorded.items():
        step = kann.step_of(module, name)
        assert (step.dim, step.input_dim) == (states.dim, states.inputs.shape[1])
        x, y = states.pairs()
        drive = np.delete(states.inputs, states.starts, axis=0)
        with torch.no_grad():
            np.testing.assert_allclose(step(torch.tensor(x), torch.tensor(drive)), y, atol=EXACT)
        np.testing.assert_array_equal(states.inputs[states.starts], 0)


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
    recorded = kann.record(
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
    recorded = kann.record(model, data, layer="rnn.*", state="hc", inputs=True)
    check(recorded, model.rnn, data, "hc")


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


CELLS = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("state", ["h", "c", "hc"])
def test_calls_of_a_cell_become_the_time_axis(kind, state, rng):
    module, cell = make(kind), CELLS[kind](2, 4)
    cell.load_state_dict({key.removesuffix("_l0"): value for key, value in module.state_dict().items()})
    data = sequences(rng)
    if kind != "lstm" and state != "h":
        with pytest.raises(KannError, match=r"is for LSTMs; 'cell' .*gives 1 state"):
            kann.record(Loop(cell), data, state=state)
        return
    states = kann.record(Loop(cell), data, state=state, inputs=True, batch_size=2)
    check({"l0": states}, module, data, state, prefix="")
    started = kann.record(Loop(cell), data, state=state, initial=True)
    np.testing.assert_allclose(np.delete(started.values, started.starts, axis=0), states.values, atol=EXACT)
    np.testing.assert_array_equal(started.values[started.starts], 0)


def test_a_cell_that_starts_again_begins_new_sequences(rng):
    class Twice(Loop):
        def forward(self, x):
            return super().forward(x) - super().forward(-x)

    module, cell = make("gru"), nn.GRUCell(2, 4)
    cell.load_state_dict({key.removesuffix("_l0"): value for key, value in module.state_dict().items()})
    x = torch.tensor(rng.normal(size=(3, 5, 2)), dtype=torch.float32)
    check({"l0": kann.record(Twice(cell), x)}, module, [*x, *-x], "h", prefix="")


def test_a_cell_called_with_the_running_sequences_alone(rng):
    class Shrinking(nn.Module):
        """The longest sequence first; those that have ended are no longer passed."""

        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(2, 4)

        def forward(self, x, lengths):
            h = torch.zeros(len(x), 4)
            for t in range(int(lengths.max())):
                count = int((lengths > t).sum())
                h = self.cell(x[:count, t], h[:count])
            return h

    data = sorted(sequences(rng), key=len, reverse=True)
    model = Shrinking()
    shrunk = kann.record(model, [padded(data)], inputs=True, initial=True)
    loop = Loop(model.cell)
    plain = kann.record(loop, data, inputs=True, initial=True)
    np.testing.assert_array_equal(shrunk.lengths, plain.lengths)
    np.testing.assert_allclose(shrunk.values, plain.values, atol=EXACT)
    np.testing.assert_allclose(shrunk.inputs, plain.inputs, atol=EXACT)


class OwnCell(nn.Module):
    """A user's cell that takes the state first, reuses its buffer, and gives its state beside an output."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(7, 5)
        self.buffer = None

    def forward(self, h, x):
        if self.buffer is None or self.buffer.shape != h.shape:
            self.buffer = torch.empty_like(h)
        self.buffer.copy_(torch.tanh(self.mix(torch.cat([h, x], dim=1))))
        return self.buffer, torch.ones(3)


class OwnLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = OwnCell()

    def forward(self, x):
        h = torch.full((len(x), 5), 0.5)
        for now in x.unbind(1):
            h = self.step(h, now)[0].clone()
        return h


def test_a_users_own_cell_that_reuses_its_buffer(rng):
    model = OwnLoop()
    data = sequences(rng)
    states = kann.record(model, data, layer="step", inputs=True, initial=True)
    for i, sequence in enumerate(data):
        h = torch.full((5,), 0.5)
        path = [h]
        with torch.no_grad():
            for x in sequence:
                h = torch.tanh(model.step.mix(torch.cat([h, x])))
                path.append(h)
        np.testing.assert_allclose(states[i], torch.stack(path), atol=EXACT)
        inputs = states.inputs[int(states.starts[i]) :][: len(path)]
        np.testing.assert_array_equal(inputs, np.vstack([np.zeros(2), sequence]))


def test_two_arguments_like_the_state_are_told_apart_by_what_is_handed_on(rng):
    class Square(nn.Module):
        """Input and state have the same width."""

        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(2, 2, bias=False)

        def forward(self, x, h):
            return torch.tanh(self.mix(h) + x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Square()

        def forward(self, x):
            h = torch.zeros(len(x), 2)
            for now in x.unbind(1):
                h = self.cell(now, h)
            return h

    x = torch.tensor(rng.normal(size=(3, 6, 2)), dtype=torch.float32)
    model = Net()
    states = kann.record(model, x, layer="cell", inputs=True)
    np.testing.assert_array_equal(states.inputs, x.reshape(-1, 2))
    with pytest.raises(KannError, match="which argument of 'cell' is its state is not clear"):
        kann.record(model, x[:, :1].repeat(1, 2, 1) * 0, layer="cell", inputs=True)


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
    recorded = kann.record(model, data, layer="rnn.*")
    check(recorded, model.rnn, [2 * sequence for sequence in data], "h")


def test_left_padding_is_refused_where_the_network_reads_it_first(rng):
    model = Padding(make("gru", batch_first=True))
    mask = np.array([[0, 1, 1], [1, 1, 1]])
    with pytest.raises(KannError, match="padding of the batch is on the left, where 'rnn' reads it before"):
        kann.record(model, torch.zeros(2, 3, 2), lengths=mask)
    with pytest.raises(KannError, match="padding of the batch is on the left, where 'cell' reads it before"):
        kann.record(Loop(nn.GRUCell(2, 4)), torch.zeros(2, 3, 2), lengths=mask)


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
