"""Operators that run in place of a network, of the kinds that the experiments compare."""

import kann
from kann.fitting.bilinear import Bilinear

KINDS = {"standin": "gate", "standin_squares": "gate, with products", "driven": "push only"}
"""The kinds of operators by their key, and what inputs do in each, as tables say it."""


def operators_of(states: kann.States, count: int) -> dict[str, kann.Koopman | Bilinear]:
    """An operator of each kind with so many coordinates."""
    return {
        "standin": kann.fit(states, driven="bilinear", rank=count),
        "standin_squares": kann.fit(states, driven="bilinear", rank=count, lift="squares"),
        "driven": kann.fit(states, driven=True, rank=count),
    }
