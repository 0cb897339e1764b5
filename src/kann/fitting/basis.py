"""Coordinates of states in a basis, which all fitted operators share."""

import contextlib
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from kann.backends.arrays import as_numpy, as_operand, namespace, on_accelerator, threads_for, to_device_of
from kann.checks import require_dense, require_float, require_real, require_whole_number, require_width, short_repr
from kann.data.serialization import Stored
from kann.errors import KannError, RankWarning
from kann.typing import AnyArray, Array, Float, Int, Shaped

TOLERANCE = 0.05
"""``rank="auto"`` takes the smallest rank whose error is within this fraction of the best rank's, …"""

NEGLIGIBLE = 0.01
"""… or exceeds it by no more than this fraction of what copying the state misses: where an operator is nearly exact, no
rank but the largest would be within a fraction of its tiny error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A number of directions, a fraction of explained variance, or (if neither is set) all directions."""

    count: int | None = None
    fraction: float | None = None
    is_limit: bool = False
    """Whether ``count`` is only the most that is wanted."""
    is_auto: bool = False
    """Whether held-out sequences are to choose the number."""

    def columns(self, explained: Float[Array, " r"], *, of_units: bool) -> int:
        """Return how many of the columns that explain these fractions of the variance are kept.

        ``of_units`` is True if there is a column for every hidden unit; errors then name units.
        """
        available = len(explained)
        if self.fraction is not None:
            # A fraction that rounding keeps just out of reach means everything.
            reached = np.searchsorted(np.cumsum(explained), self.fraction * (1 - 1e-12))
            return min(int(reached) + 1, available)
        if self.count is None:
            return available
        if self.is_limit:
            return min(self.count, available)
        if self.count > available:
            what = "hidden units recorded" if of_units else "columns of the basis"
            raise KannError(f"rank={self.count} exceeds the {available} {what}; pass rank<={available} or rank=None")
        return self.count


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankCurve(Stored):
    """Held-out errors of operators of several ranks: what ``rank="auto"`` chose from."""

    ranks: Int[Array, " k"]
    """The ranks that were tried."""
    horizons: Int[Array, " h"]
    """How many steps ahead states were predicted."""
    errors: Float[Array, "k h"]
    """The errors of each rank on held-out sequences, as fractions of the variance."""
    copying: Float[Array, " h"]
    """The errors of copying the state instead."""

    @property
    def chosen(self) -> int:
        """The smallest rank that is nearly as good as the best: in the mean over all horizons, and at the longest."""
        mean = self.errors.mean(axis=1)
        near = _is_near_best(mean, self.copying.mean()) & _is_near_best(self.errors[:, -1], self.copying[-1])
        if not near.any():  # one rank has the best mean, another is best in the end
            return int(self.ranks[mean.argmin()])
        return int(self.ranks[near].min())


def _is_near_best(errors: Float[Array, " k"], copying: float | np.floating) -> Shaped[Array, " k"]:
    """Return which errors are within the tolerance of the smallest."""
    best = errors.min()
    return errors <= best + max(TOLERANCE * best, NEGLIGIBLE * copying)


def parse_rank(rank: Any) -> Rank:
    """Read a whole number, a fraction of explained variance such as 0.99, "auto", or None for all directions."""
    if rank is None:
        return Rank()
    if isinstance(rank, str) and rank == "auto":
        return Rank(is_auto=True)
    if isinstance(rank, bool) or not isinstance(rank, int | float | np.number):
        raise KannError(
            f"rank={short_repr(rank)} is no number; pass a whole number, a fraction such as 0.99, 'auto' or None"
        )
    if isinstance(rank, float | np.floating):
        if not 0 < rank <= 1:
            raise KannError(f"rank={rank} is no fraction of explained variance; pass 0 < rank <= 1, or a whole number")
        return Rank(fraction=float(rank))
    if rank < 1:
        raise KannError(f"rank={rank} keeps nothing; pass rank>=1 or rank=None")
    return Rank(count=int(rank))


ROUNDINGS = 8.0
"""Rounding every number to a relative spacing ε leaves noise of about ε·|H|/√d in every direction (less than a third of
that if it happened once). A network rounds its numbers several times, so eight times that counts as noise."""

GRAM_NOISE = 32 * np.finfo(np.float64).eps
"""Eigenvalues of HᵀH below this fraction of the largest are rounding noise of the product itself, not of the states."""

UNITS_ALIKE_TO = 1e6
"""Ratio of the energies of two units up to which one noise floor serves both. A unit of less energy is rounded more
finely than the others, and its directions are real where theirs would be noise."""

FULL_EIGH_BELOW = 512
"""Below this many units all singular vectors take no longer than a few of them."""

LANCZOS_FROM_RATIO = 64
"""Lanczos iteration pays if at most 1/64 of the directions are wanted: at 4,096 units it takes 1/9 of the time for
16 of them, 2/5 for 64, and twice the time for 256."""

ORTHONORMAL_TO = 1e-6
"""How far BᵀB of an orthonormal basis may be from I; float32 bases are orthonormal to about 1e-7."""

DEPENDENT_BELOW = 1e-8
"""Smallest singular value of a basis with columns of unit length. Below, coordinates have half of float64's digits in
common, and the Gram matrix of the coordinates, which squares it, cannot tell them apart."""


def fourier(d: int) -> Float[Array, "d d"]:
    """Return the orthonormal real Fourier basis of ℝᵈ by increasing frequency: constant, cosine and sine of each."""
    # Transforms of the unit vectors are the columns: cosines are their real parts, sines their imaginary parts.
    spectrum = np.fft.rfft(np.eye(d), norm="ortho").view(np.float64).reshape(d, -1, 2)
    columns = spectrum.reshape(d, -1)
    norms = np.linalg.norm(columns, axis=0)
    is_there = norms > 0.5 / d  # the constant (and, for even d, the last frequency) has no sine
    return columns[:, is_there] / norms[is_there]


DATA_BASES = ("svd", "pca")
"""Bases whose directions the states choose."""

FIXED_BASES: dict[str, Callable[[int], Array]] = {"fourier": fourier}
"""Orthonormal bases of ℝᵈ that look at no data: functions from d to their columns (d, d), the first to keep first."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Basis:
    """Directions of the states, how much of the states they hold, and how states are restored from coordinates."""

    vectors: Float[Array, "d r"]
    """B, in columns; where the data chose it, those that explain most come first."""
    mean: Float[Array, " d"]
    """Subtracted from a state before it is projected."""
    origin: Float[Array, " d"]
    """A state whose coordinates are exactly zero, as those of the mean are up to rounding."""
    explained: Float[Array, " r"]
    """Fraction of Σ|h − mean|² that each coordinate explains, beyond those before it."""
    decoder: Float[Array, "r d"] | None = None
    """The regression of the state on the coordinates; None if it is Bᵀ and errors are those of whole states."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BasisKind:
    """The basis that the user asked for."""

    name: str
    """One of `DATA_BASES` or `FIXED_BASES`, or ``"own"``."""
    own: Array | None = None
    """The user's directions (d, k)."""
    origin: Array | None = None
    """The state at which the user's coordinates are zero; None if that is the state zero."""
    is_centred: bool = False
    """Whether variation counts about the mean of the states."""

    @property
    def is_from_data(self) -> bool:
        """Whether the states choose the directions, and in which order they come."""
        return self.name in DATA_BASES


def parse_basis(basis: Any, *, offset: bool) -> BasisKind:
    """Read the name of a basis, an array of directions, or balanced coordinates.

    With an ``offset`` states are restored from the user's coordinates by a regression with a constant.
    """
    if isinstance(basis, str):
        names = (*DATA_BASES, *FIXED_BASES)
        if basis not in names:
            raise KannError(
                f"basis={basis!r} is unknown; pass one of {', '.join(names)}, paper, a Balance, or an array (d, k) of "
                "directions"
            )
        return BasisKind(name=basis, is_centred=basis == "pca")
    if hasattr(basis, "directions"):
        return BasisKind(name="own", own=basis.directions, origin=as_numpy(basis.mean), is_centred=True)
    return BasisKind(name="own", own=as_numpy(basis), is_centred=offset)


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
    """Return the singular values and vectors of H from its Gram matrix HᵀH: all, or the ``largest``.

    ``norm`` is |H| before a mean was taken off: rounding noise is relative to it. Singular values below some 1e-7 of
    the largest are lost in the Gram matrix.
    """
    d = gram.shape[0]
    # The method of snapshots (Sirovich 1987): a d × d eigenproblem instead of an SVD of all rows. It squares singular
    # values, so that those below √ε of the largest are noise; `svd_from_factor` is for states that have smaller ones.
    squares, vectors = _eigenpairs(gram, largest or d)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    energy = float(namespace(gram).trace(gram))
    # An eigenvalue is off by ε|H|² from rounding products, and by up to 2σ·ε₃₂|H|/√d from rounding numbers.
    floor = max(np.sqrt(GRAM_NOISE), ROUNDINGS * rounding / np.sqrt(d)) * norm
    return _svd(values, vectors[:, ::-1], energy=energy, floor=floor)


def units_differ(squares: Float[Array, " d"]) -> bool:
    """Return whether the energies of the units, as far as they have any, are too far apart for one noise floor."""
    live = squares[squares > 0]
    return bool(len(live) and live.max() > UNITS_ALIKE_TO * live.min())


def factor_of_gram(
    gram: Float[Array, "d d"], squares: Float[Array, " d"] | None = None, *, noise: float | None = None
) -> Float[Array, "d d"]:
    """Return a factor F with FᵀF = gram, for columns of these energies before a mean was subtracted, by default of one.

    A product of two columns is rounded relative to these two alone, so that columns are scaled to equal energy first.
    Eigenvalues below the fraction ``noise`` of one, or `GRAM_NOISE` of the largest, are rounding and count as 0.
    """
    squares = np.ones(len(gram)) if squares is None else squares
    scale = np.sqrt(np.where(squares > 0, squares, 1.0))
    # Not a Cholesky factor: that fails on, or hides, directions that rounding has made slightly negative.
    values, rotation = np.linalg.eigh(gram / scale[:, None] / scale)
    least = GRAM_NOISE * values[-1] if noise is None else noise
    kept = np.where(values > least, np.maximum(values, 0.0), 0.0)
    return np.sqrt(kept)[:, None] * (rotation.T * scale)


def svd_from_factor(factor: Float[Array, "m d"], *, squares: Float[Array, " d"], rounding: float) -> StateSVD:
    """Return the singular values and vectors of H from a factor F with FᵀF = HᵀH, for units of these energies."""
    _, values, transposed = np.linalg.svd(factor, full_matrices=len(factor) < factor.shape[1])
    values = np.concatenate([values, np.zeros(factor.shape[1] - len(values))])
    # Subtracting the mean and factorising round, each by about ε for a unit.
    floor = 4 * len(squares) * np.finfo(np.float64).eps * values[0]
    # Each unit is rounded relative to its own size, so a direction has the noise of the units that it is made of.
    rounded = ROUNDINGS * rounding * np.sqrt(transposed**2 @ squares)
    return _svd(values, transposed.T, energy=float(np.sum(values**2)), floor=np.maximum(floor, rounded))


def _svd(
    values: Float[Array, " k"], vectors: Float[Array, "d k"], *, energy: float, floor: float | Float[Array, " k"]
) -> StateSVD:
    resolved = int(np.sum(values > floor))
    return StateSVD(values=values, vectors=vectors * signs_of(vectors), energy=energy, resolved=resolved)


def _eigenpairs(gram: AnyArray, count: int) -> tuple[Float[Array, " k"], Float[Array, "d k"]]:
    """Return the ``count`` largest eigenvalues, increasing, and their vectors; all of them where that is as fast."""
    d = gram.shape[0]
    count = min(count, d)
    if on_accelerator(gram):  # torch has no such solver for the largest alone
        values, vectors = namespace(gram).linalg.eigh(gram)
        return as_numpy(values[d - count :]), as_numpy(vectors[:, d - count :])
    gram = as_numpy(gram)
    if d < FULL_EIGH_BELOW or 2 * count > d:
        with threads_for(d**3):
            return np.linalg.eigh(gram)
    if LANCZOS_FROM_RATIO * count <= d:
        from scipy.sparse import linalg  # here, since it takes a tenth of the time that importing kann may take

        start: Any = np.random.default_rng(0).normal(size=d)  # the same each time, so that results are the same
        with contextlib.suppress(linalg.ArpackError):  # includes no convergence
            found: Any = linalg.eigsh(gram, k=count, v0=start)
            return found
    return scipy.linalg.eigh(gram, subset_by_index=[d - count, d - 1], driver="evr")


def signs_of(vectors: Float[Array, "d r"]) -> Float[Array, " r"]:
    """Return ±1 for each column, so that times it the component of largest modulus is positive."""
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return np.where(largest < 0, -1.0, 1.0)


def require_variation(varies: bool) -> None:
    """Raise unless the states vary."""
    if not varies:
        raise KannError(
            "every state is the same up to rounding, so nothing evolves; pass states that change over time, and take a "
            "constant near their mean off first if it dwarfs the change"
        )


def choose_basis(kind: BasisKind, rank: Rank, svd: StateSVD, mean: Float[Array, " d"]) -> Basis:
    """Choose the basis of this kind, cut to ``rank`` columns; ``svd`` is of the states about ``mean`` or zero."""
    require_variation(svd.resolved > 0)
    d = len(mean)
    if kind.own is not None:
        vectors, rows = checked_directions(kind.own, d), svd.values[:, None] * svd.vectors.T
        return own_basis(kind, rank, mean, vectors, factor=rows @ vectors, rows=rows, energy=svd.energy)
    fixed = FIXED_BASES.get(kind.name)
    vectors = svd.vectors if fixed is None else fixed(d)
    # H = U Σ Vᵀ puts the energy |Σ Vᵀ b|² along a direction b: σ² along a singular vector.
    # Columns of a fixed basis are correlated, so that these fractions add up only because the basis is orthonormal.
    spread = svd.values if fixed is None else np.linalg.norm(svd.values[:, None] * (svd.vectors.T @ vectors), axis=0)
    explained = spread**2 / svd.energy
    columns = rank.columns(explained, of_units=len(explained) == d)
    if fixed is None and columns > svd.resolved:
        if rank.count is not None and not rank.is_limit:
            warnings.warn(
                f"rank={rank.count} was asked for; the states resolve {svd.resolved} directions and the rest is "
                f"rounding noise; kept {svd.resolved}",
                RankWarning,
                stacklevel=4,  # the line that calls kann.fit
            )
        columns = svd.resolved
    return Basis(vectors=vectors[:, :columns], mean=mean, origin=mean, explained=explained[:columns])


def own_basis(
    kind: BasisKind,
    rank: Rank,
    mean: Float[Array, " d"],
    vectors: Float[Array, "d k"],
    *,
    factor: Float[Array, "m k"],
    rows: Float[Array, "m d"],
    energy: float,
) -> Basis:
    """Return the user's directions, with the regression of the state on the coordinates as decoder.

    Bᵀ would not do: what the directions leave out is correlated with the coordinates, so that decoding with Bᵀ can
    miss more than all of the states' variance. ``factor`` F and ``rows`` R stand for the coordinates Z and the states H
    about their mean: FᵀF = ZᵀZ and FᵀR = ZᵀH. The regression of H on Z is F⁺R. It squares no number if F and R are
    ΣVᵀB and ΣVᵀ, where H = U Σ Vᵀ.
    """
    # What each coordinate adds to R², so that fractions add up although coordinates may be correlated.
    explained = np.sum((np.linalg.qr(factor)[0].T @ rows) ** 2, axis=1) / energy
    columns = rank.columns(explained, of_units=vectors.shape[1] == len(mean))
    vectors, explained = vectors[:, :columns], explained[:columns]
    origin = np.zeros_like(mean) if kind.origin is None else kind.origin
    is_square = kind.origin is None and columns == len(mean)
    if is_square and np.abs(vectors.T @ vectors - np.eye(columns)).max() < ORTHONORMAL_TO:
        return Basis(vectors=vectors, mean=origin, origin=origin, explained=explained)
    decoder = np.linalg.lstsq(factor[:, :columns], rows)[0]
    # z is the same for any origin that differs by a state whose coordinates are zero. This one makes z @ decoder +
    # origin the regression with its constant: the mean coordinates decode to the mean state.
    centre = mean - (mean - origin) @ vectors @ decoder
    return Basis(vectors=vectors, mean=centre, origin=origin, explained=explained, decoder=decoder)


def checked_directions(vectors: AnyArray, d: int) -> Float[Array, "d r"]:
    """Raise if the user's directions depend on each other or are of another width."""
    vectors = as_numpy(vectors)
    require_float(vectors, what="basis vectors")
    if vectors.ndim != 2 or vectors.shape[0] != d or not 1 <= vectors.shape[1] <= d:
        raise KannError(f"a basis for {d} hidden units has shape ({d}, r), r<={d}; got {vectors.shape}")
    vectors = vectors.astype(np.float64)
    # Compared at unit length: columns of unlike size are no reason to refuse them.
    lengths = np.linalg.norm(vectors, axis=0)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise KannError("a column of the basis is zero or not finite; leave it out")
    smallest = np.linalg.svd(vectors / lengths, compute_uv=False)[-1]
    if not smallest > DEPENDENT_BELOW:
        raise KannError(
            f"the columns of the basis depend on each other (smallest singular value {smallest:.1g} at unit length); "
            "leave out those that repeat others, or pass numpy.linalg.qr(basis)[0]"
        )
    return vectors


MOST_NUMBERS = 2**37
"""Maximum number of values of a rollout: a terabyte. More are taken for a mistake."""

MOST_STEPS = 10**8
"""Maximum number of steps of a rollout. Steps are made one by one: these take minutes, ten times more take hours."""


class Operator(ABC):
    """An operator on linear coordinates z = (h − mean) B that predicts states, perhaps from what the network reads."""

    __slots__ = ()
    basis: Float[Array, "d r"]
    mean: Float[Array, " d"]
    decoder: Float[Array, "r d"] | None

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        """The number of coordinates r."""
        return self.basis.shape[1]

    @property
    def in_coordinates(self) -> bool:
        """Whether errors are measured in the coordinates, since the rest of a state is not modelled."""
        return self.decoder is not None

    @property
    def state_vectors(self) -> Float[Array, "r d"]:
        """The change of the state for a unit of each coordinate: Bᵀ, or the regression of the state on coordinates."""
        return self.basis.T if self.decoder is None else self.decoder

    def encode(self, h: AnyArray) -> Float[AnyArray, "... r"]:
        """Compute coordinates z = (h − mean) B of states (..., d).

        Here and below, the result is a numpy array, or a tensor on the GPU where the states are.
        """
        h = operand(h, require_float, what="states")
        require_width(h, self.dim, what="states", of="the operator")
        return (h - to_device_of(h, self.mean)) @ to_device_of(h, self.basis)

    def decode(self, z: AnyArray) -> Float[AnyArray, "... d"]:
        """Compute states of coordinates (..., r): z Bᵀ + mean, or the regression of the state on the coordinates.

        The latter holds where ``basis`` was a `Balance` or an array: there coordinates are correlated with the
        rest of the state.
        """
        z = operand(z, require_float, what="coordinates")
        require_width(z, self.rank, what="coordinates", of="the operator's basis")
        return z @ to_device_of(z, self.state_vectors) + to_device_of(z, self.mean)

    @property
    @abstractmethod
    def input_dim(self) -> int:
        """The number of inputs p; 0 if autonomous."""

    @abstractmethod
    def _path(self, z: AnyArray, steps: int, inputs: AnyArray | None) -> list[AnyArray]:
        """Compute coordinates after each step, from coordinates z (..., r) and inputs (..., steps, p)."""

    def predict(self, h: AnyArray, steps: int = 1, *, inputs: AnyArray | None = None) -> Float[AnyArray, "... d"]:
        """Predict the states ``steps`` later; without offset and inputs (h − mean) B Cˢ Bᵀ + mean, the paper's H^KANN.

        An operator that reads inputs also takes what the network reads on the way, (..., steps, p), or (..., p) for one
        step.
        """
        return self.rollout(h, steps, inputs=inputs)[..., -1, :]

    def rollout(self, h: AnyArray, steps: int, *, inputs: AnyArray | None = None) -> Float[AnyArray, "... s d"]:
        """Predict the next ``steps`` states one after the other, each from the one before.

        Those of a `Bilinear` are bounded to the range of the recorded coordinates.
        """
        steps = require_whole_number(steps, "steps", too_small="predicts nothing")
        z = self.encode(h)
        if steps * max(1, math.prod(z.shape)) > MOST_NUMBERS:
            raise KannError(f"steps={steps} from states of shape {tuple(z.shape)} fit in no memory; pass fewer steps")
        if steps > MOST_STEPS:
            raise KannError(f"steps={steps} would take hours; pass steps<={MOST_STEPS}")
        given: Any = inputs
        if inputs is not None or self.input_dim:
            given = self._checked_inputs(inputs, steps, z.ndim)
            shapes = tuple(given.shape[:-2]), tuple(z.shape[:-1])
            try:
                np.broadcast_shapes(*shapes)
            except ValueError as error:
                raise KannError(
                    f"inputs of shape {tuple(given.shape)} do not line up with states of shape {shapes[1]} × units; "
                    "pass one row of inputs for each state and step"
                ) from error
        return self.decode(namespace(z).stack(self._path(z, steps, given), axis=-2))

    def simulate(self, inputs: AnyArray, initial: AnyArray | None = None) -> Float[AnyArray, "... t d"]:
        """Run the operator over whole input sequences (..., T, p), in place of the network.

        Starts from the states ``initial`` (..., d), zero if not given. The result has one state per input, reached
        by reading it, on the device where the inputs are.
        """
        inputs = self._checked_inputs(inputs)
        if initial is None:
            initial = to_device_of(inputs, np.zeros((*inputs.shape[:-2], self.dim)))
        return self.rollout(initial, inputs.shape[-2], inputs=inputs)

    def _checked_inputs(self, inputs: AnyArray | None, steps: int | None = None, ndim: int | None = None) -> AnyArray:
        """Return inputs (..., t, p), if they fit the operator and the steps; of one step with states of ``ndim``."""
        if not self.input_dim:
            raise KannError("this operator is autonomous and reads no inputs; fit with driven=True")
        if inputs is None:
            raise KannError("this operator reads inputs; pass inputs=, what the network reads at each step")
        given: Any = operand(inputs, require_real, what="inputs")
        if steps == 1 and 0 < given.ndim == ndim:
            given = given[..., None, :]
        require_width(given, self.input_dim, what="inputs", of="the operator")
        if given.ndim < 2 or (steps is not None and given.shape[-2] != steps):
            shape = tuple(given.shape)
            raise KannError(f"inputs of shape {shape} do not cover {steps or 'the'} steps; pass (..., steps, p)")
        return given


def operand(values: AnyArray, require: Callable[..., None], *, what: str) -> AnyArray:
    """Check values and convert them to float64 on a GPU; unchecked, the conversion would drop imaginary parts."""
    if not hasattr(values, "dtype"):
        values = as_numpy(values)
    require_dense(values)
    require(values, what=what)
    return as_operand(values)
