"""Readouts of outputs from the coordinates of an operator."""

import numpy as np
import pytest

import kann
from kann.stand_ins import Readout, fit_readout


@pytest.fixture
def states(rng):
    lengths = rng.integers(5, 20, size=40)
    sequences = [rng.normal(size=(length, 4)) for length in lengths]
    inputs = [rng.normal(size=(length, 2)) for length in lengths]
    return kann.States.from_sequences(sequences, inputs=inputs)


@pytest.fixture
def koopman(states):
    return kann.fit(states, driven=True, rank=2, basis=np.eye(4)[:, :2])


def test_a_linear_output_of_the_coordinates_is_read_exactly(states, koopman):
    outputs = states.values[:, :2] @ np.array([[1.0, 2.0, 0.0], [-1.0, 0.0, 3.0]]) + [1.0, 2.0, 3.0]
    readout = fit_readout(koopman, states, outputs, products=False)
    assert not readout.has_products
    assert not readout.per_sequence
    np.testing.assert_allclose(readout(koopman.encode(states.values)), outputs, atol=1e-4)  # the ridge is 1e-6
    assert readout.r_squared > 1 - 1e-8


def test_products_are_read_where_they_explain_more_on_held_out_sequences(states, koopman, rng):
    quadratic = states.values[:, 0] * states.values[:, 1] + states.values[:, 0]
    readout = fit_readout(koopman, states, quadratic)
    assert readout.has_products
    np.testing.assert_allclose(readout(koopman.encode(states.values))[:, 0], quadratic, atol=1e-4)
    assert fit_readout(koopman, states, quadratic, products=False).r_squared < 0.8
    few = kann.States.from_sequences([states[i] for i in range(8)])
    noisy = few.values[few.starts + few.lengths - 1, 0] + rng.normal(size=8)
    assert not fit_readout(koopman, few, noisy).has_products  # six columns for six sequences that are fitted


def test_outputs_that_the_completed_state_has_need_no_readout_weight(rng):
    """A state that lies on a parabola: the network reads a unit that is not kept, the square of the one that is."""
    kept = rng.normal(size=(30, 20, 1))
    states = kann.States.from_padded(np.concatenate([kept, kept**2], axis=2), inputs=kept)
    koopman = kann.fit(states, driven=True, basis=np.array([[1.0], [0.0]]))
    outputs = states.values[:, 1]  # linear in the state, not in the coordinate
    assert fit_readout(koopman, states, outputs).r_squared > 1 - 1e-6
    assert fit_readout(koopman, states, outputs, products=False).r_squared < 0.5


def test_a_linear_readout_is_the_network_s_of_the_decoded_state(rng):
    """Regression commutes with linear maps."""
    mixed = rng.normal(size=(50, 20, 2)) @ rng.normal(size=(2, 5)) + 0.3 * rng.normal(size=(50, 20, 5))
    states = kann.States.from_padded(mixed, inputs=mixed[..., :1])
    koopman = kann.fit(states, driven=True, basis=rng.normal(size=(5, 2)))
    weight = rng.normal(size=(5, 3))
    z = koopman.encode(states.values)
    readout = fit_readout(koopman, states, states.values @ weight, products=False)
    np.testing.assert_allclose(readout(z), koopman.decode(z) @ weight, atol=1e-3)  # the ridge is 1e-6


def test_one_output_per_sequence_is_read_from_its_last_state(states, koopman):
    ends = states.starts + states.lengths - 1
    outputs = states.values[ends, :2] @ [1.0, -2.0]
    readout = fit_readout(koopman, states, outputs)
    assert readout.per_sequence
    np.testing.assert_allclose(readout(koopman.encode(states.values[ends]))[:, 0], outputs, atol=1e-3)


def test_outputs_of_padded_sequences_are_read_at_real_steps(states, koopman):
    rows = states.values[:, :1] * 3.0
    padded = np.full((len(states), int(states.lengths.max()), 1), 7.0)
    for i in range(len(states)):
        padded[i, : states.lengths[i]] = rows[states.span(i)]
    np.testing.assert_allclose(
        fit_readout(koopman, states, padded).weight, fit_readout(koopman, states, rows).weight, atol=1e-12
    )


def test_a_readout_is_saved_and_loaded(states, koopman, tmp_path):
    readout = fit_readout(koopman, states, states.values[:, :3])
    readout.save(tmp_path / "readout.npz")
    loaded = Readout.load(tmp_path / "readout.npz")
    np.testing.assert_array_equal(loaded.weight, readout.weight)
    assert (loaded.rank, loaded.per_sequence, loaded.r_squared) == (2, False, readout.r_squared)


def test_outputs_that_never_change_have_no_explained_variance(states, koopman):
    assert fit_readout(koopman, states, np.ones(len(states.values))).r_squared is None


@pytest.mark.usefixtures("untyped")
def test_wrong_arguments_are_refused(states, koopman):
    outputs = states.values[:, 0]
    for call, message in [
        (lambda: fit_readout("operator", states, outputs), "koopman='operator'"),
        (lambda: fit_readout(koopman, states, outputs[:-1]), "one row per state or one per sequence"),
        (lambda: fit_readout(koopman, states, outputs * np.nan), "outputs"),
        (lambda: fit_readout(koopman, states, outputs, products=np.ones(2)), "products="),
        (lambda: fit_readout(koopman, states, outputs)(np.ones((3, 5))), "5"),
        (lambda: fit_readout(koopman, kann.States.from_padded(np.ones((1, 2, 4))), [1.0, 2.0]), "too few"),
    ]:
        with pytest.raises(kann.KannError, match=message):
            call()
