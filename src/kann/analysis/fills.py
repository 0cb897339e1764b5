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

from kann.backends.arrays import add_matrix_product, add_product, namespace
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinearFill:
    """A `Fill` whose rest is linear, in as few operations as can be: mean + clip((h − mean) Q) W."""

    mean: Float[AnyArray, " d"]
    axes: Float[AnyArray, "d q"]
    low: Float[AnyArray, " q"]
    high: Float[AnyArray, " q"]
    vectors: Float[AnyArray, "q d"]
    """W: what a state gets for each coordinate, along Q and outside of it."""

    def kept(self, h: AnyArray) -> AnyArray:
        """The states (n, d) of which the coordinates alone are kept, and the rest is filled."""
        return add_matrix_product(self.mean, ((h - self.mean) @ self.axes).clip(self.low, self.high), self.vectors)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CurveFill:
    """A `Fill` along a curve, in as few operations as can be.

    The whole filled state is piecewise linear in its one coordinate s: a base and a slope for each piece between two
    knots. The first knot and the last are the ends of the range that was recorded, outside of which nothing changes.
    """

    mean: Float[AnyArray, " d"]
    axis: Float[AnyArray, " d"]
    knots: Float[AnyArray, " n"]
    pieces: Float[AnyArray, "m w"]
    """Base and slope of each piece, side by side."""

    def kept(self, h: AnyArray) -> AnyArray:
        """The states (n, d) of which the coordinate alone is kept, and the rest is filled."""
        s = (h - self.mean) @ self.axis
        piece = self.pieces[namespace(s).searchsorted(self.knots, s)]
        width = len(self.mean)
        return add_product(piece[:, :width], s[:, None], piece[:, width:])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QuadraticFill:
    """A `Fill` by quadratic regression, in as few operations as can be."""

    mean: Float[AnyArray, " d"]
    axes: Float[AnyArray, "d q"]
    low: Float[AnyArray, " q"]
    high: Float[AnyArray, " q"]
    constant: Float[AnyArray, " d"]
    linear: Float[AnyArray, "q d"]
    quadratic: Float[AnyArray, "p d"]
    """Weights of all products of two coordinates; of a product and its mirror image one has the weight 0."""

    def kept(self, h: AnyArray) -> AnyArray:
        """The states (n, d) of which the coordinates alone are kept, and the rest is filled."""
        s = ((h - self.mean) @ self.axes).clip(self.low, self.high)
        # All products at once are more than are needed, and cheaper than choosing columns first.
        products = (s[:, :, None] * s[:, None, :]).reshape(len(s), len(self.quadratic))
        return add_matrix_product(add_matrix_product(self.constant, s, self.linear), products, self.quadratic)


def in_few_operations(fill: Fill) -> "Fill | LinearFill | CurveFill | QuadraticFill":
    """The same fill with everything multiplied out in advance that can be: on a GPU every operation costs a launch."""
    if isinstance(fill.rest, LinearRest) and fill.swapped is None:
        vectors = fill.axes.T + fill.rest.matrix
        return LinearFill(mean=fill.mean, axes=fill.axes, low=fill.low, high=fill.high, vectors=vectors)
    if isinstance(fill.rest, CurveRest):
        return _as_pieces(fill, fill.rest)
    if isinstance(fill.rest, QuadraticRest):
        return _with_all_products(fill, fill.rest)
    return fill


def _with_all_products(fill: Fill, rest: QuadraticRest) -> QuadraticFill:
    """The regression on coordinates that are not scaled, with the mean and the coordinates themselves added."""
    count = fill.axes.shape[1]
    weights = np.zeros((count, count, len(fill.mean)))
    scales = rest.deviations[rest.first] * rest.deviations[rest.second]
    weights[rest.first, rest.second] = rest.quadratic / scales[:, None]
    return QuadraticFill(
        mean=fill.mean,
        axes=fill.axes,
        low=fill.low,
        high=fill.high,
        constant=fill.mean + rest.constant,
        linear=fill.axes.T + rest.linear / rest.deviations[:, None],
        quadratic=weights.reshape(count * count, -1),
    )


def _as_pieces(fill: Fill, curve: CurveRest) -> CurveFill:
    """Bases and slopes of mean + s Qᵀ + rest(s); the rest does not change before the first and after the last knot."""
    axis, still = fill.axes[:, 0], np.zeros((1, len(fill.mean)))
    low, high = min(fill.low[0], curve.knots[0]), max(fill.high[0], curve.knots[-1])  # bins may round beyond the range
    knots = np.concatenate([[low], curve.knots, [high]])
    at_knots = fill.mean + knots[:, None] * axis + np.concatenate([curve.values[:1], curve.values, curve.values[-1:]])
    rises = np.diff(curve.values, axis=0) / np.diff(curve.knots)[:, None]
    slopes = np.concatenate([still, axis[None], axis + rises, axis[None], still])
    first = np.r_[0, np.arange(len(knots))]  # a knot of each piece
    bases = at_knots[first] - knots[first, None] * slopes
    return CurveFill(
        mean=fill.mean,
        axis=axis,
        knots=knots,
        pieces=np.concatenate([bases, slopes], axis=1),
    )


def converted(value: Any, convert: Callable[[Array], AnyArray]) -> Any:
    """A fill with every array of it converted, such as to tensors."""
    if isinstance(value, np.ndarray):
        return convert(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: converted(getattr(value, each.name), convert) for each in fields(value)})
    return value
