import numpy as np
import pytest

from kann.analysis.intervals import interval_of_mean

DRAWS = 2000
"""Coverage is then known to half a percent."""


@pytest.mark.parametrize(
    ("groups", "inside", "least", "most"),
    [
        (10, 1.0, 0.94, 0.995),  # copies: each group is one score
        (40, 1.0, 0.93, 0.98),
        (40, 0.3, 0.93, 0.98),
        (40, 0.0, 0.93, 0.98),  # groups that are no groups
    ],
)
def test_intervals_of_scores_in_groups_hold_the_truth(groups, inside, least, most, rng):
    """Scores of 0 or 1 with probability .7; with probability ``inside`` a sequence has the score of its group."""
    number, held = np.repeat(np.arange(groups), 5), 0
    for _ in range(DRAWS):
        own, common = rng.random(len(number)) < 0.7, (rng.random(groups) < 0.7)[number]
        scores = np.where(rng.random(len(number)) < inside, common, own).astype(float)
        low, high = interval_of_mean(scores, 0.95, number)
        held += low <= 0.7 <= high
    assert least < held / DRAWS < most


def test_intervals_of_values_in_groups_hold_the_truth(rng):
    number, held = np.repeat(np.arange(20), 5), 0
    for _ in range(DRAWS):
        low, high = interval_of_mean(rng.normal(size=20)[number] + 0.1 * rng.normal(size=100), 0.95, number)
        held += low <= 0 <= high
    assert 0.93 < held / DRAWS < 0.97


def test_groups_of_one_are_no_groups(rng):
    scores = (rng.random(30) < 0.8).astype(float)
    assert interval_of_mean(scores, 0.95, rng.permutation(30)) == interval_of_mean(scores, 0.95)


def test_scores_that_are_all_the_same_count_once_in_a_group():
    assert interval_of_mean(np.ones(60), 0.95, np.arange(60) % 6)[0] < 0.5 < interval_of_mean(np.ones(60), 0.95)[0]
