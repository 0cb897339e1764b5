"""What a report says about operators: their modes in numbers, and how well each operator predicts the network."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kann._format import with_step_name
from kann.analysis.fidelity import agreement, relative_error
from kann.analysis.modes import importance
from kann.backends.arrays import as_numpy
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.reporting.answers import readout_is_all
from kann.reporting.inputs import ReportInputs
from kann.reporting.packing import finite_or_none
from kann.reporting.trust_payload import KnownTrust, mode_trust_rows
from kann.typing import Array, Float, Int

MAX_CURVE_POINTS = 400
"""Points of a curve over time: more cannot be told apart on a screen."""

SLOW_FROM = 0.99
"""Modulus above which a mode is called slow."""


def mode_importance(koopman: Koopman, states: States) -> Float[Array, " m"]:
    """The importance ξ of each mode: the sum over its eigenvectors."""
    by_eigenvector = importance(koopman, states)
    return np.array([by_eigenvector[list(mode.indices)].sum() for mode in koopman.modes])


def slowest_and_most_important(importances: Float[Array, " m"], count: int) -> tuple[int, ...]:
    """Numbers of ``count`` modes: half of them the slowest, the others the most important of the rest.

    >>> slowest_and_most_important(np.array([1.0, 1.0, 1.0, 9.0, 5.0, 8.0]), 4)
    (0, 1, 3, 5)
    """
    slowest = list(range(min(len(importances), (count + 1) // 2)))  # modes are sorted by decreasing modulus
    rest = [number for number in np.argsort(-importances, kind="stable").tolist() if number not in slowest]
    return tuple(sorted([*slowest, *rest[: count - len(slowest)]]))


def modes_to_show(importances: Float[Array, " m"], count: int, matter: Sequence[int]) -> tuple[int, ...]:
    """Numbers of the modes that are shown for each sequence: those that matter, and others up to ``count``."""
    others = [number for number in slowest_and_most_important(importances, count) if number not in matter]
    return tuple(sorted([*matter, *others[: max(0, count - len(matter))]]))


def mode_rows(
    koopman: Koopman, importances: Float[Array, " m"], known: KnownTrust, *, step_name: str
) -> list[dict[str, Any]]:
    """The rows of the table of modes, by decreasing modulus; with what held-out sequences say, if that is known."""
    rows = [
        {
            "number": number,
            "re": mode.eigenvalue.real,
            "im": mode.eigenvalue.imag,
            "pair": len(mode.indices) > 1,
            "modulus": mode.modulus,
            "period": finite_or_none(mode.period),
            "horizon": finite_or_none(mode.horizon()),
            "residual": finite_or_none(mode.residual),  # infinite where the states have no energy
            "importance": float(own),
        }
        for number, (mode, own) in enumerate(zip(koopman.modes, importances, strict=True))
    ]
    trusts = mode_trust_rows(known) or [{}] * len(rows)
    named = [own | {"why": with_step_name(own["why"], step_name)} for own in trusts if own]
    return [row | own for row, own in zip(rows, named or trusts, strict=True)]


def copying_operator(dim: int) -> Koopman:
    """The operator that predicts that nothing changes, the baseline of all others."""
    own = np.eye(dim)
    return Koopman(
        matrix=own,
        basis=own,
        mean=np.zeros(dim),
        explained=np.full(dim, 1 / dim),
        eigenvalues=np.ones(dim, dtype=complex),
        right=own.astype(complex),
        left=own.astype(complex),
        residuals=np.zeros(dim),
        condition=1.0,
        drive=None,
        offset=None,
    )


def prediction_quality(inputs: ReportInputs, koopman: Koopman) -> dict[str, Any]:
    """The error of one step on the states shown, and the fraction of decisions kept if there is a readout.

    The error is a fraction of the states' variance, as those of `kann.trust` on held-out sequences are.
    """
    missed = missed_variance(koopman, inputs.states)
    numbers: dict[str, Any] = {
        "error": float(np.nanmean(missed)),
        "agreement": None,
        "outputs": inputs.outputs_kind,
    }
    # Of sequences with a single state there is nothing to predict.
    if inputs.readout is not None and (inputs.states.lengths > 1).any() and readout_is_all(inputs):
        numbers["agreement"] = agreement(
            koopman, inputs.states, inputs.readout, outputs=inputs.outputs_kind, threshold=inputs.threshold
        )
    return numbers


def copying_quality(inputs: ReportInputs) -> dict[str, Any]:
    """The same for copying the previous state, which every other figure stands beside; and its error over time."""
    copying = copying_operator(inputs.koopman.dim)
    return prediction_quality(inputs, copying) | {"times": errors_over_time(copying, inputs.states)}


def operator_quality(inputs: ReportInputs, koopman: Koopman, known: KnownTrust) -> dict[str, Any]:
    """How well an operator predicts the network, in numbers."""
    found = prediction_quality(inputs, koopman)
    if not np.isfinite(found["error"]):
        raise KannError(
            f"the operator predicts these states with an error of {found['error']}; pass states like those it was "
            "fitted to"
        )
    return found | {
        "driven": koopman.drive is not None,
        "rank": koopman.rank,
        "explained": float(koopman.explained.sum()),
        "times": errors_over_time(koopman, inputs.states),
        "condition": finite_or_none(koopman.condition),
        "slow": sum(mode.modulus > SLOW_FROM for mode in koopman.modes),
        "trusted": known.count,
        "modes": len(koopman.modes),
        "eigenvalues": [[value.real, value.imag] for value in koopman.eigenvalues.tolist()],
    }


def missed_variance(koopman: Koopman, states: States) -> Float[Array, " n"]:
    """What one step misses of each state, |predicted − true|², over the variance of the states that it predicts.

    First states of sequences, which nothing predicts, have NaN.
    """
    errors = np.asarray(relative_error(koopman, states, reduce="none"))
    rows = as_numpy(states.values[:]).astype(np.float64)
    missed = np.nan_to_num(errors) * np.einsum("nd,nd->n", rows, rows)  # NaN where a state is zero
    missed[states.starts] = np.nan
    predicted = np.delete(rows, states.starts, axis=0)
    if not len(predicted):
        raise KannError("no state can be compared: every sequence has one step; pass longer sequences")
    variance = float(np.sum(np.var(predicted, axis=0)))
    return missed / max(variance, np.finfo(float).tiny)


def errors_over_time(koopman: Koopman, states: States) -> dict[str, list[Any]]:
    """The missed fraction of the variance at each step, averaged over the sequences that are that long."""
    errors = missed_variance(koopman, states)
    steps = np.arange(len(errors)) - np.repeat(states.starts, states.lengths)
    defined = ~np.isnan(errors)  # the first state of a sequence is not predicted
    count = np.bincount(steps[defined], minlength=steps.max() + 1)
    total = np.bincount(steps[defined], weights=errors[defined], minlength=steps.max() + 1)
    with np.errstate(invalid="ignore"):
        mean = total / count
    drawn = _steps_drawn(len(mean))
    return {"step": drawn.tolist(), "error": [finite_or_none(value) for value in mean[drawn].tolist()]}


def _steps_drawn(count: int) -> Int[Array, " k"]:
    """The steps at which a curve over ``count`` steps is drawn, without the first, which is not predicted."""
    if count <= MAX_CURVE_POINTS:
        return np.arange(1, count)
    return np.unique(np.linspace(1, count - 1, MAX_CURVE_POINTS).astype(int))
