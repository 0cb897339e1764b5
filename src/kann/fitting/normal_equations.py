"""Least squares from additive sums: normal equations, their solution, and ridge."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import accumulate as running
from operator import add
from typing import Any

import numpy as np
import scipy.linalg

from kann.backends.arrays import as_numpy, segment_sums, to_device_of, with_ones
from kann.checks import require_number
from kann.data.moments import Moments, refuse_not_finite
from kann.data.reduction import Additive, Block, Cut, Projection, SumOverBlocks, accumulate
from kann.data.serialization import Stored
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.basis import GRAM_NOISE
from kann.fitting.folds import pairs_by_fold
from kann.typing import AnyArray, Array, Float, Int

EPS = float(np.finfo(np.float64).eps)

PRODUCT_ROUNDING = 4 * EPS
"""Relative rounding of a sum of products, as BLAS adds them: it grows far more slowly than the number of them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NormalEquations(Additive):
    """Sums of products of the rows (z, u, 1) of a design A and of its targets Y. They add up over pairs of states."""

    gram: Float[Array, "q q"]
    """AᵀA; the last column of A is constant, the first r are the coordinates z."""
    target: Float[Array, "q r"]
    """AᵀY"""
    total: Float[Array, "r r"]
    """YᵀY"""
    shuffled: Float[Array, "q r"] | None = None
    """AᵀY averaged over all ways to shuffle Y within each sequence; None if sequences are not known."""

    @staticmethod
    def of_moments(
        moments: Moments, *, basis: Float[Array, "d r"], mean: Float[Array, " d"], driven: bool
    ) -> "NormalEquations":
        """Return the equations for coordinates (h − mean) @ basis, from moments of the states h."""
        return NormalEquations.of_coordinates(moments.in_basis(basis), driven=driven).shifted(mean @ basis)

    @staticmethod
    def of_rows(rows: Float[AnyArray, "n q"], targets: Float[AnyArray, "n r"]) -> "NormalEquations":
        """Sum the products of rows of A, the last column of which is one, and of Y."""
        gram, target, total = (as_numpy(sums) for sums in (rows.T @ rows, rows.T @ targets, targets.T @ targets))
        return NormalEquations(gram=gram, target=target, total=total)

    @staticmethod
    def of_coordinates(moments: Moments, *, driven: bool) -> "NormalEquations":
        """Return the equations for the coordinates that the moments are of."""
        sums: Any = moments  # of pairs, so that none of its arrays is None
        r, q = moments.dim, moments.dim + (moments.input_dim if driven else 0) + 1
        gram, target = np.empty((q, q)), np.empty((q, r))  # filled one by one: np.block takes as long as a small fit
        gram[:r, :r], gram[:r, -1], gram[-1, -1] = sums.xx, sums.sum_x, sums.pairs
        target[:r], target[-1] = sums.xy, sums.sum_y
        if driven:
            gram[:r, r:-1], gram[r:-1, :r], gram[r:-1, r:-1] = sums.xu, sums.xu.T, sums.uu
            gram[r:-1, -1], target[r:-1] = sums.sum_u, sums.uy
        gram[-1, :-1] = gram[:-1, -1]
        return NormalEquations(gram=gram, target=target, total=sums.yy)

    @property
    def pairs(self) -> int:
        """The number of pairs of states."""
        return round(float(self.gram[-1, -1]))

    @property
    def rank(self) -> int:
        """The number of coordinates r."""
        return len(self.total)

    @property
    def mean(self) -> Float[Array, " q"]:
        """The mean row of A; its last entry is 1."""
        return self.gram[-1] / self.gram[-1, -1]

    @property
    def target_mean(self) -> Float[Array, " r"]:
        """The mean row of Y."""
        return self.target[-1] / self.gram[-1, -1]

    def in_basis(self, basis: Float[Array, "d r"], *, mean: Float[Array, " d"]) -> "NormalEquations":
        """Return the equations for coordinates (h − mean) @ basis, from those of states h without inputs."""
        wide = scipy.linalg.block_diag(basis, [[1.0]])
        inside = NormalEquations(
            gram=wide.T @ self.gram @ wide, target=wide.T @ self.target @ basis, total=basis.T @ self.total @ basis
        )
        return inside.shifted(mean @ basis)

    def shifted(self, shift: Float[Array, " r"]) -> "NormalEquations":
        """Return the equations for coordinates z − shift."""
        if not shift.any():
            return self
        change = np.eye(len(self.gram))
        change[-1, : self.rank] = -shift
        target = change.T @ (self.target - np.outer(self.gram[:, -1], shift))
        crossed = np.outer(self.target[-1], shift)
        total = self.total - crossed - crossed.T + self.gram[-1, -1] * np.outer(shift, shift)
        return NormalEquations(gram=change.T @ self.gram @ change, target=target, total=total)

    def centred(self) -> "NormalEquations":
        """Return the equations about the means of all columns, which is what an offset amounts to."""
        gram = self.gram - np.outer(self.gram[-1], self.mean)
        gram[-1], gram[:, -1], gram[-1, -1] = 0.0, 0.0, self.gram[-1, -1]
        target = self.target - np.outer(self.mean, self.target[-1])
        target[-1] = 0.0
        total = self.total - np.outer(self.target[-1], self.target_mean)
        return NormalEquations(gram=gram, target=target, total=total)

    def leading(self, rank: int) -> "NormalEquations":
        """Return the equations for the first ``rank`` coordinates alone."""
        kept = np.r_[:rank, self.rank : len(self.gram)]
        return NormalEquations(
            gram=self.gram[np.ix_(kept, kept)], target=self.target[kept, :rank], total=self.total[:rank, :rank]
        )

    def as_shuffled(self) -> "NormalEquations":
        """Return the equations for states in shuffled order: shuffled within sequences where these are known."""
        shuffled = self.shuffled if self.shuffled is not None else np.outer(self.gram[:, -1], self.target_mean)
        return replace(self, target=shuffled, shuffled=None)

    def weights(self, *, offset: bool, ridge: float, rounding: float) -> Float[Array, "q r"]:
        """Compute least-squares weights of A W = Y: C, D and c stacked; c is zero unless there is an ``offset``.

        The ridge adds ridge·(|C|² + |D|²) and does not shrink the offset.
        """
        squares = np.diag(self.gram)[:-1]
        about = self.centred() if offset else self
        found, _ = solve(
            about.gram[:-1, :-1],
            about.target[:-1],
            squares=squares,
            constant_below=EPS * squares,
            ridge=ridge,
            floor=noise_floor(len(squares), rounding),
        )
        constant = self.target_mean - self.mean[:-1] @ found if offset else np.zeros(self.rank)
        return np.vstack([found, constant])

    def weights_without_state(self, *, ridge: float) -> Float[Array, "q r"]:
        """Compute weights with an offset that predict the next coordinates from inputs alone: those of C are zero."""
        r = self.rank
        inputs = NormalEquations(gram=self.gram[r:, r:], target=self.target[r:], total=self.total)
        return np.vstack([np.zeros((r, r)), inputs.weights(offset=True, ridge=ridge, rounding=0.0)])

    def standardised_weights(
        self, ridges: Sequence[float], *, allow_dependent: bool = True
    ) -> Iterator[Float[Array, "q r"] | None]:
        """Yield weights for each ridge, counted per pair and in units of each column's variance; the constant is last.

        `weights` counts its ridge in another way: over all pairs, on coordinates that share the scale of the states.
        Columns of unlike scale, such as products of features and coordinates, need a ridge in units of each column's
        variance. Saved operators hold ridges of both kinds, so that neither can replace the other.

        The ridge does not shrink the constant. Where columns depend on each other and the ridge is small, the weights
        are those of smallest norm, which takes long for thousands of columns, or None unless ``allow_dependent``.
        """
        pairs, mean, target_mean = self.gram[-1, -1], self.mean[:-1], self.target_mean
        gram = self.gram[:-1, :-1] / pairs  # changed in place below: it may take a gigabyte
        squares = np.diag(gram).copy()
        gram -= np.outer(mean, mean)
        is_constant = np.diag(gram) <= CONSTANT_BELOW * squares
        scale = np.sqrt(np.where(is_constant, 1.0, np.diag(gram)))
        gram /= scale
        gram /= scale[:, None]
        target = (self.target[:-1] / pairs - np.outer(mean, target_mean)) / scale[:, None]
        gram[is_constant], gram[:, is_constant], target[is_constant] = 0.0, 0.0, 0.0
        np.fill_diagonal(gram, 1.0)
        ones, floor = np.ones(len(gram)), noise_floor(len(gram), 0.0)
        for ridge in ridges:
            held = gram.copy()
            held.flat[:: len(held) + 1] += ridge
            factor = factor_if_independent(held, floor)
            if factor is not None:
                weights = scipy.linalg.cho_solve((factor.T, False), target)
            elif allow_dependent:
                weights, _ = solve(gram, target, squares=ones, constant_below=0 * ones, ridge=ridge, floor=floor)
            else:
                yield None
                continue
            weights = weights / scale[:, None]
            yield np.vstack([weights, target_mean - mean @ weights])

    def ridge_weights(self, ridge: float) -> Float[Array, "q r"]:
        """Return the weights for one ridge, counted per pair and in units of each column's variance."""
        (weights,) = self.standardised_weights([ridge])
        return weights  # pyright: ignore[reportReturnType]

    def residual_gram(self, weights: Float[Array, "q r"]) -> Float[Array, "r r"]:
        """Return the Gram matrix of the residuals, (Y − A W)ᵀ(Y − A W)."""
        half = weights.T @ (self.target - self.gram @ weights / 2)
        return self.total - half - half.T

    def residual_sum_of_squares(self, weights: Float[Array, "q r"]) -> float:
        """Compute Σ|Y − A W|²: one matrix product, where the Gram matrix takes three."""
        found = np.trace(self.total) + np.sum(weights * (self.gram @ weights - 2 * self.target))
        return max(0.0, float(found))

    def variance(self) -> float:
        """Return Σ|Y − mean|²."""
        return float(np.trace(self.total) - self.target_mean @ self.target[-1])

    def change(self) -> "NormalEquations":
        """Return the equations for the change Y − X instead of Y, so that a ridge pulls towards the identity."""
        return NormalEquations(gram=self.gram, target=self.target - self.gram[:, : self.rank], total=self.change_gram())

    def change_gram(self) -> Float[Array, "r r"]:
        """Return the Gram matrix of the residuals of copying the state, (Y − X)ᵀ(Y − X)."""
        cross = self.target[: self.rank]
        return self.total - cross - cross.T + self.gram[: self.rank, : self.rank]

    def state_gram(self, about: Float[Array, " r"] | None = None) -> Float[Array, "r r"]:
        """Compute the Gram matrix of the coordinates about a point, (X − about)ᵀ(X − about); by default their mean."""
        r = self.rank
        about = self.mean[:r] if about is None else about
        crossed = np.outer(self.gram[-1, :r], about)
        return self.gram[:r, :r] - crossed - crossed.T + self.gram[-1, -1] * np.outer(about, about)

    def dependence(self, constant_below: Float[Array, " q"] | None = None) -> float:
        """Return the largest R² with which the inputs predict a direction of the states.

        It is the square of the largest canonical correlation: the largest singular value of the cross products of
        states and inputs once both are whitened. Columns of less variation than ``constant_below`` do not count.
        """
        r = self.rank
        gram = self.centred().gram[:-1, :-1]
        is_used = np.diag(gram) > (EPS * np.diag(self.gram)[:-1] if constant_below is None else constant_below)
        states, inputs = np.flatnonzero(is_used[:r]), r + np.flatnonzero(is_used[r:])
        if not len(states) or not len(inputs):
            return 0.0
        whitened = _whitening(gram, states).T @ gram[np.ix_(states, inputs)] @ _whitening(gram, inputs)
        return min(1.0, float(np.linalg.norm(whitened, 2))) ** 2


def noise_floor(size: int, rounding: float) -> float:
    """Return the fraction of a column's energy that is rounding: of the factorisation, products or states."""
    return max(size * EPS, 8 * GRAM_NOISE, rounding**2)


def _whitening(design: Float[Array, "q q"], columns: Array) -> Float[Array, "k m"]:
    """Return a matrix that makes these columns of the design uncorrelated and of unit energy, without rounding."""
    gram = design[np.ix_(columns, columns)]
    scale = np.sqrt(np.diag(gram))
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    kept = values > noise_floor(len(gram), 0.0)
    return vectors[:, kept] / np.sqrt(values[kept]) / scale[:, None]


def solve(
    gram: Float[Array, "q q"],
    target: Float[Array, "q r"],
    *,
    squares: Float[Array, " q"],
    constant_below: Float[Array, " q"],
    multiplied: Float[Array, " q"] | None = None,
    ridge: int | float,
    floor: float,
) -> tuple[Float[Array, "q r"], float]:
    """Compute least-squares weights W of AᵀA W = AᵀY, of smallest norm where the data leave them open, and their error.

    ``squares`` are the sums of squares of the columns of A before a mean was subtracted. Scaling by them keeps
    directions of little energy as accurate as the others, and shows what of a column is rounding of its mean: whatever
    is below the fraction ``floor`` of them. Variation of less energy than ``constant_below`` is the rounding of the
    numbers as they are stored. The error is relative, and estimated from the rounding of products: relative to the sums
    of squares of the numbers that were ``multiplied``, even where a change of basis or taking off a mean leaves far
    less of them.
    """
    energy = squares + ridge
    used = np.flatnonzero((energy > 0) & (np.diag(gram) > constant_below))
    weights = np.zeros_like(target)
    if not len(used):
        return weights, 0.0
    scale = np.sqrt(energy[used])[:, None]
    unit = gram[np.ix_(used, used)] / (scale * scale.T)
    unit.flat[:: len(unit) + 1] += ridge / energy[used]
    aims = target[used] / scale
    multiplied = squares if multiplied is None else multiplied
    rounding = PRODUCT_ROUNDING * multiplied[used] / energy[used]  # of the diagonal of unit
    factor = factor_if_independent(unit, floor)
    if factor is not None:
        # The squares of the factor's diagonal are what is left of each column once the ones before it are taken off.
        weights[used] = np.linalg.solve(unit, aims) / scale
        return weights, float(np.max(rounding / factor.diagonal() ** 2))
    values, vectors = np.linalg.eigh(unit)
    kept, null = vectors[:, values > floor], vectors[:, values <= floor] / scale
    values = values[values > floor]
    found = kept @ ((kept.T @ aims) / values[:, None]) / scale
    # What remains open changes no prediction, since its columns of A cancel: take off the part along it.
    weights[used] = found - null @ np.linalg.lstsq(null, found, rcond=None)[0]
    return weights, float(np.max((kept.T**2 @ rounding) / values, initial=0.0))


def factor_if_independent(matrix: Float[Array, "q q"], floor: float) -> Float[Array, "q q"] | None:
    """Return the Cholesky factor, or None if the reciprocal condition of the columns is at most ``floor``.

    The diagonal of the factor alone is no test: without exchange of rows all of it can be large although columns
    depend on each other.
    """
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:  # not positive definite
        return None
    (estimate,) = scipy.linalg.get_lapack_funcs(("pocon",), (factor,))
    # Its transpose is in the order of LAPACK, so that it is not copied.
    reciprocal_condition, _ = estimate(factor.T, np.abs(matrix).sum(axis=0).max(), uplo="U")
    return None if reciprocal_condition <= floor else factor


SILENT_BELOW = 1e-4
"""Fraction of an input's energy. If the sequences that are fitted hold less of it, its weight would be extrapolated a
hundredfold to those that are held out: a few faint clicks in a recording made errors of 300 %."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _FoldSums(Additive):
    """Equations of folds, and the sums over sequences of which only pieces were seen."""

    equations: dict[int, NormalEquations]
    pieces: dict[tuple[int, int], list[Array]]
    """For each fold and sequence, the sums of the rows of A and of Y of the pieces."""


def designs_of_folds(
    states: States,
    fold_of: Int[Array, " s"],
    *,
    basis: Float[Array, "d r"],
    mean: Float[Array, " d"],
    driven: bool,
    lengths: Int[Array, " s"] | None = None,
) -> tuple[NormalEquations, ...]:
    """Return the design of each fold, in one reading of the states; ``lengths`` are those of blocks that are cut."""
    rows_of: Int[Array, " s"] = states.lengths if lengths is None else lengths
    pairs = rows_of - np.isin(np.cumsum(rows_of) - rows_of, states.starts)

    def sums_of(part: Block | Cut) -> _FoldSums:
        """Sum over the pairs of a block or a cut, in runs of the same sequence, fold by fold."""
        sums = _FoldSums(equations={}, pieces={})
        for fold, numbers, x, inputs, y in pairs_by_fold(part, fold_of, rows_of):
            sequences, counts = np.unique(numbers, return_counts=True)
            rows = with_ones(x) if inputs is None else with_ones(x, to_device_of(x, inputs))
            row_sums, target_sums = as_numpy(segment_sums(rows, counts)), as_numpy(segment_sums(y, counts))
            is_whole = counts == pairs[sequences]
            shuffled = (row_sums[is_whole] / counts[is_whole, None]).T @ target_sums[is_whole]
            sums.equations[fold] = replace(NormalEquations.of_rows(rows, y), shuffled=shuffled)
            for i in np.flatnonzero(~is_whole):
                sums.pieces[fold, int(sequences[i])] = [row_sums[i], target_sums[i]]
        return sums

    projection, make = Projection(matrix=basis, mean=mean), partial(SumOverBlocks, sums_of, sums_of)
    found = accumulate(states, make, inputs=driven, projection=projection, what="folds")
    shuffled: dict[int, Any] = {fold: each.shuffled for fold, each in found.equations.items()}
    for (fold, _), (rows, target) in found.pieces.items():  # of sequences that were cut
        shuffled[fold] = shuffled[fold] + np.outer(rows, target) / rows[-1]
    designs = tuple(replace(found.equations[fold], shuffled=shuffled[fold]) for fold in sorted(shuffled))
    if not all(np.isfinite(design.gram).all() for design in designs):
        refuse_not_finite(states, inputs=driven)
    return designs


def sum_of(designs: Iterable[NormalEquations]) -> NormalEquations:
    """Return all of the designs together."""
    return reduce(add, designs)


def without_each(designs: Sequence[NormalEquations]) -> list[NormalEquations]:
    """Sum for each of two or more designs all the others, without inputs that are all but silent in these.

    The others are added up, since subtraction would leave rounding where an input is silent.
    """
    before, after = list(running(designs[:-1])), list(running(designs[:0:-1]))[::-1]
    others = [after[0], *map(add, before, after[1:]), before[-1]]
    energy = np.diag(others[0].gram) + np.diag(designs[0].gram)
    used = [np.diag(rest.gram) >= SILENT_BELOW * energy for rest in others]
    return [
        rest if own.all() else replace(rest, gram=rest.gram * np.outer(own, own), target=rest.target * own[:, None])
        for rest, own in zip(others, used, strict=True)
    ]


RIDGES = (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Ridges that are tried, for each pair of states. In trials 1e-5 was right for gated networks of 256 units."""

CONSTANT_BELOW = 1e-13
"""A column whose variance is below this fraction of its mean square is constant up to rounding of the sums."""

SAME_ERROR = 1e-13
"""Errors that differ by less are rounding: states that a smaller ridge predicts exactly need no larger one."""


def require_ridge(ridge: Any) -> None:
    """Raise if a ridge is no number of at least 0; None means a ridge that is chosen."""
    if ridge is not None and not require_number(ridge, "ridge", remedy="pass ridge>=0") >= 0:
        raise KannError(f"ridge={ridge} would reward large operators; pass ridge>=0")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RidgeCurve(Stored):
    """Held-out errors of the ridges that were tried."""

    ridges: Float[Array, " n"]
    errors: Float[Array, " n"]
    """Fraction of the variance of the next coordinates, each scaled to unit variance, that is missed one step ahead on
    held-out sequences; infinite where columns depend on each other too closely for the ridge."""

    @property
    def chosen(self) -> float:
        """The ridge with the smallest error, up to rounding of the sums."""
        return float(self.ridges[np.argmax(self.errors <= self.errors.min() + SAME_ERROR)])


def ridge_curve(equations: Sequence[NormalEquations], *, held_out: int, ridges: Sequence[float] = RIDGES) -> RidgeCurve:
    """Compute errors of all ridges on each of the first ``held_out`` folds, with weights fitted to the others."""
    judged, errors = sum_of(equations[:held_out]), np.zeros(len(ridges))
    for fold in equations[:held_out]:
        rest = sum_of([other for other in equations if other is not fold])
        for i, weights in enumerate(rest.standardised_weights(ridges, allow_dependent=False)):
            errors[i] += np.inf if weights is None else fold.residual_sum_of_squares(weights)
    if not np.isfinite(errors).any():
        raise KannError(
            f"no ridge up to {max(ridges)} separates the columns on held-out sequences; pass a larger ridge=, or "
            "fewer features"
        )
    variance = judged.variance()
    # If nothing varies, every ridge is equally good.
    return RidgeCurve(ridges=np.array(ridges), errors=errors / (variance if variance > 0 else 1.0))
