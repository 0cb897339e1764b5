"""The paper's Proposition 1: the Koopman operator of an invertible, measure-preserving map is unitary.

``kann.fit`` restricts that operator to some observables. Where these are orthonormal under the invariant measure, and
the operator maps their span to itself, the matrix is orthogonal and its eigenvalues are on the unit circle; not where
the map does not preserve the measure.
"""

import numpy as np
import pytest

import kann


def fourier_modes(points, count=6):
    """cos(2πkz) and sin(2πkz) for k = 1, …: orthonormal up to a factor under the uniform measure on [0, 1)."""
    angles = 2 * np.pi * points[..., None] * np.arange(1, count + 1)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)


def fitted(step, *, count=6):
    """The operator of a map of [0, 1), from pairs of one observable's values before and after the step."""
    z = (np.arange(2000) + 0.5) / 2000  # evenly spaced: the uniform measure itself
    return kann.fit(
        np.stack([fourier_modes(z, count), fourier_modes(step(z), count)], axis=1), basis="svd", offset=False
    )


def rotate(z):
    return (z + np.sqrt(2)) % 1


def test_a_rotation_has_an_orthogonal_operator():
    koopman = fitted(rotate)
    assert kann.orthogonality(koopman) < 1e-20
    np.testing.assert_allclose(np.abs(koopman.eigenvalues), 1, atol=1e-12)
    # The functions exp(2πikz) are its eigenfunctions, with exp(2πik√2) as eigenvalues.
    expected = np.exp(2j * np.pi * np.sqrt(2) * np.concatenate([np.arange(1, 7), -np.arange(1, 7)]))
    gaps = np.abs(koopman.eigenvalues[:, None] - expected)
    assert gaps.min(axis=1).max() < 1e-10


def test_a_permutation_has_an_orthogonal_operator():
    """Any invertible map of finitely many points preserves the counting measure; all functions are observables."""
    order = np.random.default_rng(0).permutation(40)
    everything = np.eye(40)  # row z: the indicator functions at z
    koopman = kann.fit(np.stack([everything, everything[order]], axis=1), basis="svd", offset=False, ridge=0.0)
    assert kann.orthogonality(koopman) < 1e-18
    np.testing.assert_allclose(np.abs(koopman.eigenvalues), 1, atol=1e-9)


def test_inner_products_are_kept():
    koopman = fitted(rotate)
    rng = np.random.default_rng(1)
    f, g = rng.normal(size=(2, koopman.rank))  # coefficients of two observables
    assert (koopman.matrix @ f) @ (koopman.matrix @ g) == pytest.approx(f @ g)


@pytest.mark.parametrize("step", [lambda z: z**2, lambda z: 0.5 * z + 0.1], ids=["squares", "contraction"])
def test_a_map_that_does_not_preserve_the_measure_has_none(step):
    assert kann.orthogonality(fitted(step)) > 0.05
