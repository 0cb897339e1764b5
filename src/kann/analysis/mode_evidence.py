"""Measure what folds of sequences say about each mode: intervals, held-out residuals, and directions that move."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from kann.analysis.cross_validation import Folds, own_weights
from kann.analysis.intervals import jackknife_error, jackknife_freedom, student_width
from kann.analysis.trust_rule import LARGEST_RESIDUAL, LARGEST_TURN
from kann.data.reduction import add_to
from kann.fitting.normal_equations import noise_floor, solve
from kann.fitting.spectrum import quadratic_forms
from kann.typing import Array, Complex, Float

SAME_TO = 1e-9
"""Differences of eigenvalues that may be rounding. Without noise, standard errors are rounding too."""

NO_RESIDUAL = 1e-8
"""Residuals of copying and of shuffled states below this are rounding."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Intervals:
    """Confidence intervals of eigenvalues, by mode."""

    modulus: list[tuple[float, float]]
    angle: list[tuple[float, float]]
    errors: Float[Array, " m"]
    """Standard errors of the eigenvalues in the complex plane."""
    width: Float[Array, " m"]
    """How many standard errors the intervals reach to each side."""
    may_be_real: Array
    """True for a pair that may as well be two real eigenvalues."""
    spread: Float[Array, " m"]
    """Standard errors in proportion to those of sequences that differ by the noise alone."""

    @staticmethod
    def of(folds: Folds, *, level: float) -> "Intervals":
        """Make it from the eigenvalues without each fold, which are matched to those of the operator."""
        first, second = ([mode.indices[place] for mode in folds.modes] for place in (0, -1))
        whole, without = folds.whole[0][first], np.array(folds.eigenvalues)
        values, conjugates = without[:, first], without[:, second]
        shares, noise = _information(folds, first)
        width = student_width(level, jackknife_freedom(shares))
        modulus, angle = np.abs(whole), np.angle(whole)
        # Where eigenvalues meet, they change with the root of what changes in the operator, so that no standard error
        # of theirs tells how far they reach; but the square of half their gap changes smoothly. It is below zero for a
        # pair and above zero for two real eigenvalues.
        square_error = jackknife_error(np.real((values - conjugates) ** 2 / 4))
        apart = np.sqrt(np.maximum(0.0, width * square_error - np.imag(whole) ** 2))
        as_real, axis = np.abs(np.real(whole)), np.where(np.real(whole) < 0, np.pi, 0.0)
        reach = width * jackknife_error(np.abs(values))
        errors = np.hypot(jackknife_error(np.real(values)), jackknife_error(np.imag(values)))
        return Intervals(
            modulus=_reaching(modulus, reach, apart > 0, np.abs(as_real - apart), as_real + apart),
            angle=_reaching(angle, width * jackknife_error(_angles_from(values, whole)), apart > 0, axis, axis),
            errors=errors,
            width=width,
            may_be_real=(apart > 0) & (np.imag(whole) != 0),
            spread=errors / np.maximum(noise, SAME_TO),
        )


def _information(folds: Folds, columns: Sequence[int]) -> tuple[Float[Array, "f m"], Float[Array, " m"]]:
    """Return each fold's share of the information on eigenvalues, and their errors if sequences differ by noise alone.

    To first order λ changes by w*Aᵀ R v for residuals R, where w are the weights with which the left eigenvector
    reads the equations. So w*AᵀA w is the information, and a sum over folds; times the variance of R v it is the
    variance of λ.
    """
    koopman, total = folds.koopman, folds.total
    about = total.centred() if koopman.offset is not None else total
    left = np.zeros((len(total.gram) - 1, len(columns)), dtype=complex)
    left[: koopman.rank] = folds.whole[2][columns].conj().T
    squares = np.diag(total.gram)[:-1]
    options: Any = {"squares": squares, "constant_below": 0 * squares, "floor": noise_floor(len(squares), 0.0)}
    parts = (solve(about.gram[:-1, :-1], take(left), ridge=koopman.ridge, **options)[0] for take in (np.real, np.imag))
    real, imaginary = parts
    # Padded by the weight of the constant, which takes the mean of each column off.
    wide = np.vstack([real + 1j * imaginary, np.zeros(len(columns))])
    if koopman.offset is not None:
        wide[-1] = -total.mean[:-1] @ wide[:-1]
    parts = np.array([np.maximum(quadratic_forms(design.gram, wide), 0.0) for design in folds.designs])
    information = parts.sum(axis=0)
    missed = np.real(np.diag(total.residual_gram(own_weights(koopman), folds.whole[1][:, columns]))) / total.pairs
    shares = parts / np.where(information > 0, information, 1.0)
    shares[:, information <= 0] = folds.sizes[:, None] / folds.sizes.sum()
    return shares, np.sqrt(information * np.maximum(missed, 0.0))


CLEARLY = 0.99
"""Confidence with which states two steps apart must contradict the eigenvalue of one step to be reported: of dozens of
modes some would at 95 %."""


def eigenvalues_two_steps_apart(folds: Folds, intervals: Intervals) -> list[tuple[float, bool]]:
    """Return for each mode |λ| with the state a step earlier as instrument, and whether the data agree with one |λ|.

    They do not where noise was added to recorded states, or where the next state depends on more than the coordinates
    at one step. From moments |λ| is NaN and counts as no contradiction.
    """
    first = [mode.indices[0] for mode in folds.modes]
    found = folds.instrumented(first) if first else None
    if found is None:
        return [(math.nan, True)] * len(first)
    whole, missed, kept = folds.whole[0][first], *(part.sum(axis=0) for part in found)
    # Differences of |λ|, to first order: of the whole and without each fold.
    turned = (whole / np.maximum(np.abs(whole), SAME_TO)).conj()
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.real(turned * missed / kept)
        without = np.real(turned * (missed - found[0]) / (kept - found[1]))
    error = jackknife_error(without)
    limit = SAME_TO + np.maximum(student_width(CLEARLY, len(without) - 1) * error, intervals.width * intervals.errors)
    modulus = np.abs(whole) + apart
    return [(float(m), not gap > most) for m, gap, most in zip(modulus, np.abs(apart), limit, strict=True)]


def _angles_from(eigenvalues: Complex[Array, "f m"], reference: Complex[Array, " m"]) -> Float[Array, "f m"]:
    """Return the angles of eigenvalues, each on the same turn as that of its reference: −π is next to π."""
    return np.angle(reference) + np.angle(eigenvalues * reference.conj())


def _reaching(
    centre: Float[Array, " m"], half_width: Float[Array, " m"], further: Array, *ends: Float[Array, " m"]
) -> list[tuple[float, float]]:
    """Return intervals about centres; those marked ``further`` reach the ends too."""
    low, high = centre - half_width, centre + half_width
    low = np.where(further, np.minimum(low, ends[0]), low)
    high = np.where(further, np.maximum(high, ends[1]), high)
    return list(zip(low.tolist(), high.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Block:
    """The operator on the invariant subspace of some modes, and the same without each fold.

    Where eigenvalues are equal, single eigenvectors are an accident of the noise, and eigenvalues move with its root;
    but their span, the operator on it and the mean of the eigenvalues are smooth functions of the data. The subspace
    has k orthonormal directions in the metric of the states, so that a unit vector is a function of variance one.
    """

    matrix: Complex[Array, "k k"]
    without: list[Complex[Array, "k k"]]
    vectors: list[Complex[Array, "r k"]]
    """The directions without each fold, turned such that they are as near as possible to those of the operator."""

    @staticmethod
    def of(
        eigenvalues: Complex[Array, " k"],
        right: Complex[Array, "r k"],
        fits: Sequence[tuple[Complex[Array, " k"], Complex[Array, "r k"]]],
        factor: Float[Array, "r r"],
    ) -> "Block | None":
        """Make it from eigenpairs of the operator and of the fits; None if the eigenvectors depend on each other."""
        directions, upper = np.linalg.qr(factor @ right)
        without, vectors = [], []
        try:
            # With V = Q R⁻¹ orthonormal and C V' = V' Λ for eigenvectors V' = Q, C acts on V as R Λ R⁻¹.
            matrix = _solved(upper.conj().T, (upper * eigenvalues).conj().T).conj().T
            for own_values, own in fits:
                q, r = np.linalg.qr(factor @ own)
                turned = _solved(r, q.conj().T @ directions)
                without.append(_solved(turned, own_values[:, None] * turned))
                vectors.append(own @ turned)
        except np.linalg.LinAlgError:
            return None
        return Block(matrix=matrix, without=without, vectors=vectors)

    @property
    def eigenvalue(self) -> complex:
        """The mean of the eigenvalues."""
        return complex(np.trace(self.matrix) / len(self.matrix))

    def error(self) -> float:
        """Return the standard error of all entries of the operator together."""
        replicates = np.array(self.without).reshape(len(self.without), -1)
        parts = (jackknife_error(take(replicates)) for take in (np.real, np.imag))
        return float(np.linalg.norm(list(parts)))

    def interval(self, width: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the intervals of the modulus and of the angle of the common eigenvalue."""
        values, whole = np.array([[np.trace(each) / len(each)] for each in self.without]), np.array([self.eigenvalue])
        ends = []
        for replicates, centre in ((np.abs(values), np.abs(whole)), (_angles_from(values, whole), np.angle(whole))):
            half = width * jackknife_error(replicates)
            ends.append((float((centre - half)[0]), float((centre + half)[0])))
        return (max(0.0, ends[0][0]), ends[0][1]), ends[1]


def _solved(matrix: Complex[Array, "k k"], target: Complex[Array, "k k"]) -> Complex[Array, "k k"]:
    if np.linalg.cond(matrix) > 1 / SAME_TO:
        raise np.linalg.LinAlgError
    return np.linalg.solve(matrix, target)


def held_out_residuals(folds: Folds, blocks: Sequence[Block]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Compute held-out residuals as fractions of the size: of each mode, and of the worst directions of blocks.

    Each fold is measured with the eigenvectors that were fitted without it. The names are those of `Evidence`.
    """
    first = [mode.indices[0] for mode in folds.modes]
    alone: dict[str, Any] = {}
    joint: list[dict[str, Any]] = [{} for _ in blocks]
    for fold, right in enumerate(folds.right):
        spans = [right[:, first], *(block.vectors[fold] for block in blocks)]
        for sums, grams in zip([alone, *joint], _held_out_grams(folds, fold, spans), strict=True):
            for name, gram in grams.items():
                add_to(sums, name, np.real(np.diag(gram)).copy() if sums is alone else gram)
    energy = alone.pop("energy")
    ratios = {name: np.maximum(own, 0.0) / np.where(energy > 0, energy, 1.0) for name, own in alone.items()}
    roots = {name: np.where(energy > 0, np.sqrt(ratio), np.inf) for name, ratio in ratios.items()}
    null = np.minimum(roots["shuffled"], roots.get("inputs", np.inf))
    rows = np.stack([roots["missed"], roots["copied"], null], axis=1).tolist()
    return [dict(zip(MEASURED, row, strict=True)) for row in rows], [_worst(sums) for sums in joint]


MEASURED: tuple[str, ...] = ("residual", "copying", "null")
"""Fields of `Evidence` that are measured on held-out sequences."""


def _held_out_grams(
    folds: Folds, fold: int, spans: Sequence[Complex[Array, "r _"]]
) -> list[dict[str, Complex[Array, "_ _"]]]:
    """Return Gram matrices of what several predictions miss of a fold, and of its states, along each of some spans."""
    koopman, design, rest = folds.koopman, folds.designs[fold], folds.rests[fold]
    offset = koopman.offset is not None
    about = rest.mean[: koopman.rank] if offset else np.zeros(koopman.rank)
    null = rest.as_shuffled().weights(offset=offset, ridge=koopman.ridge, rounding=0.0)
    shuffled, states, change = design.as_shuffled(), design.state_gram(about), design.change_gram()
    grams: dict[str, Any] = {
        "missed": lambda span: design.residual_gram(folds.weights[fold], span),
        "copied": lambda span: span.conj().T @ (change @ span),
        "shuffled": lambda span: shuffled.residual_gram(null, span),
        "energy": lambda span: span.conj().T @ (states @ span),
    }
    if koopman.drive is not None:
        # Inputs that predict the next state by themselves, such as ones that contain it, leave nothing for the state.
        inputs = rest.weights_without_state(ridge=koopman.ridge)
        grams["inputs"] = lambda span: design.residual_gram(inputs, span)
    return [{name: gram(span) for name, gram in grams.items()} for span in spans]


def _worst(sums: dict[str, Complex[Array, "k k"]]) -> dict[str, float]:
    """Return the residual of the direction of a block that is missed most, and what copying and the null miss.

    Every direction must pass the rule, and each comparison has its own worst direction: the one in which the ratio of
    two quadratic forms is largest, a generalised eigenvalue. So copying and the null are scaled such that their ratio
    to the residual is the worst one.
    """
    energy, unknown = sums["energy"], dict.fromkeys(MEASURED, math.inf)
    if np.linalg.eigvalsh(energy)[0] <= 0:
        return unknown
    rounding = NO_RESIDUAL**2 * energy

    def worst_ratio(other: Complex[Array, "k k"]) -> float:
        return math.sqrt(max(0.0, float(scipy.linalg.eigh(sums["missed"], other, eigvals_only=True)[-1])))

    try:
        residual = worst_ratio(energy)
        to_copying = worst_ratio(sums["copied"] + rounding)
        to_null = max(worst_ratio(sums[name] + rounding) for name in ("shuffled", "inputs") if name in sums)
    except np.linalg.LinAlgError:  # the other form is not positive, up to rounding: nothing can be compared
        return unknown
    against = [residual / max(ratio, NO_RESIDUAL) for ratio in (to_copying, to_null)]
    return dict(zip(MEASURED, [residual, *against], strict=True))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Group:
    """Indistinct modes, and how far their span moves."""

    modes: tuple[int, ...]
    turn: float
    """In degrees; 90 if the span holds most of the modes, so that it cannot move, whatever the modes are."""
    block: Block | None
    """The operator on their span if all of it remembers equally long; None if its directions differ."""
    fills: bool
    """True if the span holds most of the modes."""


def groups_of(folds: Folds, intervals: Intervals) -> tuple[Float[Array, " m"], list[Group]]:
    """Return how far each mode's direction moves, and the groups of modes that are to be read together.

    A group are modes with indistinct eigenvalues, some of which move alone, or a pair that may be two real
    eigenvalues. Unless all of a group are equal, a direction that is steady needs no group.
    """
    modes = folds.modes
    # A matrix F with FᵀF = XᵀX: directions are compared as functions of the states, not of the units.
    energy, directions = np.linalg.eigh(folds.total.state_gram())
    factor = np.sqrt(np.maximum(energy, 0.0))[:, None] * directions.T
    whole, others = factor @ folds.whole[1], [factor @ right for right in folds.right]
    turn = np.zeros(len(modes))
    for size in (1, 2):
        numbers = [number for number, mode in enumerate(modes) if len(mode.indices) == size]
        columns = np.array([modes[number].indices for number in numbers], dtype=int).reshape(-1, size)
        turn[numbers] = subspace_angles(
            np.moveaxis(whole[:, columns], 1, 0), [np.moveaxis(other[:, columns], 1, 0) for other in others]
        )
    needs_group = (turn > LARGEST_TURN) | intervals.may_be_real
    values = np.array([mode.eigenvalue for mode in modes], dtype=complex)
    reach = intervals.width * intervals.errors

    def group_of(numbers: Array) -> Group:
        columns = [i for number in numbers for i in modes[number].indices]
        fills = len(columns) > folds.koopman.rank / 2
        span_turn = 90.0 if fills else float(subspace_angles(whole[:, columns], [each[:, columns] for each in others]))
        block = _equal_memories(folds, numbers, intervals, factor)
        names = tuple(folds.numbers[place] for place in numbers.tolist())
        return Group(modes=names, turn=span_turn, block=block, fills=fills)

    found = []
    for alike in indistinct(values, reach):
        if not needs_group[list(alike)].any():
            continue
        group = group_of(np.array(alike))
        if group.block:
            found.append(group)
            continue
        # Not all of these are equal. Those that are steady are judged alone, and the others may be equal.
        rest = np.flatnonzero(needs_group & np.isin(np.arange(len(modes)), alike))
        parts = indistinct(values[rest], reach[rest])
        found += [group_of(rest[list(part)]) for part in parts]
    return turn, found


def _equal_memories(folds: Folds, numbers: Array, intervals: Intervals, factor: Float[Array, "r r"]) -> Block | None:
    """Return the operator on the span of some modes if it may be a multiple of the identity; otherwise None.

    Of equal memories, what sets the operator apart from a multiple of the identity is noise, and has about the size of
    its standard error. A Jordan chain has equal eigenvalues too, but a coupling well above that.
    """
    modes, (values, right, _) = folds.modes, folds.whole
    if all(len(modes[number].indices) == 2 and not intervals.may_be_real[number] for number in numbers):
        columns = [modes[number].indices[0] for number in numbers]  # of equal pairs, the upper halves are equal
    else:
        columns = [i for number in numbers for i in modes[number].indices]
    # A direction that one step misses by more than the limit already where it was fitted fails held out too. That
    # spares the bulk of hundreds of noisy modes, which takes longer than all the rest.
    if len(columns) == 1 or max(modes[number].residual for number in numbers) > LARGEST_RESIDUAL:
        return None
    without = [(own[columns], vectors[:, columns]) for own, vectors in zip(folds.eigenvalues, folds.right, strict=True)]
    block = Block.of(values[columns], right[:, columns], without, factor)
    if block is None:
        return None
    apart = np.linalg.norm(block.matrix - block.eigenvalue * np.eye(len(columns)))
    return block if apart <= SAME_TO + intervals.width[numbers].max() * block.error() else None


def indistinct(eigenvalues: Complex[Array, " m"], reach: Float[Array, " m"]) -> list[tuple[int, ...]]:
    """Group eigenvalues that are indistinct: the interval of their difference, by the reach of each, holds 0.

    >>> indistinct(np.array([0.9, 0.8, 0.5], dtype=complex), np.array([0.08, 0.08, 0.08]))
    [(0, 1), (2,)]
    """
    from scipy.sparse.csgraph import connected_components  # here, since it takes long to import

    gap = np.abs(eigenvalues[:, None] - eigenvalues)
    touches = gap <= SAME_TO + np.hypot(reach[:, None], reach)
    count, label = connected_components(touches, directed=False)
    return [tuple(np.flatnonzero(label == number).tolist()) for number in range(count)]


def subspace_angles(
    whole: Complex[Array, "*m r k"], fits: Sequence[Complex[Array, "*m r k"]]
) -> Float[Array, "*m"] | float:
    """Return the angle, in degrees, by which spans of columns move if other sequences are fitted.

    It is the jackknife's standard error of the sine of the largest principal angle.
    """
    reference = np.linalg.qr(whole)[0]
    squares = 0.0
    for vectors in fits:
        other = np.linalg.qr(vectors)[0]
        apart = other - reference @ (reference.conj().swapaxes(-1, -2) @ other)
        squares = squares + np.linalg.norm(apart, 2, axis=(-2, -1)) ** 2
    f = len(fits)
    return np.degrees(np.arcsin(np.minimum(1.0, np.sqrt((f - 1) / f * squares))))


def variation_of(folds: Folds) -> Float[Array, " m"]:
    """Return the fraction of each mode's energy that is variation; 1 if the fit has an offset, which takes the mean."""
    koopman, total = folds.koopman, folds.total
    if koopman.offset is not None:
        return np.ones(len(folds.modes))
    right = folds.whole[1][:, [mode.indices[0] for mode in folds.modes]]
    about_zero = quadratic_forms(total.state_gram(np.zeros(koopman.rank)), right)
    about_mean = quadratic_forms(total.state_gram(), right)
    return np.maximum(about_mean, 0.0) / np.where(about_zero > 0, about_zero, 1.0)
