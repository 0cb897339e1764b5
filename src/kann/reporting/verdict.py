"""How far an operator can be trusted, in sentences."""

from typing import Any

from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import DOUBTFUL, TRUSTED

GOOD, FAIR = 0.05, 0.3
"""Relative errors of one step up to which predictions are called close, and usable."""


def verdict(koopman: Koopman, numbers: dict[str, Any], driven: dict[str, Any] | None) -> list[str]:
    """What to believe and what not, the most important first."""
    return [
        _about_prediction(numbers),
        *_about_classes(numbers),
        _about_modes(koopman),
        *_about_inputs(numbers, driven),
        *_about_basis(numbers),
    ]


def _about_prediction(numbers: dict[str, Any]) -> str:
    error = numbers["error"]
    says = f"One step ahead, the operator misses {error:.1%} of a state's energy on average"
    if error <= GOOD:
        return f"{says}: it follows the network closely."
    if error <= FAIR:
        return (
            f"{says}: it follows the network roughly, so what it says holds for the main directions, not for details."
        )
    return f"{says}: a linear map does not stand for this network, and its modes should not be relied on."


def _about_classes(numbers: dict[str, Any]) -> list[str]:
    share = numbers["agreement"]
    if share is None:
        return []
    good = "so the operator keeps what decides" if share >= 0.95 else "so part of what decides lies outside of it"
    return [f"Read out from the predicted last state, {share:.1%} of the decisions are the network's, {good}."]


def _about_modes(koopman: Koopman) -> str:
    modes = koopman.modes
    trusted = sum(mode.residual <= TRUSTED for mode in modes)
    doubtful = sum(mode.residual >= DOUBTFUL for mode in modes)
    return (
        f"Of {len(modes)} modes, {trusted} have a residual up to {TRUSTED} and can be read as the network's own; "
        f"{doubtful} have {DOUBTFUL} or more and are artefacts of fitting a finite matrix: do not interpret those."
    )


def _about_inputs(numbers: dict[str, Any], driven: dict[str, Any] | None) -> list[str]:
    if numbers["driven"] or driven is None:
        return []
    gain = numbers["error"] / max(driven["error"], 1e-16)
    if gain < 2 and numbers["error"] > FAIR:
        return ["One that also reads the inputs is hardly better: what is missed is not linear in states and inputs."]
    if gain < 2:
        return ["An operator that also reads the inputs is hardly better, so the states evolve mostly by themselves."]
    return [
        f"An operator that also reads the inputs misses {driven['error']:.2%}, {gain:.3g} times less: most of what "
        "this one misses is what the inputs did, not what the network does by itself."
    ]


def _about_basis(numbers: dict[str, Any]) -> list[str]:
    notes = []
    if numbers["explained"] < 0.95:
        notes.append(
            f"The basis holds {numbers['explained']:.1%} of the states' energy; a higher rank would hold more."
        )
    if numbers["condition"] is None or numbers["condition"] > 1e6:
        notes.append("The eigenvectors are nearly dependent, so the shares of single modes may cancel each other.")
    return notes
