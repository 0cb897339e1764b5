"""Compare modes with those of untrained copies of the network."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from kann._format import format_eigenvalue
from kann.analysis._trust import ModeTrust, Trust
from kann.analysis.mode_evidence import SAME_RATE, SMALLEST_MODULUS
from kann.errors import KannError
from kann.explaining.live_test import balance_states
from kann.explaining.operators import Operators
from kann.explaining.setup import Recorded, Setup, groups_of
from kann.fitting.balance import Balance
from kann.recording.untrained import untrained_twin

COPIES = 5
"""Untrained copies that are compared: each draws other eigenvalues, and training made none that lie among them."""

RECORDED_OF_COPIES, LEAST_OF_COPIES, STEPS_OF_COPIES = 200, 50, 25_000
"""Sequences that each copy reads: of long ones fewer, down to the second, so that they have no more steps."""

RESOLVED = 3.0
"""Half-lives beyond this multiple of the longest sequence cannot be distinguished."""

SHORTEST_MEMORY = 0.7
"""Below this |λ| half of a mode is left after two steps or fewer, which is no memory."""


def ask_for_trust(setup: Setup, recorded: Recorded, found: Operators, balanced: Balance | None) -> tuple[Trust, str]:
    """Measure how far modes can be trusted, and which of them untrained copies of the network have too.

    Returns why it was not compared with copies too; empty if it was, or if no mode can be trusted.
    """
    own = found.trust(setup.options.seed)
    if not own.trusted:
        return own, ""
    unknown = unknown_start(setup.model)
    if unknown is not None:
        whose = repr(unknown) if unknown else "the model itself"
        return own, f"how the parameters of {whose} began is not known; give it a method reset_parameters"
    copies: list[list[Trust]] = []
    try:
        while len(copies) < COPIES:
            begun = setup.clock.spent
            copies.append(trust_of_copy(setup, recorded, found, balanced is not None, len(copies)))
            if (COPIES - len(copies)) * (setup.clock.spent - begun) > setup.clock.left:
                return own, f"there was no time for {COPIES} copies; pass more seconds"
    except KannError as error:  # such as forward= that runs the trained network, whichever copy it is given
        return own, f"a copy could not be recorded ({error})"
    theirs = [mode for copy in copies for trusted in copy for mode in trusted.modes if mode.trusted]
    longest = RESOLVED * float(found.states.lengths.max())
    modes = tuple(judged(mode, theirs, longest=longest) for mode in own.modes)
    return replace(own, modes=modes, untrained=copies[0][0]), ""


def unknown_start(model: nn.Module) -> str | None:
    """Return the name of the first module with parameters and no method that draws them anew; None without any."""

    def is_unknown(part: nn.Module) -> bool:
        is_known = hasattr(part, "reset_parameters") or hasattr(part, "_reset_parameters")
        return not is_known and next(part.parameters(recurse=False), None) is not None

    return next((name for name, part in model.named_modules() if is_unknown(part)), None)


def trust_of_copy(setup: Setup, recorded: Recorded, found: Operators, is_balanced: bool, seed: int) -> list[Trust]:
    """Judge an untrained copy as the network: in its own balanced coordinates, and in principal components."""
    most = STEPS_OF_COPIES / max(1.0, float(recorded.states.lengths.mean()))
    most = max(LEAST_OF_COPIES, min(RECORDED_OF_COPIES, int(most)))
    numbers = setup.fitted_numbers[:: -(-len(setup.fitted_numbers) // most)]
    copy = replace(setup, model=untrained_twin(setup.model, seed=seed), fitted_numbers=numbers)
    states = copy.record(numbers, inputs=recorded.states.inputs is not None)
    bases: list[Balance | None] = [None]
    if is_balanced:
        with contextlib.suppress(KannError):
            bases.insert(0, balance_states(copy, recorded))
    groups = groups_of(copy, states)
    return [found.like(states, groups, basis).trust(setup.options.seed) for basis in bases]


def judged(own: ModeTrust, theirs: Sequence[ModeTrust], *, longest: float) -> ModeTrust:
    """Judge a mode next to those of the copies: learned if all of theirs decay clearly faster.

    Eigenvalues of untrained networks fill a disc, or for real positive ones a part of the real line, and each copy has
    others. One between theirs is an accident; one outside is not. Modes that turn or flip are compared with such modes.
    Half-lives above ``longest`` count as equal.
    """
    if not own.trusted:
        return own
    alike = [mode.eigenvalue for mode in theirs if _turns(mode.eigenvalue) == _turns(own.eigenvalue)]
    slowest, least, why = max(alike, key=abs, default=0j), math.log(2) / longest, ""
    if abs(own.eigenvalue) < SHORTEST_MEMORY:
        why = "half of it is left after a step or so, which is no memory"
    elif _rate(slowest, least) <= SAME_RATE * _rate(own.eigenvalue, least):
        why = f"an untrained copy has one that lasts as long ({format_eigenvalue(slowest)})"
    judgement = f"own, not learned: {why}" if why else "learned: no untrained copy has such a mode"
    return replace(own, learned=not why, why=f"{own.why}; {judgement}")


def _turns(eigenvalue: complex) -> bool:
    return eigenvalue.imag != 0 or eigenvalue.real < 0


def _rate(eigenvalue: complex, least: float) -> float:
    """Return how fast a mode decays in a step, −log |λ|, and ``least`` if it is slower or grows."""
    return max(least, -math.log(max(abs(eigenvalue), SMALLEST_MODULUS)))
