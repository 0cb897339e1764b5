"""Run a model and leave it as it was."""

import contextlib
import random
import threading
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.typing import Array


@dataclass(slots=True, eq=False)
class _Change:
    """A change that is in force."""

    value: Any
    """The value of its context manager."""
    undo: contextlib.ExitStack
    """Undoes the change when it is closed."""
    users: int = 0
    """How many recordings rely on it."""


_CHANGES: dict[Hashable, _Change] = {}
_LOCK = threading.RLock()  # a signal handler may interrupt its thread here and record by itself


@contextlib.contextmanager
def shared(key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
    """Enter ``make()``, unless another recording has under the same ``key``; the last one to leave exits it."""
    with _LOCK:
        change = _CHANGES.get(key)
        if change is None:
            undo = contextlib.ExitStack()
            change = _Change(value=undo.enter_context(make()), undo=undo)
            _CHANGES[key] = change
        change.users += 1
    try:
        yield change.value
    finally:
        with _LOCK:
            change.users -= 1
            if not change.users:
                del _CHANGES[key]
                change.undo.close()


@contextlib.contextmanager
def exclusive(key: Hashable, refusal: Callable[[], Exception]) -> Iterator[None]:
    """Enter as the only thread under ``key``; all others get the error ``refusal``."""
    with contextlib.ExitStack() as stack:
        with _LOCK:
            if in_force(key):
                raise refusal()
            stack.enter_context(shared(key, contextlib.nullcontext))
        yield


def in_force(key: Hashable) -> bool:
    """Return True if a change under this key has been made and not undone yet."""
    return key in _CHANGES


NOT_CONTIGUOUS = ".*weights are not part of single contiguous chunk of memory.*"
"""cudnn's warning about one layer's weights, which are a part of the module's; it copies them, which takes no time."""


@contextlib.contextmanager
def evaluation_mode(model: nn.Module, *, gradients: bool = False) -> Iterator[None]:
    """Evaluate a model; afterwards restore modes, buffers and random numbers, whatever happened.

    Gradients are off, or on if ``gradients``. All other changes are shared with other threads, which may be recording
    too: the last one restores them.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(shared("random numbers", _restored_random_numbers))
        for device in {p.device for p in model.parameters() if p.device.type == "cuda"}:
            stack.enter_context(shared(("random numbers", device), partial(torch.random.fork_rng, devices=[device])))
        for module in model.modules():
            stack.enter_context(shared(("module", id(module)), partial(_restored_module, module)))
        stack.enter_context(every_module_called())
        stack.enter_context(torch.set_grad_enabled(gradients))
        with contextlib.suppress(NotImplementedError):  # an exported program stays in the mode it was exported in
            model.eval()
        if gradients:
            # cudnn differentiates a recurrent module in training mode only. Without dropout both modes agree.
            for module in model.modules():
                if isinstance(module, nn.RNNBase):
                    differentiable = partial(_changed, module, training=True, dropout=0.0)
                    stack.enter_context(shared(("backward", id(module)), differentiable))
        yield


@contextlib.contextmanager
def _changed(thing: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object, and restore them afterwards."""
    before = {name: getattr(thing, name) for name in values}
    for name, value in values.items():
        setattr(thing, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


@contextlib.contextmanager
def every_module_called() -> Iterator[None]:
    """Let a model run so that every module is called with tensors, and without warnings about how it is done."""
    with shared("modules are called", _every_module_called):
        yield


@contextlib.contextmanager
def returned_hidden_states(model: nn.Module) -> Iterator[None]:
    """Let a HuggingFace model return its hidden states, by the switch in its configuration."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    with contextlib.ExitStack() as stack:
        for config in configs:
            if hasattr(config, "output_hidden_states"):
                stack.enter_context(
                    shared(("config", id(config)), partial(_changed, config, output_hidden_states=True))
                )
        yield


@contextlib.contextmanager
def _restored_module(module: nn.Module) -> Iterator[Callable[[], None]]:
    """Restore the mode, the buffers and the attributes of a module, not those of the modules inside.

    The value restores all but the mode at once.
    """
    training = getattr(module, "training", None)  # which torch.jit.freeze takes away
    restore = _kept_data(module)
    try:
        yield restore
    finally:
        restore()
        if training is not None:
            module.training = training


def reset_state(model: nn.Module) -> None:
    """Restore, inside `evaluation_mode`, what a model keeps in buffers and attributes, such as a state ``self.h``."""
    for module in model.modules():
        if in_force(("module", id(module))):
            _CHANGES["module", id(module)].value()


OF_TORCH = frozenset(nn.Module().__dict__)
"""Attributes that every module has."""


def is_of_torch(module: nn.Module) -> bool:
    """Return True if a module is one of torch's own, which keep no state in attributes."""
    return type(module).__module__.startswith("torch.")


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that hold data, which it may change while it runs."""
    if is_of_torch(module):
        return {}
    return {name: value for name, value in module.__dict__.items() if name not in OF_TORCH and _is_data(value)}


def _is_data(value: Any) -> bool:
    """Return True if a value is numbers, text or tensors, by themselves or in containers."""
    if isinstance(value, dict):
        return all(map(_is_data, value.values()))
    if isinstance(value, list | tuple | deque):
        return all(map(_is_data, value))
    return value is None or isinstance(value, int | float | complex | str | Tensor | np.ndarray)


def _kept_data(module: nn.Module) -> Callable[[], None]:
    """Return a function that restores the buffers and attributes of a module as they are now."""
    buffers = {name: _kept(buffer) for name, buffer in module._buffers.items()}
    attributes = {name: _kept(value) for name, value in attributes_of(module).items()}

    def restore() -> None:
        if isinstance(module, torch.jit.ScriptModule):  # its buffers are not in a dict of Python
            for name, put_back in buffers.items():
                setattr(module, name, put_back())
        else:
            module._buffers.update({name: put_back() for name, put_back in buffers.items()})
        for name, value in attributes_of(module).items():
            # A new flag tells that something was set up which stays, such as the hooks of transformers.
            if name not in attributes and not isinstance(value, bool):
                delattr(module, name)
        for name, put_back in attributes.items():
            object.__setattr__(module, name, put_back())

    return restore


def _kept(value: Any) -> Callable[[], Any]:
    """Return a function that restores the content of a value and returns the value."""
    if isinstance(value, Tensor) and not value.is_inference():
        return partial(_restored_tensor, value, value._version, value.detach().clone())
    if isinstance(value, np.ndarray):
        return partial(_restored_array, value, value.copy())
    if isinstance(value, list | deque | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return partial(_restored_container, value, {key: _kept(item) for key, item in items})
    return lambda: value


def _restored_tensor(tensor: Tensor, version: int, content: Tensor) -> Tensor:
    # torch counts the changes in place; without one there is nothing to copy.
    if tensor._version != version:
        with torch.no_grad():
            tensor.copy_(content)
    return tensor


def _restored_array(array: Array, content: Array) -> Array:
    if array.flags.writeable:
        array[...] = content
    return array


def _restored_container(values: Any, items: dict[Any, Callable[[], Any]]) -> Any:
    found = {key: item() for key, item in items.items()}
    if isinstance(values, dict):
        values.clear()
        values.update(found)
    elif not isinstance(values, tuple):
        values.clear()
        values.extend(found.values())
    return values


@contextlib.contextmanager
def _restored_random_numbers() -> Iterator[None]:
    """Restore the random numbers of torch on the CPU, of Python and of numpy."""
    restore = kept_random_numbers(None)
    try:
        yield
    finally:
        restore()


def kept_random_numbers(model: nn.Module | None) -> Callable[[], None]:
    """Return a function that restores the random numbers of torch, Python and numpy, and those of a model's GPUs."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"} if model is not None else set()
    on_devices = {device: torch.cuda.get_rng_state(device) for device in devices}
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  # a loader may draw from it
    torch_state = torch.get_rng_state()

    def restore() -> None:
        torch.set_rng_state(torch_state)
        for device, state in on_devices.items():
            torch.cuda.set_rng_state(state, device)
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002

    return restore


@contextlib.contextmanager
def _every_module_called() -> Iterator[None]:
    """Switch off what runs a model without calling its modules, or calls them with something else than tensors.

    A compiled model is run as it was written. A transformer encoder would otherwise hand nested tensors without
    padding from layer to layer.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NOT_CONTIGUOUS)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
