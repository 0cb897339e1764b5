"""The verdict says what was measured, beside copying, and never contradicts itself."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import kann
from kann._format import percent
from kann.reporting.trust_payload import KnownTrust, known_trust
from kann.reporting.verdict import verdict
from tests.reporting.html_pages import turning_states

UNKNOWN = KnownTrust(trust=None, reason="the operator was not fitted to these sequences")


@pytest.fixture(scope="module")
def trust():
    states = turning_states()
    return known_trust(kann.fit(states), states).trust


def numbers(error, agreement=None, **others):
    return {
        "error": error,
        "agreement": agreement,
        "driven": False,
        "explained": 1.0,
        "condition": 1.0,
        "modes": 4,
    } | others


def says(quality, *, copying, driven=None, known=UNKNOWN):
    return " ".join(verdict(quality, copying=copying, driven=driven, known=known))


def test_a_mean_over_layers_is_not_praised_where_copying_is_better_at_most(trust):
    how = {"copying": numbers(0.5, 0.2), "driven": None, "known": known(trust, error=0.1, copying=0.5, trusted=0)}
    plain = " ".join(verdict(numbers(0.1, 0.8), step_name="layer", **how))
    assert "so the operator knows how states move" in plain
    doubt = "copying is better at 3 of the 4 layers"
    text = " ".join(verdict(numbers(0.1, 0.8), step_name="layer", doubt=doubt, **how))
    assert "knows how states move" not in text
    assert f"a mean over layers that says little, since {doubt}." in text
    assert "although it misses much of the rest" in text


def known(trust, *, error, copying, trusted):
    """Trust with these errors one step ahead, whose first modes are trusted."""
    modes = tuple(replace(mode, trusted=number < trusted) for number, mode in enumerate(trust.modes))
    errors = {"error": np.array([error, 1.0]), "copying_error": np.array([copying, 2.0]), "horizons": np.array([1, 8])}
    return KnownTrust(trust=replace(trust, modes=modes, **errors), reason="")


def test_without_held_out_sequences_no_mode_is_the_networks_own():
    text = says(numbers(0.01), copying=numbers(0.1))
    assert "Nothing was held out, so no mode is called trusted" in text
    assert "was not fitted to these sequences" in text
    assert "network's own" not in text
    assert "On the sequences shown, one step misses 1.0 %" in text
    assert "copying the previous state misses 10.0 %" in text


@pytest.mark.parametrize(
    ("trusted", "words"),
    [(0, "None of the 4 modes can be"), (3, "3 of 4 modes can be"), (4, "4 of 4 modes can be")],
)
def test_only_trusted_modes_are_the_networks_own(trust, trusted, words):
    text = says(numbers(0.5), copying=numbers(0.6), known=known(trust, error=0.1, copying=0.5, trusted=trusted))
    assert f"{words} read as the network's own" in text
    assert f"held out in {trust.folds} folds" in text
    assert ("speaks against the others" in text) == (trusted == 3)


@pytest.mark.parametrize(("trusted", "words"), [(0, "The one mode cannot be read"), (1, "The one mode can be read")])
def test_of_a_single_mode_it_speaks_in_the_singular(trust, trusted, words):
    own = known(trust, error=0.1, copying=0.5, trusted=trusted)
    text = says(numbers(0.5, modes=1), copying=numbers(0.6), known=own)
    assert f"{words} as the network's own dynamics" in text
    assert "1 modes" not in text


@pytest.mark.parametrize(
    ("learned", "words"),
    [
        (None, "That does not mean that training made them"),
        ((True, True), "The untrained network has no such modes: they were learned."),
        ((True, False), "1 of them the untrained network has just as well: own, not learned."),
        ((False, False), "The untrained network has all of that just as well: own, not learned."),
    ],
)
def test_trusted_modes_are_not_called_learned_unless_the_untrained_network_lacks_them(trust, learned, words):
    own = known(trust, error=0.1, copying=0.5, trusted=2).trust
    if learned is not None:
        modes = tuple(
            replace(mode, learned=answer) for mode, answer in zip(own.modes, (*learned, None, None), strict=False)
        )
        own = replace(own, modes=modes, untrained=trust)
    text = says(numbers(0.5), copying=numbers(0.6), known=KnownTrust(trust=own, reason=""))
    assert words in text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (0.05, "10 times less than the better of copying and the mean, so the operator knows how states move"),
        (0.4, "a difference by a factor of less than 2 means little"),
        (0.6, "copying or predicting the mean does as well or better"),
    ],
)
def test_held_out_errors_stand_beside_those_of_copying(trust, error, words):
    text = says(numbers(0.01), copying=numbers(0.9), known=known(trust, error=error, copying=0.5, trusted=1))
    assert f"On held-out sequences, one step misses {percent(error)}" in text
    assert "misses 50.0 %: " + words in text
    assert "Over 8 steps it misses 100.0 %, copying 200.0 %, and predicting the mean 100 %." in text


@pytest.mark.parametrize(
    ("kept", "copied", "words"),
    [
        (1.0, 0.96, "decides so little that this says nothing"),
        (0.9, 0.7, "of what the last step decides the operator keeps most"),
        (0.8, 0.7, "means little"),
    ],
)
def test_decisions_stand_beside_those_of_copying(kept, copied, words):
    sentences = verdict(numbers(0.01, kept), copying=numbers(0.1, copied), driven=None, known=UNKNOWN)
    (decisions,) = [sentence for sentence in sentences if "Read out" in sentence]
    assert f"{percent(kept)} of the decisions" in decisions
    assert f"{percent(copied)} are" in decisions
    assert words in decisions


def test_a_change_by_less_than_a_factor_of_2_means_little():
    quality, copying = numbers(0.1), numbers(0.5)
    assert "most of what this one misses is what the inputs did" in says(quality, copying=copying, driven=numbers(0.04))
    assert "0.06 %" not in says(quality, copying=copying, driven=numbers(0.06))
    assert (
        "misses 6.0 % of the states' variance, and this one 10.0 %: a difference by a factor of less than 2 means "
        in says(quality, copying=copying, driven=numbers(0.06))
    )
    assert "reads the inputs" not in says(numbers(0.1, driven=True), copying=copying, driven=numbers(0.04))


def test_what_the_basis_lacks_is_said():
    text = says(numbers(0.1, explained=0.5, condition=None), copying=numbers(0.5))
    assert "holds 50.0 % of the states' variance; a higher rank holds more" in text
    assert "nearly dependent" in text


def test_no_verdict_contradicts_itself(trust):
    pairs = [
        ("knows how states move", "does not say how states move"),
        ("knows how states move", "although it misses much of the rest"),
        ("None of the", "speaks against the others"),
        ("Nothing was held out", "network's own"),
    ]
    errors, agreements = (1e-4, 0.1, 0.3, 0.45, 0.9), (None, 0.5, 0.9, 1.0)
    for error, kept, copied, trusted in product(errors, agreements, (0.5, 0.99), (None, 0, 2)):
        own = UNKNOWN
        if trusted is not None:
            own = known(trust, error=error, copying=0.5, trusted=trusted)
        text = says(numbers(error, kept), copying=numbers(0.5, copied), driven=numbers(error / 3), known=own)
        for one, other in pairs:
            assert not (one in text and other in text), text
