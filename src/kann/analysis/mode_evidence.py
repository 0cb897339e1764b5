"""What folds of sequences say about each eigenpair: intervals, held-out residuals, and what moves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kann.analysis.cross_validation import Folded, LeftOut, angles_from, indistinct, subspace_angle
from kann.analysis.intervals import jackknife_error, student_width
from kann.analysis.trust_rule import LARGEST_TURN
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import NormalEquations
from kann.fitting.spectrum import quadratic_forms
from kann.typing import Array, Complex, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Intervals:
    """Confidence intervals of eigenvalues, by mode."""

    modulus: list[tuple[float, float]]
    angle: list[tuple[float, float]]
    errors: Float[Array, " m"]
    """Standard errors of the eigenvalues in the complex plane."""
    width: float
    """How many standard errors the intervals reach to each side."""

    @staticmethod
    def of(koopman: Koopman, fits: Sequence[LeftOut], *, level: float) -> "Intervals":
        """From the eigenvalues without each fold, which are matched to those of the operator."""
        first, second = ([mode.indices[place] for mode in koopman.modes] for place in (0, -1))
        whole = koopman.eigenvalues[first]
        values, conjugates = (np.array([fit.eigenvalues[places] for fit in fits]) for places in (first, second))
        width = float(student_width(level, len(fits) - 1))
        error = partial(jackknife_error, sizes=np.array([float(fit.design.pairs) for fit in fits]))
        modulus, angle = np.abs(whole), np.angle(whole)
        # Where eigenvalues meet, they change with the root of what changes in the operator, so that no standard error
        # of theirs tells how far they reach; but the square of half their gap changes smoothly.
        square_error = error(np.real((values - conjugates) ** 2 / 4), whole=-(np.imag(whole) ** 2))
        apart = _apart_if_real(whole, width * square_error)
        as_real, axis = np.abs(np.real(whole)), np.where(np.real(whole) < 0, np.pi, 0.0)
        return Intervals(
            modulus=_reaching(
                modulus,
                width * error(np.abs(values), whole=modulus),
                apart > 0,
                np.abs(as_real - apart),
                as_real + apart,
            ),
            angle=_reaching(angle, width * error(angles_from(values, whole), whole=angle), apart > 0, axis, axis),
            errors=np.hypot(error(np.real(values), whole=np.real(whole)), error(np.imag(values), whole=np.imag(whole))),
            width=width,
        )


def _apart_if_real(eigenvalues: Complex[Array, " m"], reach: Float[Array, " m"]) -> Float[Array, " m"]:
    """How far from their mean two eigenvalues may lie that were found as a pair but may be real; 0 if they cannot be.

    The square of half their gap is below zero for a pair and above zero for two real ones; ``reach`` is how far its
    interval reaches.
    """
    return np.sqrt(np.maximum(0.0, reach - np.imag(eigenvalues) ** 2))


def _reaching(
    centre: Float[Array, " m"], half_width: Float[Array, " m"], further: Array, *ends: Float[Array, " m"]
) -> list[tuple[float, float]]:
    """Intervals about centres; those marked ``further`` reach the ends too."""
    low, high = centre - half_width, centre + half_width
    low = np.where(further, np.minimum(low, ends[0]), low)
    high = np.where(further, np.maximum(high, ends[1]), high)
    return list(zip(low.tolist(), high.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOutResiduals:
    """Residuals on held-out folds, for each eigenvalue."""

    operator: Float[Array, " r"]
    copying: Float[Array, " r"]
    null: Float[Array, " r"]

    @staticmethod
    def of(koopman: Koopman, fits: Sequence[LeftOut]) -> "HeldOutResiduals":
        """Each fold is measured with the eigenvectors that were fitted without it."""
        r = koopman.rank
        offset = koopman.offset is not None
        missed, copied, shuffled, without_state, energy = np.zeros((5, r))
        for left_out in fits:
            about = left_out.rest.mean[:r] if offset else np.zeros(r)
            null_weights = left_out.rest.as_shuffled().weights(offset=offset, ridge=koopman.ridge, rounding=0.0)
            null_gram = left_out.design.as_shuffled().residual_gram(null_weights)
            missed += quadratic_forms(left_out.design.residual_gram(left_out.weights), left_out.right)
            copied += quadratic_forms(left_out.design.change_gram(), left_out.right)
            shuffled += quadratic_forms(null_gram, left_out.right)
            without_state += _missed_without_state(koopman, left_out)
            energy += quadratic_forms(left_out.design.state_gram(about), left_out.right)
        return HeldOutResiduals(
            operator=_root_of_ratio(missed, energy),
            copying=_root_of_ratio(copied, energy),
            null=_root_of_ratio(np.minimum(shuffled, without_state), energy),
        )


def _missed_without_state(koopman: Koopman, left_out: LeftOut) -> Float[Array, " r"]:
    """What the inputs of a driven operator miss of each mode if they predict it alone; infinite for others.

    Inputs that predict the next state by themselves, such as ones that contain it, leave nothing for the state to do.
    """
    if koopman.drive is None:
        return np.full(koopman.rank, np.inf)
    weights = left_out.rest.weights_without_state(ridge=koopman.ridge)
    return quadratic_forms(left_out.design.residual_gram(weights), left_out.right)


def _root_of_ratio(squares: Float[Array, " r"], energy: Float[Array, " r"]) -> Float[Array, " r"]:
    """√(squares / energy); infinite where there is no energy."""
    has_energy = energy > 0
    ratio = np.maximum(squares, 0.0) / np.where(has_energy, energy, 1.0)
    return np.where(has_energy, np.sqrt(ratio), np.inf)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Subspaces:
    """Modes that cannot be told apart, and how far their span moves."""

    of_mode: list[tuple[int, ...]]
    turn: list[float]

    @staticmethod
    def of(koopman: Koopman, total: NormalEquations, fits: Sequence[LeftOut], intervals: Intervals) -> "Subspaces":
        """Group modes that move too much alone and whose eigenvalues cannot be told apart; measure what moves.

        A direction that is steady needs no group, however close its eigenvalue is to others.
        """
        modes = koopman.modes
        factor = _root(total.state_gram())

        def turn_of(group: tuple[int, ...]) -> float:
            columns = [i for number in group for i in modes[number].indices]
            return subspace_angle(koopman.right[:, columns], [fit.right[:, columns] for fit in fits], factor)

        alone = np.array([turn_of((number,)) for number in range(len(modes))])
        of_mode, turn = [(number,) for number in range(len(modes))], alone.tolist()
        moving = np.flatnonzero(alone > LARGEST_TURN)
        values = np.array([modes[number].eigenvalue for number in moving], dtype=complex)
        for places in indistinct(values, intervals.errors[moving], width=intervals.width):
            group = tuple(moving[list(places)].tolist())
            angle = turn_of(group)
            if sum(len(modes[number].indices) for number in group) > koopman.rank / 2:
                angle = 90.0  # the span of nearly all modes cannot move, and says nothing about any of them
            for number in group:
                of_mode[number], turn[number] = group, angle
        return Subspaces(of_mode=of_mode, turn=turn)


def _root(gram: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """A matrix F with FᵀF = gram."""
    values, vectors = np.linalg.eigh(gram)
    return np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T


def variation_of(koopman: Koopman, total: NormalEquations) -> Float[Array, " r"]:
    """The fraction of each coefficient's energy that is variation; 1 if the fit has an offset, which takes the mean."""
    if koopman.offset is not None:
        return np.ones(koopman.rank)
    about_zero = quadratic_forms(total.state_gram(np.zeros(koopman.rank)), koopman.right)
    about_mean = quadratic_forms(total.state_gram(), koopman.right)
    return np.maximum(about_mean, 0.0) / np.where(about_zero > 0, about_zero, 1.0)


def dependence_on_inputs(koopman: Koopman, folded: Folded) -> float:
    """How much of some direction of the states the inputs tell, as R²."""
    if koopman.drive is None:
        return 0.0
    return folded.total.dependence()
