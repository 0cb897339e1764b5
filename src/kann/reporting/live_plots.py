"""Figures about what modes do in the running network, and what pushes them."""

from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from kann.analysis.live_effects import NAMES, Effects
from kann.analysis.movers import Movers
from kann.checks import require_instance, require_whole_number
from kann.reporting.axes import COLOURS, DASHES, INK, axes_or_new, legend_above
from kann.reporting.curves import is_fraction, score_in_words
from kann.typing import Array, Float

FARTHEST = 1.2
"""Scores are drawn up to so many times the distance of the untouched network from nothing kept: single directions may
do much worse than nothing at all, and would squeeze all others."""

LINE_OF_A_LABEL = 26
"""Letters in a line of an axis label: more would be longer than the axis in a small figure."""

UP, DOWN = "#E69F00", "#56B4E9"
"""Colours of what pushes a mode up and down, as on the page."""


def draw_effects(effects: Effects, *, ax: Axes | None = None, removed: bool = False) -> Axes:
    """How well a network does against the number of coordinates kept, or removed: a line for each method.

    ``effects`` is what `kann.effects` returned. Bands are intervals over sequences, of random directions the range over
    draws; the dotted line is the network with its state held at the mean. Scores that are far worse than that lie
    outside.
    """
    require_instance(effects, Effects, "effects")
    ax = axes_or_new(ax)
    means, draws, what = effects.kept, effects.random_kept, "kept"
    if removed:
        means, draws, what = effects.removed, effects.random_removed, "removed"
    counts = np.array(effects.counts)
    for i, (name, mean) in enumerate(means.items()):
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
        low, high = effects.interval(name, removed=removed).T
        if name == "random":
            low, high = draws.min(axis=0), draws.max(axis=0)
        words = NAMES.get(name, name)
        ax.plot(counts, mean, color=colour, linestyle=dash, linewidth=1.2, marker=".", markersize=4, label=words)
        ax.fill_between(counts, low, high, color=colour, alpha=0.12, linewidth=0)
    ax.axhline(effects.none, color="#999999", linestyle=":", linewidth=0.8)
    ax.set_xscale("log", base=2)
    score = score_in_words(effects)
    if is_fraction(effects):
        score = f"fraction of {score}"
    ax.set(
        xlabel=f"coordinates {what}",
        ylabel=fill(score, LINE_OF_A_LABEL),
        xticks=counts,
        xticklabels=[str(c) for c in counts],
    )
    ax.set_ylim(*_shown_scores(effects, np.concatenate(list(means.values()))))
    legend_above(ax)
    return ax


def _shown_scores(effects: Effects, scores: Float[Array, " n"]) -> tuple[float, float]:
    """The range of scores that are drawn: those which are not far outside untouched and nothing kept."""
    full, none = float(effects.full), float(effects.none)
    ends = np.r_[scores[np.isfinite(scores)], full, none]
    reach = FARTHEST * abs(full - none) or 1.0
    near = ends[(np.abs(ends - none) <= reach) | (np.abs(ends - full) <= reach)]
    room = 0.08 * float(np.ptp(near)) or 0.1
    return float(near.min()) - room, float(near.max()) + room


def draw_movers(movers: Movers, mode: int, *, ax: Axes | None = None, count: int = 5) -> Axes:
    """What pushes a mode up and down most, as bars with their intervals over sequences.

    ``movers`` is what `kann.movers` returned, and ``count`` how many bars there are on each side at most. Pushes are in
    standard deviations of the mode; bars are pale where the interval holds zero.
    """
    require_instance(movers, Movers, "movers")
    count = require_whole_number(count, "count", least=1)
    found = [*movers.up(mode, count), *movers.down(mode, count)]
    found.sort(key=lambda each: each.push)
    ax = axes_or_new(ax)
    for place, each in enumerate(found):
        style: Any = {"color": DOWN, "alpha": 1.0}
        if each.push > 0:
            style["color"] = UP
        if not each.sure:
            style["alpha"] = 0.35
        ax.barh(place, each.push, height=0.6, **style)
        ax.plot([each.low, each.high], [place, place], color=INK, linewidth=0.8)
    # To matplotlib, a dollar sign begins a formula.
    ax.set_yticks(range(len(found)), [each.name.replace("$", r"\$") for each in found])
    ax.axvline(0.0, color="#999999", linewidth=0.8)
    ax.set(xlabel=f"push of mode {mode} (standard deviations)")
    return ax
