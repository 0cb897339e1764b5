"""Record a module by its calls: each is a step of time if it is a cell, or whole sequences if it gives (B, T, d)."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.errors import KannError
from kann.recording.layer_selection import Target
from kann.recording.recurrent import gate_values
from kann.recording.sequence_data import Batch, is_state, tensors_of
from kann.recording.tracer import (
    NamedRows,
    Padded,
    SequenceRows,
    StateOptions,
    Tracer,
    as_real,
    batch_major,
    continues,
    cut_into_runs,
    hook_last,
    join_calls,
    packed_rows,
    require_called,
    require_right_padding,
)
from kann.typing import Float

PARTS = {"h": slice(0, 1), "c": slice(1, 2), "hc": slice(None)}
"""Which of the states that a cell passes on each ``state`` means."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Call:
    """One call of a module: the tensors that went in and came out."""

    args: Sequence[Tensor]
    outputs: Sequence[Tensor]


class CallTracer(Tracer):
    """Records a module by its calls: steps of time if it is a cell, whole sequences if it gives (B, T, d)."""

    def __init__(self, target: Target, options: StateOptions):
        super().__init__([target.name])
        self._name, self._path, self._options = target.name, target.path, options
        self._module: Any = target.module
        self._is_torch_cell = isinstance(target.module, nn.RNNCellBase)
        self._gates = gate_values(target) if options.inputs == "gates" else None

    def attach(self, stack: contextlib.ExitStack) -> None:
        """Hook the module."""
        hook_last(self._module, self._on_call, stack)

    def begin(self, batch: Batch) -> None:
        """Forget the calls of the last batch."""
        super().begin(batch)
        self._calls: list[_Call] = []

    def _on_call(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Keep copies of what went into a call and came out; a forward hook of torch's."""
        if not self.is_watching:
            return
        outputs = [as_real(part) for part in tensors_of(output) if is_state(part)]
        if not outputs:
            kinds = ", ".join(str(part.dtype).removeprefix("torch.") for part in tensors_of(output))
            raise KannError(
                f"layer {self._path!r} returns {type(output).__name__} without real numbers ({kinds or 'no tensor'}); "
                "pass a layer that gives real or complex numbers, or layer= a function from the model's output to such"
            )
        read = [as_real(part) for part in tensors_of((args, kwargs))]
        may_be_cell = outputs[0].ndim < 3 or _could_be_cell(read, outputs)
        if not may_be_cell:
            outputs = outputs[:1]
        if self._is_torch_cell:
            read = _arguments_of_torch_cell(args, kwargs, outputs[0])
        elif not (self._options.inputs or self._options.initial or may_be_cell):
            read = []
        self._calls.append(_Call(args=_copies(read), outputs=_copies(outputs)))

    def take(self, output: Any) -> NamedRows:
        """The calls as steps of time, or each of them as sequences."""
        require_called(self._calls, self._path)
        first = self._calls[0].outputs[0]
        if self._is_torch_cell or _passes_state_on(self._calls):
            return self._loops()
        if first.ndim == 3 or self._is_sequence_of_tensors(first):
            return self._whole_sequences()
        if first.ndim <= 2 and len(self._calls) > 1:
            return self._loops()
        raise KannError(
            f"layer {self._path!r} gave {tuple(first.shape)} in a single call, without a time axis; pass a layer that "
            "gives (sequences, steps, units), or one that is called at every step"
        )

    def _is_sequence_of_tensors(self, output: Tensor) -> bool:
        """Whether an output has the axes (B, T, ...) of the data, and several axes of units, as a matrix state."""
        data = next(tensors_of(self.batch.content), None)
        return output.ndim > 3 and data is not None and data.ndim <= 3 and output.shape[:2] == data.shape[:2]

    # Modules that give whole sequences

    def _whole_sequences(self) -> NamedRows:
        """Each call as new sequences, unless each is a single step: then all of them are one stretch of time."""
        if self._options.initial or self._options.state != "h":
            raise KannError(
                f"layer {self._path!r} gives (B, T, d) and has neither an initial state nor a cell state; "
                "pass initial=False and state='h'"
            )
        calls = [self._padded(call) for call in self._calls]
        if all(call.values.shape[1] == 1 for call in calls):  # one step a call
            calls = [join_calls(calls)]
        for call in calls:
            yield self._name, self.rows(call, self._path)

    def _padded(self, call: _Call) -> Padded:
        """The states that one call gave, and its inputs if they are recorded, both as (B, T, ...)."""
        values = call.outputs[0]
        if values.ndim > 3:
            values = values.flatten(2)
        values = batch_major(values, self._module, self.batch, self._path)
        if not self._options.inputs:
            return Padded(values=values)
        read = _numbers_as_units(call.args[0], axes=2).to(values.dtype) if call.args else None
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

    def _loops(self) -> NamedRows:
        """The calls, cut into loops: a cell may be run over several sequences one after the other."""
        for loop in cut_into_runs(self._as_steps(), self._is_next_step):
            yield self._name, self._loop_rows(self._with_first_state(loop))

    def _as_steps(self) -> list[_Call]:
        """The calls with nothing but states as outputs, (B, d) each: a cell may also give other outputs."""
        places = range(len(self._calls[0].outputs))
        if not self._is_torch_cell:
            places = _passed_on(self._calls) or places
        return [
            _Call(args=list(map(_as_rows, call.args)), outputs=[_as_rows(call.outputs[i]) for i in places])
            for call in self._calls
        ]

    def _with_first_state(self, loop: list[_Call]) -> list[_Call]:
        """The loop, with zeros for the states that its first call was not given: a user's cell may start from None."""
        first = loop[0]
        if self._is_torch_cell or len(loop) < 2 or len(first.args) >= len(loop[1].args):
            return loop
        if self._options.initial:
            raise KannError(
                f"the first call of {self._path!r} was given no state, so that the initial one is not known; pass "
                "initial=False"
            )
        args = list(first.args)
        for i, arg in enumerate(loop[1].args):
            if any(torch.equal(arg, output) for output in first.outputs):
                args.insert(i, torch.zeros_like(arg))
        return [_Call(args=args, outputs=first.outputs), *loop[1:]]

    def _is_next_step(self, loop: Sequence[_Call], call: _Call) -> bool:
        """Whether a call is the next step of a loop, and not the first one of another."""
        first, before = loop[0], loop[-1]
        size = len(call.outputs[0])
        if size > len(before.outputs[0]):  # sequences end during a loop, and none begins
            return False
        place = self._state_argument(loop)
        if place is None:  # nothing that goes in came out before, so that no call can be seen to start anew
            return True
        if not self._is_torch_cell and len(call.args) < len(before.args):
            return False  # no state is passed, as in the first call of a loop
        start, end = call.args[place], before.outputs[0][:size]
        if not self._is_torch_cell and len(first.args) < len(call.args):  # the loop began without a state
            return True
        if torch.equal(start, first.args[place][:size]) and not torch.equal(start, end):
            return False  # from where the loop began, such as a learned initial state
        return not self._is_torch_cell or continues(end, start, exactly=False)

    def _state_argument(self, loop: Sequence[_Call]) -> int | None:
        """Which argument is the state; of a user's cell, the one that was the output of the call before."""
        if self._is_torch_cell:
            return 1
        if len(loop) < 2:
            return None
        output = loop[0].outputs[0]
        return next((i for i, arg in enumerate(loop[1].args) if torch.equal(arg, output)), None)

    def _loop_rows(self, loop: Sequence[_Call]) -> SequenceRows:
        """The rows of one loop: padded if each step holds all sequences, packed if it holds those still running."""
        values = [self._state(call.outputs) for call in loop]
        sizes = np.array([len(part) for part in values])
        is_padded = bool((sizes == sizes[0]).all())
        join_steps: Callable[[list[Tensor]], Tensor] = partial(torch.stack, dim=1) if is_padded else torch.cat
        places, inputs, initial = [], None, None
        if self._options.inputs or self._options.initial:
            places = self._state_arguments(loop)
        if self._options.initial:
            initial = torch.cat([loop[0].args[i] for i in places[PARTS[self._options.state]]], dim=1)
        if self._options.inputs:
            inputs = join_steps([self._read(call, places) for call in loop])
            if self._gates is not None:
                inputs = self._gates(inputs)
        if not is_padded:
            return packed_rows(join_steps(values), sizes, inputs=inputs, initial=initial, limit=self.batch.limit)
        real = self.batch.real_of(self._path)
        if real is not None:
            require_right_padding(real, layer=self._path)
        return self.rows(Padded(values=join_steps(values), inputs=inputs, initial=initial), self._path)

    def _state(self, outputs: Sequence[Tensor]) -> Float[Tensor, "b d"]:
        """The first of the states, the second, or all of them side by side."""
        if "c" in self._options.state and len(outputs) < 2:
            raise KannError(
                f"state={self._options.state!r} is for LSTMs; {self._path!r} ({type(self._module).__name__}) gives "
                f"{len(outputs)} state; pass state='h'"
            )
        return torch.cat(list(outputs[PARTS[self._options.state]]), dim=1)

    def _state_arguments(self, loop: Sequence[_Call]) -> list[int]:
        """Which arguments pass the states on from one call to the next."""
        if self._is_torch_cell:
            return [1, 2][: len(loop[0].args) - 1]
        places = []
        for j, output in enumerate(loop[0].outputs):
            candidates = [i for i, arg in enumerate(loop[0].args) if arg.shape == output.shape and i not in places]
            if len(loop) > 1:  # the argument of the second call that is what the first one gave
                passed_on = [i for i in candidates if torch.equal(loop[1].args[i], output)]
                candidates = passed_on or candidates
            if len(candidates) != 1:
                shapes = [tuple(arg.shape) for arg in loop[0].args]
                raise KannError(
                    f"which argument of {self._path!r} is its state is not clear: it gives {tuple(output.shape)} as "
                    f"state {j} and takes {shapes}; pass inputs=False and initial=False"
                )
            places += candidates
        return places

    def _read(self, call: _Call, places: Sequence[int]) -> Float[Tensor, "b p"]:
        """The inputs of a call other than its states, which are at ``places``."""
        sequences = len(call.outputs[0])
        others = [arg for i, arg in enumerate(call.args) if i not in places]
        read = [arg for arg in others if arg.is_floating_point() and arg.ndim == 2 and len(arg) == sequences]
        if not read:  # such as a cell that looks words up by their numbers
            numbers = [_numbers_as_units(arg, axes=1) for arg in others if not arg.is_floating_point()]
            read = [arg.to(call.outputs[0].dtype) for arg in numbers if arg.ndim == 2 and len(arg) == sequences]
        if not read:
            raise KannError(f"layer {self._path!r} reads nothing but its own state; pass inputs=False")
        return torch.cat(read, dim=1)


def _arguments_of_torch_cell(args: Any, kwargs: Any, output: Tensor) -> list[Tensor]:
    """The arguments of one of torch's cells: always [x, h] or [x, h, c]."""
    x, hidden = (*args, *(kwargs[key] for key in ("input", "hx") if key in kwargs), None)[:2]
    states = list(tensors_of(hidden)) or [torch.zeros_like(output)] * 2
    return [*tensors_of(x), *states]


def _could_be_cell(read: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Whether a call that gives three axes or more may be a cell's: it takes such a state, and what a step reads."""
    takes_state = any(arg.shape == output.shape for arg in read for output in outputs)
    reads = any(arg.ndim in (1, 2) and len(arg) == len(outputs[0]) for arg in read)
    return takes_state and reads


def _passes_state_on(calls: Sequence[_Call]) -> bool:
    """Whether the second call goes on from a state that the first one gave, and reads something else besides.

    A block that a network applies several times, such as ALBERT's, gets its own output back and nothing new.
    """
    if len(calls) < 2 or not _passed_on(calls):
        return False
    first, second = calls[:2]
    states = [second.args[i] for i in _positions_of(first.outputs, second.args)]
    new = [arg for arg in second.args if not any(arg is state for state in states)]
    return any(not any(torch.equal(arg, old) for old in first.args) for arg in new)


def _passed_on(calls: Sequence[_Call]) -> list[int]:
    """Which outputs of a call went into the next one: in each of the first few, where some may be equal by chance."""
    pairs = list(pairwise(calls[:4]))
    if not pairs:
        return []
    return [
        i
        for i in range(len(calls[0].outputs))
        if all(_positions_of(before.outputs[i : i + 1], after.args) for before, after in pairs)
    ]


def _positions_of(values: Sequence[Tensor], args: Sequence[Tensor]) -> list[int]:
    """Where values stand among arguments, known by their numbers."""
    return [i for i, arg in enumerate(args) if any(torch.equal(arg, value) for value in values)]


def _numbers_as_units(values: Tensor, *, axes: int) -> Tensor:
    """Whole numbers, one for each of the leading axes, as units of width one; any other tensor as it is."""
    return values if values.is_floating_point() or values.ndim != axes else values[..., None]


def _as_rows(values: Tensor) -> Tensor:
    """A state as (B, d): one of a single sequence, (d,), as a batch of one, several axes of units as one."""
    if values.ndim == 1 and values.is_floating_point():
        return values[None]
    return values.flatten(1) if values.ndim > 2 else values


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies, since what follows may change its input in place, and a loop may reuse its buffers."""
    return [tensor.detach().clone() for tensor in tensors]
