"""Complete a state of which only some coordinates are known, by its mean given them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import linalg, sparse

from kann.backends.arrays import add_matrix_product, add_product, as_numpy, namespace
from kann.checks import require_choice
from kann.data.moments import MeanAndCovariance, mean_and_covariance
from kann.data.reduction import Additive, Block, SumOverBlocks, accumulate, take_rows
from kann.data.states import States, held_out_rows
from kann.errors import KannError
from kann.typing import AnyArray, Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fill:
    """A function from states to states of which only some coordinates are kept, or removed.

    Everything that can be multiplied out in advance is: on a GPU every operation costs a launch.
    """

    mean: Float[AnyArray, " d"]
    axes: Float[AnyArray, "d q"]
    """Q: orthonormal directions of the coordinates s = (h − mean) Q, which are uncorrelated on the recorded states."""
    low: Float[AnyArray, " q"]
    high: Float[AnyArray, " q"]
    """The recorded range of each coordinate."""

    def kept(self, h: AnyArray) -> AnyArray:
        """Complete states (n, d) of which only the coordinates are kept."""
        raise NotImplementedError

    def removed(self, h: AnyArray) -> AnyArray:
        """Take off what the coordinates of states (n, d) explain: h − kept + mean."""
        return h - self.kept(h) + self.mean

    def on(self, convert: Callable[[Array], AnyArray]) -> "Fill":
        """Convert every array, for example to tensors of a device."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: convert(own) for name, own in values.items() if own is not None})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Regression(Fill):
    """Complete by linear or quadratic regression on the coordinates, which are clipped to their recorded range."""

    constant: Float[AnyArray, " d"]
    linear: Float[AnyArray, "q d"]
    quadratic: Float[AnyArray, "p d"] | None = None
    """Weights of all products of two coordinates; None for a linear regression."""

    @property
    def kind(self) -> str:
        """The name of the regression."""
        return "linear" if self.quadratic is None else "quadratic"

    def kept(self, h: AnyArray) -> AnyArray:
        """Complete states (n, d) of which only the coordinates are kept."""
        s = ((h - self.mean) @ self.axes).clip(self.low, self.high)
        filled = add_matrix_product(self.constant, s, self.linear)
        if self.quadratic is None:
            return filled
        # All q² products are more than needed, and cheaper than choosing columns first.
        products = (s[:, :, None] * s[:, None, :]).reshape(len(s), len(self.quadratic))
        return add_matrix_product(filled, products, self.quadratic)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Curve(Fill):
    """Complete by the mean in bins along one coordinate s, with straight lines between the bins.

    The completed state is piecewise linear in s: a base and a slope between each two knots. The first and the last knot
    are the ends of the recorded range; the state is constant outside.
    """

    knots: Float[AnyArray, " n"]
    pieces: Float[AnyArray, "m w"]
    """Base and slope of each piece, side by side."""

    @property
    def kind(self) -> str:
        """The name of the fill."""
        return "curve"

    def kept(self, h: AnyArray) -> AnyArray:
        """Complete states (n, d) of which only the coordinate is kept."""
        s = (h - self.mean) @ self.axes[:, 0]
        piece = self.pieces[namespace(s).searchsorted(self.knots, s)]
        width = len(self.mean)
        return add_product(piece[:, :width], s[:, None], piece[:, width:])


FILLS = ("auto", "linear", "curve")
"""The ways to complete a state."""

MOST_BINS = 400
"""Bins of the curve along one coordinate."""

LEAST_IN_BIN = 20
"""States per bin, at least: their mean is then known to a quarter of their spread."""

CELLS = 2048
"""Cells of equal width, which are joined to bins of about equally many states: five of them per bin."""

MOST_IN_QUADRATIC = 32
"""Maximum number of coordinates of a quadratic regression: 32 have 560 products, which the states must tell apart."""

RIDGE = 1e-6
"""Penalty on the weights of standardised products, per state. It separates products that depend on each other."""

MOST_HELD_OUT = 20_000
"""States on which ``fill="auto"`` judges fills, at most, after fitting them to the others: errors of two fills that
matter differ by far more than this many leave uncertain."""

NOTHING_LEFT = 1e-12
"""Fraction of the states' variance outside of the kept coordinates below which the rest is rounding."""

NO_VARIANCE = 1e-12
"""Fraction of the states' variance below which the variance of a coordinate is rounding, and useless for prediction."""


DEPENDENT = 1e-10
"""A direction that the others explain to this fraction of its length is redundant: float64 keeps 1e-16 of it."""


def orthonormal_axes(directions: Float[Array, "d k"], spread: MeanAndCovariance) -> Float[Array, "d q"]:
    """Compute an orthonormal basis of the directions' span along which the states are uncorrelated, the widest first.

    There are fewer axes than directions if directions depend on each other.
    """
    if not directions.shape[1]:
        return directions
    lengths = np.linalg.norm(directions, axis=0)
    if not lengths.all():
        raise KannError("a coordinate has the direction 0 and keeps nothing of a state; leave it out")
    left, singular, _ = np.linalg.svd(directions / lengths, full_matrices=False)
    span = left[:, singular > DEPENDENT * singular[0]]
    _, turned = np.linalg.eigh(spread.along(span))
    return span @ turned[:, ::-1]


def fit_fills(
    chosen: Sequence[Float[Array, "d _"]],
    states: States,
    fill: str = "auto",
    *,
    spread: MeanAndCovariance | None = None,
) -> list[Regression | Curve]:
    """Fit the completions of several sets of directions to the same states, in two passes over them.

    ``"linear"`` is the linear regression of the state on the coordinates. ``"curve"`` is nonlinear: the mean in bins
    along one coordinate, a quadratic regression on several. ``"auto"`` takes for each set the one with the smaller
    squared error on sequences that it was not fitted to, and fits it to all.
    """
    require_choice(fill, "fill", FILLS)
    spread = spread or mean_and_covariance(states)
    axes = [orthonormal_axes(directions, spread) for directions in chosen]
    ends = np.cumsum([own.shape[1] for own in axes])[:-1]
    ranges = accumulate(states, partial(SumOverBlocks, partial(_ranges, spread.mean, np.concatenate(axes, axis=1))))
    ranges = np.array(ranges)  # of each block, lowest and highest
    low, high = np.split(ranges[:, 0].min(axis=0), ends), np.split(ranges[:, 1].max(axis=0), ends)
    fills: list[Any] = [_linear(*own, spread) for own in zip(axes, low, high, strict=True)]
    curved = [] if fill == "linear" else [i for i in range(len(fills)) if _can_bend(fills[i], spread, fill)]
    if not curved:
        return fills
    sums = accumulate(
        states, partial(SumOverBlocks, partial(_all_sums, [fills[i] for i in curved], spread)), what="fills"
    )
    rows = np.arange(0) if fill == "curve" else held_out_rows(states, most=MOST_HELD_OUT)
    held_out = take_rows(states.values, rows).astype(np.float64) - spread.mean if len(rows) else None
    if fill == "auto" and held_out is None:
        return fills
    for i, total in zip(curved, sums.parts, strict=True):
        if held_out is None or _bends_better(fills[i], total, held_out, spread, states):
            fills[i] = _bent(fills[i], total, spread)
    return fills


def _can_bend(linear: Regression, spread: MeanAndCovariance, fill: str) -> bool:
    """Return True if a nonlinear fill is possible and part of the state is left to fill."""
    count, total = linear.axes.shape[1], np.trace(spread.covariance)
    if not count or total - np.trace(spread.along(linear.axes)) <= NOTHING_LEFT * total:
        return False
    if count > MOST_IN_QUADRATIC and fill == "curve":
        raise KannError(
            f"fill='curve' is for at most {MOST_IN_QUADRATIC} coordinates, and {count} were chosen (a conjugate pair "
            "has two); pass fill='linear', or fewer coordinates"
        )
    return count <= MOST_IN_QUADRATIC


def _bends_better(
    linear: Regression, total: Array, held_out: Float[Array, "n d"], spread: MeanAndCovariance, states: States
) -> bool:
    """Return True if the nonlinear fill completes states that it was not fitted to better than the linear one."""
    count = int(states.lengths.sum())
    others = (count * spread.covariance - held_out.T @ held_out) / (count - len(held_out))
    fitted = _bent(linear, total - _sums(linear, spread, held_out), spread)
    if fitted is linear:  # too few states for a curve
        return False
    straight = _linear(linear.axes, linear.low, linear.high, replace(spread, covariance=others))
    rows = held_out + spread.mean
    return bool(np.square(fitted.kept(rows) - rows).sum() < np.square(straight.kept(rows) - rows).sum())


def _ranges(mean: Float[Array, " d"], axes: Float[Array, "d k"], block: Block) -> list[Float[Array, "2 k"]]:
    """Return the smallest and the largest coordinates of a block, as a list of one pair."""
    s = (as_numpy(block.values) - mean) @ axes
    return [np.stack([s.min(axis=0), s.max(axis=0)])]


def _outside(axes: Float[Array, "d q"], rows: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Return the part of rows that is orthogonal to the axes."""
    return rows - (rows @ axes) @ axes.T


def _linear(
    axes: Float[Array, "d q"], low: Float[Array, " q"], high: Float[Array, " q"], spread: MeanAndCovariance
) -> Regression:
    """Regress the state linearly on its coordinates; constant coordinates get zero weights."""
    smallest = NO_VARIANCE * np.trace(spread.covariance)
    inverse = linalg.pinvh(spread.along(axes), atol=smallest, rtol=0.0) if axes.size else np.empty((0, 0))
    # The coordinates themselves are kept exactly; the rest of the state is regressed on them.
    linear = axes.T + inverse @ _outside(axes, axes.T @ spread.covariance)
    return Regression(mean=spread.mean, axes=axes, low=low, high=high, constant=spread.mean, linear=linear)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Sums(Additive):
    """Several sums that are made in the same pass."""

    parts: list[Array]


def _all_sums(fills: Sequence[Regression], spread: MeanAndCovariance, block: Block) -> _Sums:
    about = as_numpy(block.values) - spread.mean
    return _Sums(parts=[_sums(fill, spread, about) for fill in fills])


def _sums(linear: Regression, spread: MeanAndCovariance, about: Float[Array, "n d"]) -> Array:
    """Sum over centred states what the nonlinear fill of these coordinates is computed from."""
    if linear.axes.shape[1] == 1:
        return _cell_sums(linear, about)
    return _product_sums(linear, _deviations(linear, spread), about)


def _bent(linear: Regression, sums: Array, spread: MeanAndCovariance) -> Regression | Curve:
    """Fit the nonlinear fill: a curve along one coordinate, a quadratic regression on several."""
    if linear.axes.shape[1] == 1:
        return _curve(linear, sums)
    return _quadratic(linear, sums, _deviations(linear, spread))


# Along one coordinate


def _cell_sums(linear: Regression, about: Float[Array, "n d"]) -> Float[Array, "c w"]:
    """Sum in each of `CELLS` cells along the coordinate: number, coordinate, and centred states."""
    s = about @ linear.axes
    width = max(float(linear.high[0] - linear.low[0]), np.finfo(float).tiny)
    cells = ((s[:, 0] - linear.low[0]) / width * CELLS).astype(np.int64).clip(0, CELLS - 1)
    chooses = sparse.csr_array((np.ones(len(about)), (cells, np.arange(len(about)))), shape=(CELLS, len(about)))
    return chooses @ np.concatenate([np.ones_like(s), s, about], axis=1)


def _curve(linear: Regression, cells: Float[Array, "c w"]) -> Regression | Curve:
    """Join cells to bins of about equally many states, and connect the mean states of the bins."""
    counts = cells[:, 0]
    bins = min(MOST_BINS, int(counts.sum()) // LEAST_IN_BIN)
    if bins < 2:
        return linear
    # The bin of a cell is the fraction of all states that lie before its middle.
    bin_of_cell = ((np.cumsum(counts) - counts / 2) / counts.sum() * bins).astype(np.int64).clip(0, bins - 1)
    chooses = sparse.csr_array((np.ones(CELLS), (bin_of_cell, np.arange(CELLS))), shape=(bins, CELLS))
    sums = chooses @ cells
    sums = sums[sums[:, 0] > 0]
    if len(sums) < 2:
        return linear
    means = sums[:, 1:] / sums[:, :1]
    knots, rests = means[:, 0], _outside(linear.axes, means[:, 1:])
    # Mean + s Q + rest(s), where the rest does not change before the first and after the last bin.
    axis, still = linear.axes[:, 0], np.zeros((1, len(linear.mean)))
    rises = axis + np.diff(rests, axis=0) / np.diff(knots)[:, None]
    slopes = np.concatenate([still, axis[None], rises, axis[None], still])
    low, high = min(linear.low[0], knots[0]), max(linear.high[0], knots[-1])  # bins may round beyond the range
    knots = np.concatenate([[low], knots, [high]])
    at_knots = linear.mean + knots[:, None] * axis + np.concatenate([rests[:1], rests, rests[-1:]])
    first = np.r_[0, np.arange(len(knots))]  # a knot of each piece
    pieces = np.concatenate([at_knots[first] - knots[first, None] * slopes, slopes], axis=1)
    return Curve(mean=linear.mean, axes=linear.axes, low=linear.low, high=linear.high, knots=knots, pieces=pieces)


# Of several coordinates


def _deviations(linear: Regression, spread: MeanAndCovariance) -> Float[Array, " q"]:
    """Return the standard deviations of the coordinates; one for coordinates that do not vary."""
    variances = np.diag(spread.along(linear.axes))
    return np.sqrt(np.where(variances > NO_VARIANCE * np.trace(spread.covariance), variances, 1.0))


def _product_sums(
    linear: Regression, deviations: Float[Array, " q"], about: Float[Array, "n d"]
) -> Float[Array, "f w"]:
    """Sum products of [1, coordinates, their products] with themselves and with centred states."""
    scaled = (about @ linear.axes) / deviations
    first, second = np.triu_indices(scaled.shape[1])
    features = np.concatenate([np.ones((len(about), 1)), scaled, scaled[:, first] * scaled[:, second]], axis=1)
    return features.T @ np.concatenate([features, about], axis=1)


def _quadratic(linear: Regression, sums: Float[Array, "f w"], deviations: Float[Array, " q"]) -> Regression:
    """Solve for the least-squares weights of the products, with a small ridge on all but the constant."""
    width, count = len(sums), linear.axes.shape[1]
    gram, targets = sums[:, :width], _outside(linear.axes, sums[:, width:])
    penalty = np.full(width, RIDGE * gram[0, 0])
    penalty[0] = 0.0
    weights = linalg.solve(gram + np.diag(penalty), targets, assume_a="pos")
    # Back to coordinates that are not scaled, with the mean and the coordinates themselves added.
    first, second = np.triu_indices(count)
    products = np.zeros((count, count, len(linear.mean)))  # of a product and its mirror image one has the weight 0
    products[first, second] = weights[1 + count :] / (deviations[first] * deviations[second])[:, None]
    return replace(
        linear,
        constant=linear.mean + weights[0],
        linear=linear.axes.T + weights[1 : 1 + count] / deviations[:, None],
        quadratic=products.reshape(count * count, -1),
    )
