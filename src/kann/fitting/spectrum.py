"""Eigenvalues and eigenvectors of the operator, and the modes they form."""

import math
import warnings
from dataclasses import dataclass

import numpy as np

from kann.backends.arrays import as_numpy, namespace, on_accelerator, to_device_of
from kann.checks import require_number
from kann.errors import ConditionWarning, KannError
from kann.typing import AnyArray, Array, Complex, Float

ILL_CONDITIONED = 1e8
"""Condition of V above which half of float64's digits are lost in U = V⁻¹."""

DEVICE_FROM_RANK = 512
"""From this rank on a GPU is faster at eigenvectors than its host: an H200, compared with 16 cores, takes 1.1 times the
host's time at 256, 0.4 at 512, and 0.2 at 1,024 and above."""

SAME_MODULUS = 1e-9
"""Moduli that agree to this are called equal when modes are sorted, so that rounding does not decide the order."""

TRUSTED = 0.1
"""Residual that counts as small: on held-out sequences, a condition of trust (`kann.analysis.mode_evidence`)."""

DOUBTFUL = 0.5
"""Residual that counts as large: such an eigenvalue is an artefact of the finite basis."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Mode:
    """A real eigenvalue, or a pair of conjugate ones, of the operator.

    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> mode = koopman.modes[0]
    >>> round(mode.modulus, 6), mode.period
    (0.9, inf)
    >>> round(mode.horizon(), 2)  # steps until a tenth is left
    21.85
    """

    indices: tuple[int, ...]
    """Places of its eigenvalue or eigenvalues in ``koopman.eigenvalues``."""
    eigenvalue: complex
    """λ; of a pair, the one with positive imaginary part."""
    residual: float
    """|Y v − λ X v| / |X v| on the fitted data: near 1 it is an artefact of the basis; near 0, ask `kann.trust`."""

    @property
    def modulus(self) -> float:
        """|λ|: the fraction of the mode that one step leaves."""
        return abs(self.eigenvalue)

    @property
    def period(self) -> float:
        """Steps until the mode has turned once: 2π/|arg λ|, infinite for λ > 0, two for λ < 0."""
        angle = abs(math.atan2(self.eigenvalue.imag, self.eigenvalue.real))
        return 2 * math.pi / angle if angle else math.inf

    def horizon(self, eps: int | float = 0.1) -> float:
        """Return memory horizon: the τ with |λ|^τ = eps; infinite where the mode does not decay."""
        eps = require_number(eps, "eps", remedy="pass 0 < eps < 1")
        if not 0 < eps < 1:
            raise KannError(f"eps={eps} is no fraction that can be left of a mode; pass 0 < eps < 1")
        if self.modulus >= 1:
            return math.inf
        return math.log(eps) / math.log(self.modulus) if self.modulus else 0.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Spectrum:
    """C V = V Λ and U = V⁻¹, sorted by decreasing modulus, each conjugate pair side by side."""

    eigenvalues: Complex[Array, " r"]
    right: Complex[Array, "r r"]
    """V, in columns of unit norm, the component of largest modulus real and positive."""
    left: Complex[Array, "r r"]
    """U, in rows."""
    condition: float
    """Ratio of the largest to the smallest singular value of V."""


def decompose(matrix: Float[Array, "r r"], *, device_of: AnyArray | None = None) -> Spectrum:
    """Compute eigenvalues and eigenvectors of a real matrix. Warns if the eigenvectors are nearly dependent.

    A large matrix is sent to the GPU of ``device_of``, if that is on one.
    """
    is_sent = device_of is not None and on_accelerator(device_of) and len(matrix) >= DEVICE_FROM_RANK
    like = device_of if is_sent else matrix
    values, vectors = _eigenpairs(matrix, like)
    # LAPACK gives conjugate pairs exactly (dgeev computes one of each and copies it): keep the upper half and sort it.
    # Sorting all of them by modulus would let rounding separate a pair.
    upper = np.flatnonzero(np.imag(values) >= 0)
    upper = upper[_order(values[upper])]
    values, vectors = values[upper], _phased(vectors[:, upper])
    paired = np.imag(values) > 0
    # Each conjugate goes behind the one with positive imaginary part: of each eigenvalue in its final place, the number
    # among the upper half, and whether it is the conjugate.
    number = np.repeat(np.arange(len(values)), 1 + paired)
    is_conjugate = np.append(False, number[1:] == number[:-1])
    # A real S with V = S Q and Q unitary has √2 Re v and √2 Im v as the columns of a pair. It has the singular values
    # of V, and its inverse takes a quarter of the work of a complex one.
    both, scale = vectors[:, number], np.where(paired, math.sqrt(2), 1.0)[number]
    real = np.where(is_conjugate, np.imag(both), np.real(both)) * scale
    singular = as_numpy(namespace(like).linalg.svdvals(to_device_of(like, real)))
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else math.inf
    if condition > ILL_CONDITIONED:
        warnings.warn(
            f"the eigenvectors are nearly dependent (condition {condition:.1e}); single eigenvalues and the "
            "contributions of single modes are unreliable; lower the rank",
            ConditionWarning,
            stacklevel=3,
        )
    # The pseudo-inverse of a matrix that is singular to rounding.
    linalg = namespace(like).linalg
    invert = linalg.inv if condition < 1 / np.finfo(float).eps else linalg.pinv
    inverse, first = as_numpy(invert(to_device_of(like, real))), np.flatnonzero(~is_conjugate)
    left = inverse[first].astype(complex)
    left[paired] = (left[paired] - 1j * inverse[first[paired] + 1]) / math.sqrt(2)
    eigenvalues, right, left = values[number], both.T.copy(), left[number]
    for each in (eigenvalues, right, left):
        each[is_conjugate] = each[is_conjugate].conj()
    return Spectrum(eigenvalues=eigenvalues, right=right.T, left=left, condition=condition)


def _eigenpairs(matrix: Float[Array, "r r"], like: AnyArray) -> tuple[Complex[Array, " r"], Complex[Array, "r r"]]:
    """Compute eigenvalues and eigenvectors as LAPACK gives them, computed on the device of ``like``."""
    if like is not matrix:
        values, vectors = (as_numpy(part) for part in namespace(like).linalg.eig(to_device_of(like, matrix)))
        # A GPU's library need not give conjugate pairs exactly, as LAPACK does.
        if np.array_equal(np.sort_complex(values), np.sort_complex(values.conj())):
            return values, vectors
    values, vectors = np.linalg.eig(matrix)
    return values.astype(complex), vectors.astype(complex)


def _order(values: Complex[Array, " k"]) -> Array:
    """Sort by decreasing modulus; equal moduli by decreasing imaginary part, then by decreasing real part."""
    # Equal moduli must get equal keys: to compare neighbours within a tolerance is not transitive, and rounding would
    # decide the order. Logarithms make the tolerance relative.
    modulus = np.abs(values)
    steps = np.round(np.log(np.maximum(modulus, np.finfo(float).tiny)) / SAME_MODULUS)
    return np.lexsort((-np.real(values), -np.imag(values), -steps))


def _phased(vectors: Complex[Array, "r k"]) -> Complex[Array, "r k"]:
    """Return columns of unit norm whose component of largest modulus is real and positive."""
    # An eigenvector is known up to a complex factor. LAPACK's choice differs between machines, this one does not.
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    turned = vectors * (np.abs(largest) / largest)
    return turned / np.linalg.norm(turned, axis=0)


def residuals(
    right: Complex[Array, "r r"],
    residual_gram: Float[Array, "r r"],
    state_gram: Float[Array, "r r"],
    noise: Float[Array, " r"],
) -> Float[Array, " r"]:
    """Compute |Y v − λ X v| / |X v| for each eigenvector, from Gram matrices of residuals and states.

    C v = λ v makes Y v − λ X v equal to (Y − X C) v. Directions without more energy than the ``noise`` of their
    coordinates get an infinite residual.
    """
    # The residual of ResDMD (Colbrook and Townsend 2024); of an eigenvector of C it is what the step itself misses.
    residual_energy, state_energy = quadratic_forms(residual_gram, right), quadratic_forms(state_gram, right)
    is_real = state_energy > noise @ (np.real(right) ** 2 + np.imag(right) ** 2)
    ratio = np.maximum(residual_energy, 0.0) / np.where(is_real, state_energy, 1.0)
    return np.where(is_real, np.sqrt(ratio), np.inf)


def quadratic_forms(gram: Float[Array, "r r"], vectors: Complex[Array, "r k"]) -> Float[Array, " k"]:
    """Compute v* G v for each column v. G is symmetric, so that real and imaginary parts do not mix."""
    real, imaginary = np.real(vectors), np.imag(vectors)
    return np.sum(real * (gram @ real) + imaginary * (gram @ imaginary), axis=0)


def modes(eigenvalues: Complex[Array, " r"], residual: Float[Array, " r"]) -> tuple[Mode, ...]:
    """Join conjugate pairs, which are side by side with the positive imaginary part first."""
    found = []
    for i, value in enumerate(eigenvalues.tolist()):
        if value.imag < 0:  # the second of a pair
            continue
        indices = (i, i + 1) if value.imag > 0 else (i,)
        found.append(Mode(indices=indices, eigenvalue=value, residual=float(residual[i])))
    return tuple(found)
