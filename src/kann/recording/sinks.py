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

from kann.backends.arrays import block_rows
from kann.checks import require_sequence, require_whole_number, short_repr
from kann.data.moments import Moments, measure, require_finite_squares
from kann.data.reduction import Block, find_not_finite
from kann.data.states import States
from kann.data.store import recording_to, require_store_name
from kann.errors import KannError
from kann.recording.tracer import SequenceRows, chosen_sequences, joined, starts_of
from kann.typing import AnyArray, Array, Int

LONGEST_FILE_NAME = 100
"""Characters of a layer's name that its store is named after; the store's own endings must fit behind them."""


class Sink(ABC):
    """Takes the rows of one layer, batch after batch."""

    def __init__(self, name: str, stack: contextlib.ExitStack):  # sinks that open something use it
        self._name, self._sequences = name, 0

    def add(self, rows: SequenceRows) -> None:
        """Take the rows of a batch, with the numbers of their sequences among all that were recorded."""
        numbers = rows.sequence_numbers
        self._take(replace(rows, origins=numbers + self._sequences))
        self._sequences += int(numbers[-1]) + 1  # they count from 0 in each batch

    @abstractmethod
    def _take(self, rows: SequenceRows) -> None:
        """Take the rows of a batch."""

    @abstractmethod
    def result(self) -> States | Moments | list[Moments]:
        """Return all that was taken."""

    def _finite(self, rows: SequenceRows) -> SequenceRows:
        """Return the rows without padding; raise for NaN and Inf with the place of the first one in all batches."""
        rows = rows.without_padding()
        # A finite sum has finite terms only; where the sum overflows, each term is looked at below.
        if all(math.isfinite(tensor.detach().sum()) for tensor in rows.padded):
            return rows
        block = Block(
            values=rows.values,
            inputs=rows.inputs,
            lengths=rows.lengths,
            numbers=rows.sequence_numbers,
            starts=starts_of(rows.lengths),
            steps=np.zeros_like(rows.lengths),
        )
        found = find_not_finite(block, first_inputs=True)
        if found is not None:
            raise found.error(of=f" of layer {self._name!r}")
        return rows


SinkMaker = Callable[[str, contextlib.ExitStack], Sink]
"""Makes the sink of a layer, given its name."""


class MemorySink(Sink):
    """Keeps the rows on the host."""

    def __init__(self, name: str, stack: contextlib.ExitStack):
        super().__init__(name, stack)
        self._parts: list[SequenceRows] = []

    def _take(self, rows: SequenceRows) -> None:
        self._parts.append(self._finite(rows).mapped(Tensor.cpu))

    def result(self) -> States:
        """Return `States` in memory."""
        rows = joined(self._parts)
        return States(
            values=_to_numpy(rows.values),
            lengths=rows.lengths,
            inputs=_to_numpy(rows.inputs),
            reverse=rows.reverse,
            parts=rows.parts,
        )


def _to_numpy(values: Tensor | None) -> AnyArray | None:
    """Return a numpy array, or the tensor itself where numpy does not have its type."""
    return values if values is None or values.dtype is torch.bfloat16 else values.numpy()


class StoreSink(Sink):
    """Writes the rows to a store; with ``is_folder`` to one in the folder ``path`` that is named after the layer.

    The stack closes the store, so that what was finished is kept whatever happens.
    """

    def __init__(self, name: str, stack: contextlib.ExitStack, *, path: Path, is_folder: bool = False):
        super().__init__(name, stack)
        self._path = path / file_name(name) if is_folder else path
        self._writer = stack.enter_context(recording_to(self._path))

    def _take(self, rows: SequenceRows) -> None:
        rows = self._finite(rows)
        if not self._sequences:
            self._writer.note(reverse=rows.reverse, parts=[part.as_list() for part in rows.parts])
        self._writer.append(rows.values, rows.lengths, rows.inputs)

    def result(self) -> States:
        """Return the store, opened; the stack has closed it and given it its name."""
        return States.open(self._path)


class _BlockSink(Sink):
    """Lets rows wait until there are enough for one product: a product of a few rows takes as long."""

    def __init__(self, name: str, stack: contextlib.ExitStack):
        super().__init__(name, stack)
        self._waiting: list[SequenceRows] = []
        self._waiting_steps = 0

    def _take(self, rows: SequenceRows) -> None:
        steps, width = rows.padded[0].shape
        if self._waiting_steps + steps > block_rows(rows.padded[0], width):
            self._measure_waiting()
        self._waiting.append(rows)
        self._waiting_steps += steps

    def _measure_waiting(self) -> None:
        """Measure the rows that wait, if there are any."""
        parts, self._waiting, self._waiting_steps = self._waiting, [], 0
        if parts:
            self._measure(parts)

    @abstractmethod
    def _measure(self, parts: list[SequenceRows]) -> None:
        """Measure the rows of some batches."""


class MomentsSink(_BlockSink):
    """Adds the rows to moments, on the device where they are; those of ``into`` hold what was finished after errors."""

    def __init__(self, name: str, stack: contextlib.ExitStack, *, into: Moments | None = None):
        super().__init__(name, stack)
        self._moments = Moments() if into is None else into
        self._measured: tuple[Moments, States, list[SequenceRows]] | None = None
        """The moments that were measured last and not added yet, their states, and the batches these came in."""
        if into is not None:
            stack.push(lambda kind, error, trace: self._finish(interrupted=error is not None))

    def _measure(self, parts: list[SequenceRows]) -> None:
        """Measure rows. They are checked for NaN and Inf just before the next ones are measured.

        A check at once would wait for the GPU, and the GPU then for the model's next batch. (To measure on another CUDA
        stream was tried and takes as long: large products leave no room for the model's small kernels.)
        """
        self._add_measured()
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
            for part in map(self._finite, parts):
                self._moments.update(part.values, part.lengths, inputs=part.inputs)
            raise
        self._moments += measured

    def _finish(self, *, interrupted: bool) -> None:
        """Add the rows that wait. After an interruption their errors are dropped: the user sees the first error."""
        try:
            self.result()
        except KannError:
            if not interrupted:
                raise

    def result(self) -> Moments:
        """Return the moments of all rows."""
        self._measure_waiting()
        self._add_measured()
        return self._moments


def file_name(layer: str) -> str:
    """Return the name of a layer as the name of its store: itself where it can be one, else like it, with a hash of it.

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
    """Return the path to write to; raise for mistyped words, addresses, and folders that hold something else."""
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


class Groups:
    """The groups of sequences as they come: by a label for each, in the order in which labels first appear.

    Without labels each sequence goes to the group that holds fewest pairs so far.
    """

    def __init__(self, count: int, labelled: Sequence[int] | None = None, *, may_be_more: bool = False):
        self.count = count
        self._labelled, self._used, self._may_be_more = labelled, 0, may_be_more
        self._held = [(0, group) for group in range(count)]

    @property
    def labelled(self) -> bool:
        """Whether sequences have labels."""
        return self._labelled is not None

    def of(self, pairs: Int[Array, " s"]) -> list[int]:
        """Return the group of each of the next sequences, given their numbers of pairs of states."""
        if self._labelled is None:
            return [self._emptiest(count) for count in pairs.tolist()]
        found = list(self._labelled[self._used : self._used + len(pairs)])
        self._used += len(pairs)
        if len(found) < len(pairs):
            raise KannError(
                f"groups has {len(self._labelled)} labels and the data hold more sequences; pass one for each sequence"
            )
        return found

    def _emptiest(self, pairs: int) -> int:
        """Return the group that holds fewest pairs, which gets these."""
        held, group = self._held[0]
        heapq.heapreplace(self._held, (held + pairs, group))
        return group

    def require_all_used(self) -> None:
        """Raise for labels of sequences that did not come, which would mean that they belong to other data."""
        if self._labelled is not None and 0 < self._used < len(self._labelled) and not self._may_be_more:
            raise KannError(
                f"groups has {len(self._labelled)} labels for {self._used} sequences; pass one for each sequence"
            )


def parse_groups(groups: Any, *, max_sequences: int | None) -> Groups:
    """Read a number of groups, or a label for each sequence; with ``max_sequences`` later labels are left unused."""
    if isinstance(groups, str):
        raise KannError(f"groups={groups!r} is a text; pass a number of groups, or a label for each sequence")
    if getattr(groups, "ndim", None) == 0 or not hasattr(groups, "__len__"):
        return Groups(require_whole_number(groups, "groups", least=1, too_small="leaves nowhere to put sequences"))
    require_sequence(groups, "groups")
    numbers: dict[Any, int] = {}
    try:
        labelled = [numbers.setdefault(label, len(numbers)) for label in getattr(groups, "tolist", lambda: groups)()]
    except TypeError as error:
        raise KannError("groups holds labels that cannot be compared; pass numbers or names") from error
    return Groups(len(numbers), labelled, may_be_more=max_sequences is not None)


class GroupedMomentsSink(_BlockSink):
    """Adds the rows of whole sequences to the moments of their group, on the device where they are."""

    def __init__(self, name: str, stack: contextlib.ExitStack, *, groups: Groups):
        super().__init__(name, stack)
        self._groups = groups
        self._moments = [Moments() for _ in range(groups.count)]

    def _measure(self, parts: list[SequenceRows]) -> None:
        rows = self._finite(joined(parts))  # here, where the numbers of the sequences are known
        _, sequence_of = np.unique(rows.sequence_numbers, return_inverse=True)
        pairs = np.bincount(sequence_of, weights=rows.lengths - 1).astype(int)
        group_of = np.array(self._groups.of(pairs))[sequence_of]
        for group in np.unique(group_of).tolist():
            chosen = chosen_sequences(rows, group_of == group)
            self._moments[group].update(chosen.values, chosen.lengths, inputs=chosen.inputs)

    def result(self) -> list[Moments]:
        """Return the moments of each group; empty ones if there are fewer sequences than groups."""
        self._measure_waiting()
        self._groups.require_all_used()
        return self._moments
