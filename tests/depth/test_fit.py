"""A map for each step: known maps are found, wherever the states are, and options that do not fit are refused."""

import dask.array as da
import numpy as np
import pytest
import torch

import kann
from kann.depth.maps import equations_of_steps
from kann.errors import FewPairsWarning, KannError
from tests.systems import relative

STEPS, UNITS = 4, 6


@pytest.fixture
def maps(rng):
    """Matrices and offsets that differ from step to step."""
    return [(np.eye(UNITS) + 0.4 * rng.normal(size=(UNITS, UNITS)), rng.normal(size=UNITS)) for _ in range(STEPS)]


def along(maps, rng, *, sequences=60, noise=0.0):
    """States (S, T, d) along these maps."""
    path = [rng.normal(size=(sequences, UNITS))]
    for matrix, offset in maps:
        path.append(path[-1] @ matrix + offset + noise * rng.normal(size=path[-1].shape))
    return np.stack(path, axis=1)


def test_maps_that_states_follow_exactly_are_found(maps, rng):
    found = kann.depth.fit(along(maps, rng))
    assert len(found) == STEPS
    for own, (matrix, offset) in zip(found.each, maps, strict=True):
        assert relative(own.matrix, matrix) < 1e-8  # rounding of Gram matrices of well-conditioned states
        assert relative(own.offset, offset) < 1e-8


def test_the_one_operator_is_that_of_a_plain_fit(maps, rng):
    states = along(maps, rng, noise=0.1)
    assert np.array_equal(kann.depth.fit(states, rank=3).one.matrix, kann.fit(states, rank=3).matrix)


def test_the_map_of_a_span_is_the_product_of_its_steps(maps, rng):
    found = kann.depth.fit_span(along(maps, rng), 1, 2)
    (first, shift), (second, other) = maps[1:3]
    assert relative(found.matrix, first @ second) < 1e-8
    assert relative(found.offset, shift @ second + other) < 1e-8
    assert (found.first, found.last) == (1, 2)


def test_each_map_predicts_the_next_state(maps, rng):
    states = along(maps, rng)
    found = kann.depth.fit(states)
    assert np.allclose(found.each[2].predict(states[:, 2]), states[:, 3])


def test_where_states_say_nothing_a_large_ridge_leaves_the_identity(rng):
    states = rng.normal(size=(40, 3, 5))
    own = kann.depth.fit(states, ridge=1e9).each[0]
    assert np.abs(own.matrix - np.eye(5)).max() < 1e-6


def test_the_ridge_is_chosen_on_held_out_sequences(rng):
    """States that hardly change, in noise, and fewer of them than a free map would need."""
    start = rng.normal(size=(60, 1, 40))
    states = np.concatenate([start, start + 0.1 * rng.normal(size=start.shape)], axis=1)
    chosen = kann.depth.fit(states).each[0]
    assert chosen.ridge >= 0.1
    assert np.abs(chosen.matrix - np.eye(40)).max() < 0.1


def test_units_that_never_vary_and_steps_that_change_nothing_are_no_trouble(rng):
    states = np.repeat(rng.normal(size=(30, 1, 4)), 3, axis=1)
    states[..., 2] = 1.0
    found = kann.depth.fit(states, rank=2)
    assert np.allclose(found.each[1].predict(states[:, 1]), states[:, 1])


@pytest.mark.parametrize("chunks", [(7, 5, 6), (20, 2, 3), (10, 1, 6)])
def test_dask_gives_the_same_maps(maps, rng, chunks):
    states = along(maps, rng, noise=0.1, sequences=20)
    lazy = kann.depth.fit(da.from_array(states, chunks=chunks))
    for own, other in zip(kann.depth.fit(states).each, lazy.each, strict=True):
        assert relative(other.matrix, own.matrix) < 1e-9
        assert own.ridge == other.ridge


def test_a_store_and_a_tensor_give_the_same_maps(maps, rng, tmp_path):
    states = along(maps, rng, noise=0.1)
    kann.States.from_padded(states).save(tmp_path / "states.zarr")
    own = kann.depth.fit(states).each[1].matrix
    for other in (tmp_path / "states.zarr", torch.from_numpy(states)):
        assert relative(kann.depth.fit(other).each[1].matrix, own) < 1e-9


def test_chunks_that_cut_a_span_are_refused(maps, rng):
    with pytest.raises(KannError, match="cut 60 of 60 sequences between steps 0 and 3; pass chunks that hold whole"):
        kann.depth.fit_span(da.from_array(along(maps, rng), chunks=(60, 2, 6)), 0, 2)


def test_what_weights_miss_is_the_sum_of_squares(rng):
    states = kann.States.from_padded(rng.normal(size=(30, 2, 3)))
    ((design,),) = equations_of_steps(states, np.zeros(30, dtype=int), [(0, 1)])
    weights = rng.normal(size=(4, 3))
    x, y = states.padded()[:, 0], states.padded()[:, 1]
    assert design.residual_sum_of_squares(weights) == pytest.approx(np.sum((y - x @ weights[:3] - weights[3]) ** 2))


def test_moments_of_folds_add_up(rng):
    states = kann.States.from_padded(rng.normal(size=(30, 3, 2)))
    parts = equations_of_steps(states, np.arange(30) % 4, [(0, 1), (0, 2)])[1]
    ((whole,),) = equations_of_steps(states, np.zeros(30, dtype=int), [(0, 2)])
    added = parts[0] + parts[1] + parts[2] + parts[3]
    assert np.allclose(added.target, whole.target)
    assert added.pairs == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"states": [np.ones((4, 2)), np.ones((5, 2))]}, "these have 4 to 5 states; pass sequences of one length"),
        ({"states": np.ones((4, 1, 2))}, "sequences of one state have no step"),
        ({"states": kann.Moments.of(np.ones((4, 3, 2)))}, "needs the states of each step, which moments do not hold"),
        ({"ridge": -1.0}, "ridge=-1.0 would reward large operators"),
        (
            {"states": np.random.default_rng(0).normal(size=(2, 3, 1))},
            "and 2 of two states or more are too few; pass ridge",
        ),
    ],
)
def test_mistakes_are_explained(arguments, message, rng):
    states = kann.States.from_padded(rng.normal(size=(40, 3, 2)), inputs=np.ones((40, 3, 1)))
    with pytest.raises(KannError, match=message):
        kann.depth.fit(**{"states": states} | arguments)


def test_spans_that_are_none_are_refused(rng):
    states = rng.normal(size=(40, 4, 2))
    with pytest.raises(KannError, match="from step 2 to step 1 is none of 3 steps; pass first <= last < 3"):
        kann.depth.fit_span(states, 2, 1)
    with pytest.raises(KannError, match="from step 0 to step 3 is none of 3 steps"):
        kann.depth.fit_span(states, 0, 3)


def test_fewer_sequences_than_unknowns_are_warned_of(rng):
    with pytest.warns(FewPairsWarning, match="20 sequences for 21 unknowns in each column of a step's map"):
        kann.depth.fit(rng.normal(size=(20, 8, 20)), rank=2)


def test_states_that_are_not_finite_are_refused(rng):
    states = rng.normal(size=(20, 3, 2))
    states[3, 1, 0] = np.nan
    with pytest.raises(KannError, match="NaN at sequence 3, step 1, unit 0"):
        kann.depth.fit_span(states, 0, 0)


def test_results_tell_what_they_are(maps, rng):
    found = kann.depth.fit(along(maps, rng), ridge=0.01)
    assert repr(found).startswith("StepMaps(4 steps, 6 units, ridges 1e-02 to 1e-02; Koopman(")
    assert repr(found.each[1]) == "AffineMap(step 1, 6 units, ridge 1e-02)"
    assert "<td>3</td>" in found._repr_html_()
    assert "steps 0 to 2" in repr(kann.depth.fit_span(along(maps, rng), 0, 2))
