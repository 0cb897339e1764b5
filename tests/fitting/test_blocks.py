"""One or two long sequences are cut into blocks to be held out."""

import numpy as np
import pytest

import kann
from kann.errors import KannError
from kann.fitting.folds import blocks_to_hold_out
from kann.fitting.normal_equations import designs_of_folds, sum_of


def long_states(rng, *lengths, eigenvalues=(0.9, 0.5), noise=1.0):
    """States of a linear system with one eigenvalue for each unit, and the input that drives it."""
    sequences, inputs = [], []
    for length in lengths:
        h, read, path = rng.normal(size=len(eigenvalues)), rng.normal(size=(length, 1)), []
        for u in read:
            path.append(h)
            h = h * eigenvalues + u + noise * rng.normal(size=len(eigenvalues))
        sequences.append(np.stack(path))
        inputs.append(np.vstack([np.zeros((1, 1)), read[:-1]]))
    return kann.States.from_sequences(sequences, inputs=inputs)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((1000,), [100] * 10),
        ((160,), [53, 53, 54]),
        ((149,), [149]),
        ((900, 300), [112, 113] * 4 + [100] * 3),
        ((1000, 1), [100] * 10 + [1]),
        ((60, 60, 60), [60] * 3),
    ],
)
def test_few_sequences_are_cut_into_about_ten_blocks(lengths, expected, rng):
    found = blocks_to_hold_out(long_states(rng, *lengths)).lengths
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("driven", [False, True])
@pytest.mark.parametrize("lengths", [(700,), (300, 501)])
def test_no_pair_is_lost_and_folds_hold_their_blocks(lengths, driven, rng):
    states = long_states(rng, *lengths)
    blocks = blocks_to_hold_out(states)
    fold_of, basis = np.arange(len(blocks)), {"basis": np.eye(2), "mean": np.zeros(2), "driven": driven}
    designs = designs_of_folds(states, fold_of, lengths=blocks.lengths, **basis)
    whole = sum_of(designs_of_folds(states, np.zeros(len(states), dtype=int), **basis))
    np.testing.assert_allclose(sum_of(designs).gram, whole.gram)
    firsts = np.isin(blocks.starts, states.starts)
    assert [design.pairs for design in designs] == (blocks.lengths - firsts).tolist()
    for number, design in enumerate(designs):
        own = blocks.span(number)
        after = np.arange(own.start + firsts[number], own.stop)
        np.testing.assert_allclose(design.target[:2], states.values[after - 1].T @ states.values[after])


@pytest.mark.parametrize("eigenvalue", [0.9, 0.98])
def test_the_interval_of_one_long_sequence_holds_the_eigenvalue(eigenvalue):
    held = 0
    for seed in range(60):
        states = long_states(np.random.default_rng(seed), 1000, eigenvalues=(eigenvalue, 0.5))
        trust = kann.trust(kann.fit(states), states)
        low, high = trust.modes[0].interval
        held += low <= eigenvalue <= high
    assert trust.in_blocks
    assert "blocks" in repr(trust)
    assert held >= 52  # of 60; at 95 % fewer come once in a thousand times


def test_rank_and_ridge_are_chosen_on_blocks(rng):
    states = long_states(rng, 2000, noise=0.01)
    assert kann.fit(states, rank="auto", driven=True).rank_curve is not None
    bilinear = kann.fit(states, driven="bilinear")
    assert bilinear.ridge_curve is not None


def test_quiet_steps_of_one_long_sequence_are_judged(rng):
    states = long_states(rng, 4000, noise=0.01)

    def small(inputs):
        return np.abs(inputs[:, 0]) < 0.5

    koopman = kann.fit(states, where=small, driven=True)
    assert kann.trust(koopman, states, where=small).in_blocks


def test_a_sequence_in_chunks_is_cut_into_the_same_blocks(rng):
    array = pytest.importorskip("dask.array")
    states = long_states(rng, 1000)
    chunked = kann.States(values=array.from_array(states.values, chunks=(77, 2)), lengths=states.lengths)
    plain = kann.States(values=states.values, lengths=states.lengths)
    found, expected = (kann.trust(kann.fit(each), each) for each in (chunked, plain))
    np.testing.assert_allclose([mode.interval for mode in found.modes], [mode.interval for mode in expected.modes])
    np.testing.assert_allclose(found.modes[0].null, expected.modes[0].null)


def test_what_cannot_be_cut_is_named(rng):
    short, long = long_states(rng, 120), long_states(rng, 1000)
    with pytest.raises(KannError, match=r"1 sequences .* cannot be held out"):
        kann.trust(kann.fit(short), short)
    with pytest.raises(KannError, match=r"1 groups .* cannot be held out"):
        kann.trust(kann.fit(long), long, groups=["ann"])
