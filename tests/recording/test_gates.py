"""What a layer's weights make of an input alone, recorded as inputs."""

import numpy as np
import pytest
import torch
from torch import nn

import kann


def by_hand(layer, x, suffix="_l0"):
    """Gates at a state of zeros, written out for each kind of layer."""
    w, b = getattr(layer, f"weight_ih{suffix}"), getattr(layer, f"bias_ih{suffix}")
    c = getattr(layer, f"bias_hh{suffix}")
    sums = x @ w.T + b
    if isinstance(layer, nn.GRU | nn.GRUCell):
        r, z, n = sums.chunk(3, -1)
        cr, cz, cn = c.chunk(3)
        r = torch.sigmoid(r + cr)
        return torch.cat([r, torch.sigmoid(z + cz), torch.tanh(n + r * cn)], -1)
    if isinstance(layer, nn.LSTM):
        i, f, g, o = (sums + c).chunk(4, -1)
        return torch.cat([torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)], -1)
    return torch.tanh(sums + c)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_gates_are_those_of_the_layer_at_a_state_of_zeros(kind):
    torch.manual_seed(0)
    layer, x = kind(3, 4, batch_first=True), torch.randn(5, 6, 3)
    states = kann.record(layer, x, inputs="gates")
    with torch.no_grad():
        expected = by_hand(layer, x) - by_hand(layer, torch.zeros(3))
    np.testing.assert_allclose(states.inputs, expected.flatten(0, 1), atol=1e-6)
    silent = kann.record(layer, 0 * x, inputs="gates")
    assert not np.any(silent.inputs)  # reading nothing is zero


def test_a_gru_s_first_state_follows_from_its_gates():
    torch.manual_seed(0)
    layer, x = nn.GRU(3, 4, batch_first=True), torch.randn(5, 1, 3)
    states = kann.record(layer, x, inputs="gates")
    with torch.no_grad():
        gates = torch.as_tensor(states.inputs) + by_hand(layer, torch.zeros(3))
    _, z, n = gates.chunk(3, -1)
    np.testing.assert_allclose(states.values, (1 - z) * n, atol=1e-6)


def test_upper_layers_both_directions_and_no_bias():
    torch.manual_seed(0)
    layer = nn.GRU(3, 4, num_layers=2, bidirectional=True, bias=False, batch_first=True)
    data = torch.randn(2, 5, 3)
    found = kann.recording.record_layers(layer, data, layer=["l0_reverse", "l1"], inputs="gates")
    assert all(states.inputs.shape == (10, 12) for states in found.values())
    read = kann.record(layer, data, layer="l0_reverse", inputs=True)
    sums = torch.as_tensor(read.inputs) @ layer.weight_ih_l0_reverse.T
    r, z, n = sums.detach().chunk(3, -1)
    expected = torch.cat([torch.sigmoid(r) - 0.5, torch.sigmoid(z) - 0.5, torch.tanh(n)], -1)
    np.testing.assert_allclose(found["l0_reverse"].inputs, expected, atol=1e-6)


class Loop(nn.Module):
    """A cell that is called step by step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x):
        """The last state."""
        h = torch.zeros(len(x), 4)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


def test_cells_have_gates_too():
    torch.manual_seed(0)
    model, x = Loop(), torch.randn(5, 6, 3)
    states = kann.record(model, x, layer="cell", inputs="gates")
    with torch.no_grad():
        expected = by_hand(model.cell, x, "") - by_hand(model.cell, torch.zeros(3), "")
    np.testing.assert_allclose(states.inputs, expected.flatten(0, 1), atol=1e-6)


@pytest.mark.usefixtures("untyped")
def test_other_layers_have_none():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    with pytest.raises(kann.KannError, match="'gates' are of torch's recurrent layers, and '1' is Tanh"):
        kann.record(model, torch.randn(2, 5, 3), layer="1", inputs="gates")
    with pytest.raises(kann.KannError, match="inputs='doors' is unknown; pass 'gates'"):
        kann.record(nn.GRU(3, 4), torch.randn(2, 5, 3), inputs="doors")
