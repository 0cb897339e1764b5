"""An explanation in numbers, for files and programs."""

from typing import Any

from kann.analysis.live_effects import Effects
from kann.analysis.movers import Mover, Movers
from kann.reporting.layers import layer_numbers
from kann.reporting.packing import finite_or_none
from kann.reporting.trusting import KnownTrust, mode_trust_rows, trust_numbers

MOVERS_LISTED = 10
"""How many movers of each mode and direction are listed."""


def explanation_numbers(explanation: Any) -> dict[str, Any]:
    """Sentences and figures as JSON takes them."""
    koopman = explanation.koopman
    known = KnownTrust(trust=explanation.trust, reason="")
    own = mode_trust_rows(known) or [{}] * len(koopman.modes)
    effects = pushes = None
    if explanation.effects is not None:
        effects = effects_numbers(explanation.effects)
    if explanation.movers is not None:
        pushes = movers_numbers(explanation.movers)
    return {
        "sentences": list(explanation.sentences),
        "choices": list(explanation.choices),
        "step_seconds": explanation.page.get("step_seconds"),
        "units": koopman.dim,
        "rank": koopman.rank,
        "driven": koopman.drive is not None,
        "modes": [
            {"re": mode.eigenvalue.real, "im": mode.eigenvalue.imag, "modulus": mode.modulus, **row}
            for mode, row in zip(koopman.modes, own, strict=True)
        ],
        "trust": trust_numbers(known),
        "steps": layer_numbers(explanation.steps, explanation.page.get("step_names")),
        "effects": effects,
        "alone": {str(mode): list(scores) for mode, scores in explanation.alone.items()},
        "movers": pushes,
        "accuracy": explanation.accuracy,
        "held_out": explanation.held_out.tolist(),
    }


def movers_numbers(movers: Movers) -> dict[str, Any]:
    """What pushes each mode, the surest first."""

    def rows(side: list[Mover]) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "push": each.push, "interval": [each.low, each.high], "count": each.count}
            for each in side
        ]

    return {
        "by": movers.by,
        "modes": {
            str(mode): {"up": rows(movers.up(mode, MOVERS_LISTED)), "down": rows(movers.down(mode, MOVERS_LISTED))}
            for mode in movers.modes
        },
    }


def effects_numbers(found: Effects) -> dict[str, Any]:
    """What a live test measured."""

    def table(means: Any, *, removed: bool) -> dict[str, Any]:
        return {
            name: {
                "mean": [finite_or_none(float(each)) for each in mean],
                "interval": [
                    [finite_or_none(float(end)) for end in ends] for ends in found.interval(name, removed=removed)
                ],
            }
            for name, mean in means.items()
        }

    return {
        "metric": found.metric,
        "outputs": found.outputs,
        "fill": found.fill,
        "counts": list(found.counts),
        "sequences": len(found.judged),
        "full": float(found.full),
        "none": float(found.none),
        "order": list(found.order),
        "kept": table(found.kept, removed=False),
        "removed": table(found.removed, removed=True),
        "tried": [
            {"name": each.name, "recovered": each.recovered, "sequences": each.sequences} for each in found.tried
        ],
    }
