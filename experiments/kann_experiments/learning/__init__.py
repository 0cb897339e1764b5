"""When a network learns to remember: eigenvalues, loss and gradients during training.

Train while `kann.Monitor` watches, and ask of each seed which comes first: the slowest trusted eigenvalue at the unit
circle, the fall of the loss, or the peak of the gradient's norm. Trainings with shuffled answers are the baseline.
`reproduce` does it all.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kann.progress import progress
from kann.reporting.plots import film
from kann.typing import Array, Float
from kann_experiments.comparing.networks import COPY, TASKS
from kann_experiments.learning.runs import EVERY, Watched, watched
from kann_experiments.results import Quantity, Reproduction, tabulate, write_json
from kann_experiments.training import repeatable, require_folder

ON_THE_CIRCLE = 0.98
"""|λ| from which on a mode counts as kept: a third of it is left after 50 steps, longer than any sequence here."""

FALLEN = 0.1
"""The loss has fallen when it is this fraction of what it was at first."""

WITHOUT_MEMORY = {"copy": COPY.digits / COPY.length * math.log(COPY.letters), "flipflop": 1.0}
"""The least loss of a network that remembers nothing: it guesses each digit, and answers 0 for a bit that is 1 or −1.
Trainings with shuffled answers end there."""

MEMORY_PAYS = 0.9
"""Memory has begun to pay when the loss is this fraction of the least that is possible without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When things happened in one training, in iterations; NaN if they did not."""

    circle: float
    """The first checkpoint whose slowest trusted eigenvalue is at the unit circle."""
    pays: float
    """The first iteration after which the smoothed loss is a tenth below what is possible without memory."""
    loss: float
    """The first iteration after which the smoothed loss is a tenth of the first."""
    gradient: float
    """When the norm of the gradient, smoothed and after the first checkpoint, is largest."""

    @property
    def numbers(self) -> dict[str, float]:
        """As the table has them."""
        return {
            "reached": float(not math.isnan(self.circle)),
            "circle": self.circle,
            "pays": self.pays,
            "loss": self.loss,
            "gradient": self.gradient,
            "pays_lead": self.pays - self.circle,
            "lead": self.loss - self.circle,
            "gradient_lead": self.loss - self.gradient,
        }


QUANTITIES = (
    Quantity(key="reached", what=f"trainings whose slowest trusted |λ| reaches {ON_THE_CIRCLE}", format="percent"),
    Quantity(key="circle", what=f"iteration at which the slowest trusted |λ| reaches {ON_THE_CIRCLE}"),
    Quantity(key="pays", what="iteration at which the loss is a tenth below the least without memory"),
    Quantity(key="loss", what="iteration at which the loss has fallen to a tenth"),
    Quantity(key="gradient", what="iteration at which the norm of the gradient peaks"),
    Quantity(key="pays_lead", what="iterations by which |λ| precedes that memory pays"),
    Quantity(key="lead", what="iterations by which |λ| precedes the fall of the loss"),
    Quantity(key="gradient_lead", what="iterations by which the gradient's peak precedes it"),
)


def reproduce(
    task: str,
    *,
    arch: str = "gru",
    out: str | os.PathLike[str] = "runs/training",
    seeds: Sequence[int] = range(10),
    iterations: int | None = None,
    shuffled: bool = False,
) -> Reproduction:
    """Watch the trainings of several seeds; those that are in ``out`` already are read.

    With ``shuffled`` the same is done with answers of other sequences, of which nothing can be learnt: the baseline of
    how often an eigenvalue reaches the circle because weights move.
    """
    title, kind = f"training, {task}, {arch}", arch
    if shuffled:
        title, kind = f"{title}, answers shuffled", f"{arch}-shuffled"
    folder = require_folder(out) / kind / task
    with repeatable():
        runs = [
            watched(task, arch, seed=seed, folder=folder / f"seed-{seed}", iterations=iterations, shuffled=shuffled)
            for seed in progress(seeds, what=f"{task}, {arch}", total=len(seeds), unit="seed")
        ]
    times = [times_of(run) for run in runs]
    rows = tabulate(QUANTITIES, [each.numbers for each in times], {})
    path, page = folder / "results.json", folder / "film.html"
    measured = {str(run.seed): each.numbers for run, each in zip(runs, times, strict=True)}
    write_json(path, {"experiment": "training", "task": task, "arch": arch, "measured": measured})
    film(page, {f"seed {run.seed}": run.history for run in runs[:3]}, title=f"{task}, {arch}: how memories come about")
    return Reproduction(title=title, seeds=tuple(seeds), rows=rows, notes=(), studies=(), files=(path, page))


def times_of(run: Watched, *, circle: float = ON_THE_CIRCLE) -> Times:
    """When the eigenvalue, the loss and the gradient of a training moved; |λ| from ``circle`` on is at the circle."""
    slow = run.history.figure("slow")
    smooth = _smoothed(run.losses)
    norms = _smoothed(run.gradients)
    return Times(
        circle=_first(run.history.steps[slow >= circle]),
        pays=_first(np.flatnonzero(smooth <= MEMORY_PAYS * WITHOUT_MEMORY[run.task])),
        loss=_first(np.flatnonzero(smooth <= FALLEN * run.losses[0])),
        gradient=float(EVERY + norms[EVERY:].argmax()),
    )


def _first(found: Array) -> float:
    """The first of some iterations; NaN if there is none."""
    if not len(found):
        return float("nan")
    return float(found[0])


def _smoothed(values: Float[Array, " i"]) -> Float[Array, " i"]:
    """The mean over the last `EVERY` iterations, of fewer at the beginning."""
    sums = np.cumsum(values)
    before = np.concatenate([np.zeros(EVERY), sums[:-EVERY]])
    return (sums - before) / np.minimum(np.arange(1, len(values) + 1), EVERY)


__all__ = ["TASKS", "reproduce", "times_of"]
