"""Held-out errors several steps ahead, and the rank that minimises them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, indices_for, namespace, row_products, to_device_of
from kann.data.reduction import Additive, Block, Projection, SumOverBlocks, accumulate
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.basis import Basis, RankCurve
from kann.fitting.folds import blocks_to_hold_out, folds_to_choose
from kann.fitting.normal_equations import designs_of_folds, without_each
from kann.fitting.passes import Request
from kann.typing import AnyArray, Array, Float, Int

STATES_TO_PREDICT = 20_000
"""Number of held-out states on which errors several steps ahead are measured: enough for two digits."""

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
    weights: Sequence[Sequence[Float[Array, "_ _"]]],
    *,
    basis: Float[Array, "d r"],
    mean: Float[Array, " d"],
    horizons: Sequence[int],
    driven: bool,
    in_coordinates: bool = False,
) -> HeldOutErrors:
    """Compute errors ``horizons`` steps ahead, in one reading: ``weights[j][f]`` predict the sequences of fold ``f``.

    Weights are C, D and c stacked. Those of lower rank than the basis use its first columns and miss what lies outside
    of these. With ``in_coordinates`` errors are those of the coordinates: what is outside of the basis does not count.
    """
    projection = None
    if in_coordinates:
        projection = Projection(matrix=basis, mean=mean)
        basis, mean = np.eye(basis.shape[1]), np.zeros(basis.shape[1])
    fits, k = [[_Fit(own) for own in each] for each in weights], len(horizons)

    def of_block(block: Block) -> _Sums:
        """Sum over the predictions inside a block; those across its ends are left out."""
        folds = np.repeat(fold_of[block.numbers], block.lengths)
        left = np.repeat(block.offsets + block.lengths, block.lengths) - np.arange(len(folds)) - 1  # steps to the end
        h = block.values - to_device_of(block.values, mean)
        missed, (copied, energy), total = np.zeros((len(fits), k)), np.zeros((2, k)), np.zeros((k, h.shape[1]))
        count = np.zeros(k, dtype=int)
        for fold in np.unique(folds).tolist():
            chosen = np.flatnonzero(folds == fold)
            (rows,) = indices_for(h, chosen)
            x = h[rows]
            z, energy_of = x @ to_device_of(h, basis), row_products(x, x)
            ahead = [_Ahead(each[fold], z, None if block.inputs is None else block.inputs[rows]) for each in fits]
            for i, horizon in enumerate(horizons):
                can_start = left[chosen][:-horizon] >= horizon
                if not can_start.any():
                    continue
                count[i] += can_start.sum()
                weight, reached = to_device_of(h, can_start.astype(float)), x[horizon:]  # 1 for one with a state ahead
                ahead_energy, crossed = float(weight @ energy_of[horizon:]), row_products(x[:-horizon], reached)
                # |y − x|² and what lies outside of the basis are made of energies, without d-dimensional predictions.
                energy[i] += ahead_energy
                total[i] += as_numpy(weight @ reached)
                copied[i] += max(ahead_energy + float(weight @ energy_of[:-horizon]) - 2 * float(weight @ crossed), 0.0)
                for j, each in enumerate(ahead):
                    inside = z[horizon:, : each.rank]
                    gap = each.predict(horizon)[:-horizon] - inside
                    outside = max(ahead_energy - float(weight @ row_products(inside, inside)), 0.0)
                    missed[j, i] += float(weight @ row_products(gap, gap)) + outside
        return _Sums(missed=missed, copied=copied, energy=energy, total=total, count=count)

    make = partial(SumOverBlocks, of_block)
    found = accumulate(states, make, inputs=driven, projection=projection, what="predictions")
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
    """Choose random sequences with about `STATES_TO_PREDICT` states together, in increasing order."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(lengths > 1))
    enough = int(np.searchsorted(np.cumsum(lengths[order]), STATES_TO_PREDICT)) + 1
    return np.sort(order[:enough])


def powers_of_two(lengths: Int[Array, " s"], *, largest: int) -> list[int]:
    """Return 1, 2, 4, … up to ``largest``, as far as a tenth of the sequences, and at least two, are long.

    A step further the error would be over the states of one or two sequences, which hardly vary, and could be anything.
    """
    many = min(max(2, math.ceil(len(lengths) * ENOUGH_OF_SEQUENCES)), len(lengths))
    long_enough = int(np.sort(lengths)[-many])
    return [2**i for i in range(largest.bit_length()) if 2**i < long_enough and 2**i <= largest]


class _Fit:
    """An operator that predicts, with powers of its matrix that serve all blocks."""

    def __init__(self, weights: Float[Array, "q r"]) -> None:
        self.rank = weights.shape[1]
        self.drive, self.constant = weights[self.rank : -1], weights[-1:]
        self._powers = {1: weights[: self.rank]}

    def power(self, steps: int) -> Float[Array, "r r"]:
        """Compute Cᵏ from the powers that are known: with hundreds of units, powers take longer than predictions."""
        if steps not in self._powers:
            second = 2 ** ((steps - 1).bit_length() - 1)  # the largest power of two below it
            self._powers[steps] = self.power(steps - second) @ self.power(second)
        return self._powers[steps]


class _Ahead:
    """Predicts several steps ahead from every row at once.

    z[t+k] ≈ z[t] Cᵏ + p_k[t], where p_k[t] is what inputs and offset add on the way. Two stretches follow each other
    by p_{a+b}[t] = p_a[t] Cᵇ + p_b[t+a], so that doubling reaches k steps in about log k products.
    """

    def __init__(self, fit: "_Fit", z: AnyArray, inputs: AnyArray | None) -> None:
        self.rank, drive = fit.rank, fit.drive
        self._fit, self._z, push = fit, z[:, : self.rank], to_device_of(z, fit.constant)
        if inputs is not None and len(drive):
            # What is read to reach the next row; the last row leads nowhere.
            read = inputs @ to_device_of(inputs, drive) + push
            push = namespace(z).concat([read[1:], read[:1]])
        self._pushes: dict[int, Any] = {1: push}

    def predict(self, horizon: int) -> AnyArray:
        """Return the coordinates ``horizon`` steps after each row; wrong for rows whose sequence ends before."""
        return self._z @ to_device_of(self._z, self._fit.power(horizon)) + self._push(horizon)

    def _push(self, horizon: int) -> AnyArray:
        if horizon not in self._pushes:
            second = 2 ** ((horizon - 1).bit_length() - 1)  # the largest power of two below it
            first = horizon - second
            early, late = self._push(first), self._push(second)
            power = to_device_of(early, self._fit.power(second))
            if late.shape[0] > 1:
                late = namespace(late).roll(late, -first, axis=0)
            self._pushes[horizon] = early @ power + late
        return self._pushes[horizon]


HORIZONS = (1, 2, 5, 10)
"""Numbers of steps ahead by which a rank is judged, as far as sequences are that long: one step ahead copying the
state is hard to beat and every rank looks good, and ten steps ahead little is left of what is quickly forgotten."""


def rank_curve(states: States, basis: Basis, request: Request, *, groups: Any = None) -> RankCurve:
    """Compute held-out errors of the ranks up to the number of columns of the basis; groups stay together."""
    blocks = states if groups is not None else blocks_to_hold_out(states)
    fold_of, _ = folds_to_choose(blocks, groups=groups, what="rank='auto'", remedy="a rank")
    arguments = {"basis": basis.vectors, "mean": basis.mean, "driven": request.driven}
    designs = designs_of_folds(states, fold_of, lengths=blocks.lengths, **arguments)
    ranks = ranks_to_try(basis.vectors.shape[1])
    weights = [
        [
            rest.weights(offset=request.offset, ridge=request.ridge, rounding=0.0)
            for rest in without_each([design.leading(rank) for design in designs])
        ]
        for rank in ranks
    ]
    chosen = enough_sequences(blocks.lengths, seed=0)
    found = held_out_errors(
        blocks[chosen],
        fold_of[chosen],
        weights,
        horizons=HORIZONS,
        in_coordinates=basis.decoder is not None,
        **arguments,
    )
    errors = np.where(np.isfinite(found.operator), found.operator, np.inf)
    return RankCurve(ranks=np.array(ranks), horizons=found.horizons, errors=errors, copying=found.copying)


def ranks_to_try(largest: int) -> list[int]:
    """Return ranks up to ``largest``, each about a third or half larger than the one before.

    >>> ranks_to_try(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    ranks = {largest}
    for power in range(largest.bit_length()):
        ranks |= {2**power, 3 * 2**power // 2}
    return sorted(rank for rank in ranks if 1 <= rank <= largest)
