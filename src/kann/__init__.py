"""Koopman Analysis of Neural Networks: explain a trained sequence network through one linear operator."""

from kann.errors import ConditionWarning, KannError, KannWarning, RankWarning
from kann.explain import (
    Contributions,
    contributions,
    decision_map,
    importance,
    magnitude,
    project,
    reconstruct,
)
from kann.fidelity import agreement, hybrid, orthogonality, relative_error
from kann.moments import Moments
from kann.operator import Koopman, fit
from kann.spectrum import Mode
from kann.states import States

__version__ = "0.1.0"

__all__ = [
    "ConditionWarning",
    "Contributions",
    "KannError",
    "KannWarning",
    "Koopman",
    "Mode",
    "Moments",
    "RankWarning",
    "States",
    "agreement",
    "contributions",
    "decision_map",
    "fit",
    "hybrid",
    "importance",
    "magnitude",
    "orthogonality",
    "project",
    "reconstruct",
    "relative_error",
]
