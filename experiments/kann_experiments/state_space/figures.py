"""The figures: answers kept by few coordinates, and how long tokens last."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from kann.reporting.plots import COLOURS, STYLE
from kann_experiments.drawing import WIDE, draw_curves, save_figures
from kann_experiments.state_space.analysis import COUNTS, ENOUGH, METHODS, STATES


def draw_task(measured: Sequence[Mapping[str, Any]], folder: Path) -> tuple[Path, ...]:
    """Draw both figures of a task; ``measured`` has the numbers and curves of each seed."""
    with rc_context(STYLE):
        return save_figures({"kept": kept_figure(measured), "lasting": lasting_figure(measured)}, folder)


def kept_figure(measured: Sequence[Mapping[str, Any]]) -> Figure:
    """Answers kept against the number of coordinates, for each state."""
    figure = Figure(figsize=(WIDE, 2.8), layout="constrained")
    axes = figure.subplots(1, len(STATES), sharey=True)
    for ax, (part, name) in zip(axes, STATES.items(), strict=True):
        curves = {
            what: 100 * np.array([[float(own["numbers"][f"{part}_{key}_{k}"]) for k in COUNTS] for own in measured])
            for key, what in METHODS.items()
            if f"{part}_{key}_1" in measured[0]["numbers"]
        }
        draw_curves(curves, np.array(COUNTS, dtype=float), ax=ax)
        none = 100 * np.mean([float(own["numbers"][f"{part}_none"]) for own in measured])
        ax.axhline(none, color="black", linewidth=0.8, linestyle=":")
        ax.axhline(100 * ENOUGH, color="0.6", linewidth=0.6)
        ax.set(xscale="log", xticks=COUNTS, xticklabels=COUNTS, xlabel=name, ylim=(0, 103))
        ax.minorticks_off()
    axes[0].set_ylabel("answers kept [%]")
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def lasting_figure(measured: Sequence[Mapping[str, Any]]) -> Figure:
    """How much of one token is left in state and answer, and exp(ΔA) of the Mamba at idle steps."""
    figure = Figure(figsize=(WIDE, 2.4), layout="constrained")
    state, answer, decays = figure.subplots(1, 3)
    lags = np.array(measured[0]["curves"]["lstm_lags"], dtype=float)
    for ax, kind, label in ((state, "states", "state"), (answer, "outputs", "answer")):
        curves = {}
        for suffix in ("", "untrained_") if kind == "states" else ("",):
            for part, name in (("mamba", "Mamba"), ("lstm", "LSTM")):
                own = [np.array(run["curves"][f"{part}_{suffix}left_{kind}"], dtype=float) for run in measured]
                curves[name + ", untrained" * bool(suffix)] = 100 * np.array(own)
        draw_curves(curves, lags, ax=ax)
        ax.set(xlabel="steps since a token was replaced", ylabel=f"left in the {label} [%]", ylim=(0, None))
    levels = np.linspace(0, 100, len(measured[0]["curves"]["mamba_decays"]))
    for number, run in enumerate(measured):
        labels = ("all of h", "weighted by shares") if not number else (None, None)
        keys = ("mamba_decays", "mamba_decays_weighted")
        for place, (key, label) in enumerate(zip(keys, labels, strict=True)):
            decays.plot(levels, np.array(run["curves"][key], dtype=float), color=COLOURS[2 + place], label=label)
    decays.set(xlabel="percentile", ylabel="exp(ΔA) while idle", ylim=(0, 1.02))
    decays.legend(frameon=False)
    handles, labels = state.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure
