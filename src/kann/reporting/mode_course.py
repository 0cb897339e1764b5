"""Where in the sequences shown a mode is pushed, and the course that it takes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis._movers import ModeAxis, Movers, axis_of, pushes_of
from kann.analysis.coordinates import Spread, spread_of
from kann.backends.arrays import as_numpy
from kann.data.reduction import map_rows
from kann.reporting.inputs import ReportInputs
from kann.typing import AnyArray, Array, Float

POINTS = 40
"""Points of a small line."""

MOST_GROUPS = 4
"""More lines than this cannot be told apart in a small picture; then one line stands for all sequences."""

MOST_AVERAGED = 500
"""Of more sequences, the first so many are averaged: the line would not look different."""

FEWEST_SEQUENCES = 3
"""A mean over fewer sequences is no line of a group."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PushedMode:
    """One mode over the states shown, in standard deviations, oriented as `kann.movers` oriented it."""

    coordinate: Float[Array, " n"]
    """Its coordinate at each state, about the mean."""
    push: Float[Array, " n"]
    """What each step adds beyond the mode's own decay; NaN at first states."""


def pushed_modes(inputs: ReportInputs, numbers: list[int]) -> dict[int, PushedMode]:
    """Coordinates and pushes of some modes, by number."""
    if not numbers:
        return {}
    koopman, states = inputs.koopman, inputs.states
    spread = spread_of(states)
    axes = [axis_of(koopman, koopman.modes[number], spread) for number in numbers]
    found = {}
    pushes = pushes_of(koopman, states, axes)
    for place, (number, axis) in enumerate(zip(numbers, axes, strict=True)):
        push = np.full(len(states.values), np.nan)
        push[pushes.rows] = axis.real(pushes.values[:, place])
        coordinate = _coordinate(inputs, axis, spread)
        sign = _sign(inputs, axis, push, number)
        found[number] = PushedMode(coordinate=sign * coordinate, push=sign * push)
    return found


def _coordinate(inputs: ReportInputs, axis: ModeAxis, spread: Spread) -> Float[Array, " n"]:
    def real(h: AnyArray) -> Float[Array, "n 1"]:
        return axis.real((as_numpy(h).astype(np.float64) - spread.mean) @ axis.direction)[:, None]

    return as_numpy(map_rows(inputs.states.values, real, width=1, dtype=np.float64))[:, 0]


def _sign(inputs: ReportInputs, axis: ModeAxis, push: Float[Array, " n"], number: int) -> int:
    """The sign with which the axis points as `kann.movers` lets it point: up raises the output that it moves most."""
    movers, weight = inputs.movers, inputs.readout_weight
    if movers is not None and number in movers.modes and movers.outputs is None:
        return _sign_of(_agreement_with(movers, number, inputs, push))
    if weight is None:
        return 1
    moved = as_numpy(weight).astype(np.float64) @ axis.effect
    return _sign_of(float(moved[np.abs(moved).argmax()]))


def _sign_of(value: float) -> int:
    if value < 0:
        return -1
    return 1


def _agreement_with(movers: Movers, number: int, inputs: ReportInputs, push: Float[Array, " n"]) -> float:
    """The sum over steps of the push here times the mean push that `kann.movers` found for the same name."""
    means = dict(zip(movers.names, movers.push[:, movers.modes.index(number)].tolist(), strict=True))
    if movers.by != "tokens" or inputs.tokens is None:
        return 1.0
    names = [token for own in inputs.tokens for token in own]
    return float(np.nansum(push * np.array([means.get(name, 0.0) for name in names])))


def courses(inputs: ReportInputs, mode: PushedMode, groups: list[str | None]) -> dict[str, Any]:
    """The mean course of a mode over the sequences of each group; over all of them if there are many groups.

    Sequences of one length are averaged step by step, others by the fraction of the sequence that was read.
    """
    lengths = inputs.states.lengths[:MOST_AVERAGED]
    groups = groups[:MOST_AVERAGED]
    same_length = bool((lengths == lengths[0]).all())
    places = np.linspace(0, 1, min(POINTS, int(lengths.max())))
    lines = np.stack([_resampled(mode.coordinate[inputs.states.span(i)], places) for i in range(len(lengths))])
    names = sorted({str(group) for group in groups if group is not None})
    drawn = {}
    if 1 < len(names) <= MOST_GROUPS:
        members = {name: [i for i, group in enumerate(groups) if str(group) == name] for name in names}
        drawn = {name: lines[own].mean(axis=0) for name, own in members.items() if len(own) >= FEWEST_SEQUENCES}
    band: list[list[float]] = []
    if not drawn:
        drawn = {"all sequences": lines.mean(axis=0)}
        band = [np.quantile(lines, edge, axis=0).round(3).tolist() for edge in (0.25, 0.75)]
    last = 100.0
    if same_length:
        last = float(lengths[0] - 1)
    return {
        "groups": {name: line.round(3).tolist() for name, line in drawn.items()},
        "band": band,
        "last": last,
        "same_length": same_length,
    }


def _resampled(values: Float[Array, " t"], places: Float[Array, " k"]) -> Float[Array, " k"]:
    return np.interp(places * (len(values) - 1), np.arange(len(values)), values)
