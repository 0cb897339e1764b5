"""Moments of several groups of sequences in one recording, so that each group can be held out later."""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kann.backends.arrays import block_rows, indices_for
from kann.checks import require_sequence, require_whole_number
from kann.data.moments import Moments
from kann.errors import KannError
from kann.recording.ragged import SequenceRows, joined, starts_of
from kann.recording.sinks import MomentsSink, Sink
from kann.typing import Array, Int


class Deal:
    """Deals sequences out to a number of groups as they come, each to the group that holds fewest pairs so far."""

    def __init__(self, groups: int):
        self._count = groups
        self._held = [(0, group) for group in range(groups)]

    def groups_of(self, pairs: Int[Array, " s"]) -> list[int]:
        """The group of each of the next sequences, which hold so many pairs of states."""
        found = []
        for count in pairs.tolist():
            held, group = heapq.heappop(self._held)
            heapq.heappush(self._held, (held + count, group))
            found.append(group)
        return found

    def require_all_used(self) -> None:
        """Any number of sequences can be dealt out."""

    def __len__(self) -> int:
        return self._count


class Labels:
    """Takes the groups of sequences from a label for each of them; groups are in the order in which they appear."""

    def __init__(self, labels: Sequence[Any], *, may_be_more: bool):
        self._numbers: dict[Any, int] = {}
        self._groups = [self._numbers.setdefault(label, len(self._numbers)) for label in labels]
        self._used, self._may_be_more = 0, may_be_more

    def groups_of(self, pairs: Int[Array, " s"]) -> list[int]:
        """The group of each of the next sequences."""
        found = self._groups[self._used : self._used + len(pairs)]
        self._used += len(pairs)
        if len(found) < len(pairs):
            raise KannError(
                f"groups has {len(self._groups)} labels and the data hold more sequences; pass one for each sequence"
            )
        return found

    def require_all_used(self) -> None:
        """Refuse labels of sequences that did not come, which would mean that they belong to other data."""
        if self._used < len(self._groups) and not self._may_be_more:
            raise KannError(
                f"groups has {len(self._groups)} labels for {self._used} sequences; pass one for each sequence"
            )

    def __len__(self) -> int:
        return len(self._numbers)


def parse_groups(groups: Any, *, max_sequences: int | None) -> Deal | Labels:
    """Read a number of groups, or a label for each sequence; with ``max_sequences`` later labels are left unused."""
    if isinstance(groups, str):
        raise KannError(f"groups={groups!r} is a text; pass a number of groups, or a label for each sequence")
    if getattr(groups, "ndim", None) == 0 or not hasattr(groups, "__len__"):
        return Deal(require_whole_number(groups, "groups", least=1, too_small="leaves nowhere to put sequences"))
    require_sequence(groups, "groups")
    labels = list(getattr(groups, "tolist", lambda: groups)())
    try:
        return Labels(labels, may_be_more=max_sequences is not None)
    except TypeError as error:
        raise KannError("groups holds labels that cannot be compared; pass numbers or names") from error


class GroupedMomentsSink(Sink):
    """Adds the rows of whole sequences to the moments of their group, on the device where they are."""

    def __init__(self, name: str, groups: Deal | Labels):
        super().__init__(name)
        self._groups = groups
        self._sinks = [_GroupSink(name) for _ in range(len(groups))]
        self._waiting: list[SequenceRows] = []
        self._waiting_steps = 0

    def add(self, rows: SequenceRows) -> None:
        """Take the rows of a batch; they wait until there are enough, so that each group has a product worth making."""
        steps, width = rows.padded_values.shape
        if self._waiting and self._waiting_steps + steps > block_rows(rows.padded_values, width):
            self._share_out()
        self._waiting.append(rows.with_origins(self._sequences))
        self._sequences += len(np.unique(rows.sequence_numbers))
        self._waiting_steps += steps

    def _share_out(self) -> None:
        """Hand the rows that wait to the sinks of their groups, and have them measured."""
        parts, self._waiting, self._waiting_steps = self._waiting, [], 0
        rows = joined(parts)
        _, sequence_of = np.unique(rows.sequence_numbers, return_inverse=True)
        pairs = np.bincount(sequence_of, weights=rows.lengths - 1).astype(int)
        group_of = np.array(self._groups.groups_of(pairs))[sequence_of]
        for group in np.unique(group_of).tolist():
            self._sinks[group].add_group(chosen_sequences(rows, group_of == group))

    def result(self) -> list[Moments]:
        """The moments of each group; empty ones if there are fewer sequences than groups."""
        if self._waiting:
            self._share_out()
        self._groups.require_all_used()
        return [sink.result() for sink in self._sinks]


class _GroupSink(MomentsSink):
    """Adds rows of one group, and knows the numbers of its sequences among all."""

    def __init__(self, name: str):
        super().__init__(name)
        self._numbers: list[int] = []

    def add_group(self, rows: SequenceRows) -> None:
        """Measure rows at once: they have waited already."""
        self._numbers += rows.sequence_numbers.tolist()
        self.add(rows)
        self._measure_waiting()

    def _numbers_of(self, count: int) -> Int[Array, " s"]:
        return np.array(self._numbers[self._sequences : self._sequences + count])


def chosen_sequences(rows: SequenceRows, chosen: Array) -> SequenceRows:
    """The rows of some of the sequences, copied."""
    firsts, lengths = rows.firsts, rows.lengths[chosen]
    if firsts is None:
        firsts = starts_of(rows.lengths)
    places = np.repeat(firsts[chosen] - starts_of(lengths), lengths) + np.arange(lengths.sum())
    (places,) = indices_for(rows.padded_values, places)
    inputs = rows.padded_inputs
    if inputs is not None:
        inputs = inputs[places]
    return replace(
        rows,
        padded_values=rows.padded_values[places],
        padded_inputs=inputs,
        lengths=lengths,
        firsts=None,
        origins=rows.sequence_numbers[chosen],
    )
