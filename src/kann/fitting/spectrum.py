"""Eigenvalues and eigenvectors of the operator, and the modes they form."""

import math
import warnings
from dataclasses import dataclass

import numpy as np

from kann.backends.arrays import as_numpy, namespace, on_accelerator, to_device_of
from kann.errors import ConditionWarning, KannError
from kann.typing import AnyArray, Array, Complex, Float

ILL_CONDITIONED = 1e8
"""Condition of V above which half of float64's digits are lost in U = V⁻¹."""

DEVICE_SIZE = 512
"""From this rank on a GPU is faster at eigenvectors than its host: on an H200 beside 16 cores it takes 1.1 times the
host's time at 256, 0.4 at 512, and 0.2 at 1,024 and above."""

SAME_MODULUS = 1e-9
"""Moduli that agree to this are called equal when modes are sorted, so that rounding does not decide the order."""

TRUSTED = 0.1
"""Residual up to which an eigenvalue is called the network's own."""

DOUBTFUL = 0.5
"""Residual from which it is called an artefact of the finite basis."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Mode:
    """A real eigenvalue, or a pair of conjugate ones, of the operator."""

    indices: tuple[int, ...]
    """Places of its eigenvalue or eigenvalues in ``koopman.eigenvalues``."""
    eigenvalue: complex
    """λ; of a pair, the one with positive imaginary part."""
    residual: float
    """|Y v − λ X v| / |X v|: near 0 it is the network's own eigenvalue; near 1 an artefact of the finite basis."""

    @property
    def modulus(self) -> float:
        """|λ|: the share of the mode that one step leaves."""
        return abs(self.eigenvalue)

    @property
    def period(self) -> float:
        """Steps until the mode has turned once: 2π/|arg λ|, infinite for λ > 0, two for λ < 0."""
        angle = abs(math.atan2(self.eigenvalue.imag, self.eigenvalue.real))
        return math.inf if angle == 0 else 2 * math.pi / angle

    def horizon(self, eps: int | float = 0.1) -> float:
        """Memory horizon: the τ with |λ|^τ = eps; infinite where the mode does not decay."""
        if not 0 < eps < 1:
            raise KannError(f"eps={eps} is no share that can be left of a mode; pass 0 < eps < 1")
        if self.modulus >= 1:
            return math.inf
        return 0.0 if self.modulus == 0 else math.log(eps) / math.log(self.modulus)


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


def decompose(matrix: Float[Array, "r r"], *, near: AnyArray | None = None) -> Spectrum:
    """Eigenvalues and eigenvectors of a real matrix. Warns if the eigenvectors are nearly dependent.

    A large matrix is sent to the GPU where ``near`` is.
    """
    where = near if on_accelerator(near) and len(matrix) >= DEVICE_SIZE else matrix
    values, vectors = _eigenpairs(matrix, where)
    # LAPACK gives conjugate pairs exactly: keep the upper half of each and sort those.
    upper = np.flatnonzero(np.imag(values) >= 0)
    upper = upper[_order(values[upper])]
    values, vectors = values[upper], _phased(vectors[:, upper])
    paired = np.imag(values) > 0
    # V = S Q with S real and Q unitary: S has √2 Re v and √2 Im v for a pair. Inverse and condition come from S.
    place = np.cumsum(1 + paired) - (1 + paired)
    ahead, behind = place, place[paired] + 1
    real = np.empty((len(matrix), len(matrix)))
    real[:, ahead] = np.real(vectors) * np.where(paired, math.sqrt(2), 1.0)
    real[:, behind] = np.imag(vectors[:, paired]) * math.sqrt(2)
    linalg = namespace(where).linalg
    singular = as_numpy(linalg.svdvals(to_device_of(where, real)))
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else math.inf
    if condition > ILL_CONDITIONED:
        warnings.warn(
            f"the eigenvectors are nearly dependent (condition {condition:.1e}); single eigenvalues and the "
            "contributions of single modes are not to be trusted; lower the rank",
            ConditionWarning,
            stacklevel=3,
        )
    invert = linalg.inv if condition < 1 / np.finfo(float).eps else linalg.pinv
    inverse = as_numpy(invert(to_device_of(where, real)))
    half = 1 / math.sqrt(2)
    left_upper = inverse[ahead].astype(complex)
    left_upper[paired] = half * (inverse[ahead][paired] - 1j * inverse[behind])
    return Spectrum(
        eigenvalues=_interleave(values, place, behind, paired),
        right=_interleave(vectors.T, place, behind, paired).T,
        left=_interleave(left_upper, place, behind, paired),
        condition=condition,
    )


def _eigenpairs(matrix: Float[Array, "r r"], where: AnyArray) -> tuple[Complex[Array, " r"], Complex[Array, "r r"]]:
    """As LAPACK gives them, computed where ``where`` is."""
    values, vectors = (as_numpy(part) for part in namespace(where).linalg.eig(to_device_of(where, matrix)))
    paired = np.array_equal(np.sort_complex(values), np.sort_complex(values.conj()))
    if not paired:  # another library need not give conjugate pairs exactly
        values, vectors = np.linalg.eig(matrix)
    return values.astype(complex), vectors.astype(complex)


def _order(values: Complex[Array, " k"]) -> Array:
    """By decreasing modulus; where moduli agree by decreasing imaginary part, then by decreasing real part."""
    modulus = np.abs(values)
    steps = np.round(np.log(np.maximum(modulus, np.finfo(float).tiny)) / SAME_MODULUS)
    return np.lexsort((-np.real(values), -np.imag(values), -steps))


def _phased(vectors: Complex[Array, "r k"]) -> Complex[Array, "r k"]:
    """Columns of unit norm whose component of largest modulus is real and positive."""
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[None], axis=0)
    turned = vectors * (np.abs(largest) / largest)
    return turned / np.linalg.norm(turned, axis=0)


def _interleave(upper: Array, ahead: Array, behind: Array, paired: Array) -> Complex[Array, "..."]:
    """Put the conjugate of each paired row behind it."""
    rows = np.empty((len(upper) + len(behind), *upper.shape[1:]), dtype=complex)
    rows[ahead] = upper
    rows[behind] = upper[paired].conj()
    return rows


def residuals(
    right: Complex[Array, "r r"], error: Float[Array, "r r"], energy: Float[Array, "r r"]
) -> Float[Array, " r"]:
    """|Y v − λ X v| / |X v| for each eigenvector, from the Grams of what the step misses and of the states.

    C v = λ v makes Y v − λ X v equal to (Y − X C) v. Directions without energy get an infinite residual.
    """
    missed = np.einsum("ij,ij->j", right.conj(), error @ right).real
    present = np.einsum("ij,ij->j", right.conj(), energy @ right).real
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(np.maximum(missed, 0.0) / np.maximum(present, 0.0))
    return np.where(np.isnan(ratio), np.inf, ratio)


def format_eigenvalue(eigenvalue: complex) -> str:
    """An eigenvalue for people to read; of a conjugate pair, both in one."""
    pair = f" ± {abs(eigenvalue.imag):.4f}i" if eigenvalue.imag else ""
    return f"{eigenvalue.real:.4f}{pair}"


def modes(eigenvalues: Complex[Array, " r"], residual: Float[Array, " r"]) -> tuple[Mode, ...]:
    """Join conjugate pairs, which stand side by side with the positive imaginary part first."""
    firsts = [i for i, value in enumerate(eigenvalues) if value.imag >= 0]
    return tuple(
        Mode(
            indices=(i, i + 1) if eigenvalues[i].imag > 0 else (i,),
            eigenvalue=complex(eigenvalues[i]),
            residual=float(residual[i]),
        )
        for i in firsts
    )
