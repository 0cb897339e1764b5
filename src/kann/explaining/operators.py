"""Fit the operators of an explanation: one that is explained, and one that its inputs gate."""

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kann._format import percent
from kann.analysis._trust import Trust, trust
from kann.backends.arrays import as_numpy
from kann.data.moments import Moments
from kann.data.states import States, only_pairs
from kann.errors import DependenceWarning, FewPairsWarning, KannError
from kann.fitting._fit import fit
from kann.fitting.balance import Balance
from kann.fitting.bilinear import Bilinear
from kann.fitting.folds import FEWEST_FOLDS, FOLDS_TO_JUDGE, group_numbers
from kann.fitting.horizons import HORIZONS
from kann.fitting.koopman import Koopman
from kann.typing import Array, Float, Shaped

CLEAR = 2.0
"""Gates count if they make the error this many times smaller: they have many more unknowns."""

NEARLY_EXACT = 20.0
"""``rank="auto"`` takes a small rank that predicts nearly as well as any. If a larger one's error is this many times
smaller, states follow a linear rule, and only that rank has its eigenvalues."""

MOST_GATING_INPUTS = 16
"""Largest number of inputs for which gates are fitted: each multiplies all coordinates."""

MOST_GATED_COORDINATES = 24
"""Largest rank of a gated operator, for the same reason."""

QUIET_FROM = 0.2
"""An operator is fitted to the steps that read zeros if they are this fraction of all."""

PREDICTED_FROM = 0.9
"""If the previous state predicts this fraction of the inputs' variance, inputs are the signal itself, or fed back."""

MOST_STARTS = 2000
"""Number of states from which predictions several steps ahead are made."""

KEPT_FOR_COMPARING = 4
"""One in this number of sequences, or groups of them, is held out to compare gated operators with driven ones."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operators:
    """The operator whose modes are explained, and the one that inputs gate."""

    koopman: Koopman
    kind: str
    """"autonomous", "driven", or "quiet" (autonomous, of steps without input)."""
    states: States
    """The states that it was fitted to; of a quiet one cut where something was read."""
    groups: Any
    """Number of the group with which each of these sequences is held out; None if single."""
    bilinear: Bilinear | None = None
    """The operator that its inputs gate, if it predicts clearly better."""
    gated_errors: tuple[float, float] | None = None
    """Held-out errors of the gated operator and of the driven one; None if gates were not fitted."""
    others: Mapping[str, Koopman] = field(default_factory=dict)
    """Operators to compare with, by name."""
    notes: tuple[str, ...] = ()

    def trust(self, seed: int) -> Trust:
        """Measure how far modes can be trusted.

        Pieces of steps without input are short, and a memory is the same all through one of them: states in
        shuffled order would predict it as well. So they are folds of moments, whose null shuffles over all pieces.
        """
        folds = folds_of(len(self.states), self.groups)
        if self.kind != "quiet":
            return trust(self.koopman, self.states, groups=self.groups, folds=folds, seed=seed)
        fold_of = group_numbers(self.groups, len(self.states)) % folds
        parts = [Moments.of(self.states[fold_of == fold], inputs=False) for fold in range(folds)]
        return trust(self.koopman, parts, folds=folds, seed=seed)

    def like(self, states: States, groups: Any, balance: Balance | None) -> "Operators":
        """Fit other states of the same kind in the same way."""
        if self.kind == "quiet":
            states, groups = _quiet_pieces(states, groups)
        rank = min(self.koopman.rank, states.dim if balance is None else balance.rank)
        driven = self.koopman.drive is not None
        koopman = fit(states, rank=rank, basis="pca" if balance is None else balance, driven=driven)
        return Operators(koopman=koopman, kind=self.kind, states=states, groups=groups)


def reads_nothing(inputs: Any) -> Shaped[Array, " n"]:
    """Return which steps read zeros."""
    return (as_numpy(inputs) == 0).all(axis=-1)


def folds_of(sequences: int, groups: Any) -> int:
    """Return in how many folds sequences, or groups of them, are held out."""
    available = sequences if groups is None else len(np.unique(groups))
    return max(FEWEST_FOLDS, min(FOLDS_TO_JUDGE, available))


def _quiet_pieces(states: States, groups: Any) -> tuple[States, Any]:
    """Return the runs of steps without input, and the group with which each is held out."""
    pieces, source = only_pairs(states, reads_nothing)
    return pieces, source if groups is None else [groups[i] for i in source]


def fit_operators(states: States, groups: Any, balance: Balance | None, count: int | None) -> Operators:
    """Fit an operator of ``count`` balanced coordinates, or of principal components where balancing was impossible.

    It reads the inputs, unless there are none or they are the signal itself.
    """
    koopman, predicted = None, 0.0 if states.inputs is None else inputs_predicted(states)
    basis = "principal components" if balance is None else "balanced coordinates"
    if states.inputs is None:
        why = "what the layer reads was not recorded"
    elif predicted >= PREDICTED_FROM:
        why = f"the state predicts {percent(predicted)} of the next input, which is the signal itself or fed back"
    else:
        why = "inputs contain the state"
        with warnings.catch_warnings(), contextlib.suppress(DependenceWarning):
            warnings.simplefilter("error", DependenceWarning)
            koopman = _fit(states, groups, balance, count, driven=True)
    if koopman is not None:
        note = f"The operator reads the inputs and has rank {koopman.rank} in {basis}."
        found = Operators(koopman=koopman, kind="driven", states=states, groups=groups, notes=(note,))
        return _with_gates(found, balance, count)
    koopman = _fit(states, groups, balance, count, driven=False)
    note = f"The operator is autonomous, of rank {koopman.rank} in {basis}: {why}."
    return Operators(koopman=koopman, kind="autonomous", states=states, groups=groups, notes=(note,))


def inputs_predicted(states: States) -> float:
    """Return the fraction of the inputs' variance that a linear map of the previous state predicts."""
    rows = np.delete(np.arange(int(states.lengths.sum())), states.starts)
    rows = rows[:: max(1, len(rows) // MOST_STARTS)]
    inputs = as_numpy(states.inputs)[rows].astype(np.float64)
    previous = as_numpy(states.values)[rows - 1].astype(np.float64)
    if len(rows) < 4 * states.dim:  # too few to tell
        return 0.0
    inputs -= inputs.mean(axis=0)
    known = np.concatenate([previous, np.ones((len(previous), 1))], axis=1)
    half = len(rows) // 2  # fitted to one half of the sequences, measured on the other
    weights = np.linalg.lstsq(known[:half], inputs[:half], rcond=1e-6)[0]
    missed = np.square(inputs[half:] - known[half:] @ weights).sum()
    return 1 - float(missed) / float(np.square(inputs[half:]).sum() or np.inf) if inputs.any() else 0.0


def _fit(states: States, groups: Any, balance: Balance | None, count: int | None, *, driven: bool) -> Koopman:
    if balance is not None and count is not None:
        return fit(states, rank=min(count, balance.rank), basis=balance, driven=driven)
    koopman = fit(states, rank="auto", driven=driven, groups=groups)
    curve: Any = koopman.rank_curve
    errors = curve.errors.mean(axis=1)
    if NEARLY_EXACT * errors.min() < errors[list(curve.ranks).index(koopman.rank)]:
        rank = int(curve.ranks[np.argmax(errors <= CLEAR * errors.min())])
        return fit(states, rank=rank, driven=driven)
    return koopman


def _with_gates(driven: Operators, balance: Balance | None, count: int | None) -> Operators:
    """Add the gated operator if inputs gate, and explain the steps without input if there are enough of them."""
    states, koopman = driven.states, driven.koopman
    inputs: Any = states.inputs
    if inputs.shape[1] > MOST_GATING_INPUTS:
        return driven
    basis: Any = "pca" if balance is None else balance
    options = {"rank": min(koopman.rank, MOST_GATED_COORDINATES), "basis": basis}
    errors = _compare_gates(driven, options)
    if errors is None or errors[0] > errors[1] / CLEAR:
        return replace(driven, gated_errors=errors)
    gated = _fit_gated(states, driven.groups, options)
    figures = (
        f"Inputs gate this network: an operator whose matrix they change misses {percent(errors[0])} on held-out "
        f"sequences, and one to which they only add {percent(errors[1])}"
    )
    is_quiet = reads_nothing(inputs)
    if is_quiet.mean() < QUIET_FROM:
        note = (
            f"{figures}. So its modes differ from input to input: explained are those of the second, a mean over what "
            "was read, and .bilinear.at(u) has those at an input u (docs/gates.md)."
        )
        return replace(driven, bilinear=gated, gated_errors=errors, notes=(*driven.notes, note))
    pieces, groups = _quiet_pieces(states, driven.groups)
    quiet = _fit(pieces, groups, balance, count, driven=False)
    note = (
        f"{figures}. So that modes are the network's own, they are those of the {percent(is_quiet.mean())} of steps "
        f"that read nothing (rank {quiet.rank})."
    )
    return Operators(
        koopman=quiet,
        kind="quiet",
        states=pieces,
        groups=groups,
        bilinear=gated,
        gated_errors=errors,
        others={"driven by the inputs": koopman},
        notes=(*driven.notes[:-1], note),
    )


def _fit_gated(states: States, groups: Any, options: Mapping[str, Any]) -> Bilinear:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPairsWarning)  # its ridge was chosen on held-out sequences
        return fit(states, driven="bilinear", features="squares", groups=groups, **options)


def _compare_gates(driven: Operators, options: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return errors of a gated and a driven operator on sequences fitted by neither; None if there are too few."""
    states, groups = driven.states, driven.groups
    group_of = np.arange(len(states)) if groups is None else group_numbers(groups, len(states))
    is_kept = group_of % KEPT_FOR_COMPARING == 0
    groups = None if groups is None else group_of[~is_kept]
    try:
        gated = _fit_gated(states[~is_kept], groups, options)
        linear = fit(states[~is_kept], driven=True, **options)
        return several_step_error(gated, states[is_kept]), several_step_error(linear, states[is_kept])
    except KannError:
        return None


def several_step_error(koopman: Koopman | Bilinear, states: States) -> float:
    """Return the mean error over horizons of up to ten steps, as a fraction of the variance in its coordinates."""
    horizons = [steps for steps in HORIZONS if steps < states.lengths.max()]
    longest = horizons[-1]
    long_enough = np.flatnonzero(states.lengths > longest)
    starts = np.concatenate(
        [np.arange(states.starts[i], states.starts[i] + states.lengths[i] - longest) for i in long_enough]
    )
    starts = starts[:: max(1, len(starts) // MOST_STARTS)]
    rows = starts[:, None] + np.arange(1, longest + 1)
    values = as_numpy(states.values).astype(np.float64)
    made = koopman.rollout(values[starts], longest, inputs=as_numpy(states.inputs).astype(np.float64)[rows])
    at = np.array(horizons) - 1

    def coordinates(rows: Float[Array, "... d"]) -> Float[Array, "... r"]:
        return (rows - koopman.mean) @ koopman.basis  # the rest of a state is not modelled

    truth = coordinates(values)
    missed = np.square(coordinates(made[:, at]) - truth[rows[:, at]]).sum(axis=(0, 2))
    variance = np.square(truth[rows[:, at]] - truth.mean(axis=0)).sum(axis=(0, 2))
    return float((missed / variance).mean())
