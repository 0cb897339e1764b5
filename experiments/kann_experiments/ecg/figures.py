"""The figures of the ECG experiment, as PNG and as SVG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kann.reporting.plots import COLOURS, INK, STYLE, draw_spectrum
from kann_experiments.drawing import COLUMN, WIDE, draw_curves, save_figures
from kann_experiments.ecg.analysis import NAMES, Study
from kann_experiments.ecg.modes import FEATURES, MedianBand
from kann_experiments.ecg.task import THRESHOLD

GREY = "#888888"
BLUE, VERMILION, GREEN, PINK = COLOURS[:4]

EMBEDDINGS = {"raw": "all coordinates", "pca": "5 principal components", "koopman": "5 Koopman eigenvectors"}
"""Embeddings whose silhouettes are drawn, and their names in the legend."""


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


def modes_figure(study: Study) -> Figure:
    """What each dominant pair decodes to: above the paper's |V U|, below the exact projection."""
    pairs = study.analysis.pairs
    rows = {"kann": "|V U|, as printed", "kann_real": "exact projection"}
    figure = Figure(figsize=(WIDE, 3.9), layout="constrained")
    panels = figure.subplots(2, len(pairs), sharex=True, sharey=True, squeeze=False)
    for row, (method, name) in zip(panels, rows.items(), strict=True):
        for ax, decoded in zip(row, study.decoded[method], strict=True):
            _draw_normal_beat(ax, study)
            _draw_band(ax, decoded, VERMILION, "the pair alone")
        row[0].set_ylabel(name)
    for ax, mode in zip(panels[0], pairs, strict=True):
        ax.set_title(f"|λ| {mode.modulus:.3f}, period {mode.period:.3g}")
    for ax in panels[-1]:
        ax.set_xlabel("sample t")
    _legend_above(figure, panels[0, 0])
    return figure


def methods_figure(study: Study) -> Figure:
    """The first four modes of each method, put through the same decoder."""
    shown = {"kann": "KANN, |V U|", "kann_real": "KANN, exact", "pca": "PCA", "kernel_pca": "KernelPCA"}
    figure = Figure(figsize=(WIDE, 4.4), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for ax, (method, name) in zip(panels.flat, shown.items(), strict=True):
        _mark_features(ax)
        ax.plot(study.bands["normal"].median, color=INK, linewidth=2.2, alpha=0.35, label="normal beats")
        for i, (decoded, colour) in enumerate(zip(study.decoded[method], COLOURS, strict=False), start=1):
            ax.plot(decoded.median, color=colour, linewidth=1.1, label=f"mode {i}")
        ax.set_title(name)
    for ax in panels[-1]:
        ax.set_xlabel("sample t")
    for ax in panels[:, 0]:
        ax.set_ylabel("median")
    _legend_above(figure, panels[0, 0])
    return figure


def distances_figure(studies: Sequence[Study]) -> Figure:
    """Distance of the best mode of each method at each feature: a dot for each seed, and a bar for their mean."""
    figure = Figure(figsize=(WIDE, 2.5), layout="constrained")
    panels = figure.subplots(1, len(FEATURES))
    for i, (ax, feature) in enumerate(zip(panels, FEATURES, strict=True)):
        for place, (method, colour) in enumerate(zip(NAMES, COLOURS, strict=False)):
            values = np.array([study.distances[method][:, i].min() for study in studies])
            ax.barh(place, values.mean(), color=colour, alpha=0.45, height=0.7)
            ax.plot(values, np.full(len(values), place), "o", color=colour, markersize=3)
        ax.set(title=feature, xlabel="distance", yticks=range(len(NAMES)), ylim=(len(NAMES) - 0.5, -0.5))
        ax.set_yticklabels([])
    panels[0].set_yticklabels(NAMES.values())
    return figure


def losses_figure(study: Study) -> Figure:
    """Losses of normal test beats, as the network reproduces them and if C predicts the last state."""
    losses = {"network": study.losses["test"], "KANN": study.losses["kann"]}
    largest = max(float(values.max()) for values in losses.values())
    bins = np.arange(0, max(largest, THRESHOLD) + 4, 2.0).tolist()
    figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
    ax = figure.subplots()
    for (name, values), colour in zip(losses.items(), (BLUE, VERMILION), strict=True):
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
    for name, colour, dashes in (("normal", BLUE, "--"), ("anomalous", VERMILION, ":")):
        _draw_band(left, bands[name], colour, name)
        reproduced = bands[f"{name}_reproduced"].median
        left.plot(reproduced, color=INK, linewidth=0.9, linestyle=dashes, label=f"{name}, reproduced")
    left.set(xlabel="sample t", ylabel="median")
    left.legend(frameon=False)
    # (seeds, t) for each embedding
    curves = {label: np.array([study.silhouettes[name] for study in studies]) for name, label in EMBEDDINGS.items()}
    draw_curves(curves, np.arange(len(bands["normal"].median), dtype=float), ax=right)
    right.axhline(0, color=GREY, linewidth=0.6)
    right.set(xlabel="sample t", ylabel="silhouette, averaged up to t")
    right.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.06))
    return figure


def spectrum_figure(study: Study) -> Figure:
    """Eigenvalues of the operator, the dominant pairs numbered."""
    eigenvalues = study.analysis.koopman.eigenvalues
    figure = Figure(figsize=(COLUMN, 3.2), layout="constrained")
    ax = figure.subplots()
    draw_spectrum(study.analysis.koopman, ax=ax)
    # The pairs are close to each other: their numbers stand in a column beside them, so that no two lines cross.
    numbered = sorted(enumerate(study.analysis.pairs, start=1), key=lambda entry: entry[1].eigenvalue.imag)
    for place, (number, mode) in enumerate(numbered):
        at = mode.eigenvalue.real, mode.eigenvalue.imag
        arrow = {"arrowstyle": "-", "color": VERMILION, "linewidth": 0.7}
        ax.annotate(str(number), at, (1.13, 0.02 + 0.1 * place), color=VERMILION, arrowprops=arrow, va="center")
    low, high = float(np.real(eigenvalues).min()) - 0.05, 1.2
    reach = max(float(np.abs(np.imag(eigenvalues)).max()) + 0.05, 0.35)
    ax.set(xlim=(low, high), ylim=(-reach, reach), title="the four dominant pairs are numbered")
    return figure


def _draw_normal_beat(ax: Axes, study: Study) -> None:
    """Draw the normal beat as it is and as the network reproduces it, with the salient features marked."""
    _mark_features(ax)
    # The network's line covers the beats' own, which is therefore wider.
    _draw_band(ax, study.bands["normal"], PINK, "normal beats", width=2.6)
    ax.plot(study.bands["normal_reproduced"].median, color=BLUE, linewidth=0.9, label="reproduced by the network")


def _mark_features(ax: Axes) -> None:
    """Draw a line at the first and at the last sample of each salient feature, one line where they are the same."""
    for first, end in FEATURES.values():
        for sample in sorted({first, end - 1}):
            ax.axvline(sample, color=GREY, linestyle=":", linewidth=0.8, zorder=0)


def _draw_band(ax: Axes, band: MedianBand, colour: str, label: str, *, width: float = 1.0) -> None:
    """Draw the median, and around it the median absolute deviation."""
    ax.plot(band.median, color=colour, linewidth=width, label=label)
    low, high = band.median - band.deviation, band.median + band.deviation
    ax.fill_between(np.arange(len(low)), low, high, color=colour, alpha=0.2, linewidth=0)


def _legend_above(figure: Figure, ax: Axes) -> None:
    """One legend for all panels, above them, with what one of them shows."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
