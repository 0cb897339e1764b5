"""The regression of one step as sums that add up, so that any part of the data can be left out.

A pair of states in the basis is a row (z, u, 1) of the design A and a row z₊ of the target Y. The Gram matrices AᵀA,
AᵀY and YᵀY of a few folds of sequences are enough to fit without each fold and to measure the error on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from kann.backends.arrays import as_numpy, indices_for, namespace, segment_sums, to_device_of
from kann.data.blocks import Block, Cut
from kann.data.moments import Moments, refuse_not_finite
from kann.data.reduction import accumulate
from kann.data.rows import Projection
from kann.data.states import States
from kann.fitting.regression import ColumnEnergies, noise_floor, residual_gram, solve
from kann.typing import AnyArray, Array, Float, Int

SILENT_BELOW = 1e-4
"""Fraction of an input's energy. If the sequences that are fitted hold less of it, its weight would be extrapolated a
hundredfold to those that are held out: a few faint clicks in a recording made errors of 300 %."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Step:
    """z[t+1] ≈ z[t] C + u[t+1] D + c."""

    matrix: Float[Array, "r r"]
    """C"""
    drive: Float[Array, "p r"]
    """D, without rows if the step is autonomous."""
    offset: Float[Array, " r"]
    """c, zero if there is none."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Design:
    """Gram matrices of the rows (z, u, 1) of a design A and of the next coordinates Y. They add up over pairs."""

    gram: Float[Array, "q q"]
    """AᵀA; the last column of A is constant, the first r are the coordinates z."""
    target: Float[Array, "q r"]
    """AᵀY"""
    total: Float[Array, "r r"]
    """YᵀY"""
    shuffled: Float[Array, "q r"] | None = None
    """AᵀY in the mean over all ways to shuffle Y within each sequence; None if sequences are not known."""

    @property
    def pairs(self) -> int:
        """How many pairs of states these are."""
        return round(float(self.gram[-1, -1]))

    @property
    def rank(self) -> int:
        """The number of coordinates r."""
        return len(self.total)

    def __add__(self, other: "Design") -> "Design":
        shuffled = None
        if self.shuffled is not None and other.shuffled is not None:
            shuffled = self.shuffled + other.shuffled
        return Design(
            gram=self.gram + other.gram,
            target=self.target + other.target,
            total=self.total + other.total,
            shuffled=shuffled,
        )

    @staticmethod
    def of_moments(moments: Moments, *, basis: Float[Array, "d r"], mean: Float[Array, " d"], driven: bool) -> "Design":
        """The design of coordinates (h − mean) @ basis, from moments of the states h."""
        inside = moments.in_basis(basis)
        x, y, n = inside.sum_x[:, None], inside.sum_y[:, None], np.array([[float(inside.pairs)]])
        if driven:
            u = inside.sum_u[:, None]
            gram = np.block([[inside.xx, inside.xu, x], [inside.xu.T, inside.uu, u], [x.T, u.T, n]])
            target = np.vstack([inside.xy, inside.uy, y.T])
        else:
            gram = np.block([[inside.xx, x], [x.T, n]])
            target = np.vstack([inside.xy, y.T])
        return Design(gram=gram, target=target, total=inside.yy)._shifted(mean @ basis)

    def in_basis(self, basis: Float[Array, "d r"], *, mean: Float[Array, " d"]) -> "Design":
        """The design of coordinates (h − mean) @ basis, from one of states h without inputs."""
        wide = scipy.linalg.block_diag(basis, [[1.0]])
        inside = Design(
            gram=wide.T @ self.gram @ wide, target=wide.T @ self.target @ basis, total=basis.T @ self.total @ basis
        )
        return inside._shifted(mean @ basis)

    def _shifted(self, shift: Float[Array, " r"]) -> "Design":
        """The same for coordinates z − shift."""
        change = np.eye(len(self.gram))
        change[-1, : self.rank] = -shift
        gram, sum_y = change.T @ self.gram @ change, self.target[-1]
        target = change.T @ (self.target - np.outer(self.gram[:, -1], shift))
        crossed = np.outer(sum_y, shift)
        total = self.total - crossed - crossed.T + self.gram[-1, -1] * np.outer(shift, shift)
        return Design(gram=gram, target=target, total=total)

    def leading(self, rank: int) -> "Design":
        """The same for the first ``rank`` coordinates alone."""
        kept = np.r_[:rank, self.rank : len(self.gram)]
        return Design(
            gram=self.gram[np.ix_(kept, kept)], target=self.target[kept, :rank], total=self.total[:rank, :rank]
        )

    def as_shuffled(self) -> "Design":
        """The design of states whose order within each sequence, or among all if these are not known, tells nothing."""
        shuffled = self.shuffled
        if shuffled is None:
            shuffled = np.outer(self.gram[:, -1], self.target[-1]) / self.gram[-1, -1]
        return replace(self, target=shuffled, shuffled=None)

    def weights(self, *, offset: bool, ridge: float, rounding: float) -> Float[Array, "q r"]:
        """Least-squares weights of A W = Y: C, D and c one below the other; c is zero unless there is an ``offset``.

        The ridge does not hold the offset down, as in `kann.fitting.regression`.
        """
        mean = np.zeros(len(self.gram))
        if offset:
            mean = self.gram[-1] / self.gram[-1, -1]
        about = self.gram - np.outer(self.gram[-1], mean)
        target = self.target - np.outer(mean, self.target[-1])
        gram, squares = about[:-1, :-1], np.diag(self.gram)[:-1]
        energies = ColumnEnergies(multiplied=squares, constant_below=np.finfo(float).eps * squares)
        floor = noise_floor(len(gram), rounding)
        found = solve(gram, target[:-1], squares=squares, energies=energies, ridge=ridge, floor=floor).weights
        constant = np.zeros(self.rank)
        if offset:
            constant = self.target[-1] / self.gram[-1, -1] - mean[:-1] @ found
        return np.vstack([found, constant])

    def weights_without_state(self, *, ridge: float) -> Float[Array, "q r"]:
        """Weights with an offset that predict the next coordinates from inputs alone: those of C are zero."""
        r = self.rank
        inputs = Design(gram=self.gram[r:, r:], target=self.target[r:], total=self.total)
        return np.vstack([np.zeros((r, r)), inputs.weights(offset=True, ridge=ridge, rounding=0.0)])

    def step(self, weights: Float[Array, "q r"]) -> Step:
        """The weights by name."""
        r = self.rank
        return Step(matrix=weights[:r], drive=weights[r:-1], offset=weights[-1])

    def residual_gram(self, weights: Float[Array, "q r"]) -> Float[Array, "r r"]:
        """The Gram matrix of what the weights miss, (Y − A W)ᵀ(Y − A W)."""
        return residual_gram(self.gram, self.target, self.total, weights)

    def missed(self, weights: Float[Array, "q r"]) -> float:
        """What the weights miss in all, Σ|Y − A W|²: one matrix product, where the Gram matrix takes three."""
        found = np.trace(self.total) + np.sum(weights * (self.gram @ weights - 2 * self.target))
        return max(0.0, float(found))

    def change_gram(self) -> Float[Array, "r r"]:
        """The Gram matrix of what copying the previous state misses, (Y − X)ᵀ(Y − X)."""
        cross = self.target[: self.rank]
        return self.total - cross - cross.T + self.gram[: self.rank, : self.rank]

    def state_gram(self, about: Float[Array, " r"]) -> Float[Array, "r r"]:
        """The Gram matrix of the coordinates about a point, (X − about)ᵀ(X − about)."""
        r = self.rank
        crossed = np.outer(self.gram[-1, :r], about)
        return self.gram[:r, :r] - crossed - crossed.T + self.gram[-1, -1] * np.outer(about, about)


def designs_of_folds(
    states: States,
    fold_of: Int[Array, " s"],
    *,
    basis: Float[Array, "d r"],
    mean: Float[Array, " d"],
    driven: bool,
) -> tuple[Design, ...]:
    """The design of each fold, in one reading of the states."""
    make = partial(_FoldProducts, fold_of=fold_of, lengths=states.lengths)
    projection = Projection(matrix=basis, mean=mean)
    found = accumulate(states, make, inputs=driven, projection=projection, what="folds")
    designs = found.finished()
    if not all(np.isfinite(design.gram).all() for design in designs):
        refuse_not_finite(states, inputs=driven)
    return designs


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _FoldSums:
    """Designs of folds without those sequences that were cut, and the sums over the pieces of these."""

    designs: dict[int, Design]
    pieces: dict[int, tuple[int, Float[Array, " q"], Float[Array, " r"]]]
    """Of each cut sequence, by number: its fold, and the sums of its rows of A and of Y."""

    def __add__(self, other: "_FoldSums") -> "_FoldSums":
        designs, pieces = dict(self.designs), dict(self.pieces)
        for fold, design in other.designs.items():
            if fold in designs:
                design = designs[fold] + design
            designs[fold] = design
        for number, (fold, rows, target) in other.pieces.items():
            if number in pieces:
                rows, target = pieces[number][1] + rows, pieces[number][2] + target
            pieces[number] = (fold, rows, target)
        return _FoldSums(designs=designs, pieces=pieces)

    def finished(self) -> tuple[Design, ...]:
        """The designs by fold, with the sequences that were cut."""
        designs = dict(self.designs)
        for fold, rows, target in self.pieces.values():
            shuffled: Any = designs[fold].shuffled
            designs[fold] = replace(designs[fold], shuffled=shuffled + np.outer(rows, target) / rows[-1])
        return tuple(designs[fold] for fold in sorted(designs))


class _FoldProducts:
    """Accumulates the designs of folds, from coordinates of the states."""

    needs_pairs = True

    def __init__(self, *, fold_of: Int[Array, " s"], lengths: Int[Array, " s"]) -> None:
        self._fold_of, self._lengths = fold_of, lengths
        self._found = _FoldSums(designs={}, pieces={})

    def add(self, block: Block) -> None:
        """Add the pairs inside a block."""
        has_pairs = block.lengths > 1
        for fold in np.unique(self._fold_of[block.numbers[has_pairs]]).tolist():
            chosen = has_pairs & (self._fold_of[block.numbers] == fold)
            self._add_fold(fold, block, chosen)

    def _add_fold(self, fold: int, block: Block, chosen: Array) -> None:
        """Add the sequences ``chosen`` of a block, all of one fold."""
        counts, numbers = block.lengths[chosen] - 1, block.numbers[chosen]
        row = np.repeat(block.offsets[chosen] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        before, after = indices_for(block.values, row, row + 1)
        inputs = None
        if block.inputs is not None:
            inputs = block.inputs[after]
        rows, target = _design_rows(block.values[before], inputs), block.values[after]
        row_sums, target_sums = as_numpy(segment_sums(rows, counts)), as_numpy(segment_sums(target, counts))
        is_whole = counts + 1 == self._lengths[numbers]
        weighted = row_sums[is_whole] / counts[is_whole, None]
        design = _design(rows, target, shuffled=weighted.T @ target_sums[is_whole])
        pieces = {int(numbers[i]): (fold, row_sums[i], target_sums[i]) for i in np.flatnonzero(~is_whole)}
        self._found = self._found + _FoldSums(designs={fold: design}, pieces=pieces)

    def add_cut(self, cut: Cut) -> None:
        """Add pairs that the end of a block separates."""
        numbers = np.searchsorted(np.cumsum(self._lengths), cut.rows, side="right")
        rows, target = _design_rows(cut.before, cut.inputs), cut.after
        for i, number in enumerate(numbers.tolist()):
            one = slice(i, i + 1)
            fold = int(self._fold_of[number])
            nothing = np.zeros((rows.shape[1], target.shape[1]))
            design = _design(rows[one], target[one], shuffled=nothing)
            pieces = {number: (fold, as_numpy(rows[i]), as_numpy(target[i]))}
            self._found = self._found + _FoldSums(designs={fold: design}, pieces=pieces)

    def result(self) -> _FoldSums:
        """The sums."""
        return self._found


def _design_rows(z: AnyArray, inputs: AnyArray | None) -> AnyArray:
    """Rows (z, u, 1) of a design."""
    xp = namespace(z)
    ones = xp.ones((z.shape[0], 1), dtype=z.dtype, device=z.device)
    columns = [z, ones]
    if inputs is not None:
        columns = [z, to_device_of(z, inputs), ones]
    return xp.concat(columns, axis=1)


def _design(rows: AnyArray, target: AnyArray, *, shuffled: Float[Array, "q r"]) -> Design:
    gram, cross, total = (as_numpy(product) for product in (rows.T @ rows, rows.T @ target, target.T @ target))
    return Design(gram=gram, target=cross, total=total, shuffled=shuffled)


def sum_of(designs: Sequence[Design]) -> Design:
    """All of the designs together."""
    total = designs[0]
    for design in designs[1:]:
        total = total + design
    return total


def without_each(designs: Sequence[Design]) -> list[Design]:
    """For each of two or more designs all the others together, without inputs that are all but silent in these.

    The others are added up, since subtraction would leave rounding where an input is silent.
    """
    before, after = [designs[0]], [designs[-1]]
    for first, last in zip(designs[1:-1], designs[-2:0:-1], strict=True):
        before.append(before[-1] + first)
        after.append(after[-1] + last)
    middle = [low + high for low, high in zip(before[:-1], after[-2::-1], strict=True)]
    others = [after[-1], *middle, before[-1]]
    energy = np.diag(others[0].gram) + np.diag(designs[0].gram)
    return [_without_silent(rest, least=SILENT_BELOW * energy) for rest in others]


def _without_silent(design: Design, *, least: Float[Array, " q"]) -> Design:
    """The design with zero in place of the columns whose energy is less."""
    is_silent = np.diag(design.gram) < least
    if not is_silent.any():
        return design
    gram, target = design.gram.copy(), design.target.copy()
    gram[is_silent], gram[:, is_silent], target[is_silent] = 0.0, 0.0, 0.0
    return replace(design, gram=gram, target=target)
