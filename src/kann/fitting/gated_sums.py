"""Fit a bilinear operator from sums over pairs of states.

The design has the columns (1, φ) ⊗ (1, z). Its Gram matrix holds Σ g_a g_b z_i z_j for gates g = (1, φ) and coordinates
z = (1, z), the same for every order of a, b and of i, j: only a ≤ b and i ≤ j are summed, a quarter of the products.
They are summed as (products of gates) @ (products of coordinates)ᵀ: the rows of the design, thousands of numbers for
each pair of states, are never made.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from kann.backends.arrays import as_numpy, block_rows, namespace, on_accelerator, to_device_of
from kann.data.moments import refuse_not_finite
from kann.data.reduction import (
    Additive,
    Block,
    Cut,
    Projection,
    SumOverBlocks,
    accumulate,
    add_to,
    are_summed_over_ranks,
)
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.basis import Basis
from kann.fitting.bilinear import Bilinear
from kann.fitting.features import (
    FeatureMap,
    fit_features,
    input_sums,
    pair_count,
    pair_index,
    pair_panels,
    pair_products,
    read_in_pairs,
    triple_index,
    triple_panels,
)
from kann.fitting.folds import blocks_to_hold_out, folds_to_choose, pairs_by_fold, row_checksums
from kann.fitting.normal_equations import NormalEquations, RidgeCurve, ridge_curve, sum_of
from kann.typing import AnyArray, Array, Float, Int

MOST_COLUMNS = 10_000
"""Columns of a design up to which its Gram matrix (800 MB) and the memory to solve with it fit a common machine."""

HOST_PAIRS = 2048
"""How many pairs are multiplied at a time on a CPU: few enough that products of one feature with all others stay in its
cache, enough to outweigh adding up the sums."""

HOST_WAITING = 2**24
"""How many numbers (128 MB) of pairs are collected on a CPU before they are multiplied: among more pairs more inputs
are the same."""

CONSTANT_BELOW = 1e-14
"""A feature whose variance is below this fraction of its mean square is constant up to rounding."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GatedColumns:
    """The columns of the design: features of inputs of unit variance, and what is made of unit coordinates."""

    features: FeatureMap
    """φ"""
    feature_mean: Float[Array, " k"]
    """Subtracted from φ, …"""
    feature_scale: Float[Array, " k"]
    """… which is then divided by this."""
    rank: int
    """The number of coordinates r, which come with unit variance."""
    lift: bool
    """Whether products of coordinates are columns too."""

    @property
    def count(self) -> int:
        """How many columns there are: 1, z, φ, φ ⊗ z and the products of z."""
        lifted = pair_count(self.rank) if self.lift else 0
        return (1 + self.rank) * (1 + self.features.count) + lifted

    def gates(self, inputs: AnyArray) -> Float[AnyArray, "k1 n"]:
        """Compute (1, φ) as rows, for inputs (n, p)."""
        phi = self.features.of(inputs)
        phi = (phi - to_device_of(phi, self.feature_mean)) / to_device_of(phi, self.feature_scale)
        return _with_ones(phi)


def _with_ones(rows: Float[AnyArray, "n m"]) -> Float[AnyArray, "m1 n"]:
    """Return the columns as rows, below a row of ones."""
    xp = namespace(rows)
    return xp.concat([xp.ones((1, rows.shape[0]), dtype=rows.dtype, device=rows.device), rows.T])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GatedSums(Additive):
    """Sums of products by group of sequences, and the range of the coordinates."""

    groups: dict[int, dict[str, AnyArray]]
    """Named sums of each group."""
    low: AnyArray
    """(r,) the smallest coordinates of all states."""
    high: AnyArray
    """(r,) the largest."""
    ADDED_BY: ClassVar = {"low": np.minimum, "high": np.maximum}


class GatedProducts:
    """Accumulates `GatedSums` from unit coordinates and inputs."""

    needs_pairs = True

    def __init__(self, *, columns: GatedColumns, group_of: Int[Array, " s"], lengths: Int[Array, " s"]) -> None:
        self._columns, self._group_of, self._lengths = columns, group_of, lengths
        self._sums: dict[int, dict[str, AnyArray]] = {}
        self._waiting: dict[int, list[tuple[AnyArray, AnyArray, AnyArray]]] = {}
        self._low, self._high = np.full(columns.rank, np.inf), np.full(columns.rank, -np.inf)

    def add(self, block: Block) -> None:
        """Add the pairs inside a block."""
        z, xp = block.values, namespace(block.values)
        self._low = np.minimum(self._low, as_numpy(xp.min(z, axis=0)))
        self._high = np.maximum(self._high, as_numpy(xp.max(z, axis=0)))
        self._collect(block)

    def add_cut(self, cut: Cut) -> None:
        """Add pairs that the end of a block separates."""
        self._collect(cut)

    def _collect(self, part: Block | Cut) -> None:
        """Multiply pairs once there are enough of them."""
        for group, _, x, inputs, y in pairs_by_fold(part, self._group_of, self._lengths):
            waiting = self._waiting.setdefault(group, [])
            waiting.append((x, inputs, y))
            if sum(len(rows) for rows, _, _ in waiting) >= self._pairs_that_wait(x):
                self._multiply(group)

    def _pairs_that_wait(self, sample: AnyArray) -> int:
        columns = self._columns
        if not on_accelerator(sample):
            return max(HOST_PAIRS, HOST_WAITING // (columns.features.inputs + 2 * columns.rank))
        return block_rows(sample, columns.features.inputs + columns.features.count + pair_count(columns.rank + 1))

    def _multiply(self, group: int) -> None:
        """Add the sums of the pairs that wait; on a CPU some thousands at a time, those of the same input together."""
        parts = self._waiting.pop(group)
        xp = namespace(parts[0][0])
        x, inputs, y = (xp.concat(column) for column in zip(*parts, strict=True))
        step, order = self._pairs_that_wait(x), None
        if not on_accelerator(x):
            x, inputs, y = (as_numpy(part) for part in (x, inputs, y))
            step, order = HOST_PAIRS, order_of_repeats(inputs)
        for start in range(0, len(x), step):
            rows: Any = slice(start, start + step)
            read, runs = inputs[rows], None
            if order is not None:
                rows = order[rows]
                runs = run_starts(inputs[rows])
                read = inputs[rows[runs]]
            self._add(group, _with_ones(x[rows]), self._columns.gates(read), y[rows], runs)

    def _add(self, group: int, z: AnyArray, gates: AnyArray, y: AnyArray, runs: Int[Array, " w"] | None) -> None:
        """Add products of coordinates (r1, n) and gates (k1, w), each with a row of ones, and next states (n, r).

        ``runs`` are the pairs at which the inputs change, if the gates are those of runs of pairs and not of each pair.
        """
        # Pairs that read the same input have the same gates: their products of coordinates are added before they are
        # multiplied with those of the gates. Of words, which repeat, that is most of the work.
        sums = self._sums.setdefault(group, {})
        pairs = pair_products(z)
        crossed = (z[:, None, :] * y.T[None, :, :]).reshape(-1, len(y))
        _add_panels(sums, "gram", pair_panels(gates), _run_sums(pairs, runs))
        add_to(sums, "target", gates @ _run_sums(crossed, runs).T)
        add_to(sums, "total", y.T @ y)
        if self._columns.lift:
            squares = pairs[len(z) :]  # the first ones hold a factor of one
            triples = (_run_sums(panel, runs) for panel in triple_panels(z, pairs))
            _add_panels(sums, "lift_cross", triples, gates)
            add_to(sums, "lift_gram", squares @ squares.T)
            add_to(sums, "lift_target", squares @ y)

    def result(self) -> GatedSums:
        """Return the sums, on the host."""
        for group in list(self._waiting):
            self._multiply(group)
        groups = {group: {name: as_numpy(value) for name, value in sums.items()} for group, sums in self._sums.items()}
        return GatedSums(groups=groups, low=self._low, high=self._high)


def order_of_repeats(inputs: Float[Array, "n p"]) -> Int[Array, " n"] | None:
    """Return an order of pairs in which the same inputs follow each other; None if few are the same.

    Inputs are sorted by a checksum. Others that have the same one may come between them, which costs time only.

    >>> order_of_repeats(np.array([[1.0], [2.0], [1.0], [2.0], [1.0]])).tolist()
    [1, 3, 0, 2, 4]
    """
    checksums = row_checksums(np.ascontiguousarray(inputs, dtype=np.float64))
    order = np.argsort(checksums, kind="stable")
    distinct = 1 + np.count_nonzero(np.diff(checksums[order]))
    return None if 2 * distinct > len(order) else order


def run_starts(inputs: Float[Array, "n p"]) -> Int[Array, " w"]:
    """Return the first row of each run of rows that are the same.

    >>> run_starts(np.array([[1.0], [1.0], [2.0], [1.0]])).tolist()
    [0, 2, 3]
    """
    changes = (inputs[1:] != inputs[:-1]).any(axis=1)
    return np.concatenate([[0], 1 + np.flatnonzero(changes)])


def _run_sums(rows: Float[AnyArray, "m n"], runs: Int[Array, " w"] | None) -> Float[AnyArray, "m w"]:
    """Compute sums over runs of columns; the columns themselves without runs."""
    return rows if runs is None else np.add.reduceat(rows, runs, axis=1)


def _add_panels(
    sums: dict[str, AnyArray], name: str, panels: Iterable[AnyArray], others: Float[AnyArray, "k n"]
) -> None:
    """Add the products of others with each panel of rows, panel by panel: together they would not fit a cache."""
    for i, panel in enumerate(panels):
        add_to(sums, f"{name}{i}", panel @ others.T)


def _joined_panels(sums: dict[str, Array], name: str) -> Float[Array, "q k"]:
    """Return the products of all panels."""
    return np.concatenate([sums[f"{name}{i}"] for i in range(len(sums)) if f"{name}{i}" in sums])


def design_of(sums: dict[str, Array], columns: GatedColumns) -> NormalEquations:
    """Arrange the normal equations of one group, columns in the order z, (φ₁, φ₁ z), (φ₂, φ₂ z), …, lift, 1."""
    # The product of columns g_a z_i and g_b z_j is (g_a g_b) (z_i z_j): a pair of gates times a pair of coordinates,
    # summed once for every order of a, b and of i, j, and copied here to all of its places.
    r1, k1 = columns.rank + 1, columns.features.count + 1
    z_pair, gate_pair = pair_index(r1), pair_index(k1)
    own = (k1 * r1, k1 * r1)
    gram = _joined_panels(sums, "gram")[gate_pair[:, None, :, None], z_pair[None, :, None, :]].reshape(own)
    target = sums["target"].reshape(k1 * r1, columns.rank)
    if columns.lift:
        # Products of coordinates, without those of the 1 in front: with a column g_a z_i they are products of three.
        first, second = (1 + part for part in np.triu_indices(columns.rank))
        triples = triple_index(r1)[np.arange(r1)[:, None], first, second]
        cross = np.moveaxis(_joined_panels(sums, "lift_cross")[triples], -1, 0).reshape(k1 * r1, -1)
        gram = np.block([[gram, cross], [cross.T, sums["lift_gram"]]])
        target = np.vstack([target, sums["lift_target"]])
    order = np.r_[1 : len(gram), 0]  # the constant goes last
    return NormalEquations(gram=gram[np.ix_(order, order)], target=target[order], total=sums["total"])


def unit_columns(states: States, features: FeatureMap, *, rank: int, lift: bool) -> GatedColumns:
    """Return the columns of the design, with features scaled to unit variance."""

    def sums_of(block: Block) -> Float[Array, "3 k"]:
        inputs = read_in_pairs(block)
        if not len(inputs):
            return np.zeros((3, features.count))
        phi = features.of(inputs)
        return np.stack([np.full(features.count, float(len(phi))), as_numpy(phi.sum(0)), as_numpy((phi**2).sum(0))])

    total = accumulate(states, partial(SumOverBlocks, sums_of), inputs=True, what="features")
    pairs, sums, squares = total[0, 0], total[1], total[2]
    # The difference loses digits where a mean dwarfs the spread. That does no harm: mean and scale only condition the
    # columns, and are undone exactly in the weights.
    mean = sums / pairs
    variance = squares / pairs - mean**2
    is_constant = variance <= CONSTANT_BELOW * squares / pairs
    scale = np.where(is_constant, 1.0, np.sqrt(np.where(is_constant, 1.0, variance)))
    return GatedColumns(features=features, feature_mean=mean, feature_scale=scale, rank=rank, lift=lift)


ALL_FOLDS_BELOW = 1000
"""Number of columns up to which each of the folds is held out once. Of more columns, whose Gram matrices are large and
slow to solve with, only the first fold is."""


def fit_bilinear(
    states: States,
    basis: Basis,
    variance: Float[Array, " r"],
    *,
    features: Any,
    lift: bool,
    ridge: float | None,
    groups: Any,
) -> tuple[Bilinear, int, int]:
    """Return the operator, the number of pairs it was fitted to, and the number of unknowns of each of its columns.

    ``features`` are what `parse_features` returned, ``variance`` that of the coordinates. Without a ``ridge`` it is
    chosen on held-out sequences; those of one group, such as the pieces of one that was cut, and copies of a sequence
    are held out together.
    """
    deviation = np.sqrt(np.maximum(variance, np.finfo(float).tiny))
    columns = unit_columns(states, fit_features(features, input_sums(states)), rank=len(deviation), lift=lift)
    if columns.count > MOST_COLUMNS:
        raise KannError(
            f"{columns.rank} coordinates and {columns.features.count} features make {columns.count} columns, whose "
            f"Gram matrix would take {8 * columns.count**2 / 2**30:.0f} GB; pass a smaller rank=, or fewer features "
            f"such as kann.features.Components(64), for at most {MOST_COLUMNS} columns"
        )
    lengths, folds, held_out, curve = states.lengths, np.zeros(len(states), dtype=int), 0, None
    if ridge is None:
        blocks = states if groups is not None or are_summed_over_ranks() else blocks_to_hold_out(states)
        chosen: Any = {"what": "the ridge", "remedy": "ridge=1e-6", "all_ranks": True}
        folds, held_out = folds_to_choose(blocks, groups=groups, **chosen)
        lengths = blocks.lengths
        if columns.count > ALL_FOLDS_BELOW:
            folds, held_out = np.minimum(folds, 1), 1
    # In units of variance one, a single ridge suits all columns, and Gram matrices of products keep their digits.
    projection = Projection(matrix=basis.vectors / deviation, mean=basis.mean)
    make = partial(GatedProducts, columns=columns, group_of=folds, lengths=lengths)
    sums = accumulate(states, make, inputs=True, projection=projection, what="products")
    designs = [design_of(sums.groups[fold], columns) for fold in sorted(sums.groups)]
    if not all(np.isfinite(design.gram).all() for design in designs):
        refuse_not_finite(states, inputs=True)
    # Products of features and coordinates nearly depend on each other, so that a ridge is chosen unless one is passed.
    if ridge is None:
        curve = ridge_curve(designs, held_out=held_out)
        ridge = curve.chosen
    total = sum_of(designs)
    designs.clear()  # each may take a gigabyte
    bounds = np.stack([sums.low, sums.high])
    koopman = _in_own_units(total, columns, basis, deviation, ridge, curve, bounds)
    return koopman, total.pairs, columns.count


def _in_own_units(
    total: NormalEquations,
    columns: GatedColumns,
    basis: Basis,
    deviation: Float[Array, " r"],
    ridge: float,
    curve: RidgeCurve | None,
    bounds: Float[Array, "2 r"],
) -> Bilinear:
    """Solve the equations of scaled columns; return the operator of coordinates and features as they are."""
    r, k, weights = columns.rank, columns.features.count, total.ridge_weights(ridge)
    linear, gated = weights[:r], weights[r : r + k * (r + 1)].reshape(k, r + 1, r)
    back = deviation / deviation[:, None]  # from scaled to own coordinates, before and after the step
    drive = gated[:, 0] * deviation / columns.feature_scale[:, None]
    gates = gated[:, 1:] * back / columns.feature_scale[:, None, None]
    squares = None
    if columns.lift:
        first, second = np.triu_indices(r)
        squares = weights[-1 - pair_count(r) : -1] * deviation / (deviation[first] * deviation[second])[:, None]
    mean, scales = columns.feature_mean, np.outer(deviation, deviation)
    return Bilinear(
        matrix=linear * back - np.tensordot(mean, gates, axes=1),
        drive=drive,
        gates=gates,
        offset=weights[-1] * deviation - mean @ drive,
        squares=squares,
        features=columns.features,
        feature_mean=mean,
        basis=basis.vectors,
        mean=basis.mean,
        explained=basis.explained,
        decoder=basis.decoder,
        bounds=bounds * deviation,
        residual_gram=_positive(total.residual_gram(weights) * scales),
        state_gram=_positive(total.state_gram() * scales),
        ridge=ridge,
        ridge_curve=curve,
    )


def _positive(gram: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """Return the Gram matrix without what rounding made of it: symmetric, and without negative squares."""
    # Of a step that is nearly exact, EᵀE is the difference of numbers that are far larger.
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return (positive + positive.T) / 2
