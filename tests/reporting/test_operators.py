"""What a report says about operators."""

import numpy as np
import pytest

import kann
from kann.reporting._report import report
from kann.reporting.inputs import slowest_and_most_important
from kann.reporting.operators import MAX_CURVE_POINTS, mode_rows
from kann.reporting.trust import KnownTrust
from tests.reporting.html_pages import content_of, rank_deficient_states, turning_states


def test_errors_over_time_are_means_over_the_sequences_that_are_that_long(tmp_path):
    states = turning_states()  # of 30 to 35 states
    koopman = kann.fit(states)
    curve = content_of(report(tmp_path / "r.html", koopman, states))[1]["fit"]["times"]
    assert curve["step"] == list(range(1, 35))
    missed = [np.sum((koopman.predict(h[:-1]) - h[1:]) ** 2, axis=1) for h in states]
    variance = np.var(np.concatenate([h[1:] for h in states]), axis=0).sum()
    assert curve["error"][4] == pytest.approx(np.mean([own[4] for own in missed]) / variance)
    assert curve["error"][-1] == pytest.approx(missed[-1][33] / variance)


def test_an_infinite_residual_is_none_for_the_page(tmp_path):
    states = rank_deficient_states()
    koopman = kann.fit(states, basis="fourier")
    assert np.isinf(koopman.residuals).any()
    rows = mode_rows(koopman, np.ones(len(koopman.modes)), KnownTrust(trust=None, reason="not asked"), step_name="step")
    assert [row["residual"] is None for row in rows] == [np.isinf(mode.residual) for mode in koopman.modes]
    _, page, _ = content_of(report(tmp_path / "r.html", koopman, states))
    assert [row["residual"] for row in page["modes"]] == [row["residual"] for row in rows]


def test_a_long_curve_is_thinned_to_what_a_screen_shows(rng, tmp_path):
    states = kann.States.from_padded(rng.normal(size=(2, 3 * MAX_CURVE_POINTS, 2)))
    steps = content_of(report(tmp_path / "r.html", kann.fit(states), states))[1]["fit"]["times"]["step"]
    assert len(steps) == MAX_CURVE_POINTS
    assert (steps[0], steps[-1]) == (1, 3 * MAX_CURVE_POINTS - 1)


@pytest.mark.parametrize(
    ("count", "expected"), [(1, (0,)), (2, (0, 4)), (3, (0, 1, 4)), (4, (0, 1, 3, 4)), (9, (0, 1, 2, 3, 4))]
)
def test_half_of_the_modes_are_the_slowest_the_others_the_most_important(count, expected):
    assert slowest_and_most_important(np.array([1.0, 1.0, 2.0, 3.0, 5.0]), count) == expected
