"""Figures for papers: each function draws a result on an ``ax``, a new one if none is given, and returns it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from scipy import ndimage

from kann._format import confidence, finite_or_none
from kann.analysis._movers import Movers
from kann.analysis._pseudospectrum import Pseudospectrum
from kann.analysis._trust import Trust
from kann.analysis.comparison import Comparison
from kann.analysis.word_pairs import LEAST_READ, WordPairs
from kann.backends.arrays import as_numpy
from kann.checks import (
    entries_by_name,
    file_to_write,
    require_all_finite,
    require_choice,
    require_instance,
    require_text,
    require_whole_number,
    short_repr,
)
from kann.depth._trust import PREDICTIONS, StepTrust
from kann.depth.results import METHODS, PROFILED, BypassEffects, Profile
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.live.history import FIGURES, Checkpoint, History, require_histories
from kann.live.results import NAMES, Effects
from kann.reporting.inputs import checked_step_seconds
from kann.reporting.trust import require_trust_of
from kann.typing import AnyArray, Array, Complex, Float, Int

try:
    from matplotlib import patheffects, pyplot
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import ListedColormap, LogNorm, to_rgb
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'kann[report]'") from error

INK = "#222222"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#F0E442", "#332288")
"""Colours that people with any common colour blindness can tell apart: Okabe and Ito's, and two of Tol's."""

DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
"""Lines differ in their dashes too, for print without colour."""

SHORT_LABEL = 12
"""Letters of labels of which two fit side by side above axes that are a quarter of a page wide."""


def axes_or_new(ax: Axes | None) -> Axes:
    """Return the axes to draw on: those of the caller, or those of a new figure."""
    if ax is None:
        _, ax = pyplot.subplots(layout="constrained")
    require_instance(ax, Axes, "ax")
    return ax


def legend_above(ax: Axes) -> None:
    """Return a legend above the axes, where it covers no curve; the figure makes room for it."""
    _, labels = ax.get_legend_handles_labels()
    columns = 2 if max(map(len, labels), default=0) <= SHORT_LABEL else 1
    spacing: Any = {"fontsize": "small", "labelspacing": 0.2, "borderaxespad": 0.2}
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, frameon=False, **spacing)


def _legend_beside(ax: Axes, **style: Any) -> None:
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), **style)


def line_style(number: int, **style: Any) -> Any:
    """Return the colour and the dashes of a line by its number, and thinner lines than matplotlib's."""
    colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
    return {"color": colour, "linestyle": dashes, "linewidth": 1.2} | style


def literal(name: str) -> str:
    """Escape a name for matplotlib: to matplotlib, a dollar sign begins a formula."""
    return name.replace("$", r"\$")


def _numbered_ticks(ax: Axes, axis: str, values: Sequence[int]) -> None:
    """Make an axis logarithmic, with these whole numbers as its ticks."""
    getattr(ax, f"set_{axis}scale")("log", base=2)
    getattr(ax, f"set_{axis}ticks")(values, [str(value) for value in values])


MOST_TICKS = 16
"""So many steps are named along an axis; of more, every second, third, … is."""

MEASURES = {
    "loss": "loss (nats)",
    "kl": "KL from the untouched network (nats)",
    "agreement": "decisions as those of\nthe untouched network",
    "accuracy": "accuracy",
}
"""The measures of `kann.depth.bypass_effects` as labels of an axis."""

BETWEEN = 0.18
"""How far apart the methods of one span are drawn; spans are 1 apart."""


def draw_steps(trust: StepTrust, *, ax: Axes | None = None, names: Sequence[str] | None = None) -> Axes:
    """Draw which layers are linear: the held-out error of each step by identity, one operator and its own map.

    Shades are confidence intervals. ``names`` are those of the steps, such as of layers; numbers from 0 by default.
    """
    require_instance(trust, StepTrust, "trust")
    places = np.arange(len(trust))
    labels = [str(name) for name in (places if names is None else names)]
    if len(labels) != len(trust):
        raise KannError(f"there are {len(labels)} names for {len(trust)} steps; pass one for each")
    ax = axes_or_new(ax)
    for i, (name, words) in enumerate(PREDICTIONS.items()):
        ax.fill_between(places, *trust.intervals[name].T, color=COLOURS[i], alpha=0.2, linewidth=0)
        ax.plot(places, trust.errors[name], label=words, **line_style(i, marker="os^"[i], markersize=3))
    every = -(-len(places) // MOST_TICKS)
    ax.set_xticks(places[::every], labels[::every])
    ax.set(xlabel="layer", ylabel="held-out error\n(fraction of variance)")
    ax.set_ylim(bottom=0)
    legend_above(ax)
    return ax


def draw_bypasses(effects: BypassEffects, *, measure: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the effect of replacing spans of layers: a dot for each span and operator, with its confidence interval.

    ``measure`` is one of ``effects.measures``, the loss by default. The line is the untouched network.
    """
    require_instance(effects, BypassEffects, "effects")
    measure = effects.main_measure if measure is None else measure
    require_choice(measure, "measure", effects.measures)
    ax = axes_or_new(ax)
    means, intervals = effects.means[measure], effects.interval(measure)
    places = np.arange(len(effects.spans), dtype=float)
    for i, words in enumerate(METHODS.values()):
        reach = np.abs(intervals[:, i].T - means[:, i])
        at = places + (i - (len(METHODS) - 1) / 2) * BETWEEN
        style = line_style(i, linestyle="none", linewidth=1.0, marker="osD^"[i], markersize=4)
        ax.errorbar(at, means[:, i], yerr=reach, elinewidth=1.0, label=words, **style)
    ax.axhline(effects.own[measure], color=INK, linestyle=":", linewidth=0.8, label="untouched")
    ax.set_xticks(places, effects.names, rotation=30, ha="right")
    ax.set(ylabel=MEASURES[measure], xlabel="layers replaced")
    low, high = ax.get_ylim()
    room = 0.04 * (high - low)
    ax.set_ylim(low - room, high + room)  # the untouched network is the best there is, and would lie on the frame
    _legend_beside(ax)
    return ax


def draw_profile(profile: Profile, *, agreement: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the agreement after each layer against the number of balanced directions and components kept.

    ``profile`` is what `kann.depth.profile` returned. With ``agreement``, such as 0.95, draw instead the number of
    directions that each layer needs for it; layers that need more than were tested have no dot.
    """
    require_instance(profile, Profile, "profile")
    ax = axes_or_new(ax)
    if agreement is not None:
        for i, (method, counts) in enumerate(profile.needed(agreement).items()):
            ax.plot(profile.layers, counts, label=PROFILED[method], **line_style(i, marker="os^"[i], markersize=4))
        _numbered_ticks(ax, "y", profile.counts)
        ax.set(ylabel=f"directions for {confidence(agreement)}")
        ax.set_ylim(min(profile.counts) / 1.3, max(profile.counts) * 1.3)
        ax.set_xticks(range(len(profile.layers)), profile.layers, rotation=30, ha="right")
    else:
        for i, layer in enumerate(profile.layers):
            for j, method in enumerate(("balanced", "pca")):
                style = line_style(i, linestyle=DASHES[j], marker="os"[j], markersize=3)
                ax.plot(profile.counts, profile.kept[method][i], label=f"{layer}, {PROFILED[method]}", **style)
        _numbered_ticks(ax, "x", profile.counts)
        ax.set(xlabel="directions kept", ylabel="agreement")
    _legend_beside(ax, fontsize="small")
    return ax


FARTHEST = 1.2
"""Range of the drawn scores, as a multiple of the distance between the untouched network and its mean state: single
directions may do much worse than the mean state, and would squeeze all others."""

LINE_OF_A_LABEL = 26
"""Letters in a line of an axis label: more would be longer than the axis in a small figure."""

UP, DOWN = "#E69F00", "#56B4E9"
"""Colours of what pushes a mode up and down, as on the page."""


def draw_effects(effects: Effects, *, ax: Axes | None = None, removed: bool = False) -> Axes:
    """Draw the score of a network against the number of coordinates kept, or removed: a line for each method.

    ``effects`` is what `kann.effects` returned. Bands are intervals over sequences, of random directions the range over
    draws; the dotted line is the network with its state held at the mean. Scores that are far worse than that lie
    outside.
    """
    require_instance(effects, Effects, "effects")
    ax = axes_or_new(ax)
    means, draws, what = effects.kept, effects.random_kept, "kept"
    if removed:
        means, draws, what = effects.removed, effects.random_removed, "removed"
    for i, (name, mean) in enumerate(means.items()):
        low, high = effects.interval(name, removed=removed).T
        if name == "random":
            low, high = draws.min(axis=0), draws.max(axis=0)
        ax.plot(effects.counts, mean, label=NAMES.get(name, name), **line_style(i, marker=".", markersize=4))
        ax.fill_between(effects.counts, low, high, color=COLOURS[i % len(COLOURS)], alpha=0.12, linewidth=0)
    ax.axhline(effects.none, color="#999999", linestyle=":", linewidth=0.8)
    _numbered_ticks(ax, "x", effects.counts)
    score = ("fraction of " if effects.is_fraction else "") + effects.score_in_words
    ax.set(xlabel=f"coordinates {what}", ylabel=fill(score, LINE_OF_A_LABEL))
    # Only scores that are not far outside untouched and nothing kept are drawn.
    ends, gap = np.r_[(effects.full, effects.none), *means.values()], abs(effects.full - effects.none)
    distance = np.minimum(np.abs(ends - effects.none), np.abs(ends - effects.full))
    near = ends[distance <= (FARTHEST * gap or 1.0)]  # NaN is not
    room = 0.08 * np.ptp(near) or 0.1
    ax.set_ylim(near.min() - room, near.max() + room)
    legend_above(ax)
    return ax


def draw_movers(movers: Movers, mode: int, *, ax: Axes | None = None, count: int = 5) -> Axes:
    """Draw what pushes a mode up and down most, as bars with their intervals over sequences.

    ``movers`` is what `kann.movers` returned, and ``count`` how many bars there are on each side at most. Pushes are in
    standard deviations of the mode; bars are pale where the interval holds zero.
    """
    require_instance(movers, Movers, "movers")
    count = require_whole_number(count, "count", least=1)
    found = sorted([*movers.up(mode, count), *movers.down(mode, count)], key=lambda each: each.push)
    ax = axes_or_new(ax)
    for place, each in enumerate(found):
        colour, alpha = UP if each.push > 0 else DOWN, 1.0 if each.sure else 0.35
        ax.barh(place, each.push, height=0.6, color=colour, alpha=alpha)
        ax.plot([each.low, each.high], [place, place], color=INK, linewidth=0.8)
    ax.set_yticks(range(len(found)), [literal(each.name) for each in found])
    ax.axvline(0.0, color="#999999", linewidth=0.8)
    ax.set(xlabel=f"push of mode {mode} (standard deviations)")
    return ax


STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 200,
    "svg.hashsalt": "kann",  # the same figure gives the same file
    "svg.fonttype": "none",
}
"""Settings for ``matplotlib.rc_context``: text of 8 points, which is readable at the width of a column."""

RESIDUAL_RANGE = (1e-2, 1.0)
"""Residuals that colours tell apart: below this range an eigenpair is as good as exact, above it worthless."""

TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Residuals at which the pseudospectrum has contours."""

NARROWEST_NAMED = 0.03
"""A region narrower than this fraction of the map gets no name."""

FEWEST_STEPS_DRAWN, MOST_STEPS_DRAWN = 10, 500
"""How many steps `draw_decay` draws by default, at least and at most."""

SLOWEST_DRAWN = 6
"""Number of modes of an operator that `draw_decay` draws: the number of different dashes."""


def draw_spectrum(
    koopman: Koopman,
    *,
    ax: Axes | None = None,
    others: Mapping[str, Complex[Array, " n"]] | None = None,
    trust: Trust | None = None,
) -> Axes:
    """Draw eigenvalues in the complex plane with the unit circle, coloured by their residual.

    With ``trust``, colours are residuals on held-out sequences, each eigenvalue has the box of its confidence interval,
    and trusted ones are ringed. Without it, colours are residuals on the data that were fitted, which are no evidence.
    ``others`` are eigenvalues of other operators, by name, drawn as crosses.
    """
    require_instance(koopman, Koopman, "koopman")
    crosses = {}
    for name, values in entries_by_name(others, "others", remedy="pass a dict of eigenvalues").items():
        array, what = as_numpy(values), f"eigenvalues of {short_repr(name)}"
        if array.ndim != 1 or array.dtype.kind not in "fciu":
            raise KannError(f"{what} are {short_repr(array)}; pass a row of complex numbers")
        require_all_finite(array, what=what, remedy="leave them out")
        crosses[name] = array
    residuals, label = koopman.residuals, "residual on the fitted data"
    if trust is not None:
        require_trust_of(koopman, trust)
        residuals, label = np.empty(koopman.rank), "residual on held-out sequences"
        for own in zip(koopman.modes, trust.modes, strict=True):
            residuals[list(own[0].indices)] = own[1].residual
    ax = axes_or_new(ax)
    _draw_circle(ax, "#999999")
    shades: Any = {"c": np.clip(residuals, *RESIDUAL_RANGE), "norm": LogNorm(*RESIDUAL_RANGE), "cmap": "viridis"}
    edges: Any = {"edgecolors": INK, "linewidths": 0.4}
    dots = ax.scatter(*_plane(koopman.eigenvalues), s=18, zorder=3, label="eigenvalues", **shades, **edges)
    for (name, values), colour in zip(crosses.items(), COLOURS[1:], strict=False):
        ax.scatter(*_plane(values), marker="x", s=14, color=colour, linewidths=0.8, zorder=2, label=name)
    if trust is not None:
        _draw_intervals(koopman, trust, ax=ax)
    if crosses or trust is not None:
        legend_above(ax)
    # Beside the axes themselves: a figure puts it beside the place of the axes, which a square leaves half empty.
    ax.figure.colorbar(dots, cax=ax.inset_axes((1.04, 0.1, 0.05, 0.8)), label=label)
    ax.set(xlabel="Re λ", ylabel="Im λ", aspect="equal")
    ax.locator_params(nbins=5)
    return ax


def _draw_intervals(koopman: Koopman, trust: Trust, *, ax: Axes) -> None:
    """Return the interval of each eigenvalue, a piece of a ring, and a ring around those that are trusted."""
    edges, trusted = [], []
    for mode, own in zip(koopman.modes, trust.modes, strict=True):
        if not np.isfinite(own.interval[0]):  # of wide operators some modes are not judged
            continue
        half_turn = min(np.pi, (own.angle[1] - own.angle[0]) / 2)
        turns = np.linspace(-half_turn, half_turn, 25)
        edge = np.outer(own.interval, np.exp(1j * turns))
        edge = np.r_[edge[0], edge[1, ::-1]]
        values = koopman.eigenvalues[list(mode.indices)]
        edges += [np.stack(_plane(edge * value / abs(value or 1)), axis=-1) for value in values]
        trusted += values.tolist() if own.trusted else []
    name = f"{confidence(trust.level)} interval"
    boxes = PolyCollection(edges, facecolors="#99999955", edgecolors="#666666", linewidths=0.5, zorder=2, label=name)
    ax.add_collection(boxes)
    ring: Any = {"facecolors": "none", "edgecolors": COLOURS[1], "linewidths": 1.2}
    ax.scatter(*_plane(np.array(trusted)), s=60, zorder=4, label=f"trusted ({len(trust.trusted)} modes)", **ring)


def draw_rank_curve(koopman: Koopman, *, ax: Axes | None = None) -> Axes:
    """Draw the held-out error against rank, a line for each number of steps ahead, and the rank of ``rank="auto"``.

    Dashed lines are the errors of copying the state, dotted is what predicting the mean gives.
    """
    require_instance(koopman, Koopman, "koopman")
    curve = koopman.rank_curve
    if curve is None:
        raise KannError("the operator has no curve of errors against rank; fit it with rank='auto'")
    ax = axes_or_new(ax)
    for i, steps in enumerate(curve.horizons.tolist()):
        colour = COLOURS[i % len(COLOURS)]
        name = f"{steps} step{'s' * (steps != 1)} ahead"
        ax.plot(curve.ranks, curve.errors[:, i], color=colour, marker=".", markersize=4, linewidth=1.2, label=name)
        ax.axhline(curve.copying[i], color=colour, linestyle="--", linewidth=0.8)
    ax.plot([], [], color=INK, linestyle="--", linewidth=0.8, label="copying the state")
    ax.axhline(1.0, color=INK, linestyle=":", linewidth=0.8, label="predicting the mean")
    ax.axvline(curve.chosen, color="#999999", linewidth=0.8, zorder=1, label=f"chosen: rank {curve.chosen}")
    ax.set(xlabel="rank", ylabel="held-out error\n(fraction of variance)", xscale="log", yscale="log")
    _plain_ticks(ax, curve.ranks)
    _limit_errors(ax, np.r_[curve.errors.ravel(), curve.copying])
    _legend_beside(ax)
    return ax


def draw_horizons(trust: Trust, *, ax: Axes | None = None) -> Axes:
    """Draw the held-out error against the number of steps ahead, next to copying and predicting the mean."""
    require_instance(trust, Trust, "trust")
    ax = axes_or_new(ax)
    for i, (name, errors) in enumerate((("operator", trust.error), ("copying the state", trust.copying_error))):
        ax.plot(trust.horizons, errors, label=name, **line_style(i, marker="os"[i], markersize=4))
    ax.axhline(1.0, color=INK, linestyle=":", linewidth=0.8, label="predicting the mean")
    ax.set(xlabel="steps ahead", ylabel="held-out error\n(fraction of variance)", xscale="log", yscale="log")
    _plain_ticks(ax, trust.horizons)
    _limit_errors(ax, np.r_[trust.error, trust.copying_error])
    legend_above(ax)
    return ax


def _plain_ticks(ax: Axes, positions: Int[Array, " k"]) -> None:
    """Set powers of two as ticks of a logarithmic axis, written as whole numbers, with the first and the last."""
    shown = [value for value in positions.tolist() if value & (value - 1) == 0]
    ax.set_xticks(shown, [str(value) for value in shown])
    ax.minorticks_off()


def _limit_errors(ax: Axes, errors: Float[Array, " n"]) -> None:
    """Show errors up to a hundred times that of the mean: operators that explode would squeeze all others."""
    known = errors[np.isfinite(errors) & (errors > 0)]
    ax.set_ylim(0.7 * min([1.0, *known.tolist()]), min(100.0, 1.5 * max([1.0, *known.tolist()])))


def draw_pseudospectrum(found: Pseudospectrum, *, ax: Axes | None = None, koopman: Koopman | None = None) -> Axes:
    """Draw contours of how close each point of the plane is to an eigenvalue, with the unit circle.

    With ``koopman``, its eigenvalues are drawn as dots.
    """
    require_instance(found, Pseudospectrum, "found")
    if found.grid.ndim != 2 or min(found.grid.shape) < 2:
        raise KannError(f"a grid of shape {found.grid.shape} has no contours; pass a rectangular grid (n, m)")
    ax = axes_or_new(ax)
    across, up = _plane(found.grid)
    style: Any = {"levels": TOLERANCES, "cmap": "viridis", "norm": LogNorm(), "extend": "both"}
    shades = ax.contourf(across, up, np.maximum(found.residual, 1e-12), **style)
    lines = ax.contour(across, up, found.residual, levels=TOLERANCES, colors=INK, linewidths=0.4)
    ax.clabel(lines, fmt="%g", fontsize=6)
    _draw_circle(ax, "white")
    if koopman is not None:
        style = {"color": "white", "edgecolors": INK, "linewidths": 0.5, "s": 12}
        ax.scatter(*_plane(koopman.eigenvalues), zorder=3, label="eigenvalues", **style)
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    ax.figure.colorbar(shades, ax=ax, label="smallest residual of any vector", shrink=0.8, format="%g")
    ax.set(xlabel="Re ζ", ylabel="Im ζ", aspect="equal", xlim=(across.min(), across.max()), ylim=(up.min(), up.max()))
    return ax


def _draw_circle(ax: Axes, colour: str) -> None:
    ax.plot(*_plane(np.exp(1j * np.linspace(0, 2 * np.pi, 361))), color=colour, linewidth=0.8, zorder=1)


def _plane(values: Complex[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return real and imaginary parts, the coordinates in the plane."""
    return np.real(values), np.imag(values)


def draw_decision_map(
    outputs: AnyArray,
    grid: AnyArray,
    *,
    ax: Axes | None = None,
    names: Sequence[str] | None = None,
    path: Complex[Array, " t"] | None = None,
) -> Axes:
    """Draw which output wins where in the plane of a mode: regions with the names of their outputs.

    ``outputs`` is what `kann.decision_map` returned for the rectangular ``grid``, both (n, m). ``path`` are the
    coefficients of one input over time, drawn from light to dark.
    """
    ax = axes_or_new(ax)
    outputs, grid = np.asarray(outputs), np.asarray(grid)
    if outputs.shape != grid.shape or outputs.ndim != 2:
        raise KannError(f"outputs {outputs.shape} and grid {grid.shape} do not fit; pass two arrays of the same (n, m)")
    across, up = _plane(grid)
    extent = (float(across.min()), float(across.max()), float(up.min()), float(up.max()))
    upright = outputs[::-1] if up[0, 0] > up[-1, 0] else outputs  # the image is drawn from the lowest row up
    # Pale colours, the first of them nearly white, so that names and paths can be read on top of them.
    pale = [tuple(0.55 + 0.45 * np.array(to_rgb(colour))) for colour in COLOURS]
    colours = ListedColormap([(0.95, 0.95, 0.95), *(pale[i % len(pale)] for i in range(max(int(outputs.max()), 1)))])
    ax.imshow(upright, origin="lower", extent=extent, cmap=colours, vmin=-0.5, vmax=colours.N - 0.5, aspect="equal")
    if path is not None:
        shades: Any = np.linspace(0.15, 1.0, len(path))
        ax.plot(*_plane(path), color=INK, linewidth=0.4, alpha=0.5)
        ax.scatter(*_plane(path), c=INK, alpha=shades, s=7, linewidths=0, zorder=3)
    shape, (left, right, bottom, top) = np.array(upright.shape), extent
    for output in np.unique(upright):  # the name of each, where its region is widest
        depth = np.asarray(ndimage.distance_transform_edt(np.pad(upright == output, 1)))[1:-1, 1:-1]
        if 2 * depth.max() - 1 < NARROWEST_NAMED * min(shape):
            continue
        # Along a stripe many points are equally far from the edge; we take the one nearest to the middle of the map.
        places = np.argwhere(depth > depth.max() - 1)
        row, column = (places[np.linalg.norm(places - shape / 2, axis=1).argmin()] + 0.5) / shape
        name, at = (
            str(output if names is None else names[output]),
            (left + column * (right - left), bottom + row * (top - bottom)),
        )
        label = ax.text(*at, name, ha="center", va="center", color=INK)
        label.set_path_effects([patheffects.withStroke(linewidth=2, foreground="white")])
    ax.set(xlabel="Re z", ylabel="Im z", xlim=extent[:2], ylim=extent[2:])
    return ax


def draw_decay(
    modes: Koopman | Sequence[Mode],
    *,
    ax: Axes | None = None,
    steps: int | None = None,
    step_seconds: float | None = None,
) -> Axes:
    """Draw how much of each mode is left after n steps, |λ|ⁿ; of an operator, of its slowest modes.

    ``steps`` is the number of steps drawn; by default until about a tenth of the slowest decaying mode is left.
    With ``step_seconds``, how long a step lasts, the axis has seconds.
    """
    if isinstance(modes, Koopman):
        modes = modes.modes[:SLOWEST_DRAWN]
    unit, word = (1, "steps") if step_seconds is None else (checked_step_seconds(step_seconds), "seconds")
    if steps is None:
        horizons = [mode.horizon() for mode in modes if np.isfinite(mode.horizon())]
        longest = max(horizons, default=MOST_STEPS_DRAWN)
        steps = int(np.clip(np.ceil(1.3 * longest), FEWEST_STEPS_DRAWN, MOST_STEPS_DRAWN))
    after = np.arange(require_whole_number(steps, "steps", least=1) + 1)
    ax = axes_or_new(ax)
    for i, mode in enumerate(modes):
        ax.plot(after * unit, mode.modulus**after, label=f"|λ| = {mode.modulus:.4f}", **line_style(i))
    ax.set(xlabel=word, ylabel=r"what is left, $|\lambda|^n$", xlim=(0, after[-1] * unit))
    ax.set_ylim(bottom=0)
    legend_above(ax)
    return ax


def draw_word_plane(pairs: WordPairs, *, ax: Axes | None = None, count: int = 40, least: int = LEAST_READ) -> Axes:
    """Draw words in the plane of how much they keep and how much they add; frequent words are larger.

    ``pairs`` is what `kann.stand_ins.word_pairs` returned. At most ``count`` words farthest from the middle get their
    names, where there is room; words that are read less than ``least`` times are left out. Limits of ``ax`` that were
    set before are kept.
    """
    require_instance(pairs, WordPairs, "pairs")
    count, often = require_whole_number(count, "count", least=0), pairs.read_often(least)
    places = np.stack([pairs.keeps[often], pairs.adds[often]], axis=1)
    ax = axes_or_new(ax)
    sizes = 4 + 40 * np.sqrt(pairs.counts[often] / pairs.counts[often].max())
    colours = np.where(places[:, 1] > 0, UP, DOWN)
    ax.scatter(places[:, 0], places[:, 1], s=sizes, c=colours, alpha=0.7, linewidths=0)
    ax.axhline(0.0, color="#999999", linewidth=0.6)
    ax.axvline(1.0, color="#999999", linewidth=0.6)
    ax.margins(0.12, 0.06)
    ax.set(xlabel=f"keeps of the {pairs.number}", ylabel=f"adds to the {pairs.number}")
    spread = places.std(axis=0)
    far = np.hypot(*((places - np.median(places, axis=0)) / np.where(spread > 0, spread, 1.0)).T)
    chosen = np.argsort(-far, kind="stable")[:count]
    _name_points(ax, places[chosen], [pairs.words[i] for i in often[chosen].tolist()])
    return ax


def _name_points(ax: Axes, places: Float[Array, "n 2"], names: Sequence[str]) -> None:
    """Write names next to their points, the first ones first; leave out those that have no room on either side."""
    ax.autoscale_view()
    limits, taken = ax.viewLim, []
    for place, name in zip(places.tolist(), names, strict=True):
        if not limits.contains(*place):
            continue
        for offset, side in ((4, "left"), (-4, "right")):
            style: Any = {"textcoords": "offset points", "ha": side, "va": "center", "fontsize": 6}
            text = ax.annotate(literal(name), place, (offset, 0), **style)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def draw_comparison(comparison: Comparison, *, ax: Axes | None = None) -> Axes:
    """Return the distances of `kann.compare` as a map, networks of one cluster side by side.

    The diagonal, where known, is each network's distance from itself between two halves of its sequences.
    """
    require_instance(comparison, Comparison, "comparison")
    ax = axes_or_new(ax)
    order = comparison.order
    matrix = comparison.matrix[np.ix_(order, order)].copy()
    np.fill_diagonal(matrix, np.nan_to_num(comparison.floor[order]))
    names = [comparison.names[i] for i in order]
    image = ax.imshow(matrix, cmap="viridis_r", vmin=0)
    ax.set_xticks(range(len(names)), names, rotation=90)
    ax.set_yticks(range(len(names)), names)
    if ax.figure is not None:
        ax.figure.colorbar(image, ax=ax, label=f"distance ({comparison.kind})")
    return ax


def draw_networks(comparison: Comparison, *, ax: Axes | None = None) -> Axes:
    """Draw networks as points in the plane, at the distances of `kann.compare` as far as the plane allows."""
    require_instance(comparison, Comparison, "comparison")
    ax = axes_or_new(ax)
    points = comparison.embedding(2)
    ax.scatter(points[:, 0], points[:, 1], s=16, color=COLOURS[0])
    for name, (x, y) in zip(comparison.names, points, strict=True):
        ax.annotate(name, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6)
    ax.set_aspect("equal", adjustable="datalim")
    return ax


def film(
    path: str | os.PathLike[str],
    histories: History | Mapping[str, History],
    *,
    title: str = "What this network learnt, and when",
    about: str = "",
) -> Path:
    """Write the film of a training, or of several side by side, from the history of `kann.Monitor`. Returns its path.

    >>> import tempfile, torch, kann
    >>> monitor = kann.Monitor(torch.nn.GRU(2, 4, batch_first=True), torch.randn(20, 10, 2), every=1)
    >>> found = monitor.update(loss=0.5)
    >>> film(Path(tempfile.mkdtemp()) / "film.html", monitor.history).name
    'film.html'

    Parameters
    ----------
    path
        The file to write, ``.html``: a page with a slider that works offline. A file that exists is replaced.
    histories
        A history, or several by name to compare them.
    title, about
        For a page: the heading, and a paragraph about the network and its training.
    """
    path, runs = file_to_write(path), require_histories(histories)
    require_text(title, "title")
    require_text(about, "about")
    if path.suffix.lower() not in (".html", ".htm"):
        raise KannError(f"{path} has an unknown ending; pass a name that ends in .html")
    from kann.reporting.offline import page, write_page

    return write_page(path, page("film", scripts=("film",), content=film_content(runs), title=title, about=about))


def film_content(runs: Mapping[str, History]) -> dict[str, Any]:
    """Collect the numbers of the page: steps of all runs, and of each run loss, figures and modes at checkpoints."""

    def known(values: Float[Array, " k"]) -> list[float | None]:
        return [finite_or_none(value) for value in values.tolist()]

    content = [
        {
            "name": name,
            "steps": history.steps.tolist(),
            "loss": known(history.loss),
            "figures": {figure: known(history.figure(figure)) for figure in FIGURES},
            "modes": [_modes_content(checkpoint) for checkpoint in history],
        }
        for name, history in runs.items()
    ]
    steps = np.unique(np.concatenate([history.steps for history in runs.values()])).tolist()
    return {"steps": steps, "runs": content}


def _modes_content(checkpoint: Checkpoint) -> list[list[Any]]:
    """Number, real and imaginary part, what it carries, and whether it is trusted, for each mode."""
    columns = (checkpoint.numbers, checkpoint.eigenvalues, checkpoint.carried, checkpoint.trusted)
    return [
        [number, round(value.real, 6), round(value.imag, 6), round(carried, 6), int(trusted)]
        for number, value, carried, trusted in zip(*(column.tolist() for column in columns), strict=True)
    ]
