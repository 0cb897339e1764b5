"""How far an operator can be trusted, in sentences that do not contradict each other."""

from typing import Any

from kann._format import fixed, percent
from kann.analysis._trust import Trust
from kann.reporting.trust_payload import KnownTrust

CLEAR_FACTOR = 2
"""A change by a smaller factor than this means little: another draw of sequences can change an error by as much."""

KEPT = 0.95
"""Fraction of decisions, and of the states' variance, from which on we say that what matters is kept."""

NEARLY_DEPENDENT = 1e6
"""Condition of the eigenvectors above which contributions of modes can be much larger than their sum."""

MEANS_LITTLE = f"a difference by a factor of less than {CLEAR_FACTOR} means little"

Numbers = dict[str, Any]
"""What `kann.reporting.operators` measured of an operator."""


def verdict(
    quality: Numbers,
    *,
    copying: Numbers,
    driven: Numbers | None,
    known: KnownTrust,
    step_name: str = "step",
    doubt: str = "",
) -> list[str]:
    """What to believe and what not, the most important sentence first.

    ``copying`` are the numbers of copying the previous state, ``driven`` those of the operator that reads the inputs.
    ``step_name`` is what a step is called, such as "layer"; ``doubt`` says at how many layers copying is better, where
    it is at most of them.
    """
    gain = _gain(quality, copying, known.trust)
    judged = _judged(gain)
    if doubt:
        judged = f"a mean over {step_name}s that says little, since {doubt}"
        gain = min(gain, 1.0)
    return [
        _about_modes(quality, known),
        *_about_prediction(quality, copying, known.trust, judged, step_name),
        *_about_decisions(quality, copying, gain, step_name),
        *_about_inputs(quality, driven),
        *_about_basis(quality),
    ]


def _gain(quality: Numbers, copying: Numbers, trust: Trust | None) -> float:
    """How many times smaller than its baseline the error of one step is; on held-out sequences if there are any.

    The baseline is copying the previous state, or predicting the same for all states if that is better: an error of 1.
    """
    if trust is not None:
        return _ratio(min(1.0, float(trust.copying_error[0])), float(trust.error[0]))
    return _ratio(min(1.0, copying["error"]), quality["error"])


def _ratio(larger: float, smaller: float) -> float:
    return larger / max(smaller, 1e-16)  # an exact operator has an error of 0


def _about_modes(quality: Numbers, known: KnownTrust) -> str:
    if known.trust is None:
        return f"Nothing was held out, so no mode is called trusted on this page. The reason: {known.reason}."
    count, total, folds = len(known.trust.trusted), quality["modes"], known.trust.folds
    tested = f"tested on sequences that were not fitted, held out in {folds} folds"
    if not count:
        which = f"None of the {total} modes can"
        if total == 1:
            which = "The one mode cannot"
        return f"{which} be read as the network's own dynamics ({tested}). The table of modes says why."
    which = f"{count} of {total} modes"
    if total == 1:
        which = "The one mode"
    rest = ""
    if count < total:
        rest = " The table of modes says what speaks against the others."
    return f"{which} can be read as the network's own dynamics ({tested}).{rest} {_about_learning(known.trust)}"


def _about_learning(trust: Trust) -> str:
    """Whether training made the trusted modes, which trust alone does not say."""
    if trust.learned is None:
        return (
            "That does not mean that training made them: networks that were never trained have modes of their own too, "
            "and the untrained network was not compared (kann.trust, untrained=)."
        )
    own = len(trust.trusted) - len(trust.learned)
    if not own:
        return "The untrained network has no such modes: they were learned."
    if not trust.learned:
        return "The untrained network has all of that just as well: own, not learned."
    return f"{own} of them the untrained network has just as well: own, not learned."


def _about_prediction(
    quality: Numbers, copying: Numbers, trust: Trust | None, judged: str, step_name: str
) -> list[str]:
    if trust is None:
        figures = (
            f"On the sequences shown, one {step_name} misses {percent(quality['error'])} of the states' variance; "
            f"copying the previous state misses {percent(copying['error'])}"
        )
        return [f"{figures}: {judged}."]
    figures = (
        f"On held-out sequences, one {step_name} misses {percent(trust.error[0])} of the states' variance; copying the "
        f"previous state misses {percent(trust.copying_error[0])}"
    )
    sentences = [f"{figures}: {judged}."]
    if len(trust.horizons) > 1:
        sentences.append(
            f"Over {trust.horizons[-1]} {step_name}s it misses {percent(trust.error[-1])}, copying "
            f"{percent(trust.copying_error[-1])}, and predicting the mean 100 %."
        )
    return sentences


def _judged(gain: float) -> str:
    if gain >= CLEAR_FACTOR:
        return f"{gain:.3g} times less than the better of copying and the mean, so the operator knows how states move"
    if gain > 1:
        return f"{MEANS_LITTLE}, so the operator hardly knows more than the better of copying and the mean"
    return "copying or predicting the mean does as well or better, so the operator does not say how states move"


def _about_decisions(quality: Numbers, copying: Numbers, gain: float, step_name: str) -> list[str]:
    kept, copied = quality["agreement"], copying["agreement"]
    if kept is None:
        return []
    if quality.get("outputs") == "values":
        return [
            f"Read out from the predicted last state, outputs match the network's with R² = {fixed(kept)}; read "
            f"out from the state before it, with R² = {fixed(copied)}."
        ]
    figures = (
        f"Read out from the predicted last state, {percent(kept)} of the decisions shown are the network's; read "
        f"out from the state before it, {percent(copied)} are"
    )
    if _ratio(1 - kept, 1 - copied) >= CLEAR_FACTOR:
        return [f"{figures}: the operator loses decisions that copying keeps."]
    if copied >= KEPT:
        return [f"{figures}: the last {step_name} decides so little that this says nothing about the operator."]
    clearer = _ratio(1 - copied, 1 - kept) >= CLEAR_FACTOR
    if not clearer:
        return [f"{figures}: {MEANS_LITTLE}."]
    if gain < CLEAR_FACTOR:
        return [
            f"{figures}: of what the last {step_name} decides the operator keeps most, although it misses much of "
            "the rest."
        ]
    return [f"{figures}: of what the last {step_name} decides the operator keeps most."]


def _about_inputs(quality: Numbers, driven: Numbers | None) -> list[str]:
    if quality["driven"] or driven is None:
        return []
    gain = _ratio(quality["error"], driven["error"])
    figures = (
        f"On the sequences shown, an operator that also reads the inputs misses {percent(driven['error'])} of the "
        f"states' variance, and this one {percent(quality['error'])}"
    )
    if gain >= CLEAR_FACTOR:
        return [f"{figures}: most of what this one misses is what the inputs did."]
    if _ratio(driven["error"], quality["error"]) >= CLEAR_FACTOR:
        return [f"{figures}: reading the inputs makes it worse, so do not rely on that one."]
    return [f"{figures}: {MEANS_LITTLE}."]


def _about_basis(quality: Numbers) -> list[str]:
    sentences = []
    if quality["explained"] < KEPT:
        sentences.append(
            f"The basis holds {percent(quality['explained'])} of the states' variance; a higher rank holds more."
        )
    if quality["condition"] is None or quality["condition"] > NEARLY_DEPENDENT:
        sentences.append(
            "The eigenvectors are nearly dependent, so contributions of single modes may cancel each other."
        )
    return sentences
