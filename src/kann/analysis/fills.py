"""What a state becomes of which only some coordinates are kept: the rest is filled from what was recorded.

To keep coordinates s = (h − mean) A and nothing else, the rest of the state must become something. Filled with its mean
alone, a network leaves the region of states that it knows; filled with its mean *given s*, it does not.
Every fill is fitted once to recorded states and then is a function of single states, written for numpy arrays and torch
tensors alike. With orthonormal axes Q of the span of A, a state becomes

    mean + s Qᵀ + rest(s),   s = (h − mean) Q, clipped to the range that was recorded,

so that what is kept is kept exactly, and a fill is what it says about the rest, which is orthogonal to Q.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kann.backends.arrays import namespace
from kann.typing import AnyArray, Array, Float, Int


@runtime_checkable
class Rest(Protocol):
    """What a fill says about the rest of a state, given its kept coordinates."""

    def given(self, s: AnyArray) -> AnyArray:
        """The rest (n, d) for coordinates (n, q)."""
        ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinearRest:
    """A rest that is linear in the coordinates; zero for directions that vary independently of the others."""

    matrix: Float[AnyArray, "q d"]

    def given(self, s: AnyArray) -> AnyArray:
        """The rest (n, d) for coordinates (n, q)."""
        return s @ self.matrix


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CurveRest:
    """The mean rest in bins along one coordinate, with straight lines between the bins."""

    knots: Float[AnyArray, " n"]
    """The mean coordinate of each bin, increasing."""
    values: Float[AnyArray, "n d"]
    """The mean rest of each bin."""

    def given(self, s: AnyArray) -> AnyArray:
        """The rest (n, d) for coordinates (n, 1); before the first and after the last bin it is that of the bin."""
        s = s[:, 0]
        right = namespace(s).searchsorted(self.knots, s).clip(1, len(self.knots) - 1)
        left = right - 1
        before = self.knots[left]
        way = ((s - before) / (self.knots[right] - before)).clip(0.0, 1.0)[:, None]
        return self.values[left] * (1 - way) + self.values[right] * way


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QuadraticRest:
    """The regression of the rest on several coordinates and their products."""

    deviations: Float[AnyArray, " q"]
    """Standard deviations that the coordinates are divided by."""
    first: Int[AnyArray, " p"]
    second: Int[AnyArray, " p"]
    """Which coordinates each product is of."""
    constant: Float[AnyArray, " d"]
    linear: Float[AnyArray, "q d"]
    quadratic: Float[AnyArray, "p d"]

    def given(self, s: AnyArray) -> AnyArray:
        """The rest (n, d) for coordinates (n, q)."""
        scaled = s / self.deviations
        return scaled @ self.linear + (scaled[:, self.first] * scaled[:, self.second]) @ self.quadratic + self.constant


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NearestRest:
    """The rest of the recorded state whose coordinates are nearest, in standard deviations."""

    deviations: Float[AnyArray, " q"]
    places: Float[AnyArray, "m q"]
    """Coordinates of the recorded states, divided by the deviations."""
    rests: Float[AnyArray, "m d"]

    def given(self, s: AnyArray) -> AnyArray:
        """The rest (n, d) for coordinates (n, q)."""
        # |s|² is the same for all recorded states and need not be added to find the smallest distance.
        distances = (self.places**2).sum(1) - 2 * (s / self.deviations) @ self.places.T
        return self.rests[distances.argmin(1)]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fill:
    """A function from states to states of which only some coordinates are kept, or removed."""

    mean: Float[AnyArray, " d"]
    axes: Float[AnyArray, "d q"]
    """Q: orthonormal directions of what is kept."""
    low: Float[AnyArray, " q"]
    high: Float[AnyArray, " q"]
    """The range of each coordinate that was recorded."""
    rest: Rest
    swapped: LinearRest | None = None
    """What goes with the coordinates when they are removed by resampling; None for other fills."""
    recorded: Float[AnyArray, "m q"] | None = None
    """Coordinates of recorded states to take instead of those removed; None for other fills."""

    def kept(self, h: AnyArray) -> AnyArray:
        """The states (n, d) of which the coordinates alone are kept, and the rest is filled."""
        return self.mean + self._explained(self._coordinates(h))

    def removed(self, h: AnyArray, *, draw: Callable[[int, int], AnyArray] | None = None) -> AnyArray:
        """The states (n, d) without what the coordinates explain: h − kept + mean.

        Resampling puts the coordinates of other recorded states in their place, whose numbers ``draw(most, n)`` gives.
        """
        s = self._coordinates(h)
        if self.swapped is None or self.recorded is None or draw is None:
            return h - self._explained(s)
        change = self.recorded[draw(len(self.recorded), len(h))] - s
        return h + change @ self.axes.T + self.swapped.given(change)

    def _coordinates(self, h: AnyArray) -> AnyArray:
        return ((h - self.mean) @ self.axes).clip(self.low, self.high)

    def _explained(self, s: AnyArray) -> AnyArray:
        return s @ self.axes.T + self.rest.given(s)

    def converted(self, convert: Callable[[Array], AnyArray]) -> "Fill":
        """The same fill with every array converted, such as to tensors."""
        return _converted(self, convert)


def _converted(value: Any, convert: Callable[[Array], AnyArray]) -> Any:
    if isinstance(value, np.ndarray):
        return convert(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _converted(getattr(value, each.name), convert) for each in fields(value)})
    return value
