"""Sentences at the edge: half-lives that are not known, tests that were interrupted, modes that decide untrusted."""

import re
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from torch import nn

import kann
from kann.analysis._movers import Movers, Phrase
from kann.analysis._trust import ModeTrust, Trust
from kann.explaining import memory_sentences as remembering
from kann.explaining import operators as choosing
from kann.explaining import sentences as wording
from kann.explaining import untrained_baseline as twins
from kann.explaining.context import Findings, Rightness
from kann.explaining.layer_search import Place
from kann.explaining.options import Options
from kann.live.results import Effects
from kann.recording.layer_selection import Target


def findings(modulus, interval=None, step_seconds=None):
    trust = None
    if interval is not None:
        trust = Mock(Trust, modes=(Mock(ModeTrust, interval=interval),))
    return Mock(
        Findings,
        fitted=SimpleNamespace(koopman=SimpleNamespace(modes=[SimpleNamespace(modulus=modulus)])),
        trust=trust,
        place=Mock(Place, axis="time", step_name="step"),
        options=Options(step_seconds=step_seconds),
        alone={},
    )


@pytest.mark.parametrize(
    ("modulus", "interval", "text"),
    [
        (0.9, (0.85, 0.95), "half of it is left after 6.6 steps"),
        (0.9, None, "half of it is left after 6.6 steps"),
        (0.48, (0.45, 0.52), "less than half of it is left after one step"),
        (0.0, (0.0, 0.1), "less than half of it is left after one step"),
        (0.999, (0.98, 1.002), "half of it is left after 34 steps or more"),
        (1.001, (0.98, 1.02), "half of it is left after 34 steps or more"),
        (1.02, (1.01, 1.03), "it grows by 2.0 % in a step"),
        (1.0, (1.0, 1.0), "no fading was measured"),
        (1.02, None, "no fading was measured"),
    ],
)
def test_half_lives_are_claimed_as_far_as_they_are_known(modulus, interval, text):
    assert remembering._half_life(0, findings(modulus, interval)) == text


def test_half_lives_in_seconds():
    assert remembering._half_life(0, findings(0.9, None, 0.5)).endswith("6.6 steps = 3.29 s")


def effects_of(modes, pca, none=0.5, **others):
    koopman = kann.fit(np.random.default_rng(0).normal(size=(20, 10, 3)))
    means = {"modes": modes, "pca": pca, **others}
    kept = {name: np.repeat(np.array(own)[:, None], 40, axis=1) for name, own in means.items()}
    return Effects(
        counts=(1, 2),
        metric="agreement",
        fill="curve",
        order=tuple(range(len(koopman.modes))),
        koopman=koopman,
        kept_scores=kept,
        removed_scores=kept,
        full_scores=np.ones(40),
        none_scores=np.full(40, none),
        random_kept=np.empty((0, 2)),
        random_removed=np.empty((0, 2)),
        judged=np.arange(40),
    )


def live(effects, trust=None):
    found = findings(0.9)
    found.effects, found.trust, found.rightness = effects, trust, None
    found.fitted.koopman.dim = 3
    found.place = Mock(Place, axis="time", is_fed_back=True, target=None)
    return wording._live(found, is_description=False)


def test_an_interrupted_test_compares_only_what_was_finished():
    text = live(effects_of([0.9, 0.99], [0.7, np.nan]))
    assert "nan" not in text
    assert "one coordinate of 3" in text
    assert "With 2" not in text
    text = live(effects_of([0.9, np.nan], [np.nan, np.nan]))
    assert (
        text == "The test in the running network was interrupted before modes could be compared with other directions."
    )


def test_modes_that_keep_nothing():
    assert live(effects_of([0.5, 0.5], [0.5, 0.5])).endswith(
        "modes say no more than the mean state about what it decides by."
    )


def test_modes_that_decide_and_are_not_trusted_or_not_learned_are_named():
    modes = [Mock(ModeTrust, learned=learned) for learned in (None, False, True)]
    doubts = wording._doubts(Mock(Trust, trusted=(1, 2), modes=modes), [0, 1, 2])
    assert doubts == (
        " Of the modes kept here, mode 0 cannot be trusted and untrained copies of the network have mode 1 too."
    )
    assert wording._doubts(Mock(Trust, trusted=(1, 2), modes=modes), [2]) == ""


def movers_of(push):
    column = np.array(push)[:, None]
    count = np.full(len(push), 9)
    return Movers(
        by="inputs",
        modes=(0,),
        names=tuple(f"input {i}" for i in range(len(push))),
        push=column,
        low=column - 1e-4,
        high=column + 1e-4,
        sure=np.abs(column) - 1e-4,
        count=count,
        sequences=count,
        level=0.95,
        outputs=None,
        phrases=((),),
    )


def test_pushes_that_are_sure_but_negligible_are_not_named():
    assert remembering._pushed(movers_of([0.5, 0.004]), 0) == " is pushed up by “input 0”"
    assert remembering._pushed(movers_of([0.5, 0.1]), 0) == " is pushed up by “input 0”, “input 1”"
    assert remembering._pushed(movers_of([0.5, -0.004]), 0) == " is pushed up by “input 0”"


def test_where_no_mode_is_trusted_the_one_that_decides_is_described_as_no_more_than_that():
    found = findings(0.9)
    found.effects, found.trust = effects_of([0.9, 0.99], [0.7, 0.8]), Mock(Trust, trusted=())
    found.movers = movers_of([0.5, -0.3])
    assert remembering.carrier(found) == (
        "As a description only: mode 0, which does most in the running network, is pushed up by “input 0” and down by "
        "“input 1”."
    )
    found.alone = {0: (0.505, 1.0)}  # kept alone it brings back a hundredth
    assert remembering.carrier(found) is None
    found.alone, found.trust = {}, Mock(Trust, trusted=(0,))
    assert remembering.carrier(found) is None


@pytest.mark.parametrize(
    ("outputs", "score", "low", "baseline", "text"),
    [
        (
            "class",
            0.6,
            0.45,
            0.5,
            "the network is right in 60.0 % (95 % interval 45.0 % to 70.0 %), and always ",
        ),
        (
            "labels",
            0.6,
            0.45,
            0.5,
            "the network's answers are right in 60.0 % (95 % interval 45.0 % to 70.0 %), and alw",
        ),
        (
            "values",
            0.1,
            -0.1,
            0.0,
            "its outputs match the labels with an R² of 0.10 (95 % interval -0.10 to 0.70), and ",
        ),
        ("class", 0.6, 0.55, 0.5, None),
        ("values", 0.4, 0.2, 0.0, None),
    ],
)
def test_a_network_is_right_if_chance_cannot_have_made_it_so(outputs, score, low, baseline, text):
    found = findings(0.9)
    found.effects = None
    found.rightness = Rightness(outputs=outputs, score=score, low=low, high=0.7, baseline=baseline)
    said = wording._nothing(found)
    if text is None:
        assert said is None
    else:
        assert said.startswith(f"Nothing can be concluded about the task: on held-out sequences {text}")


@pytest.mark.parametrize(
    ("classes", "moved", "text"),
    [
        (["bad", "good"], [0.3], "; up raises “good”"),
        (None, [0.3], "; up raises the output"),
        (["a", "b", "c"], [0.1, -0.5, 0.2], "; up raises “b”"),
        (None, [0.1, 0.2], "; up raises output 1"),
    ],
)
def test_what_up_does_to_the_outputs_is_said(classes, moved, text):
    found = findings(0.9)
    found.options = Options(classes=classes)
    found.movers = movers_of([0.5])
    found.movers = replace(found.movers, outputs=np.array([moved]))
    assert remembering._raising(0, found) == text
    found.movers = replace(found.movers, outputs=None)
    assert remembering._raising(0, found) == ""


def own_mode(eigenvalue):
    return Mock(ModeTrust, eigenvalue=eigenvalue, trusted=True, learned=True, why="it holds; learned: no other has it")


@pytest.mark.parametrize(
    ("eigenvalue", "theirs", "is_learned"),
    [
        (0.96, (0.98, 0.93), False),  # copies decay half as fast, and nearly twice as fast
        (0.9999, (0.99, 1.01), True),  # a hundred times as slow as any copy
        (0.95, (0.999, 0.9), True),  # the slower one keeps fifty times as long
        (0.96, (0.98,), True),
    ],
)
def test_a_mode_lies_among_those_of_untrained_copies_if_it_decays_nearly_as_fast(eigenvalue, theirs, is_learned):
    own = ModeTrust(
        eigenvalue=complex(eigenvalue),
        interval=(0.9, 1.0),
        angle=(0.0, 0.0),
        residual=0.1,
        copying=0.2,
        null=0.5,
        constant=False,
        subspace=(0,),
        turn=1.0,
        untrained=None,
        trusted=True,
        why="holds; learned: so",
        learned=True,
    )
    judged = twins._judged([own], [own_mode(complex(each)) for each in theirs])
    assert judged.learned is is_learned
    if not is_learned:
        assert judged.why == "holds; own, not learned: untrained copies have 0.9800 and 0.9300 on both sides of it"


def test_random_directions_that_do_as_well_are_said_so():
    assert "modes say better than variance" in live(effects_of([0.9, 0.99], [0.7, 0.8]))
    assert live(effects_of([0.9, 0.99], [0.7, 0.8], random=[0.89, 0.98])).endswith(
        "A draw of random directions does as well, so that nothing follows from these modes in particular."
    )


@pytest.mark.parametrize(
    ("name", "reverse", "text"),
    [
        ("gru.l1", False, " of 'gru.l1' (the other direction and the other layers untouched)"),
        ("gru.l1_reverse", True, " of 'gru.l1_reverse' (the other direction and the other layers untouched)"),
    ],
)
def test_one_direction_of_one_layer_is_not_called_the_state(name, reverse, text):
    module = nn.GRU(2, 3, num_layers=2, bidirectional=True)
    place = Mock(Place, target=Target(name=name, path="gru", module=module, level=1, reverse=reverse))
    assert wording._which_part(place) == text
    other = wording._try_other_direction(place)
    assert (other == " Pass layer='gru.l1_reverse' for the other direction.") != reverse


def test_two_words_that_push_otherwise_than_their_sum_are_named():
    def phrase(push, expected, *, sure=True):
        return Phrase(
            words=("not", "rude"), push=push, expected=expected, low=1.0, high=3.0, count=9, sequences=9, sure=sure
        )

    weak, telling, unsure = phrase(0.3, 0.1), phrase(2.2, -0.04), phrase(9.0, 0.0, sure=False)
    movers = replace(movers_of([0.5]), phrases=((weak, telling, unsure),))
    assert remembering._phrase(movers, 0) == "“not rude” pushes it by +2.20, its words alone by -0.04"
    assert remembering._phrase(replace(movers, phrases=((weak, unsure),)), 0) == ""


def test_memory_of_a_network_that_inputs_gate():
    rng = np.random.default_rng(0)
    inputs, values = rng.integers(2, size=(200, 30, 1)).astype(float), rng.normal(size=(200, 30, 1))
    for step in range(1, 30):  # a reading of 1 makes it forget faster
        values[:, step] += (0.9 - 0.4 * inputs[:, step]) * values[:, step - 1]
    states = kann.States.from_padded(values, inputs=inputs)
    gated = kann.fit(states, driven="bilinear")
    found = findings(0.9)
    found.fitted = choosing.Fitted(koopman=gated.at("mean"), kind="driven", states=states, groups=None, gated=gated)
    text = remembering.gated_memory(found)
    zeros, mean = (float(value) for value in re.findall(r"λ = ([\d.]+)", text))
    np.testing.assert_allclose([zeros, mean], [0.9, 0.7], atol=0.03)
    assert "while it reads zeros the slowest mode" in text
    assert "at the mean input the slowest mode" in text
    found.fitted = replace(found.fitted, gated=None)
    assert remembering.gated_memory(found) is None


def test_a_layer_of_ones_own_is_held_whole():
    own = nn.Module()
    own.num_layers, own.bidirectional = None, True
    place = Mock(Place, target=Target(name="rnn", path="rnn", module=own))
    assert wording._which_part(place) == ""
    assert wording._try_other_direction(place) == ""


def test_along_depth_nothing_lasts_longer_than_the_layers():
    found = findings(0.99, (0.985, 0.995))
    found.place, found.states = Mock(Place, axis="depth", embedding=True), Mock(kann.States, lengths=np.array([5, 5]))
    assert remembering._half_life(0, found) == "more than half of it is left after all 4 layers"


def test_a_mode_that_the_live_test_does_not_name_is_not_quoted_with_its_movers():
    found = findings(0.9)
    found.effects, found.alone = effects_of([0.9, 0.99], [0.7, 0.8]), {1: (0.9, 0.5)}
    assert remembering._is_not_named_live(0, found)
    assert not remembering._is_not_named_live(1, found)
    found.alone = {}
    assert not remembering._is_not_named_live(0, found)
