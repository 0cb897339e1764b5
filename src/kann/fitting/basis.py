"""The basis B in which states are written: z = (h − mean) B, with BᵀB = I."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from kann.backends.arrays import as_numpy, namespace, on_accelerator, require_float
from kann.errors import KannError, RankWarning
from kann.typing import AnyArray, Array, Float

NOISE = 8.0
"""Rounding every number to a relative spacing ε leaves noise of about ε·|H|/√d in every direction (less than a third of
it if it happened once); what a network computes is rounded several times, so eight times that is called unresolved."""

GRAM_NOISE = 32 * np.finfo(np.float64).eps
"""Eigenvalues of HᵀH below this share of the largest are rounding noise of the product itself, not of the states."""


FEW = 512
"""Below so many units all singular vectors cost so little that the first few are not worth another way."""

LANCZOS = 64
"""Lanczos pays where one direction in so many is wanted: at 4,096 units it takes 1/9 of the time for 16 of them, 2/5
for 64, and twice the time for 256."""

DATA_BASES = ("svd", "pca")
BASES = (*DATA_BASES, "fourier")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Basis:
    """An orthonormal basis and how much of the states it holds."""

    vectors: Float[Array, "d r"]
    """B, in columns, by decreasing share where the data chose it."""
    mean: Float[Array, " d"]
    """What is taken off a state before it is projected; zero unless the basis is ``"pca"``."""
    explained: Float[Array, " r"]
    """Share of Σ|h − mean|² in each direction."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scatter:
    """Where the states lie: singular values and right singular vectors of H (or of H about its mean)."""

    values: Float[Array, " k"]
    """Singular values, decreasing; all d, or the largest."""
    vectors: Float[Array, "d k"]
    """Right singular vectors, in columns, each with its largest component positive."""
    energy: float
    """Σ of the squares of all d singular values."""
    resolved: int
    """How many of them rise above the rounding noise."""


def scatter(
    gram: AnyArray,
    *,
    size: float,
    rounding: float,
    map_back: Float[Array, "d d"] | None = None,
    largest: int | None = None,
) -> Scatter:
    """Singular values and vectors of H from the (d, d) Gram ZᵀZ of Z, where H = Z @ map_back, or H = Z.

    ``size`` is |H| before a mean was taken off: it is what rounding noise is relative to. Without ``map_back``, the
    ``largest`` may be enough.

    Directly from HᵀH, singular values below some 1e-7 of the largest are lost. With Z = H T nearly orthonormal and
    ``map_back`` the inverse of T they are as good as from H itself: Z = Q R with Q orthonormal, so H has the singular
    values of ``R @ map_back``.
    """
    d = gram.shape[0]
    squares, rotation = _eigenpairs(gram, d if largest is None else largest)
    squares = np.maximum(squares, 0.0)
    if map_back is None:
        values, vectors = np.sqrt(squares[::-1]), rotation[:, ::-1]
        floor = np.sqrt(GRAM_NOISE) * size
    else:
        _, values, transposed = np.linalg.svd(np.sqrt(squares)[:, None] * (rotation.T @ map_back))
        vectors = transposed.T
        floor = d * np.finfo(np.float64).eps * values[0]
    energy = float(np.sum(values**2)) if len(values) == d else float(namespace(gram).trace(gram))
    noise = NOISE * rounding * size / np.sqrt(d)
    resolved = int(np.sum(values > max(floor, noise)))
    return Scatter(values=values, vectors=_signed(vectors), energy=energy, resolved=resolved)


def _eigenpairs(gram: AnyArray, count: int) -> tuple[Float[Array, " k"], Float[Array, "d k"]]:
    """The ``count`` largest eigenvalues, increasing, and their vectors; those of all units where that is as fast."""
    d = gram.shape[0]
    count = min(count, d)
    if on_accelerator(gram):
        values, vectors = namespace(gram).linalg.eigh(gram)
        return as_numpy(values[d - count :]), as_numpy(vectors[:, d - count :])
    gram = as_numpy(gram)
    if d < FEW or 2 * count > d:
        return np.linalg.eigh(gram)
    found: Any = _lanczos(gram, count) if LANCZOS * count <= d else None
    return found or scipy.linalg.eigh(gram, subset_by_index=[d - count, d - 1], driver="evr")


def _lanczos(gram: Float[Array, "d d"], count: int) -> tuple[Float[Array, " k"], Float[Array, "d k"]] | None:
    """The same by Lanczos iteration; None where it does not converge."""
    import scipy.sparse.linalg  # here, since it takes a tenth of the time that importing kann may take

    start = np.random.default_rng(0).normal(size=len(gram))  # the same each time, so that results are
    found: Any
    try:
        found = scipy.sparse.linalg.eigsh(gram, k=count, v0=start)
    except scipy.sparse.linalg.ArpackError:
        return None
    return found


def _signed(vectors: Float[Array, "d r"]) -> Float[Array, "d r"]:
    """Fix the sign of each column: its component of largest modulus is positive."""
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[None], axis=0)
    return vectors * np.where(largest < 0, -1.0, 1.0)


def fourier(d: int) -> Float[Array, "d d"]:
    """Orthonormal real Fourier basis of ℝᵈ by increasing frequency: a constant, then cosine and sine of each."""
    spectrum = np.fft.rfft(np.eye(d), norm="ortho").view(np.float64).reshape(d, -1, 2)
    columns = spectrum.reshape(d, -1)
    columns = columns[
        :, np.linalg.norm(columns, axis=0) > 0.5 / d
    ]  # the constant (and, for even d, the last) has no sine
    return columns / np.linalg.norm(columns, axis=0)


def require_known(kind: str | AnyArray) -> None:
    """Refuse a basis that has no such name."""
    if isinstance(kind, str) and kind not in BASES:
        raise KannError(f"basis={kind!r} is unknown; pass one of {', '.join(BASES)}, or an orthonormal (d, r) array")


def choose(kind: str | AnyArray, rank: Any, found: Scatter, mean: Float[Array, " d"]) -> Basis:
    """The basis of this kind, cut to ``rank`` columns, for states scattered about ``mean``."""
    if not found.resolved:
        raise KannError("every state is the same, so nothing evolves; pass states that change over time")
    by_data = isinstance(kind, str) and kind in DATA_BASES
    if by_data:
        vectors, explained = found.vectors, found.values**2 / found.energy
    else:
        vectors = fourier(len(mean)) if isinstance(kind, str) else _own(kind, len(mean))
        explained = np.sum((found.values[:, None] * (found.vectors.T @ vectors)) ** 2, axis=0) / found.energy
    columns = _columns(rank, explained, available=vectors.shape[1], whole=vectors.shape[1] == len(mean))
    if by_data and columns > found.resolved:
        columns = _cut(rank, found.resolved)
    return Basis(vectors=vectors[:, :columns], mean=mean, explained=explained[:columns])


def _columns(rank: Any, explained: Float[Array, " r"], *, available: int, whole: bool) -> int:
    """How many columns a rank means: all, a number, or enough for a share of explained variance."""
    if rank is None:
        return available
    if isinstance(rank, bool) or not isinstance(rank, int | float | np.number):
        raise KannError(f"rank={rank!r} is no number; pass a whole number, a share such as 0.99, or None")
    if isinstance(rank, float | np.floating):
        if not 0 < rank <= 1:
            raise KannError(f"rank={rank} is no share of explained variance; pass 0 < rank <= 1, or a whole number")
        # A share that rounding keeps just out of reach means everything.
        return min(int(np.searchsorted(np.cumsum(explained), rank * (1 - 1e-12))) + 1, available)
    if rank < 1:
        raise KannError(f"rank={rank} keeps nothing; pass rank>=1 or rank=None")
    if rank > available:
        raise KannError(
            f"rank={rank} exceeds the {available} {'hidden units recorded' if whole else 'columns of the basis'}; "
            f"pass rank<={available} or rank=None"
        )
    return int(rank)


def _cut(rank: Any, resolved: int) -> int:
    if isinstance(rank, int | np.integer):
        warnings.warn(
            f"rank={rank} was asked for; the states resolve {resolved} directions and the rest is rounding noise; "
            f"kept {resolved}",
            RankWarning,
            stacklevel=4,
        )
    return resolved


def _own(vectors: AnyArray, d: int) -> Float[Array, "d r"]:
    """Check a basis that the user brought."""
    vectors = as_numpy(vectors)
    require_float(vectors, what="basis vectors")
    if vectors.ndim != 2 or vectors.shape[0] != d or not 1 <= vectors.shape[1] <= d:
        raise KannError(f"a basis for {d} hidden units has shape ({d}, r), r<={d}; got {vectors.shape}")
    vectors = vectors.astype(np.float64)
    error = np.abs(vectors.T @ vectors - np.eye(vectors.shape[1])).max()
    if not error < 1e-6:  # float32 bases are orthonormal to about 1e-7
        raise KannError(f"the basis is not orthonormal: |BᵀB − I| reaches {error:.2g}; pass numpy.linalg.qr(basis)[0]")
    return vectors
