"""Choose the operator, autonomous, driven or gated by the inputs, by errors on sequences that were not fitted."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kann._format import percent
from kann.backends.arrays import as_numpy
from kann.data.moments import Moments
from kann.data.states import States
from kann.errors import DependenceWarning, FewPairsWarning, KannError
from kann.fitting._fit import fit
from kann.fitting.bilinear import Bilinear
from kann.fitting.folds import group_numbers
from kann.fitting.horizons import HORIZONS
from kann.fitting.koopman import Koopman
from kann.fitting.pair_selection import only_pairs
from kann.typing import Array, Int, Shaped

CLEAR = 2.0
"""Gates are believed in if they make the error this many times smaller: they have many more unknowns."""

NEARLY_EXACT = 20.0
"""``rank="auto"`` takes a small rank that predicts nearly as well as any. If a larger one's error is this many times
smaller, states follow a linear rule, and only that rank has its eigenvalues."""

WORTH_IT = 1.02
"""The driven operator is taken if the autonomous one's error is larger by this factor."""

MOST_GATING_INPUTS = 16
"""Gates are tried for at most so many inputs: each multiplies all coordinates."""

MOST_GATED_COORDINATES = 24
"""How many coordinates gated operators have at most, for the same reason."""

QUIET_FROM = 0.2
"""What a network does while it reads nothing can be fitted if this fraction of steps reads zeros."""

MOST_STARTS = 2000
"""From how many states predictions several steps ahead are made, to compare gated operators with others."""

KEPT_FOR_COMPARING = 4
"""One sequence, or group of them, in so many is held out to compare gated operators with driven ones."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fitted:
    """The operator whose modes are explained, and what was compared to choose it."""

    koopman: Koopman
    kind: str
    """"autonomous", "driven", "quiet" (autonomous, of steps that read nothing)."""
    states: States
    """The states that it was fitted to; of a quiet one cut where something was read."""
    groups: Any
    """For each of these sequences what it is held out with; None if nothing."""
    gated: Bilinear | None = None
    """The operator that its inputs gate, if it predicts clearly better."""
    others: dict[str, Koopman] = field(default_factory=dict)
    """The operators that were not chosen, by name."""
    why: Sequence[str] = ()

    def to_trust(self, folds: int, seed: int) -> tuple[States | list[Moments], dict[str, Any]]:
        """What `kann.trust` measures on, and how it holds sequences out.

        Pieces of steps that read nothing are short, and a memory is the same all through one of them: states in
        shuffled order would predict it as well. So they are folds of moments, whose null shuffles over all pieces.
        """
        if self.kind != "quiet":
            return self.states, {"groups": self.groups, "folds": folds, "seed": seed}
        fold_of = group_numbers(self.groups, len(self.states)) % folds
        parts = [Moments.of(self.states[fold_of == fold], inputs=False) for fold in range(folds)]
        return parts, {"folds": folds, "seed": seed}

    def cut(self, states: States) -> States:
        """Other states of the same sequences, cut as those that were fitted."""
        if self.kind == "quiet":
            return only_pairs(states, _reads_nothing)[0]
        return states


def _reads_nothing(inputs: Any) -> Shaped[Array, " n"]:
    return (as_numpy(inputs) == 0).all(axis=-1)


def choose_operator_held_out(states: States, groups: Any) -> Fitted:
    """Fit all kinds of operators, and take the one that predicts held-out sequences best several steps ahead."""
    autonomous, own_error = _fit_auto(states, groups, driven=False)
    if states.inputs is None:
        why = (
            f"The operator is autonomous, of rank {autonomous.rank}, chosen by held-out sequences; what the "
            "layer reads was not recorded."
        )
        return Fitted(koopman=autonomous, kind="autonomous", states=states, groups=groups, why=[why])
    found = _driven(states, groups)
    if found is None:
        why = (
            f"The operator is autonomous, of rank {autonomous.rank}: inputs contain the state, so that what each of "
            "them does cannot be told apart."
        )
        return Fitted(koopman=autonomous, kind="autonomous", states=states, groups=groups, why=[why])
    driven, error = found
    figures = (
        f"Up to {_horizons(states)[-1]} steps ahead on held-out sequences, the operator that also reads the inputs "
        f"misses {percent(error)} of the states' variance (rank {driven.rank}), the autonomous one "
        f"{percent(own_error)} (rank {autonomous.rank})"
    )
    if own_error < WORTH_IT * error:
        why = [f"{figures}: the autonomous one is explained."]
        return Fitted(
            koopman=autonomous,
            kind="autonomous",
            states=states,
            groups=groups,
            others={"driven by the inputs": driven},
            why=why,
        )
    chosen = Fitted(
        koopman=driven,
        kind="driven",
        states=states,
        groups=groups,
        others={"autonomous": autonomous},
        why=[f"{figures}: the one that reads the inputs is explained."],
    )
    return _with_gates(chosen)


def _driven(states: States, groups: Any) -> tuple[Koopman, float] | None:
    """The operator that reads the inputs; None if inputs contain the state."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DependenceWarning)
        try:
            return _fit_auto(states, groups, driven=True)
        except DependenceWarning:
            return None


def _fit_auto(states: States, groups: Any, *, driven: bool) -> tuple[Koopman, float]:
    """An operator of the rank that held-out sequences choose, and its mean error over horizons on them."""
    koopman = fit(states, rank="auto", driven=driven, groups=groups)
    curve = koopman.rank_curve
    assert curve is not None  # noqa: S101  # rank="auto" keeps it
    errors = curve.errors.mean(axis=1)
    own, best = float(errors[list(curve.ranks).index(koopman.rank)]), float(errors.min())
    if NEARLY_EXACT * best < own:
        rank = int(curve.ranks[np.argmax(errors <= CLEAR * best)])
        return fit(states, rank=rank, driven=driven), best
    return koopman, own


def _with_gates(driven: Fitted) -> Fitted:
    """The same, or what the network does while it reads nothing, if inputs gate what it does."""
    states = driven.states
    inputs: Any = states.inputs
    if inputs.shape[1] > MOST_GATING_INPUTS:
        return driven
    rank = min(driven.koopman.rank, MOST_GATED_COORDINATES)
    compared = _compare_gates(driven, rank)
    if compared is None or compared[0] > compared[1] / CLEAR:
        return driven
    figures = (
        f"Inputs gate this network: an operator whose matrix they change misses {percent(compared[0])} on sequences "
        f"that it was not fitted to, and one to which they only add {percent(compared[1])}"
    )
    gated = _fit_gated(states, rank, driven.groups)
    is_quiet = _reads_nothing(inputs)
    if is_quiet.mean() < QUIET_FROM:
        why = (
            f"{figures}. So its modes differ from input to input: explained are those of the second, a mean over what "
            "was read, and .gated.at(u) has those at an input u (docs/gates.md)."
        )
        return replace(driven, gated=gated, why=[*driven.why[:-1], why])
    return _quiet(driven, gated, is_quiet, figures)


def _fit_gated(states: States, rank: int, groups: Any) -> Bilinear:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPairsWarning)  # its ridge was chosen on held-out sequences
        return fit(states, driven="bilinear", features="squares", rank=rank, groups=groups)


def _compare_gates(driven: Fitted, rank: int) -> tuple[float, float] | None:
    """Errors of a gated and of a driven operator on sequences that neither was fitted to; None if there are too few."""
    states = driven.states
    groups, group_of = driven.groups, np.arange(len(states))
    if groups is not None:
        group_of = group_numbers(groups, len(states))
    is_kept = group_of % KEPT_FOR_COMPARING == 0
    if groups is not None:
        groups = [group for group, kept in zip(groups, is_kept, strict=True) if not kept]
    try:
        gated = _fit_gated(states[~is_kept], rank, groups)
        linear = fit(states[~is_kept], driven=True, rank=driven.koopman.rank)
        return tuple(several_step_error(each, states[is_kept]) for each in (gated, linear))  # type: ignore[return-value]
    except KannError:
        return None


def _horizons(states: States) -> list[int]:
    """How many steps ahead states are predicted, as far as sequences are that long."""
    return [steps for steps in HORIZONS if steps < states.lengths.max()]


def several_step_error(koopman: Koopman | Bilinear, states: States) -> float:
    """The mean error over horizons of up to ten steps, as a fraction of the states' variance."""
    horizons = _horizons(states)
    longest = horizons[-1]
    long_enough = np.flatnonzero(states.lengths > longest)
    starts = np.concatenate(
        [np.arange(states.starts[i], states.starts[i] + states.lengths[i] - longest) for i in long_enough]
    )
    starts = starts[:: max(1, len(starts) // MOST_STARTS)]
    rows = starts[:, None] + np.arange(1, longest + 1)
    values = as_numpy(states.values).astype(np.float64)
    inputs = as_numpy(states.inputs).astype(np.float64)
    made = koopman.rollout(values[starts], longest, inputs=inputs[rows])
    at = np.array(horizons) - 1
    missed = np.square(made[:, at] - values[rows[:, at]]).sum(axis=(0, 2))
    variance = np.square(values[rows[:, at]] - values.mean(axis=0)).sum(axis=(0, 2))
    return float((missed / variance).mean())


def _quiet(driven: Fitted, gated: Bilinear, is_quiet: Shaped[Array, " n"], figures: str) -> Fitted:
    """The operator of the steps that read nothing."""
    pieces, source = only_pairs(driven.states, is_quiet)
    groups: Int[Array, " s"] | list[Any] = source
    if driven.groups is not None:
        groups = [driven.groups[i] for i in source]
    koopman, _ = _fit_auto(pieces, groups, driven=False)
    why = (
        f"{figures}. So that modes are the network's own, they are those of the {percent(is_quiet.mean())} of "
        f"steps that read nothing (rank {koopman.rank})."
    )
    return Fitted(
        koopman=koopman,
        kind="quiet",
        states=pieces,
        groups=groups,
        gated=gated,
        others={"driven by the inputs": driven.koopman, **driven.others},
        why=[*driven.why[:-1], why],
    )
