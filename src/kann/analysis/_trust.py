"""How far each mode of an operator can be trusted, on sequences that were not fitted."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann import _display
from kann._format import confidence, format_eigenvalue, from_to, part_of, percent
from kann.analysis.cross_validation import (
    MOST_JUDGED,
    ONE_INPUT,
    Folds,
    folded_data,
    require_states_of,
)
from kann.analysis.intervals import require_level
from kann.analysis.mode_evidence import (
    CONSTANT_BELOW,
    LARGEST_RESIDUAL,
    LARGEST_TURN,
    Evidence,
    Group,
    Intervals,
    about_learning,
    eigenvalues_two_steps_apart,
    groups_of,
    held_out_residuals,
    is_same_mode,
    objections,
    reasons,
    variation_of,
)
from kann.backends.arrays import threads_for
from kann.checks import require_instance
from kann.data.serialization import Saved, Stored
from kann.errors import KannError
from kann.fitting._fit import fit
from kann.fitting.basis import FIXED_BASES
from kann.fitting.bilinear import Bilinear
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.typing import Array, Float, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Judged(Stored):
    """How far a mode, or a group of modes, can be trusted. Residuals are of sequences that were not fitted."""

    eigenvalue: complex
    """λ, as in ``koopman.modes``; of a group the mean."""
    interval: tuple[float, float]
    """Confidence interval of |λ|."""
    angle: tuple[float, float]
    """Confidence interval of the angle of λ, in radians for a step."""
    residual: float
    """|Y v − λ X v| / |X v|, for eigenpairs fitted without the sequences they are measured on.

    Of a group, that of the direction of their span that is missed most.
    """
    copying: float
    """|Y v − X v| / |X v|: the residual of copying the previous state.

    Of a group, in proportion to ``residual`` in the direction where copying does best.
    """
    null: float
    """The residual that a fit to states in shuffled order reaches in the direction of the mode.

    Of a group, in proportion to ``residual`` in the direction where this null does best.
    """
    trusted: bool
    """Whether it can be called the network's own dynamics, learned or not."""
    why: str
    """Why it is trusted or not, and learned or not, in words."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModeTrust(Judged):
    """How far one mode can be trusted.

    >>> import numpy as np, kann
    >>> states = np.random.default_rng(0).normal(size=(30, 40, 3))
    >>> for t in range(1, 40):
    ...     states[:, t] = states[:, t - 1] * [0.95, 0.8, 0.4] + 0.02 * states[:, t]
    >>> koopman = kann.fit(states)
    >>> mode = kann.trust(koopman, states).modes[0]
    >>> mode.verdict, mode.interval[0] < 0.95 < mode.interval[1]
    ('yes', True)
    """

    constant: bool
    """Whether the mode is the mean of the states: its coefficient hardly varies. Never if the fit has an offset."""
    subspace: tuple[int, ...]
    """Numbers of the modes that cannot be told apart from this one, and its own."""
    turn: float
    """By how many degrees the span of these modes moves if other sequences are fitted."""
    untrained: float | None
    """The residual of the nearest mode of the untrained network, if that was given."""
    spread: float = math.nan
    """How many times wider the interval is than if sequences differed by the noise of their steps alone. Well above 1,
    sequences have different eigenvalues, or their noise is not independent from step to step. The interval is then
    that of the mean of λ, weighed by the energy of the mode in each sequence."""
    two_steps: float = math.nan
    """|λ| by states two steps apart, with the earlier one as instrument; NaN from moments. Noise that was added to
    recorded states alone pulls ``eigenvalue`` towards zero, but not this."""
    agrees: bool = True
    """False if ``two_steps`` clearly contradicts ``eigenvalue``. The interval is then that of the regression of one
    step, and not of how long the network remembers: noise was added to the states, or the next state depends on more
    than these coordinates."""
    learned: bool | None = None
    """Whether training made a trusted mode: False if the untrained network has it just as well ("own, not learned").

    None for a mode that is not trusted, and if the untrained network was not given.
    """

    @property
    def verdict(self) -> str:
        """The judgement in a word or two: "no", "yes", "learned" or "own, not learned"."""
        if not self.trusted:
            return "no"
        return {None: "yes", True: "learned", False: "own, not learned"}[self.learned]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModeGroup(Judged):
    """Modes of equal memory, judged together as one invariant subspace.

    Which combination of them an eigenvector is, is an accident of the noise; how long any of them lasts is not.

    >>> import numpy as np, kann
    >>> rng = np.random.default_rng(0)
    >>> states = rng.normal(size=(30, 40, 3))
    >>> for t in range(1, 40):
    ...     states[:, t] = 0.95 * states[:, t - 1] + 0.002 * states[:, t]
    >>> (group,) = kann.trust(kann.fit(states), states).groups
    >>> group.memories, group.trusted, group.interval[0] < 0.95 < group.interval[1]
    (3, True, True)
    """

    modes: tuple[int, ...]
    """Their numbers in ``koopman.modes``."""
    memories: int
    """The dimension of their span: a pair that may be two real eigenvalues counts twice."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trust(Saved):
    """How far an operator and each of its modes can be trusted, on sequences that were not fitted.

    >>> import numpy as np, kann
    >>> states = np.random.default_rng(0).normal(size=(30, 40, 3))
    >>> for t in range(1, 40):
    ...     states[:, t] = states[:, t - 1] * [0.95, 0.8, 0.4] + 0.02 * states[:, t]
    >>> koopman = kann.fit(states)
    >>> trust = kann.trust(koopman, states)
    >>> trust.trusted
    (0, 1)
    >>> bool(trust.error[0] < trust.copying_error[0])
    True
    """

    modes: tuple[ModeTrust, ...]
    """As ``koopman.modes``."""
    horizons: Int[Array, " k"]
    """Steps ahead: 1, 2, 4, …"""
    error: Float[Array, " k"]
    """Error of predictions at each horizon, as a fraction of the variance; predicting the mean has error 1."""
    copying_error: Float[Array, " k"]
    """The same for copying the state."""
    folds: int
    """In how many folds the sequences were held out."""
    level: float
    """Confidence level of the intervals."""
    pairs: int
    """How many pairs of states there are."""
    unknowns: int
    """How many numbers each column of the regression had to find."""
    untrained: "Trust | None" = None
    """The same for the untrained network, if that was given."""
    groups: tuple[ModeGroup, ...] = ()
    """Modes of equal memory, which were judged together."""
    in_blocks: bool = False
    """Whether blocks of sequences were held out, since there were fewer than three sequences."""

    @property
    def trusted(self) -> tuple[int, ...]:
        """Numbers of the modes that can be trusted."""
        return tuple(number for number, mode in enumerate(self.modes) if mode.trusted)

    @property
    def learned(self) -> tuple[int, ...] | None:
        """Numbers of the trusted modes that the untrained network does not have; None if that was not given."""
        if self.untrained is None:
            return None
        return tuple(number for number, mode in enumerate(self.modes) if mode.learned)

    def __repr__(self) -> str:
        learned = "" if self.learned is None else f", {len(self.learned)} of them learned"
        held_out = f"{self.folds} folds of blocks" if self.in_blocks else f"{self.folds} folds"
        together = "".join(f", {group.memories} equal memories together" for group in self.groups if group.trusted)
        return (
            f"Trust({part_of(len(self.trusted), len(self.modes))} modes trusted{together}{learned}; held out in "
            f"{held_out}, one step misses {percent(self.error[0])} of the variance, copying "
            f"{percent(self.copying_error[0])})"
        )

    def _repr_html_(self) -> str:
        rows = []
        for number, mode in enumerate(self.modes[:12]):
            figures = (f"{value:.3g}" for value in (mode.residual, mode.copying, mode.null))
            ends = " – ".join(f"{end:.4f}" for end in mode.interval)
            rows.append([number, format_eigenvalue(mode.eigenvalue), ends, *figures, mode.verdict, mode.why])
        head = ("mode", "λ", f"{confidence(self.level)} of |λ|", "residual", "copying", "shuffled", "trusted", "why")
        return _display.table(repr(self), head, rows)


def trust(
    koopman: Koopman,
    states: Any,
    *,
    folds: int | None = None,
    groups: Any = None,
    where: Any = None,
    level: float = 0.95,
    seed: int = 0,
    untrained: Any = None,
) -> Trust:
    """Measure how far each mode can be trusted, on held-out sequences, next to copying and shuffled states.

    Trusted means that a mode is the network's own dynamics and no accident of the fit. It does not mean learned: a
    network that was never trained has trusted modes too. Pass ``untrained`` to find out which modes training made.

    >>> import kann, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noise = rng.normal(size=(20, 60, 5))
    >>> trust(kann.fit(noise), noise).trusted
    ()

    Sequences are held out in folds. For each, the operator is fitted to the others, in the same basis, and its
    eigenpairs are measured on what was held out. How far eigenvalues differ from fold to fold gives their intervals
    (a jackknife that deletes a fold at a time). All of it follows from Gram matrices of the folds.

    Parameters
    ----------
    koopman, states
        An operator and the states that it was fitted to. Instead of states, a list of `Moments` of groups of sequences,
        each of which is then a fold; errors are then measured one step ahead only, and the null shuffles states
        over all sequences instead of within each.
    folds
        The number of folds, from 3 to the number of sequences. None: 10, or fewer if there are fewer sequences.
        Sequences whose states are the same to the last bit are held out together; to find them, states are read once
        more, also from disk and by Dask, unless all lengths differ. Moments do not show repeats: put them into one
        group when you record. One or two long sequences are cut into blocks of at least 50 states.
    groups
        The source of each sequence, such as a patient or a speaker: sequences of one group are held out together,
        so that intervals hold for new patients and not only for new sequences of the same ones.
    where
        Of an operator that was fitted with ``where=``: the same mask or function, and states, not moments. So a memory
        has an interval while no input is read. Errors are then measured one step ahead only, as from moments.
    level
        Confidence level of the intervals.
    seed
        Of the assignment of sequences to folds.
    untrained
        States of the same network before training (see `kann.recording.untrained_twin`), over the same data. A
        trusted mode is then called learned, or own and not learned if the untrained network has it just as well.

    Returns
    -------
    Trust
        One entry per mode in ``modes``, the numbers of those that can be trusted in ``trusted``, and errors of
        predictions next to those of copying.
    """
    level = require_level(level)
    if isinstance(koopman, Bilinear):
        raise KannError(f"koopman={koopman!r} has a matrix for each input, and trust judges one; {ONE_INPUT}")
    require_instance(koopman, Koopman, "koopman")
    if where is not None and untrained is not None:
        raise KannError("untrained= is compared over all steps; leave it out, or where=")
    folded = folded_data(koopman, states, folds=folds, groups=groups, where=where, seed=seed)
    before = None
    if untrained is not None:
        earlier = require_states_of(koopman, untrained)
        options: Any = {
            "offset": koopman.offset is not None,
            "driven": koopman.drive is not None,
            "ridge": koopman.ridge,
        }
        options |= {"rank": min(koopman.rank, earlier.dim), "basis": _basis_kind(koopman)}
        before = trust(fit(earlier, **options), earlier, folds=folds, groups=groups, level=level, seed=seed)
    errors = folded.errors()
    with threads_for(len(folded.total.gram) ** 3):
        modes, equal = _mode_trusts(folded, level=level, untrained=before)
    return Trust(
        modes=modes,
        groups=equal,
        horizons=errors.horizons,
        error=errors.operator[0],
        copying_error=errors.copying,
        folds=len(folded.designs),
        in_blocks=folded.in_blocks,
        level=level,
        pairs=folded.total.pairs,
        unknowns=folded.unknowns,
        untrained=before,
    )


def _basis_kind(koopman: Koopman) -> str | Float[Array, "d r"]:
    """Choose the basis for the untrained network: the kind that states choose, or this basis if they did not."""
    if koopman.in_coordinates:
        return koopman.basis
    fixed = (columns(koopman.dim)[:, : koopman.rank] for columns in FIXED_BASES.values())
    if any(np.array_equal(each, koopman.basis) for each in fixed):
        return koopman.basis
    return "pca" if koopman.mean.any() else "svd"


def _mode_trusts(
    folds: Folds, *, level: float, untrained: Trust | None
) -> tuple[tuple[ModeTrust, ...], tuple[ModeGroup, ...]]:
    """Judge each mode, and modes of equal memory together."""
    intervals = Intervals.of(folds, level=level)
    turns, groups = groups_of(folds, intervals)
    equal = [group for group in groups if group.block is not None]
    alone, together = held_out_residuals(folds, [group.block for group in equal if group.block])
    variation = variation_of(folds)
    about_data: dict[str, Any] = {
        "dependence": folds.total.dependence() if folds.koopman.drive is not None else 0.0,
        "pairs": folds.total.pairs,
        "unknowns": folds.unknowns,
    }
    joint: dict[int, tuple[list[str], str]] = {}
    turn_of, width_of = (dict(zip(folds.numbers, own.tolist(), strict=True)) for own in (turns, intervals.width))
    judged = []
    for group, measured in zip(equal, together, strict=True):
        found, against = _judged_together(
            group,
            measured,
            about_data,
            max(float(width_of[number]) for number in group.modes),
            chosen_by_variance=folds.koopman.decoder is None,
        )
        judged.append(found)
        # Where the worst direction fails, one that is steady may still be trusted alone.
        bound = [number for number in group.modes if found.trusted or turn_of[number] > LARGEST_TURN]
        joint |= dict.fromkeys(bound, (against, found.why))
    group_of = {number: group for group in groups for number in group.modes}
    two_steps = eigenvalues_two_steps_apart(folds, intervals)
    modes = [_not_judged(mode, number, folds) for number, mode in enumerate(folds.koopman.modes)]
    for place, (number, mode, measured) in enumerate(zip(folds.numbers, folds.modes, alone, strict=True)):
        group = group_of.get(number)
        if number not in joint and turns[place] <= LARGEST_TURN:
            group = None  # a steady direction needs no others
        low, high = intervals.modulus[place]
        turn_low, turn_high = intervals.angle[place]
        if math.isinf(mode.residual):  # without energy in the mode, the held-out residual is one of rounding
            measured["residual"] = math.inf
        evidence = Evidence(
            width=max(high - low, mode.modulus * (turn_high - turn_low)),
            turn=group.turn if group else float(turns[place]),
            subspace=group.modes if group else (number,),
            variation=float(variation[place]),
            **measured,
            **about_data,
        )
        against, why = joint.get(number, (None, ""))
        if against is None or math.isinf(evidence.residual) or evidence.variation < CONSTANT_BELOW:
            against = objections(evidence)
            why = "; ".join(against) or reasons(evidence)
        interval, nearest, learned = (max(0.0, low), high), None, None
        if untrained is not None:
            twin = min(untrained.modes, key=lambda other: abs(other.eigenvalue - mode.eigenvalue))
            nearest = twin.residual
            if not against:
                theirs = [(other.eigenvalue, other.interval) for other in untrained.modes if other.trusted]
                learned = not any(is_same_mode((mode.eigenvalue, interval), other) for other in theirs)
            why += about_learning(learned, f"{format_eigenvalue(twin.eigenvalue)}, residual {nearest:.2g}")
        modes[number] = ModeTrust(
            eigenvalue=mode.eigenvalue,
            interval=interval,
            angle=(turn_low, turn_high),
            constant=evidence.variation < CONSTANT_BELOW,
            subspace=evidence.subspace,
            turn=evidence.turn,
            untrained=nearest,
            trusted=not against,
            why=why,
            spread=float(intervals.spread[place]),
            two_steps=two_steps[place][0],
            agrees=two_steps[place][1],
            learned=learned,
            **measured,
        )
    return tuple(modes), tuple(judged)


def _not_judged(mode: Mode, number: int, folds: Folds) -> ModeTrust:
    """Return the entry of a mode of a wide operator that is not held out, since it would fail or others are slower."""
    nothing = math.nan, math.nan
    why = f"not judged: of rank {folds.koopman.rank}, up to {MOST_JUDGED} of the slowest modes are"
    if mode.residual > LARGEST_RESIDUAL:
        missed = f"{percent(mode.residual)} of it even where it was fitted"
        why = f"one step misses {missed} (limit {confidence(LARGEST_RESIDUAL)})"
    return ModeTrust(
        eigenvalue=mode.eigenvalue,
        interval=nothing,
        angle=nothing,
        residual=mode.residual,
        copying=math.nan,
        null=math.nan,
        constant=False,
        subspace=(number,),
        turn=math.nan,
        untrained=None,
        trusted=False,
        why=why,
    )


def _judged_together(
    group: Group,
    measured: dict[str, float],
    about_data: dict[str, Any],
    width: float,
    *,
    chosen_by_variance: bool,
) -> tuple[ModeGroup, list[str]]:
    """Judge the span of modes of equal memory by the direction in it that does worst."""
    block: Any = group.block
    modulus, angle = block.interval(width)
    # The memories are the same only if no direction of the span decays at a clearly different rate.
    spread = 2 * float(np.linalg.norm(block.matrix - block.eigenvalue * np.eye(len(block.matrix)), 2))
    evidence = Evidence(
        width=max(modulus[1] - modulus[0], abs(block.eigenvalue) * (angle[1] - angle[0]), spread),
        turn=group.turn,
        subspace=group.modes,
        variation=1.0,
        fills=group.fills,
        chosen_by_variance=chosen_by_variance,
        **measured,
        **about_data,
    )
    against, count = objections(evidence), len(block.matrix)
    verdict = "; ".join(against) or f"trusted together, each direction at least as well: {reasons(evidence)}"
    found = ModeGroup(
        modes=group.modes,
        memories=count,
        eigenvalue=block.eigenvalue,
        interval=modulus,
        angle=angle,
        trusted=not against,
        why=f"{count} equal memories, |λ| {from_to(modulus[0], modulus[1], format_eigenvalue)}: {verdict}",
        **measured,
    )
    return found, against
