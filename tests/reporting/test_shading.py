"""Shaded words of a made-up text, and how they are drawn."""

import io

import numpy as np
import pytest
from rich.console import Console

import kann
from kann.analysis.decisions import contribution_changes
from kann.reporting.shaded_text import (
    FULL_COLOUR_AT,
    LOWERS,
    RAISES,
    STRONG,
    Layer,
    ModeShading,
    Shading,
    layers,
    print_shading,
    shade_modes,
    shading_page,
)
from tests.reporting.html_pages import turning_states
from tests.systems import AS_IN_PAPER


def shading_of(changes, *, trusted=None):
    """The text "good, bad" whose only mode changes by these numbers."""
    changes = np.array(changes)
    mode = ModeShading(
        mode=3,
        eigenvalue=0.9 + 0j,
        residual=0.05,
        trusted=trusted,
        magnitudes=np.array([0.0, 1.0]),
        changes=changes,
    )
    return Shading(
        text="good, bad!",
        spans=((0, 4), (6, 9)),
        unknown=(False, True),
        logits=np.cumsum(changes),
        changes=changes,
        modes=(mode,),
        verdict="negative",
    )


def rgb(colour):
    return "rgb({},{},{})".format(*colour)


def test_changes_sum_to_the_contribution(rng):
    values = rng.normal(size=(7, 3))
    np.testing.assert_allclose(np.cumsum(contribution_changes(values), axis=0), values)
    assert contribution_changes(values[:0]).shape == (0, 3)


def test_modes_are_shaded_by_their_contributions_and_magnitudes(rng):
    states = turning_states()
    koopman, weight = kann.fit(states, **AS_IN_PAPER), rng.normal(size=(1, 5))
    first, second = shade_modes(koopman, states[0], weight, [2, 1])
    parts = kann.contributions(koopman, states[0], weight).modes
    assert (first.mode, second.mode) == (2, 1)
    np.testing.assert_allclose(np.cumsum(first.changes), parts[:, 2, 0])
    strength = kann.magnitude(koopman, states[0])[:, koopman.modes[1].indices[0]]
    np.testing.assert_allclose(second.magnitudes, (strength - strength.min()) / np.ptp(strength))


def test_a_text_without_words_has_no_layers():
    states = turning_states()
    (mode,) = shade_modes(kann.fit(states), np.zeros((0, 5)), np.ones((1, 5)), [0])
    assert mode.magnitudes.shape == mode.changes.shape == (0,)
    nothing = Shading(
        text="", spans=(), unknown=(), logits=np.zeros(0), changes=np.zeros(0), modes=(mode,), verdict="no words"
    )
    assert layers(nothing) == []
    assert "no words" in shading_page(nothing)


def test_colours_say_the_direction_and_the_size():
    layer = Layer(title="", values=np.array([2.0, -2.0, 0.0, 9.0]), full_colour_at=2.0, signed=True)
    assert [layer.background(word) for word in range(4)] == [rgb(RAISES), rgb(LOWERS), "rgb(255,255,255)", rgb(RAISES)]
    assert [layer.number(word) for word in range(2)] == ["+2.0", "−2.0"]
    layer = Layer(title="", values=np.array([1.0]), full_colour_at=1.0, signed=False)
    assert layer.background(0) == rgb(STRONG)
    assert layer.number(0) == "1.0"


@pytest.mark.parametrize(("changes", "full"), [([0.1, -0.2], FULL_COLOUR_AT), ([0.1, -3.0], 3.0)])
def test_all_layers_of_changes_have_one_scale(changes, full):
    together, adds, strength = layers(shading_of(changes))
    assert together.full_colour_at == adds.full_colour_at == full
    assert strength.full_colour_at == 1


@pytest.mark.parametrize(
    ("trusted", "words"),
    [
        (True, "residual 0.05 on held-out sequences, trusted"),
        (False, "residual 0.05 on held-out sequences, not trusted"),
        (None, "residual 0.05 on the fitted data"),
    ],
)
def test_a_title_says_whether_the_mode_is_trusted(trusted, words):
    title = layers(shading_of([0.1, -0.2], trusted=trusted))[1].title
    assert title.startswith(f"mode 3, λ = 0.9000, {words}: ")
    assert ("trusted" in title) == (trusted is not None)


def test_what_the_first_word_does_is_counted_from_the_state_zero(rng):
    states = turning_states()
    koopman, weight = kann.fit(states), rng.normal(size=(1, 5))
    trust = kann.trust(koopman, states, folds=3)
    (shaded,) = shade_modes(koopman, states[0], weight, [1], trust=trust)
    before = kann.contributions(koopman, np.zeros(5), weight).modes[1, 0]
    parts = kann.contributions(koopman, states[0], weight).modes[:, 1, 0]
    np.testing.assert_allclose(before + np.cumsum(shaded.changes), parts, atol=1e-12)
    assert abs(before) > 1e-3
    assert shaded.residual == trust.modes[1].residual
    assert shaded.trusted == trust.modes[1].trusted


def test_what_stands_between_words_stays_and_faint_words_are_left_alone():
    stream = io.StringIO()
    print_shading(shading_of([0.01, -0.5]), Console(file=stream, color_system=None, width=100))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "negative"
    assert lines[3] == "good, bad[−0.5]!"
    assert lines[-1] == "good, bad[1.0]!"


def test_the_page_marks_unknown_words_and_has_the_number_as_a_hint():
    page = shading_page(shading_of([0.5, -0.75]))
    assert f'<span class="unknown" style="background:{rgb(LOWERS)}" title="−0.75, logit −0.25">bad</span>!' in page
    assert page.count('class="unknown"') == 3
