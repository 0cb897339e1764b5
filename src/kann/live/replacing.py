"""Replace a layer's state after every step while the model runs, and leave the model as it was afterwards."""

import contextlib
import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from kann.checks import require_choice
from kann.errors import KannError
from kann.live.stepping import Replace, replaced_states, run_step_by_step
from kann.recording.batching import tensors_of
from kann.recording.complex_states import as_complex, as_real, is_state
from kann.recording.kernels import Intercept, Kernel, run_layers
from kann.recording.layouts import has_channels_first
from kann.recording.recurrent import step_of
from kann.recording.running import every_module_called
from kann.recording.selection import Target, select
from kann.recording.shared import exclusive
from kann.recording.tracing import hook_last
from kann.recording.unrolling import batch_order, observe_forward, states_replaced, swapped_if


def only_target(model: nn.Module, layer: Any, state: str) -> Target:
    """The one layer that ``layer`` names, if its state can be replaced while the model runs."""
    require_choice(state, "state", ("h", "c", "hc"))
    targets, _ = select(model, layer)
    if len(targets) > 1:
        names = [target.name for target in targets]
        raise KannError(f"layer={layer!r} means {names}; an operator is of one layer; pass one of them")
    target = targets[0]
    if target.module is None:
        raise KannError(
            f"layer {target.name!r} is read off the model's output, and nothing would follow from replacing it; pass "
            "the name of the module that gives these states"
        )
    is_recurrent = isinstance(target.module, nn.RNNBase | nn.RNNCellBase)
    if "c" in state and is_recurrent and not isinstance(target.module, nn.LSTM | nn.LSTMCell):
        raise KannError(f"state={state!r} is for LSTMs; {target.path!r} is {type(target.module).__name__}")
    return target


def width_of(target: Target, state: str) -> int | None:
    """How wide the state of a layer is; None if only its calls tell."""
    module: Any = target.module
    if not isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return None
    widths = {"h": getattr(module, "proj_size", 0) or module.hidden_size, "c": module.hidden_size}
    return sum(widths[part] for part in state)


@contextlib.contextmanager
def replaced(model: nn.Module, target: Target, replace: Replace, *, state: str, width: int) -> Iterator[None]:
    """Run a model so that a layer's states, ``width`` units wide, become ``replace(states)`` after every step."""
    rule = None
    if isinstance(target.module, nn.RNNBase):
        rule = step_of(model, target.name).rule
    replacement = _Replacement(target, replace, state=state, width=width, rule=rule)
    refusal = KannError(
        f"the states of {target.path!r} are being replaced already, in this thread or another; leave the other "
        "kann.intervene first, and keep or remove all modes in one"
    )
    with exclusive(states_replaced(replacement.module), lambda: refusal), contextlib.ExitStack() as stack:
        stack.enter_context(every_module_called())
        if isinstance(replacement.module, nn.RNNBase):
            observe_forward(replacement.module, replacement, stack, first=True)
        else:
            hook_last(replacement.module, replacement.on_call, stack)
        yield


class _Replacement:
    """Replaces the states of one layer in the thread that asked for it, and refuses to run in others."""

    def __init__(self, target: Target, replace: Replace, *, state: str, width: int, rule: Any):
        self.module: Any = target.module
        self._rule = rule
        self._target, self._replace, self._state, self._width = target, replace, state, width
        self._thread = threading.get_ident()

    @property
    def is_watching(self) -> bool:
        """True: every call counts; one that another thread makes is refused."""
        if self._thread != threading.get_ident():
            raise KannError(
                f"another thread runs {self._target.path!r} inside of kann.intervene and must not touch it; wait until "
                "it is done, or give each thread a copy of the model"
            )
        return True

    # Fused recurrent modules

    def intercept(self, arguments: Sequence[Any]) -> Intercept:
        """What runs the kernel calls of one call of the module layer by layer."""
        order = batch_order(arguments)
        return Intercept(lambda function, args: self._on_kernel_call(Kernel.of(function, args, order), function, args))

    def on_return(self, output: Any) -> None:
        """Leave what ``forward`` returned as it is."""

    def _on_kernel_call(self, kernel: Kernel, function: Any, args: Sequence[Any]) -> Any:
        first = self._first_level(kernel)
        if not first <= self._target.level < first + kernel.layers:  # the recorder runs layers one by one
            return function(*args)

        def run_layer(level: int, single: Kernel) -> tuple[Tensor, ...]:
            if first + level != self._target.level:
                return single.run()
            where: Any = {"state": self._state, "reverse": self._target.reverse}
            return run_step_by_step(single, self._rows_replaced, rule=self._rule, **where)

        (output, *hidden), _ = run_layers(kernel, run_layer)
        # Only the call on padded data has the flag batch_first; with packed data argument 3 is the list of weights.
        batch_first = isinstance(args[3], bool) and args[8]
        return swapped_if(batch_first, output), *hidden

    def _first_level(self, kernel: Kernel) -> int:
        """The first of the module's layers that a call of its kernel runs, told by the weights that it is given."""
        weights = self.module._flat_weights
        place = next((i for i, weight in enumerate(weights) if weight is kernel.weights[0]), 0)
        return place * self.module.num_layers // len(weights)

    # Cells and other modules

    def on_call(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Give back the output with its states replaced; a forward hook that is last."""
        if not self.is_watching:
            return None
        found = [part for part in tensors_of(output) if is_state(part)]
        if len(found) < len(self._state) or (self._state == "c" and len(found) < 2):
            raise KannError(
                f"state={self._state!r} is not among what {self._target.path!r} ({type(module).__name__}) gives: "
                f"{len(found)} tensors of real numbers; pass state='h', or a layer that gives real numbers"
            )
        states = tuple(found[:2])
        if self._state == "h":
            states = (self._first_as_wide(found),)
            if states[0].is_complex() or states[0].shape[-1] != self._width == _width_in_all(states[0]):
                rows = self._rows_replaced(as_real(states[0]).flatten(1))
                new = as_complex(rows.reshape(as_real(states[0]).shape), states[0])
                return with_tensors(output, {id(states[0]): new})
        turned = has_channels_first(module, states[0]) or self._is_image(states[0])
        new = replaced_states(tuple(turned_if(turned, part) for part in states), self._rows_replaced, self._state)
        pairs = zip(states, new, strict=True)
        return with_tensors(output, {id(old): turned_back_if(turned, part) for old, part in pairs})

    def _first_as_wide(self, found: Sequence[Tensor]) -> Tensor:
        """The first output that is as wide as the operator: a cell may give an output before its state."""
        return next((part for part in found if _width_in_all(part) == self._width), found[0])

    def _is_image(self, values: Tensor) -> bool:
        """Whether values are (B, C, H, W) with as many channels as the operator has units, as along depth."""
        return values.ndim == 4 and values.shape[-1] != self._width == values.shape[1]

    def _rows_replaced(self, values: Tensor) -> Tensor:
        """States (..., d) with each replaced."""
        if values.shape[-1:] != (self._width,):
            raise KannError(
                f"the operator is for {self._width} units; layer {self._target.path!r} gave {tuple(values.shape)}; "
                "pass the layer, and the state, whose states the operator was fitted to"
            )
        if values.ndim == 2:
            return self._replace(values)
        return self._replace(values.reshape(-1, self._width)).reshape(values.shape)


def _width_in_all(values: Tensor) -> int:
    """How many real numbers each sequence's state holds, over all its axes; of complex numbers two each."""
    return as_real(values[:1]).numel()


def turned_if(turned: bool, values: Tensor) -> Tensor:
    """The channels along the last axis, if they are along the second."""
    if turned:
        return values.movedim(1, -1)
    return values


def turned_back_if(turned: bool, values: Tensor) -> Tensor:
    """The channels along the second axis again, if `turned_if` put them along the last."""
    if turned:
        return values.movedim(-1, 1)
    return values


def with_tensors(value: Any, new: Mapping[int, Tensor]) -> Any:
    """The same nested structure with some tensors, known by their ``id``, replaced by others."""
    if isinstance(value, Tensor):
        return new.get(id(value), value)
    if isinstance(value, Mapping):  # also what HuggingFace models return, which is a dataclass too
        changed: Any = copy.copy(value)
        for key, item in value.items():
            changed[key] = with_tensors(item, new)
        return changed
    if isinstance(value, list | tuple):
        items = [with_tensors(item, new) for item in value]
        if hasattr(value, "_fields"):  # a namedtuple takes its fields one by one
            return type(value)(*items)
        return type(value)(items)
    if hasattr(value, "__dataclass_fields__"):
        changed = copy.copy(value)
        for name in value.__dataclass_fields__:
            object.__setattr__(changed, name, with_tensors(getattr(value, name), new))
        return changed
    return value
