"""Assign whole sequences to folds; copies and groups are held out together."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, indices_for, is_dask, namespace, segment_sums, to_device_of
from kann.checks import require_sequence, require_whole_number
from kann.data.reduction import (
    Block,
    Cut,
    SumOverBlocks,
    accumulate,
    number_of_all_ranks,
    runs_on_dask,
    summed_over_ranks,
)
from kann.data.states import States
from kann.errors import KannError
from kann.typing import AnyArray, Array, Float, Int

ODD = 0x9E3779B97F4A7C15
"""2⁶⁴ divided by the golden ratio: multiples of it, cut to 64 bits, are spread evenly."""


SKETCH = 32
"""Numbers by which sequences are compared: random sums of their changes from step to step. A sequence needs at least
this many changes of its units."""

LONGEST_SKETCH = 256
"""Steps that are compared, to save time."""

NEAR = 0.1
"""Sequences are near copies if their changes differ by less than this fraction of their variance, …"""

GAP = 3.0
"""… and if up to this multiple there are at most a tenth of the pairs. Sequences of few degrees of freedom, such as
those that relax from random states without noise, come as near by chance, and are at all distances."""

MOST_COMPARED = 10_000
"""Sequences of one length of which near copies are looked for: all pairs of more take too long."""


def repeats_of(states: States) -> Int[Array, " s"]:
    """Return a number for each sequence, the same for those that are copies or near copies of each other.

    Copies are found by a checksum of 64 bits of each sequence, near copies (with noise of up to a fifth of a step's
    changes) by random sums, in one reading of all states; no states are read if all lengths differ.
    Sequences of one state hold no pair that could be fitted, and repeat none.

    >>> repeats_of(States.from_sequences([np.ones((3, 2)), np.zeros((3, 2)), np.ones((3, 2))])).tolist()
    [1, 0, 1]
    """
    lengths = states.lengths
    if len(np.unique(lengths)) == len(lengths):
        return np.arange(len(lengths))
    with summed_over_ranks(False):  # sequences of other ranks are not compared
        checksums, sketches = accumulate(states, partial(SumOverBlocks, partial(_marks, lengths)), what="repeats")
    checksums = np.where(lengths > 1, checksums, np.arange(len(lengths)))
    repeats = np.unique(np.stack([lengths, checksums], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    first = np.unique(repeats, return_index=True)[1]
    nearest = np.arange(len(first))
    for length in np.unique(lengths[first]):
        alike = np.flatnonzero(lengths[first] == length)
        if (length - 1) * states.dim >= SKETCH and 1 < len(alike) <= MOST_COMPARED:
            nearest[alike] = alike[_near_copies(sketches[first[alike]])]
    return nearest[repeats]


def _near_copies(sketches: Float[Array, "s k"]) -> Int[Array, " s"]:
    """Return for each sequence the first of its near copies."""
    from scipy.sparse import coo_array, csgraph  # here, since they take long to import

    sketches = sketches - sketches.mean(axis=0)  # what all sequences have in common says nothing
    energy = np.sum(sketches**2, axis=1)
    total = energy[:, None] + energy
    apart = total - 2 * sketches @ sketches.T
    one, other = np.nonzero(np.triu(apart < NEAR * total, k=1))
    between = np.sum(apart < GAP * NEAR * total) - len(energy) - 2 * len(one)
    if not len(one) or between > 2 * len(one) / 10:
        return np.arange(len(energy))
    graph = coo_array((np.ones(len(one)), (one, other)), shape=apart.shape)
    label = csgraph.connected_components(graph, directed=False)[1]
    return np.unique(label, return_index=True)[1][label]


def row_checksums(rows: Float[AnyArray, "n d"]) -> Int[AnyArray, " n"]:
    """Compute a checksum of 64 bits for each row, the same for equal rows; sums overflow on purpose.

    >>> first, second, third = row_checksums(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> bool(first == third), bool(first == second)
    (True, False)
    """
    bits = rows.view(namespace(rows).int64)
    sums = (bits * to_device_of(bits, _odd_numbers(np.arange(1, rows.shape[1] + 1)))).sum(1)
    return sums ^ (sums >> 32)  # float32 numbers have zeros in the low bits, and so has their sum


def _marks(lengths: Int[Array, " s"], block: Block) -> Any:
    """Compute the parts of each sequence's checksum and sketch from the rows of a block.

    Parts are added; the checksums overflow on purpose.
    """
    rows = row_checksums(block.values)
    steps = np.repeat(block.steps - block.offsets, block.lengths) + np.arange(len(rows))
    sums = segment_sums((rows * to_device_of(rows, _odd_numbers(steps + 1)))[:, None], block.lengths)
    checksums, sketches = np.zeros(len(lengths), dtype=np.int64), np.zeros((len(lengths), SKETCH))
    checksums[block.numbers] = as_numpy(sums)[:, 0]
    rng = np.random.default_rng(0)
    along = rng.normal(size=(block.values.shape[1], SKETCH))
    # Changes h[t+1] − h[t] have random signs, which are weights of both states.
    signs = np.pad(rng.choice([-1.0, 1.0], size=(LONGEST_SKETCH, SKETCH)), ((1, 1), (0, 0)))
    chosen = np.flatnonzero(steps <= LONGEST_SKETCH)
    last = np.repeat(lengths[block.numbers], block.lengths)[chosen] - 1
    weights = signs[steps[chosen]] - np.where((steps[chosen] < last)[:, None], signs[steps[chosen] + 1], 0.0)
    counts = np.clip(LONGEST_SKETCH + 1 - block.steps, 0, block.lengths)
    if len(chosen):
        (rows,) = indices_for(block.values, chosen)
        drawn = (block.values[rows] @ to_device_of(block.values, along)) * to_device_of(block.values, weights)
        sketches[block.numbers[counts > 0]] = as_numpy(segment_sums(drawn, counts[counts > 0]))
    found = np.empty(2, dtype=object)
    found[:] = checksums, sketches
    return found


def _odd_numbers(numbers: Int[Array, " n"]) -> Int[Array, " n"]:
    """Return a large odd number for each: multiplying by an odd number modulo 2⁶⁴ loses no information."""
    return (numbers.astype(np.uint64) * np.uint64(ODD) | np.uint64(1)).view(np.int64)


FEWEST_FOLDS = 3
"""With two folds an interval would rest on a single difference."""

FOLDS_TO_JUDGE, FOLDS_TO_CHOOSE = 10, 5
"""Folds by default where results are judged, and where a rank or a ridge is chosen: the latter fits often."""

FEW_COPIES = 0.25
"""Largest fraction of copies in other groups that is tolerated where groups could not be held out otherwise."""


SHORTEST_BLOCK = 50
"""The fewest states of a block of a sequence that is cut. Blocks depend on their neighbours for as long as the network
remembers."""


def blocks_to_hold_out(states: States) -> States:
    """Return states whose sequences are cut into blocks if there are too few of them to hold whole ones out.

    There is a block for each fold, as far as sequences are long enough. The pairs that a cut separates are not lost:
    `pairs_by_fold` gives them to the block of their second state.

    >>> blocks_to_hold_out(States.from_sequences([np.zeros((1000, 2))])).lengths.tolist()
    [100, 100, 100, 100, 100, 100, 100, 100, 100, 100]
    """
    is_readable = is_dask(states.values) or not runs_on_dask(states)  # parts of stores hold whole sequences
    if np.sum(states.lengths > 1) >= FEWEST_FOLDS or not is_readable:
        return states
    total = int(states.lengths.sum())
    counts = np.minimum(np.ceil(FOLDS_TO_JUDGE * states.lengths / total).astype(int), states.lengths // SHORTEST_BLOCK)
    if counts.sum() < FEWEST_FOLDS:
        return states
    blocks = [
        np.diff(np.linspace(0, n, max(1, k) + 1).astype(int)) for n, k in zip(states.lengths, counts, strict=True)
    ]
    return replace(states, lengths=np.concatenate(blocks))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HoldoutGroups:
    """Which sequences must be held out together, if at all."""

    lengths: Int[Array, " s"]
    """How many states each sequence has."""
    group_of: Int[Array, " s"]
    """Sequences with the same number are held out together."""
    name: str
    """Name of such sequences in errors: "sequences" if each is alone."""

    @staticmethod
    def of(
        lengths: Int[Array, " s"], *, groups: Any = None, repeats: Int[Array, " s"] | None = None
    ) -> "HoldoutGroups":
        """Return those of one group, and those that are repeats of each other, also across groups.

        A few repeats that run through all groups, such as the first token of every text, would join all of them and
        leave no group to hold out. They do not count: groups stay as they are.
        """
        alone = HoldoutGroups(lengths=lengths, group_of=np.arange(len(lengths)), name="sequences")
        if groups is not None:
            numbers = group_numbers(groups, len(lengths))
            alone = HoldoutGroups(lengths=lengths, group_of=numbers, name="groups")
        if repeats is None:
            return alone
        copies = len(repeats) - len(np.unique(repeats))
        if not copies:
            return alone
        joined = HoldoutGroups(
            lengths=lengths, group_of=_joined(alone.group_of, repeats), name=f"different {alone.name}"
        )
        few_copies = groups is not None and copies <= FEW_COPIES * len(repeats)
        return alone if few_copies and joined.available < FEWEST_FOLDS <= alone.available else joined

    @property
    def pairs(self) -> Int[Array, " g"]:
        """How many pairs of states each group has."""
        return np.bincount(self.group_of, weights=self.lengths - 1).astype(int)

    @property
    def available(self) -> int:
        """How many groups have pairs of states, and so the most folds that can be made."""
        return int(np.sum(self.pairs > 0))

    def balanced(self, folds: int, *, seed: int) -> Int[Array, " s"]:
        """Return the fold of each sequence, at random: folds have about the same number of pairs of states.

        Groups are assigned from the largest on, each to the fold that has fewest pairs so far.
        """
        pairs = self.pairs
        shuffled = np.random.default_rng(seed).permutation(len(pairs))
        filled, fold_of = [(0, fold) for fold in range(folds)], np.empty(len(pairs), dtype=int)
        for group in shuffled[np.argsort(-pairs[shuffled], kind="stable")].tolist():
            held, fold_of[group] = heapq.heappop(filled)
            heapq.heappush(filled, (held + int(pairs[group]), int(fold_of[group])))
        return fold_of[self.group_of]


def assign_folds(
    lengths: Int[Array, " s"],
    *,
    folds: int | None = None,
    groups: Any = None,
    repeats: Int[Array, " s"] | None = None,
    seed: int = 0,
    most: int = FOLDS_TO_JUDGE,
) -> Int[Array, " s"]:
    """Choose at random the fold in which each sequence is held out; folds have about the same number of pairs.

    Sequences with the same entry in ``groups``, such as those of one patient, or in ``repeats``, which are copies of
    each other, are held out together. Where copies leave fewer than ``folds`` different sequences or groups, or
    ``folds`` is None, there is a fold for each of them, but at most ``most``. Sequences of one state, which
    hold no pair, belong to some fold too.
    """
    seed = require_whole_number(seed, "seed", least=0, too_small="is negative")
    sequences = HoldoutGroups.of(lengths, groups=groups, repeats=repeats)
    if folds is None:
        folds = max(FEWEST_FOLDS, min(most, sequences.available))
    folds = require_whole_number(folds, "folds", least=FEWEST_FOLDS, too_small="gives no interval")
    if HoldoutGroups.of(lengths, groups=groups).available >= folds:
        folds = max(FEWEST_FOLDS, min(folds, sequences.available))
    if sequences.available < folds:
        enough = sequences.available >= FEWEST_FOLDS
        least = f"{FEWEST_FOLDS} folds are the least: record more sequences"
        raise KannError(
            f"{sequences.available} {sequences.name} of two states or more cannot be held out in {folds} folds; "
            f"{f'pass folds<={sequences.available}' if enough else least}"
        )
    return sequences.balanced(folds, seed=seed)


def folds_to_choose(
    states: States, *, groups: Any, what: str, remedy: str, all_ranks: bool = False
) -> tuple[Int[Array, " s"], int]:
    """Return the fold of each sequence, and the number of folds, to choose a rank or a ridge; raise if data are few."""
    sequences = HoldoutGroups.of(states.lengths, groups=groups, repeats=repeats_of(states))
    available = number_of_all_ranks(sequences.available) if all_ranks else sequences.available
    if available < FEWEST_FOLDS:
        raise KannError(
            f"{what} is chosen on held-out {sequences.name}, and {available} of two states or more are too few; pass "
            f"{remedy}, or more sequences"
        )
    count = min(FOLDS_TO_CHOOSE, available)
    return sequences.balanced(count, seed=0), count


def _joined(group_of: Int[Array, " s"], repeats: Int[Array, " s"]) -> Int[Array, " s"]:
    """Return groups that are joined wherever a sequence of one is a repeat of a sequence of another."""
    from scipy import sparse  # here, since it takes long to import

    # Groups and repeats are the nodes of a graph, in which each sequence is an edge.
    ends = group_of, repeats + group_of.max() + 1
    count = int(ends[1].max()) + 1
    graph = sparse.coo_array((np.ones(len(repeats)), ends), shape=(count, count))
    return sparse.csgraph.connected_components(graph, directed=False)[1][group_of].astype(int)


def group_numbers(groups: Any, count: int) -> Int[Array, " s"]:
    """Return the groups as numbers from 0 on."""
    require_sequence(groups, "groups")
    if len(groups) != count:
        raise KannError(f"groups has {len(groups)} entries for {count} sequences; pass one for each sequence")
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in _plain(groups)])


def _plain(groups: Any) -> list[Any]:
    """Return the entries of a list or of an array as Python's own numbers and texts, which can be compared."""
    entries = list(getattr(groups, "tolist", lambda: groups)())
    # Arrays and tensors of one number would be compared by their addresses in memory.
    plain = [getattr(entry, "item", lambda entry=entry: entry)() for entry in entries]
    if any(entry is None or entry != entry for entry in plain):
        raise KannError("groups holds None or NaN, which is no group; name one for each sequence")
    try:
        hash(tuple(plain))
    except TypeError as error:
        raise KannError("groups holds entries that cannot be compared; pass numbers or names") from error
    return plain


def pairs_by_fold(
    part: Block | Cut, fold_of: Int[Array, " s"], lengths: Int[Array, " s"]
) -> Iterator[tuple[int, Int[Array, " m"], AnyArray, Any, AnyArray]]:
    """Return the pairs of a block or a cut by fold: its number, the sequence of each pair, x, what was read, and y.

    Sequences are those of these lengths, one after the other; they may be blocks of the states' (`blocks_to_hold_out`).
    """
    ends = np.cumsum(lengths)
    if isinstance(part, Block):
        begin = part.starts + part.steps
        numbers, last = (np.searchsorted(ends, rows, side="right") for rows in (begin, begin + part.lengths - 1))
        if np.array_equal(numbers, last):
            numbers = np.repeat(numbers, part.lengths - 1)
        else:
            numbers = np.searchsorted(ends, part.rows[part.before + 1], side="right")
        x, y, rows = part.values, part.values, (part.before, part.before + 1)
    else:
        numbers, x, y = np.searchsorted(ends, part.rows, side="right"), part.before, part.after
        rows = np.arange(len(numbers)), np.arange(len(numbers))
    folds = fold_of[numbers]
    for fold in np.unique(folds).tolist():
        first, last = indices_for(x, *(each[folds == fold] for each in rows))
        yield fold, numbers[folds == fold], x[first], None if part.inputs is None else part.inputs[last], y[last]
