"""Compare a network with copies of it that were never trained, to see which trusted modes training made."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from kann._format import format_eigenvalue
from kann.analysis._trust import ModeTrust, Trust, trust
from kann.analysis.trust_rule import SAME_EIGENVALUE, SMALLEST_MODULUS
from kann.data.states import States
from kann.fitting.koopman import Koopman
from kann.recording.untrained import untrained_twin

TWINS = 3
"""Untrained copies that are compared: each draws other eigenvalues, and training made none that lie among them."""

AMONG = 3.0
"""A mode lies among those of the copies if one of them decays slower and one faster, by no larger factor than this: the
copies of one network differ by as much."""


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
    theirs = [mode for each in found if each.untrained is not None for mode in each.untrained.modes if mode.trusted]
    modes = [_judged(judgements, theirs) for judgements in zip(*(each.modes for each in found), strict=True)]
    return replace(found[0], modes=tuple(modes))


def _judged(judgements: Sequence[ModeTrust], theirs: Sequence[ModeTrust]) -> ModeTrust:
    """A mode beside all copies: not learned if one of them has it, or if it lies between theirs."""
    own = judgements[0]
    not_learned = next((each for each in judgements if each.learned is False), None)
    if not_learned is not None or not own.trusted:
        return not_learned or own
    near = [mode.eigenvalue for mode in theirs if abs(mode.eigenvalue - own.eigenvalue) <= SAME_EIGENVALUE]
    rate = _rate(own.eigenvalue)
    slower = [each for each in near if rate / AMONG <= _rate(each) <= rate]
    faster = [each for each in near if rate <= _rate(each) <= rate * AMONG]
    if not slower or not faster:
        return own
    names = f"{format_eigenvalue(max(slower, key=_rate))} and {format_eigenvalue(min(faster, key=_rate))}"
    why = f"{own.why.split('; learned:')[0]}; own, not learned: untrained copies have {names} on both sides of it"
    return replace(own, learned=False, why=why)


def _rate(eigenvalue: complex) -> float:
    """How fast a mode decays, or grows, in a step: |log |λ||."""
    return abs(math.log(max(abs(eigenvalue), SMALLEST_MODULUS)))
