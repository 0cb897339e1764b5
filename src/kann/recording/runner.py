"""Run a model on batches and leave it as it was."""

import contextlib
import inspect
import random
import re
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kann.checks import shown
from kann.errors import KannError
from kann.recording.length_arguments import told_lengths
from kann.recording.sequence_data import Batch, tensors_of


@dataclass(slots=True, eq=False)
class _Change:
    """A change that is in force."""

    value: Any
    """What its context manager gave."""
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
    with _LOCK:
        if in_force(key):
            raise refusal()
        change = _Change(value=None, undo=contextlib.ExitStack(), users=1)
        _CHANGES[key] = change
    try:
        yield
    finally:
        with _LOCK:
            del _CHANGES[key]


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
            stack.enter_context(shared(("random numbers", device), partial(_restored_gpu_random_numbers, device)))
        for module in model.modules():
            stack.enter_context(shared(("module", id(module)), partial(_restored_module, module)))
        stack.enter_context(every_module_called())
        stack.enter_context(torch.set_grad_enabled(gradients))
        with contextlib.suppress(NotImplementedError):  # an exported program stays in the mode it was exported in
            model.eval()
        if gradients:
            for module in model.modules():
                if isinstance(module, nn.RNNBase):
                    stack.enter_context(shared(("backward", id(module)), partial(_differentiable, module)))
        yield


@contextlib.contextmanager
def _differentiable(module: nn.RNNBase) -> Iterator[None]:
    """Let cudnn differentiate a recurrent module: it does so in training mode only. Without dropout both modes agree.

    `_restored_module` restores the mode.
    """
    dropout, module.dropout = module.dropout, 0.0
    module.training = True
    try:
        yield
    finally:
        module.dropout, module.training = dropout, False


@contextlib.contextmanager
def every_module_called() -> Iterator[None]:
    """Let a model run so that every module is called with tensors, and without warnings about how it is done."""
    with shared("modules are called", _every_module_called), shared("warnings", _without_cudnn_warning):
        yield


@contextlib.contextmanager
def returned_hidden_states(model: nn.Module) -> Iterator[None]:
    """Let a HuggingFace model return its hidden states, by the switch in its configuration."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    with contextlib.ExitStack() as stack:
        for config in configs:
            if hasattr(config, "output_hidden_states"):
                stack.enter_context(shared(("config", id(config)), partial(_switched_on, config)))
        yield


@contextlib.contextmanager
def _switched_on(config: Any) -> Iterator[None]:
    before = config.output_hidden_states
    config.output_hidden_states = True
    try:
        yield
    finally:
        config.output_hidden_states = before


@contextlib.contextmanager
def _restored_module(module: nn.Module) -> Iterator[None]:
    """Restore the mode of a module and its own buffers, not those of the modules inside."""
    training = getattr(module, "training", None)  # which torch.jit.freeze takes away
    buffers, copies = dict(module._buffers.items()), _buffer_copies(module)
    try:
        yield
    finally:
        _restore_buffers(module, buffers, copies)
        if training is not None:
            module.training = training


def _buffer_copies(module: nn.Module) -> dict[str, tuple[int, Tensor]]:
    """The version and the content of each buffer."""
    buffers = [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None]
    return {name: (buffer._version, buffer.detach().clone()) for name, buffer in buffers if not buffer.is_inference()}


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
def _restored_gpu_random_numbers(device: torch.device) -> Iterator[None]:
    """Restore torch's random numbers on one GPU."""
    state = torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        torch.cuda.set_rng_state(state, device)


@contextlib.contextmanager
def _every_module_called() -> Iterator[None]:
    """Switch off what runs a model without calling its modules, or calls them with something else than tensors.

    A compiled model is run as it was written. A transformer encoder would otherwise hand nested tensors without
    padding from layer to layer.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def _without_cudnn_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=NOT_CONTIGUOUS)
        yield


def batch_runner(
    model: nn.Module,
    *,
    forward: Callable[..., Any] | None,
    lengths: Any,
    device: torch.device | None,
    hidden_states: bool,
) -> Callable[[Batch], Any]:
    """A function that moves a batch to the device, runs the model on it, and returns the model's output."""
    call = _model_call(model, forward=forward, hidden_states=hidden_states)

    def run(batch: Batch) -> Any:
        content = batch.content
        if device is not None:
            content = to_device(content, device, except_for=_lengths_entry(content, lengths))
        try:
            return call(content, replace(batch, content=content))
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            explained = _explained(error, device) or _explained_embedding(error, model, content)
            if explained is None and forward is None:
                explained = _explained_without_tensors(error, content)
            if explained is None:
                raise
            raise explained from error

    return run


def _explained_without_tensors(error: Exception, content: Any) -> KannError | None:
    """What to do about a model that fails on a batch of something else than tensors, such as text."""
    if not isinstance(error, TypeError | AttributeError) or next(tensors_of(content), None) is not None:
        return None
    return KannError(
        f"the model cannot read the batch {shown(content)}, which holds no tensor ({type(error).__name__}: {error}); "
        "pass tensors, or forward= that makes them of such a batch"
    )


def _explained_embedding(error: Exception, model: nn.Module, content: Any) -> KannError | None:
    """What to do about numbers that an embedding does not have; None for any other error."""
    if not isinstance(error, IndexError) or "index out of range in self" not in str(error):
        return None  # an embedding says just this; lists and axes that do not exist are out of range in other words
    sizes = {name: part.num_embeddings for name, part in model.named_modules() if isinstance(part, nn.Embedding)}
    numbers = [part for part in tensors_of(content) if part.numel() and part.dtype in (torch.int32, torch.int64)]
    if not sizes or not numbers:
        return None
    low, high = min(int(part.min()) for part in numbers), max(int(part.max()) for part in numbers)
    rows = ", ".join(f"{name!r} has {size} rows (0 to {size - 1})" for name, size in sizes.items())
    return KannError(
        f"an embedding was asked for a row that it does not have: the data hold numbers from {low} to {high}, and "
        f"{rows}; pass numbers of its vocabulary, and sequences no longer than it has positions"
    )


def _explained(error: Exception, device: torch.device | None) -> KannError | None:
    """What to do about a model that cannot read the batch; None for any other error, which is the model's own."""
    if isinstance(error, KannError) or not isinstance(error, RuntimeError | ValueError):
        return None
    lines = str(error).splitlines() or [""]
    # Torch has no classes for these errors, only words.
    if re.search("same device|expected device", lines[0]):
        return KannError(
            f"the model, on {device}, and something that it reads are on different devices ({error}); move all of "
            "the model with model.to(...), and what forward= makes as well"
        )
    if re.search("dtype|scalar type|must have the type", lines[0]):
        return KannError(
            f"the model and the data hold different types of numbers ({lines[0]}); pass data of the model's type, such "
            "as data.float(), and whole numbers only to an embedding"
        )
    if re.search("input_size|Expected input to be|shapes cannot be multiplied|Expected sequence length", lines[0]):
        return KannError(
            f"the model cannot read data of this shape ({lines[0]}); pass (sequences, steps, ...) as wide as the model "
            "reads, with at least one step"
        )
    return None


def _lengths_entry(content: Any, lengths: Any) -> Any:
    """The batch's lengths, if they are an entry of it: torch packs sequences by lengths on the host alone."""
    if not isinstance(lengths, str | int):
        return None
    entry = content[lengths]
    if getattr(entry, "ndim", 0) != 1:  # a mask, which the model reads on its own device
        return None
    return entry


def _model_call(
    model: nn.Module, *, forward: Callable[..., Any] | None, hidden_states: bool
) -> Callable[[Any, Batch], Any]:
    """How to call the model with a batch: by ``forward``, or by what the model's own forward takes."""
    if forward is not None:
        return lambda content, _: forward(model, content)
    parameters = parameters_of(model)
    options: dict[str, Any] = {}
    if hidden_states and ("output_hidden_states" in parameters or _takes_any_keyword(parameters)):
        options["output_hidden_states"] = True
    # Of a tuple, what follows the arguments without a default are labels and the like.
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(p.kind in positional and p.default is p.empty for p in parameters.values())

    def call_with_options(content: Any, batch: Batch) -> Any:
        if isinstance(content, Mapping):
            return model(**_accepted(content, parameters) | options)
        if isinstance(content, list | tuple) and not isinstance(content, PackedSequence):
            return model(*content[: max(1, required)], **options)
        return model(content, **told_lengths(model, parameters, batch), **options)

    def call(content: Any, batch: Batch) -> Any:
        try:
            return call_with_options(content, batch)
        except TypeError as error:
            if not options or "output_hidden_states" not in str(error):
                raise
            raise KannError(
                f"{type(model).__name__} does not take output_hidden_states ({error}); pass forward=lambda model, "
                "batch: ... that calls it as it wants to be called"
            ) from error

    return call


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """What the model's ``forward`` takes."""
    if not isinstance(model, torch.jit.ScriptModule):
        return inspect.signature(model.forward).parameters
    # Compiled code has no signature of Python; torch keeps its own.
    found = {}
    schema: Any = model.forward.schema  # type: ignore[attr-defined]
    for argument in schema.arguments[1:]:
        default = inspect.Parameter.empty
        if argument.has_default_value():
            default = argument.default_value
        found[argument.name] = inspect.Parameter(
            argument.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default
        )
    return found


def _takes_any_keyword(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _accepted(content: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The entries of a batch that the model takes."""
    if _takes_any_keyword(parameters):
        return dict(content)
    taken = {key: value for key, value in content.items() if key in parameters}
    if not taken:
        raise KannError(
            f"the batch has the keys {sorted(map(str, content))} and the model takes {list(parameters)}; "
            "pass forward=lambda model, batch: ..."
        )
    return taken


def device_of(model: nn.Module, device: torch.device | str | None) -> torch.device | None:
    """Where batches go: where the model is, or ``device`` if it has neither parameters nor buffers."""
    asked = None
    if device is not None:
        asked = _device(device)
    found = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    if found is None:
        return asked
    if found.type == "meta":
        raise KannError("the model is on the meta device and its weights hold no numbers; load them first")
    if asked is not None and (asked.type != found.type or (asked.index is not None and asked.index != found.index)):
        raise KannError(f"the model is on {found} and device={str(asked)!r}; call model.to({str(asked)!r}) first")
    return found


def _device(name: Any) -> torch.device:
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise KannError(f"device={shown(name)} is no device of torch ({reason}); pass one, such as 'cpu'") from error


def to_device(value: Any, device: torch.device, *, except_for: Any = None) -> Any:
    """The batch on ``device``, in the same structure. The entry ``except_for`` stays where it is."""
    if value is except_for and value is not None:
        return value
    if isinstance(value, Tensor) and value.device.type == "meta":
        raise KannError(f"the data are on the meta device and hold no numbers to move to {device}; load them first")
    # A mapping that moves itself, as a tokenizer's result does, would move all of its entries.
    move = getattr(value, "to", None)
    if callable(move) and (except_for is None or not isinstance(value, Mapping)):
        return move(device)
    if isinstance(value, Mapping):
        return {key: to_device(item, device, except_for=except_for) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_device(item, device, except_for=except_for) for item in value]
        if hasattr(value, "_fields"):  # a namedtuple takes its fields one by one
            return type(value)(*items)
        return type(value)(items)
    return value
