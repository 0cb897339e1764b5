"""Equal memories are judged as one invariant subspace; what only looks equal is not."""

import numpy as np
import pytest
from scipy.linalg import block_diag

import kann
from kann.analysis.intervals import student_width
from kann.analysis.mode_evidence import Block, Evidence, objections

TURN = 0.95 * np.array([[np.cos(0.5), np.sin(0.5)], [-np.sin(0.5), np.cos(0.5)]])


def trust_of(matrix, seed, *, noise=0.02, steps=40):
    """The trust of 40 sequences of a linear system in little noise, in mixed units."""
    rng, r = np.random.default_rng(seed), len(matrix)
    path = [rng.normal(size=(40, r))]
    for _ in range(steps - 1):
        path.append(path[-1] @ matrix + noise * rng.normal(size=(40, r)))
    states = np.stack(path, axis=1) @ (rng.normal(size=(r, r)) + 2 * np.eye(r))
    return kann.trust(kann.fit(states), states)


@pytest.mark.parametrize("others", [[], [0.7, 0.5, 0.3, 0.1]])
def test_three_equal_memories_are_trusted_together_and_the_interval_of_their_modulus_holds(others):
    together, covered = 0, 0
    for seed in range(30):
        found = trust_of(np.diag([0.97] * 3 + others), seed)
        groups = [group for group in found.groups if abs(group.eigenvalue - 0.97) < 0.05]
        together += any(group.memories == 3 and group.trusted for group in groups)
        covered += all(group.interval[0] <= 0.97 <= group.interval[1] for group in groups)
    # Of three equal memories one may seem steady and different by chance. A right interval holds in 28 or 29 of 30;
    # fewer than 25 would be a chance of 0.3 %.
    assert together >= 25
    assert covered >= 25


def test_what_is_trusted_together_is_told_and_reaches_every_mode():
    found = trust_of(0.97 * np.eye(3), 0)
    (group,) = found.groups
    assert (group.memories, group.trusted) == (3, True)
    assert found.trusted == group.modes
    assert all(found.modes[number].why == group.why for number in group.modes)
    assert group.why.startswith("3 equal memories")
    assert group.residual < 0.9 * group.copying
    assert group.residual < 0.5 * group.null
    assert group.interval[1] - group.interval[0] < 0.01
    assert group.angle == pytest.approx((0.0, 0.0), abs=1e-9)
    assert "3 equal memories together" in repr(found)


def test_equal_memories_without_noise_are_one_subspace():
    (group,) = trust_of(0.97 * np.eye(3), 0, noise=0.0).groups
    assert (group.memories, group.trusted) == (3, True)
    assert group.interval == pytest.approx((0.97, 0.97), abs=1e-9)


def test_equal_pairs_are_two_memories_of_the_same_frequency():
    trusted = 0
    for seed in range(10):
        found = trust_of(block_diag(TURN, TURN, [[0.3]]), seed)
        for group in found.groups:
            trusted += group.trusted
            assert group.memories == 2
            assert group.angle[0] - 0.01 < 0.5 < group.angle[1] + 0.01
    assert trusted >= 3  # in the others both pairs seem steady, and are judged alone


@pytest.mark.parametrize(("coupling", "noise"), [(0.3, 0.02), (0.1, 0.02), (0.1, 0.1)])
def test_a_jordan_chain_is_not_trusted_together(coupling, noise):
    chain = 0.9 * np.eye(3) + coupling * np.diag(np.ones(2), 1)
    for seed in range(15):
        assert not any(group.trusted for group in trust_of(chain, seed, noise=noise).groups)


def test_memories_that_can_be_told_apart_are_no_group():
    for seed in range(10):
        found = trust_of(np.diag([0.97, 0.93, 0.89]), seed)
        assert found.groups == ()
        assert found.trusted == (0, 1, 2)


def test_noise_is_not_trusted_together(rng):
    noise = rng.normal(size=(30, 60, 5))
    found = kann.trust(kann.fit(noise), noise)
    assert found.trusted == ()
    assert not any(group.trusted for group in found.groups)


def test_slow_noise_of_equal_units_is_copied_as_well_as_predicted(rng):
    path = [rng.normal(size=(40, 4))]
    for _ in range(200):
        path.append(0.997 * path[-1] + 0.0775 * rng.normal(size=(40, 4)))
    states = np.stack(path, axis=1)
    found = kann.trust(kann.fit(states), states)
    assert found.groups
    assert all("copying" in group.why and not group.trusted for group in found.groups)


def test_a_space_that_cannot_move_must_be_predicted_better_than_by_copying():
    good = {"residual": 0.05, "copying": 0.051, "null": 0.9, "width": 0.01, "turn": 90.0, "variation": 1.0}
    counted = {"subspace": (0, 1), "dependence": 0.0, "pairs": 1000, "unknowns": 3}
    assert len(objections(Evidence(**good, **counted, fills=True))) == 1
    assert objections(Evidence(**(good | {"copying": 0.2}), **counted, fills=True)) == []
    assert objections(Evidence(**good, **counted, fills=True, chosen_by_variance=False)) == []  # as balanced ones
    assert len(objections(Evidence(**good, **counted))) == 1  # here the direction moves


def test_the_operator_on_a_span_does_not_depend_on_which_eigenvectors_span_it(rng):
    """Of equal eigenvalues any basis of the eigenspace will do, and each fit may return another one."""
    r, k, values = 5, 2, np.array([0.9, 0.9], dtype=complex)
    right = rng.normal(size=(r, k)).astype(complex)
    fits = [(values, right @ rng.normal(size=(k, k))) for _ in range(4)]
    block = Block.of(values, right, fits, np.diag(rng.uniform(0.5, 2.0, size=r)))
    np.testing.assert_allclose(block.matrix, 0.9 * np.eye(k), atol=1e-12)
    assert block.error() < 1e-12
    for vectors in block.vectors:
        np.testing.assert_allclose(vectors, block.vectors[0], atol=1e-10)
    modulus, angle = block.interval(float(student_width(0.95, 3)))
    assert modulus == pytest.approx((0.9, 0.9))
    assert angle == pytest.approx((0.0, 0.0))
