"""What held-out sequences say about an operator, for the tables of the experiments."""

import math
from collections.abc import Sequence

import numpy as np

import kann
from kann.fitting.folds import FEWEST_FOLDS, repeats_of
from kann_experiments.results import Quantity


def quantities(prefix: str, what: str) -> tuple[Quantity, ...]:
    """The rows of a table for `numbers` of the same prefix; ``what`` names the operator."""
    return (
        Quantity(key=f"{prefix}_modes", what=f"modes of {what}"),
        Quantity(key=f"{prefix}_trusted", what="    that sequences which were not fitted bear out"),
        Quantity(key=f"{prefix}_error", what="    variance that one step misses, held-out sequences"),
        Quantity(key=f"{prefix}_copying", what="    copying the previous state"),
    )


def can_hold_out(states: kann.States) -> bool:
    """Return whether enough sequences differ: a network whose states settle in two makes near copies of two."""
    return len(np.unique(repeats_of(states))) >= FEWEST_FOLDS


def unknown(prefix: str) -> dict[str, float]:
    """Return NaN for each of `numbers`, for states of which no sequences can be held out."""
    return {quantity.key: math.nan for quantity in quantities(prefix, "")}


def numbers(prefix: str, koopman: kann.Koopman, fitted_to: kann.States | Sequence[kann.Moments]) -> dict[str, float]:
    """How many modes can be trusted, and the held-out error of one step next to that of copying."""
    trust = kann.trust(koopman, fitted_to)
    return {
        f"{prefix}_modes": float(len(trust.modes)),
        f"{prefix}_trusted": float(len(trust.trusted)),
        f"{prefix}_error": float(trust.error[0]),
        f"{prefix}_copying": float(trust.copying_error[0]),
    }
