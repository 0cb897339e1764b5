"""Directions in which the states have no energy are never trusted, whatever rounding says about them."""

import warnings

import numpy as np

import kann
from tests.reporting.html_pages import rank_deficient_states


def test_a_mode_without_energy_is_not_trusted():
    states = rank_deficient_states()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kann.errors.KannWarning)
        koopman = kann.fit(states, basis="fourier")
    is_empty = np.array([np.isinf(mode.residual) for mode in koopman.modes])
    assert is_empty.any()
    trust = kann.trust(koopman, states, folds=4)
    assert [np.isinf(mode.residual) for mode in trust.modes] == is_empty.tolist()
    assert not any(mode.trusted for mode, empty in zip(trust.modes, is_empty, strict=True) if empty)
