"""Errors of layer maps on held-out sequences, compared with the identity and with one operator for all layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann import _display
from kann._format import confidence, fixed, from_to, percent
from kann.analysis.cross_validation import REFIT_TO
from kann.analysis.intervals import jackknife_error, jackknife_freedom, require_level, student_width
from kann.backends.arrays import rounding as rounding_of
from kann.checks import require_instance, require_width
from kann.data.serialization import Saved
from kann.data.states import as_states
from kann.depth.maps import AffineMap, StepMaps, equations_of_steps, length_of, map_weights
from kann.errors import KannError
from kann.fitting.folds import assign_folds, repeats_of
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import NormalEquations, sum_of, without_each
from kann.typing import Array, Float

PREDICTIONS = {"identity": "identity", "one": "one operator", "each": "own map"}
"""The predictions that are compared, by name and in words."""

SAME_CHANGE = 1e-12
"""Fraction of the variance of a step's states below which what it changes is the same for all: that of rounding."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepTrust(Saved):
    """Errors of each step on held-out sequences: of the identity, of one operator, and of the map of the step.

    Errors are 1 − R²: the fraction of the variance of the states after the step that is missed. Names are "identity",
    "one" (the operator for all steps) and "each" (the map of the step).

    >>> import kann
    >>> rng = np.random.default_rng(0)
    >>> first = rng.normal(size=(200, 2))
    >>> states = np.stack([first, 2 * first, 2 * first + rng.normal(size=first.shape)], axis=1)
    >>> found = kann.depth.trust(kann.depth.fit(states), states)
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
    """The variance of the change Δ = h[t+1] − h[t] over sequences, as a fraction of that of the states after the step:
    the error of the identity if the mean change is added."""
    folds: int
    """The number of folds in which the sequences were held out."""
    level: float
    """Confidence level of the intervals."""
    sequences: int
    """The number of sequences."""

    @property
    def linear_part(self) -> Float[Array, " t"]:
        """Fraction of each step that its map explains: 1 − each / the better of two guesses without a map.

        The guesses are the state with the mean change added, whose error is `changes`, and the mean state, whose error
        is 1: a change that is the same for all states needs no map. The part is 1 for an affine step, and at most 0 if
        no linear map predicts. NaN where a step changes no state, or all states alike.
        """
        guessed = np.minimum(self.changes, 1.0)
        return 1 - self.errors["each"] / np.where(guessed > SAME_CHANGE, guessed, np.nan)

    @property
    def better_than_identity(self) -> tuple[int, ...]:
        """Numbers of the steps whose map is significantly better than the identity."""
        return tuple(np.flatnonzero(self.gains["identity"][:, 0] > 0).tolist())

    @property
    def one_is_worse(self) -> tuple[int, ...]:
        """Numbers of the steps at which the one operator has a larger error than the identity."""
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
        """Write a table with a line for each step."""
        return "\n".join(_display.in_columns(self._table()))

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        return _display.table(repr(self), head, rows)

    def _table(self) -> list[list[str]]:
        """Return the head and the rows of the table."""
        rows = [["step", *PREDICTIONS.values(), f"{confidence(self.level)} of own map", "linear part"]]
        for step, (low, high) in enumerate(self.intervals["each"]):
            errors = [fixed(self.errors[name][step]) for name in PREDICTIONS]
            rows.append([str(step), *errors, from_to(low, high, fixed), percent(self.linear_part[step])])
        return rows


def trust(
    maps: StepMaps, states: Any, *, folds: int | None = None, groups: Any = None, level: float = 0.95, seed: int = 0
) -> StepTrust:
    """Measure the error of each layer map on held-out sequences, and compare it with copying and with one operator.

    For each fold, all maps and the one operator are fitted again to the other folds, with the ridges that were chosen
    before. Intervals come from a jackknife that deletes a fold at a time.

    >>> import kann
    >>> states = np.random.default_rng(0).normal(size=(40, 1, 2)) * 2.0 ** np.arange(4)[:, None]
    >>> kann.depth.trust(kann.depth.fit(states), states).linear_part.round(3).tolist()
    [1.0, 1.0, 1.0]

    Parameters
    ----------
    maps, states
        What `kann.depth.fit` returned, and the states that it was given.
    folds, groups, seed
        How sequences are held out, as in `kann.trust`.
    level
        Confidence level of the intervals.
    """
    require_instance(maps, StepMaps, "maps")
    level, recorded = require_level(level), as_states(states)
    require_width(recorded.values, maps.dim, what="states", of="the operator")
    if length_of(recorded) != len(maps) + 1:
        raise KannError(
            f"these sequences have {length_of(recorded)} states and the maps {len(maps)} steps; pass the states that "
            "they were fitted to"
        )
    fold_of = assign_folds(recorded.lengths, folds=folds, groups=groups, repeats=repeats_of(recorded), seed=seed)
    sizes = np.bincount(fold_of).astype(float)
    shares = sizes[:, None] / sizes.sum()
    equations = equations_of_steps(recorded, fold_of, [(step, step + 1) for step in range(len(maps))])
    of_folds = [sum_of(each) for each in zip(*equations, strict=True)]
    ones = _one_without_each(maps.one, of_folds, rounding=rounding_of(recorded.values[0:1]))
    missed = {name: np.zeros((len(maps), len(sizes))) for name in PREDICTIONS}
    spread, changed = np.zeros((len(maps), len(sizes))), np.zeros(len(maps))
    for step, (own, of_step) in enumerate(zip(maps.each, equations, strict=True)):
        whole, changes = sum_of(of_step), [fold.change() for fold in of_step]
        _require_own(own, whole)
        changed[step] = max(0.0, whole.change().variance())
        for i, (fold, rest) in enumerate(zip(of_step, without_each(changes), strict=True)):
            missed["identity"][step, i] = max(0.0, np.trace(changes[i].total))
            missed["one"][step, i] = fold.residual_sum_of_squares(ones[i])
            missed["each"][step, i] = fold.residual_sum_of_squares(map_weights(rest, own.ridge))
            # About the mean over all folds: Σ|y − mean|².
            mean = whole.target_mean
            spread[step, i] = np.trace(fold.total) - 2 * mean @ fold.target[-1] + fold.pairs * mean @ mean
    per_variance = _inverse(spread.sum(axis=1))
    width = student_width(level, jackknife_freedom(shares))
    without = _inverse(spread.sum(axis=1, keepdims=True) - spread)

    def interval(amount: Float[Array, "t f"]) -> Float[Array, "t 2"]:
        error = amount.sum(axis=1) * per_variance
        replicates = ((amount.sum(axis=1, keepdims=True) - amount) * without).T
        half = width * jackknife_error(replicates)
        return np.stack([error - half, error + half], axis=1)

    return StepTrust(
        errors={name: amount.sum(axis=1) * per_variance for name, amount in missed.items()},
        intervals={name: np.maximum(interval(amount), 0.0) for name, amount in missed.items()},
        gains={name: interval(missed[name] - missed["each"]) for name in ("identity", "one")},
        changes=changed * per_variance,
        folds=len(sizes),
        level=level,
        sequences=len(recorded),
    )


def _require_own(own: AffineMap, whole: NormalEquations) -> None:
    """Raise if a fit to these states gives another map."""
    change = np.vstack([own.matrix, own.offset]) - map_weights(whole.change(), own.ridge)
    apart = float(np.sum(change * (whole.gram @ change))) / (whole.variance() or 1.0)
    if not apart <= REFIT_TO:
        raise KannError(
            f"the maps were not fitted to these sequences: a fit to them predicts states after step {own.first} that "
            f"differ by {percent(apart)} of their variance; pass the states that they were fitted to"
        )


def _one_without_each(one: Koopman, folds: Sequence[NormalEquations], *, rounding: float) -> list[Float[Array, "q d"]]:
    """Fit the one operator without each fold, as a map of whole states: matrix and offset, stacked."""
    back = one.state_vectors
    found = []
    for rest in without_each([fold.in_basis(one.basis, mean=one.mean) for fold in folds]):
        weights = rest.weights(offset=one.offset is not None, ridge=one.ridge, rounding=rounding)
        matrix = one.basis @ weights[:-1] @ back
        found.append(np.vstack([matrix, one.mean + weights[-1] @ back - one.mean @ matrix]))
    return found


def _inverse(spread: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute 1 / spread, and 0 where states do not vary."""
    return np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
