"""Complete a state of which only some coordinates are known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from scipy import linalg, sparse

from kann.analysis.coordinates import Coordinates, Spread, spread_of
from kann.backends.arrays import add_matrix_product, add_product, as_numpy, namespace
from kann.checks import require_choice
from kann.data.additive import Additive
from kann.data.reduction import Block, Total, accumulate, take_rows
from kann.data.states import States
from kann.errors import KannError
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


FILLS = ("curve", "linear", "mean", "resample")
"""The ways to fill the rest of a state."""

MOST_BINS = 400
"""Bins of the curve along one coordinate."""

LEAST_IN_BIN = 20
"""States that a bin needs: their mean is then known to a quarter of their spread."""

CELLS = 2048
"""Cells of equal width, of which bins of about equally many states are made: five of them to a bin."""

MOST_IN_QUADRATIC = 32
"""Coordinates up to which a quadratic regression is made: 32 have 560 products, and the states must tell them apart."""

RIDGE = 1e-6
"""Penalty on the weights of standardised products, per state: it tells apart those that depend on each other."""

POOL = 2048
"""Recorded states among which `resample` looks for the nearest one."""

NOTHING_LEFT = 1e-12
"""Fraction of the states' variance outside of the kept coordinates below which the rest is rounding."""

NO_VARIANCE = 1e-12
"""Fraction of the states' variance below which the variance of a coordinate is rounding, and predicts nothing."""


def fit_fills(chosen: Sequence[Coordinates], states: States, fill: str, *, spread: Spread | None = None) -> list[Fill]:
    """Fit the fills of several sets of coordinates to the same states, in as few passes over them as one set needs."""
    require_choice(fill, "fill", FILLS)
    if spread is None:
        spread = spread_of(states)
    axes = [coordinates.axes(spread) for coordinates in chosen]
    ends = np.cumsum([own.shape[1] for own in axes])[:-1]
    extent = accumulate(states, partial(Total, partial(_extent, spread.mean, np.concatenate(axes, axis=1))))
    ranges = zip(np.split(extent.low, ends), np.split(extent.high, ends), strict=True)
    fills = [
        Fill(mean=spread.mean, axes=own, low=low, high=high, rest=_linear_rest(own, spread))
        for own, (low, high) in zip(axes, ranges, strict=True)
    ]
    if fill == "mean":
        return [replace(each, rest=_oblique_rest(each.axes, own)) for each, own in zip(fills, chosen, strict=True)]
    if fill == "curve":
        return _with_curves(fills, states, spread)
    if fill == "resample":
        return [_with_pool(each, states, spread) for each in fills]
    return fills


def _require_feasible(fill: Fill) -> None:
    """Refuse a quadratic regression on too many coordinates."""
    count = fill.axes.shape[1]
    if count > MOST_IN_QUADRATIC:
        raise KannError(
            f"fill='curve' is for at most {MOST_IN_QUADRATIC} coordinates, and {count} were chosen (a conjugate pair "
            "has two); pass fill='linear', or fewer modes"
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Extent(Additive):
    """The smallest and the largest value of coordinates; of two extents the sum is what holds both."""

    low: Float[Array, " k"]
    high: Float[Array, " k"]
    ADDED_BY: ClassVar = {"low": np.minimum, "high": np.maximum}


def _extent(mean: Float[Array, " d"], axes: Float[Array, "d k"], block: Block) -> _Extent:
    s = (as_numpy(block.values) - mean) @ axes
    return _Extent(low=s.min(axis=0), high=s.max(axis=0))


def _outside(axes: Float[Array, "d q"], rows: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The part of rows that is orthogonal to the axes."""
    return rows - (rows @ axes) @ axes.T


def _linear_rest(axes: Float[Array, "d q"], spread: Spread) -> LinearRest:
    """The linear regression of the rest on uncorrelated coordinates: each one's covariance over its variance."""
    covariance = _outside(axes, axes.T @ spread.covariance)
    variances = np.einsum("dq,dq->q", axes, spread.covariance @ axes)
    varies = variances > NO_VARIANCE * np.trace(spread.covariance)
    return LinearRest(matrix=np.where(varies, 1 / np.where(varies, variances, 1.0), 0.0)[:, None] * covariance)


def _oblique_rest(axes: Float[Array, "d q"], coordinates: Coordinates) -> LinearRest:
    """What the vectors of the coordinates put outside of the axes; other coordinates and the mean stay as they are."""
    return LinearRest(matrix=_outside(axes, (axes.T @ coordinates.directions) @ coordinates.vectors))


def _with_curves(fills: Sequence[Fill], states: States, spread: Spread) -> list[Fill]:
    """Each fill with the mean of the rest given one coordinate, or given several; with none, or all, it stays."""
    total = np.trace(spread.covariance)
    curved = [
        each
        for each in fills
        if each.axes.shape[1] and total - np.trace(spread.along(each.axes)) > NOTHING_LEFT * total
    ]
    if not curved:
        return list(fills)
    makers = []
    for each in curved:
        _require_feasible(each)
        if each.axes.shape[1] == 1:
            makers.append(partial(_cell_sums, each))
        else:
            makers.append(partial(_product_sums, each, _deviations(each, spread)))
    sums = accumulate(states, partial(Total, partial(_all_sums, makers)), what="curves")
    rests = {id(each): _curve_or_quadratic(each, own, spread) for each, own in zip(curved, sums.parts, strict=True)}
    return [replace(each, rest=rests.get(id(each), each.rest)) for each in fills]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Sums(Additive):
    """Several sums that are made in the same pass."""

    parts: list[Array]


def _all_sums(makers: Sequence[Callable[[Array], Array]], block: Block) -> _Sums:
    rows = as_numpy(block.values)
    return _Sums(parts=[make(rows) for make in makers])


def _curve_or_quadratic(fill: Fill, sums: Array, spread: Spread) -> Rest:
    if fill.axes.shape[1] == 1:
        return _curve(fill, sums)
    return _quadratic(fill, sums, _deviations(fill, spread))


def _deviations(fill: Fill, spread: Spread) -> Float[Array, " q"]:
    """Standard deviations of the coordinates; one for coordinates that do not vary."""
    variances = np.diag(spread.along(fill.axes))
    return np.sqrt(np.where(variances > NO_VARIANCE * np.trace(spread.covariance), variances, 1.0))


# Along one coordinate


def _cell_sums(fill: Fill, rows: Float[Array, "n d"]) -> Float[Array, "c w"]:
    """In each of `CELLS` cells along the coordinate: number, summed coordinate, and summed states about the mean."""
    about = rows - fill.mean
    s = about @ fill.axes
    width = max(float(fill.high[0] - fill.low[0]), np.finfo(float).tiny)
    cells = ((s[:, 0] - fill.low[0]) / width * CELLS).astype(np.int64).clip(0, CELLS - 1)
    chooses = sparse.csr_array((np.ones(len(rows)), (cells, np.arange(len(rows)))), shape=(CELLS, len(rows)))
    return chooses @ np.concatenate([np.ones_like(s), s, about], axis=1)


def _curve(fill: Fill, cells: Float[Array, "c w"]) -> Rest:
    """Cells joined to bins of about equally many states, and the mean rest of each bin."""
    counts = cells[:, 0]
    bins = min(MOST_BINS, int(counts.sum()) // LEAST_IN_BIN)
    if bins < 2:
        return fill.rest
    # The bin of a cell is the part of all states that lie before its middle.
    bin_of_cell = ((np.cumsum(counts) - counts / 2) / counts.sum() * bins).astype(np.int64).clip(0, bins - 1)
    chooses = sparse.csr_array((np.ones(CELLS), (bin_of_cell, np.arange(CELLS))), shape=(bins, CELLS))
    sums = chooses @ cells
    sums = sums[sums[:, 0] > 0]
    if len(sums) < 2:
        return fill.rest
    means = sums[:, 1:] / sums[:, :1]
    return CurveRest(knots=means[:, 0], values=_outside(fill.axes, means[:, 1:]))


# Of several coordinates


def _pairs(count: int) -> tuple[Int[Array, " p"], Int[Array, " p"]]:
    """Which coordinates the products are of, each pair once."""
    first, second = np.triu_indices(count)
    return first, second


def _product_sums(fill: Fill, deviations: Float[Array, " q"], rows: Float[Array, "n d"]) -> Float[Array, "f w"]:
    """Sums of products of [1, coordinates, their products] with themselves and with the states about the mean."""
    about = rows - fill.mean
    scaled = (about @ fill.axes) / deviations
    first, second = _pairs(scaled.shape[1])
    features = np.concatenate([np.ones((len(rows), 1)), scaled, scaled[:, first] * scaled[:, second]], axis=1)
    return features.T @ np.concatenate([features, about], axis=1)


def _quadratic(fill: Fill, sums: Float[Array, "f w"], deviations: Float[Array, " q"]) -> QuadraticRest:
    """The least-squares weights of the products, with a small ridge on all but the constant."""
    width, coordinates = len(sums), fill.axes.shape[1]
    gram, targets = sums[:, :width], _outside(fill.axes, sums[:, width:])
    penalty = np.full(width, RIDGE * gram[0, 0])
    penalty[0] = 0.0
    weights = linalg.solve(gram + np.diag(penalty), targets, assume_a="pos")
    first, second = _pairs(coordinates)
    return QuadraticRest(
        deviations=deviations,
        first=first,
        second=second,
        constant=weights[0],
        linear=weights[1 : 1 + coordinates],
        quadratic=weights[1 + coordinates :],
    )


def _with_pool(fill: Fill, states: States, spread: Spread) -> Fill:
    """The fill with recorded states, spread evenly over all sequences, to take the rest or the coordinates from."""
    total = int(states.lengths.sum())
    rows = np.unique(np.linspace(0, total - 1, min(POOL, total)).astype(np.int64))
    about = take_rows(states.values, rows).astype(np.float64) - fill.mean
    places, deviations = about @ fill.axes, _deviations(fill, spread)
    rest = NearestRest(deviations=deviations, places=places / deviations, rests=_outside(fill.axes, about))
    return replace(fill, rest=rest, swapped=_linear_rest(fill.axes, spread), recorded=places)
