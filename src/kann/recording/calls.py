"""Watch modules by their calls: steps of time if it is a cell, whole sequences if it gives (B, T, d)."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.errors import KannError
from kann.recording.batching import Batch, tensors_of
from kann.recording.layouts import batch_major
from kann.recording.ragged import Packed, Padded, Ragged, Span
from kann.recording.selection import Target
from kann.recording.tracing import Results, Tracer, Wanted, handed_on, join, require_called
from kann.typing import Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Call:
    """One call of a module: the tensors that went in and came out."""

    args: Sequence[Tensor]
    outputs: Sequence[Tensor]


class CallTracer(Tracer):
    """Records a module by its calls: steps of time if it is a cell, whole sequences if it gives (B, T, d)."""

    def __init__(self, target: Target, wanted: Wanted):
        self._name, self._path, self._wanted = target.name, target.path, wanted
        self._module: Any = target.module

    def names(self) -> Sequence[str]:
        """The name of the module."""
        return [self._name]

    def attach(self, stack: contextlib.ExitStack) -> None:
        """Hook the module."""
        stack.callback(self._module.register_forward_hook(self._see, with_kwargs=True).remove)

    def begin(self, batch: Batch) -> None:
        """Forget the calls of the last batch."""
        super().begin(batch)
        self._calls: list[_Call] = []

    def _see(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        outputs = [part for part in tensors_of(output) if part.is_floating_point()]
        if not outputs:
            raise KannError(f"layer {self._path!r} returns {type(output).__name__} without real numbers")
        # Copies: what follows may change its input in place, and a loop may reuse its buffers.
        kept = outputs[:1] if self._wanted.state == "h" else outputs
        self._calls.append(
            _Call(args=self._arguments(args, kwargs, kept[0]), outputs=[part.detach().clone() for part in kept])
        )

    def _arguments(self, args: Any, kwargs: Any, output: Tensor) -> list[Tensor]:
        """What went in, where that is needed; of torch's cells always [x, h] or [x, h, c]."""
        if not isinstance(self._module, nn.RNNCellBase):
            wanted = self._wanted.inputs or self._wanted.initial or output.ndim < 3
            return [part.detach().clone() for part in tensors_of((args, kwargs))] if wanted else []
        x, hidden = (*args, *(kwargs[key] for key in ("input", "hx") if key in kwargs), None)[:2]
        states = list(tensors_of(hidden)) or [torch.zeros_like(output)] * 2
        return [part.detach().clone() for part in (*tensors_of(x), *states)]

    def take(self, output: Any) -> Results:
        """The calls as steps of time, or each of them as sequences."""
        require_called(self._calls, self._path)
        first = self._calls[0].outputs[0]
        is_cell = isinstance(self._module, nn.RNNCellBase)
        if first.ndim == 3 and not is_cell:
            return self._sequences()
        if first.ndim <= 2 and (is_cell or len(self._calls) > 1):
            return self._loops()
        raise KannError(
            f"layer {self._path!r} gave {tuple(first.shape)} in a single call, without a time axis; pass a layer that "
            "gives (sequences, steps, units), or one that is called at every step"
        )

    # Modules that give whole sequences

    def _sequences(self) -> Results:
        if self._wanted.initial or self._wanted.state != "h":
            raise KannError(
                f"layer {self._path!r} gives (B, T, d) and has neither an initial state nor a cell state; "
                "pass initial=False and state='h'"
            )
        steps = [self._padded(call) for call in self._calls]
        if all(part.values.shape[1] == 1 for part in steps):  # one step a call
            steps = [join(steps)]
        for part in steps:
            yield self._name, self.rows(part, self._path)

    def _padded(self, call: _Call) -> Padded:
        values = batch_major(call.outputs[0], self._module, self.batch, self._path)
        if not self._wanted.inputs:
            return Padded(values=values)
        if not call.args or not call.args[0].is_floating_point() or call.args[0].ndim != 3:
            raise KannError(f"layer {self._path!r} reads no (B, T, p) of real numbers; pass inputs=False")
        inputs = batch_major(call.args[0], self._module, self.batch, self._path)
        if inputs.shape[:2] != values.shape[:2]:
            raise KannError(
                f"layer {self._path!r} reads {inputs.shape[1]} steps and gives {values.shape[1]}, so that no input "
                "belongs to each state; pass inputs=False"
            )
        return Padded(values=values, inputs=inputs)

    # Cells

    def _loops(self) -> Results:
        loops: list[list[_Call]] = []
        for call in self._calls:
            if loops and self._goes_on(loops[-1], call):
                loops[-1].append(call)
            else:
                loops.append([call])
        for loop in loops:
            yield self._name, self._loop_rows(loop)

    def _goes_on(self, loop: Sequence[_Call], call: _Call) -> bool:
        """Whether a call is the next step of a loop, and not the first one of another."""
        first, before = loop[0], loop[-1]
        size = len(_two(call.outputs[0]))
        if size > len(_two(before.outputs[0])):
            return False
        place = self._handed_place(loop)
        if place is None:
            return True
        start, end = _two(call.args[place]), _two(before.outputs[0])[:size]
        if torch.equal(start, _two(first.args[place])[:size]) and not torch.equal(start, end):
            return False  # from where the loop began, as a learned initial state
        return not isinstance(self._module, nn.RNNCellBase) or handed_on(end, start, exactly=False)

    def _handed_place(self, loop: Sequence[_Call]) -> int | None:
        """Which argument is the state: of an own cell, the one that was the output of the call before."""
        if isinstance(self._module, nn.RNNCellBase):
            return 1
        if len(loop) < 2:
            return None
        output = loop[0].outputs[0]
        return next((i for i, arg in enumerate(loop[1].args) if torch.equal(arg, output)), None)

    def _loop_rows(self, loop: Sequence[_Call]) -> Ragged:
        values = [self._state(call.outputs) for call in loop]
        inputs = initial = None
        if self._wanted.inputs or self._wanted.initial:
            places = self._state_places(loop)
            if self._wanted.initial:
                at = [places["hc".index(part)] for part in self._wanted.state]
                initial = torch.cat([_two(loop[0].args[place]) for place in at], dim=1)
            if self._wanted.inputs:
                inputs = [self._read(call, set(places), len(v)) for call, v in zip(loop, values, strict=True)]
        sizes = np.array([len(part) for part in values])
        if (sizes == sizes[0]).all():
            drive = None if inputs is None else torch.stack(inputs, dim=1)
            padded = Padded(values=torch.stack(values, dim=1), inputs=drive, initial=initial)
            return padded.rows(_unshifted(self.batch.span, self._path), keep=self.batch.keep, layer=self._path)
        drive = None if inputs is None else torch.cat(inputs)
        return Packed(values=torch.cat(values), sizes=sizes, inputs=drive, initial=initial).rows(keep=self.batch.keep)

    def _state(self, outputs: Sequence[Tensor]) -> Float[Tensor, "b d"]:
        if len(outputs) < len(self._wanted.state) or (self._wanted.state == "c" and len(outputs) < 2):
            raise KannError(
                f"state={self._wanted.state!r} is for LSTMs; {self._path!r} ({type(self._module).__name__}) gives "
                f"{len(outputs)} state; pass state='h'"
            )
        return torch.cat([_two(outputs["hc".index(part)]) for part in self._wanted.state], dim=1)

    def _state_places(self, loop: Sequence[_Call]) -> list[int]:
        """Which arguments hand the states on from one call to the next."""
        if isinstance(self._module, nn.RNNCellBase):
            return [1, 2][: len(loop[0].args) - 1]
        places = []
        for j, output in enumerate(loop[0].outputs):
            alike = [i for i, arg in enumerate(loop[0].args) if arg.shape == output.shape and i not in places]
            if len(loop) > 1:  # the argument of the second call that is what the first one gave
                handed = [i for i in alike if torch.equal(loop[1].args[i], output)]
                alike = handed or alike
            if len(alike) != 1:
                shapes = [tuple(arg.shape) for arg in loop[0].args]
                raise KannError(
                    f"which argument of {self._path!r} is its state is not clear: it gives {tuple(output.shape)} as "
                    f"state {j} and takes {shapes}; pass inputs=False and initial=False"
                )
            places += alike
        return places

    def _read(self, call: _Call, states: set[int], size: int) -> Float[Tensor, "b p"]:
        rest = [_two(arg) for i, arg in enumerate(call.args) if i not in states and arg.is_floating_point()]
        read = [arg for arg in rest if arg.ndim == 2 and len(arg) == size]
        if not read:
            raise KannError(f"layer {self._path!r} reads nothing but its own state; pass inputs=False")
        return torch.cat(read, dim=1)


def _two(values: Tensor) -> Float[Tensor, "b d"]:
    """One state of a single sequence as a batch of one."""
    return values[None] if values.ndim == 1 else values


def _unshifted(span: Span | None, layer: str) -> Span | None:
    if span is not None and span.starts is not None:
        raise KannError(
            f"the padding of the batch is on the left, where {layer!r} reads it before the sequence; pad on the right"
        )
    return span
