"""When a mode is called the network's own, and when it is called learned: the rule, in one place.

Every condition must hold. The figures are those that `kann.trust` measures on sequences that were not fitted.
A mode that is the network's own need not be learned: networks that were never trained have such modes too.
"""

import math
from dataclasses import dataclass

from kann._format import confidence, percent
from kann.fitting._fit import LARGEST_INFLATION, PAIRS_PER_UNKNOWN
from kann.fitting.spectrum import TRUSTED

LARGEST_RESIDUAL = TRUSTED
"""One step may miss the next value of the mode by this fraction of its size, on sequences that were not fitted."""

COPYING_SLACK = 1.05
"""A residual may exceed that of copying the previous state by this factor: a mode with λ = 1 is copied, and chance
decides which of the two is smaller."""

NULL_FRACTION = 0.5
"""The residual must be below this fraction of what states in shuffled order reach."""

NULL_IS_EXACT = 1e-6
"""Residual of the null below which it is rounding."""

WIDEST_INTERVAL = 0.1
"""The interval of |λ|, and that of the angle times |λ|, may be this wide: 0.95 then differs from 0.85."""

CLEARLY_BELOW_COPYING = 0.9
"""Limit of the residual, as a fraction of that of copying, where only this separates modes from slow noise: a sum over
300 steps of noise has λ = .997, a residual below the limit, and is predicted as well by copying. Its direction moves,
but a space that is nearly all of the coordinates' cannot move. It is not asked for in coordinates that were given:
equal memories that hold perfectly are copied too, and fill all of the balanced coordinates."""

LARGEST_TURN = 30.0
"""Degrees by which the eigenvector, or the space of indistinct ones, may move."""

SMALLEST_MODULUS = 1e-9
"""A mode with λ = 0 is taken to decay by this in a step, so that its rate is a number."""

CONSTANT_BELOW = 0.2
"""Fraction of a coefficient's energy that is variation, below which the mode is the mean of the states."""

SAME_EIGENVALUE = WIDEST_INTERVAL
"""Two networks have the same mode only if its eigenvalues are this close in the complex plane, …"""

SAME_RATE = 2.0
"""… and if the rates at which the two decay, −log |λ|, differ by no larger factor: 0.999 keeps ten times as long as
0.99. Rates that the intervals of |λ| do not tell apart are the same too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Figures that the rule looks at."""

    residual: float
    copying: float
    null: float
    width: float
    """Of the interval of |λ|, or of the angle times |λ| if that is wider."""
    turn: float
    subspace: tuple[int, ...]
    variation: float
    """Fraction of the coefficient's energy that is variation."""
    dependence: float
    pairs: int
    unknowns: int
    fills: bool = False
    """True for equal memories that fill most of the space, so that ``turn`` has no meaning."""
    chosen_by_variance: bool = True
    """False if the coordinates were given, as balanced ones are: noise that no output depends on is not among them."""


def objections(evidence: Evidence) -> list[str]:
    """List the reasons against trusting the mode, in words; empty if it is trusted."""
    if evidence.residual == math.inf:
        return ["the states have no energy in it"]
    found = []
    if evidence.variation < CONSTANT_BELOW:
        found.append("constant: its coefficient hardly varies, so it is the mean of the states and no memory")
    if evidence.pairs < PAIRS_PER_UNKNOWN * evidence.unknowns:
        found.append(f"too few pairs: {evidence.pairs} for {evidence.unknowns} unknowns in each column")
    if evidence.dependence > 1 - 1 / LARGEST_INFLATION:
        found.append("inputs contain the state, so what each of them does cannot be told apart")
    if not evidence.residual <= LARGEST_RESIDUAL:
        missed = f"{percent(evidence.residual)} of it"
        found.append(f"one step misses {missed} on held-out sequences (limit {confidence(LARGEST_RESIDUAL)})")
    may_be_noise = evidence.fills and evidence.chosen_by_variance
    if not evidence.residual <= (CLEARLY_BELOW_COPYING if may_be_noise else COPYING_SLACK) * evidence.copying:
        as_well = "nearly as well" if may_be_noise else "better"
        found.append(f"copying the previous state predicts it {as_well} (missing {percent(evidence.copying)})")
    if not evidence.residual < NULL_FRACTION * evidence.null or evidence.null < NULL_IS_EXACT:
        found.append(
            f"a null, without the order of states, predicts it nearly as well (missing {percent(evidence.null)})"
        )
    if not evidence.width <= WIDEST_INTERVAL:
        found.append(f"the interval of its eigenvalue is {evidence.width:.2g} wide (limit {WIDEST_INTERVAL})")
    if not evidence.fills and not evidence.turn <= LARGEST_TURN:
        count = len(evidence.subspace)
        turning = "its direction" if count == 1 else f"the space of {count} modes that cannot be told apart"
        found.append(f"{turning} moves by {evidence.turn:.0f}° with the sequences fitted")
    return found


def reasons(evidence: Evidence) -> str:
    """Describe why the mode is trusted."""
    together = ""
    if len(evidence.subspace) > 1:
        others = ", ".join(str(number) for number in evidence.subspace)
        together = f"; modes {others} cannot be told apart and are to be read together"
    return (
        f"one step misses {percent(evidence.residual)} of it on held-out sequences (copying "
        f"{percent(evidence.copying)}, shuffled {percent(evidence.null)}){together}"
    )


Located = tuple[complex, tuple[float, float]]
"""The eigenvalue of a mode that the rule calls a network's own, and the interval of its modulus."""


def is_same_mode(mode: Located, other: Located) -> bool:
    """Return whether a mode of the untrained network is the same as this one, so that training did not make it."""
    (value, interval), (other_value, other_interval) = mode, other
    if abs(value - other_value) > SAME_EIGENVALUE:
        return False
    if max(interval[0], other_interval[0]) <= min(interval[1], other_interval[1]):
        return True
    slow, fast = sorted(abs(math.log(max(abs(each), SMALLEST_MODULUS))) for each in (value, other_value))
    return fast <= SAME_RATE * slow


def about_learning(learned: bool | None, nearest: str) -> str:
    """Describe what the untrained network shows about a mode; ``nearest`` is its nearest mode."""
    if learned is None:
        return f"; the untrained network's nearest mode is {nearest}"
    if learned:
        return f"; learned: the untrained network has no such mode (its nearest is {nearest})"
    return f"; own, not learned: the untrained network has it just as well (its nearest is {nearest})"
