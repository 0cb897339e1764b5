"""Trust along depth: errors of single steps are those of sequences that were not fitted."""

from dataclasses import replace

import numpy as np
import pytest

import kann
from kann.errors import KannError

STEPS, UNITS = 3, 4


def depth_states(rng, *, sequences=200, noise=0.2):
    """States along matrices that differ from step to step, in noise, and the variance of the noise at each step."""
    path = [rng.normal(size=(sequences, UNITS))]
    for _ in range(STEPS):
        turn = np.eye(UNITS) + 0.5 * rng.normal(size=(UNITS, UNITS))
        path.append(path[-1] @ turn + 1.0 + noise * rng.normal(size=path[-1].shape))
    return np.stack(path, axis=1)


def test_the_own_map_misses_the_noise_alone(rng):
    states = depth_states(rng, sequences=2000)
    trust = kann.depth.trust(kann.depth.fit(states), states)
    expected = [UNITS * 0.2**2 / states[:, t + 1].var(axis=0).sum() for t in range(STEPS)]
    assert np.allclose(trust.errors["each"], expected, rtol=0.1)
    assert (trust.intervals["each"][:, 0] < expected).all()
    assert (trust.intervals["each"][:, 1] > expected).all()


def test_errors_of_the_identity_are_those_of_copying(rng):
    states = depth_states(rng)
    trust = kann.depth.trust(kann.depth.fit(states), states)
    for t in range(STEPS):
        y = states[:, t + 1]
        missed = np.sum((y - states[:, t]) ** 2) / np.sum((y - y.mean(axis=0)) ** 2)
        assert trust.errors["identity"][t] == pytest.approx(missed)


@pytest.mark.parametrize("options", [{}, {"rank": 2}, {"offset": False, "basis": "svd"}])
def test_errors_are_those_of_fits_without_the_sequences(rng, options):
    """By hand: fit without each fold, predict it, and add up."""
    states, folds = depth_states(rng, sequences=30), np.arange(30) % 3
    maps = kann.depth.fit(states, ridge=0.01, **options)
    trust = kann.depth.trust(maps, states, folds=3, groups=folds)
    missed, varied = np.zeros((2, STEPS)), np.zeros(STEPS)
    for fold in range(3):
        others = kann.depth.fit(states[folds != fold], ridge=0.01)
        basis = {"basis": maps.one.basis, "offset": options.get("offset", True)}
        one = kann.fit(states[folds != fold] - maps.one.mean, **basis)
        one = replace(one, mean=np.zeros(one.dim), decoder=None)  # decode with Bᵀ, as named bases do
        for t in range(STEPS):
            x, y = states[folds == fold][:, t], states[folds == fold][:, t + 1]
            predicted = one.predict(x - maps.one.mean) + maps.one.mean
            missed[0, t] += np.sum((y - others.each[t].predict(x)) ** 2)
            missed[1, t] += np.sum((y - predicted) ** 2)
            varied[t] += np.sum((y - states[:, t + 1].mean(axis=0)) ** 2)
    assert np.allclose(trust.errors["each"], missed[0] / varied)
    assert np.allclose(trust.errors["one"], missed[1] / varied)


def test_noise_has_no_linear_part(rng):
    states = rng.normal(size=(100, 3, 8))
    trust = kann.depth.trust(kann.depth.fit(states, ridge=0.0), states)
    assert (trust.errors["each"] > 1).all()
    assert (trust.linear_part < 0).all()  # although copying, which differs twice as much, is worse still


def test_a_change_that_is_the_same_for_all_states_is_no_linear_part(rng):
    """A position that begins constant, as a class token does: any map gives the mean, and misses all of the rest."""
    states = np.stack([np.zeros((200, 4)), 3 + rng.normal(size=(200, 4))], axis=1)
    trust = kann.depth.trust(kann.depth.fit(states), states)
    assert trust.errors["identity"][0] > 2
    assert trust.errors["each"][0] == pytest.approx(1.0, abs=0.05)
    assert trust.changes[0] == pytest.approx(1.0)
    assert trust.linear_part[0] == pytest.approx(0.0, abs=0.05)
    assert np.isnan(kann.depth.trust(*shifted_alike(rng)).linear_part).all()


def shifted_alike(rng):
    """Maps of steps that add the same to every state, and these states."""
    states = rng.normal(size=(60, 1, 3)) + np.arange(3)[:, None]
    return kann.depth.fit(states), states


def test_an_affine_step_is_all_linear_and_one_operator_may_be_worse_than_copying(rng):
    first = rng.normal(size=(300, 4))
    states = np.stack([first, 1.01 * first + 1, 1.02 * first + 2, -8 * first], axis=1)
    trust = kann.depth.trust(kann.depth.fit(states), states)
    assert trust.linear_part == pytest.approx(1.0, abs=0.01)
    assert trust.one_is_worse == (0, 1)


def test_intervals_cover_the_error_of_many_sequences():
    """Of 20 samples of 60 sequences nearly all intervals hold what 20,000 sequences give."""
    rng = np.random.default_rng(0)
    turn = np.eye(UNITS) + 0.5 * rng.normal(size=(UNITS, UNITS))

    def sample(sequences):
        start = rng.normal(size=(sequences, UNITS))
        return np.stack([start, np.tanh(start @ turn)], axis=1)

    many = sample(20_000)
    expected = kann.depth.trust(kann.depth.fit(many), many).errors["identity"][0]
    held = 0
    for _ in range(20):
        states = sample(60)
        low, high = kann.depth.trust(kann.depth.fit(states), states).intervals["identity"][0]
        held += low < expected < high
    assert held >= 16


def test_a_step_that_changes_nothing_is_no_trouble(rng):
    states = np.repeat(rng.normal(size=(40, 1, 3)), 3, axis=1)
    trust = kann.depth.trust(kann.depth.fit(states), states)
    assert np.allclose(trust.errors["identity"], 0)
    assert trust.better_than_identity == ()
    assert str(trust).splitlines()[1].endswith("–")  # of no change there is no linear part


def test_results_tell_what_they_are(rng):
    states = depth_states(rng)
    trust = kann.depth.trust(kann.depth.fit(states), states, folds=4, level=0.9)
    assert (len(trust), trust.folds, trust.level, trust.sequences) == (STEPS, 4, 0.9, 200)
    assert trust.better_than_identity == (0, 1, 2)
    assert "own maps beat the identity at 3 steps" in repr(trust)
    assert " ".join(str(trust).split()[:13]) == "step identity one operator own map 90 % of own map linear part"
    assert len(str(trust).splitlines()) == STEPS + 1
    assert "linear part" in trust._repr_html_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.ones((40, 3, 4))}, "sequences have 3 states and the maps 3 steps; pass the states that they"),
        ({"data": np.ones((40, 4, 3))}, "states have 3 columns; the operator has 4"),
        ({"data": np.random.default_rng(1).normal(size=(40, 4, 4))}, "the maps were not fitted to these sequences"),
        ({"level": 2.0}, "level=2.0 is no confidence level"),
        ({"folds": 2}, "folds=2 gives no interval"),
    ],
)
def test_mistakes_are_explained(change, message, rng):
    states = depth_states(rng)
    arguments = {"data": states, "folds": 3} | change
    with pytest.raises(KannError, match=message):
        kann.depth.trust(kann.depth.fit(states), arguments.pop("data"), **arguments)
