"""Along depth: fit a map to each layer, replace layers by maps, and count the directions that outputs depend on.

Layers take the place of time: ``kann.record(model, data, axis="depth")`` gives states whose steps are layers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kann.depth._trust import StepTrust, trust
from kann.depth.maps import AffineMap, StepMaps, fit, fit_span
from kann.depth.results import BypassEffects, Profile

if TYPE_CHECKING:
    from kann.depth._bypass import bypass, bypass_effects
    from kann.depth._profile import profile

__all__ = [
    "AffineMap",
    "BypassEffects",
    "Profile",
    "StepMaps",
    "StepTrust",
    "bypass",
    "bypass_effects",
    "fit",
    "fit_span",
    "profile",
    "trust",
]


def __getattr__(name: str) -> Any:
    if name in ("bypass", "bypass_effects", "profile"):  # these run a torch module; the maps alone need no torch
        return getattr(import_module("kann.depth._profile" if name == "profile" else "kann.depth._bypass"), name)
    raise AttributeError(f"module 'kann.depth' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
