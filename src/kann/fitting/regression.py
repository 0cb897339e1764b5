"""The least-squares fit of one step, from second moments."""

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg

from kann.data.moments import Moments, centred
from kann.fitting.basis import GRAM_NOISE, ROUNDINGS
from kann.typing import Array, Float

EPS = float(np.finfo(np.float64).eps)

PRODUCT_ROUNDING = 4 * EPS
"""Relative rounding of a sum of products, as BLAS adds them: it grows far more slowly than the number of them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ColumnEnergies:
    """Sums of squares of the columns of the design matrix A, which tell what of AᵀA is rounding."""

    multiplied: Float[Array, " q"]
    """Of the numbers whose products were summed. Products are rounded relative to these, even where a change of basis
    or taking off a mean leaves far less of them."""
    constant_below: Float[Array, " q"]
    """Variation of less energy than this is the rounding of the numbers as they are stored."""

    @staticmethod
    def of(multiplied: Float[Array, " q"], *, stored: Float[Array, " q"], rounding: float) -> "ColumnEnergies":
        """From both sums of squares and the relative spacing of the stored numbers.

        Numbers of low precision that are a third of their spacing apart on average are told apart: they may be exact,
        as whole numbers are. What is computed in float64 is rounded several times before it is stored.
        """
        return ColumnEnergies(multiplied=multiplied, constant_below=max(rounding / 4, ROUNDINGS * EPS) ** 2 * stored)

    def and_inputs(self, inputs: "ColumnEnergies") -> "ColumnEnergies":
        """Those of the columns of states, followed by those of inputs."""
        return ColumnEnergies(
            multiplied=np.concatenate([self.multiplied, inputs.multiplied]),
            constant_below=np.concatenate([self.constant_below, inputs.constant_below]),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinearStep:
    """One step of the linear system, z[t+1] ≈ z[t] C + u[t+1] D + c, and how well it fits."""

    matrix: Float[Array, "r r"]
    """C"""
    drive: Float[Array, "p r"] | None
    """D, or None for an autonomous system."""
    offset: Float[Array, " r"] | None
    """c, or None for a system without one."""
    residual_gram: Float[Array, "r r"]
    """EᵀE, where the rows of E are z[t+1] − z[t] C − u[t+1] D − c."""
    state_gram: Float[Array, "r r"]
    """XᵀX in the basis; about the mean of the pairs if there is an offset, which explains that mean."""
    noise: Float[Array, " r"]
    """What of the diagonal of ``state_gram`` may be rounding."""
    error: float
    """Estimated relative error of C and D because products of the columns were rounded."""
    mean_error: float
    """The part of it that comes from means, which were taken off after multiplying."""
    dependence: float
    """How much of some direction of the states the inputs tell: its R². 1 if inputs contain it, 0 if autonomous."""

    @property
    def unknowns(self) -> int:
        """How many numbers each column of the regression has to find: rows of C and D, and the offset."""
        count = len(self.matrix)
        if self.drive is not None:
            count += len(self.drive)
        return count + int(self.offset is not None)


def regress(
    moments: Moments,
    shift: Float[Array, " r"],
    *,
    energies: ColumnEnergies,
    input_mean: Float[Array, " p"] | None = None,
    driven: bool,
    offset: bool,
    ridge: int | float,
) -> LinearStep:
    """Minimise Σ |z C + u D + c − z₊|² + ridge·(|C|² + |D|²); without u and c it is the paper's equation for C.

    ``moments`` are those of coordinates in the basis, from which ``shift`` is still to be taken off, and of inputs from
    which ``input_mean`` was taken off.
    """
    r, squares = len(moments.sum_x), np.diag(moments.xx)
    products, rounding = _products(moments, shift, driven=driven, offset=offset), moments.rounding
    if driven:
        squares = np.concatenate([squares, np.diag(moments.uu)])
        rounding = max(rounding, moments.input_rounding)
    floor = noise_floor(len(squares), rounding)
    solution = solve(products.design, products.target, squares=squares, energies=energies, ridge=ridge, floor=floor)
    matrix, drive, constant, mean_error = solution.weights[:r], None, None, 0.0
    if driven:
        drive = solution.weights[r:]
    if offset:
        constant = _offset(moments, shift, solution.weights, input_mean)
    if offset or shift.any():
        mean_error = _mean_error(products.design, squares + ridge, energies)
    return LinearStep(
        matrix=matrix,
        drive=drive,
        offset=constant,
        residual_gram=residual_gram(products.design, products.target, products.total, solution.weights),
        state_gram=products.design[:r, :r],
        noise=floor * energies.multiplied[:r],
        error=solution.error,
        mean_error=mean_error,
        dependence=dependence(products.design, r, energies),
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Products:
    """What the normal equations are made of: A holds the columns of z and of u, if the system is driven."""

    design: Float[Array, "q q"]
    """AᵀA"""
    target: Float[Array, "q r"]
    """AᵀY"""
    total: Float[Array, "r r"]
    """YᵀY"""


def _products(moments: Moments, shift: Float[Array, " r"], *, driven: bool, offset: bool) -> _Products:
    """The products of the regression: about the means of the pairs if there is an offset, else about ``shift``.

    A driven system always has an offset.
    """
    n, x, y, u = moments.pairs, moments.sum_x, moments.sum_y, moments.sum_u

    def about(products: Array, left: Array, right: Array) -> Array:
        if offset:
            return centred(products, left, right, n)
        return _shifted(products, left, right, shift, n)

    design, target, total = about(moments.xx, x, x), about(moments.xy, x, y), about(moments.yy, y, y)
    if driven:
        xu = centred(moments.xu, x, u, n)
        design = np.block([[design, xu], [xu.T, centred(moments.uu, u, u, n)]])
        target = np.vstack([target, centred(moments.uy, u, y, n)])
    return _Products(design=design, target=target, total=total)


def _offset(
    moments: Moments, shift: Float[Array, " r"], weights: Float[Array, "q r"], input_mean: Float[Array, " p"] | None
) -> Float[Array, " r"]:
    """The constant c that makes the mean of the predicted states the mean of the true ones."""
    r, n = len(shift), moments.pairs
    constant = (moments.sum_y / n - shift) - (moments.sum_x / n - shift) @ weights[:r]
    if len(weights) == r:
        return constant
    mean_u = moments.sum_u / n
    if input_mean is not None:
        mean_u = mean_u + input_mean
    return constant - mean_u @ weights[r:]


def noise_floor(size: int, rounding: float) -> float:
    """The fraction of a column's energy below which there is rounding: of the factorisation, products or states."""
    return max(size * EPS, 8 * GRAM_NOISE, rounding**2)


def _mean_error(gram: Float[Array, "q q"], squares: Float[Array, " q"], energies: ColumnEnergies) -> float:
    """Relative error of the column that taking off its mean hurt most; ``squares`` are those before.

    A column that is constant up to the rounding of its numbers has nothing to lose.
    """
    left = np.diag(gram)
    worst = np.where((left == 0) | (np.abs(left) <= energies.constant_below), 0.0, squares)
    return PRODUCT_ROUNDING * float(np.max(worst / np.where(worst > 0, np.abs(left), 1.0)))


def dependence(design: Float[Array, "q q"], r: int, energies: ColumnEnergies) -> float:
    """The largest R² with which the inputs, columns r onwards of the design, tell a direction of the states.

    It is the square of the largest canonical correlation: the largest singular value of the cross products of states
    and inputs once both are whitened.
    """
    if len(design) == r:
        return 0.0
    is_used = np.diag(design) > energies.constant_below
    states, inputs = np.flatnonzero(is_used[:r]), r + np.flatnonzero(is_used[r:])
    if not len(states) or not len(inputs):
        return 0.0
    whitened = _whitening(design, states).T @ design[np.ix_(states, inputs)] @ _whitening(design, inputs)
    return min(1.0, float(np.linalg.norm(whitened, 2))) ** 2


def _whitening(design: Float[Array, "q q"], columns: Array) -> Float[Array, "k m"]:
    """A matrix that makes these columns of the design uncorrelated and of unit energy; without what is rounding."""
    gram = design[np.ix_(columns, columns)]
    scale = np.sqrt(np.diag(gram))
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    kept = values > noise_floor(len(gram), 0.0)
    return vectors[:, kept] / np.sqrt(values[kept]) / scale[:, None]


def _shifted(
    products: Float[Array, "r r"],
    left: Float[Array, " r"],
    right: Float[Array, " r"],
    shift: Float[Array, " r"],
    n: int,
) -> Float[Array, "r r"]:
    """Σ(a − shift)(b − shift)ᵀ from Σabᵀ, Σa and Σb."""
    if not shift.any():
        return products
    return products - np.outer(shift, right) - np.outer(left, shift) + n * np.outer(shift, shift)


def residual_gram(
    design: Float[Array, "q q"], target: Float[Array, "q r"], total: Float[Array, "r r"], weights: Float[Array, "q r"]
) -> Float[Array, "r r"]:
    """The Gram matrix of the residuals Y − A W from AᵀA, AᵀY and YᵀY."""
    cross = weights.T @ target
    return total - cross - cross.T + weights.T @ design @ weights


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Solution:
    """Least-squares weights, and how good they are."""

    weights: Float[Array, "q r"]
    error: float
    """Estimated relative error of the weights because products of the columns were rounded."""


def solve(
    gram: Float[Array, "q q"],
    target: Float[Array, "q r"],
    *,
    squares: Float[Array, " q"],
    energies: ColumnEnergies,
    ridge: int | float,
    floor: float,
) -> Solution:
    """Least-squares weights W of AᵀA W = AᵀY, those of smallest norm where the data leave them open.

    ``squares`` are the sums of squares of the columns of A before a mean was taken off. Scaling by them keeps
    directions of little energy as accurate as the others, and shows what of a column is rounding of its mean. What is
    below the fraction ``floor`` of them is rounding noise.
    """
    energy = squares + ridge
    is_used = (energy > 0) & (np.diag(gram) > energies.constant_below)
    if is_used.all():
        return _solve_scaled(gram, target, energy, multiplied=energies.multiplied, ridge=ridge, floor=floor)
    weights = np.zeros_like(target)
    if not is_used.any():
        return Solution(weights=weights, error=0.0)
    solution = _solve_scaled(
        gram[np.ix_(is_used, is_used)],
        target[is_used],
        energy[is_used],
        multiplied=energies.multiplied[is_used],
        ridge=ridge,
        floor=floor,
    )
    weights[is_used] = solution.weights
    return replace(solution, weights=weights)


def _solve_scaled(
    gram: Float[Array, "q q"],
    target: Float[Array, "q r"],
    energy: Float[Array, " q"],
    *,
    multiplied: Float[Array, " q"],
    ridge: int | float,
    floor: float,
) -> Solution:
    """The same for columns that vary; by eigenvectors if they depend on each other."""
    scale = np.sqrt(energy)[:, None]
    if ridge:
        gram = gram + ridge * np.eye(len(gram))
    unit, target = gram / (scale * scale.T), target / scale
    rounding = PRODUCT_ROUNDING * multiplied / energy  # of the diagonal of unit
    factor = factor_if_independent(unit, floor)
    if factor is not None:
        weights = np.linalg.solve(unit, target) / scale
        # The squares of the factor's diagonal are what is left of each column once the ones before it are taken off.
        return Solution(weights=weights, error=float(np.max(rounding / factor.diagonal() ** 2)))
    values, vectors = np.linalg.eigh(unit)
    kept, null = vectors[:, values > floor], vectors[:, values <= floor] / scale
    values = values[values > floor]
    weights = kept @ ((kept.T @ target) / values[:, None]) / scale
    # What remains open changes no prediction, since its columns of A cancel: take off the part along it.
    weights -= null @ np.linalg.lstsq(null, weights, rcond=None)[0]
    return Solution(weights=weights, error=float(np.max((kept.T**2 @ rounding) / values, initial=0.0)))


def factor_if_independent(matrix: Float[Array, "q q"], floor: float) -> Float[Array, "q q"] | None:
    """The Cholesky factor, or None if the columns depend on each other: a reciprocal condition of at most ``floor``.

    The diagonal of the factor alone does not tell: without exchange of rows all of it can be large although columns
    depend on each other.
    """
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:  # not positive definite
        return None
    (estimate,) = scipy.linalg.get_lapack_funcs(("pocon",), (factor,))
    # Its transpose is in the order of LAPACK, so that it is not copied.
    reciprocal_condition, _ = estimate(factor.T, np.abs(matrix).sum(axis=0).max(), uplo="U")
    if reciprocal_condition <= floor:
        return None
    return factor
