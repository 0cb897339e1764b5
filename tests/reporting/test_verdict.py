import pytest

import kann
from kann.reporting.verdict import verdict
from tests.reporting.html_pages import turning_states


@pytest.mark.parametrize(("error", "words"), [(0.01, "closely"), (0.2, "roughly"), (0.6, "not be relied on")])
def test_the_verdict_follows_the_error(error, words):
    koopman = kann.fit(turning_states())
    numbers = {"error": error, "agreement": 0.9, "driven": False, "explained": 0.5, "condition": None}
    says = " ".join(verdict(koopman, numbers, {"error": error / 10}))
    assert words in says
    assert "10 times less" in says
    assert "part of what decides lies outside" in says
    assert "a higher rank would hold more" in says
    assert "nearly dependent" in says
    alike = " ".join(verdict(koopman, numbers, {"error": error}))
    assert "hardly better" in alike
    assert ("evolve mostly by themselves" in alike) == (error < 0.3)


@pytest.mark.parametrize(
    ("error", "agreement", "words"),
    [
        (0.6, 0.99, "keeps what decides, although it misses much of the rest"),
        (0.01, 0.5, "outside the operator, in the little that it misses"),
        (0.01, 0.99, "so the operator keeps what decides."),
    ],
)
def test_sentences_do_not_contradict_each_other(error, agreement, words):
    numbers = {"error": error, "agreement": agreement, "driven": False, "explained": 1.0, "condition": 1.0}
    says = " ".join(verdict(kann.fit(turning_states()), numbers, {"error": error / 10}))
    assert words in says
    # Where the whole cannot be relied on, single modes still can, and the sentence about them says only that.
    assert ("a linear map of the states alone cannot stand for this network" in says) == (error > 0.3)
    assert ("only those can be read as the network's own" in says) == (error > 0.3)
