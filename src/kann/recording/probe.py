"""Which recorded row belongs to which sequence and step: change some inputs, and see which rows follow them.

A model may sort its batch, or read it from the end, before the layer that is recorded. So the first batch runs
again with another input at one step of about half of the sequences. In a layer with a memory the rows of these
sequences, and no others, differ from that step on. Where that does not settle the order, or the model alters the state
of a loop, it runs a few times more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from kann.errors import KannError, SequenceWarning
from kann.recording.runner import kept_random_numbers
from kann.recording.sequence_data import (
    Batch,
    RealSteps,
    SequenceData,
    is_state,
    named_tensors,
    packed_real_steps,
    with_tensors,
)
from kann.recording.tracer import SequenceRows, Tracer, chosen_sequences, starts_of
from kann.typing import Array, Int, Shaped

NO_INPUTS = ("mask", "len", "label", "target")
"""Parts of the names of entries of a batch that are not read as steps."""

ALWAYS_SURE = 16
"""Up to this many sequences the model runs again until each is known by the steps that were changed. Among more, it is
unlikely that those which a model exchanges were changed alike."""

TRIES = 16
"""Steps that are looked at for one that differs from the step to change."""

FIRST_AND_LAST = (1, -2, 0, -1)
"""Steps that are changed in all sequences where a loop may start again. A change at the second step does not reach a
state that is made of the first one. A model may read from the end."""

MIN_RUNS = 3
"""Least number of runs with changed inputs if the model alters a state: in fewer, a loop that starts again from a state
made of its inputs may look like one that goes on."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepInputs:
    """The content of a batch for each step."""

    steps: Shaped[Tensor, "b t ..."]
    """The steps of all sequences, padded."""
    real: RealSteps
    """Which of them are real."""
    put_back: Callable[[Tensor], Any]
    """From other steps to the content of a batch that holds these."""

    @staticmethod
    def of(batch: Batch, axis: int = 0) -> "StepInputs | None":
        """Find what a batch, whose sequences are along the axis, holds for each step; None if there is no such thing.

        Masks, lengths and labels are no inputs. Of the entries of a mapping, those that surely hold steps come first:
        whole numbers (sequences, steps), or real ones with units.
        """
        content = batch.content
        found = [
            part
            for name, part in named_tensors(content, kinds=(Tensor, PackedSequence))
            if not any(word in name.lower() for word in NO_INPUTS)
        ]
        if isinstance(content, Mapping):
            found.sort(key=lambda part: isinstance(part, Tensor) and part.ndim != 2 + is_state(part))
        for part in found:
            if isinstance(part, PackedSequence):
                return _packed_steps(content, part)
            if part.ndim < 2 + (axis and part.ndim == 2) or part.dtype == torch.bool or not part.numel():
                continue
            steps = part.transpose(0, 1) if axis else part
            count, most = steps.shape[:2]
            if len(batch) not in (0, count):
                continue
            real = batch.real
            if real is None or len(real) != count:
                real = RealSteps.from_the_first(np.full(count, most))
            return StepInputs(steps=steps, real=real, put_back=partial(_with_steps, content, part, axis))
        return None


def _with_steps(content: Any, part: Tensor, axis: int, steps: Tensor) -> Any:
    """Return the content of a batch with other steps in one of its tensors."""
    return with_tensors(content, {id(part): steps.transpose(0, 1) if axis else steps})


def _packed_steps(content: Any, packed: PackedSequence) -> StepInputs:
    """Return the steps of packed sequences, padded with zeros, in the order of the batch."""
    sizes, order = packed.batch_sizes.numpy(), packed.sorted_indices
    step, sequence = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes])
    if order is not None:
        sequence = order.cpu().numpy()[sequence]
    padded = packed.data.new_zeros((int(sizes[0]), len(sizes), *packed.data.shape[1:]))
    padded[sequence, step] = packed.data
    return StepInputs(
        steps=padded,
        real=packed_real_steps(packed),
        put_back=lambda new: with_tensors(content, {id(packed.data): new[sequence, step]}),
    )


def changed_batch(
    batch: Batch, axis: int = 0, chosen: Array | None = None, *, everywhere: bool = False, at_step: int | None = None
) -> tuple[Batch, Int[Array, " b"]] | None:
    """Make a batch in which some sequences read at one step the content of another step; None if impossible.

    Also returns the step at which each sequence differs, −1 for those that do not. Without ``chosen`` these are about
    half of the sequences, at random, the longest one among them. Steps of zeros, such as padding that only the model
    knows, stay unchanged, and no step becomes zeros. ``everywhere`` changes all other steps too, since a closed gate
    may hide one of them. ``at_step`` is the step to change, by default each sequence has another one.
    """
    inputs = StepInputs.of(batch, axis)
    if inputs is None:
        return None
    steps, (count, most) = inputs.steps, inputs.steps.shape[:2]
    rng = np.random.default_rng(0)
    if chosen is None:
        chosen = rng.permutation(count) < (count + 1) // 2
        chosen[inputs.real.lengths.argmax()] = True
    rows = steps.reshape(count, most, -1)
    usable = torch.from_numpy(inputs.real.mask(most)) & (rows != 0).any(dim=2).cpu()
    places = usable.nonzero().numpy()
    changed, at, used = steps.clone(), np.full(count, -1), np.zeros(most, dtype=int)
    for number in np.flatnonzero(chosen).tolist():
        own = np.flatnonzero(usable[number].numpy())
        # The step in the middle is the same from both ends.
        own = own[(2 * own != most - 1) | (len(own) == 1)] if at_step is None else own[at_step:][:1]
        if not len(own):
            continue
        # One that fewest sequences have used, so that the step tells which sequence a row follows.
        step = int(rng.choice(own[used[own] == used[own].min()]))
        used[[step, most - 1 - step]] += 1  # read from the end, the other one of these looks the same
        for other, there in places[rng.integers(len(places), size=TRIES)].tolist():
            if not torch.equal(rows[other, there], rows[number, step]):
                changed[number, step], at[number] = steps[other, there], step
                break
        if everywhere and at[number] >= 0:
            own_steps = torch.from_numpy(np.flatnonzero(usable[number].numpy()))
            own_steps = own_steps[own_steps != step].to(steps.device)
            drawn = places[rng.integers(len(places), size=len(own_steps))]
            changed[number, own_steps] = steps[drawn[:, 0], drawn[:, 1]]
    if (at < 0).all():
        return None
    return replace(batch, content=inputs.put_back(changed)), at


class RowCheck:
    """Runs the model on batches for tracers, and arranges the rows of those that the model arranges anew."""

    def __init__(self, data: SequenceData, tracers: Sequence[Tracer]):
        self._data, self._tracers = data, tracers
        self._is_checked = self._saw_unsorted = False
        self._arranging: set[Tracer] = set()
        self._is_reversed: dict[tuple[Tracer, int], bool] = {}

    def run(self, batch: Batch) -> Any:
        """Run the model on a batch, with changed inputs too where that is due; return its output."""
        unsorted = batch.real is not None and bool((np.diff(batch.real.lengths) > 0).any())
        is_due = not self._is_checked or (unsorted and not self._saw_unsorted) or bool(self._arranging)
        for tracer in self._tracers:
            tracer.order = None  # that of the batch before
        before = kept_random_numbers(self._data.model)
        output = self._watched(batch)
        is_due |= any(tracer.is_guessing() for tracer in self._tracers if not tracer.has_warned)
        if is_due:
            after = kept_random_numbers(self._data.model)
            self._saw_unsorted |= unsorted
            self._look(batch, output, before)
            after()
        again = [tracer.must_run_again() for tracer in self._tracers]  # all of them: each then watches more closely
        if any(again):
            before()
            output = self._watched(batch)
        for tracer in self._tracers:
            if not tracer.has_warned and tracer.is_guessing():
                tracer.warn_once(
                    f"it cannot be seen where a loop over {tracer.title!r} starts again, since the model alters the "
                    "state between calls; its steps were taken for one sequence; pass larger batches, or record a "
                    "layer that gives the states of all steps",
                    SequenceWarning,
                )
        return output

    def arranged(self, tracer: Tracer, number: int, rows: SequenceRows) -> SequenceRows:
        """Return the rows that a tracer gives as its ``number``-th, in the order of the batch, with their direction."""
        if tracer.order is not None and rows.batch_sequences == len(tracer.order):
            rows = chosen_sequences(rows, tracer.order)
            rows = replace(rows, origins=None)
        return replace(rows, reverse=self._is_reversed.get((tracer, number), rows.reverse))

    def _watched(self, batch: Batch) -> Any:
        for tracer in self._tracers:
            tracer.begin(batch)
        try:
            return self._data.call(batch)
        finally:
            for tracer in self._tracers[::-1]:
                tracer.end()

    def _look(self, batch: Batch, output: Any, before: Callable[[], None]) -> None:
        """Find the order of the sequences and steps in which each layer sees this batch."""
        tracers = [tracer for tracer in self._tracers if tracer.follows_time and not tracer.reads_data]
        axis = self._data.axis
        for along in (axis, 1 - axis)[: 1 if batch.count is not None else 2]:  # else batches may have their steps first
            found = changed_batch(batch, along) if tracers else None
            if found is None:
                continue
            changed = self._rows_of(found[0], before, batch)
            if changed is None:
                return
            self._is_checked = True
            # The other sequences, which might have changed places among themselves.
            rest = changed_batch(batch, along, found[1] < 0) if (found[1] < 0).sum() > 1 else None
            changed_rest = None if rest is None else self._rows_of(rest[0], before, batch)
            others = None if rest is None or changed_rest is None else (changed_rest, rest[1])
            fits = [self._decide(tracer, batch, output, changed, found[1], others, along, before) for tracer in tracers]
            if any(fits):
                return

    def _rows_of(self, changed: Batch, before: Callable[[], None], batch: Batch) -> tuple[Any, list[Any]] | None:
        """Run on changed inputs; return the output and the notes of tracers, or None if the model cannot read them."""
        noted = [tracer.noted() for tracer in self._tracers]
        before()
        try:
            output = self._watched(changed)
            return output, [tracer.noted() for tracer in self._tracers]
        except Exception:  # the model's own objection to what no user has passed
            return None
        finally:
            for tracer, own in zip(self._tracers, noted, strict=True):
                tracer.batch = batch
                tracer.put_back(own)

    def _decide(
        self,
        tracer: Tracer,
        batch: Batch,
        output: Any,
        changed: Any,
        at: Int[Array, " b"],
        others: Any,
        axis: int,
        before: Any,
    ) -> bool:
        """Decide the order of a layer; False if the rows belong to another number of sequences than were changed."""
        tracer.order, place = None, self._tracers.index(tracer)
        own, runs = tracer.noted(), [changed[1][place], *([others[0][1][place]] if others is not None else [])]
        tracer.put_back(own, runs)
        for step in FIRST_AND_LAST:
            if not tracer.is_guessing() and (not tracer.alters or len(runs) >= MIN_RUNS):
                break
            found = changed_batch(batch, axis, np.ones(len(at), dtype=bool), at_step=step)
            more = None if found is None else self._rows_of(found[0], before, batch)
            if more is not None:
                runs.append(more[1][place])
                tracer.put_back(own, runs)
        rows = self._uncut(tracer, batch, output)
        firsts = self._first_differences(tracer, batch, rows, own, changed)
        known = [i for i, first in enumerate(firsts) if first is not None and len(first) == len(at)]
        if not known:
            return False
        runs = [(firsts[known[0]], at)]
        if others is not None:
            rest = self._first_differences(tracer, batch, rows, own, others[0])
            runs += [
                (first, others[1])
                for first in rest[known[0] : known[0] + 1]
                if first is not None and len(first) == len(at)
            ]
        is_sure = len(at) > ALWAYS_SURE or _are_told_apart(runs, rows[known[0]].lengths)
        if not is_sure or any(self._are_moved(tracer, batch, *run, rows[known[0]]) for run in runs):
            order, is_moved = self._order(tracer, batch, rows, own, known[0], axis, before)
            follows_others = any(((first >= 0) & (changed_at < 0)).any() for first, changed_at in runs)
            if order is None and (is_moved or follows_others or not is_sure):
                tracer.warn_once(
                    f"the states of {tracer.title!r} follow the inputs of other sequences of their batch, so it cannot "
                    "be seen which sequence each belongs to; the order of the batch was assumed; pass batch_size=1 to "
                    "be sure",
                    SequenceWarning,
                )
                return True
            if order is not None and not np.array_equal(order, np.arange(len(order))):
                tracer.order = order
                self._arranging.add(tracer)
        for i in known:
            first = firsts[i] if tracer.order is None else firsts[i][tracer.order]
            lengths = rows[i].lengths if tracer.order is None else rows[i].lengths[tracer.order]
            self._decide_direction(tracer, i, batch, first, at, replace(rows[i], lengths=lengths))
        return True

    def _are_moved(
        self, tracer: Tracer, batch: Batch, first: Array, changed_at: Int[Array, " b"], rows: SequenceRows
    ) -> bool:
        """Return True if rows follow other sequences: unchanged ones, or ones changed at another step."""
        if ((first >= 0) & (changed_at < 0)).any():
            return True
        real = batch.real_of(tracer.title)
        if real is not None and len(real) == len(rows.lengths):
            beyond = rows.lengths - real.lengths  # of padded rows the padding, of packed rows the same for all
            if len(set(rows.lengths)) > 1 and len(set(beyond)) > 1:
                return True
        seen = (first >= 0) & (changed_at >= 0)
        first, at, lengths = first[seen], changed_at[seen], rows.lengths[seen]
        if not first.any():  # a layer that sees all steps at once follows them from its first row on
            return False
        own = np.minimum(real.lengths[seen], lengths) if real is not None and len(real) == len(seen) else lengths
        begins = np.array_equal if len(changed_at) <= ALWAYS_SURE else _begins_at
        return not any(begins(first, expected) for expected in (at, lengths - 1 - at, own - 1 - at))

    def _decide_direction(
        self, tracer: Tracer, number: int, batch: Batch, first: Array, at: Array, rows: SequenceRows
    ) -> None:
        """Compare the steps at which inputs changed with those from which rows differ."""
        seen = (first >= 0) & (at >= 0)
        first, at, lengths = first[seen], at[seen], rows.lengths[seen]
        if not seen.any() or _begins_at(first, at):
            if seen.any():
                self._is_reversed[tracer, number] = False
            return
        real = batch.real_of(tracer.title)
        own = np.minimum(real.lengths[seen], lengths) if real is not None and len(real) == len(seen) else lengths
        if _begins_at(first, lengths - 1 - at):
            if real is not None and not rows.reverse and (real.lengths < rows.lengths).any():
                raise KannError(
                    f"the model reads its sequences from the end before {tracer.title!r}, so that this layer reads "
                    "the padding first; pack the sequences, or pass batches of sequences of one length"
                )
            self._is_reversed[tracer, number] = True
        elif _begins_at(first, own - 1 - at):
            self._is_reversed[tracer, number] = True
        elif (first >= lengths - 1 - at).all() and (first < at).any() and (first == lengths - 1 - at).any():
            tracer.warn_once(
                f"{tracer.title!r} may read its sequences from the end, which closed gates hide in most of them; states"
                " are in the order in which they were reached; pass larger batches",
                SequenceWarning,
            )
        elif _is_shuffled(first, at):
            tracer.warn_once(
                f"{tracer.title!r} reads the steps in another order than the data have them; states are in the order in"
                " which they were reached; pass data in that order if tokens or labels belong to steps",
                SequenceWarning,
            )

    def _order(
        self, tracer: Tracer, batch: Batch, rows: list[SequenceRows], own: Any, number: int, axis: int, before: Any
    ) -> tuple[Int[Array, " b"] | None, bool]:
        """Find the place of each sequence in what a layer sees, by the runs in which the sequence is changed.

        None if closed gates hide several of them; also whether one was seen to be out of place.
        """
        count = len(rows[number].lengths)
        codes, seen = np.arange(1, count + 1), np.zeros(count, dtype=int)
        for bit in 2 ** np.arange(int(count).bit_length()):
            chosen = (codes & bit) > 0
            found = changed_batch(batch, axis, chosen, everywhere=True)
            if found is None or (found[1][chosen] < 0).any():
                return None, False
            changed = self._rows_of(found[0], before, batch)
            firsts = [] if changed is None else self._first_differences(tracer, batch, rows, own, changed)
            if number >= len(firsts) or firsts[number] is None or len(firsts[number]) != count:
                return None, False
            seen += bit * (firsts[number] >= 0)
        is_moved = bool((seen & ~codes).any())  # a gate that is closed in some of the runs only takes bits away
        missing = np.setdiff1d(codes, seen)
        if len(missing) == 1 and (seen == 0).sum() == 1:
            seen[seen == 0] = missing
        return (np.argsort(seen) if np.array_equal(np.sort(seen), codes) else None), is_moved

    def _uncut(self, tracer: Tracer, batch: Batch, output: Any) -> list[SequenceRows]:
        """Return the rows that a tracer noted, with padding."""
        tracer.batch = replace(batch, real=None, decoder_real=None)
        try:
            return [rows.without_padding() for _, rows in tracer.take(output)]
        finally:
            tracer.batch = batch

    def _first_differences(
        self, tracer: Tracer, batch: Batch, rows: list[SequenceRows], own: Any, changed: Any
    ) -> list[Any]:
        """Apply `first_differences` to each of the rows that a tracer gives."""
        tracer.put_back(changed[1][self._tracers.index(tracer)])
        others = self._uncut(tracer, batch, changed[0])
        tracer.put_back(own)
        if len(others) != len(rows):
            return []
        return [first_differences(one, other) for one, other in zip(rows, others, strict=True)]


SAME = 1e-6
"""Numbers that differ by less than this fraction of the largest one are the same: float32 rounds to 1e-7."""


def first_differences(one: SequenceRows, other: SequenceRows) -> Int[Array, " s"] | None:
    """Return the first row of each sequence that differs, −1 if none does; None if their shapes differ."""
    if not np.array_equal(one.lengths, other.lengths) or one.values.shape != other.values.shape:
        return None
    distance = (one.values - other.values).abs().amax(dim=1)
    places = np.flatnonzero((distance > SAME * one.values.abs().max()).cpu().numpy())
    sequences = np.repeat(np.arange(len(one.lengths)), one.lengths)[places]
    first = np.full(len(one.lengths), -1)
    first[sequences[::-1]] = places[::-1]  # of several rows of a sequence the first one is written last
    return np.where(first < 0, -1, first - starts_of(one.lengths))


def _are_told_apart(runs: Sequence[tuple[Array, Array]], lengths: Int[Array, " b"]) -> bool:
    """Return True if each sequence changed at steps, from the start or the end, at which no other one did."""
    at = np.stack([np.where(first >= 0, steps, -1) for first, steps in runs], axis=1)
    codes = [*map(tuple, at.tolist())]
    mirrored = [*map(tuple, np.where(at >= 0, lengths[:, None] - 1 - at, -1).tolist())]
    others = [{code for j, code in enumerate(mirrored) if j != i} for i in range(len(codes))]
    return len({*codes}) == len(codes) and not any(code in rest for code, rest in zip(codes, others, strict=True))


def _begins_at(first: Int[Array, " k"], expected: Int[Array, " k"]) -> bool:
    """Return True if rows differ from the expected steps on, except for some that a closed gate hides."""
    return bool((first >= expected).all() and 2 * (first == expected).sum() > len(first))


def _is_shuffled(first: Int[Array, " k"], at: Int[Array, " k"]) -> bool:
    """Return True if every step of the data is one of the rows, but in another order.

    A layer that sees all steps at once differs from its first row on in most sequences, and shows no order.
    """
    pairs = np.unique(np.stack([at, first], axis=1), axis=0)
    is_one_to_one = len(pairs) == len(np.unique(at)) == len(np.unique(first))
    return bool(is_one_to_one and len(pairs) > 3 and (first == 0).mean() < 0.3 and (np.diff(pairs[:, 1]) < 0).any())
