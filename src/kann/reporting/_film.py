"""The film of a training: eigenvalues moving from checkpoint to checkpoint, as a page or as an animation."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kann.checks import require_path, require_text
from kann.data.atomic_write import replacing
from kann.errors import KannError
from kann.live.history import FIGURES, Checkpoint, History, require_histories
from kann.reporting.packing import finite_or_none
from kann.reporting.plots import COLOURS, INK, STYLE

PAGES, ANIMATIONS = (".html", ".htm"), (".gif", ".mp4")
"""Endings of files: what is written is said by the name."""


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
        The file to write: ``.html`` for a page with a slider that works offline, ``.gif`` or ``.mp4`` (which needs
        ffmpeg) for an animation. A file that exists is replaced.
    histories
        A history, or several by name to compare them.
    title, about
        For a page: the heading, and a paragraph about the network and its training.
    """
    require_path(path)
    require_text(title, "title")
    require_text(about, "about")
    path, runs = Path(path), require_histories(histories)
    if path.is_dir():
        raise KannError(f"{path} is a folder; pass the name of a file")
    if path.suffix.lower() in ANIMATIONS:
        return animate(path, runs)
    if path.suffix.lower() not in PAGES:
        raise KannError(f"{path} has an unknown ending; pass a name that ends in .html, .gif or .mp4")
    from kann.reporting.offline import page_with_charts

    html = page_with_charts("film", film_content(runs), title=title, about=about)
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8", errors="replace")
    return path


def film_content(runs: Mapping[str, History]) -> dict[str, Any]:
    """All numbers of the page: steps of all runs, and of each run its loss, figures and modes at each checkpoint."""
    return {"steps": all_steps(runs), "runs": [_run(name, history) for name, history in runs.items()]}


def all_steps(runs: Mapping[str, History]) -> list[int]:
    """The steps at which any of the runs has a checkpoint, in their order."""
    return np.unique(np.concatenate([history.steps for history in runs.values()])).tolist()


def checkpoint_at(history: History, step: int) -> Checkpoint | None:
    """The last checkpoint that is no later than a step; None before the first one."""
    place = int(np.searchsorted(history.steps, step, side="right")) - 1
    return None if place < 0 else history[place]


def _run(name: str, history: History) -> dict[str, Any]:
    return {
        "name": name,
        "steps": history.steps.tolist(),
        "loss": [finite_or_none(value) for value in history.loss.tolist()],
        "figures": {figure: [finite_or_none(value) for value in history.figure(figure).tolist()] for figure in FIGURES},
        "modes": [_modes(checkpoint) for checkpoint in history],
    }


def _modes(checkpoint: Checkpoint) -> list[list[Any]]:
    """Number, real and imaginary part, what it carries, and whether it is trusted, for each mode."""
    columns = (checkpoint.numbers, checkpoint.eigenvalues, checkpoint.carried, checkpoint.trusted)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        [number, round(value.real, 6), round(value.imag, 6), round(carried, 6), int(trusted)]
        for number, value, carried, trusted in rows
    ]


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
