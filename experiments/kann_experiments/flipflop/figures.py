"""The figures of the flip-flop, as PNG and as SVG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from kann.reporting.plots import STYLE, draw_spectrum
from kann_experiments.drawing import COLUMN, WIDE, draw_curves, save_figures
from kann_experiments.flipflop.analysis import RATES, Study

KINDS = {"driven": "driven", "quiet": "quiet steps alone", "bilinear": "bilinear, u = 0"}
"""The operators whose eigenvalues are drawn, and their names in the legend."""


def draw_figures(studies: Sequence[Study], *, folder: Path) -> tuple[Path, ...]:
    """Draw all figures: eigenvalues and live effects over all seeds, spectra of the first."""
    with rc_context(STYLE):
        figures = {
            "memories": memories_figure(studies),
            "effects": effects_figure(studies),
            "spectra": spectra_figure(studies[0]),
        }
        return save_figures(figures, folder)


def memories_figure(studies: Sequence[Study]) -> Figure:
    """The three leading |λ| of each kind of operator against the pulse rate, and 1 − rate."""
    rates = np.array(list(RATES.values()))
    figure = Figure(figsize=(COLUMN, 3.2), layout="constrained")
    ax = figure.subplots()
    shifts = np.geomspace(0.9, 1.1, len(KINDS))
    for shift, (kind, name) in zip(shifts, KINDS.items(), strict=True):
        moduli = np.array([[study.leading[rate][kind] for rate in RATES] for study in studies])  # (seeds, rates, 3)
        spread = np.repeat((rates * shift)[None, :, None], len(studies), 0).repeat(moduli.shape[2], 2)
        ax.plot(spread.ravel(), moduli.ravel(), ".", alpha=0.6, label=name)
    every = np.geomspace(rates.min(), rates.max())
    ax.plot(every, 1 - every, "k:", linewidth=1, label="1 − rate")
    ax.set(xscale="log", xlabel="probability of a pulse", ylabel="|λ| of the three leading modes", ylim=(None, 1.03))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def effects_figure(studies: Sequence[Study]) -> Figure:
    """Bits that the running network still answers as before, against the number of coordinates kept."""
    names = {"modes": "modes, bilinear at u = 0", "pca": "principal components", "random": "random directions"}
    kept = {
        label: np.array([100 * study.effects["modes"].kept[name] for study in studies]) for name, label in names.items()
    }
    kept["modes, driven"] = np.array([100 * study.effects["driven"].kept["modes"] for study in studies])
    figure = Figure(figsize=(COLUMN, 3.2), layout="constrained")
    ax = figure.subplots()
    draw_curves(kept, np.array(studies[0].effects["modes"].counts, dtype=float), ax=ax)
    ax.set(xlabel="coordinates kept after every step", ylabel="bits unchanged [%]", ylim=(45, 102))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def spectra_figure(study: Study) -> Figure:
    """Eigenvalues of the bilinear operator at u = 0 and of the driven one, at each pulse rate."""
    figure = Figure(figsize=(WIDE, 2.6), layout="constrained")
    for ax, (name, at) in zip(figure.subplots(1, len(RATES)), study.at_rates.items(), strict=True):
        draw_spectrum(at.gated.at(None), ax=ax, others={"driven": at.driven.eigenvalues})
        ax.set_xlabel(f"Re λ, pulse rate {RATES[name]}")  # the legend stands where a title would
    return figure
