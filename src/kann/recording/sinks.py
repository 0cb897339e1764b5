"""Where recorded rows go: memory, a store on disk, or moments."""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kann.backends.arrays import as_numpy, block_rows
from kann.data.blocks import Block, find_not_finite
from kann.data.moments import Moments, measure, require_finite_squares
from kann.data.states import States
from kann.data.store import Writer, is_url
from kann.errors import KannError
from kann.recording.ragged import Ragged, joined
from kann.typing import AnyArray


class Sink(ABC):
    """Takes the rows of one layer, batch after batch."""

    def __init__(self, name: str):
        self._name, self._sequences = name, 0

    @abstractmethod
    def add(self, rows: Ragged) -> None:
        """Take the rows of a batch."""

    @abstractmethod
    def result(self) -> States | Moments:
        """All that was taken."""

    def _require_finite(self, rows: Ragged) -> None:
        """Refuse NaN and Inf, and say where the first one is, counted over all batches."""
        numbers = self._sequences + np.arange(len(rows.lengths))
        block = Block(
            values=rows.values,
            inputs=rows.inputs,
            lengths=rows.lengths,
            numbers=numbers,
            starts=np.cumsum(rows.lengths) - rows.lengths,
            steps=np.zeros_like(numbers),
        )
        found = find_not_finite(block, first_inputs=True)
        if found is not None:
            raise found.error(of=f" of layer {self._name!r}")


class MemorySink(Sink):
    """Keeps the rows on the host."""

    def __init__(self, name: str):
        super().__init__(name)
        self._parts: list[Ragged] = []

    def add(self, rows: Ragged) -> None:
        """Take the rows of a batch."""
        rows = rows.without_padding()
        self._require_finite(rows)
        drive = None if rows.drive is None else rows.drive.cpu()
        self._parts.append(replace(rows, steps=rows.steps.cpu(), drive=drive))
        self._sequences += len(rows.lengths)

    def result(self) -> States:
        """`States` in memory."""
        rows = joined(self._parts)
        return States(values=_host(rows.values), lengths=rows.lengths, inputs=_host(rows.inputs))


def _host(values: Tensor | None) -> AnyArray | None:
    """A numpy array, or a tensor of a type that numpy does not have."""
    return values if values is None or values.dtype is torch.bfloat16 else as_numpy(values)


class StoreSink(Sink):
    """Writes the rows to disk."""

    def __init__(self, name: str, path: Path, writer: Writer):
        super().__init__(name)
        self._path, self._writer = path, writer

    def add(self, rows: Ragged) -> None:
        """Write the rows of a batch."""
        rows = rows.without_padding()
        self._require_finite(rows)
        self._writer.append(rows.values, rows.lengths, rows.inputs)
        self._sequences += len(rows.lengths)

    def result(self) -> States:
        """The store, opened; whoever made the writer has closed it."""
        return States.open(self._path)


class MomentsSink(Sink):
    """Adds the rows to moments, on the device where they are."""

    def __init__(self, name: str, moments: Moments | None = None):
        super().__init__(name)
        self._moments = Moments() if moments is None else moments
        self._waiting: list[Ragged] = []
        self._waiting_steps = 0
        self._measured: tuple[Moments, States, list[Ragged]] | None = None
        """What was measured last, of which states, and their batches."""

    def add(self, rows: Ragged) -> None:
        """Take the rows of a batch, and use them once they are enough for one product: few cost as much as many."""
        steps, width = rows.steps.shape
        if self._waiting and self._waiting_steps + steps > block_rows(rows.steps, width):
            self._use()
        self._waiting.append(rows)
        self._waiting_steps += steps

    def _use(self) -> None:
        """Measure the rows that wait. Whether they are finite is looked at just before the next ones are measured.

        To look at once would wait for the GPU, and the GPU then for the model's next batch. (To measure on a CUDA
        stream of its own was tried and takes as long: large products leave no room for the model's small kernels.)
        """
        self._settle()
        parts, self._waiting, self._waiting_steps = self._waiting, [], 0
        rows = joined(parts)
        states = States(values=rows.values, lengths=rows.lengths, inputs=rows.inputs)
        measured = measure(states, inputs=True)
        self._moments.require_alike(measured)
        self._measured = measured, states, parts

    def _settle(self) -> None:
        """Add what was measured last; of rows that cannot be used, those before them."""
        if self._measured is None:
            return
        (measured, states, parts), self._measured = self._measured, None
        try:
            require_finite_squares(states, measured.hh, measured.uu)
        except KannError:
            for part in map(Ragged.without_padding, parts):  # keep those before the one that is to blame
                self._require_finite(part)
                self._moments.update(part.values, part.lengths, inputs=part.inputs)
                self._sequences += len(part.lengths)
            raise
        self._moments += measured
        self._sequences += len(states)

    def keep(self, *, interrupted: bool) -> None:
        """Use the rows that wait; where something else has failed already, that is what the user hears of."""
        try:
            self.result()
        except KannError:
            if not interrupted:
                raise

    def result(self) -> Moments:
        """The moments of all rows."""
        if self._waiting:
            self._use()
        self._settle()
        return self._moments


def sink_maker(
    into: str | os.PathLike[str] | Moments, stack: contextlib.ExitStack, *, single: bool
) -> Callable[[str], Sink]:
    """How to make the sink of a layer, given its name. Several layers have one store each, in a folder.

    ``stack`` closes the stores, so that what was finished is kept whatever happens.
    """
    if isinstance(into, Moments):
        if not single:
            raise KannError("moments of several layers cannot be added to one; pass into='moments', or a single layer")

        def adding(name: str) -> Sink:
            sink = MomentsSink(name, into)
            stack.push(lambda kind, error, trace: sink.keep(interrupted=error is not None))
            return sink

        return adding
    if into == "states":
        return MemorySink
    if into == "moments":
        return MomentsSink
    if isinstance(into, str) and not Path(into).suffix and os.sep not in into:
        raise KannError(f"into={into!r} is neither 'states' nor 'moments'; for a store pass a path such as {into}.zarr")
    if is_url(into):
        raise KannError(
            f"{into} is an address; record to a folder, and copy it there with fsspec or your cloud's tools"
        )
    path = Path(into)
    if not single and (path.is_file() or (path / "zarr.json").exists()):
        raise KannError(f"{path} is taken, and several layers need a folder with one store each; pass another path")

    def make(name: str) -> Sink:
        own = path if single else path / (name or "model")
        return StoreSink(name, own, stack.enter_context(Writer(own)))

    return make
