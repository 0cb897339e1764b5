import numpy as np
import pytest
import torch
from kann_experiments.training import seeded

import kann
from kann.zoo.copy_task import OrthogonalRNN, modrelu


@pytest.fixture
def layer():
    with seeded(0):
        layer = OrthogonalRNN(3, 10)
    torch.nn.init.uniform_(layer.cell.threshold, 0.05, 0.3, generator=torch.Generator().manual_seed(1))
    return layer.double()


def states(rng, n=40):
    return torch.as_tensor(rng.normal(size=(n, 10)))


def test_modrelu_shrinks_or_stretches_the_modulus(rng):
    z, b = torch.as_tensor(rng.normal(size=(200, 10))), torch.as_tensor(rng.normal(size=10))
    torch.testing.assert_close(modrelu(z, b), z.sign() * (z.abs() + b).clamp_min(0))


def test_the_slope_of_modrelu_is_one_where_it_is_open_even_at_zero():
    z = torch.tensor([[0.0, 0.0, 2.0, 2.0]], requires_grad=True)
    modrelu(z, torch.tensor([0.5, -0.5, -3.0, -1.0])).sum().backward()
    assert z.grad.tolist() == [[1.0, 0.0, 0.0, 1.0]]


def test_the_hidden_matrix_stays_orthogonal_while_it_is_trained(rng):
    with seeded(0):
        layer = OrthogonalRNN(3, 10)
    optimizer = torch.optim.RMSprop(layer.parameters(), lr=1e-2)
    before = layer.cell.turn.weight.detach().clone()
    for _ in range(20):
        optimizer.zero_grad()
        layer(torch.as_tensor(rng.normal(size=(5, 6, 3)), dtype=torch.float32))[0].square().sum().backward()
        optimizer.step()
    after = layer.cell.turn.weight.detach()
    assert (after - before).abs().max() > 0.01
    torch.testing.assert_close(after @ after.T, torch.eye(10), atol=1e-5, rtol=0)  # float32


def test_running_is_stepping(layer, rng):
    x = torch.as_tensor(rng.normal(size=(4, 7, 3)))
    path, last = layer(x)
    h = torch.zeros(4, 10, dtype=torch.float64)
    for t in range(7):
        h = layer.cell(h, x[:, t])
        torch.testing.assert_close(path[:, t], h)
    torch.testing.assert_close(last[0], path[:, -1])


def test_with_positive_thresholds_only_the_zero_state_is_fixed(layer, rng):
    # A keeps the norm of h and modReLU with b > 0 raises it, so no other state can come back to itself.
    h, blank = states(rng), torch.zeros(40, 3, dtype=torch.float64)
    assert (layer.cell(h, blank).norm(dim=1) > h.norm(dim=1)).all()
    starts = np.concatenate([np.zeros((1, 10)), h.numpy()])
    points = kann.find_fixed_points(layer.cell, starts, inputs=np.zeros(3))
    np.testing.assert_array_equal(points.points, np.zeros((1, 10)))
    assert (points.candidate_speeds[1:] > 1e-3).all()


def test_the_jacobians_at_rest_are_the_weights(layer):
    points = kann.find_fixed_points(layer.cell, np.zeros((1, 10)), inputs=np.zeros(3))
    np.testing.assert_allclose(points.jacobians[0], layer.cell.turn.weight.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(points.input_jacobians[0], layer.cell.drive.weight.detach().numpy(), atol=1e-12)
