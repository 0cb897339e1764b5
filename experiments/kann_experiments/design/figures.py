"""The figures: trainings, accuracy against size, and recall against iterations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from kann.reporting.plots import COLOURS, STYLE
from kann_experiments.design import long_memory, small_networks
from kann_experiments.design.trainings import MEMORY, MODES
from kann_experiments.drawing import WIDE, save_figures


def draw_training(run: Mapping[str, Any], folder: Path) -> tuple[Path, ...]:
    """Draw loss, accuracy, |λ| and singular values of one training."""
    rows = run["checkpoints"]
    steps = [row["step"] for row in rows]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDE, 4.6), layout="constrained")
        (loss, accuracy), (modes, values) = figure.subplots(2, 2, sharex=True)
        loss.plot(steps, [row["loss"] for row in rows])
        loss.set(ylabel="loss", yscale="log")
        accuracy.plot(steps, [100 * row["accuracy"] for row in rows], color="black", label="network")
        for place, count in enumerate(run["counts"]):
            kept = [100 * row["kept"][place] if row["kept"] else np.nan for row in rows]
            accuracy.plot(steps, kept, color=COLOURS[place], label=f"{count} coordinate{'s' * (count > 1)}")
        accuracy.set(ylabel="accuracy [%]")
        accuracy.legend(frameon=False, fontsize="small")
        moduli = np.array([_padded(row["moduli"], MODES) for row in rows])
        trusted = np.array([_padded(row["trusted"], MODES) for row in rows]) == 1
        modes.plot(steps, moduli, ".", color="0.75", markersize=3)
        modes.plot(steps, np.where(trusted, moduli, np.nan), "o", color=COLOURS[1], markersize=3)
        modes.axhline(MEMORY, color="black", linewidth=0.6, linestyle=":")
        modes.set(ylabel="|λ|, trusted in colour", xlabel="iteration", ylim=(0, 1.15))
        size = max(len(row["values"]) for row in rows)
        values.plot(steps, np.array([_padded(row["values"], size) for row in rows]), linewidth=0.9)
        values.set(ylabel="singular values", xlabel="iteration", yscale="log", ylim=(1e-3, 1.3))
        return save_figures({"training": figure}, folder)


def _padded(values: Sequence[float], size: int) -> list[float]:
    return [*map(float, values), *[np.nan] * (size - len(values))]


def draw_accuracies(contents: Mapping[tuple[str, str], Mapping[str, Any]], folder: Path) -> tuple[Path, ...]:
    """Draw accuracy against size for each task, the best seed; dots are the counts of the large networks."""
    tasks = list(dict.fromkeys(task for task, _ in contents))
    with rc_context(STYLE):
        columns = min(5, len(tasks))
        rows = -(-len(tasks) // columns)
        figure = Figure(figsize=(WIDE, 0.4 + 1.7 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax in axes[len(tasks) :]:
            ax.set_axis_off()
        for task, ax in zip(tasks, axes, strict=False):
            for place, arch in enumerate(small_networks.ARCHITECTURES):
                if (task, arch) in contents:
                    content, style = contents[task, arch], {"color": COLOURS[place]}
                    best, goal = 100 * np.max(content["sizes"], axis=0), 100 * np.median(content["large"])
                    ax.plot(small_networks.SIZES, best, label=arch.upper(), linewidth=1, **style)
                    for each in content["analyses"]:
                        if each["count"] is not None:
                            ax.plot(each["count"], goal, "o", markersize=3, **style)
            ax.set(xscale="log", xticks=small_networks.SIZES, xticklabels=small_networks.SIZES)
            ax.set_xlabel(small_networks.CASES[task][0], fontsize="small")
            ax.minorticks_off()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        figure.supylabel("accuracy [%]", fontsize="medium")
        return save_figures({"accuracies": figure}, folder)


def draw_recalls(runs: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path) -> tuple[Path, ...]:
    """Draw the recall of every training against iterations, a colour for each way to train."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDE, 3.6), layout="constrained")
        ax = figure.subplots()
        for place, (arm, own) in enumerate(runs.items()):
            for number, run in enumerate(own):
                at = long_memory.EVERY * np.arange(len(run["recalls"]))
                label = long_memory.ARMS[arm] if not number else None
                ax.plot(at, 100 * np.array(run["recalls"]), color=COLOURS[place], linewidth=0.8, label=label)
        ax.set(xlabel="iteration", ylabel="recall [%]", ylim=(0, 102))
        figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize="small")
        return save_figures({"recall": figure}, folder)
