"""Second moments of states step by step, for maps that differ from step to step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, cross_gram, gram, indices_for
from kann.data.blocks import Block, Cut
from kann.data.moments import refuse_not_finite
from kann.data.reduction import accumulate
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.designs import Design
from kann.typing import Array, Float, Int

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

    def add(self, block: Block) -> None:
        """Add the states of a block, and the products of those steps that it holds together."""
        folds = self._fold_of[block.numbers]
        for fold in np.unique(folds).tolist():
            self._add(fold, self._of_sequences(block, folds == fold))

    def _of_sequences(self, block: Block, chosen: Array) -> StepMoments:
        """The moments of the sequences ``chosen`` of a block, or of their pieces in it."""
        first, stop = block.steps, block.steps + block.lengths
        rows, places = {}, {}
        for step in self._used:
            places[step] = chosen & (first <= step) & (step < stop)
            at = block.offsets[places[step]] + step - first[places[step]]
            rows[step] = block.values[indices_for(block.values, at)[0]]
        counts, products = {}, {}
        for pair in self._steps:
            both = places[pair[0]] & places[pair[1]]
            x, y = (self._kept(rows[step], both[places[step]]) for step in pair)
            counts[pair], products[pair] = int(both.sum()), cross_gram(x, y)
        return StepMoments(
            counts=counts,
            sums={step: each.sum(0) for step, each in rows.items()},
            grams={step: gram(each) for step, each in rows.items()},
            products=products,
        )

    @staticmethod
    def _kept(rows: Any, kept: Array) -> Any:
        """The rows where ``kept`` is true; all of them as they are, which is what happens unless sequences are cut."""
        if kept.all():
            return rows
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
        if fold in self._moments:
            moments = self._moments[fold] + moments
        self._moments[fold] = moments

    def result(self) -> _Folds:
        """The totals."""
        return _Folds(moments=self._moments)


def missed(design: Design, weights: Float[Array, "q r"]) -> float:
    """What the weights miss, Σ|Y − A W|²; one matrix product, where the Gram matrix of the residuals takes two."""
    found = np.trace(design.total) + np.sum(weights * (design.gram @ weights - 2 * design.target))
    return max(0.0, float(found))
