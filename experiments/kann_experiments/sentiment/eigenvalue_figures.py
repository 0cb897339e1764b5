"""Figures of eigenvalues: with and without padding, in three bases, and of all architectures."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import kann
from kann.fitting.spectrum import TRUSTED
from kann.reporting.plots import COLOURS, draw_spectrum
from kann.typing import Array
from kann_experiments.drawing import COLUMN, WIDE, draw_words
from kann_experiments.sentiment.analysis import Study
from kann_experiments.sentiment.corpus import Corpus
from kann_experiments.sentiment.operators import DOMINANT, count_dominant
from kann_experiments.sentiment.task import PRINTED
from kann_experiments.sentiment.text_figures import (
    LINE,
    SHADES,
    TITLE_LINES,
    choose_review,
    count_lines,
    read_states,
    shade_by_magnitude,
    to_words,
)


def spectrum_figure(result: Study) -> Figure:
    """Eigenvalues with and without padding, coloured by residual."""
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    for ax, koopman, title in (
        (left, result.operators.padded, "padded to 1,000 steps"),
        (right, result.operators.unpadded, "words alone"),
    ):
        draw_spectrum(koopman, ax=ax)
        trusted = (koopman.residuals <= TRUSTED).sum()
        counts = f"{count_dominant(koopman)} with |λ| > {DOMINANT}, {trusted} with residual ≤ {TRUSTED}"
        ax.set_title(f"{title}\n{counts}")
    return figure


def bases_figure(result: Study, corpus: Corpus) -> Figure:
    """Dominant eigenvalues in three bases, and the same review shaded in each."""
    ids = choose_review(result, corpus.test, positive=True)
    words, h = to_words(corpus, ids), read_states(result, ids)
    lines = count_lines(words)
    # Inches: three texts with their titles, and the plot of eigenvalues above them.
    height = 3 * (LINE * (lines + TITLE_LINES)) + 2.3
    figure = Figure(figsize=(WIDE, height))
    ax = figure.add_axes((0.09, 1 - 1.75 / height, 0.86, 1.5 / height))
    draw_dominant(ax, {name: koopman.eigenvalues for name, koopman in result.bases.items()})
    for place, (name, koopman) in enumerate(result.bases.items()):
        low = (3 - place - 1) * LINE * (lines + TITLE_LINES) + 0.05
        page = figure.add_axes((0.01, low / height, 0.98, LINE * lines / height))
        shades = shade_by_magnitude(koopman, h, [_find_positive_mode(result, koopman)])
        draw_words(words, shades, ax=page, colours=SHADES["positive"])
        page.set_title(f"basis {name}", loc="left", fontsize=7.5, pad=3)
    return figure


def _find_positive_mode(result: Study, koopman: kann.Koopman) -> int:
    """The mode whose eigenvalue is nearest to that of the first mode of the positive group."""
    wanted = result.operators.padded.modes[result.groups["padded"].positive[0]].eigenvalue
    return int(np.argmin([abs(mode.eigenvalue - wanted) for mode in koopman.modes]))


def architectures_figure(out: Path) -> Figure:
    """Dominant eigenvalues of every architecture that has been analysed, of its first seed."""
    figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
    spectra = {}
    for arch in PRINTED:
        found = sorted((out / arch).glob("seed-*/padded.npz"))
        if found:
            spectra[arch.upper()] = kann.Koopman.load(found[0]).eigenvalues
    draw_dominant(figure.subplots(), spectra)
    return figure


def draw_dominant(ax: Axes, spectra: dict[str, Array]) -> None:
    """Eigenvalues of several operators near 1, each with a marker of its own."""
    circle = np.exp(1j * np.linspace(-0.5, 0.5, 201))
    ax.plot(np.real(circle), np.imag(circle), color="#999999", linewidth=0.8, zorder=1)
    for (name, values), colour, marker in zip(spectra.items(), COLOURS, "o+x^", strict=False):
        near = values[np.abs(values) > 0.8]
        style: Any = {"color": colour}
        if marker in "o^":  # open ones: what they cover stays visible
            style = {"facecolors": "none", "edgecolors": colour}
        ax.scatter(np.real(near), np.imag(near), marker=marker, s=26, linewidths=0.9, label=name, **style)
    ax.set(xlabel="Re λ", ylabel="Im λ", xlim=(0.78, 1.02), ylim=(-0.13, 0.13))
    if spectra:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=len(spectra))
