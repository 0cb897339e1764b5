"""Operators in place of the encoder that ships with kann, on beats of our own making."""

import numpy as np
import pytest
import torch
from kann_experiments.ecg import live, stand_ins
from kann_experiments.ecg.analysis import QUANTITIES

import kann
from kann.zoo.autoencoder import Autoencoder
from tests.experiments.test_ecg_live import network, parts  # noqa: F401  # fixtures


def test_losses_of_the_encoders_own_states_are_those_of_the_network(network, parts):  # noqa: F811
    states = kann.record(network, parts.test, layer="encoder", state="hc", progress=False)
    last = states.values[states.starts + states.lengths - 1]
    found = stand_ins.losses_of_encoded(network, last, parts.test)
    np.testing.assert_allclose(found, live._losses(network, parts.test), rtol=1e-4)


def test_operators_read_components_of_gates(network, parts):  # noqa: F811
    states, features = stand_ins.record_for_stand_ins(network, parts.train)
    read = stand_ins.components_of(network, parts.train, features)
    assert read.shape == (32, 140, stand_ins.COMPONENTS)
    own = states.inputs.reshape(32, 141, -1)[:, 1:]  # after the state of zeros
    np.testing.assert_allclose(read, own, atol=1e-5)
    # One number is read: its square is a function of the components.
    samples = parts.train.double().flatten().numpy() ** 2
    design = np.column_stack([read.reshape(len(samples), -1), np.ones(len(samples))])
    missed = samples - design @ np.linalg.lstsq(design, samples)[0]
    assert missed.var() < 1e-3 * samples.var()


@pytest.mark.filterwarnings("ignore::kann.errors.FewPairsWarning")
def test_numbers_have_rows_and_more_coordinates_reproduce_more(network, parts, monkeypatch):  # noqa: F811
    monkeypatch.setattr(stand_ins, "COORDINATES", (2, 12, 999))
    numbers = stand_ins.stand_in_numbers(network, parts)
    assert numbers.keys() <= {quantity.key for quantity in stand_ins.stand_in_quantities()}
    assert not any("999" in key for key in numbers)
    assert numbers["standin_squares_12_loss"] < numbers["standin_squares_2_loss"]
    assert all(0 <= numbers[key] <= 1 for key in numbers if not key.endswith("_loss"))


def test_a_gru_has_no_cell():
    torch.manual_seed(0)
    gated = Autoencoder(arch="gru", units=6, decoder_units=4)
    states, _ = stand_ins.record_for_stand_ins(gated.eval(), torch.randn(5, 20))
    assert states.dim == 6
    assert "standin_16_loss" in {quantity.key for quantity in QUANTITIES}
