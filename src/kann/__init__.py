"""Koopman Analysis of Neural Networks: explain a trained sequence network through one linear operator."""

import importlib
from typing import TYPE_CHECKING, Any

from kann.errors import ConditionWarning, KannError, KannWarning, PaddingWarning, RankWarning
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

if TYPE_CHECKING:
    from kann.fixed_points import FixedPoints, find_fixed_points
    from kann.html import report
    from kann.recording import readout_of, record, step_of

__version__ = "0.1.0"

# These need torch or plotly, which are imported when one of them is first asked for.
_LAZY = {
    "FixedPoints": "kann.fixed_points",
    "find_fixed_points": "kann.fixed_points",
    "readout_of": "kann.recording",
    "record": "kann.recording",
    "report": "kann.html",
    "step_of": "kann.recording",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'kann' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "ConditionWarning",
    "Contributions",
    "FixedPoints",
    "KannError",
    "KannWarning",
    "Koopman",
    "Mode",
    "Moments",
    "PaddingWarning",
    "RankWarning",
    "States",
    "agreement",
    "contributions",
    "decision_map",
    "find_fixed_points",
    "fit",
    "hybrid",
    "importance",
    "magnitude",
    "orthogonality",
    "project",
    "readout_of",
    "reconstruct",
    "record",
    "relative_error",
    "report",
    "step_of",
]
