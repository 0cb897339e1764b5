# ruff: noqa: D101, D102  # models in tests say what they are by their names
"""Cells, which a model calls at every step: their calls are the time axis."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kann
from kann.errors import KannError, SequenceWarning
from tests.recording.models import EXACT, same
from tests.recording.single_steps import Loop, check, make, padded, sequences

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


def run_cell(cell, sequence, start):
    """The states of one sequence, the initial one first."""
    path = [start]
    with torch.no_grad():
        for x in sequence:
            path.append(cell(x[None], path[-1][None])[0])
    return torch.stack(path).numpy()


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
    same(shrunk, kann.States.from_sequences([run_cell(model.cell, x, torch.zeros(4)) for x in data]))
    # Nothing was read to reach the initial state.
    np.testing.assert_array_equal(shrunk.inputs, np.vstack([np.vstack([np.zeros(2), x]) for x in data]))


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


class PlainCell(nn.Module):
    """A cell that is none of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(7, 4)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.mix(torch.cat([x, h], dim=1)))


@pytest.mark.parametrize("cell", [nn.GRUCell(3, 4), PlainCell()])
def test_two_runs_from_a_learned_initial_state_are_two_sequences(cell):
    model, x = TwoRuns(cell), torch.randn(4, 6, 3)
    states = kann.record(model, x, layer="cell")
    assert states.lengths.tolist() == [6] * 8
    start = model.start[0].detach()
    same(states, kann.States.from_sequences([run_cell(cell, sequence, start)[1:] for sequence in [*x, *(x + 1)]]))


def test_a_cell_that_runs_over_one_sequence_without_a_batch_axis():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            h = torch.ones(4)
            for now in x:
                h = self.cell(now, h)

    model, x = Single(), torch.randn(6, 3)
    states = kann.record(model, iter([x]), inputs=True, initial=True)
    same(states, kann.States.from_sequences([run_cell(model.cell, x, torch.ones(4))]))
    np.testing.assert_array_equal(states.inputs, np.vstack([np.zeros(3), x]))


class StartsFromNone(nn.Module):
    """A cell of the user's own, which starts without a state."""

    def __init__(self, *, state_first=False):
        super().__init__()
        self.read, self.step, self.state_first = nn.Linear(2, 4), nn.Linear(4, 4), state_first

    def forward(self, *args):
        x, h = args[::-1] if self.state_first else args
        new = self.read(x)
        if h is not None:
            new = new + self.step(h)
        return torch.tanh(new)


class FromNone(nn.Module):
    def __init__(self, *, state_first=False, runs=1):
        super().__init__()
        self.cell, self.state_first, self.runs = StartsFromNone(state_first=state_first), state_first, runs

    def forward(self, x):
        for _ in range(self.runs):
            h = None
            for t in range(x.shape[1]):
                h = self.cell(h, x[:, t]) if self.state_first else self.cell(x[:, t], h)
        return h


@pytest.mark.parametrize("state_first", [False, True])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_users_own_cell_may_start_without_a_state(state_first, runs, rng):
    model = FromNone(state_first=state_first, runs=runs)
    x = torch.tensor(rng.normal(size=(3, 5, 2)), dtype=torch.float32)
    states = kann.record(model, x, layer="cell", inputs=True)
    assert states.lengths.tolist() == [5] * (3 * runs)
    with torch.no_grad():
        np.testing.assert_allclose(states[0][0], torch.tanh(model.cell.read(x[0, 0])), atol=EXACT)
        np.testing.assert_allclose(states[2][-1], model(x)[2], atol=EXACT)
    np.testing.assert_allclose(states.inputs[:5], x[0], atol=EXACT)
    np.testing.assert_array_equal(kann.record(model, x, layer="cell").values, states.values)
    with pytest.raises(KannError, match="was given no state, so that the initial one is not known; pass initial=False"):
        kann.record(model, x, layer="cell", initial=True)


def test_a_call_of_more_sequences_begins_a_loop():
    class Growing(nn.Module):
        """Runs over the first sequence by itself, and over both from where that one ended."""

        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            h = torch.zeros(1, 4)
            for t in range(x.shape[1]):
                h = self.cell(x[:1, t], h)
            h = h.repeat(2, 1)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)

    model, x = Growing(), torch.randn(2, 5, 3)
    with pytest.warns(SequenceWarning, match="follow the inputs of other sequences"):
        states = kann.record(model, iter([x]))
    first = run_cell(model.cell, x[0], torch.zeros(4))
    both = [run_cell(model.cell, sequence, torch.tensor(first[-1])) for sequence in x]
    same(states, kann.States.from_sequences([path[1:] for path in (first, *both)]))


class ConvCell(nn.Module):
    """A ConvLSTM cell over eight places, whose states are (B, 4, 8)."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Conv1d(5, 16, 3, padding=1)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = self.gates(torch.cat([x[:, None], h], dim=1)).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class ConvReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = ConvCell(), nn.Linear(32, 2)

    def path(self, x):
        state, path = (x.new_zeros(len(x), 4, 8),) * 2, []
        for now in x.unbind(1):
            state = self.cell(now, state)
            path.append(state)
        return path

    def forward(self, x):
        return self.head(self.path(x)[-1][0].flatten(1))


def test_states_of_several_axes_become_rows_with_named_parts():
    model, x = ConvReader(), torch.randn(20, 25, 8)
    states = kann.record(model, x, layer="cell", state="hc", inputs=True, initial=True)
    assert (len(states), states.dim, set(states.lengths.tolist())) == (20, 64, {26})
    assert [str(part) for part in states.parts] == ["state.0 4 × 8", "state.1 4 × 8"]
    with torch.no_grad():
        expected = torch.stack([torch.cat([h.flatten(1), c.flatten(1)], dim=1) for h, c in model.path(x)], dim=1)
    np.testing.assert_allclose(states.padded()[:, 1:], expected, atol=EXACT)
    np.testing.assert_array_equal(np.asarray(states.inputs).reshape(20, 26, 8)[:, 1:], x)
    assert kann.record(model, x, state="h").dim == 32  # the cell is found


def test_the_parts_of_a_state_are_saved_with_it(tmp_path):
    model, x = ConvReader(), torch.randn(3, 5, 8)
    states = kann.record(model, x, layer="cell", state="hc", into=tmp_path / "states.zarr")
    assert kann.States.open(tmp_path / "states.zarr").parts == states.parts
    states[:2].save(tmp_path / "copy.zarr")
    assert kann.States.open(tmp_path / "copy.zarr").parts == states.parts
    with pytest.raises(KannError, match="their parts are"):
        kann.States(values=np.ones((2, 3)), lengths=np.array([2]), parts=states.parts)


class Gate(nn.Module):
    """Holds its state in an attribute, as streaming models do."""

    def __init__(self):
        super().__init__()
        self.read, self.step, self.h, self.constant = nn.Linear(3, 4), nn.Linear(4, 4), None, torch.ones(2)

    def forward(self, x):
        new = self.read(x) * self.constant[0]
        self.h = torch.tanh(new if self.h is None else new + self.step(self.h))
        return self.h.sum(dim=1)


class Streams(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        self.gate.h = None
        return torch.stack([self.gate(now) for now in x.unbind(1)], dim=1)


def test_a_state_may_be_kept_in_an_attribute():
    model, x = Streams(), torch.randn(5, 6, 3)
    states = kann.record(model, x, inputs=True)
    assert [str(part) for part in states.parts] == ["h 4"]
    np.testing.assert_allclose(states.padded().sum(axis=2), model(x).detach(), atol=EXACT)
    np.testing.assert_array_equal(np.asarray(states.inputs).reshape(5, 6, 3), x)


class Nested(nn.Module):
    """Passes its state on in a dictionary with a tuple."""

    def __init__(self):
        super().__init__()
        self.inner = nn.GRUCell(3, 4)

    def forward(self, x, *, memory):
        h, (count,) = memory["h"], memory["counts"]
        h = self.inner(x, h)
        return h.sum(dim=1), {"h": h, "counts": (count + 1,)}


class NestedReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleDict({"cell": Nested()})

    def forward(self, x):
        memory = {"h": x.new_zeros(len(x), 4), "counts": (x.new_zeros(len(x), 1),)}
        for now in x.unbind(1):
            y, memory = self.layer["cell"](now, memory=memory)
        return y


def test_states_in_dictionaries_and_tuples_are_found_by_their_names():
    states = kann.record(NestedReader(), torch.randn(5, 6, 3), layer="layer.cell", state="hc", inputs=True)
    assert [str(part) for part in states.parts] == ["memory.h 4", "memory.counts.0 1"]
    np.testing.assert_array_equal(states.padded()[:, :, 4], np.arange(1, 7)[None].repeat(5, axis=0))


def test_several_cells_must_be_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = PlainCell(), PlainCell()

        def forward(self, x):
            h = k = x.new_zeros(len(x), 4)
            for now in x.unbind(1):
                h = self.one(now, h)
                k = self.other(h[:, :3], k)
            return h

    with pytest.raises(KannError, match="calls 2 cells in loops: 'one', 'other'"):
        kann.record(Two(), torch.randn(4, 6, 3))
