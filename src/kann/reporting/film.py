"""The film of a training: eigenvalues moving from checkpoint to checkpoint, as a page or as an animation."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kann.analysis.training_history import FIGURES, Checkpoint, History, require_histories
from kann.checks import require_path, require_text
from kann.data.files import replacing
from kann.errors import KannError
from kann.reporting.packing import finite_or_none

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
        from kann.reporting.animation import animate

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
    if place < 0:
        return None
    return history[place]


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
