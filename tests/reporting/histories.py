"""Histories of trainings that are known, for tests of films."""

import math

import numpy as np

from kann.live.history import FIGURES, Checkpoint, History


def history(checkpoints=6, *, first=0, every=10, dead=None):
    """A real mode that reaches the unit circle and a pair that turns; at the checkpoint ``dead`` nothing is known."""
    made = History()
    for place in range(checkpoints):
        step, done = first + every * place, place / max(1, checkpoints - 1)
        if place == dead:
            made.add(Checkpoint.unknown(step=step, loss=math.nan))
            continue
        values = np.array([0.5 + 0.5 * done, 0.8 * np.exp(1j * (0.3 + done))])
        figures = dict.fromkeys(FIGURES, 1.0) | {"slow": float(values[0].real), "horizon": math.inf}
        checkpoint = Checkpoint(
            step=step,
            loss=2.0 * 0.3**place,
            figures=figures,
            numbers=np.array([0, 1]),
            eigenvalues=values,
            carried=np.array([0.7, 0.3]),
            trusted=np.array([True, False]),
        )
        made.add(checkpoint, np.eye(2, 3).astype(complex))
    return made
