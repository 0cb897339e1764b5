"""The published searches for fixed points, next to kann's."""

import dataclasses

import numpy as np
import pytest
import torch
from kann_experiments.fixed_point_recipes import RECIPES, find_fixed_points

import kann
from tests import flipflop


@pytest.mark.parametrize("name", RECIPES)
def test_the_published_recipes_find_an_easy_point(name):
    step, initial = lambda h, x: 0.5 * h + 1, np.random.default_rng(0).uniform(-1, 1, size=(20, 3))
    found = find_fixed_points(step, initial, recipe=RECIPES[name])
    assert found.newton_steps == 0 < found.adam_steps
    fixed = found.kinds == "fixed"
    assert fixed.any()
    assert np.all(found.speeds[fixed] <= 1e-10)
    np.testing.assert_allclose(found.points[fixed], 2, atol=1e-4)
    assert (found.reached >= 0).all()  # nothing is filtered by its speed
    np.testing.assert_allclose(kann.find_fixed_points(step, initial).points, [[2, 2, 2]], atol=1e-12)


def test_the_fpf_recipe_is_fixed_point_finder_on_a_gru():
    """On a GRU it returns hundreds of points and misses memories, as its published implementation does."""
    network = flipflop.train("gru", 2, seed=0, iterations=200)
    initial = flipflop.visited(network, 128, seed=0)
    quick = dataclasses.replace(RECIPES["fpf"], steps=1000)
    theirs = find_fixed_points(network.layer, initial, recipe=quick)
    ours = kann.find_fixed_points(network.layer, initial)
    assert theirs.adam_steps == 1000
    assert (theirs.kinds == "slow").sum() > 100 > len(ours)
    memories = [
        len(flipflop.memories(network, torch.from_numpy(found.points[found.stable & (found.kinds == "fixed")])))
        for found in (theirs, ours)
    ]
    assert memories[0] < memories[1] == 4


def test_a_function_over_float64_weights_may_be_searched_with_adam_in_float32():
    W = torch.tensor([[0.5]], dtype=torch.float64)
    found = find_fixed_points(lambda h, x: h @ W + 1, np.zeros((1, 1)), recipe=RECIPES["renn"])
    np.testing.assert_allclose(found.points, [[2.0]], atol=1e-4)
    assert found.precision == "float64"


@pytest.mark.parametrize("name", RECIPES)
def test_where_nothing_is_found_the_result_is_empty(name):
    found = find_fixed_points(lambda h, x: h + 1, np.zeros((5, 2)), recipe=RECIPES[name], slow_tolerance=1e-6)
    assert len(found) == 0
    assert (found.reached == -1).all()
