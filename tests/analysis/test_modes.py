import numpy as np
import pytest
import scipy.sparse
import torch

import kann
from kann.errors import KannError
from tests.systems import AS_IN_PAPER, noisy_states, run, stable_matrix


@pytest.fixture
def states(rng):
    return kann.States.from_padded(noisy_states(rng) + 0.3, rng.integers(2, 40, 12))


@pytest.fixture(params=[("svd", None), ("svd", 6), ("pca", 6), ("fourier", 5)])
def koopman(request, states):
    basis, rank = request.param
    return kann.fit(states, basis=basis, rank=rank)


def test_projections_evolve_by_their_eigenvalues(rng):
    A = stable_matrix(rng, 6)
    values = run(A, rng.normal(size=(8, 6)), 20)
    koopman = kann.fit(values, **AS_IN_PAPER)
    projected = kann.project(koopman, values)
    np.testing.assert_allclose(projected[:, 1:], projected[:, :-1] * koopman.eigenvalues, atol=1e-9)
    np.testing.assert_allclose(kann.magnitude(koopman, values), np.abs(projected))


def test_importance_sums_over_time_and_averages_over_sequences(koopman, states):
    expected = np.mean([kann.magnitude(koopman, h).sum(axis=0) for h in states], axis=0)
    np.testing.assert_allclose(kann.importance(koopman, states), expected)


def test_all_modes_together_give_back_what_lies_in_the_basis(koopman, states):
    h = states.values
    np.testing.assert_allclose(
        kann.reconstruct(koopman, h, range(len(koopman.modes))), koopman.decode(koopman.encode(h)), atol=1e-9
    )


def test_keeping_modes_is_a_projection_and_modes_add_up(koopman, states):
    h = states.values[:20]
    one, two, both = (kann.reconstruct(koopman, h, modes) for modes in (0, koopman.modes[1], [0, 1]))
    np.testing.assert_allclose(kann.reconstruct(koopman, one, 0), one, atol=1e-9)
    np.testing.assert_array_equal(kann.reconstruct(koopman, h, [0, 0]), one)
    np.testing.assert_allclose(one + two - koopman.mean, both, atol=1e-9)
    assert one.dtype == np.float64


def test_the_papers_modulus_loses_signs(rng):
    # C = [[.9, .2], [0, .5]] has the eigenvectors (1, 0) and (.2, −.4). By hand, V⁻¹ = [[1, .5], [0, −2.5]], so the
    # projection onto the second mode is V₁ U₁ = [[0, −.5], [0, 1]], and its modulus [[0, .5], [0, 1]].
    values = run(np.array([[0.9, 0.2], [0.0, 0.5]]), rng.normal(size=(9, 2)), 12)
    koopman = kann.fit(values, basis=np.eye(2))
    h = np.array([[1.0, 1.0], [2.0, -1.0]])
    np.testing.assert_allclose(kann.reconstruct(koopman, h, 1), [[0, 0.5], [0, -2]], atol=1e-9)
    np.testing.assert_allclose(kann.reconstruct(koopman, h, 1, part="modulus"), [[0, 1.5], [0, 0]], atol=1e-9)


@pytest.mark.parametrize("with_bias", [False, True])
def test_contributions_sum_to_the_readout(rng, koopman, states, with_bias):
    weight, bias = rng.normal(size=(3, 10)), rng.normal(size=3) if with_bias else None
    h = states.padded()
    shares = kann.contributions(koopman, h, weight, bias)
    assert shares.modes.shape == (*h.shape[:-1], len(koopman.modes), 3)
    np.testing.assert_allclose(shares.total, h @ weight.T + (0 if bias is None else bias), atol=1e-9)


def test_contributions_of_a_defective_operator_sum_to_the_readout(tmp_path):
    """[[0, 1], [0, 0]] has one eigenvector for two directions: what that cannot represent is in no mode."""
    h = np.array([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    with pytest.warns(kann.errors.ConditionWarning):
        koopman = kann.fit(h, **AS_IN_PAPER)
    koopman.save(tmp_path / "operator.npz")
    for operator in (koopman, kann.Koopman.load(tmp_path / "operator.npz")):
        found = kann.contributions(operator, h, np.eye(2), np.ones(2))
        np.testing.assert_allclose(found.total, h + 1, atol=1e-12)
        np.testing.assert_allclose(found.rest + found.modes.sum(-2), h, atol=1e-12)


def test_a_modes_contribution_is_the_readout_of_the_state_with_that_mode_alone(rng, koopman, states):
    weight, h = rng.normal(size=(2, 10)), states.values[:7]
    shares = kann.contributions(koopman, h, weight)
    for number in range(len(koopman.modes)):
        alone = kann.reconstruct(koopman, h, number) - koopman.mean
        np.testing.assert_allclose(shares.modes[:, number], alone @ weight.T, atol=1e-9)


def test_contributions_take_the_parameters_of_a_torch_layer(koopman, states):
    layer = torch.nn.Linear(10, 2)
    h = states.values[:5].astype(np.float32)
    shares = kann.contributions(koopman, h, layer.weight, layer.bias)
    np.testing.assert_allclose(shares.total, layer(torch.tensor(h)).detach().numpy(), atol=1e-5)


def test_a_decision_map_shows_the_class_of_a_mode_scaled_and_turned(rng):
    koopman = kann.fit(noisy_states(rng))
    number = next(i for i, mode in enumerate(koopman.modes) if len(mode.indices) == 2)
    axis = np.linspace(-2, 2, 9)
    grid = axis + 1j * axis[:, None]
    weight = rng.normal(size=(4, 10))
    shown = kann.decision_map(koopman, number, lambda h: h @ weight.T, grid)
    assert shown.shape == grid.shape
    index = koopman.modes[number].indices[0]
    for at in ((0, 3), (8, 1), (2, 7)):
        h = koopman.decode(np.real(grid[at] * koopman.left[index]))
        assert shown[at] == (h @ weight.T).argmax()
        # The state holds this mode and no other: half of z, as the conjugate has the other half.
        z = kann.project(koopman, h)
        np.testing.assert_allclose(z[index], grid[at] / 2, atol=1e-9)
        np.testing.assert_allclose(np.delete(z, koopman.modes[number].indices), 0, atol=1e-9)
    module = torch.nn.Linear(10, 4)
    torch.nn.init.zeros_(module.bias)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(weight))
    np.testing.assert_array_equal(kann.decision_map(koopman, koopman.modes[number], module, grid), shown)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k, h: kann.reconstruct(k, h, 99), "mode 99 does not exist; the operator has modes 0 to"),
        (lambda k, h: kann.reconstruct(k, h, None), "mode=None is not a whole number"),
        (lambda k, h: kann.reconstruct(k, h, [0, 1.5]), "mode=1.5 is not a whole number"),
        (lambda k, h: kann.reconstruct(k, h, True), "mode=True is not a whole number"),
        (lambda k, h: kann.reconstruct(k, h, "01"), "modes='01' names no modes"),
        (lambda k, h: kann.reconstruct(k, h, scipy.sparse.eye(4)), "a sparse dia_matrix was passed"),
        (lambda k, h: kann.reconstruct(k, h, 0, part="imaginary"), "part='imaginary' is unknown"),
        (lambda k, h: kann.decision_map(k, [0, 1], lambda h: h, np.ones(1)), "2 modes were passed"),
        (lambda k, h: kann.decision_map(k, 0, lambda h: h, np.array(["a"])), "grid is <U1; pass complex numbers"),
        (lambda k, h: kann.decision_map(k, 0, lambda h: h, [np.nan]), r"grid's numbers hold NaN at \(0,\)"),
        (
            lambda k, h: kann.contributions(k, h, np.ones((2, 10)), np.ones(3)),
            r"bias of shape \(3,\) does not fit 2 outputs",
        ),
        (lambda k, h: kann.contributions(k, h, np.ones((2, 10)), "b"), "the readout's biases are str32"),
        (lambda k, h: kann.contributions(k, h, np.ones((2, 10)) * 1j), "readout weights are complex128; pass real"),
        (lambda k, h: kann.project(k, h + 0j), "states are complex128; pass real numbers"),
        (lambda k, h: kann.project(k, np.ma.masked_array(h, h > 0)), "a masked array was passed"),
        (lambda k, h: kann.reconstruct(k, h, kann.fit(h[None] ** 3).modes[0]), "mode of another operator"),
        (
            lambda k, h: kann.contributions(k, h, np.ones((2, 9))),
            r"weight of shape \(2, 9\); pass a linear one of \(outputs, 10\)",
        ),
        (lambda k, h: kann.contributions(k, h, np.ones(10)), r"weight of shape \(10,\); pass a linear one"),
        (lambda k, h: kann.project(k, h[:, :3]), "states have 3 columns"),
        (lambda k, h: kann.decision_map(k, 0, torch.nn.Tanh(), np.ones(1) + 0j), "without parameters"),
    ],
)
def test_wrong_questions_are_refused(koopman, states, call, message):
    with pytest.raises(KannError, match=message):
        call(koopman, states.values)
