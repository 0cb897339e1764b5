"""The table of trust says what was measured, next to copying, and never contradicts itself."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import kann
from kann._format import percent
from kann.reporting.trust import KnownTrust, known_trust, trust_table
from tests.reporting.html_pages import turning_states

UNKNOWN = KnownTrust(trust=None, reason="the operator was not fitted to these sequences")


@pytest.fixture(scope="module")
def trust():
    states = turning_states()
    return known_trust(kann.fit(states), states).trust


def numbers(error, agreement=None, **more):
    return {
        "error": error,
        "agreement": agreement,
        "driven": False,
        "explained": 1.0,
        "condition": 1.0,
        "modes": 4,
        "outputs": "class",
    } | more


def says(quality, *, copying, others=None, known=UNKNOWN, **more):
    rows = trust_table(quality, copying=copying, others=others or {}, known=known, **more)
    return " ".join("{asked}: {found} ({baseline}). {says}.".format(**row) for row in rows)


def test_a_mean_over_layers_is_not_praised_where_copying_is_better_at_most(trust):
    how = {"copying": numbers(0.5, 0.2), "known": known(trust, error=0.1, copying=0.5, trusted=0), "step_name": "layer"}
    assert "the operator knows how states move" in says(numbers(0.1, 0.8), **how)
    doubt = "copying is better at 3 of the 4 layers"
    text = says(numbers(0.1, 0.8), doubt=doubt, **how)
    assert "knows how states move" not in text
    assert f"a mean that says little: {doubt}." in text
    assert "the operator keeps most of what the last layer decides" in text


def known(trust, *, error, copying, trusted):
    """Trust with these errors one step ahead, whose first modes are trusted."""
    modes = tuple(replace(mode, trusted=number < trusted) for number, mode in enumerate(trust.modes))
    errors = {"error": np.array([error, 1.0]), "copying_error": np.array([copying, 2.0]), "horizons": np.array([1, 8])}
    return KnownTrust(trust=replace(trust, modes=modes, **errors), reason="")


def test_without_held_out_sequences_no_mode_is_the_networks_own():
    text = says(numbers(0.01), copying=numbers(0.1))
    assert "nothing was held out, so no mode is called trusted" in text
    assert "was not fitted to these sequences" in text
    assert "network's own" not in text
    assert "Error of one step, sequences shown: 1.0 % (copying 10.0 %, the mean 100 %)" in text


@pytest.mark.parametrize(
    ("trusted", "words"),
    [(0, "0 of 4 (–). no mode"), (3, "3 of 4 (–). some modes"), (4, "4 of 4 (–). each mode")],
)
def test_only_trusted_modes_are_the_networks_own(trust, trusted, words):
    text = says(numbers(0.5), copying=numbers(0.6), known=known(trust, error=0.1, copying=0.5, trusted=trusted))
    assert f"Modes trusted: {words} can be read as the network's own dynamics" in text
    assert f"held out in {trust.folds} folds" in text
    assert ("speaks against the others" in text) == (trusted == 3)
    assert ("speaks against them" in text) == (trusted == 0)


@pytest.mark.parametrize(
    ("learned", "words"),
    [
        (None, "learned: not tested (–). untrained networks have modes too, and this one's was not compared"),
        ((True, True), "learned: 2 of 2 (–). the untrained network has no such modes"),
        ((True, False), "learned: 1 of 2 (–). the untrained network has the others just as well: own, not learned"),
        ((False, False), "learned: 0 of 2 (–). the untrained network has the others just as well: own, not learned"),
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
        (0.05, "10 times below the better baseline: the operator knows how states move"),
        (0.4, "hardly below the better baseline: a factor of less than 2 means little"),
        (0.6, "no better than the better baseline: the operator does not say how states move"),
    ],
)
def test_held_out_errors_stand_beside_those_of_copying(trust, error, words):
    text = says(numbers(0.01), copying=numbers(0.9), known=known(trust, error=error, copying=0.5, trusted=1))
    assert f"Error of one step, held out: {percent(error)} (copying 50.0 %, the mean 100 %). {words}" in text
    assert "Error of 8 steps, held out: 100.0 % (copying 200.0 %, the mean 100 %)" in text


@pytest.mark.parametrize(
    ("kept", "copied", "words"),
    [
        (1.0, 0.96, "decides so little that this says nothing"),
        (0.9, 0.7, "keeps most of what the last step decides"),
        (0.8, 0.7, "means little"),
    ],
)
def test_decisions_stand_beside_those_of_copying(kept, copied, words):
    rows = trust_table(numbers(0.01, kept), copying=numbers(0.1, copied), others={}, known=UNKNOWN)
    (decisions,) = [row for row in rows if row["asked"].startswith("Decisions kept")]
    assert (decisions["found"], decisions["baseline"]) == (percent(kept), f"copying {percent(copied)}")
    assert words in decisions["says"]


def test_a_change_by_less_than_a_factor_of_2_means_little():
    quality, copying = numbers(0.1), numbers(0.5)

    def driven(error):
        return {"others": {"inputs": numbers(error, driven=True)}, "copying": copying}

    assert "most of what this operator misses is the effect of the inputs" in says(quality, **driven(0.04))
    assert "reading the inputs makes it worse" in says(quality, **driven(0.4))
    text = says(quality, **driven(0.06))
    assert "reads the inputs: 10.0 % (6.0 %). a difference by a factor of less than 2 means little" in text
    assert "reads the inputs" not in says(numbers(0.1, driven=True), **driven(0.04))
    assert "reads the inputs" not in says(quality, copying=copying, others={"rank 2": numbers(0.04)})


def test_what_the_basis_lacks_is_said():
    text = says(numbers(0.1, explained=0.5, condition=None), copying=numbers(0.5))
    assert "in the basis: 50.0 %" in text
    assert "a higher rank holds more" in text
    assert "nearly dependent" in text


def test_no_table_contradicts_itself(trust):
    pairs = [
        ("knows how states move", "does not say how states move"),
        ("no mode can", "speaks against the others"),
        ("nothing was held out", "network's own"),
    ]
    errors, agreements = (1e-4, 0.1, 0.3, 0.45, 0.9), (None, 0.5, 0.9, 1.0)
    for error, kept, copied, trusted in product(errors, agreements, (0.5, 0.99), (None, 0, 2)):
        own = UNKNOWN
        if trusted is not None:
            own = known(trust, error=error, copying=0.5, trusted=trusted)
        text = says(
            numbers(error, kept),
            copying=numbers(0.5, copied),
            others={"driven": numbers(error / 3, driven=True)},
            known=own,
        )
        for one, other in pairs:
            assert not (one in text and other in text), text
