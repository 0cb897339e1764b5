"""One affine map per layer, fitted with a ridge that is chosen on held-out sequences."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from kann import _display
from kann.backends.arrays import as_numpy, gram, indices_for, namespace, to_device_of, with_ones
from kann.checks import require_float, require_whole_number, require_width
from kann.data.moments import Moments, refuse_not_finite
from kann.data.reduction import Additive, Block, Cut, accumulate, add_to
from kann.data.serialization import Saved, Stored
from kann.data.states import States, as_states
from kann.errors import FewPairsWarning, KannError
from kann.fitting._fit import fit as fit_operator
from kann.fitting.basis import operand, parse_rank
from kann.fitting.folds import folds_to_choose
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import NormalEquations, require_ridge, ridge_curve, sum_of
from kann.typing import AnyArray, Array, Float, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AffineMap(Stored):
    """A map from the states at one step to those at a later one: h ↦ h A + b.

    >>> double = AffineMap(matrix=2 * np.eye(2), offset=np.ones(2), ridge=0.0, first=0, last=0)
    >>> double.predict(np.array([[1.0, 3.0]]))
    array([[3., 7.]])
    """

    matrix: Float[Array, "d d"]
    """A"""
    offset: Float[Array, " d"]
    """b"""
    ridge: float
    """The ridge that it was fitted with, for each pair of states, in units of the variance of each unit."""
    first: int
    """The first step that the map replaces, counted from 0: it maps the states before that step, h[first]."""
    last: int
    """The last step that the map replaces: it predicts the states after that step, h[last + 1]."""

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return len(self.offset)

    def predict(self, h: AnyArray) -> Float[AnyArray, "... d"]:
        """Predict the later states of states (..., d); a numpy array, or a tensor on the GPU where the states are."""
        h = operand(h, require_float, what="states")
        require_width(h, self.dim, what="states", of="the map")
        return h @ to_device_of(h, self.matrix) + to_device_of(h, self.offset)

    def __repr__(self) -> str:
        steps = f"steps {self.first} to {self.last}" if self.last > self.first else f"step {self.first}"
        return f"AffineMap({steps}, {self.dim} units, ridge {self.ridge:.0e})"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepMaps(Saved):
    """One affine map for each step, and one operator for all steps, from `kann.depth.fit`.

    Along depth a step is a layer, and the best map changes from layer to layer. `kann.depth.trust` measures the error
    of each map on held-out sequences.

    >>> import kann
    >>> states = np.random.default_rng(0).normal(size=(40, 1, 2)) * 2.0 ** np.arange(4)[:, None]
    >>> maps = kann.depth.fit(states)
    >>> len(maps), maps.each[0].matrix.round(6).diagonal().tolist()
    (3, [2.0, 2.0])
    """

    each: tuple[AffineMap, ...]
    """The map of each step: ``each[t]`` takes h[t] to h[t + 1]."""
    one: Koopman
    """The operator for all steps."""

    instead: ClassVar[str] = "pass maps.one, or for layer maps call the function of kann.depth"
    """Completes errors of functions that take an operator."""

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return self.one.dim

    def __len__(self) -> int:
        return len(self.each)

    def __repr__(self) -> str:
        ridges = sorted({own.ridge for own in self.each})
        return (
            f"StepMaps({len(self)} steps, {self.dim} units, ridges {ridges[0]:.0e} to {ridges[-1]:.0e}; {self.one!r})"
        )

    def _repr_html_(self) -> str:
        rows = []
        for own in self.each:
            change = np.linalg.norm(own.matrix - np.eye(self.dim)) / np.sqrt(self.dim)
            rows.append([own.first, f"{own.ridge:.0e}", f"{change:.3g}"])
        return _display.table(repr(self), ("step", "ridge", "|A − I| / √d"), rows)


Steps = tuple[int, int]
"""Two steps of a sequence: a state at the first is mapped to the state at the second."""


def fit(
    states: Any,
    *,
    rank: Any = None,
    basis: Any = "pca",
    offset: bool = True,
    lengths: Any = None,
    ridge: int | float | None = None,
    groups: Any = None,
) -> StepMaps:
    """Fit an affine map h[t+1] ≈ h[t] A_t + b_t to each step, and one operator to all steps.

    Along depth a step is a layer: record the states with ``kann.record(model, data, axis="depth")``.

    >>> states = np.random.default_rng(0).normal(size=(40, 1, 2)) * 2.0 ** np.arange(4)[:, None]
    >>> fit(states).each[2].matrix.round(6).diagonal().tolist()
    [2.0, 2.0]

    Parameters
    ----------
    states
        Sequences of one length, in any form that `kann.fit` takes except `Moments`.
    rank, basis, offset, lengths
        Of the one operator, as in `kann.fit`. The maps are between whole states.
    ridge
        Pulls the maps towards the identity; counted per pair, in units of the variance of each unit. By default chosen
        for each step on held-out sequences.
    groups
        For each sequence the group that it belongs to, such as a text: sequences of one group are held out together.
    """
    require_ridge(ridge)
    if isinstance(states, Moments):
        raise KannError("a map for each step needs the states of each step, which moments do not hold; pass states")
    recorded = as_states(states, lengths)
    steps = [(step, step + 1) for step in range(length_of(recorded) - 1)]
    chooses_rank = parse_rank(rank).is_auto
    one = fit_operator(recorded, rank=rank, basis=basis, offset=offset, groups=groups if chooses_rank else None)
    return StepMaps(each=tuple(fit_steps(recorded, steps, ridge=ridge, groups=groups)), one=one)


def fit_span(states: Any, first: int, last: int, *, ridge: int | float | None = None, groups: Any = None) -> AffineMap:
    """Fit one affine map to a span of steps: from the states before step ``first`` to those after step ``last``.

    Along depth it is one map instead of several layers.

    >>> import numpy as np
    >>> states = np.random.default_rng(0).normal(size=(40, 1, 2)) * 2.0 ** np.arange(4)[:, None]
    >>> fit_span(states, 1, 2).matrix.round(6)
    array([[ 4., -0.],
           [-0.,  4.]])

    Parameters
    ----------
    states, ridge, groups
        As in `kann.depth.fit`.
    first, last
        The first and the last step of the span, both included and counted from 0: step t leads from h[t] to h[t + 1].
    """
    recorded = as_states(states)
    steps = length_of(recorded) - 1
    first = require_whole_number(first, "first", least=0, too_small="is before the first step")
    last = require_whole_number(last, "last", least=0, too_small="is before the first step")
    if not first <= last < steps:
        raise KannError(
            f"a span from step {first} to step {last} is none of {steps} steps; pass first <= last < {steps}"
        )
    return fit_steps(recorded, [(first, last + 1)], ridge=ridge, groups=groups)[0]


ALL_FOLDS_UP_TO = 64
"""Up to this many units every fifth is held out in turn. With more units one fifth is enough: a solve takes d³
operations, and there is one for each fold, ridge and step."""

STEP_RIDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""Ridges that are tried, per pair of states, in units of the variance of each unit. With 1 a map is halfway between the
identity and the best fit, in directions of average variance."""


def fit_steps(states: States, steps: Sequence[Steps], *, ridge: float | None, groups: Any) -> list[AffineMap]:
    """Fit an affine map to each of these pairs of steps, all in one reading of the states."""
    require_ridge(ridge)
    fold_of, held_out = np.zeros(len(states), dtype=int), 0
    if ridge is None:
        fold_of, held_out = folds_to_choose(states, groups=groups, what="the ridge", remedy="ridge=1e-4")
        if states.dim > ALL_FOLDS_UP_TO:
            fold_of, held_out = np.minimum(fold_of, 1), 1
    equations = equations_of_steps(states, fold_of, steps)
    if len(states) <= states.dim:
        warnings.warn(
            f"{len(states)} sequences for {states.dim + 1} unknowns in each column of a step's map: the ridge decides "
            "what the states leave open; pass more sequences",
            FewPairsWarning,
            stacklevel=3,
        )
    maps = []
    for (first, last), folds in zip(steps, equations, strict=True):
        changes = [fold.change() for fold in folds]
        strength = ridge_curve(changes, held_out=held_out, ridges=STEP_RIDGES).chosen if ridge is None else ridge
        weights = map_weights(sum_of(changes), float(strength))
        found = AffineMap(matrix=weights[:-1], offset=weights[-1], ridge=float(strength), first=first, last=last - 1)
        maps.append(found)
    return maps


def map_weights(change: NormalEquations, ridge: float) -> Float[Array, "q d"]:
    """Solve the equations of the change for matrix and offset, stacked; the ridge then pulls towards the identity."""
    weights = change.ridge_weights(ridge)
    weights[:-1] += np.eye(change.rank)
    return weights


def length_of(states: States) -> int:
    """Return the number of states of every sequence; raise if sequences differ in length."""
    shortest, longest = int(states.lengths.min()), int(states.lengths.max())
    if shortest != longest:
        raise KannError(
            f"a map for each step needs sequences that have the same steps, as along depth; these have "
            f"{shortest} to {longest} states; pass sequences of one length"
        )
    if longest < 2:
        raise KannError("sequences of one state have no step; pass sequences of two states or more")
    return longest


def equations_of_steps(
    states: States, fold_of: Int[Array, " s"], steps: Sequence[Steps]
) -> list[list[NormalEquations]]:
    """Collect for each pair of steps the equations of each fold of sequences, in one reading of the states."""
    make = partial(_StepProducts, fold_of=fold_of, length=length_of(states), steps=tuple(dict.fromkeys(steps)))
    sums = accumulate(states, make, what="moments of steps").sums
    folds = sorted({fold for fold, _, _ in sums})
    if not all(np.isfinite(as_numpy(total[-1])).all() for total in sums.values()):
        refuse_not_finite(states, inputs=False)
    found = []
    for first, last in steps:
        # The last row and column are those of the constant: sums, and the number of sequences.
        cross = [sums.get((fold, first, last)) for fold in folds]
        seen = sum(int(each[-1, -1]) for each in cross if each is not None)
        if seen != len(states):
            raise KannError(
                f"the chunks of the data cut {len(states) - seen} of {len(states)} sequences between steps {first} and "
                f"{last}; pass chunks that hold whole sequences"
            )
        found.append(
            [
                NormalEquations(
                    gram=as_numpy(sums[fold, first, first]),
                    target=as_numpy(product)[:, :-1],
                    total=as_numpy(sums[fold, last, last])[:-1, :-1],
                )
                for fold, product in zip(folds, cross, strict=True)
            ]
        )
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Sums(Additive):
    """Σ (h[s], 1)ᵀ(h[t], 1) over sequences, by fold, s and t. They add up."""

    sums: dict[tuple[int, int, int], Any]


SEQUENCES_TO_MULTIPLY = 256
"""Sequences that are multiplied at a time: with fewer, adding d × d sums takes longer than the products."""


class _StepProducts:
    """Accumulates products of the states at two steps, fold by fold."""

    needs_pairs = True

    def __init__(self, *, fold_of: Int[Array, " s"], length: int, steps: tuple[Steps, ...]):
        self._fold_of, self._length, self._steps = fold_of, length, steps
        self._used = sorted({step for pair in steps for step in pair})
        self._found = _Sums({})
        self._waiting: dict[int, list[dict[int, Any]]] = {}

    def add(self, block: Block) -> None:
        """Add the states of a block, and the products of those steps that it holds together."""
        folds = self._fold_of[block.numbers]
        for fold in np.unique(folds).tolist():
            waiting = self._waiting.setdefault(fold, [])
            waiting.append(self._rows(block, np.flatnonzero(folds == fold)))
            if sum(len(rows[self._used[0]]) for rows in waiting) >= SEQUENCES_TO_MULTIPLY:
                self._multiply(fold)

    def _rows(self, block: Block, chosen: Int[Array, " k"]) -> dict[int, Any]:
        """Return by step the rows (h, 1) of chosen sequences, zeros for those whose piece in this block lacks the step.

        So a product of two steps sums over the sequences that have both.
        """
        first, lengths, offsets = block.steps[chosen], block.lengths[chosen], block.offsets[chosen]
        rows = {}
        for step in self._used:
            has_step = (first <= step) & (step < first + lengths)
            (at,) = indices_for(block.values, np.where(has_step, offsets + step - first, 0))
            states = with_ones(block.values[at])
            if not has_step.all():
                states[indices_for(states, np.flatnonzero(~has_step))[0]] = 0.0
            rows[step] = states
        return rows

    def _multiply(self, fold: int) -> None:
        """Add the products of the sequences that wait."""
        waiting = self._waiting.pop(fold)
        concat = namespace(waiting[0][self._used[0]]).concat
        rows, sums = {step: concat([each[step] for each in waiting]) for step in self._used}, self._found.sums
        for step in self._used:
            add_to(sums, (fold, step, step), gram(rows[step]))
        for first, last in self._steps:
            add_to(sums, (fold, first, last), rows[first].T @ rows[last])

    def add_cut(self, cut: Cut) -> None:
        """Add the products of consecutive steps that the end of a block separates; their states are counted already."""
        before, after = with_ones(cut.before), with_ones(cut.after)
        for i, row in enumerate(cut.rows.tolist()):
            number, step = divmod(row, self._length)
            if (step - 1, step) in self._steps:
                key = int(self._fold_of[number]), step - 1, step
                add_to(self._found.sums, key, before[i : i + 1].T @ after[i : i + 1])

    def result(self) -> _Sums:
        """Return the totals."""
        for fold in list(self._waiting):
            self._multiply(fold)
        return self._found
