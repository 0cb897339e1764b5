"""Along depth: a map for each layer beside the one operator, how far each is right, and what to say of it."""

from typing import Any

import numpy as np

from kann._format import percent
from kann.depth._trust import StepTrust, trust
from kann.depth.maps import fit
from kann.explaining.context import Findings, folds_of
from kann.fitting.folds import FEWEST_FOLDS
from kann.reporting.operators import most_are_worse

MOST_BYTES = 500_000_000
"""Memory for the moments of all folds: for each layer two matrices (units, units) in float64."""

SECONDS_FOR_EACH = 3e-8
"""Seconds for each layer and the cube of its units, on one core: 9 for six layers of 384 units."""

MAY_TAKE = 0.5
"""Fraction of the time that is left which maps may take; the live test and trust follow."""


def map_each_layer(found: Findings) -> None:
    """Fit a map to each layer, and measure its error on held-out sequences beside copying and the one operator."""
    fitted: Any = found.fitted
    states, groups = fitted.states, fitted.groups
    expected = SECONDS_FOR_EACH * (int(states.lengths.max()) - 1) * float(states.dim) ** 3
    if expected > MAY_TAKE * found.clock.left:
        found.choices.append(
            f"No map was fitted to each layer: that takes about {expected:.0f} seconds, and {found.clock.left:.0f} are "
            "left; pass more seconds."
        )
        return
    maps = fit(states, rank=fitted.koopman.rank, groups=groups)
    affordable = MOST_BYTES // (2 * 8 * len(maps) * maps.dim**2)
    folds = max(FEWEST_FOLDS, min(affordable, folds_of(fitted)))
    found.steps = trust(maps, states, folds=folds, groups=groups, seed=found.options.seed)


def layer_names(found: Findings) -> list[str] | None:
    """The name of the layer that each step is; None if layers have no names, as those in a model's output."""
    names = found.place.layer
    if found.steps is None or not isinstance(names, list | tuple) or len(names) < len(found.steps):
        return None
    return [str(name) for name in names[-len(found.steps) :]]  # the first step is none where its input was not recorded


def layers_in_words(found: Findings) -> str | None:
    """Which layers are linear, as a sentence to quote; None if no maps were fitted to single layers."""
    steps = found.steps
    if steps is None:
        return None
    names = [f"layer {number + 1}" for number in range(len(steps))]
    own = layer_names(found)
    if own is not None:
        names = [f"“{name}”" for name in own]
    return f"On held-out sequences {_how_many(steps)}{_most_and_least(steps, names)}. {_one_operator(found, steps)}"


def _how_many(steps: StepTrust) -> str:
    """For how many layers the own map is surely better than copying."""
    count, total = len(steps.better_than_identity), len(steps)
    which = f"{count} of the {total} layers"
    if count == 0:
        which = f"none of the {total} layers"
    if count == total:
        which = f"each of the {total} layers"
    return f"a linear map of its own is surely better than copying the state for {which}"


def _most_and_least(steps: StepTrust, names: list[str]) -> str:
    """Which layer is most linear and which is least, with what their maps tell, unless that reads the same."""
    parts = steps.linear_part
    if np.isnan(parts).all():
        return ""
    most, least = int(np.nanargmax(parts)), int(np.nanargmin(parts))
    text = f"; the most linear is {names[most]} (its map tells {_part(parts[most])} of what it does)"
    if np.isfinite(parts).sum() == 1:
        return text
    if _part(parts[most]) == _part(parts[least]):
        return f"; of what a layer does, its map tells {_part(parts[most])}"
    return f"{text}, the least {names[least]} ({_part(parts[least])})"


def _part(part: float) -> str:
    return percent(part) if part > 0 else "nothing"


def _one_operator(found: Findings, steps: StepTrust) -> str:
    """The one operator for all layers beside copying and own maps; no praise of a mean that few layers make."""
    low, high = percent(steps.errors["each"].min()), percent(steps.errors["each"].max())
    own = f"own maps miss {low} to {high}"
    if low == high:
        own = f"own maps miss {low}"
    worse, total = len(steps.one_is_worse), len(steps)
    figures = ""
    if found.trust is not None:
        figures = (
            f"misses {percent(found.trust.error[0])} of the states' variance, and copying "
            f"{percent(found.trust.copying_error[0])}"
        )
    if most_are_worse(worse, total):
        says = f"One operator for all layers misses more than copying at {worse} of the {total}"
        if figures:
            says += f", so that its mean over layers says little (it {figures})"
        return f"{says}; {own}."
    if not figures:
        figures = f"misses more than copying at {worse} of the {total}"
    return f"One operator for all layers {figures}; {own}."
