"""Run a model on batches and leave it as it was."""

import contextlib
import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kann.errors import KannError

NOT_FLAT = ".*weights are not part of single contiguous chunk of memory.*"
"""What cudnn says of one layer's weights, which are a part of the module's; it copies them, which takes no time."""


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluate without gradients; afterwards modes, buffers and random numbers are as before, whatever happened."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_same_random_numbers(model))
        stack.callback(_restore_modes, [(module, module.training) for module in model.modules()])
        stack.callback(_restore_buffers, [(m, dict(m._buffers), _copies(m)) for m in model.modules()])
        stack.enter_context(_no_shortcuts())
        stack.enter_context(torch.no_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=NOT_FLAT)
        model.eval()
        yield


def _copies(module: nn.Module) -> dict[str, tuple[int, Tensor]]:
    """The version and the content of each buffer."""
    buffers = [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None]
    return {name: (buffer._version, buffer.detach().clone()) for name, buffer in buffers if not buffer.is_inference()}


def _restore_buffers(saved: list[tuple[nn.Module, dict[str, Tensor | None], dict[str, tuple[int, Tensor]]]]) -> None:
    with torch.no_grad():
        for module, buffers, copies in saved:
            module._buffers.update(buffers)  # a module may have put another tensor in its place
            for name, (version, content) in copies.items():
                buffer = buffers[name]
                if buffer is not None and buffer._version != version:
                    buffer.copy_(content)


def _restore_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, training in modes:
        module.training = training


@contextlib.contextmanager
def _same_random_numbers(model: nn.Module) -> Iterator[None]:
    """Torch's generators, of the processor and of the model's devices, and those of Python and numpy."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    plain, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  # a loader may draw from it
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(legacy)  # noqa: NPY002


@contextlib.contextmanager
def _no_shortcuts() -> Iterator[None]:
    """Switch off what runs a model without calling its modules, or calls them with something else than tensors.

    A compiled model is run as it was written. A transformer encoder would otherwise hand nested tensors without
    padding from layer to layer.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
        with stance("force_eager") if stance else contextlib.nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def caller(model: nn.Module, *, forward: Callable[..., Any] | None, hidden_states: bool) -> Callable[[Any], Any]:
    """How to run the model on a batch, by ``forward`` or by what the model's own takes."""
    if forward is not None:
        return lambda content: forward(model, content)
    parameters = inspect.signature(model.forward).parameters
    return lambda content: _call(model, content, parameters, hidden_states=hidden_states)


def _call(model: nn.Module, content: Any, parameters: Mapping[str, inspect.Parameter], *, hidden_states: bool) -> Any:
    """Run the model on a batch: as it is, a mapping by its keys, a tuple as far as the model needs its entries."""
    options: dict[str, Any] = {}
    if hidden_states and "output_hidden_states" in parameters:
        options["output_hidden_states"] = True
    if isinstance(content, Mapping):
        return model(**_accepted(content, parameters) | options)
    if isinstance(content, list | tuple) and not isinstance(content, PackedSequence):
        return model(*content[: max(1, _required(parameters))], **options)
    return model(content, **options)


def _accepted(content: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(content)
    taken = {key: value for key, value in content.items() if key in parameters}
    if not taken:
        raise KannError(
            f"the batch has the keys {sorted(map(str, content))} and the model takes {list(parameters)}; "
            "pass forward=lambda model, batch: ..."
        )
    return taken


def _required(parameters: Mapping[str, inspect.Parameter]) -> int:
    """How many arguments the model cannot do without: the entries behind them are labels and the like."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters.values())


def device_of(model: nn.Module, device: torch.device | str | None) -> torch.device | None:
    """Where batches go: where the model is, or ``device`` if it has neither parameters nor buffers."""
    own = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    asked = None if device is None else torch.device(device)
    if own is None:
        return asked
    if own.type == "meta":
        raise KannError("the model is on the meta device and its weights hold no numbers; load them first")
    if asked is not None and (asked.type != own.type or (asked.index is not None and asked.index != own.index)):
        raise KannError(f"the model is on {own} and device={str(asked)!r}; call model.to({str(asked)!r}) first")
    return own


def moved(value: Any, device: torch.device, *, but: Any = None) -> Any:
    """The batch on ``device``, in the same structure. The entry ``but`` stays where it is."""
    if value is but and value is not None:
        return value
    if isinstance(value, Tensor) and value.device.type == "meta":
        raise KannError(f"the data are on the meta device and hold no numbers to move to {device}; load them first")
    if callable(move := getattr(value, "to", None)) and (but is None or not isinstance(value, Mapping)):
        return move(device)
    if isinstance(value, Mapping):
        return {key: moved(item, device, but=but) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [moved(item, device, but=but) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
