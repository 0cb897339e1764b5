"""The curves at the top of the page in numbers: the live test, and what is left of one input after k steps."""

from typing import Any

import numpy as np

from kann._format import MISSING, duration, finite_or_none, fixed, from_to, number_of_steps, percent, plural
from kann.live.results import ALL, NAMES, Effects, Memory
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
    return percent(value) if is_fraction(effects) else fixed(value)


def _curve(means: Float[Array, " c"], intervals: Float[Array, "c 2"]) -> list[list[float | None]]:
    """Mean, lower and upper end for each number of coordinates; None where nothing was measured."""
    rows = np.column_stack([means, intervals]).tolist()
    return [[finite_or_none(value) for value in row] for row in rows]


def memory_numbers(memory: Memory | None) -> dict[str, Any] | None:
    """Return curves and half-lives of states, outputs and channels, next to an untrained copy; None if not measured."""
    if memory is None:
        return None
    curves = [_memory_curve(memory, of, ALL, of) for of in memory.compared]
    lives = {of: [_half_life(memory, name, of) for name in memory.names] for of in memory.compared}
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
        "untrained": {of: _half_life(copy, ALL, of) for of in copy.compared} if copy else {},
    }


def _memory_curve(memory: Memory, of: str, changed: str, name: str) -> dict[str, Any]:
    rows = (memory.left(changed, of=of).tolist(), *memory.interval(changed, of=of).T.tolist())
    left, low, high = ([finite_or_none(value) for value in row] for row in rows)
    return {"name": name, "of": of, "left": left, "low": low, "high": high, "is_untrained": False, "is_channel": False}


def _half_life(memory: Memory, changed: str, of: str) -> str:
    """Write a half-life with its interval, and in seconds where a step has a duration."""
    steps, longest = memory.half_life(changed, of=of), memory.lags[-1]
    if np.isnan(steps):
        return MISSING
    low, high = memory.half_life_interval(changed, of=of)
    text = plural("step", number_of_steps(steps) if steps < np.inf else f"over {longest:,}")
    if memory.step_seconds is not None:
        text += f" = {'over ' if steps == np.inf else ''}{duration(min(steps, longest) * memory.step_seconds)}"
    return f"{text} ({from_to(low, high, number_of_steps)})" if low < high < np.inf else text
