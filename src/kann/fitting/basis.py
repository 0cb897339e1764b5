"""The basis B in which states are written: z = (h − mean) B, with BᵀB = I."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from kann.backends.arrays import as_numpy, namespace, on_accelerator
from kann.checks import require_float
from kann.errors import KannError, RankWarning
from kann.fitting.rank import Rank
from kann.typing import AnyArray, Array, Float

ROUNDINGS = 8.0
"""Rounding every number to a relative spacing ε leaves noise of about ε·|H|/√d in every direction (less than a third of
that if it happened once). What a network computes is rounded several times, so eight times that counts as noise."""

GRAM_NOISE = 32 * np.finfo(np.float64).eps
"""Eigenvalues of HᵀH below this fraction of the largest are rounding noise of the product itself, not of the states."""

UNITS_ALIKE_TO = 1e6
"""Ratio of the energies of two units up to which one noise floor serves both. A unit of less energy is rounded more
finely than the others, and its directions are real where theirs would be noise."""

FULL_EIGH_BELOW = 512
"""Below this many units all singular vectors cost so little that computing only a few of them saves nothing."""

QUIET_EIGH_UP_TO = 64
"""Up to so many units scipy's eigenvectors are used: numpy's wake its other threads, which takes longer than the rest
of a small fit. Above, numpy's threads are awake from the products, and scipy's own would only compete with them."""

LANCZOS_FROM_RATIO = 64
"""Lanczos iteration pays where at most one direction in so many is wanted: at 4,096 units it takes 1/9 of the time for
16 of them, 2/5 for 64, and twice the time for 256."""

ORTHONORMAL_TO = 1e-6
"""How far BᵀB of a user's own basis may be from I; float32 bases are orthonormal to about 1e-7."""

DATA_BASES = ("svd", "pca")
BASES = (*DATA_BASES, "fourier")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Basis:
    """An orthonormal basis and how much of the states it holds."""

    vectors: Float[Array, "d r"]
    """B, in columns; where the data chose it, those that explain most come first."""
    mean: Float[Array, " d"]
    """What is taken off a state before it is projected; zero unless the basis is ``"pca"``."""
    explained: Float[Array, " r"]
    """Fraction of Σ|h − mean|² in each direction."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BasisKind:
    """Which basis the user asked for."""

    name: str
    """One of `BASES`, or ``"own"``."""
    own: AnyArray | None = None
    """The user's own basis."""

    @property
    def is_from_data(self) -> bool:
        """Whether the states choose the directions, and in which order they come."""
        return self.name in DATA_BASES

    @property
    def is_centred(self) -> bool:
        """Whether the mean is taken off the states first."""
        return self.name == "pca"

    def vectors(self, d: int) -> Float[Array, "d r"]:
        """The columns of a basis that the states do not choose."""
        if self.name == "fourier":
            return fourier(d)
        return _checked(self.own, d)


def parse_basis(basis: str | AnyArray) -> BasisKind:
    """Read the name of a basis, or an array that is one."""
    if not isinstance(basis, str):
        return BasisKind(name="own", own=basis)
    if basis not in BASES:
        raise KannError(f"basis={basis!r} is unknown; pass one of {', '.join(BASES)}, or an orthonormal (d, r) array")
    return BasisKind(name=basis)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StateSVD:
    """Singular values and right singular vectors of the states H, or of H about its mean."""

    values: Float[Array, " k"]
    """Singular values, decreasing; all d, or the largest."""
    vectors: Float[Array, "d k"]
    """Right singular vectors, in columns, each with its largest component positive."""
    energy: float
    """Σ of the squares of all d singular values."""
    resolved: int
    """How many of them rise above the rounding noise."""


def svd_from_gram(gram: AnyArray, *, norm: float, rounding: float, largest: int | None = None) -> StateSVD:
    """The singular values and vectors of H from its Gram matrix HᵀH: all, or the ``largest``.

    ``norm`` is |H| before a mean was taken off: rounding noise is relative to it. Singular values below some 1e-7 of
    the largest are lost in the Gram matrix.
    """
    d = gram.shape[0]
    squares, vectors = _eigenpairs(gram, largest or d)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    energy = float(namespace(gram).trace(gram))
    floor = max(np.sqrt(GRAM_NOISE), ROUNDINGS * rounding / np.sqrt(d)) * norm
    return _svd(values, vectors[:, ::-1], energy=energy, floor=floor)


def units_differ(squares: Float[Array, " d"]) -> bool:
    """Whether the energies of the units, as far as they have any, are too far apart for one noise floor."""
    live = squares[squares > 0]
    return bool(len(live) and live.max() > UNITS_ALIKE_TO * live.min())


def svd_from_scaled_gram(gram: Float[Array, "d d"], *, squares: Float[Array, " d"], rounding: float) -> StateSVD:
    """The same as `svd_from_gram` for units of very different energies ``squares`` (before a mean was taken off).

    A product of two units is rounded relative to these two alone. In units of equal energy the Gram matrix therefore
    shows what an eigenvalue solver, which is exact relative to the largest unit only, would lose.
    """
    scale = np.sqrt(np.where(squares > 0, squares, 1.0))
    unit = gram / scale[:, None] / scale
    return svd_from_coordinates(unit, back=np.diag(scale), squares=squares, rounding=rounding, noise=GRAM_NOISE)


def svd_from_coordinates(
    gram: Float[Array, "d d"],
    *,
    back: Float[Array, "d d"],
    squares: Float[Array, " d"],
    rounding: float,
    noise: float = 0.0,
    row: Float[Array, " d"] | None = None,
) -> StateSVD:
    """The singular values and vectors of H = Z @ back from the Gram matrix ZᵀZ.

    Where Z is nearly orthonormal they are as good as from H itself: Z = Q R with Q orthonormal, so H has the singular
    values of ``R @ back``. ``squares`` are the energies of the units as they are stored. Eigenvalues of ZᵀZ below the
    fraction ``noise`` of the largest count as 0. A ``row`` is put below H.
    """
    values, rotation = np.linalg.eigh(gram)
    kept = np.where(values > noise * values[-1], np.maximum(values, 0.0), 0.0)
    factor = np.sqrt(kept)[:, None] * (rotation.T @ back)
    if row is not None:
        factor = np.vstack([factor, row])
    _, values, transposed = np.linalg.svd(factor, full_matrices=False)
    # Projecting, multiplying, taking off the mean and factorising round, each by about eps for a unit.
    floor = 4 * len(gram) * np.finfo(np.float64).eps * values[0]
    # Each unit is rounded relative to its own size, so a direction has the noise of the units that it is made of.
    rounded = ROUNDINGS * rounding * np.sqrt(transposed**2 @ squares)
    return _svd(values, transposed.T, energy=float(np.sum(values**2)), floor=np.maximum(floor, rounded))


def _svd(
    values: Float[Array, " k"], vectors: Float[Array, "d k"], *, energy: float, floor: float | Float[Array, " k"]
) -> StateSVD:
    resolved = int(np.sum(values > floor))
    return StateSVD(values=values, vectors=_signed(vectors), energy=energy, resolved=resolved)


def _eigenpairs(gram: AnyArray, count: int) -> tuple[Float[Array, " k"], Float[Array, "d k"]]:
    """The ``count`` largest eigenvalues, increasing, and their vectors; all of them where that is as fast."""
    d = gram.shape[0]
    count = min(count, d)
    if on_accelerator(gram):
        values, vectors = namespace(gram).linalg.eigh(gram)
        return as_numpy(values[d - count :]), as_numpy(vectors[:, d - count :])
    gram = as_numpy(gram)
    if d < FULL_EIGH_BELOW or 2 * count > d:
        if d <= QUIET_EIGH_UP_TO:
            return scipy.linalg.eigh(gram, driver="evd", check_finite=False)  # type: ignore[return-value]
        return np.linalg.eigh(gram)
    found: Any = None
    if LANCZOS_FROM_RATIO * count <= d:
        found = _lanczos(gram, count)
    return found or scipy.linalg.eigh(gram, subset_by_index=[d - count, d - 1], driver="evr")


def _lanczos(gram: Float[Array, "d d"], count: int) -> tuple[Float[Array, " k"], Float[Array, "d k"]] | None:
    """The same by Lanczos iteration; None where it does not converge."""
    import scipy.sparse.linalg  # here, since it takes a tenth of the time that importing kann may take

    start = np.random.default_rng(0).normal(size=len(gram))  # the same each time, so that results are the same
    found: Any
    try:
        found = scipy.sparse.linalg.eigsh(gram, k=count, v0=start)
    except scipy.sparse.linalg.ArpackError:
        return None
    return found


def _signed(vectors: Float[Array, "d r"]) -> Float[Array, "d r"]:
    """Fix the sign of each column: its component of largest modulus is positive."""
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return vectors * np.where(largest < 0, -1.0, 1.0)


def fourier(d: int) -> Float[Array, "d d"]:
    """The orthonormal real Fourier basis of ℝᵈ by increasing frequency: a constant, then cosine and sine of each."""
    spectrum = np.fft.rfft(np.eye(d), norm="ortho").view(np.float64).reshape(d, -1, 2)
    columns = spectrum.reshape(d, -1)
    norms = np.linalg.norm(columns, axis=0)
    is_there = norms > 0.5 / d  # the constant (and, for even d, the last frequency) has no sine
    return columns[:, is_there] / norms[is_there]


def choose_basis(kind: BasisKind, rank: Rank, svd: StateSVD, mean: Float[Array, " d"]) -> Basis:
    """The basis of this kind, cut to ``rank`` columns, for states that vary about ``mean``."""
    if not svd.resolved:
        raise KannError(
            "every state is the same up to rounding, so nothing evolves; pass states that change over time, and take a "
            "constant near their mean off first if it dwarfs the change"
        )
    d = len(mean)
    if not kind.is_from_data:
        vectors = kind.vectors(d)
        explained = np.sum((svd.values[:, None] * (svd.vectors.T @ vectors)) ** 2, axis=0) / svd.energy
        columns = rank.columns(explained, of_units=vectors.shape[1] == d)
        return Basis(vectors=vectors[:, :columns], mean=mean, explained=explained[:columns])
    explained = svd.values**2 / svd.energy
    columns = rank.columns(explained, of_units=len(explained) == d)
    if columns > svd.resolved:
        if rank.count is not None and not rank.is_limit:
            warnings.warn(
                f"rank={rank.count} was asked for; the states resolve {svd.resolved} directions and the rest is "
                f"rounding noise; kept {svd.resolved}",
                RankWarning,
                stacklevel=4,  # the line that calls kann.fit
            )
        columns = svd.resolved
    return Basis(vectors=svd.vectors[:, :columns], mean=mean, explained=explained[:columns])


def _checked(vectors: AnyArray, d: int) -> Float[Array, "d r"]:
    """Refuse a basis of the user's own that is not orthonormal or of another width."""
    vectors = as_numpy(vectors)
    require_float(vectors, what="basis vectors")
    if vectors.ndim != 2 or vectors.shape[0] != d or not 1 <= vectors.shape[1] <= d:
        raise KannError(f"a basis for {d} hidden units has shape ({d}, r), r<={d}; got {vectors.shape}")
    vectors = vectors.astype(np.float64)
    error = np.abs(vectors.T @ vectors - np.eye(vectors.shape[1])).max()
    if not error < ORTHONORMAL_TO:
        raise KannError(f"the basis is not orthonormal: |BᵀB − I| reaches {error:.2g}; pass numpy.linalg.qr(basis)[0]")
    return vectors
