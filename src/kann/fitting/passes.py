"""Choose a basis and sum the normal equations of pairs in it, in as few passes over the states as precision allows.

Usually one pass suffices: second moments of the states give the basis by their eigenvectors and the products of pairs
in it. A product of two columns is rounded relative to these two, so moments lose digits in two cases: directions whose
variance is below ε of the largest, and variation that is small beside the mean. Where that costs digits, `read_by_qr`
reads the states once more and factorises the pairs themselves, which squares nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from kann.backends.arrays import as_numpy, row_products
from kann.data.additive import Additive
from kann.data.moments import (
    Moments,
    PairProducts,
    centre_in_place,
    centred,
    moments_of,
    refuse_not_finite,
    require_finite_squares,
    state_gram,
)
from kann.data.reduction import Block, Cut, Projection, SumOverBlocks, accumulate, number_of_all_ranks
from kann.data.states import States
from kann.fitting.basis import (
    ROUNDINGS,
    Basis,
    BasisKind,
    Rank,
    StateSVD,
    choose_basis,
    factor_of_gram,
    own_basis,
    require_variation,
    svd_from_factor,
    svd_from_gram,
    units_differ,
)
from kann.fitting.normal_equations import ColumnEnergies, LinearStep, NormalEquations, noise_floor, regress
from kann.typing import AnyArray, Array, Float

EPS = float(np.finfo(np.float64).eps)

GRAM_TOLERANCE = 1e-10
"""Relative error of C that the rounding of products, ε·(σ₁/σᵣ)², may cause before float64 states are read again."""

DOUBTED_FROM = 1e-6
"""Relative error of the operator from which a warning says so, and from which states of lower precision are read again
if the error comes from their mean."""

SMALL_VARIATION = 1e-4
"""States of lower precision that vary by less than this fraction of their size may be exact, as whole numbers are: then
it is their products that are coarse."""

FEW_ROUNDINGS = 100
"""States that vary by less than so many times their noise floor have hardly two digits."""

MEAN_ROUNDINGS = 64
"""So many roundings a mean of all states may be off: sums of 10⁶ numbers, as numpy adds them, are good to about ten."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Request:
    """What is to be fitted."""

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
        """Whether float64 states have directions that their Gram matrix cannot give to `GRAM_TOLERANCE`.

        States of lower precision never do: their own rounding changes C by ε₃₂·σ₁/σᵣ, which is above ε₆₄·(σ₁/σᵣ)² as
        far down as they resolve anything. A ridge covers what the Gram matrix gets wrong if it is large enough.
        """
        if units.rounding > EPS:
            return False
        smallest = svd.values[min(self.rank.count or len(svd.values), len(svd.values)) - 1]
        return bool(EPS * units.norm**2 > GRAM_TOLERANCE * (smallest**2 + self.ridge))


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
    """`Moments` of the inputs as they are stored; None if autonomous."""
    input_mean: Float[Array, " p"] | None = None
    """Subtracted from the inputs before they were multiplied; None for nothing."""
    doubts: tuple[str, ...] = ()
    """Warnings to give if these pairs are used."""
    first: Moments | None = None
    """The moments of the states themselves, if they were measured."""
    is_final: bool = False
    """Whether `read_by_qr` could not improve on them."""

    @staticmethod
    def of_moments(
        moments: Any, *, driven: bool, multiplied: Any = None, inputs: Any = None, **arguments: Any
    ) -> "PairsInBasis":
        """From the moments of coordinates; ``inputs`` are those of the inputs, if they are others."""
        multiplied = moments.hh.diagonal() if multiplied is None else multiplied
        inputs = (inputs or moments) if driven else None
        if driven:
            multiplied = np.concatenate([multiplied, as_numpy(inputs.uu.diagonal())])
        return PairsInBasis(
            equations=NormalEquations.of_coordinates(moments, driven=driven),
            multiplied=multiplied,
            variance=np.diag(moments.hh) / moments.states - (moments.sum_h / moments.states) ** 2,
            inputs=inputs,
            **arguments,
        )

    def step(self, *, offset: bool, ridge: float) -> LinearStep:
        """The linear step that fits the pairs best."""
        stored = self.units.squares @ self.basis.vectors**2
        rounding = np.full(len(stored), self.units.rounding)
        if self.inputs is not None:
            squares = as_numpy(self.inputs.uu.diagonal())
            stored = np.concatenate([stored, squares])
            rounding = np.concatenate([rounding, np.full(len(squares), self.inputs.input_rounding)])
        return regress(
            self.equations,
            (self.basis.origin - self.centre) @ self.basis.vectors,
            energies=ColumnEnergies.of(self.multiplied, stored=stored, rounding=rounding),
            input_mean=self.input_mean,
            floor=noise_floor(len(stored), rounding.max()),
            offset=offset,
            ridge=ridge,
        )

    def need_qr(self, step: LinearStep) -> bool:
        """Whether `read_by_qr` would give more digits of the step than these sums of products."""
        if self.is_final:
            return False
        if self.units.rounding > EPS:
            return step.mean_error > DOUBTED_FROM
        return step.mean_error > GRAM_TOLERANCE or step.error > DOUBTED_FROM

    def doubt_of_digits(self, step: LinearStep, *, of_moments: bool) -> str | None:
        """A warning if rounding of products or of means leaves few digits of the operator."""
        error = max(step.mean_error, step.error) if self.units.is_fine else step.mean_error
        if error <= DOUBTED_FROM:
            return None
        remedy = "scale the columns alike, and leave out those that nearly repeat others"
        if of_moments:
            remedy = "pass the states, which are then read again, or take a constant near the mean off before recording"
        digits = f"about {math.floor(-math.log10(error))} digits" if error < 0.1 else "no digits"
        return f"rounding leaves {digits} of the operator (relative error {error:.0e}); {remedy}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Units:
    """What the Gram matrix says about the units before a basis is chosen."""

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
        """From Σ h² of each unit, and `Moments` or what else has the number and the sum of the states."""
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

    @property
    def is_fine(self) -> bool:
        """Whether the states, or those of some units, are rounded more finely than the sums of their products."""
        return self.rounding <= EPS or self.differ or self.variation < SMALL_VARIATION

    def about(self, kind: BasisKind) -> Float[Array, " d"]:
        """The point about which the directions of the basis explain variation."""
        return self.mean if kind.is_centred else np.zeros_like(self.mean)


def read_twice(states: States, request: Request) -> PairsInBasis:
    """The basis from HᵀH alone, then moments of the pairs in it: products of d × r, where others are of d × d."""
    svd, units = _svd_in_place(states, request)
    if request.is_too_coarse(svd, units):
        return read_once(states, request)
    basis = choose_basis(request.kind, request.rank, svd, units.about(request.kind))
    # With an offset the regression is about the means, in any basis.
    centre = units.mean if request.offset else units.about(request.kind)
    projection = Projection(matrix=basis.vectors, mean=centre)
    moments: Any = moments_of(states, inputs=request.driven, projection=projection).numpy()
    return PairsInBasis.of_moments(moments, driven=request.driven, basis=basis, centre=centre, units=units)


def _svd_in_place(states: States, request: Request) -> tuple[StateSVD, Units]:
    """SVD of the states, and their units. The d × d matrices it needs are freed when it returns."""
    if states.values.shape[0] == len(states):
        Moments(sequences=len(states), states=len(states)).require_pairs()
    found = state_gram(states)
    units, gram = Units.of(found, found.hh.diagonal()), found.hh
    if request.kind.is_centred:
        gram = centre_in_place(gram, found.sum_h, found.states)
    return svd_from_gram(gram, norm=units.norm, rounding=units.rounding, largest=request.largest), units


def read_once(source: States | Moments, request: Request) -> PairsInBasis:
    """Basis and pairs from one set of moments; from the states themselves if these are too coarse."""
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
        inputs=first,
        basis=basis,
        centre=np.zeros_like(units.mean),
        units=units,
        doubts=doubts,
        first=first,
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _UnitSums(Additive):
    """Sums over the states, unit by unit."""

    states: int
    rounding: float
    sum_h: Float[Array, " d"]
    squares: Float[Array, " d"]
    ADDED_BY: ClassVar = {"rounding": max}

    @staticmethod
    def of_block(block: Block) -> "_UnitSums":
        h = block.values
        squares = as_numpy(row_products(h.T, h.T))
        return _UnitSums(states=len(h), rounding=block.rounding, sum_h=as_numpy(h.sum(0)), squares=squares)


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
        self._cross: Any = 0
        self._energy: Any = 0

    def add(self, block: Block) -> None:
        """Add a block; its rows are overwritten."""
        z = self._projection.of(block.values)  # the rows are then those about the centre
        self._cross += block.values.T @ z
        self._energy += row_products(block.values, block.values).sum()
        self._pairs.add(replace(block, values=z))

    def add_cut(self, cut: Cut) -> None:
        """Add pairs that the end of a block separates."""
        before, after = self._projection.of(cut.before), self._projection.of(cut.after)
        self._pairs.add_cut(replace(cut, before=before, after=after))

    def result(self) -> _AlongSums:
        """The sums, on the host."""
        cross = np.zeros_like(self._projection.matrix) + as_numpy(self._cross)  # 0 of a cut alone
        return _AlongSums(moments=self._pairs.result().numpy(), cross=cross, energy=float(self._energy))


def read_along(states: States, request: Request) -> PairsInBasis:
    """Pairs along the user's directions, and the regression of the states on the coordinates, for many units.

    One pass takes the means of the units, another the coordinates about them, so that products lose no digits to the
    means. Moments of whole states would take five d × d matrices: 400 GB for 100,000 units.
    """
    sums, kind = accumulate(states, partial(SumOverBlocks, _UnitSums.of_block), what="means"), request.kind
    units = Units.of(sums, sums.squares)
    if not np.isfinite(units.norm):
        refuse_not_finite(states, inputs=False)
    vectors, centre = kind.vectors(states.dim), units.about(kind)
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
class _Triangles(Additive):
    """Triangular factors of the rows (1, h) of all states and (1, x, u, y) of all pairs; those of two parts add up."""

    states: Float[Array, "a d1"]
    pairs: Float[Array, "b q"]
    ADDED_BY: ClassVar = dict.fromkeys(("states", "pairs"), lambda *parts: _triangle(parts))


def _triangle(rows: Sequence[Float[Array, "_ q"]]) -> Float[Array, "m q"]:
    found: Any = np.linalg.qr(np.concatenate(rows), mode="r")
    return found


class _QR:
    """Accumulates `_Triangles` of states about a centre, on the host."""

    needs_pairs = True

    def __init__(self, *, centre: Float[Array, " d"], input_mean: Float[Array, " p"] | None) -> None:
        self._centre, self._input_mean = centre, input_mean
        self._states: list[Array] = []
        self._pairs: list[Array] = []

    def add(self, block: Block) -> None:
        """Add the states of a block and the pairs inside it."""
        h, before = as_numpy(block.values), block.before
        inputs = None if block.inputs is None else as_numpy(block.inputs)[before + 1]
        self._add(self._states, h - self._centre)
        self._add_pairs(h[before], inputs, h[before + 1])

    def add_cut(self, cut: Cut) -> None:
        """Add pairs that the end of a block separates; their states are counted already."""
        inputs = None if cut.inputs is None else as_numpy(cut.inputs)
        self._add_pairs(as_numpy(cut.before), inputs, as_numpy(cut.after))

    def _add_pairs(self, x: Array, inputs: Any, y: Array) -> None:
        read = [] if self._input_mean is None else [inputs - self._input_mean]
        self._add(self._pairs, np.hstack([x - self._centre, *read, y - self._centre]))

    @staticmethod
    def _add(waiting: list[Array], rows: Array) -> None:
        """Factorise rows once there are some times as many as columns: each factorisation repeats the last factor."""
        waiting.append(np.hstack([np.ones((len(rows), 1)), rows]))
        if sum(map(len, waiting)) > 4 * waiting[0].shape[1]:
            waiting[:] = [_triangle(waiting)]

    def result(self) -> _Triangles:
        """The factors."""
        p = 0 if self._input_mean is None else len(self._input_mean)
        widths = 1 + len(self._centre), 1 + 2 * len(self._centre) + p
        parts = ([np.zeros((0, width)), *rows] for width, rows in zip(widths, (self._states, self._pairs), strict=True))
        states, pairs = map(_triangle, parts)
        return _Triangles(states=states, pairs=pairs)


def read_by_qr(states: States, request: Request, first: Any) -> PairsInBasis:
    """Basis and pairs from triangular factors of the states and pairs, for states whose moments are too coarse.

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
    found = accumulate(states, partial(_QR, centre=centre, input_mean=input_mean), inputs=request.driven, what="QR")
    rows, d = found.states[1:, 1:], len(centre)
    factor = rows if kind.is_centred else np.vstack([_mean_row(found.states, centre, units), rows])
    svd = svd_from_factor(factor, squares=units.squares, rounding=units.rounding)
    basis = choose_basis(kind, request.rank, svd, units.about(kind))
    ones, before, after = found.pairs[:, :1], found.pairs[:, 1 : 1 + d], found.pairs[:, -d:]
    columns, target = np.hstack([before @ basis.vectors, found.pairs[:, 1 + d : -d], ones]), after @ basis.vectors
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
        input_mean=input_mean,
        doubts=doubts,
        is_final=True,
    )


def _mean_row(triangle: Float[Array, "a d1"], centre: Float[Array, " d"], units: Units) -> Float[Array, " d"]:
    """The row of R that holds the mean, for states about zero instead of the centre."""
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
    """Warnings if directions of the states were left out as rounding noise and may be real."""
    is_cut = request.rank.count is not None or (request.kind.is_from_data and rank < svd.resolved)
    live = int(np.sum(units.squares > 0))
    if is_cut or svd.resolved >= live:
        return ()
    if of_moments and units.rounding <= EPS:
        return (
            f"the moments tell {svd.resolved} of {live} directions of the states from rounding, and left out smaller "
            "ones if there are any; pass the states, which are then read again",
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
    """A warning if coordinates have directions that their products no longer show.

    Products are rounded relative to the norms ``rounded`` of the columns. Relative to these, directions are lost whose
    singular values are above rounding and have squares below ``floor``, the rounding of products.
    """
    singular = np.linalg.svd(coordinates / np.where(rounded > 0, rounded, 1.0), compute_uv=False)
    if not np.any((singular > 10 * coordinates.shape[1] * EPS) & (singular**2 <= floor)):
        return ()
    return (
        "the states have directions too small to be seen beside the others in this basis, and what belongs to them is "
        "lost; pass basis='svd' or basis='pca', or scale the units alike",
    )
