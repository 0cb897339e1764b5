"""When a mode is called the network's own and when it is called learned: the rule, and the figures that it looks at.

The figures are measured on sequences that were not fitted: intervals, held-out residuals, and how far directions move.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg

from kann._format import confidence, percent
from kann.analysis.cross_validation import Folds, own_weights
from kann.analysis.intervals import jackknife_error, jackknife_freedom, student_width
from kann.data.reduction import add_to
from kann.fitting._fit import LARGEST_INFLATION, PAIRS_PER_UNKNOWN
from kann.fitting.basis import factor_of_gram
from kann.fitting.spectrum import TRUSTED, quadratic_forms
from kann.typing import Array, Complex, Float

# The rule. Every condition must hold. A mode that is the network's own need not be learned: networks that were never
# trained have such modes too.

LARGEST_RESIDUAL = TRUSTED
"""One step may miss the next value of the mode by this fraction of its size, on sequences that were not fitted."""

COPYING_SLACK = 1.05
"""A residual may exceed that of copying the previous state by this factor: a mode with λ = 1 is copied, and chance
decides which of the two is smaller."""

NULL_FRACTION = 0.5
"""The residual must be below this fraction of what states in shuffled order reach."""

NULL_IS_EXACT = 1e-6
"""Residual of the null below which it is rounding."""

WIDEST_INTERVAL = 0.1
"""The interval of |λ|, and that of the angle times |λ|, may be this wide: 0.95 then differs from 0.85."""

CLEARLY_BELOW_COPYING = 0.9
"""Limit of the residual, as a fraction of that of copying, where only this separates modes from slow noise: a sum over
300 steps of noise has λ = .997, a residual below the limit, and is predicted as well by copying. Its direction moves,
but a space that is nearly all of the coordinates' cannot move. It is not asked for in coordinates that were given:
equal memories that hold perfectly are copied too, and fill all of the balanced coordinates."""

LARGEST_TURN = 30.0
"""Degrees by which the eigenvector, or the space of indistinct ones, may move."""

SMALLEST_MODULUS = 1e-9
"""A mode with λ = 0 is taken to decay by this in a step, so that its rate is a number."""

CONSTANT_BELOW = 0.2
"""Fraction of a coefficient's energy that is variation, below which the mode is the mean of the states."""

SAME_EIGENVALUE = WIDEST_INTERVAL
"""Two networks have the same mode only if its eigenvalues are this close in the complex plane, …"""

SAME_RATE = 2.0
"""… and if the rates at which the two decay, −log |λ|, differ by no larger factor: 0.999 keeps ten times as long as
0.99. Rates that the intervals of |λ| do not tell apart are the same too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Figures that the rule looks at."""

    residual: float
    copying: float
    null: float
    width: float
    """Of the interval of |λ|, or of the angle times |λ| if that is wider."""
    turn: float
    subspace: tuple[int, ...]
    variation: float
    """Fraction of the coefficient's energy that is variation."""
    dependence: float
    pairs: int
    unknowns: int
    fills: bool = False
    """True for equal memories that fill most of the space, so that ``turn`` has no meaning."""
    chosen_by_variance: bool = True
    """False if the coordinates were given, as balanced ones are: noise that no output depends on is not among them."""


def objections(evidence: Evidence) -> list[str]:
    """List the reasons against trusting the mode, in words; empty if it is trusted."""
    if evidence.residual == math.inf:
        return ["the states have no energy in it"]
    found = []
    if evidence.variation < CONSTANT_BELOW:
        found.append("constant: its coefficient hardly varies, so it is the mean of the states and no memory")
    if evidence.pairs < PAIRS_PER_UNKNOWN * evidence.unknowns:
        found.append(f"too few pairs: {evidence.pairs} for {evidence.unknowns} unknowns in each column")
    if evidence.dependence > 1 - 1 / LARGEST_INFLATION:
        found.append("inputs contain the state, so what each of them does cannot be told apart")
    if not evidence.residual <= LARGEST_RESIDUAL:
        missed = f"{percent(evidence.residual)} of it"
        found.append(f"one step misses {missed} on held-out sequences (limit {confidence(LARGEST_RESIDUAL)})")
    may_be_noise = evidence.fills and evidence.chosen_by_variance
    if not evidence.residual <= (CLEARLY_BELOW_COPYING if may_be_noise else COPYING_SLACK) * evidence.copying:
        as_well = "nearly as well" if may_be_noise else "better"
        found.append(f"copying the previous state predicts it {as_well} (missing {percent(evidence.copying)})")
    if not evidence.residual < NULL_FRACTION * evidence.null or evidence.null < NULL_IS_EXACT:
        found.append(
            f"a null, without the order of states, predicts it nearly as well (missing {percent(evidence.null)})"
        )
    if not evidence.width <= WIDEST_INTERVAL:
        found.append(f"the interval of its eigenvalue is {evidence.width:.2g} wide (limit {WIDEST_INTERVAL})")
    if not evidence.fills and not evidence.turn <= LARGEST_TURN:
        count = len(evidence.subspace)
        turning = "its direction" if count == 1 else f"the space of {count} modes that cannot be told apart"
        found.append(f"{turning} moves by {evidence.turn:.0f}° with the sequences fitted")
    return found


def reasons(evidence: Evidence) -> str:
    """Describe why the mode is trusted."""
    together = ""
    if len(evidence.subspace) > 1:
        others = ", ".join(str(number) for number in evidence.subspace)
        together = f"; modes {others} cannot be told apart and are to be read together"
    return (
        f"one step misses {percent(evidence.residual)} of it on held-out sequences (copying "
        f"{percent(evidence.copying)}, shuffled {percent(evidence.null)}){together}"
    )


Located = tuple[complex, tuple[float, float]]
"""The eigenvalue of a mode that the rule calls a network's own, and the interval of its modulus."""


def is_same_mode(mode: Located, other: Located) -> bool:
    """Return whether a mode of the untrained network is the same as this one, so that training did not make it."""
    (value, interval), (other_value, other_interval) = mode, other
    if abs(value - other_value) > SAME_EIGENVALUE:
        return False
    if max(interval[0], other_interval[0]) <= min(interval[1], other_interval[1]):
        return True
    slow, fast = sorted(abs(math.log(max(abs(each), SMALLEST_MODULUS))) for each in (value, other_value))
    return fast <= SAME_RATE * slow


def about_learning(learned: bool | None, nearest: str) -> str:
    """Describe what the untrained network shows about a mode; ``nearest`` is its nearest mode."""
    if learned is None:
        return f"; the untrained network's nearest mode is {nearest}"
    if learned:
        return f"; learned: the untrained network has no such mode (its nearest is {nearest})"
    return f"; own, not learned: the untrained network has it just as well (its nearest is {nearest})"


# The figures

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
    koopman, total, size = folds.koopman, folds.total, len(columns)
    left = np.zeros((len(total.gram), size), dtype=complex)
    left[: koopman.rank] = folds.whole[2][columns].conj().T
    options: Any = {"offset": koopman.offset is not None, "ridge": koopman.ridge, "rounding": 0.0}
    real, imaginary = (
        replace(total, target=take(left), total=np.zeros((size, size)), shuffled=None).weights(**options)
        for take in (np.real, np.imag)
    )
    wide = real + 1j * imaginary
    parts = np.array([np.maximum(quadratic_forms(design.gram, wide), 0.0) for design in folds.designs])
    information = parts.sum(axis=0)
    missed = quadratic_forms(total.residual_gram(own_weights(koopman)), folds.whole[1][:, columns]) / total.pairs
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
        for name, gram in _held_out_grams(folds, fold).items():
            add_to(alone, name, quadratic_forms(gram, right[:, first]))
            for sums, block in zip(joint, blocks, strict=True):
                span = block.vectors[fold]
                add_to(sums, name, span.conj().T @ (gram @ span))
    energy = alone.pop("energy")
    ratios = {name: np.maximum(own, 0.0) / np.where(energy > 0, energy, 1.0) for name, own in alone.items()}
    roots = {name: np.where(energy > 0, np.sqrt(ratio), np.inf) for name, ratio in ratios.items()}
    null = np.minimum(roots["shuffled"], roots.get("inputs", np.inf))
    rows = np.stack([roots["missed"], roots["copied"], null], axis=1).tolist()
    return [dict(zip(MEASURED, row, strict=True)) for row in rows], [_worst(sums) for sums in joint]


MEASURED: tuple[str, ...] = ("residual", "copying", "null")
"""Fields of `Evidence` that are measured on held-out sequences."""


def _held_out_grams(folds: Folds, fold: int) -> dict[str, Float[Array, "r r"]]:
    """Return Gram matrices of what several predictions miss of a fold, and of its states."""
    koopman, design, rest = folds.koopman, folds.designs[fold], folds.rests[fold]
    offset = koopman.offset is not None
    null = rest.as_shuffled().weights(offset=offset, ridge=koopman.ridge, rounding=0.0)
    grams = {
        "missed": design.residual_gram(folds.weights[fold]),
        "copied": design.change_gram(),
        "shuffled": design.as_shuffled().residual_gram(null),
        "energy": design.state_gram(rest.mean[: koopman.rank] if offset else np.zeros(koopman.rank)),
    }
    if koopman.drive is not None:
        # Inputs that predict the next state by themselves, such as ones that contain it, leave nothing for the state.
        grams["inputs"] = design.residual_gram(rest.weights_without_state(ridge=koopman.ridge))
    return grams


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
    factor = factor_of_gram(folds.total.state_gram(), noise=0.0)
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
