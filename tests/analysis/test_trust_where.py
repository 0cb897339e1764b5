"""Trust in an operator of chosen steps alone, such as what a gated network remembers while nothing is read."""

import numpy as np
import pytest

import kann
from kann.errors import KannError

KEPT = 0.9
"""What is left of the memory after a step that reads nothing."""


def quiet(inputs):
    return (inputs == 0).all(axis=-1)


@pytest.fixture
def leaky(rng):
    """A memory that a pulse overwrites, and that leaks while nothing is read."""
    pulses = (rng.random((40, 60, 1)) < 0.1) * rng.choice([-1.0, 1.0], size=(40, 60, 1))
    held = np.zeros((40, 60, 1))
    for t in range(1, 60):
        held[:, t] = np.where(pulses[:, t] == 0, KEPT * held[:, t - 1], pulses[:, t]) + 0.01 * rng.normal(size=(40, 1))
    return kann.States.from_padded(held, inputs=pulses)


@pytest.mark.parametrize("driven", [False, True])
def test_a_memory_behind_a_gate_has_an_interval(leaky, driven):
    if driven:
        inputs = np.random.default_rng(1).normal(size=(len(leaky.values), 1)) * (leaky.inputs == 0)
        leaky = kann.States(values=leaky.values, lengths=leaky.lengths, inputs=np.hstack([leaky.inputs, inputs]))
    where = (leaky.inputs[:, :1] == 0).all(axis=1)
    found = kann.trust(kann.fit(leaky, where=where, driven=driven), leaky, where=where, level=0.999)
    low, high = found.modes[0].interval
    assert found.trusted == (0,)
    assert low < KEPT < high
    assert high - low < 0.02
    whole = kann.trust(kann.fit(leaky), leaky).modes[0].interval  # pulses are part of what it follows
    assert whole[1] < KEPT


def test_groups_are_those_of_sequences_and_not_of_pieces(leaky):
    koopman, groups = kann.fit(leaky, where=quiet), [i // 8 for i in range(40)]
    assert kann.trust(koopman, leaky, where=quiet, groups=groups).folds == 5  # as many as there are groups
    with pytest.raises(KannError, match="5 groups of two states or more cannot be held out in 10 folds"):
        kann.trust(koopman, leaky, where=quiet, groups=groups, folds=10)


def test_what_does_not_go_with_where_is_refused(leaky):
    koopman = kann.fit(leaky, where=quiet)
    with pytest.raises(
        KannError, match="pass the states or moments that it was fitted to, and where= if it was fitted"
    ):
        kann.trust(koopman, leaky)
    with pytest.raises(KannError, match="untrained= is compared over all steps; leave it out, or where="):
        kann.trust(koopman, leaky, where=quiet, untrained=leaky)
    for moments in (kann.Moments.of(leaky), [kann.Moments.of(leaky[i::4]) for i in range(4)]):
        with pytest.raises(KannError, match="where= chooses steps, and moments are sums over all of them; pass the st"):
            kann.trust(koopman, moments, where=quiet)


def test_steps_of_too_few_sequences_give_no_interval(leaky):
    mask = np.arange(len(leaky.values)) < 2 * 60  # of the first two sequences
    with pytest.raises(KannError, match=r"where= leaves pairs of states in [12] of 10 folds, and intervals need 3"):
        kann.trust(kann.fit(leaky, where=mask), leaky, where=mask)
    few = np.arange(len(leaky.values)) < 12 * 60
    assert 3 <= kann.trust(kann.fit(leaky, where=few), leaky, where=few).folds < 10
