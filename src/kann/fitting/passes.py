"""Choose a basis and sum moments of pairs in it, in as few passes over the states as precision allows."""

import math
from dataclasses import dataclass

import numpy as np

from kann.backends.arrays import as_numpy
from kann.data.moments import Moments, StateGram, centre_in_place, centred, moments_of, state_gram
from kann.data.rows import Projection
from kann.data.states import States
from kann.fitting.basis import (
    GRAM_NOISE,
    ROUNDINGS,
    Basis,
    BasisKind,
    Rank,
    StateSVD,
    choose_basis,
    svd_from_coordinates,
    svd_from_gram,
    svd_from_scaled_gram,
    units_differ,
)
from kann.fitting.normal_equations import ColumnEnergies, LinearStep, noise_floor
from kann.typing import Array, Float

EPS = float(np.finfo(np.float64).eps)

GRAM_TOLERANCE = 1e-10
"""Relative error of C that the rounding of products, ε·(σ₁/σᵣ)², may cause before float64 states are read again."""

DOUBTED_FROM = 1e-6
"""Relative error of the operator from which a warning says so, and from which states of lower precision are read again
if the error comes from their mean."""

LOST_IN_BASIS = (
    "the states have directions too small to be seen beside the others in this basis, and what belongs to them is "
    "lost; pass basis='svd' or basis='pca', or scale the units alike"
)
"""What to warn of if `directions_are_lost`."""

SMALL_VARIATION = 1e-4
"""States of lower precision that vary by less than this fraction of their size may be exact, as whole numbers are: then
it is their products that are coarse."""

FEW_ROUNDINGS = 100
"""States that vary by less than so many times their noise floor have hardly two digits."""


def gram_is_too_coarse(svd: StateSVD, rank: Rank, *, norm: float, rounding: float, ridge: float) -> bool:
    """Whether float64 states have directions that their Gram matrix cannot give to `GRAM_TOLERANCE`.

    States of lower precision never do: their own rounding changes C by ε₃₂·σ₁/σᵣ, which is above ε₆₄·(σ₁/σᵣ)² as far
    down as they resolve anything. A ridge covers what the Gram matrix gets wrong if it is large enough.
    """
    if rounding > EPS:
        return False
    needed = min(rank.count or len(svd.values), len(svd.values))
    smallest = svd.values[needed - 1]
    return bool(EPS * norm**2 > GRAM_TOLERANCE * (smallest**2 + ridge))


def step_is_too_coarse(step: LinearStep, rounding: float) -> bool:
    """Whether another reading of the states, about their mean, would give more digits of the step."""
    if rounding > EPS:
        return step.mean_error > DOUBTED_FROM
    return step.mean_error > GRAM_TOLERANCE or step.error > DOUBTED_FROM


def directions_are_lost(
    gram: Float[Array, "k k"], squares: Float[Array, " k"], matrix: Float[Array, "k r"], *, floor: float
) -> bool:
    """Whether coordinates Z have directions that the products of Z @ matrix no longer show.

    ``gram`` is ZᵀZ, perhaps about a mean, and ``squares`` are the energies relative to which it is rounded. A factor
    of it shows singular values of Z @ matrix whose squares are below ``floor``, the rounding of the products.
    """
    scale = np.sqrt(np.where(squares > 0, squares, 1.0))
    values, rotation = np.linalg.eigh(gram / scale[:, None] / scale)
    values = np.where(values > floor, values, 0.0)
    factor = np.sqrt(values)[:, None] * (rotation.T @ (scale[:, None] * matrix))
    norms = np.linalg.norm(scale[:, None] * matrix, axis=0)
    singular = np.linalg.svd(factor / np.where(norms > 0, norms, 1.0), compute_uv=False)
    return bool(np.any((singular > 10 * len(gram) * EPS) & (singular**2 <= floor)))


def doubt_of_digits(step: LinearStep, *, is_fine: bool, of_moments: bool) -> str | None:
    """What to warn of if rounding of products or of means leaves few digits of the operator.

    ``is_fine`` says that the states themselves are better than that, so that it is not their own rounding that counts.
    """
    error = step.mean_error
    if is_fine:
        error = max(error, step.error)
    if error <= DOUBTED_FROM:
        return None
    remedy = "scale the columns alike, and leave out those that nearly repeat others"
    if of_moments:
        remedy = "pass the states, which are then read again, or take a constant near the mean off before recording"
    digits = "no digits"
    if error < 0.1:
        digits = f"about {math.floor(-math.log10(error))} digits"
    return f"rounding leaves {digits} of the operator (relative error {error:.0e}); {remedy}"


def doubt_of_moments(svd: StateSVD, squares: Float[Array, " d"]) -> str | None:
    """What to warn of if moments of float64 states hide directions that these may have."""
    live = int(np.sum(squares > 0))
    if svd.resolved >= live:
        return None
    return (
        f"the moments tell {svd.resolved} of {live} directions of the states from rounding, and left out smaller ones "
        "if there are any; pass the states, which are then read again"
    )


def doubt_of_variation(svd: StateSVD, squares: Float[Array, " d"], *, variation: float, rounding: float) -> str | None:
    """What to warn of if directions were left out of states that hardly vary, as a fraction of their size."""
    left_out = int(np.sum(squares > 0)) - svd.resolved
    # Below √ε the variation is itself what rounding leaves of two sums.
    if left_out <= 0 or not EPS**0.5 < variation < FEW_ROUNDINGS * ROUNDINGS * rounding / len(squares) ** 0.5:
        return None
    return (
        f"the states vary by {variation:.0e} of their size, which leaves about two digits or fewer of their variation, "
        f"and {left_out} directions were left out as rounding noise; record the states in float64, or take a constant "
        "near their mean off first"
    )


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
        """How many of the largest singular vectors suffice; None for all of them."""
        if self.kind.is_from_data:
            return self.rank.count
        return None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PairsInBasis:
    """A basis, and moments of the pairs in coordinates along it."""

    basis: Basis
    moments: Moments
    shift: Float[Array, " r"]
    """What is still to be taken off the coordinates; zero where the moments are about the mean that the basis has."""
    energies: ColumnEnergies
    """How coarsely the products of coordinates and inputs are rounded."""
    input_mean: Float[Array, " p"] | None
    """What was taken off the inputs before they were multiplied; None for nothing."""
    is_fine: bool
    """Whether the states are rounded more finely than their products, which then decide how many digits are right."""
    doubts: tuple[str, ...] = ()
    """What to warn of if these pairs are used."""
    first: Moments | None = None
    """The moments of the states themselves, if they were measured."""
    is_final: bool = False
    """Whether another reading would not give more digits."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Units:
    """What is known of the units from their Gram matrix, before a basis is chosen."""

    mean: Float[Array, " d"]
    squares: Float[Array, " d"]
    """Σ h² of each unit."""
    rounding: float
    differ: bool
    """Whether the energies of the units are far apart."""
    variation: float
    """Root of the fraction of the energy that is not the mean's."""

    @staticmethod
    def of(moments: Moments | StateGram) -> "_Units":
        squares = as_numpy(moments.hh.diagonal()).copy()  # hh may be overwritten
        mean, energy = as_numpy(moments.sum_h) / moments.states, float(np.sum(squares))
        variation = 0.0
        if energy:
            variation = max(0.0, 1 - moments.states * float(mean @ mean) / energy) ** 0.5
        return _Units(
            mean=mean,
            squares=squares,
            rounding=moments.rounding,
            differ=units_differ(squares),
            variation=variation,
        )

    @property
    def norm(self) -> float:
        """|H|, the root of the sum of all squares."""
        return float(np.sum(self.squares)) ** 0.5

    @property
    def is_fine(self) -> bool:
        """Whether the states, or those of some units, are rounded more finely than the sums of their products."""
        return self.rounding <= EPS or self.differ or self.variation < SMALL_VARIATION

    def mean_of_basis(self, kind: BasisKind) -> Float[Array, " d"]:
        """What is taken off a state before it is projected."""
        if kind.is_centred:
            return self.mean
        return np.zeros_like(self.mean)

    def energies(
        self, basis: Basis, coordinates: Moments, matrix: Float[Array, "k r"], *, inputs: Moments | None
    ) -> ColumnEnergies:
        """Of the basis' coordinates ``z @ matrix``, where z have these moments, and of ``inputs`` as stored."""
        stored = multiplied = self.squares @ basis.vectors**2
        if matrix is not basis.vectors:
            multiplied = as_numpy(coordinates.hh.diagonal()) @ matrix**2
        found = ColumnEnergies.of(multiplied, stored=stored, rounding=self.rounding)
        if inputs is None:
            return found
        multiplied, stored = as_numpy(coordinates.uu.diagonal()), as_numpy(inputs.uu.diagonal())
        return found.and_inputs(ColumnEnergies.of(multiplied, stored=stored, rounding=inputs.input_rounding))


def read_twice(states: States, request: Request) -> PairsInBasis:
    """The basis from HᵀH alone, then moments of the pairs in it: products of d × r, where others are of d × d."""
    svd, units = _svd_in_place(states, request)
    if gram_is_too_coarse(svd, request.rank, norm=units.norm, rounding=units.rounding, ridge=request.ridge):
        return read_once(states, request)
    centre = mean = units.mean_of_basis(request.kind)
    if request.offset:  # a regression about the means, whatever the basis
        centre = units.mean
    basis = choose_basis(request.kind, request.rank, svd, mean)
    projection = Projection(matrix=basis.vectors, mean=centre)
    moments = moments_of(states, inputs=request.driven, projection=projection).numpy()
    inputs = None
    if request.driven:
        inputs = moments
    return PairsInBasis(
        basis=basis,
        moments=moments,
        shift=(request.kind.zero(units.mean) - centre) @ basis.vectors,
        energies=units.energies(basis, moments, np.eye(len(basis.explained)), inputs=inputs),
        input_mean=None,
        is_fine=units.is_fine,
    )


def _svd_in_place(states: States, request: Request) -> tuple[StateSVD, _Units]:
    """SVD of the states, and their units. The d × d matrices it needs are freed when it returns."""
    if states.values.shape[0] == len(states):
        Moments(sequences=len(states), states=len(states)).require_pairs()
    found = state_gram(states)
    units, gram = _Units.of(found), found.hh
    if request.kind.is_centred:
        gram = centre_in_place(gram, found.sum_h, found.states)
    return svd_from_gram(gram, norm=units.norm, rounding=units.rounding, largest=request.largest), units


def read_once(source: States | Moments, request: Request) -> PairsInBasis:
    """Basis and pairs from one set of moments. Where these are too coarse, states are read again."""
    first = source
    if isinstance(first, States):
        first = moments_of(first, inputs=request.driven)
    first.require_pairs()
    units = _Units.of(first)
    svd = _svd_of_moments(first, units, request)
    if isinstance(source, States) and gram_is_too_coarse(
        svd, request.rank, norm=units.norm, rounding=units.rounding, ridge=request.ridge
    ):
        return read_in_orthonormal_coordinates(source, request, first)
    mean = units.mean_of_basis(request.kind)
    basis = choose_basis(request.kind, request.rank, svd, mean)
    inputs = None
    if request.driven:
        inputs = first
    return PairsInBasis(
        basis=basis,
        moments=first.in_basis(basis.vectors),
        shift=request.kind.zero(units.mean) @ basis.vectors,
        energies=units.energies(basis, first, basis.vectors, inputs=inputs),
        input_mean=None,
        is_fine=units.is_fine,
        doubts=_doubts(svd, first, basis.vectors, units, request, of_moments=source is first),
        first=first,
    )


def _svd_of_moments(moments: Moments, units: _Units, request: Request) -> StateSVD:
    gram = moments.hh
    if request.kind.is_centred:
        gram = centre_in_place(gram + 0, moments.sum_h, moments.states)
    if units.differ:
        return svd_from_scaled_gram(as_numpy(gram), squares=units.squares, rounding=units.rounding)
    return svd_from_gram(gram, norm=units.norm, rounding=units.rounding, largest=request.largest)


def read_in_orthonormal_coordinates(states: States, request: Request, first: Moments | None) -> PairsInBasis:
    """Basis and pairs from coordinates in which the states are nearly orthonormal, and inputs about their mean.

    A Gram matrix there is as exact as a QR factor. This is QR by Cholesky: one reading of the states gives coordinates
    good to σ/σ₁ ≈ 1e-7, the next one to 1e-14. A Householder QR of all pairs would do it in one reading, at some
    twenty times the cost of these products. ``first`` are the moments of the states themselves, if they are known.
    """
    if first is None:
        first = moments_of(states, inputs=request.driven)
    units, input_mean, inputs = _Units.of(first), None, None
    centre = mean = units.mean_of_basis(request.kind)
    if request.offset:  # a regression about the means of what is read off: of x and u, not of all states
        centre = as_numpy(first.sum_x) / first.pairs
    if request.driven:
        inputs, input_mean = first, as_numpy(first.sum_u) / first.pairs
    gram = first.hh + 0
    if centre.any():
        gram = centre_in_place(gram, first.sum_h, first.states)
    svd = svd_from_gram(gram, norm=units.norm, rounding=EPS)
    floor = np.sqrt(GRAM_NOISE) * units.norm
    for reading in (1, 2):
        if reading == 2:
            floor = GRAM_NOISE * svd.values[0]
        width = np.maximum(svd.values, floor)
        back = width[:, None] * svd.vectors.T  # from coordinates to states
        projection = Projection(matrix=svd.vectors / width, mean=centre, input_mean=input_mean)
        moments = moments_of(states, inputs=request.driven, projection=projection).numpy()
        svd = svd_from_coordinates(moments.hh, back=back, squares=units.squares, rounding=units.rounding)
        if not svd.resolved or EPS * floor**2 < GRAM_TOLERANCE * svd.values[svd.resolved - 1] ** 2:
            break
    if request.offset and request.kind.is_centred:
        variation = centred(moments.hh, moments.sum_h, moments.sum_h, moments.states)
        svd = svd_from_coordinates(variation, back=back, squares=units.squares, rounding=units.rounding)
    elif request.offset:
        svd = _svd_about_zero(moments, back, centre, units, svd)
    basis = choose_basis(request.kind, request.rank, svd, mean)
    matrix = back @ basis.vectors
    return PairsInBasis(
        basis=basis,
        moments=moments.in_basis(matrix),
        shift=(request.kind.zero(units.mean) - centre) @ basis.vectors,
        energies=units.energies(basis, moments, matrix, inputs=inputs),
        input_mean=input_mean,
        is_fine=units.is_fine,
        doubts=_doubts(svd, moments, matrix, units, request, is_final=True),
        is_final=True,
    )


def _svd_about_zero(
    moments: Moments, back: Float[Array, "d d"], centre: Float[Array, " d"], units: _Units, svd: StateSVD
) -> StateSVD:
    """SVD of states H = Z @ back + centre: of their variation, and below it a row for their mean.

    ``svd`` is that of H − centre.
    """
    n = moments.states
    variation = centred(moments.hh, moments.sum_h, moments.sum_h, n)
    row = np.sqrt(n) * (centre + moments.sum_h / n @ back)
    # A mean is good to some roundings: a part of it that is as small, in directions in which no state varies, is noise.
    idle = svd.vectors[:, svd.resolved :]
    noise = idle @ (idle.T @ row)
    if np.linalg.norm(noise) <= MEAN_ROUNDINGS * EPS * units.norm:
        row = row - noise
    return svd_from_coordinates(variation, back=back, squares=units.squares, rounding=units.rounding, row=row)


def _doubts(
    svd: StateSVD,
    coordinates: Moments,
    matrix: Float[Array, "k r"],
    units: _Units,
    request: Request,
    *,
    of_moments: bool = False,
    is_final: bool = False,
) -> tuple[str, ...]:
    """What to warn of if the states have directions that the basis' coordinates ``z @ matrix`` do not show."""
    found = []
    is_from_data = request.kind.is_from_data
    is_cut = request.rank.count is not None or (is_from_data and matrix.shape[1] < svd.resolved)
    if of_moments and units.rounding <= EPS and not is_cut:
        found.append(doubt_of_moments(svd, units.squares))
    elif is_from_data and not is_cut:
        found.append(doubt_of_variation(svd, units.squares, variation=units.variation, rounding=units.rounding))
    # A basis from the data has large and small directions apart, but not where an offset makes it about another point.
    if not request.ridge and (not is_from_data or (request.offset and is_final)):
        gram, squares = as_numpy(coordinates.xx), as_numpy(coordinates.xx.diagonal())
        if request.offset:
            total = as_numpy(coordinates.sum_x)
            gram = centred(gram, total, total, coordinates.pairs)
        if directions_are_lost(gram, squares, matrix, floor=noise_floor(len(gram), units.rounding)):
            found.append(LOST_IN_BASIS)
    return tuple(filter(None, found))
