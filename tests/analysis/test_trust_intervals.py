"""Intervals of eigenvalues where sequences differ, states are measured with noise, or operators are wide."""

import numpy as np
import pytest

import kann
from kann.analysis import cross_validation
from kann.analysis.intervals import jackknife_error, jackknife_freedom, student_width
from tests.systems import run, wide_states


def moments_of_draws(rng, *, draws, sequences, steps=60, spread=0.0):
    """Σ x², Σ x y of one unit for many draws of sequences; eigenvalues are N(.9, spread²) below .99."""
    rates = 0.9 + spread * rng.normal(size=(draws, sequences))
    while (beyond := rates > 0.99).any():
        rates[beyond] = 0.9 + spread * rng.normal(size=beyond.sum())
    h, squared, crossed = rng.normal(size=rates.shape), np.zeros(rates.shape), np.zeros(rates.shape)
    for step in range(100 + steps):
        after = rates * h + rng.normal(size=rates.shape)
        if step >= 100:
            squared, crossed = squared + h * h, crossed + h * after
        h = after
    return squared, crossed


def covered(squared, crossed, truth, *, folds):
    """How often intervals hold the truth: with the degrees of freedom of `jackknife_freedom`, and with f − 1."""
    squared, crossed = (x.reshape(len(x), -1, folds).sum(axis=1).T for x in (squared, crossed))
    whole = crossed.sum(axis=0) / squared.sum(axis=0)
    without = (crossed.sum(axis=0) - crossed) / (squared.sum(axis=0) - squared)
    error = jackknife_error(without)
    widths = student_width(0.95, jackknife_freedom(squared / squared.sum(axis=0))), student_width(0.95, folds - 1)
    return [float(np.mean(np.abs(whole - truth) <= width * error)) for width in widths]


@pytest.mark.parametrize("sequences", [10, 30])
def test_intervals_hold_the_mean_eigenvalue_of_sequences_that_differ(sequences, rng):
    many = moments_of_draws(rng, draws=1, sequences=200_000, spread=0.04)
    truth = many[1].sum() / many[0].sum()  # the mean weighed by energy, which the regression finds
    ours, equal_folds = covered(*moments_of_draws(rng, draws=4_000, sequences=sequences, spread=0.04), truth, folds=10)
    assert 0.93 <= ours <= 0.97  # 4,000 draws know it to 0.4 %
    assert equal_folds < 0.925
    alike, _ = covered(*moments_of_draws(rng, draws=4_000, sequences=sequences), 0.9, folds=10)
    assert 0.93 <= alike <= 0.975


def one_unit(rng, *, sequences=40, steps=300, spread=0.0, measured=0.0):
    rates = np.clip(0.85 + spread * rng.normal(size=(sequences, 1)), 0.5, 0.97)
    h, path = rng.normal(size=(sequences, 1)), []
    for _ in range(steps):
        h = rates * h + rng.normal(size=h.shape)
        path.append(h)
    states = np.stack(path, axis=1)
    return states + measured * states.std() * rng.normal(size=states.shape)


def test_the_spread_tells_sequences_that_differ_from_those_that_do_not(rng):
    alike, different = one_unit(rng), one_unit(rng, spread=0.08)
    found = [kann.trust(kann.fit(states), states).modes[0].spread for states in (alike, different)]
    assert found[0] < 2 < found[1]


def test_noise_that_was_added_to_states_is_noticed(rng):
    """Noise of half the states' size pulls .85 to .68; the state two steps before does not."""
    states = one_unit(rng, measured=0.5)
    (mode,) = kann.trust(kann.fit(states), states).modes
    assert mode.eigenvalue.real < 0.72
    assert mode.two_steps == pytest.approx(0.85, abs=0.03)
    assert not mode.agrees
    clean = one_unit(rng)
    (mode,) = kann.trust(kann.fit(clean), clean).modes
    assert mode.agrees
    assert mode.two_steps == pytest.approx(mode.eigenvalue.real, abs=0.02)


@pytest.mark.parametrize("driven", [False, True])
def test_the_eigenvalue_two_steps_apart_is_that_of_an_instrument(rng, driven):
    """Of one unit: Σ e (y − c − u d) / Σ e x for the state e a step before x, about its mean."""
    u = rng.normal(size=(30, 50, 1))
    states = kann.States.from_padded(run(np.array([[0.8]]), rng.normal(size=(30, 1)), 50, u + 0.3), inputs=u)
    koopman = kann.fit(states, driven=driven)
    (mode,) = kann.trust(koopman, states).modes
    z = [(h - koopman.mean) @ koopman.basis for h in states]
    e, x, y, read = (
        np.concatenate(rows)
        for rows in zip(*((h[:-2], h[1:-1], h[2:], own[2:]) for h, own in zip(z, u, strict=True)), strict=True)
    )
    pushed = read @ koopman.drive if driven else 0.0
    about = np.concatenate([h[:-1] for h in z]).mean()
    expected = np.sum((e - about) * (y - koopman.offset - pushed - about * koopman.matrix)) / np.sum(
        (e - about) * (x - about)
    )
    np.testing.assert_allclose(mode.two_steps, abs(expected), rtol=1e-9)


def test_the_slowest_modes_of_a_wide_operator_are_judged_as_in_a_whole_decomposition(rng, monkeypatch):
    states = wide_states(rng)
    koopman = kann.fit(states)
    some = kann.trust(koopman, states)
    monkeypatch.setattr(cross_validation, "JUDGED_WHOLE", 1000)
    all_modes = kann.trust(koopman, states, folds=5)
    assert some.trusted == all_modes.trusted == (0, 1, 2)
    assert some.folds == 5
    for one, other in zip(some.modes[:3], all_modes.modes[:3], strict=True):
        np.testing.assert_allclose(one.interval, other.interval, rtol=1e-6)
        np.testing.assert_allclose([one.residual, one.null], [other.residual, other.null], rtol=1e-6)
    others = some.modes[3:]
    assert all("even where it was fitted" in mode.why and not mode.trusted for mode in others)
    assert all(not mode.trusted for mode in all_modes.modes[3:])
