"""Operators that run in place of a network, of the kinds that the experiments compare."""

import kann
from kann.fitting.bilinear import Bilinear
from kann_experiments import trusting

RIDGE = 1e-6
"""The ridge where no sequences can be held out to choose it."""

KINDS = {"standin": "gate", "standin_squares": "gate, with products", "driven": "push only"}
"""The kinds of operators by their key, and what inputs do in each, as tables say it."""


def operators_of(states: kann.States, count: int) -> dict[str, kann.Koopman | Bilinear]:
    """An operator of each kind with so many coordinates."""
    ridge = None if trusting.can_hold_out(states) else RIDGE
    return {
        "standin": kann.fit(states, driven="bilinear", rank=count, ridge=ridge),
        "standin_squares": kann.fit(states, driven="bilinear", rank=count, ridge=ridge, lift="squares"),
        "driven": kann.fit(states, driven=True, rank=count),
    }
