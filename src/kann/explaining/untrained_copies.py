"""Compare modes with those of untrained copies of the network."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from kann._format import format_eigenvalue
from kann.analysis._trust import ModeTrust, Trust
from kann.analysis.trust_rule import SAME_EIGENVALUE, SAME_RATE, SMALLEST_MODULUS
from kann.errors import KannError
from kann.explaining.live_test import balance_states
from kann.explaining.operators import Operators
from kann.explaining.setup import Recorded, Setup, groups_of
from kann.fitting.balance import Balance
from kann.recording.untrained import untrained_twin

COPIES = 5
"""Untrained copies that are compared: each draws other eigenvalues, and training made none that lie among them."""

RECORDED_OF_COPIES = 200
"""Sequences that each copy reads."""

AMONG = 3.0
"""A mode lies among those of the copies if one of them decays slower and one faster, by no larger factor than this: the
copies of one network differ by as much."""

SHORTEST_MEMORY = 0.7
"""Below this |λ| half of a mode is left after two steps or fewer, which is no memory."""


def ask_for_trust(setup: Setup, recorded: Recorded, found: Operators, balanced: Balance | None) -> tuple[Trust, str]:
    """Measure how far modes can be trusted, and which of them untrained copies of the network have too.

    Returns why it was not compared with copies too; empty if it was, or if no mode can be trusted.
    """
    own = found.trust(setup.options.seed)
    if not own.trusted:
        return own, ""
    unknown = next((name for name, part in setup.model.named_modules() if _has_unknown_start(part)), None)
    if unknown is not None:
        whose = repr(unknown) if unknown else "the model itself"
        return own, f"how the parameters of {whose} began is not known; give it a method reset_parameters"
    try:
        copies = [trust_of_copy(setup, recorded, found, balanced is not None, seed) for seed in range(COPIES)]
    except KannError as error:  # such as forward= that runs the trained network, whichever copy it is given
        return own, f"a copy could not be recorded ({error})"
    theirs = [mode for copy in copies for trusted in copy for mode in trusted.modes if mode.trusted]
    return replace(own, modes=tuple(judged(mode, theirs) for mode in own.modes), untrained=copies[0][0]), ""


def _has_unknown_start(module: nn.Module) -> bool:
    """Return True for a module with parameters and no method that draws them anew."""
    is_known = hasattr(module, "reset_parameters") or hasattr(module, "_reset_parameters")
    return not is_known and next(module.parameters(recurse=False), None) is not None


def trust_of_copy(setup: Setup, recorded: Recorded, found: Operators, is_balanced: bool, seed: int) -> list[Trust]:
    """Judge an untrained copy as the network: in its own balanced coordinates, and in principal components."""
    numbers = setup.fitted_numbers[:: -(-len(setup.fitted_numbers) // RECORDED_OF_COPIES)]
    copy = replace(setup, model=untrained_twin(setup.model, seed=seed), fitted_numbers=numbers)
    states = copy.record(numbers, inputs=recorded.states.inputs is not None)
    bases: list[Balance | None] = [None]
    if is_balanced:
        with contextlib.suppress(KannError):
            bases.insert(0, balance_states(copy, recorded))
    groups = groups_of(copy, states)
    return [found.like(states, groups, basis).trust(setup.options.seed) for basis in bases]


def judged(own: ModeTrust, theirs: Sequence[ModeTrust]) -> ModeTrust:
    """Judge a mode next to those of the copies: not learned if one of them has it, or if it lies among theirs.

    Complex eigenvalues of copies fill a disc: such a mode lies among them if one of theirs decays as slowly.
    """
    if not own.trusted:
        return own
    rate, why = _rate(own.eigenvalue), ""
    near = [mode.eigenvalue for mode in theirs if abs(mode.eigenvalue - own.eigenvalue) <= SAME_EIGENVALUE]
    same = [each for each in near if rate / SAME_RATE <= _rate(each) <= rate * SAME_RATE]
    if own.eigenvalue.imag:
        same += [m.eigenvalue for m in theirs if m.eigenvalue.imag and _rate(m.eigenvalue) <= SAME_RATE * rate]
    slower = [each for each in near if rate / AMONG <= _rate(each) <= rate]
    faster = [each for each in near if rate <= _rate(each) <= rate * AMONG]
    if abs(own.eigenvalue) < SHORTEST_MEMORY:
        why = "half of it is left after a step or so, which is no memory"
    elif same:
        nearest = min(same, key=lambda each: abs(each - own.eigenvalue))
        why = f"an untrained copy has it just as well ({format_eigenvalue(nearest)})"
    elif slower and faster:
        names = f"{format_eigenvalue(max(slower, key=_rate))} and {format_eigenvalue(min(faster, key=_rate))}"
        why = f"untrained copies have {names} on both sides of it"
    judgement = f"own, not learned: {why}" if why else "learned: no untrained copy has such a mode"
    return replace(own, learned=not why, why=f"{own.why}; {judgement}")


def _rate(eigenvalue: complex) -> float:
    """Return how fast a mode decays, or grows, in a step: |log |λ||."""
    return abs(math.log(max(abs(eigenvalue), SMALLEST_MODULUS)))
