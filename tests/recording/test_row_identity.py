# ruff: noqa: D102  # models in tests say what they are by their names
"""Which row belongs to which sequence and step: models that sort, turn round, restart, mask or keep their states."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import kann
from kann.errors import KannError, SequenceWarning
from tests.recording.models import EXACT, same
from tests.recording.single_steps import sequences


def alone(model, data, **where):
    """The states of each sequence run by itself."""
    return kann.States.from_sequences([kann.record(model, [x], batch_size=1, **where)[0] for x in data])


class Sorts(nn.Module):
    """Sorts its batch by length before it packs it, as torch once required."""

    def __init__(self, layers=1, both=False):
        super().__init__()
        self.read = nn.Linear(2, 3)
        self.rnn = nn.GRU(3, 4, num_layers=layers, bidirectional=both, batch_first=True)

    def forward(self, x, lengths):
        lengths, order = torch.as_tensor(lengths).sort(descending=True)
        packed = pack_padded_sequence(self.read(x)[order], lengths, batch_first=True)
        output, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return output[order.argsort()]


@pytest.mark.parametrize("options", [{}, {"layers": 2}, {"layers": 2, "both": True}])
@pytest.mark.parametrize("batch_size", [4, 16])
def test_a_model_that_sorts_its_batch_gives_rows_in_the_order_of_the_data(options, batch_size, rng):
    model, data = Sorts(**options), sequences(rng, count=16)
    found = kann.recording.record_layers(model, data, layer="rnn.*", batch_size=batch_size, inputs=True)
    expected = kann.recording.record_layers(model, data, layer="rnn.*", batch_size=1, inputs=True)
    for name, states in found.items():
        same(states, expected[name])
        np.testing.assert_allclose(states.inputs, expected[name].inputs, atol=EXACT)


def test_groups_and_limits_are_of_the_sequences_of_the_data(rng):
    model, data = Sorts(), sequences(rng, count=10)
    labels = [len(x) for x in data]
    for moments, length in zip(
        kann.recording.record_grouped_moments(model, data, groups=labels, batch_size=5),
        dict.fromkeys(labels),
        strict=True,
    ):
        assert moments.states == labels.count(length) * length
    some = kann.record(model, data, batch_size=8, max_sequences=3)
    assert some.lengths.tolist() == labels[:3]
    same(some, alone(model, data[:3]))


class SortsPadded(nn.Module):
    """Sorts its batch, and runs a cell over the padding too."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, 4)

    def forward(self, x, lengths):
        order = torch.as_tensor(lengths).argsort()
        h, path = None, []
        for now in x[order].unbind(1):
            h = self.cell(now, h)
            path.append(h)
        return torch.stack(path, dim=1)[order.argsort()]


def test_lengths_follow_the_sequences_of_a_padded_batch_that_is_sorted(rng):
    model, data = SortsPadded(), sequences(rng, count=9)
    same(kann.record(model, data, batch_size=5), alone(model, data))


def test_a_fixed_permutation_is_seen_too(rng):
    class Rolls(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x):
            return self.rnn(x.roll(2, dims=0) * 2)[0]

    model, x = Rolls(), torch.randn(7, 5, 3)
    np.testing.assert_allclose(kann.record(model, x, state="h").padded(), model.rnn(2 * x)[0].detach(), atol=EXACT)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 20])
@pytest.mark.parametrize("arrange", [lambda x: x.flip(0), lambda x: torch.cat([x[:-2], x[-2:].flip(0)])])
def test_sequences_that_change_places_among_themselves_are_seen(count, arrange):
    """Which sequences are changed may be the same set before and after they change places."""

    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            return arrange(self.rnn(arrange(2 * x))[0])

    model, x = Turns(), torch.randn(count, 9, 3)
    np.testing.assert_allclose(kann.record(model, x).padded(), model(x).detach(), atol=EXACT)


class Backwards(nn.Module):
    """Reads its sequences from the end."""

    def __init__(self, *, both=False):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(9, 3), nn.GRU(3, 4, batch_first=True, bidirectional=both)

    def forward(self, words):
        return self.rnn(self.embed(words.flip(1)))[0][:, -1]


def test_a_model_that_reads_from_the_end_gives_states_that_say_so():
    model, words = Backwards(), torch.randint(1, 9, (12, 7))
    states = kann.record(model, words)
    assert states.reverse
    movers = kann.movers(kann.fit(states), states, tokens=[[str(int(word)) for word in own] for own in words])
    reads = kann.record(model, words, inputs=True).inputs.reshape(12, 7, 3)
    np.testing.assert_array_equal(reads, model.embed(words.flip(1)).detach())
    assert movers is not None
    both = kann.recording.record_layers(Backwards(both=True), words, layer="rnn.*")
    assert {name: states.reverse for name, states in both.items()} == {"rnn.l0": True, "rnn.l0_reverse": False}


def test_padding_that_is_read_first_is_an_error():
    words = [torch.randint(1, 9, (n,)) for n in (3, 7, 5)]
    with pytest.raises(KannError, match=r"reads its sequences from the end .*padding first"):
        kann.record(Backwards(), words)


def test_a_loop_that_runs_from_the_end_is_seen_too():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            h = None
            for t in reversed(range(x.shape[1])):
                h = self.cell(x[:, t], h)
            return h

    assert kann.record(Loop(), torch.randn(8, 6, 3)).reverse


def test_steps_in_any_other_order_are_warned_of():
    class Shuffles(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            return self.rnn(x[:, [5, 4, 6, 3, 1, 2, 0, 7]] * 1)[0]

    with pytest.warns(SequenceWarning, match="another order"):
        kann.record(Shuffles(), torch.randn(40, 8, 3))


class Restarts(nn.Module):
    """Runs its cell over windows of four steps, each from a state that is not zero."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.cell, self.start = kind, nn.GRUCell(3, 4), nn.Linear(3, 4)
        self.fixed = nn.Parameter(torch.randn(6, 4))

    def forward(self, x):
        outputs = []
        for i, window in enumerate(x.split(4, dim=1)):
            h = {
                "input": lambda window=window: self.start(window.mean(dim=1)),
                "learned": lambda: self.fixed[0].expand(len(x), -1),
                "different": lambda i=i: self.fixed[i].expand(len(x), -1),
                "random": lambda: torch.randn(len(x), 4),
            }[self.kind]()
            for now in window.unbind(1):
                h = self.cell(now, h)
            outputs.append(h)
        return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("kind", ["input", "learned", "different", "random"])
def test_a_loop_that_starts_again_from_a_state_begins_new_sequences(kind):
    model, x = Restarts(kind), torch.randn(20, 24, 3)
    states = kann.record(model, x)
    assert set(states.lengths.tolist()) == {4}
    assert len(states) == 120
    if kind != "random":
        last = states.values[states.starts + 3].reshape(6, 20, 4).transpose(1, 0, 2)
        np.testing.assert_allclose(last, model(x).detach(), atol=EXACT)


class Shares(nn.Module):
    """Two states that take turns in one cell."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        h, k = x.new_zeros(len(x), 4), x.new_ones(len(x), 4)
        for now in x.unbind(1):
            h = self.cell(now, h)
            k = self.cell(-now, k)
        return h + k


def test_one_cell_with_two_states_in_a_loop():
    cell = nn.GRUCell(3, 4)
    x = torch.randn(10, 24, 3)
    states = kann.record(Shares(cell), x)
    assert states.lengths.tolist() == [24] * 20
    with torch.no_grad():
        np.testing.assert_allclose(states[3][-1] + states[13][-1], Shares(cell)(x)[3], atol=EXACT)


class Masks(nn.Module):
    """Mixes what its cell gives with the state before, as gates outside of a cell do."""

    def __init__(self, how, cell=None):
        super().__init__()
        self.how, self.cell, self.gate = how, cell or nn.GRUCell(3, 4), nn.Linear(3, 1)

    def forward(self, x):
        h, path = x.new_zeros(len(x), 4), []
        for now in x.unbind(1):
            new, g = self.cell(now, h), torch.sigmoid(self.gate(now))
            if self.how == "soft":
                h = g * new + (1 - g) * h
            elif self.how == "hard":
                h = torch.where(g > 0.5, new, h)
            else:
                h = h.clone()
                active = (g > 0.5).flatten()
                h[active] = new[active]
            path.append(h)
        return torch.stack(path, dim=1)


@pytest.mark.parametrize("how", ["soft", "hard", "in place"])
def test_states_are_those_that_pass_on_where_the_model_mixes_them(how):
    model, x = Masks(how), torch.randn(30, 9, 3)
    states = kann.record(model, x, batch_size=16)
    np.testing.assert_allclose(states.padded(), model(x).detach(), atol=EXACT)


def test_gates_that_are_open_until_the_last_step_leave_the_last_state():
    class Latch(Masks):
        def forward(self, x):
            h, path = x.new_zeros(len(x), 4), []
            for now in x.unbind(1):
                new = self.cell(now, h)
                h = torch.where(now[:, :1] > 0, new, h)
                path.append(h)
            return torch.stack(path, dim=1)

    model, x = Latch("hard"), torch.randn(2, 3, 3).abs()
    x[:, -1] *= -1
    states = kann.record(model, x)
    np.testing.assert_allclose(states.padded(), model(x).detach(), atol=EXACT)


def test_mixed_states_of_single_steps_are_warned_of_once_longer_sequences_show_that_they_are_mixed():
    batches = [torch.randn(4, 1, 3), torch.randn(4, 6, 3)]
    with pytest.warns(SequenceWarning, match="earlier batches of one step"):
        kann.record(Masks("soft"), iter(batches))
    model = Masks("soft")
    states = kann.record(model, iter(batches[::-1]))
    np.testing.assert_allclose(states[4:].padded(), model(batches[0]).detach(), atol=EXACT)


def test_an_exchange_of_sequences_is_not_taken_for_reading_from_the_end():
    """Two sequences of four steps, changed at their second and third step, look alike in both cases."""

    class Exchanges(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x.flip(0), lengths.flip(0), batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0].flip(0)

    model, data = Exchanges(), [torch.randn(n, 3) for n in (3, 3, 1, 4, 1, 4)]
    batches = [
        {"x": nn.utils.rnn.pad_sequence(part, batch_first=True), "lengths": torch.tensor([len(x) for x in part])}
        for part in (data[:3], data[3:])
    ]
    states = kann.record(model, batches, lengths="lengths")
    assert not states.reverse
    for own, x in zip(states, data, strict=True):
        np.testing.assert_allclose(own, model.rnn(x[None])[0][0].detach(), atol=EXACT)


class Rolls(Masks):
    """Turns its batch by one place, and opens its gate at inputs above a limit."""

    def forward(self, x):
        h, path = x.new_zeros(len(x), 4), []
        for now in x.roll(1, dims=0).unbind(1):
            h = torch.where(now[:, :1] > 5, self.cell(now, h), h)
            path.append(h)
        return torch.stack(path, dim=1).roll(-1, dims=0)


def test_an_order_that_closed_gates_hide_is_warned_of():
    x = torch.randn(2, 8, 3)
    x[0, 0, 0] = 9
    with pytest.warns(SequenceWarning, match="cannot be seen which sequence each belongs to"):
        kann.record(Rolls("hard"), x)


def test_single_steps_of_two_loops_from_a_learned_state_are_those_of_the_cell():
    class Twice(Masks):
        def forward(self, x):
            return torch.stack([self.cell(now[:, 0], self.gate.weight.repeat(len(x), 2)[:, :4]) for now in (x, -x)])

    model, x = Twice("no"), torch.randn(5, 1, 3)
    np.testing.assert_allclose(kann.record(model, x).values, model(x).flatten(0, 1).detach(), atol=EXACT)


class StartsFromInputs(Masks):
    """Runs twice over its batch, each time from a state made of the first step."""

    def run(self, x):
        h, path = torch.tanh(x[:, 0] @ torch.eye(3, 4)), []
        for now in x.unbind(1):
            g = torch.sigmoid(self.gate(now))
            h = g * self.cell(now, h) + (1 - g) * h
            path.append(h)
        return torch.stack(path, dim=1)

    def forward(self, x):
        x = x.flip(1) if self.how == "from the end" else x
        return self.run(x) + self.run(-x)


@pytest.mark.parametrize("how", ["from the start", "from the end"])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_mixed_states_of_loops_that_start_again_from_what_they_read(count, how):
    model, x = StartsFromInputs(how), torch.randn(count, 5, 3)
    states = kann.record(model, x)
    read = x.flip(1) if how == "from the end" else x
    np.testing.assert_allclose(states.padded(), torch.cat([model.run(read), model.run(-read)]).detach(), atol=EXACT)


def test_two_loops_that_cannot_be_told_from_one_are_warned_of():
    with pytest.warns(SequenceWarning, match="cannot be seen where a loop over 'cell' starts again"):
        kann.record(StartsFromInputs("from the start"), torch.randn(1, 1, 3))


def test_mixed_states_of_loops_that_run_twice_over_batches_of_several_lengths():
    class Twice(Masks):
        def forward(self, x, lengths):
            order = torch.as_tensor(lengths).argsort()
            return (super().forward(x[order]) + super().forward(-x[order]))[order.argsort()]

    model, data = Twice("soft"), [torch.randn(n, 3) for n in (3, 4, 1, 3, 1, 5, 5, 2)]
    batches = [
        {"x": nn.utils.rnn.pad_sequence(part, batch_first=True), "lengths": torch.tensor([len(x) for x in part])}
        for part in (data[:5], data[5:])
    ]
    states = kann.record(model, batches, lengths="lengths")
    runs = [[Masks.forward(model, sign * x[None])[0].detach() for x in data] for sign in (1, -1)]
    expected = [*runs[0][:5], *runs[1][:5], *runs[0][5:], *runs[1][5:]]
    for own, path in zip(states, expected, strict=True):
        np.testing.assert_allclose(own, path, atol=EXACT)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.GRU(4, 5, batch_first=True)),
        nn.Sequential(nn.Linear(3, 4), nn.GRU(4, 5, num_layers=2, batch_first=True, bidirectional=True)),
        nn.Sequential(
            nn.Linear(3, 4), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.LSTM(4, 5, batch_first=True)
        ),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_common_models_give_no_warning(model, count):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SequenceWarning)
        for states in kann.recording.record_layers(model, torch.randn(count, 6, 3), state="h").values():
            assert len(states) == count


def test_a_model_that_cuts_its_batch_needs_small_batches():
    class Cuts(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            return torch.cat([self.rnn(piece)[0] for piece in x.chunk(3)])

    model, x = Cuts(), torch.randn(9, 7, 3)
    with pytest.raises(KannError, match=r"cuts its batch .* batch_size=1"):
        kann.record(model, x)
    with pytest.raises(KannError, match=r"cuts its batch .* batch_size=1"):
        kann.record(model, x, lengths=[7, 3, 5] * 3)
    np.testing.assert_allclose(kann.record(model, x, batch_size=1).padded(), model(x).detach(), atol=EXACT)


class Keeps(nn.Module):
    """Goes on from the state in which the last batch left it."""

    def __init__(self):
        super().__init__()
        self.cell, self.head, self.h = nn.GRUCell(3, 4), nn.Linear(4, 2), None

    def forward(self, x):
        self.h = x.new_zeros(len(x), 4) if self.h is None or len(self.h) != len(x) else self.h
        for now in x.unbind(1):
            self.h = self.cell(now, self.h)
        return self.head(self.h)


def test_a_model_that_keeps_its_state_begins_each_batch_alike_and_is_left_as_it_was():
    model, x = Keeps(), torch.randn(24, 7, 3)
    states = kann.record(model, x, batch_size=8)
    assert model.h is None
    same(states, kann.record(model, x, batch_size=24))
    effects = kann.effects(model, x, kann.fit(states), states, counts=(4,), batch_size=8)
    assert model.h is None
    assert effects.kept["modes"][-1] == 1.0
