"""How to search for fixed points: kann's own recipe, and those of two published programs for comparison."""

import math
from dataclasses import dataclass
from typing import Literal

from kann.checks import shown
from kann.errors import KannError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to search, and what counts as the same point."""

    dtype: Literal["float32", "float64"] = "float64"
    """Precision of Adam. All else is float64, as far as the step can be computed in it."""
    follow_steps: int = 50
    """Newton also starts from where the network itself goes from each initial state: so many steps, or twice as many as
    the state has units, since a step of Newton costs as much as some hundred of these."""
    settle_steps: int = 60
    """Implicit steps by which states follow the network further, at most, where it is not slow after those."""
    newton_steps: int = 100
    """Steps of damped Newton, at most; 0 leaves it out, and Adam is all."""
    adam_steps: int = 300
    """Steps of Adam, at most. Where there is Newton, Adam is only for initial states from which Newton found no fixed
    point, and Newton is tried again from where it ends."""
    learning_rate: float = 0.1
    """Adam's rate at the start."""
    schedule: Literal["linear", "plateau", "constant"] = "linear"
    """How the rate falls: to zero in a straight line, by 5 % after 5 steps without gain, or not at all."""
    average: bool = False
    """Minimise the mean of the speeds, not their sum. Adam divides by the size of the gradient, so this matters only
    where the gradient is as small as Adam's epsilon, 1e-8."""
    stop: Literal["each", "change", "mean"] = "each"
    """Stop Adam when each speed is within the tolerance, or else has stopped changing, or when their mean is."""
    relative: bool = True
    """Rates and distances are in units of the spread of the initial states in one hidden unit, not absolute."""
    distinct: float = 1e-3
    """Fixed points that differ by no more than this in any hidden unit are one point."""
    apart: float = 0.05
    """The same for slow points. A slow manifold is a continuum: this is how finely it is sampled."""
    outlier: float = 3.0
    """Points farther from the centre of the initial states than this many times their mean distance are outliers.
    Newton goes out there only from states that are there already."""
    slow_tolerance: float = 1e-6
    """Speed up to which a point is kept as slow, unless the caller says otherwise."""


RECIPES = {
    "kann": Recipe(),
    # FixedPointFinder (Golub & Sussillo 2018), defaults of FixedPointFinderTorch: lr_init=1.0, lr_patience=5,
    # lr_factor=0.95 for torch's Adam and ReduceLROnPlateau; of FixedPointFinderBase: dtype float32, max_iters=5000,
    # method "joint" (the mean of all speeds), tol_q=1e-12 (here the caller's tolerance), tol_dq=1e-20,
    # tol_unique=1e-3 along any dimension, outlier_distance_scale=10. It has no filter on the speed: every candidate
    # comes back. It drops outliers, which here are marked like all others.
    "fpf": Recipe(
        dtype="float32",
        follow_steps=0,
        newton_steps=0,
        adam_steps=5000,
        learning_rate=1.0,
        schedule="plateau",
        average=True,
        stop="change",
        relative=False,
        distinct=1e-3,
        apart=1e-3,
        outlier=10.0,
        slow_tolerance=math.inf,
    ),
    # The published code of "Reverse engineering neural networks" (Maheswaranathan et al. 2019): find_fixed_points
    # has steps=range(1000) and stops when the mean speed is within the tolerance; its sentiment notebook passes
    # adam(0.01). float32 is jax's default. Points are neither merged nor left out (exclude_outliers: threshold=inf).
    "renn": Recipe(
        dtype="float32",
        follow_steps=0,
        newton_steps=0,
        adam_steps=1000,
        learning_rate=0.01,
        schedule="constant",
        average=True,
        stop="mean",
        relative=False,
        distinct=0.0,
        apart=0.0,
        outlier=math.inf,
        slow_tolerance=math.inf,
    ),
}
"""Recipes by name."""


def recipe_of(preset: str | Recipe) -> Recipe:
    """A recipe as it is, or the one of this name."""
    if isinstance(preset, Recipe):
        return preset
    if not isinstance(preset, str) or preset not in RECIPES:
        raise KannError(f"preset={shown(preset)} is unknown; pass one of {', '.join(map(repr, RECIPES))}, or a Recipe")
    return RECIPES[preset]
