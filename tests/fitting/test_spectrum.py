import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import kann
from kann.fitting.spectrum import Mode, decompose
from tests.systems import noisy_states, rotation, run, stable_matrix

EIGHTHS = st.integers(-16, 16).map(lambda i: i / 8)  # numbers of one size: LAPACK does not promise more


@given(st.integers(1, 7).flatmap(lambda r: arrays(np.float64, (r, r), elements=EIGHTHS)))
@pytest.mark.filterwarnings("ignore::kann.errors.ConditionWarning")
def test_any_real_matrix_decomposes_into_conjugate_pairs(matrix):
    spectrum = decompose(matrix)
    V, values = spectrum.right, spectrum.eigenvalues
    np.testing.assert_allclose(matrix @ V, V * values, atol=1e-12 * max(1, np.abs(matrix).sum()))
    np.testing.assert_allclose(np.linalg.norm(V, axis=0), 1)
    assert (np.diff(np.abs(values)) <= 1e-8).all()
    for i in np.flatnonzero(values.imag > 0):
        assert values[i + 1] == values[i].conj()
        np.testing.assert_array_equal(V[:, i + 1], V[:, i].conj())
        np.testing.assert_array_equal(spectrum.left[i + 1], spectrum.left[i].conj())
    assert (values.imag > 0).sum() == (values.imag < 0).sum()
    if spectrum.condition < 1e6:
        np.testing.assert_allclose(spectrum.condition, np.linalg.cond(V), rtol=1e-6)
        np.testing.assert_allclose(spectrum.left @ V, np.eye(len(matrix)), atol=1e-9)


def test_equal_moduli_keep_pairs_together_in_a_fixed_order(rng):
    matrix = rotation(rng, 9)  # all moduli are one
    values = decompose(matrix).eigenvalues
    uppers = [value for value in values if value.imag > 0]
    assert uppers == sorted(uppers, key=lambda value: -value.imag)
    np.testing.assert_array_equal(values, decompose(matrix.copy()).eigenvalues)


def test_signs_and_phases_are_fixed(rng):
    values = noisy_states(rng)
    one, other = kann.fit(values), kann.fit(values[::-1])
    for a, b in [(one.basis, other.basis), (one.right, other.right)]:
        np.testing.assert_allclose(a, b, atol=1e-9)
    largest = np.take_along_axis(one.right, np.abs(one.right).argmax(0)[None], 0)
    assert (largest.real > 0).all()
    np.testing.assert_allclose(largest.imag, 0, atol=1e-15)


def test_a_defective_operator_gives_a_warning_with_its_condition():
    with pytest.warns(kann.errors.ConditionWarning, match=r"condition \d\.\de\+\d\d"):
        spectrum = decompose(np.array([[0.9, 1.0], [0.0, 0.9]]))
    assert spectrum.condition > 1e8


def test_an_operator_without_enough_eigenvectors_still_has_finite_ones(monkeypatch):
    with pytest.warns(kann.errors.ConditionWarning, match="condition inf|condition"):
        spectrum = decompose(np.array([[0.0, 1.0], [0.0, 0.0]]))
    assert np.isfinite(spectrum.left).all()


def mode(value):
    return Mode(indices=(0,), eigenvalue=complex(value), residual=0.0)


def test_horizon_and_period_follow_from_the_eigenvalue():
    assert mode(0.5).horizon(0.25) == pytest.approx(2)
    assert mode(0.9j).horizon() == pytest.approx(math.log(0.1) / math.log(0.9))
    assert mode(1.0).horizon() == mode(1.2).horizon() == math.inf
    assert mode(0).horizon() == 0
    assert mode(0.7).period == math.inf
    assert mode(-0.7).period == pytest.approx(2)
    assert mode(np.exp(2j * np.pi / 12)).period == pytest.approx(12)
    assert mode(3 - 4j).modulus == 5
    for eps in (0, 1, 2):
        with pytest.raises(kann.KannError, match="pass 0 < eps < 1"):
            mode(0.5).horizon(eps)


def test_modes_join_conjugate_pairs_and_cover_every_eigenvalue_once(rng):
    koopman = kann.fit(noisy_states(rng))
    assert sorted(index for mode in koopman.modes for index in mode.indices) == list(range(koopman.rank))
    for mode in koopman.modes:
        assert mode.eigenvalue == koopman.eigenvalues[mode.indices[0]]
        assert mode.eigenvalue.imag >= 0
        assert len(mode.indices) == (2 if mode.eigenvalue.imag > 0 else 1)
        assert mode.residual == koopman.residuals[mode.indices[0]]
    moduli = [mode.modulus for mode in koopman.modes]
    assert moduli == sorted(moduli, reverse=True)


def by_definition(koopman, states):
    x, y = (koopman.encode(part) @ koopman.right for part in states.pairs())
    return np.linalg.norm(y - x * koopman.eigenvalues, axis=0) / np.linalg.norm(x, axis=0)


@pytest.mark.parametrize("basis", ["svd", "pca", "fourier"])
def test_residuals_are_what_they_are_defined_to_be(rng, basis):
    states = kann.States.from_padded(noisy_states(rng) + 0.5)
    koopman = kann.fit(states, basis=basis, rank=6, offset=False)
    np.testing.assert_allclose(koopman.residuals, by_definition(koopman, states), rtol=1e-7)


def test_true_eigenpairs_have_residuals_near_zero(rng):
    koopman = kann.fit(run(stable_matrix(rng, 6), rng.normal(size=(20, 6)), 50))
    assert koopman.residuals.max() < 1e-6  # the square root of float64's rounding, as they come from squares


def test_residuals_separate_true_from_spurious_eigenvalues(rng):
    """Observables x, y, x² of a system where x and x² evolve linearly, and y does not.

    x ↦ 0.9 x has the Koopman eigenvalues 0.9 and 0.81 exactly. y follows a chaotic map, of which the observables span
    no invariant space: the eigenvalue that the fit finds for it is an artefact.
    """
    x = rng.uniform(0.5, 1, size=(40, 1)) * 0.9 ** np.arange(30)
    y = np.empty_like(x)
    y[:, 0] = rng.uniform(-1, 1, 40)
    for t in range(29):
        y[:, t + 1] = 1 - 2 * np.abs(y[:, t]) ** 1.5  # chaotic on [-1, 1]
    koopman = kann.fit(np.stack([x, y, x**2], axis=-1))
    by_value = {
        round(abs(value), 3): residual for value, residual in zip(koopman.eigenvalues, koopman.residuals, strict=True)
    }
    assert by_value[0.9] < 1e-6
    assert by_value[0.81] < 1e-6
    (spurious,) = (residual for value, residual in by_value.items() if value not in (0.9, 0.81))
    assert spurious > 0.5


def test_a_direction_without_energy_has_an_infinite_residual():
    values = np.zeros((2, 5, 2))
    values[..., 0] = 1.0
    koopman = kann.fit(values, basis=np.eye(2), offset=False)
    assert np.isinf(koopman.residuals).sum() == 1
