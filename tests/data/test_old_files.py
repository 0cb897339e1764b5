"""Files that version 0.1 wrote still load: ``version1`` was made with it, by the lines of `made_again`."""

from pathlib import Path

import numpy as np

import kann
from tests.systems import AS_IN_PAPER

FOLDER = Path(__file__).parent / "version1"


def made_again():
    rng = np.random.default_rng(0)
    values, inputs = rng.normal(size=(4, 6, 3)).cumsum(axis=1), rng.normal(size=(4, 6, 2))
    return kann.States.from_padded(values, [6, 1, 4, 2], inputs=inputs)


def test_states():
    states, expected = kann.States.open(FOLDER / "states.zarr"), made_again()
    np.testing.assert_array_equal(states.values[:], expected.values)
    np.testing.assert_array_equal(states.inputs[:], expected.inputs)
    np.testing.assert_array_equal(states.lengths, expected.lengths)


def test_moments():
    moments, expected = kann.Moments.load(FOLDER / "moments.npz"), kann.Moments.of(made_again())
    assert (moments.sequences, moments.states, moments.pairs) == (4, 13, 9)
    for name in ("sum_h", "hh", "xx", "xy", "yy", "uu", "xu", "uy"):
        np.testing.assert_allclose(getattr(moments, name), getattr(expected, name), atol=1e-12)


def test_operators():
    koopman = kann.Koopman.load(FOLDER / "operator.npz")
    np.testing.assert_allclose(koopman.eigenvalues, kann.fit(made_again(), **AS_IN_PAPER).eigenvalues, atol=1e-9)
    driven = kann.Koopman.load(FOLDER / "driven.npz")
    assert driven.drive.shape == (2, 2)
    np.testing.assert_allclose(driven.matrix @ driven.right, driven.right * driven.eigenvalues, atol=1e-12)
