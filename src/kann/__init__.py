"""Koopman Analysis of Neural Networks: explain a trained sequence network through one linear operator."""

from typing import TYPE_CHECKING, Any

from kann._version import __version__ as __version__
from kann.analysis.agreeing import agreement
from kann.analysis.comparison import Comparison, compare
from kann.analysis.contributions import Contributions, contributions
from kann.analysis.decisions import decision_map
from kann.analysis.distances import Distance, distance
from kann.analysis.fidelity import hybrid, orthogonality, relative_error
from kann.analysis.modes import importance, magnitude, project, reconstruct
from kann.analysis.movers import Mover, Movers, movers
from kann.analysis.predictors import copying
from kann.analysis.pseudospectrum import Pseudospectrum, pseudospectrum
from kann.analysis.step_trust import StepTrust
from kann.analysis.training_history import History
from kann.analysis.trust import ModeTrust, Trust, trust
from kann.data.moments import Moments
from kann.data.states import States
from kann.errors import (
    ConditionWarning,
    DependenceWarning,
    FewPairsWarning,
    KannError,
    KannWarning,
    NotFiniteError,
    PaddingWarning,
    PrecisionWarning,
    RankWarning,
    UnfinishedWarning,
)
from kann.fitting import features
from kann.fitting.bilinear import Bilinear
from kann.fitting.fit import fit
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.fitting.step_fit import fit_span
from kann.fitting.step_maps import AffineMap, StepMaps

if TYPE_CHECKING:
    from kann.explaining import Explanation, explain
    from kann.fixed_points import FixedPoints, find_fixed_points
    from kann.live import BypassEffects, Effects, Monitor, bypass, bypass_effects, effects, intervene
    from kann.recording import readout_of, record, step_of, untrained_twin
    from kann.reporting import plots
    from kann.reporting.film import film
    from kann.reporting.page import report
    from kann.stand_ins.module import StandIn, stand_in
    from kann.stand_ins.onnx_file import save_onnx

# These need torch or plotly, which are imported when one of these names is first asked for.
_EXPLAINING = ("Explanation", "explain")
_FIXED_POINTS = ("FixedPoints", "find_fixed_points")
_LIVE = ("BypassEffects", "Effects", "Monitor", "bypass", "bypass_effects", "effects", "intervene")
_RECORDING = ("readout_of", "record", "step_of", "untrained_twin")
_STAND_INS = ("StandIn", "stand_in")


def __getattr__(name: str) -> Any:
    if name in _EXPLAINING:
        from kann import explaining

        return getattr(explaining, name)
    if name in _FIXED_POINTS:
        from kann import fixed_points

        return getattr(fixed_points, name)
    if name in _LIVE:
        from kann import live

        return getattr(live, name)
    if name in _RECORDING:
        from kann import recording

        return getattr(recording, name)
    if name in _STAND_INS:
        from kann.stand_ins import module

        return getattr(module, name)
    if name == "save_onnx":
        from kann.stand_ins.onnx_file import save_onnx

        return save_onnx
    if name == "report":
        from kann.reporting.page import report

        return report
    if name == "film":
        from kann.reporting.film import film

        return film
    if name == "plots":
        from kann.reporting import plots

        return plots
    raise AttributeError(f"module 'kann' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "AffineMap",
    "Bilinear",
    "BypassEffects",
    "Comparison",
    "ConditionWarning",
    "Contributions",
    "DependenceWarning",
    "Distance",
    "Effects",
    "Explanation",
    "FewPairsWarning",
    "FixedPoints",
    "History",
    "KannError",
    "KannWarning",
    "Koopman",
    "Mode",
    "ModeTrust",
    "Moments",
    "Monitor",
    "Mover",
    "Movers",
    "NotFiniteError",
    "PaddingWarning",
    "PrecisionWarning",
    "Pseudospectrum",
    "RankWarning",
    "StandIn",
    "States",
    "StepMaps",
    "StepTrust",
    "Trust",
    "UnfinishedWarning",
    "agreement",
    "bypass",
    "bypass_effects",
    "compare",
    "contributions",
    "copying",
    "decision_map",
    "distance",
    "effects",
    "explain",
    "features",
    "film",
    "find_fixed_points",
    "fit",
    "fit_span",
    "hybrid",
    "importance",
    "intervene",
    "magnitude",
    "movers",
    "orthogonality",
    "plots",
    "project",
    "pseudospectrum",
    "readout_of",
    "reconstruct",
    "record",
    "relative_error",
    "report",
    "save_onnx",
    "stand_in",
    "step_of",
    "trust",
    "untrained_twin",
]
