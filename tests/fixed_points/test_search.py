import copy
import functools
import html
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import nn

import kann
from kann.errors import KannError
from kann.fixed_points import Recipe, find_fixed_points, step_function
from tests import flipflop

CELLS = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}
SATURATED = brentq(lambda h: np.tanh(2 * h) - h, 0.5, 1)  # the stable solution of h = tanh(2h)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Networks this small are slower on several threads, and far slower when other work holds those."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def double(h, x):
    """Units that do not interact, each with fixed points −SATURATED (stable), 0 (unstable) and SATURATED (stable)."""
    return torch.tanh(2 * h)


def states_of(width, *, count=100, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, size=(count, width))


def make_cell(kind):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        cell = CELLS[kind](3, 6)
    for parameter in cell.parameters():
        parameter.data *= 2  # strong enough for several fixed points
    return cell


def advance(cell, h, x):
    """What a cell does, in float64 and without kann; h and c of an LSTM side by side."""
    exact = copy.deepcopy(cell).double().requires_grad_(False)
    h, x = torch.as_tensor(h), torch.as_tensor(x)
    following = exact(x, h.chunk(2, dim=1) if isinstance(cell, nn.LSTMCell) else h)
    return (torch.cat(following, dim=1) if isinstance(following, tuple) else following).numpy()


@functools.cache
def trained(kind, bits, seed):
    return flipflop.train(kind, bits, seed=seed, iterations=200)


# Known systems


def test_a_linear_network_has_one_point_with_its_own_matrices(rng):
    A, B, b = 0.3 * rng.normal(size=(4, 4)), rng.normal(size=(4, 2)), rng.normal(size=4)
    x = rng.normal(size=2)
    As, Bs, bs = (torch.from_numpy(part) for part in (A, B, b))
    found = find_fixed_points(lambda h, x: h @ As.T + x @ Bs.T + bs, rng.normal(size=(20, 4)), inputs=x)
    assert len(found) == 1
    np.testing.assert_allclose(found.points[0], np.linalg.solve(np.eye(4) - A, B @ x + b), rtol=1e-10)
    # ∂F_i/∂h_j: A itself and not its transpose, from which it differs.
    np.testing.assert_allclose(found.jacobians[0], A, atol=1e-14)
    np.testing.assert_allclose(found.input_jacobians[0], B, atol=1e-14)
    np.testing.assert_allclose(np.sort_complex(found.eigenvalues[0]), np.sort_complex(np.linalg.eigvals(A)), atol=1e-12)
    assert np.all(np.diff(np.abs(found.eigenvalues[0])) <= 0)


def test_predict_and_rollout_are_exact_for_a_linear_network(rng):
    A, B = 0.3 * rng.normal(size=(4, 4)), rng.normal(size=(4, 2))
    As, Bs = torch.from_numpy(A), torch.from_numpy(B)
    found = find_fixed_points(lambda h, x: h @ As.T + x @ Bs.T, rng.normal(size=(20, 4)), inputs=np.array([1.0, -1.0]))
    h, x = rng.normal(size=(5, 3, 4)), rng.normal(size=(5, 3, 7, 2))
    following = found.rollout(h, 7, inputs=x)
    assert following.shape == (5, 3, 7, 4)
    for t in range(7):
        h = h @ A.T + x[:, :, t] @ B.T
        np.testing.assert_allclose(following[:, :, t], h, atol=1e-12)
        np.testing.assert_allclose(found.predict(h, inputs=x[:, :, t]), h @ A.T + x[:, :, t] @ B.T, atol=1e-12)


def test_all_points_of_independent_units_are_found():
    found = find_fixed_points(double, states_of(3))
    expected = set(itertools.product((-1, 0, 1), repeat=3))
    assert {tuple(point) for point in (found.points / SATURATED).round(9) + 0.0} == expected
    assert len(found) == 27
    # A unit at rest is stable where the slope of tanh(2h) is below 1, which is at ±SATURATED and not at 0.
    np.testing.assert_array_equal(found.stable, np.abs(found.points).min(axis=1) > 0.5)
    assert np.all(found.kinds == "fixed")
    assert not found.outlier.any()


@settings(max_examples=5)
@given(seed=st.integers(0, 1000))
def test_points_of_an_odd_network_come_in_opposite_pairs(seed):
    W = torch.from_numpy(1.3 * np.random.default_rng(seed).normal(size=(3, 3)))
    initial = states_of(3, seed=seed)
    found = find_fixed_points(lambda h, x: torch.tanh(h @ W), np.concatenate([initial, -initial]))
    points = found.points[found.kinds == "fixed"]
    distance = np.abs(points[:, None] + points[None]).max(axis=2)
    assert np.all(distance.min(axis=1) < 1e-6)
    assert np.abs(points).max(axis=1).min() < 1e-10  # zero is always one of them


@settings(max_examples=10)
@given(exponent=st.integers(-6, 6))
def test_the_unit_of_the_states_does_not_matter(exponent):
    scale, initial = 10.0**exponent, states_of(2)
    plain = find_fixed_points(double, initial)
    scaled = find_fixed_points(
        lambda h, x: scale * torch.tanh(2 * h / scale),
        scale * initial,
        tolerance=1e-10 * scale**2,
        slow_tolerance=1e-6 * scale**2,
    )
    assert len(scaled) == len(plain) == 9
    np.testing.assert_allclose(np.sort(scaled.points / scale, axis=0), np.sort(plain.points, axis=0), atol=1e-10)


def test_the_order_of_the_initial_states_does_not_matter(rng):
    initial = states_of(3)
    order = rng.permutation(len(initial))
    one, other = find_fixed_points(double, initial), find_fixed_points(double, initial[order])
    by_place = (one.points[:, None] - other.points[None]).round(6).any(axis=2).argmin(axis=1)
    np.testing.assert_allclose(other.points[by_place], one.points, atol=1e-9)
    np.testing.assert_array_equal(by_place[one.reached[order]], other.reached)
    np.testing.assert_array_equal(other.counts[by_place], one.counts)


def test_the_same_search_gives_the_same_result():
    initial = states_of(6)
    one, other = (find_fixed_points(make_cell("gru"), initial) for _ in range(2))
    np.testing.assert_array_equal(one.points, other.points)
    np.testing.assert_array_equal(one.reached, other.reached)


# Slow points


def line(drift):
    """A curved line attractor along the first unit, on which a state drifts by drift · sin(3a) a step."""

    def step(h, x):
        along, across = h[:, :1], h[:, 1:]
        return torch.cat([along + drift * torch.sin(3 * along), 0.5 * across + 0.3 * along**2], dim=1)

    return step


def test_slow_points_of_a_line_attractor_are_kept_and_labelled(rng):
    found = find_fixed_points(line(1e-3), rng.uniform(-2, 2, size=(300, 3)))
    slow = found.kinds == "slow"
    assert np.all(found.speeds[~slow] <= found.tolerance)
    assert np.all((found.speeds[slow] > found.tolerance) & (found.speeds[slow] <= found.slow_tolerance))
    # The fixed points are the zeros of the drift; sin(3a) has a negative slope, which makes them stable, at ±π/3.
    zeros = np.arange(-2, 3) * math.pi / 3
    np.testing.assert_allclose(np.sort(found.points[~slow, 0]), zeros, atol=1e-6)
    np.testing.assert_allclose(np.abs(found.points[~slow & found.stable, 0]), math.pi / 3, atol=1e-6)
    # Slow points lie on the line, all along it, and at a distance from each other.
    along = np.sort(found.points[slow, 0])
    np.testing.assert_allclose(found.points[slow, 1], 0.6 * found.points[slow, 0] ** 2, atol=0.01)
    assert len(along) > 30
    assert along[0] < -1.8
    assert along[-1] > 1.8
    assert np.diff(along).max() < 0.2
    assert found.counts[slow].sum() > 100


def test_an_exact_line_attractor_is_fixed_and_not_stable(rng):
    found = find_fixed_points(line(0.0), rng.uniform(-2, 2, size=(50, 3)))
    assert np.all(found.kinds == "fixed")
    assert np.ptp(found.points[:, 0]) > 3
    np.testing.assert_allclose(found.points[:, 1], 0.6 * found.points[:, 0] ** 2, atol=1e-6)
    np.testing.assert_allclose(np.abs(found.eigenvalues[:, 0]), 1, atol=1e-9)
    assert not found.stable.any()


def with_a_ghost(h, x):
    """Move h by r(h), which has a root at 2, and near −1 a local minimum of |r| that is no root."""
    return h + 0.1 * (h - 2) * ((h + 1) ** 2 + 0.1)


def test_a_local_minimum_of_the_speed_is_no_point_unless_asked_for():
    initial = np.array([[-1.3], [-0.9], [1.8], [2.1]])
    found = find_fixed_points(with_a_ghost, initial)
    np.testing.assert_allclose(found.points, [[2.0]], atol=1e-9)
    np.testing.assert_array_equal(found.reached, [-1, -1, 0, 0])
    assert found.adam_steps > 0  # tried from where Newton had failed
    assert np.all(found.candidate_speeds[:2] > 1e-4)
    assert found.counts.tolist() == [2]
    every = find_fixed_points(with_a_ghost, initial, slow_tolerance=math.inf)
    assert every.kinds.tolist() == ["fixed", "slow"]
    assert -1.1 < every.points[1, 0] < -0.9
    np.testing.assert_array_equal(every.reached, [1, 1, 0, 0])


def test_adam_helps_where_newton_is_stuck():
    W = torch.from_numpy(2.5 * np.random.default_rng(1).normal(size=(24, 24)) / math.sqrt(24))
    step, initial = lambda h, x: torch.tanh(h @ W), states_of(24, count=100)
    alone = find_fixed_points(step, initial, recipe=Recipe(adam_steps=0))
    helped = find_fixed_points(step, initial)
    assert (alone.reached < 0).any()
    assert (helped.reached >= 0).sum() > (alone.reached >= 0).sum()
    assert np.all(helped.candidate_speeds <= alone.candidate_speeds)


def test_adam_leads_out_of_a_local_minimum():
    found = find_fixed_points(with_a_ghost, np.array([[-1.3], [1.8]]), recipe=Recipe(follow_steps=0))
    np.testing.assert_allclose(found.points, [[2.0]], atol=1e-9)
    assert found.adam_steps > 0


def test_outliers_are_marked_and_kept(rng):
    step = lambda h, x: h - 0.01 * h * (h - 50)  # noqa: E731  # fixed points at 0 and 50
    initial = np.append(rng.uniform(-1, 1, size=(200, 1)), [[49.0]], axis=0)
    found = find_fixed_points(step, initial)
    np.testing.assert_allclose(np.sort(found.points[:, 0]), [0, 50], atol=1e-9)
    np.testing.assert_array_equal(found.outlier, found.points[:, 0] > 25)


def test_searches_do_not_get_lost_where_a_gru_saturates():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cell = nn.GRUCell(3, 8)
    cell.weight_hh.data *= 3
    found = find_fixed_points(cell, states_of(8))
    assert not found.outlier.any()
    assert np.abs(found.points[found.kinds == "fixed"]).max() <= 1  # in the cube, where all states of a GRU are
    assert (found.reached >= 0).all()
    lost = find_fixed_points(cell, states_of(8), recipe=Recipe(outlier=math.inf))
    assert np.abs(lost.points).max() > 10


def test_an_attractor_that_the_network_goes_to_is_found_however_far_it_is(rng):
    found = find_fixed_points(lambda h, x: 0.5 * h + 50, rng.uniform(-1, 1, size=(20, 2)))
    np.testing.assert_allclose(found.points, [[100, 100]], rtol=1e-12)
    assert found.outlier.all()
    assert found.counts.tolist() == [20]


def test_the_histogram_counts_every_candidate_that_did_not_diverge(rng):
    found = find_fixed_points(with_a_ghost, rng.uniform(-3, 3, size=(50, 1)), slow_tolerance=math.inf)
    counts, decades = found.speed_histogram()
    assert counts.sum() == np.isfinite(found.candidate_speeds).sum()
    np.testing.assert_array_equal(np.diff(decades), 1)
    slow = found.candidate_speeds > 1e-10
    assert counts[decades >= -10].sum() == slow.sum() > 0


def test_a_search_that_breaks_off_does_not_count_as_converged():
    # Above zero there is a fixed point at 2, below none; at zero there is no derivative, and no search gets away.
    step = lambda h, x: torch.where(h > 0, 0.5 * h + 1, h - 1) + 0 * torch.sqrt(h**2)  # noqa: E731
    found = find_fixed_points(step, np.array([[0.0], [1.5], [2.5]]))
    np.testing.assert_allclose(found.points, [[2.0]], atol=1e-9)
    np.testing.assert_array_equal(found.reached, [-1, 0, 0])
    assert found.candidate_speeds[0] == 0.5


def test_a_point_without_a_derivative_is_kept_without_eigenvalues():
    # |h| as √(h²) has no derivative at its fixed point zero, where it was started.
    found = find_fixed_points(lambda h, x: 0.5 * torch.sqrt(h**2), np.zeros((1, 2)))
    np.testing.assert_array_equal(found.points, np.zeros((1, 2)))
    assert np.isnan(found.eigenvalues).all()
    assert not found.stable.any()


# Inputs


def test_points_under_different_inputs_are_different_points():
    initial = np.zeros((4, 2))
    inputs = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    found = find_fixed_points(lambda h, x: 0.5 * h + x, initial, inputs=inputs)
    np.testing.assert_allclose(found.points, 2 * found.inputs, atol=1e-12)
    assert found.counts.tolist() == [2, 1, 1]
    np.testing.assert_array_equal(found.inputs[found.reached], inputs)
    # The same state, but for two inputs of which one does nothing.
    twice = find_fixed_points(lambda h, x: 0.5 * h + 0 * x, initial, inputs=inputs)
    assert len(twice) == 3


class Sized:
    """A step that knows its widths, as those of `kann.recording.step_of` do."""

    dim, input_dim = 6, 3

    def __call__(self, h, x):
        """One step."""
        return torch.tanh(0.5 * h + x @ torch.ones(3, 6, dtype=h.dtype))


@pytest.mark.parametrize("step", [make_cell("gru"), Sized()])
def test_a_step_of_known_width_gets_zeros_where_no_inputs_are_given(step):
    given_none, given_zeros = (find_fixed_points(step, states_of(6), inputs=x) for x in (None, np.zeros(3)))
    np.testing.assert_array_equal(given_none.points, given_zeros.points)
    assert given_none.inputs.shape == (len(given_none), 3)
    assert find_fixed_points(double, states_of(2)).input_jacobians.shape == (9, 2, 0)


# Networks


@pytest.mark.parametrize("kind", CELLS)
def test_points_satisfy_their_tolerance_in_float64(kind):
    cell = make_cell(kind)
    found = find_fixed_points(cell, states_of(12 if kind == "lstm" else 6), inputs=np.array([0.1, -0.2, 0.3]))
    speeds = 0.5 * ((advance(cell, found.points, found.inputs) - found.points) ** 2).sum(axis=1)
    np.testing.assert_allclose(speeds, found.speeds, rtol=1e-6, atol=1e-28)
    assert np.all(speeds[found.kinds == "fixed"] <= found.tolerance)
    assert np.all(speeds <= found.slow_tolerance)


@pytest.mark.parametrize("kind", CELLS)
def test_jacobians_agree_with_finite_differences(kind):
    cell = make_cell(kind)
    found = find_fixed_points(cell, states_of(12 if kind == "lstm" else 6), inputs=np.array([0.1, -0.2, 0.3]))
    h, x, eps = found.points, found.inputs, 1e-6
    for j in range(h.shape[1]):
        shift = eps * np.eye(h.shape[1])[j]
        slope = (advance(cell, h + shift, x) - advance(cell, h - shift, x)) / (2 * eps)
        np.testing.assert_allclose(found.jacobians[:, :, j], slope, atol=1e-6)
    for j in range(3):
        shift = eps * np.eye(3)[j]
        slope = (advance(cell, h, x + shift) - advance(cell, h, x - shift)) / (2 * eps)
        np.testing.assert_allclose(found.input_jacobians[:, :, j], slope, atol=1e-6)


def require_all_memories(kind, bits, seed):
    network = trained(kind, bits, seed)
    initial = flipflop.visited(network, 512, seed=seed)
    assert len(flipflop.held(network, initial)) == 2**bits  # the network itself, run for 2,000 steps
    found = find_fixed_points(network.layer, initial)
    stable = torch.from_numpy(found.points[found.stable & (found.kinds == "fixed") & ~found.outlier])
    assert len(stable) == 2**bits
    assert len(flipflop.memories(network, stable)) == 2**bits


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("bits", [2, 3])
def test_all_memories_of_a_flip_flop_are_found(kind, bits):
    require_all_memories(kind, bits, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("seed", [1, 2])
def test_all_memories_of_a_flip_flop_are_found_over_seeds(kind, seed):
    require_all_memories(kind, 3, seed)


def test_a_flip_flop_trains_the_same_for_the_same_seed():
    one, other = (flipflop.train("gru", 2, seed=5, iterations=3).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("layer", "kind"), [(nn.RNN, "rnn"), (nn.GRU, "gru"), (nn.LSTM, "lstm")])
def test_a_layer_is_its_cell(layer, kind):
    cell = make_cell(kind)
    whole = layer(3, 6)
    whole.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
    initial = states_of(12 if kind == "lstm" else 6)
    np.testing.assert_array_equal(find_fixed_points(whole, initial).points, find_fixed_points(cell, initial).points)


def test_a_float32_network_is_searched_in_float64_and_left_alone():
    cell = make_cell("gru").train()
    before = copy.deepcopy(cell.state_dict())
    found = find_fixed_points(cell, states_of(6))
    assert found.speeds[found.kinds == "fixed"].min() < 1e-25  # far below what float32 resolves, some 1e-14
    assert cell.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in cell.parameters())
    assert all(torch.equal(cell.state_dict()[name], before[name]) for name in before)
    assert found.precision == "float64"


def test_a_step_over_float32_weights_is_searched_in_float64():
    cell = make_cell("gru")
    found = find_fixed_points(cell, states_of(6))
    step = find_fixed_points(kann.recording.step_of(nn.ModuleDict({"cell": cell})), states_of(6))
    np.testing.assert_array_equal(step.points, found.points)
    np.testing.assert_array_equal(step.jacobians, found.jacobians)
    assert step.precision == "float64"


def test_a_function_over_float32_weights_is_searched_in_float32_and_the_result_says_so():
    cell = make_cell("gru")
    found = find_fixed_points(cell, states_of(6))
    wrapped = find_fixed_points(lambda h, x: cell(x, h), states_of(6), inputs=np.zeros(3))
    assert wrapped.precision == "float32"
    assert "computed in float32" in repr(wrapped)
    # The same points: float32 rounds the step by some 1e-7, and a point moves by that over 1 − |λ|, here 0.1.
    np.testing.assert_allclose(wrapped.points, found.points, atol=1e-5)
    np.testing.assert_allclose(wrapped.jacobians, found.jacobians, atol=1e-5)
    np.testing.assert_array_equal(wrapped.reached, found.reached)
    np.testing.assert_array_equal(wrapped.kinds, found.kinds)
    # The same function over float64 weights is the same network to the last digits.
    exact = copy.deepcopy(cell).double()
    wrapped = find_fixed_points(lambda h, x: exact(x, h), states_of(6), inputs=np.zeros(3))
    assert wrapped.precision == "float64"
    np.testing.assert_allclose(wrapped.points, found.points, atol=1e-9)
    np.testing.assert_allclose(wrapped.jacobians, found.jacobians, atol=1e-9)


def test_all_points_are_found_in_float32():
    W = 2 * torch.eye(3)  # float32
    found = find_fixed_points(lambda h, x: torch.tanh(h @ W), states_of(3))
    exact = find_fixed_points(double, states_of(3))
    assert found.precision == "float32"
    assert len(found) == len(exact) == 27
    assert np.all(found.kinds == "fixed")
    by_place = np.abs(found.points[:, None] - exact.points).max(axis=2).argmin(axis=1)
    assert len(set(by_place.tolist())) == 27
    np.testing.assert_allclose(found.points, exact.points[by_place], atol=1e-6)
    np.testing.assert_array_equal(found.stable, exact.stable[by_place])


class DampedCell(nn.GRUCell):
    """A subclass that does something else than torch's own cell, and is called like it."""

    def forward(self, x, h):
        """One step."""
        return 0.5 * super().forward(x, h)


@pytest.mark.parametrize("changed", ["class", "hook"])
def test_a_cell_whose_forward_was_changed_is_called_as_it_is(changed):
    if changed == "class":
        cell = DampedCell(3, 6)
    else:
        cell = nn.GRUCell(3, 6)
        cell.register_forward_hook(lambda module, args, result: 0.5 * result)
    found = find_fixed_points(cell, states_of(6), inputs=np.array([0.1, -0.2, 0.3]))
    np.testing.assert_allclose(advance(cell, found.points, found.inputs), found.points, atol=1e-10)
    assert found.precision == "float64"


class Orthogonal(nn.Module):
    """A module of its own: states first, a parametrised matrix, dropout, and a tensor that is no parameter."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.utils.parametrizations.orthogonal(nn.Linear(6, 6, bias=False), orthogonal_map="matrix_exp")
        self.inputs, self.drop, self.gain = nn.Linear(3, 6), nn.Dropout(0.5), torch.full((6,), 1.5)

    def forward(self, h, x):
        """One step."""
        return torch.tanh(self.gain * self.drop(self.hidden(h)) + self.inputs(x))


def test_a_module_is_searched_in_evaluation_mode():
    network = Orthogonal()
    found = find_fixed_points(network, states_of(6), inputs=np.zeros(3))
    assert network.training
    exact = copy.deepcopy(network).eval().double()
    exact.gain = exact.gain.double()
    with torch.no_grad():
        moved = exact(torch.from_numpy(found.points), torch.from_numpy(found.inputs)).numpy() - found.points
    assert np.abs(moved[found.kinds == "fixed"]).max() < 1e-6


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_switched_off(off):
    with off():
        found = find_fixed_points(double, torch.from_numpy(states_of(2)))
        assert not torch.is_grad_enabled()
    assert len(found) == 9


def test_blocks_of_rows_do_not_change_the_result(monkeypatch):
    whole = find_fixed_points(make_cell("rnn"), states_of(6))
    monkeypatch.setattr(step_function, "JACOBIAN_BYTES", 7 * 8 * 6**2)  # seven states at a time
    blocks = find_fixed_points(make_cell("rnn"), states_of(6))
    np.testing.assert_allclose(blocks.points, whole.points, atol=1e-9)
    np.testing.assert_allclose(blocks.jacobians, whole.jacobians, atol=1e-9)
    np.testing.assert_array_equal(blocks.reached, whole.reached)
    np.testing.assert_array_equal(blocks.counts, whole.counts)


# Linear prediction


def test_prediction_is_of_second_order_near_a_point(rng):
    found = find_fixed_points(make_cell("gru"), states_of(6))
    direction, errors = rng.normal(size=6), []
    sizes = np.array([1e-2, 1e-3, 1e-4])
    for size in sizes:
        h = found.points[:1] + size * direction
        x = found.inputs[:1] + size
        errors.append(np.abs(found.predict(h, inputs=x, at=0) - advance(make_cell("gru"), h, x)).max())
    order = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert 1.9 < order < 2.1


def test_the_nearest_point_is_the_default():
    found = find_fixed_points(double, states_of(2))
    h = found.points + 0.01
    np.testing.assert_array_equal(found.nearest(h), np.arange(9))
    np.testing.assert_array_equal(found.predict(h), found.predict(h, at=np.arange(9)))
    np.testing.assert_allclose(found.predict(found.points), found.points)
    np.testing.assert_array_equal(found.predict(h, at=-1), found.predict(h, at=8))
    torch.testing.assert_close(torch.from_numpy(found.predict(torch.from_numpy(h))), torch.from_numpy(found.predict(h)))
    path = found.rollout(h[0], 3, at=found.nearest(h[0]))
    assert path.shape == (3, 2)


def test_predicting_refuses_what_does_not_fit():
    found = find_fixed_points(make_cell("gru"), states_of(6))
    h = np.zeros((2, 6))
    with pytest.raises(KannError, match="states have 5 columns; the network has 6"):
        found.predict(np.zeros((2, 5)))
    with pytest.raises(KannError, match="inputs have 2 columns; the network has 3"):
        found.predict(h, inputs=np.zeros((2, 2)))
    with pytest.raises(KannError, match=r"inputs of shape \(3, 3\).*pass \(2, 3\)"):
        found.predict(h, inputs=np.zeros((3, 3)))
    with pytest.raises(KannError, match="at=99 is no place among"):
        found.predict(h, at=99)
    with pytest.raises(KannError, match=r"at has shape \(3,\); pass one place, or one per state \(2,\)"):
        found.predict(h, at=np.zeros(3, dtype=int))
    with pytest.raises(KannError, match="steps=0 predicts nothing"):
        found.rollout(h, 0)
    with pytest.raises(KannError, match=r"pass \(2, 4, 3\)"):
        found.rollout(h, 4, inputs=np.zeros((2, 3, 3)))


def test_the_summary_counts():
    text = repr(find_fixed_points(double, states_of(2)))
    assert "9 fixed, of which 4 stable, 0 slow" in text
    assert "100 of 100 initial states converged" in text


# Errors


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda h, x: (0.5 * h).detach(), "not differentiable"),
        (lambda h, x: torch.tensor(np.tanh(h.detach().numpy())), "not differentiable"),
        (lambda h, x: torch.zeros_like(h), "not differentiable"),
        (lambda h, x: torch.tensor(np.tanh(h.numpy())), "fails on states .*Can't call numpy"),
        (lambda h, x: h[:, :1], r"returns shape \(100, 1\) for states \(100, 2\)"),
        (lambda h, x: (h, h), "returns tuple; return the next states alone"),
        (lambda h, x: 0.5 * h.float(), "returns torch.float32 for states of torch.float64; leave out the conversion"),
        (lambda h, x: h - h.mean(dim=0), "treat each row by itself"),
        (lambda h, x: nn.functional.dropout(h, 0.5), r"without random numbers.*\.eval\(\)"),
        (lambda h, x: h @ x.T, "inputs None .*pass inputs= if it reads any"),
        (7, "step is int; pass a function or torch module"),
        (nn.GRU(3, 1, bidirectional=True), "not one cell applied over time"),
        (nn.GRUCell(3, 5), "initial states have 2 columns; the state of GRUCell has 5"),
        (nn.LSTMCell(3, 2), "initial states have 2 columns; the state of LSTMCell has 4"),
    ],
)
def test_a_step_that_cannot_be_used_is_refused(step, message):
    with pytest.raises(KannError, match=message):
        find_fixed_points(step, states_of(2))


def test_arguments_in_the_other_order_are_explained():
    cell = nn.GRUCell(3, 2)
    with pytest.raises(KannError, match="it takes the states first"):
        find_fixed_points(lambda x, h: cell(x, h), states_of(2), inputs=np.zeros(3))


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        (np.zeros(3), r"initial states have shape \(3,\); pass \(n, d\)"),
        (np.zeros((0, 3)), r"shape \(0, 3\)"),
        (np.zeros((3, 2), dtype=int), "initial states are int64"),
        (np.array([[0.0, 0.0], [0.0, np.nan]]), "initial states hold NaN or Inf in row 1"),
        (torch.tensor([[math.inf, 0.0]]), "initial states hold NaN or Inf in row 0"),
    ],
)
def test_initial_states_that_cannot_be_used_are_refused(initial, message):
    with pytest.raises(KannError, match=message):
        find_fixed_points(double, initial)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((5, 3)), r"inputs have shape \(5, 3\); pass one constant input \(p,\), or one for each of the 100"),
        (np.zeros(4), "inputs have 4 columns; GRUCell has 3"),
        (np.full(3, np.nan), "inputs hold NaN or Inf"),
    ],
)
def test_inputs_that_cannot_be_used_are_refused(inputs, message):
    with pytest.raises(KannError, match=message):
        find_fixed_points(nn.GRUCell(3, 2), states_of(2), inputs=inputs)


def test_where_nothing_is_found_the_result_is_empty_and_says_so():
    # h + 1 moves every state by 1 in each of two units: q = ½(1 + 1) everywhere.
    points = find_fixed_points(lambda h, x: h + 1, states_of(2))
    assert len(points) == 0
    assert repr(points) == (
        "FixedPoints(none within slow_tolerance=1e-06, smallest speed 1; 0 outliers; 2 units; "
        "0 of 100 initial states converged)"
    )
    assert repr(points) in html.unescape(points._repr_html_())
    assert points.points.shape == (0, 2)
    assert points.jacobians.shape == (0, 2, 2)
    assert points.input_jacobians.shape == (0, 2, 0)
    assert points.eigenvalues.shape == (0, 2)
    assert (points.reached == -1).all()
    counts, decades = points.speed_histogram()
    assert (counts.tolist(), decades.tolist()) == ([100], [0])
    message = (
        r"no search came to a speed .* slow_tolerance=1e-06, .*the smallest speed reached is 1; pass more or other"
    )
    for use in (points.nearest, points.predict, lambda h: points.predict(h, at=0), lambda h: points.rollout(h, 3)):
        with pytest.raises(KannError, match=message):
            use(np.zeros(2))


def test_a_network_that_diverges_from_everywhere_has_no_points():
    points = find_fixed_points(lambda h, x: h * torch.inf, states_of(2) + 1)
    assert "smallest speed inf" in repr(points)


def test_a_report_of_no_points_is_written(tmp_path, rng):
    points = find_fixed_points(lambda h, x: h + 1, states_of(2))
    states = rng.normal(size=(5, 20, 2))
    kann.report(tmp_path / "report.html", kann.fit(states), states, fixed_points=points)
    assert (tmp_path / "report.html").stat().st_size


@pytest.mark.parametrize("where", ["memory", "torch", "store"])
def test_ragged_states_are_where_the_search_starts(where, tmp_path):
    rows = states_of(2)
    states = kann.States(values=rows, lengths=np.array([60, 30, 10]))
    if where == "torch":
        states = kann.States(values=torch.from_numpy(rows), lengths=states.lengths)
    if where == "store":
        states.save(tmp_path / "states.zarr")
        states = kann.States.open(tmp_path / "states.zarr")
    expected, found = find_fixed_points(double, rows), find_fixed_points(double, states)
    np.testing.assert_array_equal(found.points, expected.points)
    np.testing.assert_array_equal(found.reached, expected.reached)


@pytest.mark.parametrize("kind", [">f8", ">f4", np.longdouble, np.float16])
def test_initial_states_in_any_order_of_bytes_and_precision(kind):
    rows = states_of(2).astype(kind)
    np.testing.assert_array_equal(
        find_fixed_points(double, rows).points, find_fixed_points(double, rows.astype(np.float64)).points
    )


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("initial", "message"),
    [
        (torch.zeros(3, 2).to_sparse(), r"layout torch.sparse_coo was passed; pass a dense one, tensor.to_dense"),
        (torch.zeros(3, 2, device="meta"), "on the meta device was passed"),
        (np.ma.masked_array(np.zeros((3, 2)), mask=np.eye(3, 2)), "a masked array was passed"),
        (np.zeros((3, 2), dtype=complex), "initial states are complex128; pass real numbers"),
        (np.zeros((3, 2), dtype=object), "initial states are object"),
        ([[0.0, 1.0], [0.0]], "cannot be read as an array"),
        ("states", r"shape \(\)"),
        (None, r"shape \(\)"),
    ],
)
def test_other_kinds_of_initial_states_and_inputs_are_refused(initial, message):
    with pytest.raises(KannError, match=message):
        find_fixed_points(double, initial)
    if initial is not None:
        with pytest.raises(KannError, match=message.replace("initial states", "inputs")):
            find_fixed_points(double, states_of(2)[:3], inputs=initial)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": math.nan}, "tolerance=nan is not a finite number; pass 0 < tolerance <= slow_tolerance"),
        ({"tolerance": "1e-9"}, "tolerance='1e-9' is not a finite number"),
        ({"tolerance": None}, "tolerance=None is not a finite number"),
        ({"slow_tolerance": math.nan}, "slow_tolerance=nan is not a finite number"),
        ({"slow_tolerance": np.array("0.")}, r"slow_tolerance=ndarray of <U2, shape \(\) is not a finite number"),
        ({"slow_tolerance": np.zeros(2)}, "slow_tolerance=ndarray of float64"),
        ({"recipe": ["kann"]}, r"recipe=\['kann'\] is no Recipe"),
        ({"recipe": "fpf"}, "recipe='fpf' is no Recipe"),
    ],
)
def test_options_of_other_types_are_refused(options, message):
    with pytest.raises(KannError, match=message):
        find_fixed_points(double, states_of(2), **options)


@pytest.mark.usefixtures("untyped")
def test_predictions_from_what_is_not_numbers_are_refused():
    points = find_fixed_points(nn.GRUCell(3, 2), states_of(2))
    for steps in (1.5, "1", None, True):
        with pytest.raises(KannError, match=r"is not a whole number; pass steps>=1"):
            points.rollout(np.zeros(2), steps)
    with pytest.raises(KannError, match="inputs are complex128; pass real numbers"):
        points.predict(np.zeros(2), inputs=np.zeros(3, dtype=complex))
    with pytest.raises(KannError, match=r"states hold NaN at \(1, 0\); leave such states out"):
        points.nearest([[0.0, 0.0], [math.nan, 0.0]])


def test_other_arguments_that_cannot_be_used_are_refused():
    with pytest.raises(KannError, match=r"tolerance=0.01, slow_tolerance=1e-06; pass 0 < tolerance <= slow_tolerance"):
        find_fixed_points(double, states_of(2), tolerance=0.01)
    with pytest.raises(KannError, match="pass 0 < tolerance"):
        find_fixed_points(double, states_of(2), tolerance=0.0)


def test_a_module_that_cannot_be_copied_says_what_to_do():
    network = nn.Linear(2, 2)
    network.cached = network.weight * 2  # a tensor with a history, which torch does not copy
    with pytest.raises(KannError, match=r"Linear cannot be copied .*pass lambda h, x: module"):
        find_fixed_points(network, states_of(2))
