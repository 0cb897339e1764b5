"""Watch torch's fused recurrent modules: every layer, both directions, h and c."""

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kann.errors import KannError, PaddingWarning
from kann.recording.batching import Batch
from kann.recording.kernels import Intercept, Kernel, Pass, run_layers
from kann.recording.ragged import Packed, Padded, Ragged
from kann.recording.selection import Target
from kann.recording.tracing import Results, Tracer, Wanted, handed_on, join, require_called
from kann.typing import Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _FusedCall:
    """What one call of a fused module gave."""

    start: Tensor
    """(l, b, d) h before the first step."""
    end: Tensor
    """(l, b, d) h after the last."""
    steps: Mapping[str, Padded | Ragged]
    """The states by the name of the layer; as rows where no later call can continue them."""


class FusedTracer(Tracer):
    """Records layers of an ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM``."""

    def __init__(self, module: nn.RNNBase, targets: Sequence[Target], wanted: Wanted):
        if "c" in wanted.state and not isinstance(module, nn.LSTM):
            raise KannError(f"state={wanted.state!r} is for LSTMs; {targets[0].path!r} is {type(module).__name__}")
        self._module, self._targets, self._wanted = module, targets, wanted
        last = all(target.level % module.num_layers == module.num_layers - 1 for target in targets)
        self._only_last = last and wanted.state == "h" and not (wanted.inputs and module.num_layers > 1)
        self._warned = False

    def names(self) -> Sequence[str]:
        """The names of the layers and directions."""
        return [target.name for target in self._targets]

    def attach(self, stack: contextlib.ExitStack) -> None:
        """Stand in front of ``forward``; calls of the kernel inside it are seen."""
        module, forward = self._module, self._module.forward
        replaced = module.__dict__.get("forward")

        def observed(*args: Any, **kwargs: Any) -> Any:
            packed = next((a for a in (*args, *kwargs.values()) if isinstance(a, PackedSequence)), None)
            order = None if packed is None or packed.unsorted_indices is None else packed.unsorted_indices.cpu().numpy()
            with Intercept(lambda function, arguments: self._see(function, arguments, order)):
                return forward(*args, **kwargs)

        def restore() -> None:
            del module.forward
            if replaced is not None:
                module.forward = replaced

        stack.callback(restore)
        module.forward = observed

    def begin(self, batch: Batch) -> None:
        """Forget the calls of the last batch."""
        super().begin(batch)
        self._calls: list[_FusedCall] = []

    def _see(self, function: Callable[..., Any], args: Sequence[Any], order: Any) -> Any:
        kernel, batch_first = Kernel.of(function, args, order), args[8] and isinstance(args[3], bool)
        if self._reads_padding(kernel):
            result, passes = function(*args), run_layers(self._without_padding(kernel))[1]
        elif self._only_last:
            result = function(*args)
            output = result[0].transpose(0, 1) if batch_first else result[0]
            single = kernel.at(kernel.layers - 1)
            passes = [Pass(kernel=single, output=output)] * kernel.layers
        else:
            result, passes = run_layers(kernel)
            result = (result[0].transpose(0, 1), *result[1:]) if batch_first else result
        steps = {target.name: self._steps(passes[target.level], target) for target in self._targets}
        self._calls.append(_FusedCall(start=kernel.hidden[0], end=result[1], steps=steps))
        return result

    def _reads_padding(self, kernel: Kernel) -> bool:
        span = self.batch.span
        if span is None or kernel.sizes is not None:
            return False
        if span.starts is not None:
            raise KannError(
                f"the padding of the batch is on the left, where {self._targets[0].path!r} reads it before the "
                "sequence; pad on the right"
            )
        if kernel.directions == 1:
            return False
        steps, samples = kernel.data.shape[:2]
        fits = len(span) == samples and int(span.lengths.max()) <= steps  # if not, that is found and said later
        return fits and int(span.lengths.min()) < steps

    def _without_padding(self, kernel: Kernel) -> Kernel:
        if not self._warned:
            warnings.warn(
                f"{self._targets[0].path!r} is bidirectional and reads the padding before the sequence; its states "
                "were recorded from the sequences alone, which differs from what the model computes; pack the "
                "sequences in the model, or pass lengths of all steps to record the padding too",
                PaddingWarning,
                stacklevel=2,
            )
            self._warned = True
        span = self.batch.span
        return kernel if span is None else kernel.packed(span)

    def _steps(self, seen: Pass, target: Target) -> Padded | Ragged:
        """The states of one layer and direction, copied: the model may change its output in place later."""
        kernel, wanted, reverse = seen.kernel, self._wanted, target.reverse
        values = seen.states(wanted.state, reverse=reverse)
        inputs = kernel.data if wanted.inputs else None
        initial = seen.initial(wanted.state, reverse=reverse).to(values.dtype) if wanted.initial else None
        if kernel.sizes is None:
            copies = [None if part is None else _batch_first(part, reverse=reverse) for part in (values, inputs)]
            return Padded(values=copies[0], inputs=copies[1], initial=initial)  # type: ignore[arg-type]
        packed = Packed(
            values=values,
            sizes=kernel.flat_sizes(),
            inputs=inputs,
            initial=initial,
            order=kernel.order,
            reverse=reverse,
        )
        return packed.rows(keep=self.batch.keep)

    def take(self, output: Any) -> Results:
        """The calls as sequences, those that continue each other as one."""
        require_called(self._calls, self._targets[0].path)
        joined = [[self._calls[0]]]
        for before, call in zip(self._calls, self._calls[1:], strict=False):
            if self._continues(before, call):
                joined[-1].append(call)
            else:
                joined.append([call])
        for calls in joined:
            for target in self._targets:
                yield target.name, self._rows([call.steps[target.name] for call in calls], target)

    def _rows(self, steps: Sequence[Padded | Ragged], target: Target) -> Ragged:
        if isinstance(steps[0], Ragged):
            return steps[0]
        return self.rows(join(steps), target.path)  # type: ignore[arg-type]

    def _continues(self, before: _FusedCall, call: _FusedCall) -> bool:
        """Whether a call goes on where the one before ended, as a decoder does that makes one step a call."""
        steps = next(iter(call.steps.values()))
        if isinstance(steps, Ragged) or self._module.bidirectional:
            return False
        return handed_on(before.end, call.start, exactly=steps.values.shape[1] > 1)


def _batch_first(values: Float[Tensor, "t b d"], *, reverse: bool) -> Float[Tensor, "b t d"]:
    values = values.transpose(0, 1)
    return values.flip(1) if reverse else values.clone(memory_format=torch.contiguous_format)
