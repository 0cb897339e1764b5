"""What a report knows about trust: what the user passed, or what the states themselves say."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis._pseudospectrum import MARGIN, pseudospectrum
from kann.analysis._trust import Trust, trust
from kann.checks import require_instance
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.folds import FEWEST_FOLDS
from kann.fitting.koopman import Koopman
from kann.reporting.packing import finite_or_none

FOLDS = 10
"""In so many folds sequences are held out, or in as many as there are sequences."""

PLANE_POINTS = 41
"""Points on each side of the page's pseudospectrum."""

FULL_GRID_UP_TO = 96
"""Up to this rank all of these points take a second or two. Of larger ranks fewer are computed."""

LARGEST_RANK = 256
"""From here on the pseudospectrum is left out: a coarse one would take more than ten seconds."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KnownTrust:
    """How far an operator can be trusted, if that is known."""

    trust: Trust | None
    reason: str
    """Why it is not known; empty if it is."""

    @property
    def count(self) -> int | None:
        """How many modes are trusted; None if that is not known."""
        if self.trust is None:
            return None
        return len(self.trust.trusted)


def require_trust_of(koopman: Koopman, own: Trust) -> None:
    """Refuse the trust of another operator."""
    require_instance(own, Trust, "trust")
    ours, theirs = (tuple(mode.eigenvalue for mode in result.modes) for result in (koopman, own))
    if ours != theirs:
        raise KannError(
            f"trust= is of another operator, of {len(theirs)} modes; this one has {len(ours)}, or other eigenvalues; "
            "pass what kann.trust returned for this operator"
        )


def known_trust(koopman: Koopman, states: States, given: Trust | None = None) -> KnownTrust:
    """What the user passed; or else what the states say, if these are the ones that were fitted."""
    if given is not None:
        require_trust_of(koopman, given)
        return KnownTrust(trust=given, reason="")
    folds = max(FEWEST_FOLDS, min(FOLDS, int((states.lengths > 1).sum())))
    try:
        return KnownTrust(trust=trust(koopman, states, folds=folds), reason="")
    except KannError as error:
        return KnownTrust(trust=None, reason=str(error))


def trust_numbers(known: KnownTrust) -> dict[str, Any] | None:
    """Errors over horizons, and what was held out, for the page."""
    found = known.trust
    if found is None:
        return None
    return {
        "folds": found.folds,
        "level": found.level,
        "horizons": found.horizons.tolist(),
        "error": [finite_or_none(value) for value in found.error.tolist()],
        "copying": [finite_or_none(value) for value in found.copying_error.tolist()],
        "trusted": list(found.trusted),
        "learned": found.learned,
    }


def level_in_percent(known: KnownTrust) -> int | None:
    """The confidence level of the intervals, in percent; None if nothing was held out."""
    if known.trust is None:
        return None
    return round(100 * known.trust.level)


def null_radius(koopman: Koopman, known: KnownTrust) -> float | None:
    """Within this distance of 0 lie the eigenvalues of an operator that is fitted to states in shuffled order.

    With r coordinates, q unknowns in each column and n pairs that have nothing to do with each other, the fitted matrix
    is (XᵀX)^(−1/2) times independent numbers, whose eigenvalues fill a disc of radius √tr (XᵀX)⁻¹ = √(r / (n − q − 1)).
    None if nothing was held out, or there are no more pairs than unknowns.
    """
    if known.trust is None or known.trust.pairs <= known.trust.unknowns + 1:
        return None
    return float(np.sqrt(koopman.rank / (known.trust.pairs - known.trust.unknowns - 1)))


def mode_trust_rows(known: KnownTrust) -> list[dict[str, Any]]:
    """What the table of modes says about trust, by mode; nothing if it is not known."""
    if known.trust is None:
        return []
    return [
        {
            "interval": list(mode.interval),
            "angle": list(mode.angle),
            "held_out": finite_or_none(mode.residual),
            "copying": finite_or_none(mode.copying),
            "shuffled": finite_or_none(mode.null),
            "trusted": mode.trusted,
            "learned": mode.learned,
            "verdict": mode.verdict,
            "why": mode.why,
        }
        for mode in known.trust.modes
    ]


def plane_numbers(koopman: Koopman, states: States) -> dict[str, Any] | None:
    """The pseudospectrum on a grid, for the page; None if there is no pair of states, or the rank is too large."""
    if koopman.rank > LARGEST_RANK or not (states.lengths > 1).any():
        return None
    side = int(PLANE_POINTS * min(1.0, FULL_GRID_UP_TO / koopman.rank) ** 1.5) | 1  # odd: the real axis is one row
    reach = MARGIN * max(1.0, float(np.abs(koopman.eigenvalues[0])))
    axis = np.linspace(-reach, reach, side)
    found = pseudospectrum(koopman, states, grid=axis + 1j * axis[:, None])
    logarithms = np.log10(np.maximum(found.residual, 1e-9)).round(3)
    return {"axis": axis.round(6).tolist(), "log_residual": logarithms.tolist()}
