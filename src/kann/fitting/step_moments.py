"""Second moments of states step by step, for maps that differ from step to step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, cross_gram, gram, indices_for, namespace
from kann.data.blocks import Block, Cut
from kann.data.moments import refuse_not_finite
from kann.data.reduction import accumulate
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.designs import Design
from kann.typing import Array, Int

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

    def design(self, steps: Steps) -> Design:
        """The regression of the states at the second step on those at the first."""
        first, last = steps
        count = np.array([[float(self.counts[steps])]])
        sum_x, sum_y = (as_numpy(self.sums[step])[:, None] for step in steps)
        return Design(
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
