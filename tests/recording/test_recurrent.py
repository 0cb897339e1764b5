import doctest

import pytest
import torch
from torch import nn

import kann
from kann.recording import recurrent

LAYERS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def test_the_examples_in_the_docstrings_run():
    failed, tried = doctest.testmod(recurrent)
    assert tried == 5  # the lines of step_of and readout_of
    assert not failed


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_steps_one_after_the_other_are_what_the_layer_does(kind, bias):
    layer = LAYERS[kind](3, 4, bias=bias)
    step = kann.step_of(layer)
    x = torch.randn(6, 2, 3)
    h = torch.zeros(2, step.dim)
    with torch.no_grad():
        for t in range(6):
            h = step(h, x[t])
            torch.testing.assert_close(h[:, :4], layer(x[: t + 1])[0][-1])


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # of torch, about its own speed
def test_a_step_of_a_projected_lstm_gives_the_projected_output_and_the_cell_state():
    layer = nn.LSTM(3, 4, proj_size=2)
    step = kann.step_of(layer)
    assert (step.dim, step.output_dim) == (6, 2)
    x = torch.randn(1, 5, 3)
    with torch.no_grad():
        _, (output, cell) = layer(x)
        torch.testing.assert_close(step(torch.zeros(5, 6), x[0]), torch.cat([output[0], cell[0]], dim=1))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_step_with_fixed_weights_keeps_them_and_their_precision(kind):
    layer = LAYERS[kind](3, 4)
    step = kann.step_of(layer)
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
