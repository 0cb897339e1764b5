import subprocess
import sys
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

import kann
from kann.analysis._trust import Trust
from kann.analysis.modes import first_modes
from kann.errors import KannError
from kann.live.results import MOST_MODES, modes_that_matter
from kann.reporting._report import opened_mode, report
from tests.reporting.html_pages import ORDER, made_effects, turning_states


@pytest.fixture(scope="module")
def states():
    return turning_states()


@pytest.fixture(scope="module")
def koopman(states):
    return kann.fit(states)


def effects_of(koopman, kept, **settings):
    return made_effects(koopman, ORDER, kept, **settings)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [((98, 98, 99), [2]), ((70, 98, 98), [2, 0]), ((70, 80, 95), [2, 0, 1]), ((50, 70, 60), [2, 0])],
)
def test_the_first_modes_matter_as_long_as_they_add(koopman, kept, expected):
    assert [len(mode.indices) for mode in koopman.modes] == [1, 2, 1, 1]
    assert modes_that_matter(koopman, effects=effects_of(koopman, kept)) == expected


def test_a_count_that_was_not_reached_is_left_out(koopman):
    found = effects_of(koopman, (70, 98, 98))
    found.kept_scores["modes"][2] = np.nan
    assert modes_that_matter(koopman, effects=found) == [2, 0]


def test_what_decides_alone_matters_too(koopman):
    found = effects_of(koopman, (98, 98, 98))
    assert modes_that_matter(koopman, effects=found, alone={3: (0.9, 0.5), 2: (0.98, 0.9), 1: (0.6, 1.0)}) == [2, 3]


def test_where_no_mode_keeps_anything_the_trusted_ones_are_shown_by_contribution(koopman, states):
    trust = kann.trust(koopman, states, folds=4)
    nothing = effects_of(koopman, (50, 50, 50))
    found = modes_that_matter(koopman, trust=trust, effects=nothing)
    assert found == list(trust.trusted)
    movers = kann.movers(koopman, states, modes=list(trust.trusted)[::-1])
    assert modes_that_matter(koopman, trust=trust, movers=movers) == found[::-1]
    always_right = replace(nothing, none_scores=np.ones(100))
    assert modes_that_matter(koopman, effects=always_right, alone={0: (1.0, 1.0)}) == []


def test_at_most_six_matter(rng):
    koopman = kann.fit(rng.normal(size=(30, 30, 12)))
    found = replace(effects_of(koopman, (60, 99), counts=(1, 12)), order=tuple(range(len(koopman.modes))))
    assert len(modes_that_matter(koopman, effects=found)) <= MOST_MODES


def test_a_pair_has_two_coordinates(koopman):
    assert first_modes(koopman, (1, 0, 2, 3), 1) == [0]
    assert first_modes(koopman, (1, 0, 2, 3), 3) == [1, 0]
    assert first_modes(koopman, (1,), 1) == [1]


@pytest.mark.parametrize(
    ("matter", "trusted", "opened"),
    [([3, 1], (1,), 1), ([3, 1], (0,), 0), ([3], (), 3), ([], (1,), 1), ([], (), 0)],
)
def test_the_page_opens_on_a_trusted_mode(matter, trusted, opened):
    assert opened_mode(matter, [0, 1, 3], Mock(Trust, trusted=trusted)) == opened


def test_it_needs_neither_a_page_nor_torch():
    code = "import sys, kann.live.results; print({'torch', 'jinja2', 'matplotlib'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_the_live_test_of_another_operator_is_refused(tmp_path, koopman, states):
    other = kann.fit(states, rank=2)
    with pytest.raises(KannError, match=r"effects= is of another operator, of rank 2; .*pass effects\.koopman"):
        report(tmp_path / "r.html", koopman, states, effects=effects_of(other, (1, 1, 1)))
    with pytest.raises(KannError, match="movers= names mode 3 and the operator has"):
        report(tmp_path / "r.html", other, states, movers=kann.movers(koopman, states))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effects": 1}, "effects=1 is no Effects"),
        ({"movers": 1}, "movers=1 is no Movers"),
        ({"sentences": "One."}, "sentences= is a single string; pass a list of sentences"),
        ({"choices": [1]}, "a sentence of choices=1 is no text"),
        ({"alone": [1]}, r"alone=\[1\] has no modes by number; pass a dict"),
        ({"alone": {9: (1, 1)}}, "alone= names mode 9; the operator has 4 modes"),
        ({"alone": {0: 1}}, r"alone\[0\]=1 must be a pair of numbers; pass \(score kept, score removed\)"),
        ({"alone": {0: (1.0, np.nan)}}, "must be a pair of numbers"),
        ({"step_seconds": 0.0}, "step_seconds=0.0 is no length of time"),
        ({"step_seconds": "x"}, "step_seconds='x' .*pass how many seconds a step lasts"),
        ({"step_name": " "}, "step_name= is empty"),
        ({"step_name": 3}, "step_name=3 is no text"),
        ({"caveats": 3}, "caveats=3 is no text"),
        ({"outputs": "words"}, "outputs='words' is unknown; pass 'class' or 'labels' or 'values'"),
        ({"threshold": "x"}, "threshold='x' .*pass the value that an output must exceed"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, koopman, states, options, message):
    with pytest.raises(KannError, match=message):
        report(tmp_path / "r.html", koopman, states, **options)
    assert not (tmp_path / "r.html").exists()
