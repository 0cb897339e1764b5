"""Record a module by its calls: each is a step of time if it is a cell, or whole sequences if it gives (B, T, d)."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.data.states import StatePart
from kann.errors import KannError, SequenceWarning
from kann.recording.calls import OWN, Call, CallLog, Chain, Chains, Link, Passed, by_row, links_between
from kann.recording.layer_selection import Target
from kann.recording.probe import changed_batch
from kann.recording.recurrent import gate_values
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import Batch, SequenceData, tensors_of
from kann.recording.tracer import (
    NamedRows,
    NoStateError,
    Padded,
    SequenceRows,
    StateOptions,
    Tracer,
    batch_major,
    join_calls,
    packed_rows,
    require_called,
    require_right_padding,
)
from kann.typing import Float

PARTS = {None: slice(None), "h": slice(0, 1), "c": slice(1, 2), "hc": slice(None)}
"""Which parts of the state of a cell each ``state`` means."""

OF_TORCH_CELLS: dict[type[nn.Module], tuple[Link, ...]] = {
    nn.LSTMCell: (Link(read="hx.0", give="0"), Link(read="hx.1", give="1"))
}
"""Where one of torch's cells reads and gives its state; of others as below."""
OF_ANY_TORCH_CELL = (Link(read="hx", give=""),)


Noted = tuple[list[Call], list[dict[str, Tensor]]]
"""The calls of a module in a run, and the states that the model went on with after each of them."""


class CallTracer(Tracer):
    """Records a module by its calls: steps of time if it is a cell, whole sequences if it gives (B, T, d)."""

    def __init__(self, target: Target, options: StateOptions):
        super().__init__([target.name])
        self._name, self._path, self._options = target.name, target.path, options
        self._module: Any = target.module
        self._is_torch_cell = isinstance(target.module, nn.RNNCellBase)
        self._gates = gate_values(target) if options.inputs == "gates" else None
        self._log = CallLog(self._module, lambda: self.is_watching)
        self._chains: Chains | None = None  # known once a batch has shown it
        self._cut: list[Chain] | None = None
        self._is_watched = self._had_single_steps = False

    def attach(self, stack: contextlib.ExitStack) -> None:
        """Hook the module."""
        self._log.attach(stack)

    def begin(self, batch: Batch) -> None:
        """Forget the calls of the last batch."""
        super().begin(batch)
        self._log.clear()
        self._cut = None
        if self._chains is not None:
            self._chains.changed = ()
        if self._log.passed is not None:
            self._log.passed.clear()
            self._log.passed.__enter__()

    def end(self) -> None:
        """Watch no longer."""
        super().end()
        if self._log.passed is not None:
            self._log.passed.__exit__(None, None, None)
            self._log.passed.close()

    def noted(self) -> Noted:
        """Return the calls of the module, and the states that the model derived from them."""
        return self._log.calls, [] if self._log.passed is None else self._log.passed.after

    def put_back(self, noted: Any, changed: Sequence[Any] = ()) -> None:
        """Put back the calls of a run; calls with changed inputs show what goes on from what."""
        (self._log.calls, after), self._cut = noted, None
        if self._log.passed is not None:
            self._log.passed.after = after
        if changed and self._log.calls and self._chains is None:
            self._chains = chains_of(self._module, self._log.calls, changed[0][0])
        if changed and self._chains is not None:
            self._chains.changed = [calls for calls, _ in changed]

    @property
    def alters(self) -> bool:
        """Whether the model was seen to alter a state between calls."""
        return self._chains is not None and self._chains.alters

    def is_guessing(self) -> bool:
        """Return True if no input showed which call some call goes on from."""
        if self._chains is not None and self._cut is None:
            self._cut = self._chains.of(self._log.calls)
        return self._chains is not None and bool(self._chains.guessed)

    def must_run_again(self) -> bool:
        """Return True if the model may alter the state between calls, and this run missed the last altered state."""
        calls, passed = self._log.calls, self._log.passed
        if self._chains is None and calls:
            self._chains = chains_of(self._module, calls)
        if self._chains is None or not self._chains.links:
            return False
        self.is_guessing()
        if self.alters and self._had_single_steps:
            self.warn_once(
                f"the model alters the state of {self._path!r} between its calls, which earlier batches of one step "
                "could not show: their states are the outputs of the layer; pass longer sequences first",
                SequenceWarning,
            )
        self._had_single_steps |= not self.alters and all(len(chain.numbers) == 1 for chain in self._cut or ())
        if passed is not None and (passed.is_direct or not passed.seen) and not self.alters:
            self._log.passed = None
        if passed is not None or (self._is_watched and not self.alters):
            return False
        self._is_watched = True
        self._log.passed = Passed([link.read for link in self._chains.links])
        return True

    def take(self, output: Any) -> NamedRows:
        """Return the calls as steps of time, or each of them as sequences."""
        calls = self._calls()
        if self._chains is None:
            self._chains = chains_of(self._module, calls)
        if self._chains is not None:
            return self._loops(calls, self._chains)
        first = next(iter(calls[0].gives.values()))
        if first.ndim == 3 or self._is_sequence_of_tensors(first):
            self._log.is_whole, self._log.keeps_reads = True, bool(self._options.inputs)
            return self._whole_sequences(calls)
        if first.ndim <= 2 and len(calls) > 1:
            return self._loops(calls, Chains(links=()))
        raise KannError(
            f"layer {self._path!r} gave {tuple(first.shape)} in a single call, without a time axis; pass a layer that "
            "gives (sequences, steps, units), or one that is called at every step"
        )

    def _calls(self) -> list[Call]:
        """Return the calls of the batch; raise if there are none, or if they give no numbers that could be states."""
        require_called(self._log.calls, self._path)
        if not all(call.gives for call in self._log.calls):
            raise KannError(
                f"layer {self._path!r} returns {self._log.gave_instead}; pass a layer that gives real or complex "
                "numbers, or layer= a function from the model's output to such"
            )
        return self._log.calls

    def _is_sequence_of_tensors(self, output: Tensor) -> bool:
        """Return True if an output has the axes (B, T, ...) of the data and several axes of units (a matrix state)."""
        data = next(tensors_of(self.batch.content), None)
        return output.ndim > 3 and data is not None and data.ndim <= 3 and output.shape[:2] == data.shape[:2]

    # Modules that give whole sequences

    def _whole_sequences(self, calls: Sequence[Call]) -> NamedRows:
        """Return each call as new sequences, unless each is a single step: then all of them are one stretch of time."""
        if self._options.state is None:
            raise NoStateError(self._path, type(self._module).__name__)
        if self._options.initial or self._options.state != "h":
            raise KannError(
                f"layer {self._path!r} gives (B, T, d) and has neither an initial state nor a cell state; "
                "pass initial=False and state='h'"
            )
        padded = [self._padded(call) for call in calls]
        if all(call.values.shape[1] == 1 for call in padded):  # one step a call
            padded = [join_calls(padded)]
        for call in padded:
            yield self._name, self.rows(call, self._path)

    def _padded(self, call: Call) -> Padded:
        """Return the states that one call gave, and its inputs if they are recorded, both as (B, T, ...)."""
        values = next(iter(call.gives.values()))
        if values.ndim > 3:
            values = values.flatten(2)
        values = batch_major(values, self._module, self.batch, self._path)
        if not self._options.inputs:
            return Padded(values=values)
        read = next(iter(call.reads.values()), None)
        read = None if read is None else _numbers_as_units(read, axes=2).to(values.dtype)
        if read is None or read.ndim != 3:
            raise KannError(f"layer {self._path!r} reads no (B, T, p) of numbers; pass inputs=False")
        inputs = batch_major(read, self._module, self.batch, self._path)
        if inputs.shape[:2] != values.shape[:2]:
            raise KannError(
                f"layer {self._path!r} reads {inputs.shape[1]} steps and gives {values.shape[1]}, so that no input "
                "belongs to each state; pass inputs=False"
            )
        return Padded(values=values, inputs=inputs)

    # Cells, which the model calls in a loop over time

    def _loops(self, calls: Sequence[Call], chains: Chains) -> NamedRows:
        """Split the calls into loops: a cell may run over several sequences one after the other, or in turns."""
        if self._options.state is None and not chains.links:
            raise NoStateError(self._path, type(self._module).__name__)
        for chain in self._cut or chains.of(calls):
            yield self._name, self._loop_rows(calls, chain, chains.links)

    def _loop_rows(self, calls: Sequence[Call], chain: Chain, links: Sequence[Link]) -> SequenceRows:
        """Return the rows of a loop: padded if each step has all sequences, packed if it has those still running."""
        if not links:  # the calls of a module that hands on no state
            links = [Link(read="", give=name) for name in calls[0].gives]
        if "c" in (self._options.state or "") and len(links) < 2:
            raise KannError(
                f"state={self._options.state!r} is for LSTMs; {self._path!r} "
                f"({type(self._module).__name__}) gives {len(links)} state; pass state='h'"
            )
        chosen = links[PARTS[self._options.state]]
        steps = [calls[number] for number in chain.numbers]
        values = [torch.cat(self._states_after(steps, i, chosen, chain), dim=1) for i in range(len(steps))]
        sizes = np.array([len(part) for part in values])
        is_padded = bool((sizes == sizes[0]).all())
        join_steps: Callable[[list[Tensor]], Tensor] = partial(torch.stack, dim=1) if is_padded else torch.cat
        inputs, initial = None, None
        if self._options.inputs or self._options.initial:
            self._require_clear(steps, links)
        if self._options.initial:
            initial = torch.cat([by_row(self._first_state(steps, link)) for link in chosen], dim=1)
        if self._options.inputs:
            inputs = join_steps([self._read(call, links) for call in steps])
            if self._gates is not None:
                inputs = self._gates(inputs)
        parts = tuple(part_of(link, steps[0].gives[link.give], self._module) for link in chosen)
        if not is_padded:
            rows = packed_rows(join_steps(values), sizes, inputs=inputs, initial=initial)
            return replace(rows, parts=parts)
        real = self.real_of(self._path)
        if real is not None:
            require_right_padding(real, layer=self._path)
        padded = Padded(values=join_steps(values), inputs=inputs, initial=initial)
        return replace(self.rows(padded, self._path), parts=parts)

    def _states_after(self, steps: Sequence[Call], i: int, links: Sequence[Link], chain: Chain) -> list[Tensor]:
        """Return the parts of the state after a step: the inputs of the next step if the model alters the output."""
        own = [by_row(steps[i].gives[link.give]) for link in links]
        is_last = i + 1 == len(steps)
        if not chain.is_altered and not is_last:
            return own
        after = self._passed_after(chain, links, own) if is_last else steps[i + 1].reads
        passed = [
            by_row(after[link.read]) if link.read in after else part for link, part in zip(links, own, strict=True)
        ]
        # Sequences that ended here are no longer passed.
        return [torch.cat([part, rest[len(part) :]]) for part, rest in zip(passed, own, strict=True)]

    def _passed_after(self, chain: Chain, links: Sequence[Link], own: Sequence[Tensor]) -> Mapping[str, Tensor]:
        """Return the state that the model derived from the last call of a loop."""
        passed, number = self._log.passed, chain.numbers[-1]
        if passed is None:  # the state passes as it is, or the model will run again
            return {}
        if not chain.is_altered and (passed.is_direct or len(chain.numbers) == 1):  # a new loop's start is no state
            return {}
        found = passed.after[number] if number < len(passed.after) else {}
        shapes = {link.read: part.shape for link, part in zip(links, own, strict=True)}
        found = {name: value for name, value in found.items() if by_row(value).shape == shapes.get(name)}
        if chain.is_altered and any(link.read not in found for link in links):
            self.warn_once(
                f"the model alters the state of {self._path!r} between its calls, and what it makes of the last one is "
                "not seen; the last state of each sequence is the output of the layer; let the state pass an "
                "nn.Identity after it was altered, and name that",
                SequenceWarning,
            )
        return found

    def _first_state(self, steps: Sequence[Call], link: Link) -> Tensor:
        """Return one part of the state before the first step."""
        first = steps[0].reads.get(link.read)
        if first is None and self._is_torch_cell:
            return torch.zeros_like(steps[0].gives[link.give])
        if first is None:
            raise KannError(
                f"the first call of {self._path!r} was given no state, so that the initial one is not known; pass "
                "initial=False"
            )
        return first

    def _require_clear(self, steps: Sequence[Call], links: Sequence[Link]) -> None:
        """Raise if another argument holds the same numbers as a state, so that either may be the state."""
        for link in links:
            states = [call.reads[link.read] for call in steps if link.read in call.reads]
            others = [name for name in steps[-1].reads if all(name != each.read for each in links)]
            for name in others:
                values = [call.reads.get(name) for call in steps if link.read in call.reads]
                if all(v is not None and torch.equal(v, own) for v, own in zip(values, states, strict=True)):
                    raise KannError(
                        f"which argument of {self._path!r} is its state is not clear: {link.read!r} and {name!r} hold "
                        "the same numbers; pass other data, or inputs=False and initial=False"
                    )

    def _read(self, call: Call, links: Sequence[Link]) -> Float[Tensor, "b p"]:
        """Return the inputs of a call other than its states."""
        state = call.gives[links[0].give]
        sequences, states = len(by_row(state)), {link.read for link in links}
        others = [value for name, value in call.reads.items() if name not in states and not name.startswith(OWN)]
        numbers = [by_row(value) for value in others if value.is_floating_point()]
        read = [value for value in numbers if value.ndim == 2 and len(value) == sequences]
        if not read:  # such as a cell that looks words up by their numbers
            whole = [_numbers_as_units(value, axes=1) for value in others if not value.is_floating_point()]
            read = [value.to(state.dtype) for value in whole if value.ndim == 2 and len(value) == sequences]
        if not read:
            raise KannError(f"layer {self._path!r} reads nothing but its own state; pass inputs=False")
        return torch.cat(read, dim=1)


def chains_of(module: Any, calls: Sequence[Call], changed: Sequence[Call] = ()) -> Chains | None:
    """Find how the calls of a module carry a state; None if one batch shows no state."""
    if isinstance(module, nn.RNNCellBase):
        return Chains(links=OF_TORCH_CELLS.get(type(module), OF_ANY_TORCH_CELL))
    links = links_between(calls, changed)
    if not links or not (next(iter(calls[0].gives.values())).ndim < 3 or _reads_something_new(calls, links)):
        return None
    return Chains(links=links)


def _reads_something_new(calls: Sequence[Call], links: Sequence[Link]) -> bool:
    """Return True if the second call reads new values apart from its state.

    A block that a network applies several times, such as ALBERT's, gets only its own output back.
    """
    first, second = calls[0].reads, calls[1].reads
    states = {link.read for link in links}
    return any(
        name not in first or value.shape != first[name].shape or not torch.equal(value, first[name])
        for name, value in second.items()
        if name not in states
    )


def part_of(link: Link, value: Tensor, module: Any) -> StatePart:
    """Return the name and the size of one part of a state."""
    name = link.name
    if isinstance(module, nn.RNNCellBase):
        name = "c" if link.give == "1" else "h"
    shape = tuple(value.shape[1:]) if value.ndim > 1 else tuple(value.shape)
    return StatePart(name=name or f"output {link.give}".strip(), shape=shape, source=link.give)


def _numbers_as_units(values: Tensor, *, axes: int) -> Tensor:
    """Give integer tensors an axis of units of width one; return other tensors unchanged."""
    return values if values.is_floating_point() or values.ndim != axes else values[..., None]


def find_cells(data: SequenceData, batch: Batch) -> list[Target]:
    """Find the modules that a model calls in a loop and that hand a state from call to call, in the order of the loops.

    The model runs on the batch two or three times: to count calls, to watch modules that are called more than once, and
    where one of these alters its state between calls, with changed inputs.
    """
    model, names = data.model, {module: path for path, module in data.model.named_modules()}
    counts: Counter[nn.Module] = Counter()
    with evaluation_mode(model), contextlib.ExitStack() as stack:
        for module in names:
            if not isinstance(module, nn.RNNBase | torch.jit.ScriptModule):
                hook = module.register_forward_hook(lambda module, *_: counts.update([module]))
                stack.callback(hook.remove)
        data.call(batch)
    several = [module for module, count in counts.items() if count > 1]
    with evaluation_mode(model), contextlib.ExitStack() as stack:
        logs = [CallLog(module, lambda: True) for module in several]
        for log in logs:
            log.attach(stack)
        data.call(batch)
        calls = [log.calls for log in logs]
        changed = changed_batch(batch, data.axis)
        if changed is not None:
            for log in logs:
                log.clear()
            data.call(changed[0])
    changes = [log.calls if changed is not None else [] for log in logs]
    return [
        Target(name=names[module], path=names[module], module=module)
        for module, own, other in zip(several, calls, changes, strict=True)
        if all(call.gives for call in own) and chains_of(module, own, other) is not None
    ]
