"""Results in numbers for the page: modes, how well operators predict the network, layers, live test and memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kann._format import finite_or_none, with_step_name
from kann.analysis.fidelity import Predictor, agreement, driving_inputs
from kann.backends.arrays import as_numpy
from kann.depth._trust import PREDICTIONS, StepTrust
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.live.results import ALL, NAMES, Effects, Memory
from kann.reporting.inputs import ReportInputs
from kann.reporting.trust import KnownTrust, mode_trust_rows
from kann.typing import Array, Float

MAX_CURVE_POINTS = 400
"""Points of a curve over time: more cannot be told apart on a screen."""

SLOW_FROM = 0.99
"""Modulus above which a mode is called slow."""


def mode_rows(
    koopman: Koopman, importances: Float[Array, " m"], known: KnownTrust, *, step_name: str
) -> list[dict[str, Any]]:
    """Return the rows of the table of modes, by decreasing modulus, with held-out evidence if known."""
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
    for row, own in zip(rows, mode_trust_rows(known), strict=known.trust is not None):
        row |= own | {"why": with_step_name(own["why"], step_name)}
    return rows


def prediction_quality(inputs: ReportInputs, koopman: Predictor) -> dict[str, Any]:
    """Return the errors of an operator or of `kann.copying` on the states shown, and the decisions that it keeps.

    Errors are fractions of the states' variance, as those of `kann.trust` on held-out sequences are.
    """
    states, kept = inputs.states, None
    if not (states.lengths > 1).any():
        raise KannError("no state can be compared: every sequence has one step; pass longer sequences")
    if inputs.readout is not None and inputs.readout_is_all:
        kind, threshold = inputs.outputs_kind, inputs.threshold
        kept = agreement(koopman, states, inputs.readout, outputs=kind, threshold=threshold)
    drive = driving_inputs(koopman, states)
    rows = as_numpy(states.values[:]).astype(np.float64)
    predicted = koopman.predict(rows[:-1], inputs=None if drive is None else as_numpy(drive[:])[1:])
    missed = np.r_[np.nan, np.square(as_numpy(predicted) - rows[1:]).sum(axis=1)]
    missed[states.starts] = np.nan  # nothing predicts the first state of a sequence
    missed /= max(float(np.delete(rows, states.starts, axis=0).var(axis=0).sum()), np.finfo(float).tiny)
    # By step, averaged over the sequences that are that long; too many steps are thinned out.
    steps = np.arange(len(missed)) - np.repeat(states.starts, states.lengths)
    mean = np.bincount(steps, weights=np.nan_to_num(missed)) / np.bincount(steps)
    drawn = np.unique(np.linspace(1, len(mean) - 1, min(len(mean) - 1, MAX_CURVE_POINTS)).astype(int))
    return {
        "error": float(np.nanmean(missed)),
        "agreement": kept,
        "outputs": inputs.outputs_kind,
        "times": {"step": drawn.tolist(), "error": [finite_or_none(value) for value in mean[drawn].tolist()]},
    }


def operator_quality(inputs: ReportInputs, koopman: Koopman, known: KnownTrust) -> dict[str, Any]:
    """Return how well an operator predicts the network, in numbers."""
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
        "condition": finite_or_none(koopman.condition),
        "slow": sum(mode.modulus > SLOW_FROM for mode in koopman.modes),
        "trusted": None if known.trust is None else len(known.trust.trusted),
        "modes": len(koopman.modes),
        "eigenvalues": [[value.real, value.imag] for value in koopman.eigenvalues.tolist()],
    }


def layer_numbers(steps: StepTrust | None, names: Sequence[str] | None) -> dict[str, Any] | None:
    """Return errors with their intervals, layer by layer; None if no maps were fitted to single layers.

    Layers are counted from 1, as states are on the page: layer 1 leads from state 0 to state 1.
    """
    if steps is None:
        return None
    better, parts = steps.better_than_identity, steps.linear_part.tolist()
    rows = []
    for place in range(len(steps)):
        row: dict[str, Any] = {"number": place + 1, "name": names[place] if names else None, "better": place in better}
        for prediction in PREDICTIONS:
            error, interval = steps.errors[prediction][place], steps.intervals[prediction][place]
            row[prediction] = [finite_or_none(float(value)) for value in (error, *interval)]
        rows.append(row | {"linear_part": finite_or_none(parts[place])})
    return {"folds": steps.folds, "level": steps.level, "layers": rows, "one_is_worse": len(steps.one_is_worse)}


def most_are_worse(worse: int, total: int) -> bool:
    """Return True if copying is better at more than half of the layers: a mean over layers must then not be praised."""
    return 2 * worse > total


def where_copying_is_better(
    quality: dict[str, Any], copying: dict[str, Any], *, steps: StepTrust | None, step_name: str
) -> str:
    """Write at how many layers copying beats the operator; empty if it is not at most of them.

    Along time a mean is over many steps of one kind, and the text is empty.
    """
    if step_name == "step":
        return ""
    pairs = zip(quality["times"]["error"], copying["times"]["error"], strict=True)
    is_worse = [own > copied for own, copied in pairs if own is not None and copied is not None]
    worse, total = sum(is_worse), len(is_worse)
    if steps is not None:
        worse, total = len(steps.one_is_worse), len(steps)
    if not most_are_worse(worse, total):
        return ""
    return f"copying is better at {worse} of the {total} {step_name}s"


def effect_numbers(effects: Effects | None) -> dict[str, Any] | None:
    """Return means and intervals of each method, with coordinates kept and removed; None without a live test."""
    if effects is None:
        return None
    article = "the fraction of " if effects.is_fraction else "the "
    if effects.outputs == "values" and effects.metric in ("agreement", "accuracy"):
        article = ""  # an R² has none
    return {
        "counts": list(effects.counts),
        "score": effects.score_in_words,
        "score_in_full": article + effects.score_in_words,
        "percent": effects.is_fraction,
        "lower": effects.metric == "loss",
        "full": finite_or_none(float(effects.full)),
        "none": finite_or_none(float(effects.none)),
        "sequences": len(effects.judged),
        "level": effects.level,
        "methods": [
            {
                "name": name,
                "label": NAMES.get(name, name),
                "kept": _curve(effects.kept[name], effects.interval(name)),
                "removed": _curve(effects.removed[name], effects.interval(name, removed=True)),
            }
            for name in effects.methods
        ],
    }


def _curve(means: Float[Array, " c"], intervals: Float[Array, "c 2"]) -> list[list[float | None]]:
    """Mean, lower and upper end for each number of coordinates; None where not measured."""
    rows = np.column_stack([means, intervals]).tolist()
    return [[finite_or_none(value) for value in row] for row in rows]


def memory_numbers(memory: Memory | None) -> dict[str, Any] | None:
    """Return curves and half-lives of states, outputs and channels, next to an untrained copy; None if not measured."""
    if memory is None:
        return None
    curves = [_memory_curve(memory, of, ALL, of) for of in memory.compared]
    lives = {of: [memory.half_life_in_words(name, of=of) for name in memory.names] for of in memory.compared}
    copy = memory.untrained
    if copy is not None:
        curves += [_memory_curve(copy, of, ALL, f"{of}, untrained") | {"is_untrained": True} for of in copy.compared]
    of = memory.compared[0]
    curves += [_memory_curve(memory, of, name, f"{of}, {name}") | {"is_channel": True} for name in memory.names[1:]]
    return {
        "lags": list(memory.lags),
        "curves": curves,
        "changed": list(memory.names),
        "lives": lives,
        "untrained": {of: copy.half_life_in_words(of=of) for of in copy.compared} if copy else {},
    }


def _memory_curve(memory: Memory, of: str, changed: str, name: str) -> dict[str, Any]:
    rows = (memory.left(changed, of=of).tolist(), *memory.interval(changed, of=of).T.tolist())
    left, low, high = ([finite_or_none(value) for value in row] for row in rows)
    return {"name": name, "of": of, "left": left, "low": low, "high": high, "is_untrained": False, "is_channel": False}
