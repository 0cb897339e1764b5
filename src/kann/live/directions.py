"""The ways to choose coordinates that are compared: modes in some order, principal components, readout, random."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kann.analysis.coordinates import (
    Coordinates,
    Spread,
    principal_components,
    random_directions,
    readout_directions,
)
from kann.fitting.koopman import Koopman
from kann.typing import Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """One run over the sequences: which coordinates are kept or removed, and for which entry of the result."""

    method: str
    row: int
    """Which of the counts."""
    coordinates: Coordinates
    keep: bool
    draw: int = 0
    """Which of several draws of random directions."""


def modes_within(koopman: Koopman, order: Sequence[int], count: int) -> Coordinates | None:
    """The first modes of an order that have ``count`` coordinates together; None if there are not so many.

    A conjugate pair has two coordinates; where only one is left, the next real mode is taken. If all modes are pairs,
    a single coordinate is the real part of the first of them.
    """
    if count > koopman.rank:
        return None
    chosen, left = [], count
    for mode in order:
        size = len(koopman.modes[mode].indices)
        if size <= left:
            chosen.append(mode)
            left -= size
    if not chosen:
        return one_coordinate(koopman, order[0])
    return Coordinates.of_modes(koopman, chosen)


def one_coordinate(koopman: Koopman, mode: int) -> Coordinates:
    """The coordinate of a real mode, or the real part of that of a conjugate pair."""
    return Coordinates.of_modes(koopman, mode).first(1)


def jobs_of(
    koopman: Koopman,
    spread: Spread,
    *,
    orders: Mapping[str, Sequence[int]],
    several: Mapping[int, Coordinates],
    weight: Float[Array, "o d"] | None,
    counts: Sequence[int],
    draws: int,
    seed: int,
    outputs: str = "class",
) -> list[Job]:
    """All runs, those with few coordinates first, so that an interruption leaves whole rows.

    ``several`` are coordinates, by their number, that were chosen to be called "modes" instead of those in order;
    ``outputs`` is what the readout with this weight gives.
    """
    components = principal_components(spread)
    read = None
    if weight is not None:
        read = readout_directions(weight, spread, largest_decides=outputs == "class")
    jobs = []
    for row, count in enumerate(counts):
        found = {name: modes_within(koopman, order, count) for name, order in orders.items()}
        if count in several:
            found["modes"] = several[count]
        if count <= spread.dim:
            found["pca"] = Coordinates.of_directions(components[:, :count])
        if read is not None:
            found["readout"] = Coordinates.of_directions(read[:, :count])
        chosen = [(name, 0, each) for name, each in found.items() if each is not None]
        leading = found["modes"]
        if leading is not None:
            chosen += [("random", draw, each) for draw, each in _random(leading, spread, draws, (seed, row))]
        jobs += [
            Job(method=name, row=row, coordinates=each, keep=keep, draw=draw)
            for keep in (True, False)
            for name, draw, each in chosen
        ]
    return jobs


def _random(like: Coordinates, spread: Spread, draws: int, seed: tuple[int, int]) -> list[tuple[int, Coordinates]]:
    """Draws of as many random directions with the same variance of the states."""
    axes = like.axes(spread)
    fraction = float(np.trace(spread.along(axes)) / np.trace(spread.covariance))
    rng = np.random.default_rng(seed)
    return [
        (
            draw,
            Coordinates.of_directions(random_directions(spread, count=axes.shape[1], fraction=fraction, rng=rng)),
        )
        for draw in range(draws)
    ]
