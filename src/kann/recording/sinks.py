"""Moments of several groups of sequences in one recording, so that each group can be held out later."""

import contextlib
import hashlib
import heapq
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kann.backends.arrays import block_rows, indices_for
from kann.checks import require_sequence, require_whole_number, short_repr
from kann.data.moments import Moments, measure, require_finite_squares
from kann.data.reduction import Block, find_not_finite
from kann.data.states import States
from kann.data.store import Writer, recording_to, require_store_name
from kann.errors import KannError
from kann.recording.tracer import SequenceRows, joined, starts_of
from kann.typing import AnyArray, Array, Int

LONGEST_FILE_NAME = 100
"""Characters of a layer's name that its store is named after; the store's own endings must fit behind them."""


class Sink(ABC):
    """Takes the rows of one layer, batch after batch."""

    def __init__(self, name: str):
        self._name, self._sequences = name, 0

    @abstractmethod
    def add(self, rows: SequenceRows) -> None:
        """Take the rows of a batch."""

    @abstractmethod
    def result(self) -> States | Moments | list[Moments]:
        """All that was taken."""

    def _numbers_of(self, count: int) -> Int[Array, " s"]:
        """The numbers, among all that were recorded, of the sequences that are taken next."""
        return self._sequences + np.arange(count)

    def _require_finite(self, rows: SequenceRows) -> None:
        """Raise for NaN and Inf, and say where the first one is, counted over all batches."""
        tensors = (rows.values,) if rows.inputs is None else (rows.values, rows.inputs)
        # A finite sum has finite terms only; where the sum overflows, each term is looked at below.
        if all(math.isfinite(tensor.detach().sum()) for tensor in tensors):
            return
        numbers = self._numbers_of(len(rows.lengths))
        block = Block(
            values=rows.values,
            inputs=rows.inputs,
            lengths=rows.lengths,
            numbers=numbers,
            starts=starts_of(rows.lengths),
            steps=np.zeros_like(numbers),
        )
        found = find_not_finite(block, first_inputs=True)
        if found is not None:
            raise found.error(of=f" of layer {self._name!r}")


SinkMaker = Callable[[str], Sink]
"""Makes the sink of a layer, given its name."""


class MemorySink(Sink):
    """Keeps the rows on the host."""

    def __init__(self, name: str):
        super().__init__(name)
        self._parts: list[SequenceRows] = []

    def add(self, rows: SequenceRows) -> None:
        """Take the rows of a batch."""
        rows = rows.without_padding()
        self._require_finite(rows)
        self._parts.append(rows.on_host())
        self._sequences += len(rows.lengths)

    def result(self) -> States:
        """`States` in memory."""
        rows = joined(self._parts)
        return States(
            values=_to_numpy(rows.values), lengths=rows.lengths, inputs=_to_numpy(rows.inputs), reverse=rows.reverse
        )


def _to_numpy(values: Tensor | None) -> AnyArray | None:
    """A numpy array, or the tensor itself where numpy does not have its type."""
    return values if values is None or values.dtype is torch.bfloat16 else values.numpy()


class StoreSink(Sink):
    """Writes the rows to disk."""

    def __init__(self, name: str, path: Path, writer: Writer):
        super().__init__(name)
        self._path, self._writer = path, writer

    def add(self, rows: SequenceRows) -> None:
        """Write the rows of a batch."""
        rows = rows.without_padding()
        self._require_finite(rows)
        if not self._sequences:
            self._writer.note_direction(reverse=rows.reverse)
        self._writer.append(rows.values, rows.lengths, rows.inputs)
        self._sequences += len(rows.lengths)

    def result(self) -> States:
        """The store, opened; the stack of `written_to` has closed it and given it its name."""
        return States.open(self._path)


class MomentsSink(Sink):
    """Adds the rows to moments, on the device where they are."""

    def __init__(self, name: str, moments: Moments | None = None):
        super().__init__(name)
        self._moments = Moments() if moments is None else moments
        self._waiting: list[SequenceRows] = []
        self._waiting_steps = 0
        self._measured: tuple[Moments, States, list[SequenceRows]] | None = None
        """The moments that were measured last and not added yet, their states, and the batches these came in."""

    def add(self, rows: SequenceRows) -> None:
        """Take the rows of a batch; they wait until there are enough for one product: few cost as much as many."""
        steps, width = rows.padded_values.shape
        if self._waiting and self._waiting_steps + steps > block_rows(rows.padded_values, width):
            self._measure_waiting()
        self._waiting.append(rows)
        self._waiting_steps += steps

    def _measure_waiting(self) -> None:
        """Measure the rows that wait. They are checked for NaN and Inf just before the next ones are measured.

        A check at once would wait for the GPU, and the GPU then for the model's next batch. (To measure on a CUDA
        stream of its own was tried and takes as long: large products leave no room for the model's small kernels.)
        """
        self._add_measured()
        parts, self._waiting, self._waiting_steps = self._waiting, [], 0
        rows = joined(parts)
        states = States(values=rows.values, lengths=rows.lengths, inputs=rows.inputs)
        measured = measure(states, inputs=True)
        self._moments.require_alike(measured)
        self._measured = measured, states, parts

    def _add_measured(self) -> None:
        """Add the moments that were measured last. If a batch of them is not finite, add those before it and raise."""
        if self._measured is None:
            return
        (measured, states, parts), self._measured = self._measured, None
        try:
            require_finite_squares(states, measured.hh, measured.uu)
        except KannError:
            for part in map(SequenceRows.without_padding, parts):
                self._require_finite(part)
                self._moments.update(part.values, part.lengths, inputs=part.inputs)
                self._sequences += len(part.lengths)
            raise
        self._moments += measured
        self._sequences += len(states)

    def finish(self, *, interrupted: bool) -> None:
        """Add the rows that wait. After an interruption their errors are dropped: the user sees the first error."""
        try:
            self.result()
        except KannError:
            if not interrupted:
                raise

    def result(self) -> Moments:
        """The moments of all rows."""
        if self._waiting:
            self._measure_waiting()
        self._add_measured()
        return self._moments


def written_to(path: Path, name: str, *, stack: contextlib.ExitStack, is_folder: bool = False) -> StoreSink:
    """A sink that writes a store; ``stack`` closes it, so that what was finished is kept whatever happens."""
    path = path / file_name(name) if is_folder else path
    return StoreSink(name, path, stack.enter_context(recording_to(path)))


def file_name(layer: str) -> str:
    """The name of a layer as the name of its store: itself where it can be one, else like it, with a hash of it.

    >>> file_name("rnn.l0"), file_name(""), file_name("/etc/passwd")
    ('rnn.l0', 'model', '_etc_passwd-74acf318')
    """
    if not layer:
        return "model"  # the model itself has no name
    # Slashes would lead elsewhere, dots in front hide or lead upwards, and "model" is taken.
    plain = re.sub(r"[^\w.-]|^\.", "_", layer, flags=re.ASCII)[:LONGEST_FILE_NAME]
    if plain == layer != "model":
        return layer
    return f"{plain}-{hashlib.sha256(layer.encode(errors='surrogatepass')).hexdigest()[:8]}"


def store_path(into: Any, *, is_folder: bool = False) -> Path:
    """The path to write to; raise for mistyped words, addresses, and folders that hold something else."""
    if not isinstance(into, str | os.PathLike):
        raise KannError(f"into={short_repr(into)} is no path; pass one such as x.zarr, or leave it out")
    if into == "moments":
        raise KannError("into='moments' is now a function: call kann.recording.record_moments")
    if isinstance(into, str) and not Path(into).suffix and os.sep not in into:
        raise KannError(f"into={into!r} is no path of a store; pass one such as {into}.zarr, or leave it out")
    require_store_name(into, verb="record")
    path = Path(into)
    if is_folder and (path.is_file() or (path / "zarr.json").exists()):
        raise KannError(f"{path} is taken, and several layers need a folder with one store each; pass another path")
    return path


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
        self._waiting.append(replace(rows, origins=rows.sequence_numbers + self._sequences))
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
    firsts, lengths = starts_of(rows.lengths) if rows.firsts is None else rows.firsts, rows.lengths[chosen]
    places = np.repeat(firsts[chosen] - starts_of(lengths), lengths) + np.arange(lengths.sum())
    (places,) = indices_for(rows.padded_values, places)
    inputs = rows.padded_inputs
    return replace(
        rows,
        padded_values=rows.padded_values[places],
        padded_inputs=None if inputs is None else inputs[places],
        lengths=lengths,
        firsts=None,
        origins=rows.sequence_numbers[chosen],
    )
