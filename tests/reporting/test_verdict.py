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
