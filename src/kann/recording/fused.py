"""Record torch's fused recurrent modules: every layer, both directions, h and c."""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.overrides import TorchFunctionMode

from kann.data.states import StatePart
from kann.errors import KannError
from kann.recording.layer_selection import Target, state_widths
from kann.recording.recurrent import gate_values, lstm_gates
from kann.recording.runner import in_force, shared
from kann.recording.sequence_data import Batch, RealSteps, tensors_of
from kann.recording.tracer import (
    NamedRows,
    Padded,
    SequenceRows,
    StateOptions,
    Tracer,
    hook_last,
    join_calls,
    packed_rows,
    previous_places,
    require_called,
    require_right_padding,
)
from kann.typing import Array, Float, Int

KERNELS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
"""The functions that ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` call: one call runs all layers over all steps."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Kernel:
    """One call of a fused kernel."""

    function: Callable[..., Any]
    """Which of `KERNELS`."""
    data: Float[Tensor, "t b p"] | Float[Tensor, "n p"]
    """Its inputs, in order of time: padded, or packed."""
    sizes: Tensor | None
    """Batch sizes of packed data; None for padded data."""
    order: Int[Array, " b"] | None
    """The place of each sequence of the batch among the packed ones; None if they are in the batch's order."""
    hidden: tuple[Float[Tensor, "l b _"], ...]
    """Initial states of all layers and directions: (h,), or (h, c) of an LSTM."""
    weights: Sequence[Tensor]
    """All parameters, as torch orders them."""
    bias: bool
    """Whether there are biases among them."""
    layers: int
    """How many layers."""
    dropout: float
    """Between layers, while training."""
    training: bool
    """Whether the module is training."""
    directions: int
    """1, or 2 if bidirectional."""
    batch_first: bool = False
    """Whether the call takes and gives the axis of sequences first; ``data`` have it second all the same."""

    @staticmethod
    def of(function: Callable[..., Any], args: Sequence[Any], order: Int[Array, " b"] | None) -> "Kernel":
        """Read the arguments of a call.

        There are two forms: (data, hidden, weights, bias, …, batch_first) for padded data, and
        (data, batch_sizes, hidden, weights, bias, …) for packed data.
        """
        is_padded = isinstance(args[3], bool)
        batch_first = is_padded and args[8]
        hidden, weights, bias, layers, drop, training, bidirectional = args[1:8] if is_padded else args[2:9]
        return Kernel(
            function=function,
            data=swapped_if(batch_first, args[0]),
            sizes=None if is_padded else args[1],
            order=order,
            hidden=(hidden,) if isinstance(hidden, Tensor) else tuple(hidden),
            weights=weights,
            bias=bias,
            layers=layers,
            dropout=drop,
            training=training,
            directions=1 + bidirectional,
            batch_first=batch_first,
        )

    def at(self, level: int) -> "Kernel":
        """Return the same call for one layer alone.

        Its ``data`` is still the input of the first layer; replace it with the output of the layer below.
        """
        if self.layers == 1:
            return self
        count, at = len(self.weights) // self.layers, slice(level * self.directions, (level + 1) * self.directions)
        return replace(
            self,
            hidden=tuple(part[at] for part in self.hidden),
            weights=self.weights[level * count : (level + 1) * count],
            layers=1,
            dropout=0.0,
        )

    def run(self) -> tuple[Tensor, ...]:
        """Call the kernel."""
        hidden: Any = self.hidden if self.function is torch.lstm else self.hidden[0]
        options = (self.weights, self.bias, self.layers, self.dropout, self.training, self.directions == 2)
        if self.sizes is None:
            return self.function(self.data, hidden, *options, False)
        return self.function(self.data, self.sizes, hidden, *options)

    def packed(self, real: RealSteps) -> "Kernel":
        """Return the same call on the sequences packed, so that the kernel does not read their padding."""
        packed = pack_padded_sequence(self.data, torch.from_numpy(real.lengths), enforce_sorted=False)
        by_length = packed.sorted_indices
        return replace(
            self,
            data=packed.data,
            sizes=packed.batch_sizes,
            order=packed.unsorted_indices.cpu().numpy(),  # type: ignore[union-attr]
            hidden=tuple(part.index_select(1, by_length) for part in self.hidden),  # type: ignore[arg-type]
        )

    def flat_sizes(self) -> Int[Array, " t"]:
        """Count the sequences that have not ended at each step."""
        return self.sizes.numpy() if self.sizes is not None else np.full(self.data.shape[0], self.data.shape[1])

    def weights_of(self, direction: int) -> Sequence[Tensor]:
        """Return the parameters of one direction of a single layer."""
        count = len(self.weights) // self.directions
        return self.weights[direction * count : (direction + 1) * count]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pass:
    """Inputs and outputs of one layer, in all its directions."""

    kernel: Kernel
    """The call of this layer alone, with what it read."""
    output: Tensor
    """h of all steps, the directions side by side; shaped as what was read."""
    replaced: Tensor | None = None
    """The output as forward hooks of the user changed it, in the same shape; None if there are none."""

    def states(self, state: str, *, reverse: bool) -> Tensor:
        """Return the states of one direction: "h" as hooks may have changed it, "c", or "hc" for both side by side."""
        output = self.output if self.replaced is None else self.replaced
        parts = [self._c(reverse) if part == "c" else self._half(output, reverse) for part in state]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)  # which would copy a single one

    def initial(self, state: str, *, reverse: bool) -> Float[Tensor, "b d"]:
        """Return the state that ``state`` names before the first step."""
        return torch.cat([self.kernel.hidden["hc".index(part)][int(reverse)] for part in state], dim=-1)

    def _half(self, output: Tensor, reverse: bool) -> Tensor:
        return output.chunk(self.kernel.directions, dim=-1)[int(reverse)]

    def _c(self, reverse: bool) -> Tensor:
        """Return every c of an LSTM layer from its inputs and all its h, both in order of time.

        c_t = f_t c_{t−1} + i_t g_t, where the gates are those of x_t and h_{t−1}. The output gate, and the projection
        if there is one, lie between c and h and are not needed.
        """
        kernel, h, sizes = self.kernel, self._half(self.output, reverse).flatten(0, -2), self.kernel.flat_sizes()
        h0, c0 = (part[int(reverse)] for part in kernel.hidden)
        precise = torch.promote_types(h.dtype, torch.float32)  # half precision would lose more here than in the network
        with torch.no_grad(), torch.autocast(h.device.type, enabled=False):
            c0, width = c0.to(precise), c0.shape[1]
            weights = kernel.weights_of(int(reverse))[: 2 + 2 * kernel.bias]
            # Three quarters of the rows of each weight are those of the gates i, f and g, the last quarter that of o.
            weight_ih, weight_hh, *biases = (weight[: 3 * width].to(precise) for weight in weights)
            before = torch.from_numpy(previous_places(sizes, reverse=reverse)).to(h.device)
            h_before = torch.cat([h0, h]).to(precise)[before]
            sums = linear(kernel.data.flatten(0, -2).to(precise), weight_ih, biases[0] + biases[1] if biases else None)
            i, f, g = lstm_gates(sums.addmm_(h_before, weight_hh.T).split(width, dim=1), in_place=True)
            c = i * g
            _scan(c, f, c0, sizes.tolist(), reverse=reverse)
        return c.to(h.dtype).reshape(*self.output.shape[:-1], -1)


def _scan(added: Tensor, forget: Tensor, initial: Tensor, sizes: Sequence[int], *, reverse: bool) -> None:
    """Make c_t = f_t c_{t−1} + i_t g_t of the products i_t g_t, in place and in order of time."""
    steps = list(zip(added.split(sizes), forget.split(sizes), strict=True))
    before = initial
    for c, f in reversed(steps) if reverse else steps:
        if len(before) < len(c):  # read from the end, shorter sequences start later
            before = torch.cat([before, initial[len(before) : len(c)]])
        before = c.addcmul_(f, before[: len(c)])


def run_layers(
    kernel: Kernel, run_layer: Callable[[int, Kernel], tuple[Tensor, ...]] = lambda _, single: single.run()
) -> tuple[tuple[Tensor, ...], list[Pass]]:
    """Run a call layer by layer; its result, and what each layer read and gave.

    ``run_layer(level, single)`` runs one layer in place of its kernel.
    """
    data, output, passes, ends = kernel.data, kernel.data, [], []
    for level in range(kernel.layers):
        single = replace(kernel.at(level), data=data)
        output, *hidden = run_layer(level, single)
        passes.append(Pass(kernel=single, output=output))
        ends.append(hidden)
        data = output
        if kernel.training and kernel.dropout and level < kernel.layers - 1:
            data = dropout(output, kernel.dropout)
    return (swapped_if(kernel.batch_first, output), *(torch.cat(parts) for parts in zip(*ends, strict=True))), passes


class Intercept(TorchFunctionMode):
    """Inside it, ``handle(kernel, run)`` gives the result of each fused kernel; ``run()`` is the call as it was made.

    ``arguments`` are those of the module whose ``forward`` makes the calls.
    """

    def __init__(self, arguments: Sequence[Any], handle: Callable[[Kernel, Callable[[], Any]], Any]):
        super().__init__()
        packed = next((argument for argument in arguments if isinstance(argument, PackedSequence)), None)
        order = None if packed is None else packed.unsorted_indices
        self._order, self._handle = None if order is None else order.cpu().numpy(), handle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in KERNELS:
            return func(*args, **(kwargs or {}))
        return self._handle(Kernel.of(func, args, self._order), partial(func, *args))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _FusedCall:
    """The results of one call of a fused module."""

    start: Tensor
    """(l, b, d) h before the first step."""
    end: Tensor
    """(l, b, d) h after the last."""
    layers: Mapping[str, Padded | SequenceRows]
    """The states by the name of the layer; as rows where no later call can continue them."""


class FusedTracer(Tracer):
    """Records layers of an ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM``."""

    def __init__(self, module: nn.RNNBase, targets: Sequence[Target], options: StateOptions):
        whole = "".join(state_widths(module))
        if not set(options.state or "") <= set(whole):
            raise KannError(f"state={options.state!r} is for LSTMs; {targets[0].path!r} is {type(module).__name__}")
        super().__init__([target.name for target in targets])
        self._module, self._targets, self._options = module, targets, options
        self._state = options.state or whole
        only_last = all(target.level % module.num_layers == module.num_layers - 1 for target in targets)
        needs_lower_layers = options.inputs and module.num_layers > 1
        # The module's own output is then all that is needed, and its layers need not be run one by one.
        self._output_suffices = only_last and self._state == "h" and not needs_lower_layers

    def attach(self, stack: contextlib.ExitStack) -> None:
        """Ask to be told of the kernel calls inside the module's ``forward``, and of what hooks make of its output.

        A hook alone would not do: it sees the module's output, which is h of the last layer alone.
        """
        observe_forward(self._module, self._on_forward, stack)
        hook_last(self._module, self._on_output, stack)

    def _on_forward(self, forward: Callable[[], Any], arguments: Sequence[Any]) -> Any:
        """Run ``forward`` with its kernel calls handed to this tracer; note its output before any hook has seen it."""
        if not self.is_watching:
            return forward()
        if "c" in self._state and in_force(states_replaced(self._module)):
            raise KannError(
                f"state={self._state!r} of {self._targets[0].path!r} cannot be recorded inside of "
                "kann.intervene, where cell states do not follow from the outputs; pass state='h'"
            )
        self._passes = []
        self.reads_data = not self._targets[0].path or any(
            part is arguments[0] for part in (self.batch.content, *tensors_of(self.batch.content))
        )
        with Intercept(arguments, self._on_kernel_call):
            output = forward()
        self._returned, self._versions = output, _versions(output)
        return output

    def noted(self) -> list["_FusedCall"]:
        """Return the calls of the kernel."""
        return self._calls

    def put_back(self, noted: Any, changed: Sequence[Any] = ()) -> None:
        """Put back the calls of a run."""
        self._calls = noted

    def begin(self, batch: Batch) -> None:
        """Forget the calls of the last batch."""
        super().begin(batch)
        self._calls: list[_FusedCall] = []
        self._passes: list[Pass] = []  # of the last layer, in the module's call that is running

    def _on_kernel_call(self, kernel: Kernel, run: Callable[[], Any]) -> Any:
        """Run the kernel, whole or layer by layer, keep what its layers gave, and return its result."""
        padding = self._padding_read_first(kernel)
        if padding is not None:
            self.warn_once(
                f"{self._targets[0].path!r} is bidirectional and reads the padding before the sequence; its states "
                "were recorded from the sequences alone, which differs from what the model computes; pack the "
                "sequences in the model, or pass lengths of all steps to record the padding too"
            )
            result, passes = run(), run_layers(kernel.packed(padding))[1]
        elif self._output_suffices:
            result = run()
            last = Pass(kernel=kernel.at(kernel.layers - 1), output=swapped_if(kernel.batch_first, result[0]))
            passes = [last] * kernel.layers
        else:
            result, passes = run_layers(kernel)
        layers = {target.name: self._states(passes[target.level], target) for target in self._targets}
        self._calls.append(_FusedCall(start=kernel.hidden[0], end=result[1], layers=layers))
        self._passes.append(passes[-1])
        return result

    def _on_output(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Record what the model goes on with, if forward hooks of the user changed it; a forward hook that is last."""
        has_other_hooks = len(module._forward_hooks) > 1 or bool(nn.modules.module._global_forward_hooks)
        if not self.is_watching or not self._passes or not has_other_hooks:
            return
        if output is self._returned and _versions(output) == self._versions:
            return
        last = self._module.num_layers - 1
        targets = [target for target in self._targets if target.level == last and "h" in self._state]
        if not targets:  # a hook does not reach lower layers and cell states
            return
        tensors = [part for part in tensors_of(output) if part.is_floating_point()]
        changed = replace(self._passes[-1], replaced=self._hooked_states(tensors))
        call = self._calls[-1]
        end = call.end
        if len(tensors) > 1 and tensors[1].numel() == end.numel():  # the state that a next call may continue from
            end = tensors[1].reshape(end.shape)
        layers = {target.name: self._states(changed, target) for target in targets}
        self._calls[-1] = replace(call, end=end, layers={**call.layers, **layers})

    def _hooked_states(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the module's output after its hooks, in the layout of the kernel's."""
        layer = self._passes[-1]
        expected, got = layer.output.shape, None
        if tensors:
            states = tensors[0]
            if layer.kernel.sizes is None and states.ndim == 2:  # a single sequence without an axis of sequences
                states = states[:, None]
            elif layer.kernel.sizes is None:
                states = swapped_if(self._module.batch_first, states)
            if states.shape == expected and len(self._passes) == 1:
                return states
            got = tuple(tensors[0].shape)
        raise KannError(
            f"a forward hook changes the output of {self._targets[0].path!r} to {got or 'no tensor'}, which are not "
            f"the states of all steps that were recorded before it, {tuple(expected)}; remove the hook, pack padded "
            "sequences in the model, or pass layer= a function of the model's output"
        )

    def _padding_read_first(self, kernel: Kernel) -> RealSteps | None:
        """Return the real steps of a batch whose backward direction reads padding first, else None."""
        real = self.batch.real_of(self._targets[0].path)
        if real is None or kernel.sizes is not None:
            return None
        require_right_padding(real, layer=self._targets[0].path)
        steps, sequences = kernel.data.shape[:2]
        # Lengths that do not fit raise in `take`, with the name of the layer.
        fits = len(real) == sequences and int(real.lengths.max()) <= steps
        return real if kernel.directions == 2 and fits and int(real.lengths.min()) < steps else None

    def _states(self, layer: Pass, target: Target) -> Padded | SequenceRows:
        """Return the states of one layer and direction, copied: the model may change its output in place later."""
        kernel, options, reverse = layer.kernel, self._options, target.reverse
        values = layer.states(self._state, reverse=reverse)
        inputs = kernel.data if options.inputs else None
        if options.inputs == "gates":
            inputs = gate_values(target)(kernel.data)
        initial = layer.initial(self._state, reverse=reverse).to(values.dtype) if options.initial else None
        if kernel.sizes is None:
            if inputs is not None:
                inputs = _batch_first_copy(inputs, reverse=reverse)
            return Padded(values=_batch_first_copy(values, reverse=reverse), inputs=inputs, initial=initial)
        return packed_rows(
            values,
            kernel.flat_sizes(),
            inputs=inputs,
            initial=initial,
            order=kernel.order,
            reverse=reverse,
        )

    def take(self, output: Any) -> NamedRows:
        """Return the calls as sequences, those that continue each other as one."""
        require_called(self._calls, self._targets[0].path)
        runs: list[list[_FusedCall]] = []
        for call in self._calls:
            if runs and self._continues(runs[-1][-1], call):
                runs[-1].append(call)
            else:
                runs.append([call])
        for calls in runs:
            for target in self._targets:
                rows: Any = [call.layers[target.name] for call in calls]
                if isinstance(rows[0], SequenceRows):  # then it is the only one
                    rows = rows[0]
                else:
                    rows = replace(self.rows(join_calls(rows), target.path), reverse=target.reverse)
                yield target.name, replace(rows, parts=self._parts())

    def _parts(self) -> tuple[StatePart, ...]:
        """Return the parts of a state, h and c of an LSTM."""
        widths = state_widths(self._module)
        return tuple(StatePart(name=part, shape=(widths[part],)) for part in self._state)

    def _continues(self, before: _FusedCall, call: _FusedCall) -> bool:
        """Return True if a call goes on where another ended, as a decoder does that makes one step a call.

        Between single steps a model may change the state, by a mask for instance; there only a start from zero begins
        a new sequence, unless the state had come to zero by itself.
        """
        states = next(iter(call.layers.values()))
        if isinstance(states, SequenceRows) or self._module.bidirectional or before.end.shape != call.start.shape:
            return False
        if states.values.shape[1] > 1:
            return torch.equal(before.end, call.start)
        return bool(call.start.any()) or not bool(before.end.any())


def states_replaced(module: nn.Module) -> Hashable:
    """Return the key in `shared` under which a module's states are replaced while it runs."""
    return "states replaced", id(module)


Observer = Callable[[Callable[[], Any], Sequence[Any]], Any]
"""Runs the ``forward`` of a module, a function without arguments, given what the module was called with."""


def observe_forward(
    module: nn.RNNBase, observer: Observer, stack: contextlib.ExitStack, *, first: bool = False
) -> None:
    """Let an observer run the ``forward`` of a fused module until ``stack`` is closed.

    Observers are nested: what the ``first`` one makes of a kernel call is what all others see.
    """
    observers = stack.enter_context(shared(("forward", id(module)), partial(_observed_forward, module)))
    observers.insert(0 if first else len(observers), observer)
    stack.callback(observers.remove, observer)


@contextlib.contextmanager
def _observed_forward(module: nn.RNNBase) -> Iterator[list[Observer]]:
    """Replace ``forward`` by one that observers run; give the list of observers."""
    forward, replaced = module.forward, module.__dict__.get("forward")
    observers: list[Observer] = []

    def observed(*args: Any, **kwargs: Any) -> Any:
        run = partial(forward, *args, **kwargs)
        for observer in observers[::-1]:  # a copy: another thread may begin or end a recording meanwhile
            run = partial(observer, run, (*args, *kwargs.values()))
        return run()

    module.forward = observed
    try:
        yield observers
    finally:
        del module.forward
        if replaced is not None:
            module.forward = replaced


def _versions(output: Any) -> list[Any]:
    """Return how often each tensor was changed in place, or unique objects where torch does not count it."""
    return [object() if part.is_inference() else part._version for part in tensors_of(output)]


def swapped_if(swap: bool, values: Tensor) -> Tensor:
    """Return the values with the axes of time and of sequences exchanged, or as they are."""
    return values.transpose(0, 1) if swap else values


def _batch_first_copy(values: Float[Tensor, "t b d"], *, reverse: bool) -> Float[Tensor, "b t d"]:
    """Return a copy with the axis of sequences first, in the order in which the steps were read."""
    values = values.transpose(0, 1)
    return values.flip(1) if reverse else values.clone(memory_format=torch.contiguous_format)
