"""The live test in numbers for the page: what is left of the network's answers, by the number of coordinates."""

from typing import Any

import numpy as np

from kann._format import finite_or_none, percent, significant
from kann.live.results import NAMES, Effects
from kann.typing import Array, Float

SCORES = {
    ("agreement", "class"): "decisions that stay the network's",
    ("agreement", "labels"): "answers that stay the network's",
    ("agreement", "values"): "R² with the network's own outputs",
    ("accuracy", "class"): "decisions that are right",
    ("accuracy", "labels"): "answers that are right",
    ("accuracy", "values"): "R² with the true values",
}
"""What a score is, by the metric and by what outputs are."""


def effect_numbers(effects: Effects | None) -> dict[str, Any] | None:
    """Means and intervals of each method, with coordinates kept and removed; None if nothing was tested live."""
    if effects is None:
        return None
    return {
        "counts": list(effects.counts),
        "score": score_in_words(effects),
        "score_in_full": score_in_full(effects),
        "percent": is_fraction(effects),
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


def score_in_words(effects: Effects) -> str:
    """What a score is: "decisions that stay the network's", "loss", or "score" for a function of the user's."""
    default = "score" if effects.metric == "own" else effects.metric
    return SCORES.get((effects.metric, effects.outputs), default)


def score_in_full(effects: Effects) -> str:
    """The same as part of a sentence: "the fraction of decisions that stay the network's"."""
    score = score_in_words(effects)
    if is_fraction(effects):
        return f"the fraction of {score}"
    return score if effects.metric in ("agreement", "accuracy") else f"the {score}"  # an R² has no article


def is_fraction(effects: Effects) -> bool:
    """Whether a score is a fraction of answers, to be written in percent."""
    return effects.metric in ("agreement", "accuracy") and effects.outputs != "values"


def written_score(effects: Effects, value: float) -> str:
    """A score as people read it: 93 %, or a number."""
    return percent(value) if is_fraction(effects) else significant(value)


def _curve(means: Float[Array, " c"], intervals: Float[Array, "c 2"]) -> list[list[float | None]]:
    """Mean, lower and upper end for each number of coordinates; None where nothing was measured."""
    rows = np.column_stack([means, intervals]).tolist()
    return [[finite_or_none(value) for value in row] for row in rows]
