"""Fit an operator that its inputs gate."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.data.reduction import number_of_all_ranks
from kann.data.rows import Projection
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.basis import Basis
from kann.fitting.bilinear import Bilinear
from kann.fitting.designs import Design, sum_of
from kann.fitting.features import fit_features
from kann.fitting.folds import FEWEST_FOLDS, Together
from kann.fitting.gated_products import GatedColumns, design_of, gated_sums, unit_columns
from kann.fitting.input_sums import input_sums
from kann.fitting.monomials import pair_count
from kann.fitting.repeats import repeats_of
from kann.fitting.ridge import RidgeCurve, ridge_curve, ridge_weights
from kann.typing import Array, Float, Int

FOLDS = 5
"""The ridge is chosen with a fifth of the sequences held out at a time."""

ALL_FOLDS_BELOW = 1000
"""Up to so many columns each of the folds is held out once. Of more columns, whose Gram matrices are large and slow to
solve with, only the first fold is."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GatedRequest:
    """What of a bilinear operator is to be fitted."""

    features: Any
    """What `parse_features` made of the user's."""
    lift: bool
    """Whether products of coordinates are columns too."""
    ridge: float | None
    """The ridge, or None to choose it on held-out sequences."""


def fit_bilinear(
    states: States,
    basis: Basis,
    deviation: Float[Array, " r"],
    request: GatedRequest,
    *,
    groups: Any,
) -> tuple[Bilinear, int, int]:
    """The operator, how many pairs it was fitted to, and how many unknowns each of its columns has.

    ``deviation`` are the standard deviations of the coordinates, by which they are scaled. Sequences of one group, such
    as the pieces of one that was cut, and copies of a sequence are held out together.
    """
    features = fit_features(request.features, input_sums(states))
    columns = unit_columns(states, features, rank=len(deviation), lift=request.lift)
    columns.require_manageable()
    folds, held_out = _folds(states, columns, request, groups)
    projection = Projection(matrix=basis.vectors / deviation, mean=basis.mean)
    sums = gated_sums(states, columns, projection, folds)
    designs = [design_of(sums.groups[fold], columns) for fold in sorted(sums.groups)]
    curve = None
    ridge = request.ridge
    if ridge is None:
        curve = ridge_curve(designs, held_out=held_out)
        ridge = curve.chosen
    total = sum_of(designs)
    designs.clear()
    weights = ridge_weights(total, ridge)
    bounds = np.stack([sums.low, sums.high]) * deviation
    koopman = _operator(total, weights, columns, basis, deviation, bounds=bounds, ridge=ridge, curve=curve)
    return koopman, total.pairs, columns.count


def _folds(states: States, columns: GatedColumns, request: GatedRequest, groups: Any) -> tuple[Int[Array, " s"], int]:
    """The group of each sequence, and how many of these groups are held out in turn."""
    if request.ridge is not None:
        return np.zeros(len(states), dtype=int), 0
    repeats = repeats_of(states)
    own = Together.of(states.lengths, groups=groups, repeats=repeats)
    available = number_of_all_ranks(own.available)
    if available < FEWEST_FOLDS:
        raise KannError(
            f"the ridge is chosen on held-out sequences, and {available} of two states or more are too few; pass "
            "ridge=1e-6, or more sequences"
        )
    folds = own.balanced(min(FOLDS, available), seed=0)
    if columns.count > ALL_FOLDS_BELOW:
        return np.minimum(folds, 1), 1
    return folds, min(FOLDS, available)


def _operator(
    total: Design,
    weights: Float[Array, "q r"],
    columns: GatedColumns,
    basis: Basis,
    deviation: Float[Array, " r"],
    *,
    bounds: Float[Array, "2 r"],
    ridge: float,
    curve: RidgeCurve | None,
) -> Bilinear:
    """The operator on coordinates and features as they are, from weights of scaled ones."""
    r, k = columns.rank, columns.features.count
    linear, gated = weights[:r], weights[r : r + k * (r + 1)].reshape(k, r + 1, r)
    back = deviation / deviation[:, None]  # from scaled to own coordinates, before and after the step
    drive = gated[:, 0] * deviation / columns.feature_scale[:, None]
    gates = gated[:, 1:] * back / columns.feature_scale[:, None, None]
    squares = None
    if columns.lift:
        first, second = np.triu_indices(r)
        squares = weights[-1 - pair_count(r) : -1] * deviation / (deviation[first] * deviation[second])[:, None]
    mean = columns.feature_mean
    about = total.state_gram(total.gram[-1, :r] / total.pairs)
    scales = np.outer(deviation, deviation)
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
        bounds=bounds,
        residual_gram=_positive(total.residual_gram(weights) * scales),
        state_gram=_positive(about * scales),
        ridge=ridge,
        ridge_curve=curve,
    )


def _positive(gram: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """The Gram matrix without what rounding made of it: symmetric, and without negative squares."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return (positive + positive.T) / 2
