"""How far the maps of single steps can be trusted: their errors on sequences that were not fitted, beside baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann import _display
from kann._format import confidence, fixed, from_to, percent
from kann.analysis.intervals import jackknife_error, student_width
from kann.backends.arrays import rounding as rounding_of
from kann.checks import require_width
from kann.data.serialization import Saved
from kann.data.states import as_states
from kann.depth.maps import AffineMap, StepMaps, StepMoments, length_of, map_weights, step_moments
from kann.errors import KannError
from kann.fitting.folds import assign_folds, repeats_of
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import NormalEquations, sum_of, without_each
from kann.typing import Array, Float

PREDICTIONS = {"identity": "identity", "one": "one operator", "each": "own map"}
"""What predicts the state after a step, by name and in words."""

REFIT_TO = 1e-4
"""Fraction of the variance of a step's states by which the prediction of its map may differ from that of a fit to the
states that are passed, if it is to be theirs. Rounding stays below 1e-8; other sequences are well above."""

SAME_CHANGE = 1e-12
"""Fraction of the variance of a step's states below which what it changes is the same for all: that of rounding."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepTrust(Saved):
    """Errors of each step on sequences that were not fitted: of the identity, of one operator, of its own map.

    Errors are 1 − R²: the fraction of the variance of the states after the step that is missed. Names are "identity",
    "one" (the operator for all steps) and "each" (the map of the step).

    >>> import kann
    >>> rng = np.random.default_rng(0)
    >>> first = rng.normal(size=(200, 2))
    >>> states = np.stack([first, 2 * first, 2 * first + rng.normal(size=first.shape)], axis=1)
    >>> found = kann.trust(kann.fit(states, each_step=True), states)
    >>> (found.errors["each"] < [0.01, 0.4]).tolist(), found.errors["identity"].round(1).tolist()
    ([True, True], [0.3, 0.2])
    """

    errors: Mapping[str, Float[Array, " t"]]
    """The error of each step, by name."""
    intervals: Mapping[str, Float[Array, "t 2"]]
    """Confidence intervals of the errors."""
    gains: Mapping[str, Float[Array, "t 2"]]
    """Confidence intervals of how much larger the errors of "identity" and of "one" are than those of "each"."""
    changes: Float[Array, " t"]
    """How far what each step changes differs from sequence to sequence, Σ|Δ − mean Δ|² for Δ = h[t+1] − h[t], as a
    fraction of the variance of the states after it: what the identity misses if the mean change is added to it."""
    folds: int
    """In how many folds the sequences were held out."""
    level: float
    """Confidence level of the intervals."""
    sequences: int
    """How many sequences there are."""

    @property
    def linear_part(self) -> Float[Array, " t"]:
        """How much of what each step does its own map tells: 1 − each / the better of two guesses without a map.

        The guesses are the state with the mean change added, which misses `changes`, and the mean state, which misses
        1: a change that is the same for all states needs no map. The part is 1 for a step that is affine, and at most 0
        for one of which no linear map tells anything. NaN where a step changes nothing, or all states alike.
        """
        guessed = np.minimum(self.changes, 1.0)
        return 1 - self.errors["each"] / np.where(guessed > SAME_CHANGE, guessed, np.nan)

    @property
    def better_than_identity(self) -> tuple[int, ...]:
        """Numbers of the steps whose own map beats the identity, by more than its interval leaves open."""
        return tuple(np.flatnonzero(self.gains["identity"][:, 0] > 0).tolist())

    @property
    def one_is_worse(self) -> tuple[int, ...]:
        """Numbers of the steps at which the one operator misses more than the identity, which copies the state."""
        return tuple(np.flatnonzero(self.errors["one"] > self.errors["identity"]).tolist())

    def __len__(self) -> int:
        return len(self.errors["each"])

    def __repr__(self) -> str:
        means = ", ".join(f"{PREDICTIONS[name]} {fixed(errors.mean())}" for name, errors in self.errors.items())
        return (
            f"StepTrust({len(self)} steps, missed on held-out sequences in the mean: {means}; own maps beat the "
            f"identity at {len(self.better_than_identity)} steps)"
        )

    def __str__(self) -> str:
        """A table with a line for each step."""
        head, rows = self._table()
        return "\n".join(
            "".join(f"{cell:>{width}}" for cell, width in zip(row, _WIDTHS, strict=True)) for row in (head, *rows)
        )

    def _repr_html_(self) -> str:
        head, rows = self._table()
        return _display.table(repr(self), head, rows)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """The head and the rows of the table."""
        rows = []
        for step in range(len(self)):
            low, high = self.intervals["each"][step]
            errors = [fixed(self.errors[name][step]) for name in PREDICTIONS]
            rows.append([str(step), *errors, from_to(low, high, fixed), percent(self.linear_part[step])])
        return ["step", *PREDICTIONS.values(), f"{confidence(self.level)} of own map", "linear part"], rows


_WIDTHS = (4, 10, 14, 9, 19, 13)
"""Of the columns of the table, in letters."""


def trust_steps(maps: StepMaps, data: Any, *, folds: int, groups: Any, level: float, seed: int) -> StepTrust:
    """Errors of every step on held-out sequences, and how far they differ from fold to fold.

    For each fold, all maps and the one operator are fitted again to the other folds, the maps with the ridges that were
    chosen before.
    """
    states = as_states(data)
    require_width(states.values, maps.dim, what="states", of="the operator")
    if length_of(states) != len(maps) + 1:
        raise KannError(
            f"these sequences have {length_of(states)} states and the maps {len(maps)} steps; pass the states that "
            "they were fitted to"
        )
    fold_of = assign_folds(states.lengths, folds=folds, groups=groups, repeats=repeats_of(states), seed=seed)
    steps = [(step, step + 1) for step in range(len(maps))]
    moments = step_moments(states, fold_of, steps)
    ones = _one_without_each(maps.one, moments, rounding=rounding_of(states.values[0:1]))
    found = [_of_step(own, moments, ones) for own in maps.each]
    missed_by = {name: np.array([each.missed[name] for each in found]) for name in PREDICTIONS}
    spread = np.array([each.spread for each in found])
    sizes = np.bincount(fold_of).astype(float)
    changes = np.array([each.changed for each in found]) * _fraction(spread.sum(axis=1))
    return _judged(missed_by, spread, sizes, changes=changes, level=level, sequences=len(states))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Step:
    """What is missed in each fold at one step, how far the states after it vary there, and how far what it changes."""

    missed: dict[str, Float[Array, " f"]]
    spread: Float[Array, " f"]
    changed: float
    """Over all folds."""


def _of_step(own: AffineMap, moments: Sequence[StepMoments], ones: Sequence[Float[Array, "q d"]]) -> _Step:
    designs = [each.design((own.first, own.last + 1)) for each in moments]
    whole = sum_of(designs)
    _require_own(own, whole)
    mean = whole.target[-1] / whole.pairs
    rest = without_each([design.change() for design in designs])
    identity = np.vstack([np.eye(whole.rank), np.zeros(whole.rank)])
    return _Step(
        missed={
            "identity": np.array([design.residual_sum_of_squares(identity) for design in designs]),
            "one": np.array(
                [design.residual_sum_of_squares(weights) for design, weights in zip(designs, ones, strict=True)]
            ),
            "each": np.array(
                [
                    design.residual_sum_of_squares(map_weights(others, own.ridge))
                    for design, others in zip(designs, rest, strict=True)
                ]
            ),
        },
        spread=np.array([_spread(design, mean) for design in designs]),
        changed=_spread_of_change(whole, identity),
    )


def _spread(design: NormalEquations, mean: Float[Array, " d"]) -> float:
    """How far the states after a step vary about a point, Σ|y − mean|²."""
    return float(np.trace(design.total) - 2 * mean @ design.target[-1] + design.pairs * mean @ mean)


def _spread_of_change(design: NormalEquations, identity: Float[Array, "q d"]) -> float:
    """How far what a step changes varies about its mean, Σ|Δ − mean Δ|²."""
    total = design.target[-1] - design.gram[-1, : design.rank]  # Σ Δ
    return max(0.0, float(design.residual_sum_of_squares(identity)) - float(total @ total) / design.pairs)


def _require_own(own: AffineMap, whole: NormalEquations) -> None:
    """Refuse states to which a fit is another map."""
    change = np.vstack([own.matrix, own.offset]) - map_weights(whole.change(), own.ridge)
    variance = whole.variance() or 1.0
    apart = float(np.sum(change * (whole.gram @ change))) / variance
    if not apart <= REFIT_TO:
        raise KannError(
            f"the maps were not fitted to these sequences: a fit to them predicts states after step {own.first} that "
            f"differ by {percent(apart)} of their variance; pass the states that they were fitted to"
        )


def _one_without_each(one: Koopman, moments: Sequence[StepMoments], *, rounding: float) -> list[Float[Array, "q d"]]:
    """The one operator fitted without each fold, as a map of whole states: its matrix and its offset."""
    designs = [sum_of([each.design(steps) for steps in each.counts]) for each in moments]
    back = one.state_vectors
    found = []
    for rest in without_each([design.in_basis(one.basis, mean=one.mean) for design in designs]):
        weights = rest.weights(offset=one.offset is not None, ridge=one.ridge, rounding=rounding)
        matrix = one.basis @ weights[:-1] @ back
        found.append(np.vstack([matrix, one.mean + weights[-1] @ back - one.mean @ matrix]))
    return found


def _judged(
    missed_by: dict[str, Float[Array, "t f"]],
    spread: Float[Array, "t f"],
    sizes: Float[Array, " f"],
    *,
    changes: Float[Array, " t"],
    level: float,
    sequences: int,
) -> StepTrust:
    """Errors over all folds, and their intervals by a jackknife that deletes a fold at a time."""
    width = student_width(level, len(sizes) - 1)
    without = _fraction(spread.sum(axis=1, keepdims=True) - spread)

    def interval(amount: Float[Array, "t f"]) -> Float[Array, "t 2"]:
        whole = amount.sum(axis=1) * _fraction(spread.sum(axis=1))
        replicates = ((amount.sum(axis=1, keepdims=True) - amount) * without).T
        half = width * jackknife_error(replicates, whole=whole, sizes=sizes)
        return np.stack([whole - half, whole + half], axis=1)

    return StepTrust(
        errors={name: amount.sum(axis=1) * _fraction(spread.sum(axis=1)) for name, amount in missed_by.items()},
        intervals={name: np.maximum(interval(amount), 0.0) for name, amount in missed_by.items()},
        gains={name: interval(missed_by[name] - missed_by["each"]) for name in ("identity", "one")},
        changes=changes,
        folds=len(sizes),
        level=level,
        sequences=sequences,
    )


def _fraction(spread: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 / spread; 0 where nothing varies, of which nothing can be missed."""
    return np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
