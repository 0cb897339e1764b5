"""One step of a recurrent layer as a function, and the readout behind it."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.errors import KannError
from kann.recording import recurrent
from tests.recording.models import EXACT
from tests.recording.single_steps import KINDS, make, sequences

# What torch says once of every projected LSTM on a processor.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

LAYERS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@pytest.mark.parametrize("cell", [nn.RNNCell(3, 4, nonlinearity="relu"), nn.GRUCell(3, 4), nn.LSTMCell(3, 4)])
def test_a_step_is_the_cells_own_and_can_be_differentiated(cell):
    step = kann.recording.step_of(nn.ModuleDict({"cell": cell}))
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
    step = kann.recording.step_of(cell)
    h, x = torch.randn(1, 3), torch.randn(1, 2)
    before = step(h, x)
    with torch.no_grad():
        cell.weight_hh += 1
    assert not torch.equal(before, step(h, x))
    assert repr(step) == "RecurrentStep('', 3 units, 2 inputs)"


def test_steps_of_what_is_not_one_recurrent_layer():
    both = nn.ModuleDict({"rnn": nn.GRU(2, 3, bidirectional=True), "head": nn.Linear(6, 2)})
    with pytest.raises(KannError, match=re.escape("layer=None means ['rnn.l0', 'rnn.l0_reverse']; pass one of them")):
        kann.recording.step_of(both)
    with pytest.raises(KannError, match="'head' is Linear, not one of torch's recurrent modules"):
        kann.recording.step_of(both, "head")


def test_readouts_are_found_or_named(model):
    assert kann.recording.readout_of(model) is model.head
    model.reader = nn.Linear(5, 3)
    with pytest.raises(KannError, match="read the 5 units of 'rnn': 'head', 'reader'; pass name="):
        kann.recording.readout_of(model)
    assert kann.recording.readout_of(model, name="reader") is model.reader
    with pytest.raises(KannError, match=r"'hidden_states.1' is no module"):
        kann.recording.readout_of(model, name="hidden_states.1")

    deep = nn.ModuleDict(
        {
            "before": nn.Linear(6, 6),
            "rnn": nn.LSTM(6, 4, bidirectional=True, proj_size=3),
            "head": nn.Sequential(nn.Dropout(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
        }
    )
    assert kann.recording.readout_of(deep) is deep["head"]
    assert kann.recording.readout_of(deep, "rnn") is deep["head"]
    # Either direction has 3 units, and the head reads 6: it is the readout of both, and of neither.
    for name in ("rnn.l0", "rnn.l0_reverse"):
        with pytest.raises(KannError, match=rf"'{name}' is one direction of 'rnn', 3 units, .*pass layer='rnn'"):
            kann.recording.readout_of(deep, name)
    stacked = nn.ModuleDict({"rnn": nn.GRU(2, 4, num_layers=2), "head": nn.Linear(4, 2)})
    assert kann.recording.readout_of(stacked, "rnn.l1") is stacked["head"]
    with pytest.raises(KannError, match=r"'rnn.l0' is read by the next layer of 'rnn', and by no readout"):
        kann.recording.readout_of(stacked, "rnn.l0")
    plain = nn.Sequential(nn.GRU(2, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    with pytest.raises(KannError, match="read the 3 units of '0': '1', '2'; pass name="):
        kann.recording.readout_of(plain)
    assert kann.recording.readout_of(plain, name="2") is plain[2]
    with pytest.raises(KannError, match="read the 3 units of 'rnn': none; pass name="):
        kann.recording.readout_of(nn.ModuleDict({"rnn": nn.GRU(2, 3)}))
    with pytest.raises(KannError, match="Linear is not recurrent, so its width is unknown"):
        kann.recording.readout_of(model, "head")
    with pytest.raises(KannError, match=r"'hidden_states\.0' is no module; pass name="):
        kann.recording.readout_of(model, "hidden_states.0")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["h", "hc"])
def test_recorded_inputs_replayed_through_the_networks_own_step_give_the_recorded_states(kind, state, rng):
    module = make(kind, num_layers=2, bidirectional=True)
    if state == "hc" and not isinstance(module, nn.LSTM):
        state = "h"
    elif isinstance(module, nn.LSTM):
        state = "hc"
    packed = nn.utils.rnn.pack_sequence(sequences(rng), enforce_sorted=False)
    recorded = kann.recording.record_layers(module, packed, layer="*", state=state, inputs=True, initial=True)
    for name, states in recorded.items():
        step = kann.recording.step_of(module, name)
        assert (step.dim, step.input_dim) == (states.dim, states.inputs.shape[1])
        x, y = states.pairs()
        drive = np.delete(states.inputs, states.starts, axis=0)
        with torch.no_grad():
            np.testing.assert_allclose(step(torch.tensor(x), torch.tensor(drive)), y, atol=EXACT)
        np.testing.assert_array_equal(states.inputs[states.starts], 0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_steps_one_after_the_other_are_what_the_layer_does(kind, bias):
    layer = LAYERS[kind](3, 4, bias=bias)
    step = kann.recording.step_of(layer)
    x = torch.randn(6, 2, 3)
    h = torch.zeros(2, step.dim)
    with torch.no_grad():
        for t in range(6):
            h = step(h, x[t])
            torch.testing.assert_close(h[:, :4], layer(x[: t + 1])[0][-1])


def test_a_step_of_a_projected_lstm_gives_the_projected_output_and_the_cell_state():
    layer = nn.LSTM(3, 4, proj_size=2)
    step = kann.recording.step_of(layer)
    assert (step.dim, step.output_dim) == (6, 2)
    x = torch.randn(1, 5, 3)
    with torch.no_grad():
        _, (output, cell) = layer(x)
        torch.testing.assert_close(step(torch.zeros(5, 6), x[0]), torch.cat([output[0], cell[0]], dim=1))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_step_with_fixed_weights_keeps_them_and_their_precision(kind):
    layer = LAYERS[kind](3, 4)
    step = kann.recording.step_of(layer)
    h, x = torch.randn(5, step.dim, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    before = step(h, x).detach()
    fixed = step.with_fixed_weights(h)
    with torch.no_grad():
        layer.weight_hh_l0 += 1
    assert torch.equal(fixed(h, x), before)
    assert not torch.equal(step(h, x), before)
    assert not fixed(h, x).requires_grad  # the layer's own parameters are not part of it
    assert {weight.dtype for weight in fixed.weights() if weight is not None} == {torch.float64}


def test_the_gates_of_an_lstm_in_place_are_the_same_and_overwrite_the_sums():
    sums = torch.randn(5, 12)
    with torch.no_grad():
        gates = recurrent.lstm_gates(sums.split(3, dim=1))
        first = recurrent.lstm_gates(sums.split(3, dim=1)[:3], in_place=True)
    for gate, overwritten in zip(gates, first, strict=False):
        assert torch.equal(gate, overwritten)
    assert torch.equal(sums[:, :9], torch.cat(gates[:3], dim=1))
