"""Adversarial data: every fit is right, or a warning says that it is not."""

import warnings

import numpy as np
import pytest

import kann
from tests.reference import exact
from tests.systems import AS_IN_PAPER, eigenvalue_distance, rotation, run, stable_matrix

TOLERANCE = 1e-5
"""How far eigenvalues of modulus up to one may be off without a warning: ten times what a warning is given from, since
eigenvalues of operators that are not normal are off by more than the operator."""


def noisy(rng, matrix, *, sequences=12, steps=18):
    """States of this system in noise, and inputs that drive it."""
    d = len(matrix)
    u = rng.normal(size=(sequences, steps, 2))
    push = u @ rng.normal(size=(2, d)) + 0.3 * rng.normal(size=(sequences, steps, d))
    return run(matrix, rng.normal(size=(sequences, d)), steps, push), u


def mean(size, *, of_inputs=0.0):
    def make(rng):
        h, u = noisy(rng, stable_matrix(rng, 4))
        return h + size * rng.uniform(0.5, 1, 4), u + of_inputs * rng.uniform(0.5, 1, 2)

    return make


def scales(decades, *, turned=False, about=0.0):
    def make(rng):
        h, u = noisy(rng, stable_matrix(rng, 5))
        h = h * np.logspace(-decades, decades, 5) + about
        if turned:
            h = h @ rotation(rng, 5)
        return h, u * np.logspace(-decades, decades, 2)

    return make


def nearly_defective(gap):
    def make(rng):
        return noisy(rng, np.array([[0.8, 1, 0], [0, 0.8 + gap, 0], [0, 0, 0.5]]))

    return make


def in_float32(make):
    def rounded(rng):
        return tuple(part.astype(np.float32) for part in make(rng))

    return rounded


def tiny(variation):
    def make(rng):
        h, u = noisy(rng, stable_matrix(rng, 3))
        return 1 + variation * h, 1 + variation * u

    return make


DATA = {
    "plain": mean(0.0),
    "mean 1e2": mean(1e2),
    "mean 1e4": mean(1e4),
    "mean 1e6": mean(1e6),
    "mean 1e8": mean(1e8),
    "inputs' mean 1e3": mean(0.0, of_inputs=1e3),
    "inputs' mean 1e6": mean(0.0, of_inputs=1e6),
    "inputs' mean 1e8": mean(0.0, of_inputs=1e8),
    "both means 1e7": mean(1e7, of_inputs=1e7),
    "units of 1e±2": scales(2),
    "units of 1e±4": scales(4),
    "units of 1e±4 about 1e4": scales(4, about=1e4),
    "directions of 1e±2": scales(2, turned=True),
    "directions of 1e±4": scales(4, turned=True),
    "nearly defective, 1e-3": nearly_defective(1e-3),
    "nearly defective, 1e-6": nearly_defective(1e-6),
    "float32": in_float32(mean(0.0)),
    "float32, mean 1e3": in_float32(mean(1e3)),
    "float32, inputs' mean 1e5": in_float32(mean(0.0, of_inputs=1e5)),
    "float32, inputs' mean 1e7": in_float32(mean(0.0, of_inputs=1e7)),
    "float32, units of 1e±3": in_float32(scales(3)),
    "float32, units of 1e±4": in_float32(scales(4)),
    "float32, varies by 1e-3": in_float32(tiny(1e-3)),
    "float32, varies by 1e-5": in_float32(tiny(1e-5)),
    "float32, varies by 1e-6": in_float32(tiny(1e-6)),
}


@pytest.fixture(params=DATA)
def data(request, rng):
    return DATA[request.param](rng)


@pytest.mark.parametrize(("driven", "offset"), [(False, False), (False, True), (True, True)])
def test_eigenvalues_are_those_of_sixty_digits_or_there_is_a_warning(data, driven, offset):
    values, inputs = data
    states, read = kann.States.from_padded(values, inputs=inputs), None
    if driven:
        read = inputs
    about_zero = exact.eigenvalues(values, read, offset=offset)
    about_mean = about_zero
    if not offset:
        about_mean = exact.eigenvalues(values, read, about_mean=True)
    for basis, reference in (("svd", about_zero), ("pca", about_mean), ("fourier", about_zero)):
        for source in (states, kann.Moments.of(states)):
            found, is_doubted = fitted(source, basis=basis, driven=driven, offset=offset)
            assert is_doubted or len(found) == len(reference), (basis, source)
            assert is_doubted or eigenvalue_distance(found, reference) < TOLERANCE, (basis, source)


def fitted(source, **arguments):
    """Eigenvalues of a fit, and whether it warned or refused."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = kann.fit(source, **arguments).eigenvalues
        except kann.KannError as error:
            assert "constant near their mean" in str(error)  # noqa: PT017
            return None, True
    assert all(issubclass(warning.category, kann.errors.KannWarning) for warning in caught)
    return found, bool(caught)


@pytest.mark.parametrize("basis", ["svd", "pca"])
@pytest.mark.parametrize(("driven", "offset"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", [name for name in DATA if name.startswith(("mean", "inputs", "both", "directions"))])
def test_states_that_can_be_read_again_need_no_warning(rng, name, basis, driven, offset):
    values, inputs = DATA[name](rng)
    about_mean = basis == "pca" and not offset
    reference = exact.eigenvalues(values, inputs if driven else None, offset=offset, about_mean=about_mean)
    states = kann.States.from_padded(values, inputs=inputs)
    found = kann.fit(states, basis=basis, driven=driven, offset=offset).eigenvalues
    assert eigenvalue_distance(found, reference) < 1e-8


@pytest.mark.parametrize("decades", [3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_of_units_of_different_size_need_no_warning(rng, decades, dtype):
    values = scales(decades)(rng)[0].astype(dtype)
    found = kann.fit(kann.Moments.of(kann.States.from_padded(values)), **AS_IN_PAPER)
    assert eigenvalue_distance(found.eigenvalues, exact.eigenvalues(values)) < 1e-10


@pytest.mark.parametrize("size", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("basis", ["svd", "fourier", "own"])
def test_rank_deficient_states_have_the_eigenvalues_of_what_they_are_made_of(rng, size, basis):
    """Whole numbers that are mixed by whole numbers are mixed exactly."""
    inner = np.round(1000 * noisy(rng, stable_matrix(rng, 3))[0] + size)
    states = kann.States.from_padded(inner @ rng.integers(-9, 10, size=(3, 6)).astype(float))
    if basis == "own":
        basis = rotation(rng, 6)
    koopman = kann.fit(states, basis=basis, offset=False)
    assert np.isfinite(koopman.residuals).sum() == 3
    real = koopman.eigenvalues[np.isfinite(koopman.residuals)]
    assert eigenvalue_distance(real, exact.eigenvalues(inner)) < 1e-6
