"""Run a model on a few sequences and watch its modules: which have a memory, and which are blocks of one width."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.backends.arrays import as_numpy
from kann.explaining.options import Options
from kann.explaining.sequences import Part, Sequences
from kann.live.scoring import outputs_of
from kann.recording.batching import Batch, BatchOptions, batches, count_of, tensors_of
from kann.recording.running import batch_runner, device_of, evaluation_mode
from kann.typing import Array, Int, Shaped

CHANGED = 1e-6
"""An output that differs by more than this fraction of its largest number has changed: float32 rounds to 1e-7."""

HIDES_TIME = (nn.MultiheadAttention, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Modules that look at several steps at once without a state that goes from one to the next."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Seen:
    """What one module read and gave."""

    name: str
    module: nn.Module
    read: tuple[int, ...]
    gave: Tensor


class Probe:
    """A model and how to call it on some of the sequences."""

    def __init__(self, model: nn.Module, sequences: Sequences, options: Options):
        self.model, self.sequences, self._options = model, sequences, options

    def outputs(self, numbers: Int[Array, " k"]) -> Shaped[Array, "k ..."]:
        """What the model decides by, for these sequences; steps behind the end of a short one are NaN."""
        found = []
        with evaluation_mode(self.model):
            for batch in self._batches(self.sequences.part(numbers)):
                count = batch.count or count_of(batch.content, bool(self.sequences.axis))
                found.append(as_numpy(outputs_of(self._call(batch), count)))
        return _joined(found)

    def modules(self, numbers: Int[Array, " k"], *, changed_at: int | None = None) -> list[Seen]:
        """What each module read and gave, in the order in which they finished, in the first batch.

        With ``changed_at``, each sequence reads at that step what the one before it reads.
        """
        seen: list[Seen] = []
        with evaluation_mode(self.model), _watched(self.model, seen):
            batch = next(iter(self._batches(self.sequences.part(numbers))))
            if changed_at is not None:
                batch = Batch(content=_changed(batch.content, changed_at, self.sequences.axis), real=batch.real)
            self._call(batch)
        return seen

    def _batches(self, part: Part) -> Iterator[Batch]:
        is_recurrent = isinstance(self.model, nn.RNNBase)
        asked = BatchOptions(
            lengths=part.lengths,
            collate=self._options.collate,
            batch_size=self._options.batch_size,
            max_sequences=None,
            model_is_recurrent=is_recurrent,
            time_first=bool(self.sequences.axis),
            dtype=self.sequences.dtype,
        )
        return batches(part.data, asked)[0]

    def _call(self, batch: Batch) -> Any:
        run = batch_runner(
            self.model,
            forward=self._options.forward,
            lengths=self.sequences.names and self.sequences.names[1],
            device=device_of(self.model, self._options.device),
            hidden_states=False,
        )
        return run(batch)


@contextlib.contextmanager
def _watched(model: nn.Module, seen: list[Seen]) -> Iterator[None]:
    """Note what every module below the model reads and gives."""

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            gave = _first_real(output)
            read = _first_real((args, kwargs))
            if gave is not None:
                shape: tuple[int, ...] = ()
                if read is not None:
                    shape = tuple(read.shape)
                seen.append(Seen(name=name, module=module, read=shape, gave=gave.detach().clone()))

        return hook

    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                stack.callback(module.register_forward_hook(watch(name), with_kwargs=True).remove)
        yield


def _first_real(value: Any) -> Tensor | None:
    return next((part for part in tensors_of(value) if part.is_floating_point()), None)


def _changed(content: Any, step: int, axis: int) -> Any:
    """The batch with another input at one step."""
    if isinstance(content, Tensor):
        changed = content.clone()
        sequences, steps = axis, 1 - axis
        others = content.roll(1, dims=sequences)
        changed.select(steps, step).copy_(others.select(steps, step))
        return changed
    if isinstance(content, Mapping):
        first = next(key for key, value in content.items() if isinstance(value, Tensor) and value.ndim > 1)
        return {**content, first: _changed(content[first], step, axis)}
    if isinstance(content, list | tuple) and content:
        return type(content)([_changed(content[0], step, axis), *content[1:]])
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A module with a memory."""

    name: str
    step_name: str | None
    """The module inside it that every state passes on its way to the next step; None if there is none."""


def module_with_memory(probe: Probe, numbers: Int[Array, " k"]) -> Memory | None:
    """The first module whose output at later steps, and at no earlier one, follows what was read at one step."""
    steps = len(probe.sequences.steps(int(numbers[0])))
    at = _step_to_change(probe.sequences, numbers, steps)
    if at is None:
        return None
    before, after = (probe.modules(numbers, changed_at=step) for step in (None, at))
    for one, other in zip(before, after, strict=False):
        if any(isinstance(part, HIDES_TIME) for part in one.module.modules()) or one.gave.ndim != 3:
            continue
        if one.gave.shape == other.gave.shape and one.gave.shape[1] == steps and _remembers(one.gave, other.gave, at):
            return Memory(name=one.name, step_name=_passed_by_states(one, before))
    return None


def _step_to_change(sequences: Sequences, numbers: Int[Array, " k"], steps: int) -> int | None:
    """A step at which sequences read different things, with steps before and after it; None if there is none."""
    read = [sequences.steps(int(number))[:steps] for number in numbers]
    if len({each.shape for each in read}) > 1:  # of different lengths: every step that all have will do
        return next(iter(range(min(map(len, read)) // 3, 0, -1)), None)
    differs = [t for t in range(1, steps - 2) if any((each[t] != read[0][t]).any() for each in read)]
    return min(differs, key=lambda t: abs(t - steps // 3), default=None)


def _passed_by_states(whole: Seen, seen: Sequence[Seen]) -> str | None:
    """The last module that is called once a step and gives the states of the whole sequence one by one."""
    found = None
    for name in dict.fromkeys(each.name for each in seen if each.name.startswith(f"{whole.name}.")):
        calls = [each.gave for each in seen if each.name == name]
        is_step = len(calls) == whole.gave.shape[1] and all(call.shape == whole.gave[:, 0].shape for call in calls)
        if is_step and torch.allclose(torch.stack(calls, dim=1), whole.gave):
            found = name
    return found


def _remembers(one: Tensor, other: Tensor, at: int) -> bool:
    change = as_numpy((one - other).abs().amax(dim=(0, 2)))
    limit = CHANGED * float(one.abs().max())
    return bool((change[:at] <= limit).all() and (change[at + 1 : at + 3] > limit).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks of one width that follow each other."""

    names: list[str]
    reads_same: bool
    """Whether the first of them reads states of that width too."""


def equal_blocks(probe: Probe, numbers: Int[Array, " k"]) -> Blocks | None:
    """The longest run of modules of one class that follow each other inside a module and give the same shape."""
    seen = {each.name: each for each in probe.modules(numbers)}
    best: list[str] = []
    for path, module in probe.model.named_modules():
        run: list[str] = []
        for child, part in module.named_children():
            name = f"{path}.{child}".removeprefix(".")
            if run and name in seen and _are_alike(seen[run[-1]], seen[name]):
                run.append(name)
            elif name in seen and next(part.children(), None) is not None:  # a block is made of several modules
                run = [name]
            else:
                run = []
            if len(run) >= max(2, len(best)):
                best = list(run)
    if not best:
        return None
    first = seen[best[0]]
    return Blocks(names=best, reads_same=first.read == tuple(first.gave.shape))


def _are_alike(one: Seen, other: Seen) -> bool:
    return type(one.module) is type(other.module) and one.gave.shape == other.gave.shape


def _joined(outputs: list[Array]) -> Array:
    """The outputs of all batches; those of short ones are filled with NaN where they have fewer steps."""
    shapes = {part.shape[1:] for part in outputs}
    if len(shapes) == 1:
        return np.concatenate(outputs)
    largest = np.max([part.shape for part in outputs], axis=0)
    filled = []
    for part in outputs:
        wider = np.full((len(part), *largest[1:]), np.nan, dtype=part.dtype)
        wider[tuple(slice(size) for size in part.shape)] = part
        filled.append(wider)
    return np.concatenate(filled)


def few(count: int, most: int) -> Int[Array, " k"]:
    """Numbers of at most so many sequences, spread over all of them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))
