"""The figures of the ECG experiment, as PNG and as SVG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kann.paper.drawing import COLUMN, WIDE, save_figures
from kann.paper.ecg.analysis import NAMES, Study
from kann.paper.ecg.modes import FEATURES, Band
from kann.paper.ecg.task import THRESHOLD
from kann.reporting.plots import COLOURS, INK, STYLE, draw_curves, draw_spectrum

GREY = "#888888"
BLUE, VERMILION, GREEN, PINK = COLOURS[:4]

EMBEDDINGS = {"raw": "all coordinates", "pca": "5 principal components", "koopman": "5 Koopman eigenvectors"}


def draw_figures(studies: Sequence[Study], *, folder: Path) -> tuple[Path, ...]:
    """Draw all figures: distances and silhouettes over all seeds, the others of the first."""
    first = studies[0]
    with rc_context(STYLE):
        figures = {
            "modes": modes_figure(first),
            "methods": methods_figure(first),
            "distances": distances_figure(studies),
            "losses": losses_figure(first),
            "separation": separation_figure(studies),
            "spectrum": spectrum_figure(first),
        }
        return save_figures(figures, folder)


def modes_figure(result: Study) -> Figure:
    """What each dominant pair decodes to: above the paper's |V U|, below the exact projection."""
    pairs = result.analysis.pairs
    figure = Figure(figsize=(WIDE, 3.9), layout="constrained")
    panels = figure.subplots(2, len(pairs), sharex=True, sharey=True, squeeze=False)
    for row, method in zip(panels, ("kann", "kann_real"), strict=True):
        for ax, mode, each in zip(row, pairs, result.decoded[method], strict=True):
            _beat(ax, result)
            _band(ax, each, VERMILION, "the pair alone")
            if method == "kann":
                ax.set_title(f"|λ| {mode.modulus:.3f}, period {mode.period:.3g}")
        row[0].set_ylabel("|V U|, as printed" if method == "kann" else "exact projection")
    for ax in panels[-1]:
        ax.set_xlabel("sample t")
    _legend(figure, panels[0, 0])
    return figure


def methods_figure(result: Study) -> Figure:
    """The first four modes of each method, put through the same decoder."""
    shown = {"kann": "KANN, |V U|", "kann_real": "KANN, exact", "pca": "PCA", "kernel_pca": "KernelPCA"}
    figure = Figure(figsize=(WIDE, 4.4), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for ax, (method, name) in zip(panels.flat, shown.items(), strict=True):
        _marks(ax)
        ax.plot(result.bands["normal"].median, color=INK, linewidth=2.2, alpha=0.35, label="normal beats")
        for i, (each, colour) in enumerate(zip(result.decoded[method], COLOURS, strict=False), start=1):
            ax.plot(each.median, color=colour, linewidth=1.1, label=f"mode {i}")
        ax.set_title(name)
    for ax in panels[-1]:
        ax.set_xlabel("sample t")
    for ax in panels[:, 0]:
        ax.set_ylabel("median")
    _legend(figure, panels[0, 0])
    return figure


def distances_figure(studies: Sequence[Study]) -> Figure:
    """Distance of the best mode of each method at each feature: a dot for each seed, and a bar for their mean."""
    figure = Figure(figsize=(WIDE, 2.5), layout="constrained")
    panels = figure.subplots(1, len(FEATURES))
    for i, (ax, feature) in enumerate(zip(panels, FEATURES, strict=True)):
        for place, (method, colour) in enumerate(zip(NAMES, COLOURS, strict=False)):
            values = np.array([each.distances[method][:, i].min() for each in studies])
            ax.barh(place, values.mean(), color=colour, alpha=0.45, height=0.7)
            ax.plot(values, np.full(len(values), place), "o", color=colour, markersize=3)
        ax.set(title=feature, xlabel="distance", yticks=range(len(NAMES)), ylim=(len(NAMES) - 0.5, -0.5))
        ax.set_yticklabels(NAMES.values() if ax is panels[0] else [])
    return figure


def losses_figure(result: Study) -> Figure:
    """How badly normal test beats are reproduced by the network and if C predicts the last state."""
    lost = {"network": result.losses["test"], "KANN": result.losses["kann"]}
    top = max(float(each.max()) for each in lost.values())
    bins = np.arange(0, max(top, THRESHOLD) + 4, 2.0).tolist()
    figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
    ax = figure.subplots()
    for (name, values), colour in zip(lost.items(), (BLUE, VERMILION), strict=True):
        ax.hist(values, bins=bins, color=colour, alpha=0.45, label=name)
        ax.hist(values, bins=bins, color=colour, histtype="step", linewidth=1.0)
    ax.axvline(THRESHOLD, color=INK, linestyle="--", linewidth=0.9, label=f"threshold {THRESHOLD:g}")
    ax.set(xlabel="loss of a normal test beat", ylabel="beats")
    ax.legend(frameon=False)
    return figure


def separation_figure(studies: Sequence[Study]) -> Figure:
    """On the left what the network makes of both kinds of beats; on the right how far their states are apart."""
    figure = Figure(figsize=(WIDE, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    bands = studies[0].bands
    for name, colour in (("normal", BLUE), ("anomalous", VERMILION)):
        _band(left, bands[name], colour, name)
        dashes = "--" if name == "normal" else ":"
        reproduced = bands[f"{name}_reproduced"].median
        left.plot(reproduced, color=INK, linewidth=0.9, linestyle=dashes, label=f"{name}, reproduced")
    left.set(xlabel="sample t", ylabel="median")
    left.legend(frameon=False)
    curves = {label: np.array([each.silhouettes[name] for each in studies]) for name, label in EMBEDDINGS.items()}
    draw_curves(curves, np.arange(len(next(iter(bands.values())).median), dtype=float), ax=right)
    right.axhline(0, color=GREY, linewidth=0.6)
    right.set(xlabel="sample t", ylabel="silhouette, averaged up to t")
    right.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.06))
    return figure


def spectrum_figure(result: Study) -> Figure:
    """Eigenvalues of the operator, the dominant pairs numbered."""
    values = result.analysis.koopman.eigenvalues
    figure = Figure(figsize=(COLUMN, 3.2), layout="constrained")
    ax = figure.subplots()
    draw_spectrum(result.analysis.koopman, ax=ax)
    # The pairs are close to each other: their numbers stand in a column beside them, so that no two lines cross.
    numbered = sorted(enumerate(result.analysis.pairs, start=1), key=lambda entry: entry[1].eigenvalue.imag)
    for place, (number, mode) in enumerate(numbered):
        at = mode.eigenvalue.real, mode.eigenvalue.imag
        arrow = {"arrowstyle": "-", "color": VERMILION, "linewidth": 0.7}
        ax.annotate(str(number), at, (1.13, 0.02 + 0.1 * place), color=VERMILION, arrowprops=arrow, va="center")
    low, high = float(np.real(values).min()) - 0.05, 1.2
    reach = max(float(np.abs(np.imag(values)).max()) + 0.05, 0.35)
    ax.set(xlim=(low, high), ylim=(-reach, reach), title="the four dominant pairs are numbered")
    return figure


def _beat(ax: Axes, result: Study) -> None:
    """The normal beat as it is and as it is reproduced, with the salient features marked."""
    _marks(ax)
    # The network's line covers the beats' own, which is therefore wider.
    _band(ax, result.bands["normal"], PINK, "normal beats", width=2.6)
    ax.plot(result.bands["normal_reproduced"].median, color=BLUE, linewidth=0.9, label="reproduced by the network")


def _marks(ax: Axes) -> None:
    for first, behind in FEATURES.values():
        for place in sorted({first, behind - 1}):
            ax.axvline(place, color=GREY, linestyle=":", linewidth=0.8, zorder=0)


def _band(ax: Axes, each: Band, colour: str, label: str, *, width: float = 1.0) -> None:
    """The median, within its median absolute deviation."""
    ax.plot(each.median, color=colour, linewidth=width, label=label)
    low, high = each.median - each.deviation, each.median + each.deviation
    ax.fill_between(np.arange(len(low)), low, high, color=colour, alpha=0.2, linewidth=0)


def _legend(figure: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
