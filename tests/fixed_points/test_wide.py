"""Networks as wide as those in use: Jacobians from the weights, implicit steps, and layers on top of each other."""

import time

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann import KannError
from kann.fixed_points import find_fixed_points
from kann.fixed_points._search import _spread_out
from kann.fixed_points.step_function import derivatives, implicit_step, layer_slopes
from kann.recording.recurrent import step_of

LAYERS = {
    "tanh": nn.RNN(3, 5),
    "relu": nn.RNN(3, 5, nonlinearity="relu"),
    "gru": nn.GRU(3, 5),
    "lstm": nn.LSTM(3, 5),
    "projected": nn.LSTM(3, 5, proj_size=2),
    "no bias": nn.LSTM(3, 5, bias=False),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_slopes_from_the_weights_are_those_of_backward_passes(kind):
    step = step_of(LAYERS[kind])
    h = torch.randn(4, step.dim, dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, 3, dtype=torch.float64)
    following, slopes = layer_slopes(step, h, x)
    torch.testing.assert_close(following, step(h, x))
    torch.testing.assert_close(slopes.detach(), derivatives(step(h, x), h), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", LAYERS)
def test_an_implicit_step_solves_its_equation(kind):
    step = step_of(LAYERS[kind])
    h, x = torch.randn(4, step.dim, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    leaps = torch.tensor([1.0, 10.0, 100.0, 1e6], dtype=torch.float64)
    with torch.no_grad():
        following, slopes = layer_slopes(step, h, x)
        moved = implicit_step(step, h, x, leaps) - h
        shifted = torch.eye(step.dim, dtype=torch.float64) * (1 + 1 / leaps)[:, None, None] - slopes
        torch.testing.assert_close((shifted @ moved[:, :, None])[:, :, 0], following - h, atol=1e-9, rtol=1e-9)


def slow_lstm(units=32):
    """A cell that forgets over some 300 steps, and whose speed has local minima everywhere."""
    torch.manual_seed(1)
    cell = nn.LSTMCell(4, units).double()
    with torch.no_grad():
        cell.weight_hh.mul_(4)
        cell.bias_hh[units : 2 * units] += torch.linspace(1, 5, units)
    return cell


@pytest.fixture(scope="module")
def visited():
    """States of the slow cell while it reads noise."""
    cell, states = slow_lstm(), []
    with torch.no_grad():
        state = (torch.zeros(8, 32, dtype=torch.float64),) * 2
        for _ in range(40):
            state = cell(torch.randn(8, 4, dtype=torch.float64), state)
            states.append(torch.cat(state, dim=1))
    return torch.cat(states)[::4]


def test_a_slow_wide_lstm_is_followed_until_it_rests(visited):
    cell = slow_lstm()
    began = time.perf_counter()
    points = find_fixed_points(cell, visited)
    assert time.perf_counter() - began < 120  # a few seconds, on a machine that does nothing else
    fixed = points.points[points.kinds == "fixed"]
    assert len(fixed)
    with torch.no_grad():
        h, c = torch.from_numpy(fixed).chunk(2, dim=1)
        following = torch.cat(cell(torch.zeros(len(h), 4, dtype=torch.float64), (h, c)), dim=1)
    np.testing.assert_allclose(following, fixed, atol=1e-6)


def test_of_many_wide_states_some_that_are_far_apart_start_newton():
    few, wide = torch.randn(50, 8), torch.randn(100, 256)
    assert len(_spread_out(few)) == 50
    chosen = _spread_out(wide)
    assert len(chosen) == len(chosen.unique()) == 59
    wide[7] += 100
    assert 7 in _spread_out(wide)


@pytest.mark.parametrize("make", [nn.GRU, nn.LSTM])
def test_layers_on_top_of_each_other_rest_together(make):
    torch.manual_seed(0)
    module = make(2, 4, num_layers=2, batch_first=True)
    state = {nn.GRU: "h", nn.LSTM: "hc"}[make]
    states = kann.recording.record_layers(module, torch.randn(20, 8, 2), layer="*", state=state)
    points = find_fixed_points(module, states)
    assert len(points) == 1
    assert points.stable.all()
    width = 4 * len(state)
    assert points.points.shape == (1, 2 * width)
    with torch.no_grad():
        out, _ = module(torch.zeros(1, 300, 2))
    np.testing.assert_allclose(points.points[0, width : width + 4], out[0, -1], atol=1e-5)
    with pytest.raises(KannError, match=r"initial states have .* columns"):
        find_fixed_points(module, states["l0"])
