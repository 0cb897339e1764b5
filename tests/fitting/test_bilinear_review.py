"""What a reviewer found in bilinear operators."""

import numpy as np
import pytest
import torch

import kann
from kann.errors import KannError


def gated_states(rng, *, sequences=30, steps=20):
    inputs = rng.normal(size=(sequences, steps, 2))
    states = np.zeros((sequences, steps, 3))
    for t in range(1, steps):
        states[:, t] = np.tanh(0.7 * states[:, t - 1] + inputs[:, t] @ np.ones((2, 3)) * [0.5, -0.3, 0.2])
    return kann.States.from_padded(states, inputs=inputs)


def test_of_noise_no_ridge_predicts_anything_however_many_columns(rng):
    noise = kann.States.from_padded(rng.normal(size=(60, 60, 9)), inputs=rng.normal(size=(60, 60, 3)))
    koopman = kann.fit(noise, driven="bilinear", features=kann.features.Fourier(110))  # more columns than 1,000
    assert koopman.ridge_curve.errors.min() > 0.95


def test_copies_of_a_sequence_are_held_out_together(rng):
    few = [rng.normal(size=(8, 3)) for _ in range(6)]
    read = [rng.normal(size=(8, 2)) for _ in range(6)]
    options = {"driven": "bilinear", "features": kann.features.Fourier(12)}
    with pytest.warns(kann.errors.FewPairsWarning):
        once = kann.fit(kann.States.from_sequences(few, inputs=read), **options)
    with pytest.warns(kann.errors.FewPairsWarning):
        often = kann.fit(kann.States.from_sequences(few * 5, inputs=read * 5), **options)
    assert often.ridge_curve.errors[1:].min() > 0.5 * once.ridge_curve.errors[1:].min()


def test_groups_are_held_out_together_for_the_ridge(rng):
    """Noise that three sequences share is predicted from the others of the group, unless groups are held out."""
    shared = np.repeat(rng.normal(size=(10, 8, 3)), 3, axis=0)
    read = np.repeat(rng.normal(size=(10, 8, 2)), 3, axis=0)
    noisy = shared + 0.01 * rng.normal(size=shared.shape)
    states, groups = kann.States.from_padded(noisy, inputs=read), np.repeat(np.arange(10), 3)
    options = {"driven": "bilinear", "features": kann.features.Fourier(12)}
    with pytest.warns(kann.errors.FewPairsWarning):
        found = kann.fit(states, groups=groups, **options).ridge_curve
    with pytest.warns(kann.errors.FewPairsWarning):
        alone = kann.fit(states, **options).ridge_curve
    assert found.errors.min() > 0.9
    assert alone.errors.min() < 0.7
    with pytest.raises(KannError, match="which hold groups out"):
        kann.fit(states, driven="bilinear", groups=groups, ridge=1e-5)


def test_single_states_repeat_nothing(rng):
    states = gated_states(rng)
    # Cuts off the zeros with which every sequence begins: joined as copies, all would be one group and none held out.
    koopman = kann.fit(states, driven="bilinear", where=lambda u: u[:, 0] > 0)
    assert koopman.ridge_curve.errors.max() < 0.5


def test_residuals_of_a_lifted_operator_are_not_those_of_its_matrix(rng):
    inputs = rng.uniform(-0.3, 0.3, size=(40, 20, 1)).round(1)
    states = np.zeros((40, 20, 1))
    for t in range(1, 20):
        states[:, t] = 0.2 * states[:, t - 1] - 0.9 * states[:, t - 1] ** 2 + inputs[:, t]
    data = kann.States.from_padded(states, inputs=inputs)
    koopman = kann.fit(data, driven="bilinear", lift="squares")
    assert koopman.at([0.0]).modes[0].residual == np.inf
    assert 0.01 < koopman.at([0.0], states=data).modes[0].residual < np.inf
    assert kann.fit(data, driven="bilinear").at([0.0]).modes[0].residual < np.inf


def test_the_state_around_which_to_linearise_is_checked(rng):
    koopman = kann.fit(gated_states(rng), driven="bilinear")
    with pytest.raises(KannError, match="states have 99 columns; the operator has 3"):
        koopman.at(None, around=np.zeros(99))


def test_an_input_may_be_a_parameter(rng):
    states = gated_states(rng)
    koopman = kann.fit(states, driven="bilinear")
    row = states.inputs[3]
    expected = koopman.at(row, states=states)
    found = koopman.at(torch.tensor(row, requires_grad=True), states=states)
    np.testing.assert_array_equal(found.residuals, expected.residuals)


def test_numbers_that_no_token_has_are_refused(rng):
    tokens = rng.integers(0, 4, size=(20, 30, 1)).astype(float)
    states = kann.States.from_padded(rng.normal(size=(20, 30, 3)), inputs=tokens)
    koopman = kann.fit(states, driven="bilinear", features="tokens")
    for number in (99.0, 1.5, -1.0):
        with pytest.raises(KannError, match="is no token; the operator knows the numbers 0 to 3"):
            koopman.at([number])
        with pytest.raises(KannError, match="is no token"):
            koopman.simulate(np.full((1, 4, 1), number))


def test_functions_get_numpy_arrays_of_states_on_the_host(rng):
    states = gated_states(rng)
    tensors = kann.States(
        values=torch.from_numpy(states.values), lengths=states.lengths, inputs=torch.from_numpy(states.inputs)
    )
    seen = []

    def features(u):
        seen.append(type(u))
        return np.concatenate([u, np.abs(u)], axis=1)

    koopman = kann.fit(tensors, driven="bilinear", features=features)
    koopman.at([1.0, 2.0])
    assert set(seen) == {np.ndarray}


@pytest.mark.usefixtures("untyped")
def test_trust_says_why_it_does_not_take_the_operator_of_an_input(rng):
    states = gated_states(rng)
    koopman = kann.fit(states, driven="bilinear")
    for given in (koopman, koopman.at(None)):
        with pytest.raises(KannError, match=r"fit the steps that read u, .* with kann\.fit\(states, where=quiet\)"):
            kann.trust(given, states)
