"""Operators that their inputs gate: z' ≈ z C + φ(u) D + c + Σ φ_k(u) z E_k."""

import numpy as np
import pytest
import torch

import kann
from kann.fitting import gated_sums as gated_products
from tests.systems import eigenvalue_distance, stable_matrix


def step(h, u, C, D, c, E):
    return h @ C + u @ D + c + np.einsum("...k,...i,kij->...j", u, h, E)


def simulated(rng, h, u, system):
    path = [h]
    for t in range(1, u.shape[1]):
        path.append(step(path[-1], u[:, t], *system))
    return np.stack(path, axis=1)


@pytest.fixture
def system(rng):
    """C, D, c, E of a bilinear system that stays bounded, its inputs and its states."""
    C, E = 0.6 * stable_matrix(rng, 4), 0.1 * rng.normal(size=(2, 4, 4))
    D, c = rng.normal(size=(2, 4)), rng.normal(size=4)
    u = rng.uniform(-1, 1, size=(20, 50, 2)) + 0.3
    h = simulated(rng, rng.normal(size=(20, 4)), u, (C, D, c, E))
    return (C, D, c, E), u, kann.States.from_padded(h, inputs=u)


def latch(rng, rate, *, bits=3, sequences=40, steps=120):
    """States of latches that pulses of ±1 set, and the pulses."""
    pulses = (rng.random((sequences, steps, bits)) < rate) * rng.choice([-1.0, 1.0], size=(sequences, steps, bits))
    values = rng.choice([-1.0, 1.0], size=(sequences, steps, bits))
    for t in range(1, steps):
        values[:, t] = np.where(pulses[:, t] == 0, values[:, t - 1], pulses[:, t])
    return kann.States.from_padded(values, inputs=pulses)


def in_states(koopman, matrix):
    return koopman.basis @ matrix @ koopman.basis.T


@pytest.mark.parametrize("ridge", [None, 0.0])
def test_a_known_bilinear_system_is_recovered(system, ridge):
    (C, D, c, E), _, states = system
    koopman = kann.fit(states, driven="bilinear", ridge=ridge)
    np.testing.assert_allclose(in_states(koopman, koopman.matrix), C, atol=1e-8)
    for k in range(2):
        np.testing.assert_allclose(in_states(koopman, koopman.gates[k]), E[k], atol=1e-8)
    h, u = np.ones(4), np.array([0.2, -0.4])
    np.testing.assert_allclose(koopman.predict(h, inputs=u), step(h, u, C, D, c, E), atol=1e-8)
    assert koopman.ridge == 0.0
    assert kann.relative_error(koopman, states) < 1e-15


@pytest.mark.parametrize("lift", [None, "squares"])
def test_inputs_that_repeat_are_multiplied_once_and_give_the_same_operator(rng, monkeypatch, lift):
    words = rng.normal(size=(30, 3))
    u = words[rng.integers(30, size=(25, 200))]
    h = 0.1 * rng.normal(size=(25, 200, 3))
    for t in range(1, 200):
        h[:, t] += np.tanh(0.7 * h[:, t - 1] * u[:, t]) + 0.2 * u[:, t]
    states = kann.States.from_padded(h, inputs=u)
    widths = []
    multiply = gated_products.pair_panels
    monkeypatch.setattr(gated_products, "pair_panels", lambda rows: widths.append(rows.shape[1]) or multiply(rows))
    together = kann.fit(states, driven="bilinear", lift=lift, ridge=1e-6)
    assert sum(widths) < 5000 / 50  # 30 words, and those that are cut between pieces, instead of 5,000 pairs
    monkeypatch.setattr(gated_products, "order_of_repeats", lambda _: None)
    apart = kann.fit(states, driven="bilinear", lift=lift, ridge=1e-6)
    np.testing.assert_allclose(together.matrix, apart.matrix, atol=1e-10)
    np.testing.assert_allclose(together.gates, apart.gates, atol=1e-10)
    if lift:
        np.testing.assert_allclose(together.squares, apart.squares, atol=1e-10)


def test_an_input_has_a_matrix_of_its_own(system):
    (C, D, c, E), _, states = system
    koopman = kann.fit(states, driven="bilinear")
    u = np.array([0.5, -0.2])
    there = koopman.at(u)
    assert isinstance(there, kann.Koopman)
    assert eigenvalue_distance(there.eigenvalues, np.linalg.eigvals(C + np.tensordot(u, E, 1))) < 1e-8
    np.testing.assert_allclose(there.predict(np.ones(4)), step(np.ones(4), u, C, D, c, E), atol=1e-8)
    np.testing.assert_allclose(koopman.matrices(u[None])[0], there.matrix, atol=1e-12)
    np.testing.assert_allclose(koopman.pushes(u[None])[0], there.offset, atol=1e-12)
    assert eigenvalue_distance(koopman.at(None).eigenvalues, np.linalg.eigvals(C)) < 1e-8
    assert eigenvalue_distance(koopman.at(np.zeros(2)).eigenvalues, np.linalg.eigvals(C)) < 1e-8
    mean = states.inputs.reshape(20, 50, 2)[:, 1:].mean((0, 1))
    np.testing.assert_allclose(koopman.at("mean").matrix, koopman.at(mean).matrix, atol=1e-10)
    assert there.residuals.max() < 1e-6


@pytest.mark.parametrize("rate", [0.3, 0.1, 0.01])
def test_a_latch_keeps_what_it_holds_at_any_pulse_rate(rng, rate):
    states = latch(rng, rate)
    koopman = kann.fit(states, driven="bilinear", features="squares")
    np.testing.assert_allclose(koopman.at(None).eigenvalues, 1.0, atol=1e-6)
    driven = kann.fit(states, driven=True)
    np.testing.assert_allclose(np.abs(driven.eigenvalues), 1 - rate, atol=0.05)  # follows what is read instead
    quiet = kann.fit(states, where=lambda u: (u == 0).all(-1))
    np.testing.assert_allclose(quiet.eigenvalues, 1.0, atol=1e-6)
    # A pulse of the first bit clears it and leaves the others alone.
    pulsed = np.sort(np.abs(koopman.at([1.0, 0.0, 0.0]).eigenvalues))
    np.testing.assert_allclose(pulsed, [0, 1, 1], atol=1e-6)


def test_simulation_follows_the_true_system(system, rng):
    known, _, states = system
    koopman = kann.fit(states, driven="bilinear")
    u = rng.uniform(-1, 1, size=(3, 30, 2)) + 0.3
    start = states.padded()[:3, 10]
    path = simulated(rng, start, np.concatenate([u[:, :1], u], axis=1), known)[:, 1:]
    np.testing.assert_allclose(koopman.simulate(u, start), path, atol=1e-6)
    np.testing.assert_allclose(koopman.simulate(torch.tensor(u[0]), start[0]), path[0], atol=1e-6)
    np.testing.assert_allclose(koopman.rollout(start, 5, inputs=u[:, :5]), path[:, :5], atol=1e-6)
    np.testing.assert_allclose(koopman.predict(start, 5, inputs=u[:, :5]), path[:, 4], atol=1e-6)
    zero = koopman.simulate(u[0, :1])
    np.testing.assert_allclose(zero[0], step(np.zeros(4), u[0, 0], *known), atol=1e-6)


def test_simulation_stays_in_the_range_that_was_recorded(system):
    _, _, states = system
    koopman = kann.fit(states, driven="bilinear")
    far = koopman.encode(koopman.simulate(1e6 * np.ones((50, 2))))
    assert (far >= koopman.bounds[0] - 1e-9).all()
    assert (far <= koopman.bounds[1] + 1e-9).all()
    z = koopman.encode(states.values)
    np.testing.assert_allclose(koopman.bounds, [z.min(0), z.max(0)], atol=1e-9)


def test_products_of_coordinates_are_fitted_and_linearised(rng):
    u = rng.uniform(-1, 1, size=(30, 40, 1))
    h = rng.uniform(-1, 1, size=(30, 40, 2))
    for t in range(1, 40):
        a, b = h[:, t - 1].T
        h[:, t] = np.stack([0.5 * a + 0.2 * b * b + 0.1 * u[:, t, 0], 0.4 * b + 0.3 * a * b + 0.2 * a * u[:, t, 0]], 1)
    states = kann.States.from_padded(h, inputs=u)
    koopman = kann.fit(states, driven="bilinear", lift="squares")
    assert kann.relative_error(koopman, states) < 1e-15
    assert kann.relative_error(kann.fit(states, driven="bilinear"), states) > 1e-6
    at = np.array([0.3, -0.2])
    local = koopman.at(None, around=at)
    jacobian = np.array([[0.5, 0.3 * at[1]], [0.4 * at[1], 0.4 + 0.3 * at[0]]])
    np.testing.assert_allclose(in_states(koopman, local.matrix), jacobian, atol=1e-8)
    np.testing.assert_allclose(local.predict(at), koopman.predict(at, inputs=np.zeros(1)), atol=1e-9)
    np.testing.assert_allclose(koopman.at(None).predict(koopman.mean), koopman.predict(koopman.mean, inputs=[0.0]))


def test_it_is_the_ridge_regression_on_all_columns(rng):
    """The same as least squares on a design that is written out, columns of unit variance and all."""
    lengths = rng.integers(1, 20, 30)
    values, inputs = rng.normal(size=(30, 20, 3)), rng.normal(size=(30, 20, 2)) + 2
    states = kann.States.from_padded(values, lengths, inputs=inputs)
    koopman = kann.fit(states, driven="bilinear", features="squares", lift="squares", ridge=0.01)
    x, y = (koopman.encode(part) for part in states.pairs())
    u = np.delete(states.inputs, states.starts, axis=0)
    deviation = koopman.encode(states.values).std(axis=0)
    x, target = x / deviation, y / deviation
    phi = np.hstack([u, u**2])
    phi = (phi - phi.mean(0)) / phi.std(0)
    i, j = np.triu_indices(3)
    gated = (phi[:, :, None] * x[:, None, :]).reshape(len(x), -1)
    columns = np.hstack([x, phi, gated, x[:, i] * x[:, j]])
    unit = (columns - columns.mean(0)) / columns.std(0)
    weights = np.linalg.solve(unit.T @ unit / len(x) + 0.01 * np.eye(unit.shape[1]), unit.T @ target / len(x))
    expected = unit @ weights + target.mean(0)
    states_before = states.pairs()[0]
    z = koopman.encode(states_before)
    found = koopman._step(z, np.hstack([u, u**2]), koopman.step_weights) / deviation
    np.testing.assert_allclose(found, expected, atol=1e-9)
    missed = (target - expected) * deviation
    np.testing.assert_allclose(koopman.residual_gram, missed.T @ missed, atol=1e-8)


def test_the_ridge_is_chosen_on_sequences_that_were_held_out(rng):
    noise = kann.States.from_padded(rng.normal(size=(12, 15, 3)), inputs=rng.normal(size=(12, 15, 4)))
    koopman = kann.fit(noise, driven="bilinear", features="squares")
    assert koopman.ridge == 1e-2  # the largest: there is nothing to find
    assert koopman.ridge_curve.errors.argmin() == len(koopman.ridge_curve.ridges) - 1


@pytest.mark.parametrize(
    ("features", "count"),
    [
        (None, 3),
        ("inputs", 3),
        ("squares", 6),
        ("products", 9),
        (kann.features.Components(2), 2),
        (kann.features.Fourier(20, seed=1), 20),
        (lambda u: np.tanh(np.asarray(u))[:, :2], 2),
    ],
)
def test_features_are_functions_of_the_inputs(rng, features, count):
    states = kann.States.from_padded(rng.normal(size=(12, 40, 3)), inputs=rng.normal(size=(12, 40, 3)))
    koopman = kann.fit(states, driven="bilinear", features=features, ridge=1e-4)
    assert koopman.features.count == count
    assert koopman.gates.shape == (count, 3, 3)
    u = rng.normal(size=(5, 3))
    np.testing.assert_allclose(koopman.matrices(u)[2], koopman.at(u[2]).matrix)
    assert koopman.simulate(u).shape == (5, 3)


def test_products_let_a_flag_load_a_value(rng):
    value, flag = rng.normal(size=(30, 40, 1)), (rng.random((30, 40, 1)) < 0.3).astype(float)
    held = np.zeros((30, 40, 1))
    for t in range(1, 40):
        held[:, t] = np.where(flag[:, t] == 1, value[:, t], held[:, t - 1])
    states = kann.States.from_padded(held, inputs=np.concatenate([value, flag], axis=2))
    koopman = kann.fit(states, driven="bilinear", features="products", basis="fourier", rank=1, ridge=0.0)
    # While the flag is set nothing is kept, and the value is added; otherwise all is kept, and nothing added.
    inputs = np.array([[2.0, 1.0], [2.0, 0.0]])
    np.testing.assert_allclose(koopman.matrices(inputs)[:, 0, 0], [0, 1], atol=1e-8)
    np.testing.assert_allclose(koopman.pushes(inputs) @ koopman.basis.T, [[2], [0]], atol=1e-8)


def test_principal_components_are_those_of_the_inputs(rng):
    inputs = rng.normal(size=(12, 40, 3)) * [1.0, 5.0, 0.1] + 7
    states = kann.States.from_padded(rng.normal(size=(12, 40, 3)), inputs=inputs)
    koopman = kann.fit(states, driven="bilinear", features=kann.features.Components(1), ridge=1e-4)
    np.testing.assert_allclose(np.abs(koopman.features.matrix[:, 0]), [0, 1, 0], atol=0.02)
    assert np.abs(koopman.feature_mean).max() < 1e-9


def test_one_column_a_token(rng):
    tokens = rng.integers(0, 4, size=(30, 40, 1))
    matrices = [0.9 * stable_matrix(rng, 3) for _ in range(4)]
    h = rng.normal(size=(30, 40, 3))
    for t in range(1, 40):
        for word in range(4):
            chosen = tokens[:, t, 0] == word
            h[chosen, t] = h[chosen, t - 1] @ matrices[word] + word
    states = kann.States.from_padded(h, inputs=tokens.astype(float))
    koopman = kann.fit(states, driven="bilinear", features="tokens")
    assert koopman.features.count == 4
    for word in range(4):
        found = koopman.at([word])
        assert eigenvalue_distance(found.eigenvalues, np.linalg.eigvals(matrices[word])) < 1e-4
        assert koopman.at([word], states=states).residuals.max() < 1e-3
    np.testing.assert_allclose(koopman.simulate(tokens[0, 1:], h[0, 0]), h[0, 1:], atol=1e-3)
    with pytest.raises(kann.KannError, match="reads one in every step"):
        koopman.at(None)


def test_residuals_on_the_states_where_an_input_was_read(rng):
    states = latch(rng, 0.1)
    noisy = kann.States(values=states.values + 0.1 * rng.normal(size=states.values.shape), lengths=states.lengths,
                        inputs=states.inputs)  # fmt: skip
    koopman = kann.fit(noisy, driven="bilinear", features="squares")
    quiet = koopman.at(None, states=noisy)
    before, after = noisy.pairs()
    read = np.delete(noisy.inputs, noisy.starts, axis=0)
    chosen = (read == 0).all(axis=1)
    x, y = koopman.encode(before[chosen]), koopman.encode(after[chosen])
    v = quiet.right[:, 0]
    missed = (y - quiet.offset) @ v - quiet.eigenvalues[0] * (x @ v)
    expected = np.linalg.norm(missed) / np.linalg.norm((x - x.mean(0)) @ v)
    np.testing.assert_allclose(quiet.residuals[0], expected, rtol=1e-9)
    with pytest.raises(kann.KannError, match="read at no step"):
        koopman.at([0.5, 0.5, 0.5], states=noisy)


def test_the_order_of_sequences_and_the_units_change_nothing(system, rng):
    _, u, states = system
    koopman = kann.fit(states, driven="bilinear", ridge=1e-5)
    turn, order = np.linalg.qr(rng.normal(size=(4, 4)))[0], rng.permutation(20)
    other = kann.fit(
        kann.States.from_padded(states.padded()[order] @ turn, inputs=u[order]), driven="bilinear", ridge=1e-5
    )
    at = np.array([0.1, 0.7])
    np.testing.assert_allclose(np.abs(other.at(at).eigenvalues), np.abs(koopman.at(at).eigenvalues), atol=1e-9)


def test_save_and_load(system, tmp_path, rng):
    _, u, states = system
    for features, lift in [
        ("inputs", None),
        ("squares", "squares"),
        ("products", None),
        (kann.features.Components(1), None),
        (kann.features.Fourier(5), None),
    ]:
        koopman = kann.fit(states, driven="bilinear", features=features, lift=lift, rank=3)
        koopman.save(tmp_path / "gated.npz")
        again = kann.Bilinear.load(tmp_path / "gated.npz")
        np.testing.assert_array_equal(again.simulate(u[:2, :9]), koopman.simulate(u[:2, :9]))
        assert repr(again) == repr(koopman)
        np.testing.assert_array_equal(again.ridge_curve.errors, koopman.ridge_curve.errors)
    with pytest.raises(kann.KannError, match=r"holds kann.Bilinear, not kann.Koopman"):
        kann.Koopman.load(tmp_path / "gated.npz")


def test_a_function_is_passed_again_when_its_operator_is_loaded(system, tmp_path):
    _, u, states = system
    koopman = kann.fit(states, driven="bilinear", features=np.tanh)
    koopman.save(tmp_path / "gated.npz")
    with pytest.raises(kann.KannError, match="features that are a function"):
        kann.Bilinear.load(tmp_path / "gated.npz")
    again = kann.Bilinear.load(tmp_path / "gated.npz", features=np.tanh)
    np.testing.assert_array_equal(again.simulate(u[:2]), koopman.simulate(u[:2]))
    kann.fit(states, driven="bilinear").save(tmp_path / "known.npz")
    with pytest.raises(kann.KannError, match="knows its features"):
        kann.Bilinear.load(tmp_path / "known.npz", features=np.tanh)


# What cannot be used


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": lambda u: np.full((len(u), 2), np.nan)}, "gave NaN or infinite numbers"),
        ({"features": lambda u: np.ones((len(u), 1 + (len(u) > 2)))}, "gave 2 columns for .* inputs and 1 for others"),
        ({"features": lambda u: np.ones(len(u))}, r"gave ndarray of float64, shape .* pass a function"),
        ({"features": lambda u: u @ np.ones(7)}, r"features failed on inputs .* \(ValueError"),
        ({"features": "cosines"}, "features='cosines' is unknown; pass 'inputs', 'squares'"),
        ({"features": kann.features.Components(3)}, "2 inputs have no 3 components"),
        ({"features": "tokens"}, "needs one whole number"),
        ({"lift": "cubes"}, "lift='cubes' is unknown"),
        ({"rank": "auto"}, "rank='auto' is for operators without gates"),
        ({"offset": False}, "a bilinear operator has an offset"),
        ({"ridge": -1}, "would reward large operators"),
        ({"driven": "trilinear"}, "driven='trilinear' is unknown; pass 'bilinear'"),
        ({"driven": True, "features": "squares"}, "are for inputs that gate; pass driven='bilinear'"),
        ({"features": kann.features.Fourier(40_000)}, "40000 features make 200005 columns, .* 298 GB; pass a smaller"),
        ({"where": np.ones(3, dtype=bool)}, "is no mask of 1000 states"),
        ({"where": lambda u: u}, r"where\(inputs\) gave"),
        ({"where": np.zeros(1000, dtype=bool)}, "leaves no pair of states"),
    ],
)
def test_what_cannot_be_fitted_is_refused(system, options, message):
    with pytest.raises(kann.KannError, match=message):
        kann.fit(system[2], **({"driven": "bilinear"} | options))


def test_inputs_and_states_must_be_there(system):
    _, _, states = system
    bare = kann.States(values=states.values, lengths=states.lengths)
    with pytest.raises(kann.KannError, match="needs the inputs that drove the states"):
        kann.fit(bare, driven="bilinear")
    with pytest.raises(kann.KannError, match="is a function of inputs and the states have none"):
        kann.fit(bare, where=lambda u: u[:, 0] > 0)
    with pytest.raises(kann.KannError, match="which moments do not hold; pass states"):
        kann.fit(kann.Moments.of(states), driven="bilinear")
    with pytest.raises(kann.KannError, match="which moments no longer hold; pass states"):
        kann.fit(kann.Moments.of(states), where=np.ones(1000, dtype=bool))
    with pytest.raises(kann.KannError, match="chosen on held-out sequences, and 2 of two states or more"):
        kann.fit(states[:2], driven="bilinear")


def test_more_features_than_pairs_are_warned_of(rng):
    states = kann.States.from_padded(rng.normal(size=(5, 9, 4)), inputs=rng.normal(size=(5, 9, 3)))
    with pytest.warns(kann.errors.FewPairsWarning, match=r"40 pairs of states for 85 unknowns .* fewer features"):
        kann.fit(states, driven="bilinear", features=kann.features.Fourier(16))


@pytest.mark.usefixtures("untyped")
def test_wrong_inputs_of_the_operator_are_refused(system):
    koopman = kann.fit(system[2], driven="bilinear")
    for call, message in [
        (lambda: koopman.at([1.0]), r"u has shape \(1,\); pass one input of shape \(2,\)"),
        (lambda: koopman.at("words"), "u='words' is no input"),
        (lambda: koopman.at([1.0, 0.0], states=3), "states=3 is no States"),
        (lambda: koopman.at("mean", states=system[2]), "read at no step"),
        (lambda: koopman.predict(np.ones(4)), "reads inputs; pass inputs="),
        (lambda: koopman.simulate(np.ones((3, 5))), "inputs have 5 columns; the operator has 2"),
        (lambda: koopman.simulate(np.ones(2)), "do not cover the steps"),
        (lambda: koopman.rollout(np.ones(4), 3, inputs=np.ones((2, 2))), "do not cover 3 steps"),
        (lambda: koopman.rollout(np.ones((5, 4)), 2, inputs=np.ones((3, 2, 2))), "do not line up with states"),
        (lambda: koopman.matrices(np.ones(2)), "pass one row for each input"),
    ]:
        with pytest.raises(kann.KannError, match=message):
            call()


@pytest.mark.usefixtures("untyped")
def test_functions_of_one_operator_say_what_to_pass(system):
    _, _, states = system
    koopman = kann.fit(states, driven="bilinear")
    for call in [
        lambda: kann.project(koopman, states),
        lambda: kann.importance(koopman, states),
        lambda: kann.contributions(koopman, states.values, np.ones((1, 4))),
        lambda: kann.pseudospectrum(koopman, states),
        lambda: kann.orthogonality(koopman),
        lambda: kann.reconstruct(koopman, states.values, 0),
    ]:
        with pytest.raises(kann.KannError, match=r"pass koopman\.at\(None\)"):
            call()
    with pytest.raises(kann.KannError, match="trust judges one"):
        kann.trust(koopman, states)
    assert kann.importance(koopman.at(None), states).shape == (4,)
