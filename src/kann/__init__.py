"""Koopman Analysis of Neural Networks: explain a trained sequence network through one linear operator."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kann import errors
from kann._version import __version__ as __version__
from kann.analysis._movers import Movers, movers
from kann.analysis._pseudospectrum import pseudospectrum
from kann.analysis._trust import Trust, trust
from kann.analysis.comparison import Comparison, compare, distance
from kann.analysis.decisions import contributions, decision_map
from kann.analysis.fidelity import agreement, copying, hybrid, orthogonality, relative_error
from kann.analysis.modes import importance, magnitude, project, reconstruct
from kann.data.moments import Moments
from kann.data.states import States
from kann.errors import KannError
from kann.fitting import features
from kann.fitting._fit import fit
from kann.fitting.balance import Balance
from kann.fitting.bilinear import Bilinear
from kann.fitting.koopman import Koopman

if TYPE_CHECKING:
    from kann import depth, recording, zoo
    from kann import live as live
    from kann import stand_ins as stand_ins
    from kann.explaining._explain import explain
    from kann.explaining.explanation import Explanation
    from kann.fixed_points._search import find_fixed_points
    from kann.fixed_points.result import FixedPoints
    from kann.live._balance import balance
    from kann.live._effects import effects
    from kann.live._intervene import intervene
    from kann.live._memory import memory
    from kann.live._monitor import Monitor
    from kann.live.results import Effects
    from kann.recording._record import record
    from kann.reporting import plots
    from kann.reporting._report import report
    from kann.stand_ins._stand_in import stand_in

# The module of each name, or that is the name. They need torch, jinja2 or matplotlib, which are imported when one of
# the names is first used.
_LAZY = {
    "Effects": "kann.live.results",
    "Explanation": "kann.explaining.explanation",
    "FixedPoints": "kann.fixed_points.result",
    "Monitor": "kann.live._monitor",
    "balance": "kann.live._balance",
    "depth": "kann.depth",
    "effects": "kann.live._effects",
    "explain": "kann.explaining._explain",
    "find_fixed_points": "kann.fixed_points._search",
    "intervene": "kann.live._intervene",
    "memory": "kann.live._memory",
    "live": "kann.live",
    "plots": "kann.reporting.plots",
    "record": "kann.recording._record",
    "recording": "kann.recording",
    "report": "kann.reporting._report",
    "stand_in": "kann.stand_ins._stand_in",
    "stand_ins": "kann.stand_ins",
    "zoo": "kann.zoo",
}
_MOVED = {"History": "kann.live.History", "film": "kann.plots.film", "save_onnx": "kann.stand_ins.save_onnx"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        hint = f"; it is {_MOVED[name]}" if name in _MOVED else ""
        raise AttributeError(f"module 'kann' has no attribute {name!r}{hint}")
    module = import_module(_LAZY[name])
    found = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    globals()[name] = found  # looked up once
    return found


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "Balance",
    "Bilinear",
    "Comparison",
    "Effects",
    "Explanation",
    "FixedPoints",
    "KannError",
    "Koopman",
    "Moments",
    "Monitor",
    "Movers",
    "States",
    "Trust",
    "agreement",
    "balance",
    "compare",
    "contributions",
    "copying",
    "decision_map",
    "depth",
    "distance",
    "effects",
    "errors",
    "explain",
    "features",
    "find_fixed_points",
    "fit",
    "hybrid",
    "importance",
    "intervene",
    "magnitude",
    "memory",
    "movers",
    "orthogonality",
    "plots",
    "project",
    "pseudospectrum",
    "reconstruct",
    "record",
    "recording",
    "relative_error",
    "report",
    "stand_in",
    "trust",
    "zoo",
]
