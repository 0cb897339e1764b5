"""The film of a training as an animation for papers and slides: GIF or mp4."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kann.analysis.training_history import History
from kann.data.files import replacing
from kann.errors import KannError
from kann.reporting.film import all_steps, checkpoint_at
from kann.reporting.plots import COLOURS, INK, STYLE

try:
    from matplotlib import pyplot
    from matplotlib.animation import FFMpegWriter, FuncAnimation, PillowWriter
except ImportError as error:
    raise ImportError("animations need matplotlib: pip install 'kann[report]'") from error

PER_SECOND = 8
"""Checkpoints that are shown in a second."""

DOTS_PER_INCH = 110
"""Fine enough for slides; a GIF of a hundred checkpoints has some megabytes."""

FARTHEST_SHOWN = 1.6
"""A mode farther outside than this would make the unit circle a dot."""


def animate(path: Path, runs: Mapping[str, History]) -> Path:
    """Write the animation: eigenvalues on the left; loss and |λ| of the slowest trusted mode on the right."""
    steps = all_steps(runs)
    writer: Any = PillowWriter(fps=PER_SECOND)
    if path.suffix.lower() == ".mp4":
        if not FFMpegWriter.isAvailable():
            raise KannError(f"{path} needs ffmpeg, which is not installed; pass a name that ends in .gif")
        writer = FFMpegWriter(fps=PER_SECOND)
    with pyplot.rc_context(STYLE), replacing(path) as temporary:
        figure, axes = pyplot.subplot_mosaic(
            [["plane", "loss"], ["plane", "slow"]], figsize=(7, 3.6), width_ratios=(1.1, 1), layout="constrained"
        )
        cursors = _draw_curves(axes, runs)

        def show(step: int) -> list[Any]:
            _draw_plane(axes["plane"], runs, step)
            for cursor in cursors:
                cursor.set_xdata([step, step])
            return []

        show(steps[-1])
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # places are found once; finding them for each picture takes most of the time
        made = FuncAnimation(figure, show, frames=steps, init_func=list, blit=False)
        # The writer chooses the format by the ending, which a temporary file does not have.
        named = temporary.with_name(f"{temporary.name}{path.suffix}")
        made.save(named, writer=writer, dpi=DOTS_PER_INCH)
        pyplot.close(figure)
        named.replace(temporary)
    return path


def _draw_curves(axes: Mapping[str, Any], runs: Mapping[str, History]) -> list[Any]:
    """Loss and the slowest trusted mode over all steps; returns the lines that mark the step that is shown."""
    for place, (name, history) in enumerate(runs.items()):
        colour = COLOURS[place % len(COLOURS)]
        axes["loss"].plot(history.steps, history.loss, color=colour, label=name)
        axes["slow"].plot(history.steps, history.figure("slow"), ".-", color=colour, markersize=3)
    if any((history.loss > 0).any() for history in runs.values()):
        axes["loss"].set_yscale("log")
    axes["loss"].set_ylabel("loss")
    axes["slow"].set(ylabel="slowest trusted |λ|", xlabel="step", ylim=(0, 1.1))
    if len(runs) > 1:
        axes["loss"].legend(frameon=False)
    return [axes[name].axvline(0, color=INK, linewidth=0.8, linestyle=":") for name in ("loss", "slow")]


def _draw_plane(ax: Any, runs: Mapping[str, History], step: int) -> None:
    """The eigenvalues of all runs at a step, on the unit circle."""
    ax.clear()
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 361))
    ax.plot(np.real(circle), np.imag(circle), color="#999999", linewidth=0.8)
    for place, history in enumerate(runs.values()):
        found = checkpoint_at(history, step)
        if found is None:
            continue
        colours = [COLOURS[place % len(COLOURS)]] * len(found.numbers)
        if len(runs) == 1:
            colours = [COLOURS[number % len(COLOURS)] for number in found.numbers.tolist()]
        for side in (1, -1):
            ax.scatter(
                np.real(found.eigenvalues),
                side * np.imag(found.eigenvalues),
                s=12 + 160 * np.minimum(found.carried, 1.0),
                c=colours,
                edgecolors=INK,
                linewidths=np.where(found.trusted, 1.0, 0.0),
            )
    largest = max([1.0, *(abs(value) for history in runs.values() for each in history for value in each.eigenvalues)])
    bound = 1.08 * min(largest, FARTHEST_SHOWN)
    ax.set(xlim=(-bound, bound), ylim=(-bound, bound), aspect="equal", xlabel="Re λ", ylabel="Im λ")
    ax.set_title(f"step {step}")
