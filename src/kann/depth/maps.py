"""One affine map per layer, fitted with a ridge that is chosen on held-out sequences."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kann import _display
from kann.backends.arrays import as_numpy, cross_gram, gram, indices_for, namespace, to_device_of
from kann.checks import require_float, require_number, require_whole_number, require_width
from kann.data.moments import refuse_not_finite
from kann.data.reduction import accumulate
from kann.data.rows import Block, Cut
from kann.data.serialization import Saved, Stored
from kann.data.states import States, as_states
from kann.errors import FewPairsWarning, KannError
from kann.fitting.basis import operand
from kann.fitting.folds import FEWEST_FOLDS, Together, assign_folds, repeats_of
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import NormalEquations, ridge_curve, sum_of
from kann.typing import AnyArray, Array, Complex, Float, Int


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
    """The first step that it stands for, counted from 0: it takes the states before that step, h[first]."""
    last: int
    """The last step that it stands for: it gives the states after that step, h[last + 1]."""

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return len(self.offset)

    @property
    def eigenvalues(self) -> Complex[Array, " d"]:
        """The eigenvalues of A by decreasing modulus: what the map does to deviations from its fixed point."""
        values = np.linalg.eigvals(self.matrix).astype(complex)
        return values[np.argsort(-np.abs(values), kind="stable")]

    def predict(self, h: AnyArray) -> Float[AnyArray, "... d"]:
        """The later states of states (..., d); a numpy array, or a tensor on the GPU where the states are."""
        h = operand(h, require_float, what="states")
        require_width(h, self.dim, what="states", of="the map")
        return h @ to_device_of(h, self.matrix) + to_device_of(h, self.offset)

    def __repr__(self) -> str:
        steps = f"step {self.first}"
        if self.last > self.first:
            steps = f"steps {self.first} to {self.last}"
        return f"AffineMap({steps}, {self.dim} units, ridge {self.ridge:.0e})"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepMaps(Saved):
    """One affine map for each step, beside one operator for all steps.

    Along depth a step is a layer, and the operator that fits best changes from layer to layer. Ask `kann.trust` how far
    each map is right on sequences that were not fitted.

    >>> import kann
    >>> states = np.random.default_rng(0).normal(size=(40, 1, 2)) * 2.0 ** np.arange(4)[:, None]
    >>> maps = kann.fit(states, each_step=True)
    >>> len(maps), maps.each[0].matrix.round(6).diagonal().tolist()
    (3, [2.0, 2.0])
    """

    each: tuple[AffineMap, ...]
    """The map of each step: ``each[t]`` takes h[t] to h[t + 1]."""
    one: Koopman
    """The operator for all steps."""

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


SEQUENCES_TO_MULTIPLY = 256
"""So many sequences are multiplied at a time: with fewer, adding d × d sums takes longer than the products."""

Steps = tuple[int, int]
"""Two steps of a sequence: a state at the first is mapped to the state at the second."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepMoments:
    """Sums and Gram matrices of the states at single steps, and products of the states at two steps.

    They add up over sequences. At a step t they are Σ h[t] and Σ h[t]ᵀh[t]; for two steps s and t, Σ h[s]ᵀh[t].
    """

    counts: dict[Steps, int]
    """Over how many sequences the products of two steps are summed."""
    sums: dict[int, Any]
    """(d,) for each step."""
    grams: dict[int, Any]
    """(d, d) for each step."""
    products: dict[Steps, Any]
    """(d, d) for each two steps."""

    @property
    def parts(self) -> tuple[dict[Any, Any], ...]:
        """All that is summed."""
        return self.counts, self.sums, self.grams, self.products

    def __add__(self, other: "StepMoments") -> "StepMoments":
        return StepMoments(
            counts=_added(self.counts, other.counts),
            sums=_added(self.sums, other.sums),
            grams=_added(self.grams, other.grams),
            products=_added(self.products, other.products),
        )

    def design(self, steps: Steps) -> NormalEquations:
        """The regression of the states at the second step on those at the first."""
        first, last = steps
        count = np.array([[float(self.counts[steps])]])
        sum_x, sum_y = (as_numpy(self.sums[step])[:, None] for step in steps)
        return NormalEquations(
            gram=np.block([[as_numpy(self.grams[first]), sum_x], [sum_x.T, count]]),
            target=np.vstack([as_numpy(self.products[steps]), sum_y.T]),
            total=as_numpy(self.grams[last]),
        )


def _added(ours: dict[Any, Any], theirs: dict[Any, Any]) -> dict[Any, Any]:
    """The entries of two dicts, added where both have them."""
    total = dict(ours)
    for key, value in theirs.items():
        if key in total:
            value = total[key] + value
        total[key] = value
    return total


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Folds:
    """The moments of each fold, by its number; they add up."""

    moments: dict[int, StepMoments]

    def __add__(self, other: "_Folds") -> "_Folds":
        return _Folds(moments=_added(self.moments, other.moments))


def step_moments(states: States, fold_of: Int[Array, " s"], steps: Sequence[Steps]) -> list[StepMoments]:
    """The moments of each fold of sequences, for these steps, in one reading of the states.

    All sequences must have the same number of steps.
    """
    length = length_of(states)
    make = partial(_StepProducts, fold_of=fold_of, steps=tuple(steps), length=length)
    found = accumulate(states, make, what="moments of steps").moments
    folds = [found[fold] for fold in sorted(found)]
    if not all(np.isfinite(as_numpy(total)).all() for moments in folds for total in moments.sums.values()):
        refuse_not_finite(states, inputs=False)
    _require_whole(folds, steps, sequences=len(states))
    return folds


def length_of(states: States) -> int:
    """The number of states of every sequence; sequences of different lengths are refused."""
    shortest, longest = int(states.lengths.min()), int(states.lengths.max())
    if shortest != longest:
        raise KannError(
            f"each step has a map of its own only if all sequences have the same steps, as along depth; these have "
            f"{shortest} to {longest} states; pass sequences of one length"
        )
    if longest < 2:
        raise KannError("sequences of one state have no step; pass sequences of two states or more")
    return longest


def _require_whole(folds: Sequence[StepMoments], steps: Sequence[Steps], *, sequences: int) -> None:
    """Refuse chunks that cut sequences between two steps whose states must be multiplied."""
    for pair in steps:
        seen = sum(moments.counts.get(pair, 0) for moments in folds)
        if seen != sequences:
            raise KannError(
                f"the chunks of the data cut {sequences - seen} of {sequences} sequences between steps {pair[0]} and "
                f"{pair[1]}; pass chunks that hold whole sequences"
            )


class _StepProducts:
    """Accumulates the moments of steps, fold by fold."""

    needs_pairs = True

    def __init__(self, *, fold_of: Int[Array, " s"], steps: tuple[Steps, ...], length: int):
        self._fold_of, self._steps, self._length = fold_of, steps, length
        self._used = sorted({step for pair in steps for step in pair})
        self._moments: dict[int, StepMoments] = {}
        self._waiting: dict[int, list[dict[int, Any]]] = {}

    def add(self, block: Block) -> None:
        """Add the states of a block, and the products of those steps that it holds together."""
        folds = self._fold_of[block.numbers]
        is_whole = block.lengths == self._length
        for fold in np.unique(folds).tolist():
            whole, pieces = (folds == fold) & is_whole, (folds == fold) & ~is_whole
            if whole.any():
                self._collect(fold, self._rows(block, whole)[0])
            if pieces.any():
                self._add(fold, self._of_pieces(block, pieces))

    def _rows(self, block: Block, chosen: Array) -> tuple[dict[int, Any], dict[int, Array]]:
        """The states at each step of the sequences ``chosen``, and which sequences have that step in this block."""
        first, stop = block.steps, block.steps + block.lengths
        rows, places = {}, {}
        for step in self._used:
            places[step] = chosen & (first <= step) & (step < stop)
            at = block.offsets[places[step]] + step - first[places[step]]
            rows[step] = block.values[indices_for(block.values, at)[0]]
        return rows, places

    def _collect(self, fold: int, rows: dict[int, Any]) -> None:
        """Add whole sequences once there are enough of them to multiply."""
        waiting = self._waiting.setdefault(fold, [])
        waiting.append(rows)
        if sum(len(each[self._used[0]]) for each in waiting) >= SEQUENCES_TO_MULTIPLY:
            self._multiply(fold)

    def _multiply(self, fold: int) -> None:
        """Add the whole sequences that wait."""
        waiting = self._waiting.pop(fold)
        concat = namespace(waiting[0][self._used[0]]).concat
        rows = {step: concat([each[step] for each in waiting]) for step in self._used}
        count = len(rows[self._used[0]])
        products = {(x, y): cross_gram(rows[x], rows[y]) for x, y in self._steps}
        self._add(fold, _moments(rows, dict.fromkeys(self._steps, count), products))

    def _of_pieces(self, block: Block, chosen: Array) -> StepMoments:
        """The moments of pieces of sequences, which have some of the steps alone."""
        rows, places = self._rows(block, chosen)
        counts, products = {}, {}
        for pair in self._steps:
            both = places[pair[0]] & places[pair[1]]
            x, y = (self._kept(rows[step], both[places[step]]) for step in pair)
            counts[pair], products[pair] = int(both.sum()), cross_gram(x, y)
        return _moments(rows, counts, products)

    @staticmethod
    def _kept(rows: Any, kept: Array) -> Any:
        """The rows where ``kept`` is true."""
        return rows[indices_for(rows, np.flatnonzero(kept))[0]]

    def add_cut(self, cut: Cut) -> None:
        """Add the products of consecutive steps that the end of a block separates; their states are counted already."""
        for i, row in enumerate(cut.rows.tolist()):
            number, step = divmod(row, self._length)
            pair = (step - 1, step)
            if pair in self._steps:
                product = cut.before[i : i + 1].T @ cut.after[i : i + 1]
                fold = int(self._fold_of[number])
                self._add(fold, StepMoments(counts={pair: 1}, sums={}, grams={}, products={pair: product}))

    def _add(self, fold: int, moments: StepMoments) -> None:
        """Add moments to those of a fold, in place: new memory for every d × d sum would take longer than the sum."""
        if fold not in self._moments:
            self._moments[fold] = moments
            return
        own = self._moments[fold]
        for ours, theirs in zip(own.parts, moments.parts, strict=True):
            for key, value in theirs.items():
                if key in ours:
                    ours[key] += value
                else:
                    ours[key] = value

    def result(self) -> _Folds:
        """The totals."""
        for fold in list(self._waiting):
            self._multiply(fold)
        return _Folds(moments=self._moments)


def _moments(rows: dict[int, Any], counts: dict[Steps, int], products: dict[Steps, Any]) -> StepMoments:
    """Moments from the states at each step and the products of two steps."""
    return StepMoments(
        counts=counts,
        sums={step: each.sum(0) for step, each in rows.items()},
        grams={step: gram(each) for step, each in rows.items()},
        products=products,
    )


FOLDS = 5
"""A fifth of the sequences is held out to choose ridges."""

ALL_FOLDS_UP_TO = 64
"""Up to so many units every fifth is held out in turn; of more, one fifth is enough, and five would take five times as
long: a solve takes d³ operations, and there is one for each ridge and step."""

STEP_RIDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""Ridges that are tried, for each pair of states, in units of the variance of each unit. With 1 a map is halfway
between the identity and what fits best, in directions of average variance."""


def fit_span(states: Any, first: int, last: int, *, ridge: int | float | None = None, groups: Any = None) -> AffineMap:
    """Fit one affine map to a span of steps: from the states before step ``first`` to those after step ``last``.

    Along depth it is one map in place of several layers. Where the ridge is large the map is the identity.

    >>> import numpy as np
    >>> states = np.random.default_rng(0).normal(size=(40, 1, 2)) * 2.0 ** np.arange(4)[:, None]
    >>> fit_span(states, 1, 2).matrix.round(6)
    array([[ 4., -0.],
           [-0.,  4.]])

    Parameters
    ----------
    states
        Sequences of one length, as `States`, an array (S, T, d) or the path of a store.
    first, last
        The first and the last step of the span, both included and counted from 0: step t leads from h[t] to h[t + 1].
    ridge
        Pulls the map towards the identity; counted for each pair of states, in units of the variance of each unit.
        Chosen on held-out sequences if None.
    groups
        For each sequence who it comes from, such as the text that a position is of: sequences of one group are held
        out together.
    """
    recorded = as_states(states)
    steps = length_of(recorded) - 1
    first = require_whole_number(first, "first", least=0, too_small="is before the first step")
    last = require_whole_number(last, "last", least=0, too_small="is before the first step")
    if not first <= last < steps:
        raise KannError(
            f"a span from step {first} to step {last} is none of {steps} steps; pass first <= last < {steps}"
        )
    (found,) = fit_steps(recorded, [(first, last + 1)], ridge=ridge, groups=groups)
    return found


def fit_steps(states: States, steps: Sequence[Steps], *, ridge: float | None, groups: Any) -> list[AffineMap]:
    """An affine map for each of these pairs of steps, all in one reading of the states."""
    require_ridge(ridge)
    fold_of, held_out = _folds(states, ridge=ridge, groups=groups)
    folds = step_moments(states, fold_of, steps)
    _warn_of_few(len(states), states.dim)
    return [_fit_step(folds, pair, ridge=ridge, held_out=held_out) for pair in steps]


def require_ridge(ridge: Any) -> None:
    """Refuse a ridge that is no number of at least 0; None is one that is chosen."""
    if ridge is not None:
        require_number(ridge, "ridge", remedy="pass ridge>=0")
        if not ridge >= 0:
            raise KannError(f"ridge={ridge} would reward large operators; pass ridge>=0")


def _folds(states: States, *, ridge: float | None, groups: Any) -> tuple[Int[Array, " s"], int]:
    """The fold of each sequence, and how many folds are held out in turn to choose a ridge."""
    if ridge is not None:
        return np.zeros(len(states), dtype=int), 0
    repeats = repeats_of(states)
    available = Together.of(states.lengths, groups=groups, repeats=repeats).available
    if available < FEWEST_FOLDS:
        raise KannError(
            f"the ridge is chosen on held-out sequences, and {available} of two states or more are too few; pass "
            "ridge=1e-4, or more sequences"
        )
    count = min(FOLDS, available)
    folds = assign_folds(states.lengths, folds=count, groups=groups, repeats=repeats)
    if states.dim > ALL_FOLDS_UP_TO:
        return np.minimum(folds, 1), 1
    return folds, count


def _fit_step(folds: Sequence[StepMoments], steps: Steps, *, ridge: float | None, held_out: int) -> AffineMap:
    changes = [moments.design(steps).change() for moments in folds]
    if ridge is None:
        ridge = ridge_curve(changes, held_out=held_out, ridges=STEP_RIDGES).chosen
    weights = map_weights(sum_of(changes), float(ridge))
    return AffineMap(matrix=weights[:-1], offset=weights[-1], ridge=float(ridge), first=steps[0], last=steps[1] - 1)


def map_weights(change: NormalEquations, ridge: float) -> Float[Array, "q d"]:
    """The matrix and the offset, one below the other, from the regression of the change."""
    weights = change.ridge_weights(ridge)
    weights[:-1] += np.eye(change.rank)
    return weights


def _warn_of_few(sequences: int, units: int) -> None:
    """Warn of fewer sequences than a map has unknowns: then the ridge decides, and not the states."""
    if sequences <= units:
        warnings.warn(
            f"{sequences} sequences for {units + 1} unknowns in each column of a step's map: the ridge decides what "
            "the states leave open; pass more sequences",
            FewPairsWarning,
            stacklevel=4,
        )
