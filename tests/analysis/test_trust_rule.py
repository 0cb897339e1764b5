"""The rule by which a mode is called the network's own."""

import pytest

from kann.analysis.mode_evidence import Evidence, is_same_mode, objections, reasons

GOOD = {
    "residual": 0.05,
    "copying": 0.2,
    "null": 0.9,
    "width": 0.02,
    "turn": 5.0,
    "subspace": (0,),
    "variation": 1.0,
    "dependence": 0.3,
    "pairs": 1000,
    "unknowns": 10,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"variation": 0.001}, "constant: its coefficient hardly varies, so it is the mean of the states"),
        ({"pairs": 49}, "too few pairs: 49 for 10 unknowns in each column"),
        ({"dependence": 1 - 1e-6}, "inputs contain the state"),
        ({"residual": 0.11}, "one step misses 11.0 % of it on held-out sequences (limit 10 %)"),
        ({"residual": float("nan")}, "one step misses –"),
        ({"copying": 0.04}, "copying the previous state predicts it better (missing 4.0 %)"),
        ({"null": 0.08}, "a null, without the order of states, predicts it nearly as well (missing 8.0 %)"),
        ({"width": 0.3}, "the interval of its eigenvalue is 0.3 wide (limit 0.1)"),
        ({"turn": 45.0}, "its direction moves by 45° with the sequences fitted"),
        ({"turn": 45.0, "subspace": (0, 3)}, "the space of 2 modes that cannot be told apart moves by 45°"),
    ],
)
def test_every_condition_of_the_rule_can_fail_alone(change, words):
    assert objections(Evidence(**GOOD)) == []
    against = objections(Evidence(**(GOOD | change)))
    assert any(words in each for each in against)
    if "residual" not in change:
        assert len(against) == 1


def test_a_trusted_mode_says_what_it_is_read_with():
    assert (
        reasons(Evidence(**GOOD))
        == "one step misses 5.0 % of it on held-out sequences (copying 20.0 %, shuffled 90.0 %)"
    )
    assert "modes 1, 4 cannot be told apart" in reasons(Evidence(**(GOOD | {"subspace": (1, 4)})))


@pytest.mark.parametrize(
    ("other", "interval", "is_same"),
    [
        (0.948, (0.947, 0.949), True),  # nearly the same rate, though the intervals tell them apart
        (0.99, (0.989, 0.991), False),  # close in the plane, and five times as slow
        (0.91, (0.90, 0.951), True),  # the intervals meet
        (0.8, (0.5, 1.0), False),  # too far away, however wide the interval
        (0.95j, (0.94, 0.96), False),
        (0.0, (0.0, 0.0), False),
    ],
)
def test_modes_of_two_networks_are_the_same_if_they_decay_and_turn_alike(other, interval, is_same):
    assert is_same_mode((0.95 + 0j, (0.9495, 0.9505)), (complex(other), interval)) is is_same
