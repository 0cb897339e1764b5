"""Run a model and leave it as it was."""

import contextlib
import random
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


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
    """Be the only one in all threads that has entered under ``key``; anybody else gets the ``refusal``."""
    with contextlib.ExitStack() as stack:
        with _LOCK:
            if in_force(key):
                raise refusal()
            stack.enter_context(shared(key, contextlib.nullcontext))
        yield


def in_force(key: Hashable) -> bool:
    """Whether a change under this key has been made and not undone yet."""
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
def _restored_module(module: nn.Module) -> Iterator[None]:
    """Restore the mode of a module and its own buffers, not those of the modules inside."""
    training = getattr(module, "training", None)  # which torch.jit.freeze takes away
    buffers = dict(module._buffers.items())
    copies = {
        name: (buffer._version, buffer.detach().clone())
        for name, buffer in buffers.items()
        if buffer is not None and not buffer.is_inference()
    }
    try:
        yield
    finally:
        _restore_buffers(module, buffers, copies)
        if training is not None:
            module.training = training


def _restore_buffers(
    module: nn.Module, buffers: dict[str, Tensor | None], copies: dict[str, tuple[int, Tensor]]
) -> None:
    """Put back every buffer that was replaced, and the content of every one that was changed in place."""
    # A module may have put another tensor in its place.
    if isinstance(module, torch.jit.ScriptModule):  # its buffers are not in a dict of Python
        for name, buffer in buffers.items():
            setattr(module, name, buffer)
    else:
        module._buffers.update(buffers)
    with torch.no_grad():
        for name, (version, content) in copies.items():
            buffer = buffers[name]
            # torch counts the changes in place; without one there is nothing to copy.
            if buffer is not None and buffer._version != version:
                buffer.copy_(content)


@contextlib.contextmanager
def _restored_random_numbers() -> Iterator[None]:
    """Restore the random numbers of torch on the CPU, of Python and of numpy."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  # a loader may draw from it
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


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
