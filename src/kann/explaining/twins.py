"""Compare a network with copies of it that were never trained, to see which trusted modes training made."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from kann.analysis.trust import Trust, trust
from kann.data.states import States
from kann.fitting.koopman import Koopman
from kann.recording.untrained import untrained_twin

TWINS = 2
"""Untrained copies that are compared: a mode that one of them has was not made by training."""


def can_be_drawn_anew(model: nn.Module) -> bool:
    """Whether every module that holds parameters knows how it began; those of the user's own classes mostly do not."""
    return all(
        hasattr(part, "reset_parameters") or hasattr(part, "_reset_parameters")
        for part in model.modules()
        if next(part.parameters(recurse=False), None) is not None
    )


def trust_beside_twins(
    model: nn.Module, koopman: Koopman, data: Any, record: Callable[[nn.Module], States], **options: Any
) -> Trust:
    """How far modes can be trusted, and which of them no untrained copy has; ``record`` records a copy."""
    found = [
        trust(koopman, data, untrained=record(untrained_twin(model, seed=seed)), **options) for seed in range(TWINS)
    ]
    modes = []
    for judgements in zip(*(each.modes for each in found), strict=True):
        not_learned = [each for each in judgements if each.learned is False]
        modes.append([*not_learned, *judgements][0])
    return replace(found[0], modes=tuple(modes))
