"""How far an operator can be trusted, in sentences."""

from typing import Any

from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import DOUBTFUL, TRUSTED

CLOSE, ROUGH = 0.05, 0.3
"""Relative errors of one step up to which an operator is said to follow the network closely, and roughly."""

KEPT = 0.95
"""Fraction of decisions, and of the states' energy, from which on we say that the operator keeps what matters."""

HARDLY_BETTER = 2
"""An operator whose error is less than this many times smaller is called hardly better."""

NEARLY_DEPENDENT = 1e6
"""Condition of the eigenvectors above which contributions of modes can be much larger than their sum."""


def verdict(koopman: Koopman, quality: dict[str, Any], driven: dict[str, Any] | None) -> list[str]:
    """What to believe and what not, the most important sentence first.

    ``quality`` and ``driven`` are the numbers of `kann.reporting.operators.operator_quality`.
    """
    return [
        _about_prediction(quality),
        *_about_decisions(quality),
        _about_modes(koopman, quality),
        *_about_inputs(quality, driven),
        *_about_basis(quality),
    ]


def _about_prediction(quality: dict[str, Any]) -> str:
    error = quality["error"]
    sentence = f"One step ahead, the operator misses {error:.1%} of a state's energy on average"
    if error <= CLOSE:
        return f"{sentence}: it follows the network closely."
    if error <= ROUGH:
        return f"{sentence}: it follows the network roughly. Trust what it says about the main directions, not details."
    subject = "a linear map of the states alone"
    if quality["driven"]:
        subject = "a linear map of states and inputs"
    return f"{sentence}: {subject} cannot stand for this network, and its modes as a whole should not be relied on."


def _about_decisions(quality: dict[str, Any]) -> list[str]:
    agreement, error = quality["agreement"], quality["error"]
    if agreement is None:
        return []
    reason = "so part of what decides lies outside the operator"
    if agreement >= KEPT:
        reason = "so the operator keeps what decides"
        if error > ROUGH:
            reason += ", although it misses much of the rest"
    elif error <= CLOSE:
        reason += ", in the little that it misses"
    return [f"Read out from the predicted last state, {agreement:.1%} of the decisions are the network's, {reason}."]


def _about_modes(koopman: Koopman, quality: dict[str, Any]) -> str:
    modes = koopman.modes
    trusted = sum(mode.residual <= TRUSTED for mode in modes)
    doubtful = sum(mode.residual >= DOUBTFUL for mode in modes)
    # The residual says how linearly one direction evolves, whatever the operator makes of the whole state.
    meaning = "can be read as the network's own"
    if quality["error"] > ROUGH:
        meaning = "evolve linearly by themselves: only those can be read as the network's own"
    return (
        f"Of {len(modes)} modes, {trusted} have a residual up to {TRUSTED} and {meaning}; "
        f"{doubtful} have {DOUBTFUL} or more and are artefacts of fitting a finite matrix: do not interpret those."
    )


def _about_inputs(quality: dict[str, Any], driven: dict[str, Any] | None) -> list[str]:
    if quality["driven"] or driven is None:
        return []
    gain = quality["error"] / max(driven["error"], 1e-16)  # an exact operator has an error of 0
    if gain >= HARDLY_BETTER:
        return [
            f"An operator that also reads the inputs misses {driven['error']:.2%}, {gain:.3g} times less: most of what "
            "this one misses is what the inputs did, not what the network does by itself."
        ]
    if quality["error"] > ROUGH:
        return [
            "An operator that also reads the inputs is hardly better: "
            "what is missed is not linear in states and inputs."
        ]
    return ["An operator that also reads the inputs is hardly better, so the states evolve mostly by themselves."]


def _about_basis(quality: dict[str, Any]) -> list[str]:
    sentences = []
    if quality["explained"] < KEPT:
        sentences.append(
            f"The basis holds {quality['explained']:.1%} of the states' energy; a higher rank would hold more."
        )
    if quality["condition"] is None or quality["condition"] > NEARLY_DEPENDENT:
        sentences.append(
            "The eigenvectors are nearly dependent, so the contributions of single modes may cancel each other."
        )
    return sentences
