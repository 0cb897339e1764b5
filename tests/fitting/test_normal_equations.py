"""Gram matrices of folds, beside loops over the pairs of states."""

import dask.array as da
import numpy as np
import pytest
import torch

import kann
from kann.data import reduction as blocks
from kann.errors import KannError
from kann.fitting.folds import assign_folds
from kann.fitting.normal_equations import NormalEquations, designs_of_folds, sum_of, without_each
from tests.systems import rotation

SAME = {"rtol": 1e-9, "atol": 1e-9}
"""Sums of float64 numbers in another order."""


@pytest.fixture
def ragged(rng):
    """States of four units with two inputs, sequences of one state among them."""
    lengths = [1, 9, 2, 14, 5, 1, 7, 3, 11, 6]
    values = [rng.normal(size=(n, 4)).cumsum(axis=0) + 1 for n in lengths]
    return kann.States.from_sequences(values, inputs=[rng.normal(size=(n, 2)) for n in lengths])


@pytest.fixture
def basis(rng):
    return {"basis": rotation(rng, 4)[:, :3], "mean": rng.normal(size=4)}


def pairs_of(states, fold_of, fold, *, basis, mean, driven):
    """Rows (z, u, 1) and targets of each sequence of a fold, by hand."""
    for i in np.flatnonzero(fold_of == fold):
        z, rows, target = (states[int(i)] - mean) @ basis, [], []
        for t in range(len(z) - 1):
            inputs = states.inputs[states.span(i)][t + 1] if driven else []
            rows.append(np.concatenate([z[t], inputs, [1.0]]))
            target.append(z[t + 1])
        if rows:
            yield np.array(rows), np.array(target)


@pytest.mark.parametrize("driven", [False, True])
def test_designs_are_the_products_of_the_pairs_of_each_fold(ragged, basis, driven):
    fold_of = assign_folds(ragged.lengths, folds=3)
    for fold, design in enumerate(designs_of_folds(ragged, fold_of, driven=driven, **basis)):
        parts = list(pairs_of(ragged, fold_of, fold, driven=driven, **basis))
        rows, target = (np.concatenate(part) for part in zip(*parts, strict=True))
        np.testing.assert_allclose(design.gram, rows.T @ rows, **SAME)
        np.testing.assert_allclose(design.target, rows.T @ target, **SAME)
        np.testing.assert_allclose(design.total, target.T @ target, **SAME)
        assert design.pairs == len(rows)
        means = [len(a) * np.outer(a.mean(axis=0), y.mean(axis=0)) for a, y in parts]
        np.testing.assert_allclose(design.shuffled, sum(means), **SAME)


def test_the_shuffled_design_is_the_mean_over_explicit_shuffles(ragged, basis, rng):
    fold_of = assign_folds(ragged.lengths, folds=3)
    (design, *_) = designs_of_folds(ragged, fold_of, driven=False, **basis)
    parts = list(pairs_of(ragged, fold_of, 0, driven=False, **basis))
    draws = np.array([sum(a.T @ rng.permutation(y) for a, y in parts) for _ in range(4000)])
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - design.as_shuffled().target) <= 5 * error + 1e-9).all()


@pytest.mark.parametrize(("offset", "driven"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_weights_solve_the_least_squares_problem_of_the_pairs(ragged, basis, offset, driven, ridge):
    fold_of = assign_folds(ragged.lengths, folds=3)
    total = sum_of(designs_of_folds(ragged, fold_of, driven=driven, **basis))
    parts = [part for fold in range(3) for part in pairs_of(ragged, fold_of, fold, driven=driven, **basis)]
    rows, target = (np.concatenate(part) for part in zip(*parts, strict=True))
    if not offset:
        rows[:, -1] = 0
    held = np.diag([*np.full(rows.shape[1] - 1, np.sqrt(ridge)), 0.0])  # the offset is not held down
    expected = np.linalg.lstsq(np.vstack([rows, held]), np.vstack([target, np.zeros((len(held), 3))]), rcond=None)[0]
    weights = total.weights(offset=offset, ridge=ridge, rounding=0.0)
    np.testing.assert_allclose(weights, expected, rtol=1e-8, atol=1e-8)
    missed = target - rows @ expected
    np.testing.assert_allclose(total.residual_gram(weights), missed.T @ missed, rtol=1e-8, atol=1e-8)
    change = target - rows[:, :3]
    np.testing.assert_allclose(total.change_gram(), change.T @ change, **SAME)
    about = rows[:, :3] - 0.5
    np.testing.assert_allclose(total.state_gram(np.full(3, 0.5)), about.T @ about, **SAME)
    assert weights.shape == (3 + 2 * driven + 1, 3)


@pytest.mark.parametrize("driven", [False, True])
def test_designs_of_moments_are_those_of_the_states(ragged, basis, driven):
    fold_of = assign_folds(ragged.lengths, folds=3)
    for fold, design in enumerate(designs_of_folds(ragged, fold_of, driven=driven, **basis)):
        of_moments = NormalEquations.of_moments(kann.Moments.of(ragged[fold_of == fold]), driven=driven, **basis)
        for name in ("gram", "target", "total"):
            np.testing.assert_allclose(getattr(of_moments, name), getattr(design, name), **SAME)
        assert of_moments.shuffled is None
        n = design.pairs  # sequences are not known, so states are shuffled among all of them
        expected = np.outer(design.gram[:, -1], design.target[-1]) / n
        np.testing.assert_allclose(of_moments.as_shuffled().target, expected, **SAME)


@pytest.mark.parametrize("folds", [2, 3, 7])
def test_without_each_fold_are_all_the_others(ragged, basis, folds):
    designs = designs_of_folds(ragged, np.arange(len(ragged)) % folds, driven=True, **basis)
    for place, rest in enumerate(without_each(designs)):
        expected = sum_of([design for other, design in enumerate(designs) if other != place])
        for name in ("gram", "target", "total", "shuffled"):
            np.testing.assert_allclose(getattr(rest, name), getattr(expected, name), **SAME)


@pytest.mark.parametrize("faintly", [0.0, 1e-3])
def test_an_input_that_only_one_fold_knows_has_no_weight_in_the_others(rng, faintly):
    states = _with_an_input_of_the_last_sequence_alone(rng, faintly)
    designs = designs_of_folds(states, np.arange(10), basis=np.eye(3), mean=np.zeros(3), driven=True)
    weights = without_each(designs)[-1].weights(offset=True, ridge=0.0, rounding=0.0)
    np.testing.assert_array_equal(weights[4], 0)


def _with_an_input_of_the_last_sequence_alone(rng, faintly):
    inputs = np.zeros((10, 50, 2))
    inputs[..., 0] = rng.normal(size=(10, 50))
    inputs[0, 20, 1] = faintly
    inputs[-1, :, 1] = rng.normal(size=50)
    return kann.States.from_padded(rng.normal(size=(10, 50, 3)), inputs=inputs)


def test_leading_coordinates_are_a_smaller_design(ragged, basis):
    fold_of = assign_folds(ragged.lengths, folds=3)
    designs = designs_of_folds(ragged, fold_of, driven=True, **basis)
    smaller = {"basis": basis["basis"][:, :2], "mean": basis["mean"]}
    for ours, expected in zip(designs, designs_of_folds(ragged, fold_of, driven=True, **smaller), strict=True):
        for name in ("gram", "target", "total"):
            np.testing.assert_allclose(getattr(ours.leading(2), name), getattr(expected, name), **SAME)


@pytest.mark.parametrize("kind", ["torch", "dask", "store", "small blocks"])
@pytest.mark.parametrize("driven", [False, True])
def test_it_does_not_matter_where_the_states_are(ragged, basis, kind, driven, tmp_path, monkeypatch):
    fold_of = assign_folds(ragged.lengths, folds=3)
    expected = designs_of_folds(ragged, fold_of, driven=driven, **basis)
    states = ragged
    if kind == "torch":
        values, inputs = (torch.as_tensor(array) for array in (ragged.values, ragged.inputs))
        states = kann.States(values=values, lengths=ragged.lengths, inputs=inputs)
    elif kind == "dask":  # chunks cut sequences, also into single states
        chunks = ((1, 4, 1, 1, 13, 2, 30, 7), (3, 1))
        values = da.from_array(ragged.values, chunks=chunks)
        inputs = da.from_array(ragged.inputs, chunks=(8, 1))
        states = kann.States(values=values, lengths=ragged.lengths, inputs=inputs)
    elif kind == "store":
        ragged.save(tmp_path / "states.zarr")
        states = kann.States.open(tmp_path / "states.zarr")
    else:
        monkeypatch.setattr(blocks, "block_rows", lambda *arguments: 4)
    found = designs_of_folds(states, fold_of, driven=driven, **basis)
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("gram", "target", "total", "shuffled"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), **SAME)


def test_nan_is_named_with_its_place(ragged, basis):
    ragged.values[12, 1] = np.nan
    fold_of = assign_folds(ragged.lengths, folds=3)
    with pytest.raises(KannError, match="sequence 3"):
        designs_of_folds(ragged, fold_of, driven=False, **basis)
