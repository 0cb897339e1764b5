"""Sums over what a network read: means, covariances, and what their values are like."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, float64_copy, gram, indices_for, is_dask, namespace
from kann.data.blocks import Block
from kann.data.moments import refuse_not_finite
from kann.data.reduction import Total, accumulate
from kann.data.states import States
from kann.typing import AnyArray, Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputSums:
    """Sums over the inputs of all pairs of states. They add up over blocks."""

    pairs: int
    """How many inputs led from one state to the next."""
    total: Float[Array, " p"]
    """Σ u"""
    products: Float[Array, "p p"]
    """UᵀU"""
    largest: float
    """The largest of all numbers."""
    are_whole: bool
    """Whether all of them are whole numbers of at least 0."""
    sample: AnyArray
    """No rows of inputs, of their kind and on their device."""

    def __add__(self, other: "InputSums") -> "InputSums":
        return InputSums(
            pairs=self.pairs + other.pairs,
            total=self.total + other.total,
            products=self.products + other.products,
            largest=max(self.largest, other.largest),
            are_whole=self.are_whole and other.are_whole,
            sample=self.sample,
        )

    @property
    def mean(self) -> Float[Array, " p"]:
        """The mean input."""
        return self.total / self.pairs

    @property
    def covariance(self) -> Float[Array, "p p"]:
        """Covariances of the inputs."""
        return self.products / self.pairs - np.outer(self.mean, self.mean)


def input_sums(states: States) -> InputSums:
    """The sums over all states but the first of each sequence, which no pair leads to."""
    found = accumulate(states, partial(Total, _of_block), inputs=True, what="inputs")
    if not np.isfinite(found.products).all():
        refuse_not_finite(states, inputs=True)
    inputs: Any = states.inputs
    if is_dask(inputs):
        return found
    return replace(found, sample=float64_copy(inputs[:0]))  # of several ranks each has a device of its own


def read_in_pairs(block: Block) -> AnyArray:
    """The inputs (m, p) of a block that led from a state to the next, also from one in an earlier block."""
    is_first = np.zeros(block.values.shape[0], dtype=bool)
    is_first[block.offsets[block.steps == 0]] = True
    (rows,) = indices_for(block.inputs, np.flatnonzero(~is_first))
    return block.inputs[rows]  # pyright: ignore[reportOptionalSubscript]


def _of_block(block: Block) -> InputSums:
    inputs = read_in_pairs(block)
    xp, largest, are_whole = namespace(inputs), -np.inf, True
    if len(inputs):
        largest = float(xp.max(inputs))
        are_whole = bool(xp.all((inputs >= 0) & (inputs == xp.round(inputs))))
    return InputSums(
        pairs=len(inputs),
        total=as_numpy(inputs.sum(0)),
        products=as_numpy(gram(inputs)),
        largest=largest,
        are_whole=are_whole,
        sample=inputs[:0] + 0,
    )
