import numpy as np

import kann
from kann._display import table
from tests.systems import AS_IN_PAPER, noisy_states


def test_a_notebook_shows_modes_and_spectrum(rng):
    koopman = kann.fit(noisy_states(rng, d=5))
    shown = koopman._repr_html_()
    assert shown.count("<tr>") == 1 + len(koopman.modes)
    assert shown.count("<circle") == 1 + koopman.rank


def test_a_notebook_shows_states_and_fixed_points(rng):
    states = kann.States.from_padded(rng.normal(size=(3, 4, 2)))
    assert states._repr_html_().count("<tr>") == 1 + 3
    points = kann.find_fixed_points(lambda h, x: 0.5 * h, np.ones((1, 2)))
    shown = points._repr_html_()
    assert shown.count("<tr>") == 2
    assert "<td>fixed</td><td>True</td>" in shown


def test_a_notebook_shows_how_many_sequences_are_not_listed(rng):
    shown = kann.States.from_padded(rng.normal(size=(11, 4, 2)))._repr_html_()
    assert "<td>… 3 more</td><td>12</td>" in shown
    assert "<td>1</td><td>4</td><td>4 to 7</td>" in shown


def test_a_notebook_shows_the_modes_that_contribute_most(rng):
    states = noisy_states(rng, d=5)
    parts = kann.contributions(
        kann.fit(states, rank=3, **AS_IN_PAPER), states.reshape(-1, 5), rng.normal(size=(2, 5)), np.ones(2)
    )
    shown = parts._repr_html_()
    largest = np.abs(parts.modes).mean(axis=0).max(axis=1).argmax()
    assert shown.split("<td>")[1].startswith(f"mode {largest}<")
    assert shown.count("<tr>") == 1 + parts.modes.shape[1] + 2
    assert "<td>bias</td><td>+1</td><td>+1</td>" in shown
    assert repr(parts).startswith(f"Contributions({parts.modes.shape[1]} modes to 2 outputs")
    assert "array" not in repr(parts)


def test_cells_are_escaped():
    assert "<td>&lt;b&gt;</td>" in table("a", ("b",), [("<b>",)])
