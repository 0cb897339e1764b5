"""Drawings that several experiments share."""

import numpy as np
import pytest
from kann_experiments.drawing import SIGNED, draw_curves, draw_matrix, draw_words
from matplotlib.figure import Figure


@pytest.fixture
def ax():
    return Figure(figsize=(4, 3)).subplots()


def test_a_matrix_is_white_at_zero(ax, rng):
    matrix = rng.normal(size=(6, 3))
    assert draw_matrix(matrix, ax=ax) is ax
    (image,) = ax.images
    np.testing.assert_array_equal(image.get_array(), matrix)
    assert image.norm.vmax == -image.norm.vmin == np.abs(matrix).max()


def test_matrices_can_share_their_shades(ax):
    draw_matrix(np.zeros((2, 2)), ax=ax, limit=3.0)
    assert ax.images[0].norm.vmax == 3


def test_a_matrix_of_zeros_can_be_drawn(ax):
    draw_matrix(np.zeros((2, 2)), ax=ax)
    assert ax.images[0].norm.vmax == 1


def test_curves_show_the_mean_and_every_run(ax):
    runs = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]])
    draw_curves({"ours": runs, "one": runs[:1]}, np.array([0.1, 0.2, 0.3]), ax=ax, marks={"ours": 0.2})
    drawn = [line.get_ydata() for line in ax.lines]
    np.testing.assert_array_equal(drawn[0], [1, 2, 3])
    np.testing.assert_array_equal(drawn[1:3], runs)
    assert (ax.lines[3].get_xdata()[0], drawn[3][0]) == (0.2, 2)
    np.testing.assert_array_equal(drawn[4], runs[0])
    assert len(ax.lines) == 5
    assert ax.get_legend_handles_labels()[1] == ["ours", "one"]
    assert ax.lines[0].get_color() != ax.lines[4].get_color()
    assert ax.lines[0].get_linestyle() != ax.lines[4].get_linestyle()


def test_words_are_shaded_by_their_number_and_wrapped(ax):
    words = ["short", "a" * 40, *["word"] * 60]
    shades = np.linspace(0, 1, len(words))
    assert draw_words(words, shades, ax=ax, colours="Blues") is ax
    assert [text.get_text() for text in ax.texts][:2] == ["short", "a" * 13 + "…"]
    lightness = [sum(patch.get_facecolor()[:3]) for patch in ax.patches]
    assert lightness == sorted(lightness, reverse=True)
    assert len({text.get_position()[1] for text in ax.texts}) == 3


def test_signed_words_are_orange_above_the_middle_and_purple_below(ax):
    draw_words(["down", "flat", "up"], np.array([0.0, 0.5, 1.0]), ax=ax, colours=SIGNED)
    warmth = [patch.get_facecolor()[0] - patch.get_facecolor()[2] for patch in ax.patches]
    assert warmth[0] < -0.1 < warmth[1] < 0.1 < warmth[2]
