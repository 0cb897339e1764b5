"""How far to trust an operator, as a table: what was asked, what came out, what a baseline gives, and what it says."""

from typing import Any

from kann._format import fixed, percent, significant
from kann.reporting.trust_payload import KnownTrust
from kann.reporting.verdict import CLEAR_FACTOR, KEPT, NEARLY_DEPENDENT

Row = dict[str, str]
"""One question: ``asked``, ``found``, ``baseline`` and ``says``."""

FEW_PAIRS = 5
"""Pairs of states for each unknown, below which `kann.fit` warns."""


def trust_table(
    quality: dict[str, Any], *, copying: dict[str, Any], known: KnownTrust, step_name: str = "step", doubt: str = ""
) -> list[Row]:
    """The rows of the table; those that can be answered.

    ``doubt`` says, along depth, at how many layers copying is better, where it is at most of them.
    """
    return [
        *_about_modes(known),
        *_about_horizons(known, step_name, doubt),
        _about_shown(quality, copying, step_name, doubt),
        *_about_decisions(quality, copying, step_name),
        *_about_data(known),
        _about_basis(quality),
        _about_eigenvectors(quality),
    ]


def _row(asked: str, found: str, baseline: str, says: str) -> Row:
    return {"asked": asked, "found": found, "baseline": baseline, "says": says}


def _about_modes(known: KnownTrust) -> list[Row]:
    if known.trust is None:
        return [_row("Modes trusted", "not tested", "–", "nothing was held out")]
    trust, count = known.trust, len(known.trust.trusted)
    says = "some modes are the network's own dynamics"
    if not count:
        says = "no mode can be read as the network's own dynamics"
    if count == len(trust.modes):
        says = "all modes are the network's own dynamics"
    rows = [_row("Modes trusted", f"{count} of {len(trust.modes)}", "–", f"{says}; held out in {trust.folds} folds")]
    if trust.learned is not None:
        says = "what the untrained network has as well was not learned"
        rows.append(_row("Trusted modes that were learned", f"{len(trust.learned)} of {count}", "–", says))
    return rows


def _about_horizons(known: KnownTrust, step_name: str, doubt: str) -> list[Row]:
    trust = known.trust
    if trust is None:
        return []
    rows = []
    for place in sorted({0, len(trust.horizons) - 1}):
        ahead, error, copied = int(trust.horizons[place]), float(trust.error[place]), float(trust.copying_error[place])
        name, says = f"one {step_name}", _judged(error, min(1.0, copied), doubt)
        if ahead > 1:
            name, says = f"{ahead} {step_name}s", _judged(error, min(1.0, copied))
        baseline = f"copying {percent(copied)}, the mean 100 %"
        rows.append(_row(f"Error of {name}, held out", percent(error), baseline, says))
    return rows


def _about_shown(quality: dict[str, Any], copying: dict[str, Any], step_name: str, doubt: str) -> Row:
    error, copied = quality["error"], copying["error"]
    baseline = f"copying {percent(copied)}, the mean 100 %"
    says = _judged(error, min(1.0, copied), doubt)
    return _row(f"Error of one {step_name}, sequences shown", percent(error), baseline, says)


def _judged(error: float, baseline: float, doubt: str = "") -> str:
    if doubt:
        return f"a mean that says little: {doubt}"
    if error * CLEAR_FACTOR <= baseline:
        return "clearly below the better baseline"
    if error < baseline:
        return "hardly below the better baseline"
    return "no better than the better baseline"


def _about_decisions(quality: dict[str, Any], copying: dict[str, Any], step_name: str) -> list[Row]:
    kept, copied = quality["agreement"], copying["agreement"]
    if kept is None:
        return []
    says = "the predicted last state decides as the network does"
    if kept < KEPT:
        says = "the predicted last state often decides otherwise"
    if copied >= KEPT:
        says = f"the last {step_name} decides so little that this says nothing"
    if quality["outputs"] == "values":
        says = "how far outputs read from the predicted last state are the network's"
        return [_row("R² of the outputs", fixed(kept), f"copying {fixed(copied)}", says)]
    baseline = f"copying {percent(copied)}"
    return [_row("Decisions kept by the predicted last state", percent(kept), baseline, says)]


def _about_data(known: KnownTrust) -> list[Row]:
    if known.trust is None:
        return []
    ratio = known.trust.pairs / max(1, known.trust.unknowns)
    says = "enough data for the fit"
    if ratio < FEW_PAIRS:
        says = f"few data for the fit: below {FEW_PAIRS}"
    return [_row("Pairs of states for each unknown", significant(ratio), f"{FEW_PAIRS} at least", says)]


def _about_basis(quality: dict[str, Any]) -> Row:
    says = "little lies outside the operator's basis"
    if quality["explained"] < KEPT:
        says = "much lies outside the operator's basis; a higher rank holds more"
    return _row("Variance of the states in the basis", percent(quality["explained"]), "–", says)


def _about_eigenvectors(quality: dict[str, Any]) -> Row:
    condition, says = quality["condition"], "contributions of single modes can be read"
    if condition is None or condition > NEARLY_DEPENDENT:
        says = "nearly dependent: contributions of single modes may cancel each other"
    text = "∞" if condition is None else significant(condition, 2)
    return _row("Condition of the eigenvectors", text, f"{NEARLY_DEPENDENT:,.0f} at most", says)
