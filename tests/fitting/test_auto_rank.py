"""The rank that held-out sequences choose."""

import warnings

import numpy as np
import pytest

import kann
from kann.errors import KannError
from kann.fitting.basis import RankCurve
from kann.fitting.folds import FOLDS_TO_CHOOSE as FOLDS
from kann.fitting.folds import assign_folds
from kann.fitting.horizons import HORIZONS, ranks_to_try
from tests.systems import low_rank_states, noisy_states


def test_a_system_of_few_dimensions_gets_few_directions(rng):
    koopman = kann.fit(low_rank_states(rng, d=24, r=4, sequences=30), rank="auto")
    assert 3 <= koopman.rank <= 6
    assert koopman.rank == koopman.rank_curve.chosen
    assert koopman.rank_curve.ranks.tolist() == [1, 2, 3, 4, 6, 8, 12, 16, 24]


def test_of_noise_nothing_more_than_the_mean_is_predicted(rng):
    koopman = kann.fit(rng.normal(size=(30, 40, 12)), rank="auto")
    assert koopman.rank_curve.errors[-1, -1] == pytest.approx(1.0, abs=0.02)
    assert koopman.rank_curve.copying[0] == pytest.approx(2.0, abs=0.1)
    assert koopman.rank == 1


@pytest.mark.parametrize("driven", [False, True])
def test_the_curve_is_that_of_fits_without_each_fold(rng, driven):
    values = noisy_states(rng, sequences=10, steps=15, d=5)
    inputs = rng.normal(size=(10, 15, 2))
    states = kann.States.from_padded(values, inputs=inputs)
    curve = kann.fit(states, rank="auto", driven=driven).rank_curve
    fold_of = assign_folds(states.lengths, folds=FOLDS)
    basis = kann.fit(states, driven=driven)
    assert curve.horizons.tolist() == list(HORIZONS)
    for place, rank in enumerate(curve.ranks.tolist()):
        directions = basis.basis[:, :rank]
        for column, horizon in enumerate(HORIZONS):
            missed, reached = 0.0, []
            for fold in range(FOLDS):
                other = kann.fit(_moved(states[fold_of != fold], basis.mean), basis=directions, driven=driven)
                for i in np.flatnonzero(fold_of == fold):
                    h = states[int(i)] - basis.mean
                    for t in range(15 - horizon):
                        given = inputs[i, t + 1 : t + 1 + horizon] if driven else None
                        path = _path(other, h[t] @ directions, given, horizon)
                        missed += np.sum((path @ directions.T - h[t + horizon]) ** 2)
                        reached.append(h[t + horizon])
            variance = np.sum((np.array(reached) - np.mean(reached, axis=0)) ** 2)
            np.testing.assert_allclose(curve.errors[place, column], missed / variance, rtol=1e-8)


def test_sequences_of_a_group_are_held_out_together(rng):
    """Ten recordings of each patient that are alike: without groups noise seems to be predicted."""
    noise = np.repeat(rng.normal(size=(6, 5, 8)), 10, axis=0) + 0.4 * rng.normal(size=(60, 5, 8))
    patients = np.repeat(np.arange(6), 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kann.errors.FewPairsWarning)
        alone = kann.fit(noise, rank="auto").rank_curve
        together = kann.fit(noise, rank="auto", groups=patients).rank_curve
        copies = kann.fit(noise[::10].repeat(10, axis=0) + 1e-3 * noise, rank="auto").rank_curve
    assert copies.errors[:, 0].min() > 0.95  # near copies need no names
    assert alone.errors[:, 0].min() < 0.9
    assert together.errors[:, 0].min() > 0.95
    with pytest.raises(KannError, match="2 of two states or more are too few"):
        kann.fit(noise, rank="auto", groups=patients > 2)
    with pytest.raises(KannError, match="groups= is for rank='auto' and for the ridge of a bilinear operator"):
        kann.fit(noise, rank=4, groups=patients)


def _moved(states, mean):
    return kann.States(values=states.values - mean, lengths=states.lengths, inputs=states.inputs)


def _path(koopman, z, inputs, steps):
    """The coordinates after some steps of z C + u D + c. The operator's own coordinates are about another mean."""
    z = z - koopman.mean @ koopman.basis
    for step in range(steps):
        z = z @ koopman.matrix + koopman.offset
        if inputs is not None:
            z = z + inputs[step] @ koopman.drive
    return z + koopman.mean @ koopman.basis


def curve_of(errors):
    errors = np.array(errors)
    return RankCurve(ranks=np.arange(1, len(errors) + 1), horizons=np.array([1, 10]), errors=errors, copying=np.ones(2))


@pytest.mark.parametrize(
    ("errors", "chosen"),
    [
        ([[0.9, 0.9], [0.5, 0.52], [0.5, 0.5], [0.49, 0.5]], 2),  # within 5 % of the best
        ([[0.9, 0.9], [0.5, 0.54], [0.5, 0.5], [0.5, 0.5]], 3),  # the mean is, the longest horizon is not
        ([[0.5, 0.9], [0.1, 0.89], [0.2, 0.7]], 3),
        ([[0.1, 0.9], [0.5, 0.8]], 1),  # none is within 5 % of both: the best in the mean
        ([[0.5, 0.5], [np.inf, np.inf]], 1),
    ],
)
def test_the_smallest_rank_near_the_best_is_chosen(errors, chosen):
    assert curve_of(errors).chosen == chosen


def test_ranks_grow_by_a_third_or_half_and_end_with_all():
    assert ranks_to_try(1) == [1]
    assert ranks_to_try(100) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100]


def test_the_curve_is_saved_with_the_operator(rng, tmp_path):
    koopman = kann.fit(noisy_states(rng), rank="auto")
    koopman.save(tmp_path / "operator.npz")
    loaded = kann.Koopman.load(tmp_path / "operator.npz").rank_curve
    for name in ("ranks", "horizons", "errors", "copying"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(koopman.rank_curve, name))


def test_what_cannot_be_held_out_is_refused(rng):
    with pytest.raises(KannError, match="rank='auto' needs states, some of which are held out; pass them, or a number"):
        kann.fit(kann.Moments.of(noisy_states(rng)), rank="auto")
    with pytest.raises(KannError, match="chosen on held-out sequences, and 2 of two states or more are too few"):
        kann.fit(noisy_states(rng, sequences=2), rank="auto")


def test_short_sequences_are_judged_by_the_horizons_that_they_have(rng):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kann.errors.FewPairsWarning)
        curve = kann.fit(noisy_states(rng, sequences=8, steps=4, d=3), rank="auto").rank_curve
    assert curve.horizons.tolist() == [1, 2]
