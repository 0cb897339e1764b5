"""Figures about depth: which layers are linear, and what happens if they are replaced."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from kann.analysis.bypassed import METHODS, BypassEffects
from kann.analysis.step_trust import PREDICTIONS, StepTrust
from kann.checks import require_choice, require_instance
from kann.errors import KannError
from kann.reporting.axes import COLOURS, DASHES, INK, axes_or_new, legend_above

MOST_TICKS = 16
"""So many steps are named along an axis; of more, every second, third, … is."""

MEASURES = {
    "loss": "loss (nats)",
    "kl": "KL from the untouched network (nats)",
    "agreement": "decisions as those of\nthe untouched network",
    "accuracy": "accuracy",
}
"""The measures of `kann.bypass_effects` as labels of an axis."""

BETWEEN = 0.18
"""How far apart the methods of one span are drawn; spans are 1 apart."""


def draw_steps(trust: StepTrust, *, ax: Axes | None = None, names: Sequence[str] | None = None) -> Axes:
    """Which layers are linear: the held-out error of each step by identity, one operator and its own map.

    Shades are confidence intervals. ``names`` are those of the steps, such as of layers; numbers from 0 by default.
    """
    require_instance(trust, StepTrust, "trust")
    places = np.arange(len(trust))
    labels = [str(place) for place in places]
    if names is not None:
        labels = [str(name) for name in names]
        if len(labels) != len(trust):
            raise KannError(f"there are {len(labels)} names for {len(trust)} steps; pass one for each")
    ax = axes_or_new(ax)
    for i, (name, words) in enumerate(PREDICTIONS.items()):
        style: Any = {"color": COLOURS[i], "linestyle": DASHES[i], "marker": "os^"[i]}
        ax.fill_between(places, *trust.intervals[name].T, color=COLOURS[i], alpha=0.2, linewidth=0)
        ax.plot(places, trust.errors[name], markersize=3, linewidth=1.2, label=words, **style)
    every = -(-len(places) // MOST_TICKS)
    ax.set_xticks(places[::every], labels[::every])
    ax.set(xlabel="layer", ylabel="held-out error\n(fraction of variance)")
    ax.set_ylim(bottom=0)
    legend_above(ax)
    return ax


def draw_bypasses(effects: BypassEffects, *, measure: str | None = None, ax: Axes | None = None) -> Axes:
    """What happens if spans of layers are replaced: a dot for each span and operator, with its confidence interval.

    ``measure`` is one of ``effects.measures``, the loss by default. The line is the untouched network.
    """
    require_instance(effects, BypassEffects, "effects")
    if measure is None:
        measure = effects.main_measure
    require_choice(measure, "measure", effects.measures)
    ax = axes_or_new(ax)
    means, intervals = effects.means[measure], effects.interval(measure)
    places = np.arange(len(effects.spans), dtype=float)
    for i, words in enumerate(METHODS.values()):
        reach = np.abs(intervals[:, i].T - means[:, i])
        at = places + (i - (len(METHODS) - 1) / 2) * BETWEEN
        style: Any = {"color": COLOURS[i], "marker": "osD^"[i], "linestyle": "none"}
        ax.errorbar(at, means[:, i], yerr=reach, markersize=4, linewidth=1.0, elinewidth=1.0, label=words, **style)
    ax.axhline(effects.own[measure], color=INK, linestyle=":", linewidth=0.8, label="untouched")
    ax.set_xticks(places, effects.names, rotation=30, ha="right")
    ax.set(ylabel=MEASURES[measure], xlabel="layers replaced")
    low, high = ax.get_ylim()
    room = 0.04 * (high - low)
    ax.set_ylim(low - room, high + room)  # the untouched network is the best there is, and would lie on the frame
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax
