import numpy as np
import pytest

from kann.zoo.autoencoder import SHAPES, draw_beats


def test_made_up_beats_are_normalised_and_differ_by_kind(rng):
    beats = draw_beats(rng, normal=40, anomalous=40)
    np.testing.assert_allclose(beats.values.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(beats.values.std(axis=1, ddof=1), 1, rtol=1e-12)
    assert set(beats.labels) == set(SHAPES)
    assert len(beats.normal) == 40
    middle = {kind: np.median(beats.values[beats.labels == kind], axis=0) for kind in SHAPES}
    spread = np.abs(beats.normal - middle[1]).sum(axis=1).max()
    for kind in set(SHAPES) - {1}:
        assert np.abs(middle[kind] - middle[1]).sum() > spread
    # The features that the paper calls salient.
    assert middle[1][:20].argmin() == pytest.approx(3, abs=1)
    assert 90 + middle[1][90:120].argmax() == pytest.approx(103, abs=2)


def test_the_same_seed_gives_the_same_beats():
    first, second = (draw_beats(np.random.default_rng(3), normal=3, anomalous=2).values for _ in range(2))
    np.testing.assert_array_equal(first, second)
