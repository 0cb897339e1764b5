"""How far an operator can be trusted: numbers for the page, and statements about them, each made in one place."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann._format import finite_or_none, fixed, part_of, percent, significant
from kann.analysis._pseudospectrum import MARGIN, pseudospectrum
from kann.analysis._trust import Trust, trust
from kann.checks import require_instance
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.koopman import Koopman

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


def require_trust_of(koopman: Koopman, own: Trust) -> None:
    """Raise if the trust belongs to another operator."""
    require_instance(own, Trust, "trust")
    ours, theirs = (tuple(mode.eigenvalue for mode in result.modes) for result in (koopman, own))
    if ours != theirs:
        raise KannError(
            f"trust= is of another operator, of {len(theirs)} modes; this one has {len(ours)}, or other eigenvalues; "
            "pass what kann.trust returned for this operator"
        )


def known_trust(koopman: Koopman, states: States, given: Trust | None = None) -> KnownTrust:
    """Return the trust that the user passed, or measure it on the states if these are the fitted ones."""
    if given is not None:
        require_trust_of(koopman, given)
        return KnownTrust(trust=given, reason="")
    try:
        return KnownTrust(trust=trust(koopman, states), reason="")
    except KannError as error:
        return KnownTrust(trust=None, reason=str(error))


def trust_numbers(known: KnownTrust) -> dict[str, Any] | None:
    """Return errors over horizons, and the number of held-out sequences, for the page."""
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


def null_radius(koopman: Koopman, known: KnownTrust) -> float | None:
    """Compute the radius of the eigenvalues of an operator fitted to states in shuffled order.

    With r coordinates, q unknowns in each column and n pairs that have nothing to do with each other, the fitted matrix
    is (XᵀX)^(−1/2) times independent numbers, whose eigenvalues fill a disc of radius √tr (XᵀX)⁻¹ = √(r / (n − q − 1)).
    None if no sequences were held out, or if there are no more pairs than unknowns.
    """
    if known.trust is None or known.trust.pairs <= known.trust.unknowns + 1:
        return None
    return float(np.sqrt(koopman.rank / (known.trust.pairs - known.trust.unknowns - 1)))


def mode_trust_rows(known: KnownTrust) -> list[dict[str, Any]]:
    """Write the trust of each mode for the table of modes; empty if it is not known."""
    if known.trust is None:
        return []
    return [
        {
            "interval": [finite_or_none(end) for end in mode.interval],
            "angle": [finite_or_none(end) for end in mode.angle],
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
    """Compute the pseudospectrum on a grid for the page; None without pairs of states, or if the rank is too large."""
    if koopman.rank > LARGEST_RANK or not (states.lengths > 1).any():
        return None
    side = int(PLANE_POINTS * min(1.0, FULL_GRID_UP_TO / koopman.rank) ** 1.5) | 1  # odd: the real axis is one row
    reach = MARGIN * max(1.0, float(np.abs(koopman.eigenvalues[0])))
    axis = np.linspace(-reach, reach, side)
    found = pseudospectrum(koopman, states, grid=axis + 1j * axis[:, None])
    logarithms = np.log10(np.maximum(found.residual, 1e-9)).round(3)
    return {"axis": axis.round(6).tolist(), "log_residual": logarithms.tolist()}


CLEAR_FACTOR = 2
"""Errors that differ by a smaller factor differ little: another draw of sequences can change an error as much."""

KEPT = 0.95
"""Fraction of decisions, and of the states' variance, from which on little is lost."""

NEARLY_DEPENDENT = 1e6
"""Condition of the eigenvectors above which contributions of modes can be much larger than their sum."""

FEW_PAIRS = 5
"""Pairs of states for each unknown, below which `kann.fit` warns."""

Numbers = dict[str, Any]
"""The quality of an operator, from `kann.reporting.operators`."""


Row = tuple[str, str, str, str]
"""Columns of the table of trust: the measurement, its figure, the baseline, and the conclusion."""


def trust_table(
    quality: Numbers,
    *,
    copying: Numbers,
    others: dict[str, Numbers],
    known: KnownTrust,
    step_name: str = "step",
    doubt: str = "",
) -> list[dict[str, str]]:
    """Return what was measured about an operator, next to its baseline, and what follows; the most important first.

    ``doubt`` names the layers at which copying is better, if these are most of them: a mean is then weak evidence.
    """
    trust, step = known.trust, f"one {step_name}"
    rows = _about_modes(known)
    if trust is not None:
        for place in sorted({0, len(trust.horizons) - 1}):
            ahead, errors = int(trust.horizons[place]), (float(trust.error[place]), float(trust.copying_error[place]))
            name = f"{step if ahead == 1 else f'{ahead} {step_name}s'}, held out"
            rows.append(_about_error(name, *errors, doubt="" if ahead > 1 else doubt, concludes=ahead == 1))
    shown = (f"{step}, sequences shown", quality["error"], copying["error"])
    rows.append(_about_error(*shown, doubt=doubt, concludes=trust is None))
    rows += _about_decisions(quality, copying, step_name)
    for name, driven in others.items():
        if driven["driven"] and not quality["driven"]:
            says = f"a difference by a factor of less than {CLEAR_FACTOR} means little"
            if _ratio(quality["error"], driven["error"]) >= CLEAR_FACTOR:
                says = "most of what this operator misses is the effect of the inputs"
            elif _ratio(driven["error"], quality["error"]) >= CLEAR_FACTOR:
                says = "reading the inputs makes it worse: do not rely on that operator"
            asked = f"Error next to “{name}”, which reads the inputs"
            rows.append((asked, percent(quality["error"]), percent(driven["error"]), says))
    if trust is not None:
        ratio = trust.pairs / max(1, trust.unknowns)
        says = "enough data for the fit" if ratio >= FEW_PAIRS else f"few data for the fit: below {FEW_PAIRS}"
        rows.append(("Pairs of states for each unknown", significant(ratio), f"{FEW_PAIRS} at least", says))
    says = "little lies outside the operator's basis"
    if quality["explained"] < KEPT:
        says = "much lies outside the operator's basis; a higher rank holds more"
    rows.append(("Variance of the states in the basis", percent(quality["explained"]), "–", says))
    condition, says = quality["condition"], "contributions of single modes can be read"
    if condition is None or condition > NEARLY_DEPENDENT:
        says = "nearly dependent: contributions of single modes may cancel each other"
    text = "∞" if condition is None else significant(condition, 2)
    rows.append(("Condition of the eigenvectors", text, f"{NEARLY_DEPENDENT:,.0f} at most", says))
    return [dict(zip(("asked", "found", "baseline", "says"), row, strict=True)) for row in rows]


def _about_modes(known: KnownTrust) -> list[Row]:
    if known.trust is None:
        says = f"nothing was held out, so no mode is called trusted: {known.reason}"
        return [("Modes trusted", "not tested", "–", says)]
    count, total, learned = len(known.trust.trusted), len(known.trust.modes), known.trust.learned
    which = {0: "no mode", total: "each mode"}.get(count, "some modes")
    says = f"{which} can be read as the network's own dynamics; held out in {known.trust.folds} folds"
    if count < total:
        says += "; the table of modes says what speaks against " + ("the others" if count else "them")
    rows = [("Modes trusted", part_of(count, total), "–", says)]
    if count:
        found = "not tested" if learned is None else part_of(len(learned), count)
        says = "the untrained network has the others just as well: own, not learned"
        if learned is None:
            says = "untrained networks have modes too, and this one's was not compared (kann.trust, untrained=)"
        elif len(learned) == count:
            says = "the untrained network has no such modes"
        rows.append(("Trusted modes that were learned", found, "–", says))
    return rows


def _about_error(name: str, error: float, copied: float, *, doubt: str, concludes: bool) -> Row:
    """State an error next to its baselines: copying, and predicting the same for all states, an error of 1.

    The operator is judged once, by one step on held-out sequences if there are any: ``concludes``.
    """
    gain = min(1.0, copied) / max(error, 1e-16)  # an exact operator has an error of 0
    if doubt:
        says = f"a mean that says little: {doubt}"
    elif gain >= CLEAR_FACTOR:
        says = f"{significant(gain)} times below the better baseline"
        says += ": the operator knows how states move" if concludes else ""
    elif gain > 1:
        says = f"hardly below the better baseline: a factor of less than {CLEAR_FACTOR} means little"
    else:
        says = "no better than the better baseline"
        says += ": the operator does not say how states move" if concludes else ""
    return f"Error of {name}", percent(error), f"copying {percent(copied)}, the mean 100 %", says


def _about_decisions(quality: Numbers, copying: Numbers, step_name: str) -> list[Row]:
    kept, copied = quality["agreement"], copying["agreement"]
    if kept is None:
        return []
    if quality["outputs"] == "values":
        says = "how far outputs read from the predicted last state are the network's"
        return [("R² of the outputs", fixed(kept), f"copying {fixed(copied)}", says)]
    if _ratio(1 - kept, 1 - copied) >= CLEAR_FACTOR:
        says = "the operator loses decisions that copying keeps"
    elif copied >= KEPT:
        says = f"the last {step_name} decides so little that this says nothing about the operator"
    elif _ratio(1 - copied, 1 - kept) >= CLEAR_FACTOR:
        says = f"the operator keeps most of what the last {step_name} decides"
    else:
        says = f"a difference by a factor of less than {CLEAR_FACTOR} means little"
    return [("Decisions kept by the predicted last state", percent(kept), f"copying {percent(copied)}", says)]


def _ratio(larger: float, smaller: float) -> float:
    return larger / max(smaller, 1e-16)
