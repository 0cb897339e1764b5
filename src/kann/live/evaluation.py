"""Run a network on the same sequences again and again, each time with another part of its state replaced."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from kann.analysis.fidelity import Comparison
from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.live._intervene import Replace, replaced
from kann.live.scoring import Scorer, outputs_of
from kann.recording.layer_selection import Target
from kann.recording.sequence_data import Batch, SequenceData
from kann.typing import Array, Float, Int, Shaped

LEAST_BATCHES = 8
"""Batches that sequences are cut into if there are enough of them, so that some can be kept for choosing."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Group:
    """Sequences that are run together."""

    batch: Batch
    sequences: Int[Array, " b"]
    """Their numbers in the data."""
    untouched: Shaped[Array, "b ..."] | None = None
    """What the network gives for them by itself."""

    def __len__(self) -> int:
        return len(self.sequences)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trials:
    """A network, the layer whose states are replaced, and the sequences that it is tested on."""

    model: nn.Module
    target: Target
    state: str
    width: int
    """How many units the state has."""
    call: Callable[[Batch], Any]
    """Runs the model on a batch."""
    scorer: Scorer
    groups: Sequence[Group]

    def outputs(self, group: Group) -> Tensor:
        """What the model decides by, for the sequences of a group."""
        return outputs_of(self.call(group.batch), len(group))

    def with_untouched(self) -> "Trials":
        """The same with the network's own outputs, which all others are compared with."""
        groups = [replace(group, untouched=as_numpy(self.outputs(group))) for group in self.groups]
        return replace(self, groups=groups)

    def scores(self, change: Replace | None) -> Float[Array, " s"]:
        """The score of every sequence, in the order of `sequences`, with the states replaced; None leaves them."""
        if change is None:
            return self._finished([self._scores(group, group.untouched) for group in self.groups])
        with self.running_with(change):
            return self._finished([self._scores(group, as_numpy(self.outputs(group))) for group in self.groups])

    def _finished(self, scores: Sequence[Float[Array, " _"]]) -> Float[Array, " s"]:
        """The scores of all groups; of an R² what each sequence adds to it, so that their mean is R²."""
        joined = np.concatenate(scores)
        if not self.scorer.is_r_squared:
            return joined
        varied = Comparison()
        for group in self.groups:
            own: Any = group.untouched
            varied = varied + self.scorer.variation(own, group.sequences, group.batch.real)
        if not varied.spread:
            raise KannError(
                "the values that outputs are compared with are all the same, so R² is not defined; pass sequences with "
                "other outputs, or metric='loss'"
            )
        return 1 - joined * len(joined) / varied.spread

    def running_with(self, change: Replace) -> AbstractContextManager[None]:
        """A block in which the model runs with its states replaced."""
        return replaced(self.model, self.target, change, state=self.state, width=self.width)

    def _scores(self, group: Group, outputs: Any) -> Float[Array, " b"]:
        own: Any = group.untouched
        return self.scorer(outputs, own, group.sequences, group.batch.real)

    @property
    def sequences(self) -> Int[Array, " s"]:
        """The numbers of the sequences, in the order in which they are run."""
        return np.concatenate([group.sequences for group in self.groups])

    def part(self, places: Sequence[int]) -> "Trials":
        """Trials on some of the groups."""
        return replace(self, groups=[self.groups[place] for place in places])

    def numbered(self, numbers: Int[Array, " s"]) -> "Trials":
        """The same trials with other numbers of the sequences: those that they have in larger data."""
        return replace(self, groups=[replace(group, sequences=numbers[group.sequences]) for group in self.groups])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Running:
    """How to read the data and to call the model, as in `kann.record`."""

    lengths: Any
    forward: Callable[..., Any] | None
    collate: Callable[[list[Any]], Any] | None
    batch_size: int
    device: Any
    least_batches: int = LEAST_BATCHES
    """Batches that sequences are cut into if there are enough of them."""


def make_trials(
    model: nn.Module, data: Any, running: Running, *, target: Target, state: str, width: int, scorer: Scorer
) -> Trials:
    """Cut the data into groups of sequences of like length, and find out how to run the model on them."""
    groups, call = groups_and_call(model, data, running)
    scorer.require_labels(sum(map(len, groups)))
    return Trials(model=model, target=target, state=state, width=width, call=call, scorer=scorer, groups=groups)


def groups_and_call(model: nn.Module, data: Any, running: Running) -> tuple[list[Group], Callable[[Batch], Any]]:
    """Groups of sequences of like length, and what runs the model on the batch of one."""
    found = SequenceData(
        model,
        data,
        lengths=running.lengths,
        forward=running.forward,
        collate=running.collate,
        batch_size=running.batch_size,
        device=running.device,
    )
    groups = [Group(batch=batch, sequences=batch.numbers) for batch in found.groups(least=running.least_batches)]
    return groups, found.call
