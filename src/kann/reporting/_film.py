"""The numbers of the film of a training: eigenvalues moving from checkpoint to checkpoint."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kann.live.history import FIGURES, Checkpoint, History
from kann.reporting.packing import finite_or_none


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
    return [
        [number, round(value.real, 6), round(value.imag, 6), round(carried, 6), int(trusted)]
        for number, value, carried, trusted in zip(*(column.tolist() for column in columns), strict=True)
    ]
