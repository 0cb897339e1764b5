"""Figures about depth draw what the results say."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import kann
from kann.errors import KannError

METHODS, SPANS = 4, 2


@pytest.fixture
def ax():
    return Figure(figsize=(4, 3)).subplots()


@pytest.fixture
def trust(rng):
    states = np.cumsum(rng.normal(size=(60, 4, 3)), axis=1)
    return kann.depth.trust(kann.depth.fit(states), states)


@pytest.fixture
def effects(rng):
    scores = {"kl": rng.random((SPANS, METHODS, 9)), "loss": 2 + rng.random((SPANS, METHODS, 9))}
    return kann.depth.BypassEffects(
        spans=(("layers.0", "layers.2"), ("layers.4", "layers.4")),
        layers=np.array([3, 1]),
        scores=scores,
        untouched={"kl": np.zeros(9), "loss": np.full(9, 1.5)},
        judged=np.arange(9),
        level=0.95,
    )


def test_errors_of_each_step_are_lines_with_intervals(trust, ax):
    drawn = kann.plots.draw_steps(trust, ax=ax, names=["a", "b", "c"])
    assert drawn is ax
    for line, name in zip(ax.lines, ("identity", "one", "each"), strict=True):
        assert np.array_equal(line.get_ydata(), trust.errors[name])
    assert len(ax.collections) == 3
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "c"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["identity", "one operator", "own map"]


def test_of_many_steps_some_are_named(rng, ax):
    states = np.cumsum(rng.normal(size=(60, 41, 2)), axis=1)
    kann.plots.draw_steps(kann.depth.trust(kann.depth.fit(states, ridge=0.1), states), ax=ax)
    assert [label.get_text() for label in ax.get_xticklabels()][:3] == ["0", "3", "6"]


def test_bypasses_are_dots_with_intervals_over_the_untouched_network(effects, ax):
    assert kann.plots.draw_bypasses(effects, ax=ax) is ax
    assert len(ax.containers) == METHODS
    for i, container in enumerate(ax.containers):
        assert np.array_equal(container.lines[0].get_ydata(), effects.means["loss"][:, i])
    assert ax.lines[-1].get_ydata()[0] == 1.5
    low, high = ax.get_ylim()
    assert low + 0.05 * (high - low) < 1.5  # the untouched network does not lie on the frame
    assert [label.get_text() for label in ax.get_xticklabels()] == ["layers.0 – 2", "layers.4"]


def test_any_measure_can_be_drawn(effects, ax):
    kann.plots.draw_bypasses(effects, measure="kl", ax=ax)
    assert np.array_equal(ax.containers[0].lines[0].get_ydata(), effects.means["kl"][:, 0])


def test_mistakes_are_explained(trust, effects, ax):
    with pytest.raises(KannError, match="there are 2 names for 3 steps; pass one for each"):
        kann.plots.draw_steps(trust, ax=ax, names=["a", "b"])
    with pytest.raises(KannError, match="measure='accuracy' is unknown; pass 'kl' or 'loss'"):
        kann.plots.draw_bypasses(effects, measure="accuracy", ax=ax)


@pytest.fixture
def profile():
    torch.manual_seed(0)
    model, x = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), torch.randn(60, 5, 4)
    return kann.depth.profile(model, x[:40], x[40:], layer=["0", "1"], counts=(1, 4), progress=False)


def test_a_profile_has_a_line_for_balanced_directions_and_components_of_each_layer(profile, ax):
    assert kann.plots.draw_profile(profile, ax=ax) is ax
    drawn = [line.get_ydata() for line in ax.lines]
    expected = [profile.kept[method][layer] for layer in range(2) for method in ("balanced", "pca")]
    np.testing.assert_array_equal(drawn, expected)


def test_the_directions_that_layers_need_are_drawn_on_request(profile, ax):
    kann.plots.draw_profile(profile, agreement=0.99, ax=ax)
    for line, counts in zip(ax.lines, profile.needed(0.99).values(), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), counts)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1"]
