"""Files that versions 0.1 and 0.2 wrote still load: ``version1`` was made with it, by the lines of `made_again`."""

import json
from pathlib import Path

import numpy as np
import pytest

import kann
from kann.analysis.decisions import read_out
from tests.saved import assert_same
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


OF_RELEASE_02 = Path(__file__).parent / "version02"
"""What release 0.2.0 wrote, one file for each class that it could save."""


def states_of_release_02(tokens=False):
    rng = np.random.default_rng(0)
    values, inputs = rng.normal(size=(8, 7, 3)).cumsum(axis=1), rng.normal(size=(8, 7, 2))
    if tokens:
        inputs = rng.integers(0, 3, size=(8, 7, 1)).astype(float)
    return kann.States.from_padded(values, inputs=inputs)


def test_operators_of_release_02(tmp_path):
    states = states_of_release_02()
    for name, options in {"koopman": {"rank": "auto"}, "driven": {"driven": True, "ridge": 1e-3}}.items():
        koopman, expected = kann.Koopman.load(OF_RELEASE_02 / f"{name}.npz"), kann.fit(states, **options)
        np.testing.assert_allclose(koopman.matrix, expected.matrix, atol=1e-9)
        assert koopman.ridge == expected.ridge
        koopman.save(tmp_path / "again.npz")
        assert_same(kann.Koopman.load(tmp_path / "again.npz"), koopman)
    assert kann.Koopman.load(OF_RELEASE_02 / "koopman.npz").rank_curve.chosen == 2


FEATURES = {
    "inputs": "inputs",
    "squares": "squares",
    "pca": kann.features.Components(count=2),
    "fourier": kann.features.Fourier(count=3, seed=0),
    "tokens": kann.features.Tokens(count=3),
    "function": np.tanh,
}


@pytest.mark.parametrize("name", FEATURES)
def test_bilinear_operators_of_release_02(name, tmp_path):
    function = {"features": np.tanh} if name == "function" else {}
    koopman = kann.Bilinear.load(OF_RELEASE_02 / f"bilinear_{name}.npz", **function)
    lift = "squares" if name == "squares" else None
    states = states_of_release_02(tokens=name == "tokens")
    expected = kann.fit(states, driven="bilinear", rank=2, lift=lift, features=FEATURES[name])
    np.testing.assert_allclose(koopman.gates, expected.gates, atol=1e-9)
    np.testing.assert_allclose(koopman.features.of(states.inputs), expected.features.of(states.inputs), atol=1e-9)
    koopman.save(tmp_path / "again.npz")
    assert_same(kann.Bilinear.load(tmp_path / "again.npz", **function), koopman)


def test_moments_and_history_of_release_02(tmp_path):
    moments, expected = kann.Moments.load(OF_RELEASE_02 / "moments.npz"), kann.Moments.of(states_of_release_02())
    for name, array in expected._arrays():
        np.testing.assert_allclose(getattr(moments, name), array, atol=1e-12)
    history = kann.live.History.load(OF_RELEASE_02 / "history.npz")
    assert history.steps.tolist() == [0, 1, 2]
    assert np.isfinite(history.figure("radius")).all()
    history.save(tmp_path / "again.npz")
    assert_same(kann.live.History.load(tmp_path / "again.npz"), history)


def test_an_explanation_of_release_02(tmp_path):
    found = kann.Explanation.open(OF_RELEASE_02 / "explained")
    written = json.loads((OF_RELEASE_02 / "explained" / "explanation.json").read_text(encoding="utf-8"))
    assert list(found.sentences) == written["sentences"]
    assert found.states.inputs.shape == (len(found.states.values), 2)
    assert read_out(found.page["readout"], found.states.values).shape == (len(found.states.values), 1)
    again = kann.Explanation.open(found.save(tmp_path / "again"))
    assert_same({**again.page, "readout": 0}, {**found.page, "readout": 0})
    assert_same(again.trust, found.trust)
