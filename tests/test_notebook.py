import numpy as np

import kann
from kann.notebook import table
from tests.systems import noisy_states


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


def test_cells_are_escaped():
    assert "<td>&lt;b&gt;</td>" in table("a", ("b",), [("<b>",)])
