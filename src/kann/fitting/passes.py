"""Choose a basis and sum the normal equations of pairs in it, in as few passes over the states as precision allows.

Usually one pass suffices: second moments of the states give the basis by their eigenvectors and the products of pairs
in it. A product of two columns is rounded relative to these two, so moments lose digits in two cases: directions whose
variance is below ε of the largest, and variation that is small compared with the mean. Where that costs digits,
`read_by_qr` reads the states once more and factorises the pairs themselves, without squaring them.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from kann.backends.arrays import as_numpy, row_products
from kann.data.moments import (
    Moments,
    PairProducts,
    StateGram,
    centre_in_place,
    centred,
    moments_of,
    refuse_not_finite,
    require_finite_squares,
    state_gram,
)
from kann.data.reduction import Additive, Block, Cut, Projection, SumOverBlocks, accumulate, number_of_all_ranks
from kann.data.states import States
from kann.fitting.basis import (
    ROUNDINGS,
    Basis,
    BasisKind,
    Rank,
    StateSVD,
    checked_directions,
    choose_basis,
    factor_of_gram,
    own_basis,
    require_variation,
    svd_from_factor,
    svd_from_gram,
    units_differ,
)
from kann.fitting.normal_equations import EPS, PRODUCT_ROUNDING, NormalEquations, noise_floor, solve
from kann.typing import AnyArray, Array, Float

GRAM_TOLERANCE = 1e-10
"""Relative error of C that the rounding of products, ε·(σ₁/σᵣ)², may cause before float64 states are read again."""

DOUBTED_FROM = 1e-6
"""Relative error of the operator from which a warning is given, and from which states of lower precision are read again
if the error comes from their mean."""

SMALL_VARIATION = 1e-4
"""States of lower precision that vary by less than this fraction of their size may be exact, as whole numbers are: then
it is their products that are coarse."""

FEW_ROUNDINGS = 100
"""States that vary by less than this multiple of their noise floor have hardly two digits."""

MEAN_ROUNDINGS = 64
"""Roundings by which a mean of all states may be off: numpy's sums of 10⁶ numbers are good to about ten."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Request:
    """Options of a fit."""

    rank: Rank
    kind: BasisKind
    driven: bool
    offset: bool
    ridge: float

    @property
    def largest(self) -> int | None:
        """The number of the user's directions, or of the largest singular vectors that suffice; None for all."""
        if self.kind.own is not None:
            return self.kind.own.shape[-1] if self.kind.own.ndim else None
        return self.rank.count if self.kind.is_from_data else None

    def is_too_coarse(self, svd: StateSVD, units: "Units") -> bool:
        """Return whether float64 states have directions that their Gram matrix cannot give to `GRAM_TOLERANCE`.

        States of lower precision never do: their own rounding changes C by ε₃₂·σ₁/σᵣ, which is above ε₆₄·(σ₁/σᵣ)² as
        far down as they resolve anything. A ridge covers what the Gram matrix gets wrong if it is large enough.
        """
        if units.rounding > EPS:
            return False
        smallest = svd.values[min(self.rank.count or len(svd.values), len(svd.values)) - 1]
        return bool(EPS * units.norm**2 > GRAM_TOLERANCE * (smallest**2 + self.ridge))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinearStep:
    """The step that fits all pairs best, and how well it fits."""

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
    """The part of the diagonal of ``state_gram`` that may be rounding."""
    error: float
    """Estimated relative error of C and D because products of the columns were rounded."""
    mean_error: float
    """The part of it that comes from means, which were taken off after multiplying."""
    dependence: float
    """The largest R² with which the inputs predict a direction of the states: 1 if they contain it, 0 if autonomous."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PairsInBasis:
    """A basis, and the normal equations of the pairs in coordinates along it."""

    basis: Basis
    equations: NormalEquations
    centre: Float[Array, " d"]
    """The state at which the coordinates of the equations are zero; the basis may put it elsewhere."""
    multiplied: Float[Array, " q"]
    """Sums of squares of the numbers whose products were summed, for each coordinate and each input."""
    variance: Float[Array, " r"]
    """Variances of the coordinates."""
    units: "Units"
    inputs: Any
    """`Moments` that hold those of the inputs as they are stored; None if autonomous."""
    input_mean: Any = 0.0
    """Subtracted from the inputs before they were multiplied."""
    doubts: tuple[str, ...] = ()
    """Warnings to give if these pairs are used."""
    first: Moments | None = None
    """The moments of the states themselves, if they were measured."""
    is_final: bool = False
    """Whether `read_by_qr` could not improve on them."""

    @staticmethod
    def of_moments(moments: Any, *, driven: bool, multiplied: Any = None, **arguments: Any) -> "PairsInBasis":
        """Make it from the moments of coordinates."""
        multiplied = moments.hh.diagonal() if multiplied is None else multiplied
        return PairsInBasis(
            equations=NormalEquations.of_coordinates(moments, driven=driven),
            multiplied=np.concatenate([multiplied, moments.uu.diagonal()]) if driven else multiplied,
            variance=np.diag(moments.hh) / moments.states - (moments.sum_h / moments.states) ** 2,
            inputs=moments if driven else None,
            **arguments,
        )

    def step(self, *, offset: bool, ridge: float) -> LinearStep:
        """Minimise Σ |z C + u D + c − z₊|² + ridge·(|C|² + |D|²); without u and c it is the paper's equation for C."""
        stored = self.units.squares @ self.basis.vectors**2
        r, rounding = len(stored), np.full(len(stored), self.units.rounding)
        if self.inputs is not None:
            squares = as_numpy(self.inputs.uu.diagonal())
            stored = np.concatenate([stored, squares])
            rounding = np.concatenate([rounding, np.full(len(squares), self.inputs.input_rounding)])
        floor = noise_floor(len(stored), rounding.max())
        # Numbers of low precision that are a third of their spacing apart on average count as different: they may be
        # exact, as whole numbers are. What is computed in float64 is rounded several times before it is stored.
        constant_below = np.maximum(rounding / 4, ROUNDINGS * EPS) ** 2 * stored
        equations, shift = self.equations, (self.basis.origin - self.centre) @ self.basis.vectors
        about = equations.centred() if offset else equations.shifted(shift)
        gram, squares = about.gram[:-1, :-1], np.diag(equations.gram)[:-1]
        weights, error = solve(
            gram,
            about.target[:-1],
            squares=squares,
            constant_below=constant_below,
            multiplied=self.multiplied,
            ridge=ridge,
            floor=floor,
        )
        matrix, drive = weights[:r], weights[r:]
        # The means are subtracted from each other first: multiplied by C one by one, large ones would leave rounding.
        constant = (equations.target_mean - shift) - (equations.mean[:r] - shift) @ matrix
        constant -= (equations.mean[r:-1] + self.input_mean) @ drive
        # The relative error of the column that taking off its mean hurt most. One that is constant up to the rounding
        # of its numbers has nothing to lose.
        left = np.diag(gram)
        before = np.where((left == 0) | (np.abs(left) <= constant_below), 0.0, squares + ridge)
        mean_error = PRODUCT_ROUNDING * float(np.max(before / np.where(before > 0, np.abs(left), 1.0)))
        driven = self.inputs is not None
        return LinearStep(
            matrix=matrix,
            drive=drive if driven else None,
            offset=constant if offset else None,
            residual_gram=about.residual_gram(np.vstack([weights, np.zeros(r)])),
            state_gram=gram[:r, :r],
            noise=floor * self.multiplied[:r],
            error=error,
            mean_error=mean_error if offset or shift.any() else 0.0,
            dependence=equations.dependence(constant_below) if driven else 0.0,
        )

    def need_qr(self, step: LinearStep) -> bool:
        """Return whether `read_by_qr` would give more digits of the step than these sums of products."""
        if self.is_final:
            return False
        if self.units.rounding > EPS:
            return step.mean_error > DOUBTED_FROM
        return step.mean_error > GRAM_TOLERANCE or step.error > DOUBTED_FROM

    def doubt_of_digits(self, step: LinearStep, *, of_moments: bool) -> str | None:
        """Return a warning if rounding of products or of means leaves few digits of the operator."""
        units, error = self.units, step.mean_error
        # Rounding of products counts where the states, or those of some units, are rounded more finely than these.
        if units.rounding <= EPS or units.differ or units.variation < SMALL_VARIATION:
            error = max(error, step.error)
        if error <= DOUBTED_FROM:
            return None
        remedy = "scale the columns alike, and leave out those that nearly repeat others"
        if of_moments:
            remedy = "pass the states, which are then read again, or take a constant near the mean off before recording"
        digits = f"about {math.floor(-math.log10(error))} digits" if error < 0.1 else "no digits"
        return f"rounding leaves {digits} of the operator (relative error {error:.0e}); {remedy}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Units:
    """Mean, energy and rounding of the units, from which the digits of their Gram matrix follow."""

    mean: Float[Array, " d"]
    squares: Float[Array, " d"]
    """Σ h² of each unit."""
    rounding: float
    differ: bool
    """Whether the energies of the units are far apart."""
    variation: float
    """Root of the fraction of the energy that is not the mean's."""

    @staticmethod
    def of(sums: Any, squares: AnyArray) -> "Units":
        """Make it from Σ h² of each unit, and `Moments` or what else has the number and the sum of the states."""
        squares = as_numpy(squares).copy()  # of a diagonal, which may be overwritten
        mean, energy = as_numpy(sums.sum_h) / sums.states, float(np.sum(squares))
        of_mean = sums.states * float(mean @ mean) / energy if energy else 1.0
        return Units(
            mean=mean,
            squares=squares,
            rounding=sums.rounding,
            differ=units_differ(squares),
            variation=max(0.0, 1 - of_mean) ** 0.5,
        )

    @property
    def norm(self) -> float:
        """|H|, the root of the sum of all squares."""
        return float(np.sum(self.squares)) ** 0.5

    def about(self, kind: BasisKind) -> Float[Array, " d"]:
        """Return the point about which the directions of the basis explain variation."""
        return self.mean if kind.is_centred else np.zeros_like(self.mean)


def read_twice(states: States, request: Request) -> PairsInBasis:
    """Read the basis from HᵀH alone, then moments of the pairs in it: products of d × r instead of d × d."""
    if states.values.shape[0] == len(states):
        Moments(sequences=len(states), states=len(states)).require_pairs()
    sums = state_gram(states)
    units, gram = Units.of(sums, sums.hh.diagonal()), sums.hh
    if request.kind.is_centred:
        gram = centre_in_place(gram, sums.sum_h, sums.states)
    svd = svd_from_gram(gram, norm=units.norm, rounding=units.rounding, largest=request.largest)
    del sums, gram  # frees d × d numbers before the second reading
    if request.is_too_coarse(svd, units):
        return read_once(states, request)
    basis = choose_basis(request.kind, request.rank, svd, units.about(request.kind))
    # With an offset the regression is about the means, in any basis.
    centre = units.mean if request.offset else units.about(request.kind)
    projection = Projection(matrix=basis.vectors, mean=centre)
    moments: Any = moments_of(states, inputs=request.driven, projection=projection).numpy()
    return PairsInBasis.of_moments(moments, driven=request.driven, basis=basis, centre=centre, units=units)


def read_once(source: States | Moments, request: Request) -> PairsInBasis:
    """Read basis and pairs from one set of moments; from the states themselves if these are too coarse."""
    first: Any = source if isinstance(source, Moments) else moments_of(source, inputs=request.driven)
    first.require_pairs()
    units, gram = Units.of(first, first.hh.diagonal()), first.hh
    if request.kind.is_centred:
        gram = centre_in_place(gram + 0, first.sum_h, first.states)
    if units.differ:
        # Scaled to equal energy, the Gram matrix shows small units that an eigenvalue solver, which is exact relative
        # to the largest unit only, would lose.
        factor = factor_of_gram(as_numpy(gram), units.squares)
        svd = svd_from_factor(factor, squares=units.squares, rounding=units.rounding)
    else:
        svd = svd_from_gram(gram, norm=units.norm, rounding=units.rounding, largest=request.largest)
    if isinstance(source, States) and request.is_too_coarse(svd, units):
        return read_by_qr(source, request, first)
    basis = choose_basis(request.kind, request.rank, svd, units.about(request.kind))
    doubts = _doubts_of_directions(svd, units, request, of_moments=source is first, rank=len(basis.explained))
    if not request.ridge and not request.kind.is_from_data:
        # A basis from the data keeps large and small directions apart; another one may hide small ones.
        gram, squares = as_numpy(first.xx), as_numpy(first.xx.diagonal())
        if request.offset:
            total = as_numpy(first.sum_x)
            gram = centred(gram, total, total, first.pairs)
        floor = noise_floor(len(gram), units.rounding)
        rounded = np.sqrt(squares @ basis.vectors**2)  # products of units are rounded relative to these
        doubts += _doubt_of_basis(factor_of_gram(gram, squares, noise=floor) @ basis.vectors, rounded, floor=floor)
    return PairsInBasis.of_moments(
        first.in_basis(basis.vectors),
        driven=request.driven,
        multiplied=as_numpy(first.hh.diagonal()) @ basis.vectors**2,
        basis=basis,
        centre=np.zeros_like(units.mean),
        units=units,
        doubts=doubts,
        first=first,
    )


def _unit_sums(block: Block) -> StateGram:
    """Return the sums of a block with the diagonal of HᵀH in place of the matrix."""
    h = block.values
    squares = as_numpy(row_products(h.T, h.T))
    return StateGram(states=len(h), rounding=block.rounding, sum_h=as_numpy(h.sum(0)), hh=squares)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _AlongSums(Additive):
    """Moments of coordinates, and what the regression of the states on them needs."""

    moments: Moments
    cross: Float[Array, "d k"]
    """HᵀZ for states about the centre."""
    energy: float
    """|H|²"""


class _AlongProducts:
    """Accumulates `_AlongSums`: products of d × k, none of d × d."""

    needs_pairs = True

    def __init__(self, projection: Projection) -> None:
        self._projection, self._pairs = projection, PairProducts()
        self._cross, self._energy = np.zeros_like(projection.matrix), 0.0

    def add(self, block: Block) -> None:
        """Add a block; its rows are overwritten."""
        z = self._projection.of(block.values)  # the rows are then those about the centre
        self._cross += as_numpy(block.values.T @ z)
        self._energy += float(row_products(block.values, block.values).sum())
        self._pairs.add(replace(block, values=z))

    def add_cut(self, cut: Cut) -> None:
        """Add pairs that the end of a block separates."""
        before, after = self._projection.of(cut.before), self._projection.of(cut.after)
        self._pairs.add_cut(replace(cut, before=before, after=after))

    def result(self) -> _AlongSums:
        """Return the sums, on the host."""
        return _AlongSums(moments=self._pairs.result().numpy(), cross=self._cross, energy=self._energy)


def read_along(states: States, request: Request) -> PairsInBasis:
    """Read pairs along the user's directions, and the regression of the states on the coordinates, for many units.

    One pass takes the means of the units, another the coordinates about them, so that products lose no digits to the
    means. Moments of whole states would take five d × d matrices: 400 GB for 100,000 units.
    """
    sums, kind = accumulate(states, partial(SumOverBlocks, _unit_sums), what="means"), request.kind
    units = Units.of(sums, sums.hh)
    if not np.isfinite(units.norm):
        refuse_not_finite(states, inputs=False)
    vectors, centre = checked_directions(kind.own, states.dim), units.about(kind)
    make = partial(_AlongProducts, Projection(matrix=vectors, mean=centre))
    found = accumulate(states, make, inputs=request.driven, what="coordinates")
    moments = found.moments
    moments.sequences = number_of_all_ranks(len(states))
    moments.require_pairs()
    require_finite_squares(states, moments.hh, moments.uu)
    require_variation(found.energy**0.5 > ROUNDINGS * units.rounding * units.norm)
    factor = factor_of_gram(moments.hh, moments.hh.diagonal())
    rows = np.linalg.lstsq(factor.T, found.cross.T)[0]
    basis = own_basis(kind, request.rank, centre, vectors, factor=factor, rows=rows, energy=found.energy)
    moments = moments.in_basis(np.eye(len(factor))[:, : len(basis.explained)])
    return PairsInBasis.of_moments(
        moments, driven=request.driven, basis=basis, centre=centre, units=units, is_final=True
    )


# The fallback


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Factors(Additive):
    """Rows F with the FᵀF of the rows (1, h) of all states and (1, x, u, y) of all pairs."""

    states: Float[Array, "a d1"]
    pairs: Float[Array, "b q"]
    ADDED_BY: ClassVar = dict.fromkeys(("states", "pairs"), lambda *parts: _joined(*parts))


def _joined(*parts: Float[Array, "_ q"]) -> Float[Array, "m q"]:
    """Stack rows, and factorise them once rows outnumber columns several times: each QR repeats the last factor."""
    rows: Any = np.concatenate(parts)
    if len(rows) > 4 * rows.shape[1]:
        rows = np.linalg.qr(rows, mode="r")
    return rows


def _factors(centre: Float[Array, " d"], input_mean: Float[Array, " p"] | None, part: Block | Cut) -> _Factors:
    """Return rows of states and pairs of a block about their means; at a cut of pairs alone: its states are counted."""
    if isinstance(part, Block):
        x, at, inputs = as_numpy(part.values) - centre, part.before, part.inputs
        states, before, after = x, x[at], x[at + 1]
        inputs = None if inputs is None else as_numpy(inputs)[at + 1]
    else:
        before, after, inputs = as_numpy(part.before) - centre, as_numpy(part.after) - centre, part.inputs
        states = before[:0]
    read = [] if input_mean is None else [as_numpy(inputs) - input_mean]
    pairs = np.hstack([np.ones((len(before), 1)), before, *read, after])
    return _Factors(states=_joined(np.hstack([np.ones((len(states), 1)), states])), pairs=_joined(pairs))


def read_by_qr(states: States, request: Request, first: Any) -> PairsInBasis:
    """Read basis and pairs from triangular factors of the states and pairs, where moments are too coarse.

    Rows (1, h − c) = Q R have the singular values of R and the inner products of RᵀR, and so have their projections
    onto any basis: R stands for the states with as few rows as columns. R is exact to the rounding of each column
    (Householder QR, Golub and Van Loan §5.2), where the Gram matrix is exact to the square of that. The column of ones
    gathers the mean in the first row, so that leaving that row out centres the rest exactly. ``first`` are the moments
    of the states, if they are known.
    """
    first = first or moments_of(states, inputs=request.driven)
    units, kind = Units.of(first, first.hh.diagonal()), request.kind
    # A regression with an offset is about the means of the pairs, not of all states.
    centre = as_numpy(first.sum_x) / first.pairs if request.offset else units.about(kind)
    input_mean = as_numpy(first.sum_u) / first.pairs if request.driven else None
    make = partial(SumOverBlocks, *2 * [partial(_factors, centre, input_mean)])
    factors = accumulate(states, make, inputs=request.driven, what="QR")
    of_states: Any
    of_pairs: Any
    of_states, of_pairs = (np.linalg.qr(rows, mode="r") for rows in (factors.states, factors.pairs))
    rows, d = of_states[1:, 1:], len(centre)
    factor = rows if kind.is_centred else np.vstack([_mean_row(of_states, centre, units), rows])
    svd = svd_from_factor(factor, squares=units.squares, rounding=units.rounding)
    basis = choose_basis(kind, request.rank, svd, units.about(kind))
    ones, before, after = of_pairs[:, :1], of_pairs[:, 1 : 1 + d], of_pairs[:, -d:]
    columns, target = np.hstack([before @ basis.vectors, of_pairs[:, 1 + d : -d], ones]), after @ basis.vectors
    squares, r = np.sum(columns[:, :-1] ** 2, axis=0), len(basis.explained)
    doubts = _doubts_of_directions(svd, units, request, of_moments=False, rank=r)
    if not request.ridge and (not kind.is_from_data or request.offset):
        seen = columns[1:, :r] if request.offset else columns[:, :r]
        doubts += _doubt_of_basis(seen, np.sqrt(squares[:r]), floor=noise_floor(d, units.rounding))
    return PairsInBasis(
        basis=basis,
        equations=NormalEquations(gram=columns.T @ columns, target=columns.T @ target, total=target.T @ target),
        centre=centre,
        multiplied=squares,
        variance=np.sum((rows @ basis.vectors) ** 2, axis=0) / first.states,
        units=units,
        inputs=first if request.driven else None,
        input_mean=input_mean if request.driven else 0.0,
        doubts=doubts,
        is_final=True,
    )


def _mean_row(triangle: Float[Array, "a d1"], centre: Float[Array, " d"], units: Units) -> Float[Array, " d"]:
    """Return the row of R that holds the mean, for states about zero instead of the centre."""
    row = triangle[0, 1:] + triangle[0, 0] * centre
    # A mean is good to some roundings: a part of it that is as small, in directions in which no state varies, is noise.
    _, values, varying = np.linalg.svd(triangle[1:, 1:], full_matrices=False)
    varying = varying[values > 4 * len(row) * EPS * np.linalg.norm(row)]
    along = varying.T @ (varying @ row)
    return along if np.linalg.norm(row - along) <= MEAN_ROUNDINGS * EPS * units.norm else row


# What to warn of


def _doubts_of_directions(
    svd: StateSVD, units: Units, request: Request, *, of_moments: bool, rank: int
) -> tuple[str, ...]:
    """Return warnings if directions of the states were left out as rounding noise and may be real."""
    is_cut = request.rank.count is not None or (request.kind.is_from_data and rank < svd.resolved)
    live = int(np.sum(units.squares > 0))
    if is_cut or svd.resolved >= live:
        return ()
    if of_moments and units.rounding <= EPS:
        return (
            f"the moments resolve {svd.resolved} of {live} directions of the states above rounding, and smaller ones "
            "are left out if there are any; pass the states, which are then read again",
        )
    # Below √ε the variation is itself what rounding leaves of two sums.
    hardly = FEW_ROUNDINGS * ROUNDINGS * units.rounding / len(units.squares) ** 0.5
    if not request.kind.is_from_data or not EPS**0.5 < units.variation < hardly:
        return ()
    return (
        f"the states vary by {units.variation:.0e} of their size, which leaves about two digits or fewer of their "
        f"variation, and {live - svd.resolved} directions were left out as rounding noise; record the states in "
        "float64, or take a constant near their mean off first",
    )


def _doubt_of_basis(coordinates: Float[Array, "m r"], rounded: Float[Array, " r"], *, floor: float) -> tuple[str, ...]:
    """Return a warning if coordinates have directions that their products no longer show.

    Products are rounded relative to the norms ``rounded`` of the columns. Relative to these, directions are lost whose
    singular values are above rounding and have squares below ``floor``, the rounding of products.
    """
    singular = np.linalg.svd(coordinates / np.where(rounded > 0, rounded, 1.0), compute_uv=False)
    if not np.any((singular > 10 * coordinates.shape[1] * EPS) & (singular**2 <= floor)):
        return ()
    return (
        "the states have directions too small to be seen next to the others in this basis, and what belongs to them is "
        "lost; pass basis='svd' or basis='pca', or scale the units alike",
    )
