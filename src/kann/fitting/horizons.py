"""Held-out errors several steps ahead, and the rank that minimises them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, indices_for, namespace, row_products, to_device_of
from kann.data.additive import Additive
from kann.data.reduction import Block, Projection, Total, accumulate
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.basis import Basis, RankCurve
from kann.fitting.folds import folds_to_choose
from kann.fitting.normal_equations import NormalEquations, Step, designs_of_folds, without_each
from kann.typing import AnyArray, Array, Float, Int

STATES_TO_PREDICT = 20_000
"""Errors several steps ahead are measured on so many held-out states: enough for two digits, and quick for any data."""

ENOUGH_OF_SEQUENCES = 0.1
"""The fraction of sequences that must reach a horizon for an error to be measured there."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOutErrors:
    """Errors of predictions, as fractions of the variance of what is predicted: the mean of it has an error of 1."""

    horizons: Int[Array, " k"]
    """How many steps ahead."""
    operator: Float[Array, "j k"]
    """Of each of the operators that were compared."""
    copying: Float[Array, " k"]
    """Of taking the state as it was."""
    count: Int[Array, " k"]
    """How many predictions each error is over."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Sums(Additive):
    """Sums over predictions, each with an entry for a horizon."""

    missed: Float[Array, "j k"]
    copied: Float[Array, " k"]
    energy: Float[Array, " k"]
    """Σ|h − mean|²"""
    total: Float[Array, "k d"]
    """Σ(h − mean)"""
    count: Int[Array, " k"]


def held_out_errors(
    states: States,
    fold_of: Int[Array, " s"],
    steps: Sequence[Sequence[Step]],
    *,
    basis: Float[Array, "d r"],
    mean: Float[Array, " d"],
    horizons: Sequence[int],
    driven: bool,
    in_coordinates: bool = False,
) -> HeldOutErrors:
    """Errors ``horizons`` steps ahead, in one reading: ``steps[j][f]`` predicts the sequences of fold ``f``.

    Steps of lower rank than the basis use its first columns and miss what lies outside of these. With
    ``in_coordinates`` errors are those of the coordinates along the basis, and what lies outside of it does not count.
    """
    projection = None
    if in_coordinates:
        projection = Projection(matrix=basis, mean=mean)
        basis, mean = np.eye(basis.shape[1]), np.zeros(basis.shape[1])
    find = partial(
        _errors_in_block,
        fold_of=fold_of,
        steps=steps,
        basis=basis,
        mean=mean,
        horizons=tuple(horizons),
        driven=driven,
    )
    found = accumulate(states, partial(Total, find), inputs=driven, projection=projection, what="predictions")
    used = found.count > 0
    if not used.any():
        raise KannError("no state can be predicted: every sequence has one step only")
    count, energy = found.count[used], found.energy[used]
    variance = energy - np.sum(found.total[used] ** 2, axis=1) / count
    with np.errstate(divide="ignore", invalid="ignore"):  # of states that are all the same there is nothing to explain
        return HeldOutErrors(
            horizons=np.array(horizons)[used],
            operator=found.missed[:, used] / variance,
            copying=found.copied[used] / variance,
            count=count,
        )


def enough_sequences(lengths: Int[Array, " s"], *, seed: int) -> Int[Array, " k"]:
    """Numbers of random sequences with `STATES_TO_PREDICT` states together, or a few more, in increasing order."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(lengths > 1))
    enough = int(np.searchsorted(np.cumsum(lengths[order]), STATES_TO_PREDICT)) + 1
    return np.sort(order[:enough])


def powers_of_two(lengths: Int[Array, " s"], *, largest: int) -> list[int]:
    """1, 2, 4, … up to ``largest``, as far as a tenth of the sequences are long, and two of them where there are two.

    A step further the error would be over the states of one or two sequences, which hardly vary, and could be anything.
    """
    many = min(max(2, math.ceil(len(lengths) * ENOUGH_OF_SEQUENCES)), len(lengths))
    long_enough = int(np.sort(lengths)[-many])
    return [2**i for i in range(largest.bit_length()) if 2**i < long_enough and 2**i <= largest]


def _errors_in_block(
    block: Block,
    *,
    fold_of: Int[Array, " s"],
    steps: Sequence[Sequence[Step]],
    basis: Float[Array, "d r"],
    mean: Float[Array, " d"],
    horizons: tuple[int, ...],
    driven: bool,
) -> _Sums:
    """Sums over the predictions inside a block; those across its ends are left out."""
    d, k = block.values.shape[1], len(horizons)
    sums = _Sums(
        missed=np.zeros((len(steps), k)),
        copied=np.zeros(k),
        energy=np.zeros(k),
        total=np.zeros((k, d)),
        count=np.zeros(k, dtype=int),
    )
    folds = fold_of[block.numbers]
    h = block.values - to_device_of(block.values, mean)
    for fold in np.unique(folds).tolist():
        chosen = folds == fold
        counts = block.lengths[chosen]
        row = np.repeat(block.offsets[chosen] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        (rows,) = indices_for(h, row)
        inputs = None
        if driven and block.inputs is not None:
            inputs = block.inputs[rows]
        left = np.repeat(np.cumsum(counts), counts) - np.arange(counts.sum()) - 1  # steps until the sequence ends
        of_fold = _Sequences(h=h[rows], inputs=inputs, left=left, basis=basis)
        sums = sums + of_fold.errors([each[fold] for each in steps], horizons)
    return sums


class _Sequences:
    """States of whole sequences, or of pieces of them, one below the other."""

    def __init__(
        self, *, h: AnyArray, inputs: AnyArray | None, left: Int[Array, " n"], basis: Float[Array, "d r"]
    ) -> None:
        self.h, self.inputs, self.left = h, inputs, left
        self.z = h @ to_device_of(h, basis)

    @cached_property
    def energy(self) -> AnyArray:
        """|h|² of each state."""
        return row_products(self.h, self.h)

    def errors(self, steps: Sequence[Step], horizons: tuple[int, ...]) -> _Sums:
        """Sums over all predictions of these steps."""
        ahead = [_Ahead(step, self.z, self.inputs) for step in steps]
        parts = [self._errors_at(horizon, ahead) for horizon in horizons]
        return _Sums(
            missed=np.array([part[0] for part in parts]).T.reshape(len(steps), len(horizons)),
            copied=np.array([part[1] for part in parts]),
            energy=np.array([part[2] for part in parts]),
            total=np.array([part[3] for part in parts]),
            count=np.array([part[4] for part in parts]),
        )

    def _errors_at(self, horizon: int, ahead: Sequence["_Ahead"]) -> tuple[list[float], float, float, Array, int]:
        can_start = self.left[:-horizon] >= horizon
        if not can_start.any():
            return [0.0] * len(ahead), 0.0, 0.0, np.zeros(self.h.shape[1]), 0
        weight = to_device_of(self.h, can_start.astype(float))  # 1 for a state that has one so many steps later, else 0
        reached = self.h[horizon:]
        energy = float(weight @ self.energy[horizon:])
        kept = float(weight @ self.energy[:-horizon])
        copied = energy + kept - 2 * float(weight @ row_products(self.h[:-horizon], reached))
        missed = []
        for each in ahead:
            inside = self.z[horizon:, : each.rank]
            gap = each.predict(horizon)[:-horizon] - inside
            outside = energy - float(weight @ row_products(inside, inside))
            missed.append(float(weight @ row_products(gap, gap)) + max(outside, 0.0))
        return missed, max(copied, 0.0), energy, as_numpy(weight @ reached), int(can_start.sum())


class _Ahead:
    """Predicts several steps ahead from every row at once.

    z[t+k] ≈ z[t] Cᵏ + p_k[t], where p_k[t] is what inputs and offset add on the way. Two stretches follow each other
    by p_{a+b}[t] = p_a[t] Cᵇ + p_b[t+a], so that doubling reaches k steps in about log k products.
    """

    def __init__(self, step: Step, z: AnyArray, inputs: AnyArray | None) -> None:
        self.rank = len(step.matrix)
        self._z = z[:, : self.rank]
        self._matrix = step.matrix
        push = to_device_of(z, step.offset[None])
        if inputs is not None and len(step.drive):
            # What is read to reach the next row; the last row leads nowhere.
            read = inputs @ to_device_of(inputs, step.drive) + push
            push = namespace(z).concat([read[1:], read[:1]])
        self._pushes: dict[int, Any] = {1: push}

    def predict(self, horizon: int) -> AnyArray:
        """The coordinates ``horizon`` steps after each row; wrong for rows whose sequence ends before."""
        power = np.linalg.matrix_power(self._matrix, horizon)
        return self._z @ to_device_of(self._z, power) + self._push(horizon)

    def _push(self, horizon: int) -> AnyArray:
        if horizon not in self._pushes:
            second = 2 ** ((horizon - 1).bit_length() - 1)  # the largest power of two below it
            first = horizon - second
            early, late = self._push(first), self._push(second)
            power = to_device_of(early, np.linalg.matrix_power(self._matrix, second))
            if late.shape[0] > 1:
                late = namespace(late).roll(late, -first, axis=0)
            self._pushes[horizon] = early @ power + late
        return self._pushes[horizon]


HORIZONS = (1, 2, 5, 10)
"""A rank is judged by predictions so many steps ahead, as far as sequences are that long: one step ahead copying the
state is hard to beat and every rank looks good, and ten steps ahead little is left of what is quickly forgotten."""


def rank_curve(
    states: States, basis: Basis, *, driven: bool, offset: bool, ridge: float, groups: Any = None, seed: int = 0
) -> RankCurve:
    """Held-out errors of the ranks up to the number of columns of the basis; groups of sequences stay together."""
    fold_of, _ = folds_to_choose(states, groups=groups, what="rank='auto'", remedy="a rank", seed=seed)
    arguments = {"basis": basis.vectors, "mean": basis.mean, "driven": driven}
    designs = designs_of_folds(states, fold_of, **arguments)
    ranks = ranks_to_try(basis.vectors.shape[1])
    steps = [_steps_without(designs, rank, offset=offset, ridge=ridge) for rank in ranks]
    chosen = enough_sequences(states.lengths, seed=seed)
    found = held_out_errors(
        states[chosen],
        fold_of[chosen],
        steps,
        horizons=HORIZONS,
        in_coordinates=basis.decoder is not None,
        **arguments,
    )
    errors = np.where(np.isfinite(found.operator), found.operator, np.inf)
    return RankCurve(ranks=np.array(ranks), horizons=found.horizons, errors=errors, copying=found.copying)


def ranks_to_try(largest: int) -> list[int]:
    """Ranks up to ``largest``, each about a third or half larger than the one before.

    >>> ranks_to_try(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    ranks = {largest}
    for power in range(largest.bit_length()):
        ranks |= {2**power, 3 * 2**power // 2}
    return sorted(rank for rank in ranks if 1 <= rank <= largest)


def _steps_without(designs: Sequence[NormalEquations], rank: int, *, offset: bool, ridge: float) -> list[Step]:
    """The step of this rank without each fold."""
    others = without_each([design.leading(rank) for design in designs])
    return [rest.step(rest.weights(offset=offset, ridge=ridge, rounding=0.0)) for rest in others]
