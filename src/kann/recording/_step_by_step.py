"""Run a model one step at a time, so that the state it carries can be recorded and replaced."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from kann.errors import KannError

CACHES = ("past_key_values", "cache_params", "state")
"""Arguments in which models of transformers take what they carried so far; outputs have it under the same name."""

RGLRU_STATES = ("recurrent_states", "conv1d_state")
"""Attributes in which RecurrentGemma's modules keep their states."""

CHECKED = 8
"""Number of tokens on which the recurrent form is compared with the model's own forward pass."""

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference of outputs, relative to the largest output: a scan in chunks rounds differently from a loop."""

HALF_TOLERANCE = 3e-2
"""The same in 16 bits."""

State = dict[str, Any]
"""State of each layer, by name: tensors in any nesting."""

Step = Callable[[nn.Module, Any, Any], tuple[Any, Any]]


class StepByStep(nn.Module):
    """A model that runs one step at a time, made by `step_by_step`.

    After each step the state of each layer passes through a module of `layers`, where kann records and replaces it. All
    functions of kann take it in place of the model.
    """

    def __init__(self, model: nn.Module, step: Step, initial: Callable[[nn.Module, int], Any]):
        super().__init__()
        self.model = model
        self.layers = nn.ModuleDict()
        self.parts: dict[str, tuple[tuple[int, ...], ...]] = {}
        """The shapes of the tensors that make up the state of each layer, without the axis of sequences."""
        self._step, self._initial = step, initial

    def forward(
        self, inputs: Tensor | None = None, *, input_ids: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Run over inputs (sequences, steps, …) and return the outputs of all steps.

        ``input_ids`` and ``attention_mask`` are what tokenizers of transformers return; padding has to be on the right.
        """
        inputs = input_ids if inputs is None else inputs
        if inputs is None:
            raise KannError("pass inputs, or input_ids=, a tensor (sequences, steps, …)")
        if attention_mask is not None and not attention_mask[:, 0].all():
            raise KannError(
                "attention_mask has padding on the left, and states begin at the first step; pad on the right"
            )
        guard = _keep_saved_tensors(self.model) if torch.is_grad_enabled() else nullcontext()
        with guard:
            state, outputs = self._initial(self.model, len(inputs)), []
            for now in inputs.unbind(1):
                output, state = self._step(self.model, now, state)
                outputs.append(output)
                for name, part in _by_layer(state).items():
                    state = _with_layer(state, name, self._pass_on(name, part))
        return torch.stack(outputs, dim=1)

    def _pass_on(self, name: str, part: Any) -> Any:
        """Hand the state of a layer, as one row of numbers for each sequence, to the module that kann records."""
        tensors, structure = tree_flatten(part)
        if name not in self.layers:
            self.layers[name] = nn.Identity()
            self.parts[name] = tuple(tuple(tensor.shape[1:]) for tensor in tensors)
        rows = [_real(tensor).flatten(1) for tensor in tensors]
        passed = self.layers[name](torch.cat(rows, dim=1)).split([row.shape[1] for row in rows], dim=1)
        return tree_unflatten([_like(row, tensor) for row, tensor in zip(passed, tensors, strict=True)], structure)


def step_by_step(
    model: nn.Module,
    *,
    step: Step | None = None,
    initial: Callable[[nn.Module, int], Any] | None = None,
    example: Tensor | None = None,
) -> StepByStep:
    """Run a model in its recurrent form, so that its states can be recorded and replaced.

    State-space models, linear attention and hybrids compute all steps at once, in a scan. Step by step they carry a
    state of fixed size from one token to the next. Each layer's state is one vector, recorded as ``layers.<name>``; if
    it is replaced, the recurrence continues from the replaced state.

    >>> import torch, kann
    >>> from torch import nn
    >>> class Decay(nn.Module):  # its forward pass is a convolution, its recurrent form a loop
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rate = nn.Parameter(torch.tensor([0.9, 0.5]))
    ...     def forward(self, x):
    ...         t = torch.arange(x.shape[1])
    ...         kernel = self.rate ** (t[:, None] - t).clamp(min=0)[..., None] * (t[:, None] >= t)[..., None]
    ...         return torch.einsum("tsd,bsd->btd", kernel, x)
    >>> def step(model, x, h):
    ...     h = model.rate * h + x
    ...     return h, h
    >>> model, x = Decay(), torch.randn(20, 12, 2)
    >>> net = kann.recording.step_by_step(
    ...     model, step=step, initial=lambda model, count: torch.zeros(count, 2), example=x[:2]
    ... )
    >>> kann.record(net, x, layer="layers.state")
    States(20 sequences of 12 steps, 2 units, float32)

    Parameters
    ----------
    model
        A causal language model of transformers (Mamba, Mamba-2, FalconMamba, RWKV, xLSTM, RecurrentGemma, Qwen3-Next,
        LFM2, Bamba, Jamba, Zamba2 and others that keep their states in the same way), or any module with ``step``.
    step
        From the model, the input of one step (sequences, …) and the state to the output of the step and the next state.
        Default: the cache of a model of transformers.
    initial
        From the model and the number of sequences to the state before the first step. A dictionary has one state for
        each layer; anything else is the state of one layer, ``layers.state``.
    example
        Inputs on which the outputs are compared with those of ``model(example)``; some tokens for transformers.

    Returns
    -------
    StepByStep
        A module that takes inputs (sequences, steps, …) and returns outputs (sequences, steps, …).

    Raises
    ------
    KannError
        If the model carries no state of fixed size, or its recurrent form gives other outputs than its forward pass.

    """
    if (step is None) != (initial is None):
        raise KannError("pass step= and initial= together, or neither for a model of transformers")
    if step is None or initial is None:
        step, initial = _cached_step, _fresh_cache
        if not _takes_cache(model):
            raise KannError(
                f"{type(model).__name__} takes no cache (none of {', '.join(CACHES)}); pass step= and initial=, which "
                "run one step of it"
            )
        if example is None:
            words: Any = model.config
            example = torch.arange(2 * CHECKED, device=_device(model)).reshape(2, CHECKED) % words.vocab_size
    recurrent = StepByStep(model, step, initial).eval()
    if example is not None:
        _require_same_outputs(recurrent, example)
    return recurrent


def _require_same_outputs(recurrent: StepByStep, example: Tensor) -> None:
    """Raise if outputs differ from the forward pass, or if there is no state; creates the modules of states."""
    model = recurrent.model
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            expected, outputs = _tensor_of(model(example)), recurrent(example)
    finally:
        model.train(was_training)
    if not recurrent.layers:
        raise KannError(
            f"{type(model).__name__} carries no state of fixed size from step to step (keys and values of attention "
            "grow with every token); analyse it along depth, axis='depth'"
        )
    difference = float((outputs - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
    tolerance = TOLERANCES.get(expected.dtype, HALF_TOLERANCE)
    if not difference <= tolerance:
        raise KannError(
            f"step by step {type(model).__name__} gives other outputs than its forward pass (largest difference "
            f"{difference:.2g} of the largest output, limit {tolerance:g}); pass step= and initial= for its recurrent "
            "form"
        )


# Caches of transformers


class _Carried:
    """A cache of transformers, the number of tokens it has read, and which of its entries are states."""

    def __init__(self, cache: Any, model: nn.Module, count: int = 0):
        self.cache, self.model, self.count = cache, model, count

    def layers(self) -> State:
        """Return the states of the layers that have one, by the number of the layer."""
        cache = self.cache
        if isinstance(cache, list):  # RWKV: (sequences, units, layers) each
            return {str(i): [tensor[..., i] for tensor in cache] for i in range(cache[0].shape[-1])}
        if hasattr(cache, "rnn_state"):  # xLSTM
            return {str(i): list(state) for i, state in cache.rnn_state.items()}
        kept = {str(i): _linear_places(layer) for i, layer in enumerate(getattr(cache, "layers", ()))}
        found = {name: [tensors[key] for tensors, key in places] for name, places in kept.items()}
        found |= {str(i): [getattr(*place) for place in places] for i, places in _rglru_places(self.model).items()}
        return {name: state for name, state in found.items() if state}

    def put(self, name: str, state: Any) -> None:
        """Replace the state of a layer."""
        cache, i = self.cache, int(name)
        if isinstance(cache, list):
            self.cache = [
                torch.cat([tensor[..., :i], new[..., None], tensor[..., i + 1 :]], dim=-1)
                for tensor, new in zip(cache, state, strict=True)
            ]
        elif hasattr(cache, "rnn_state"):
            cache.rnn_state[i] = tuple(state)
        elif i in _rglru_places(self.model):
            for place, new in zip(_rglru_places(self.model)[i], state, strict=True):
                setattr(*place, new)
        else:
            for (kept, key), new in zip(_linear_places(cache.layers[i]), state, strict=True):
                kept[key] = new


def _linear_places(layer: Any) -> list[tuple[dict[Any, Tensor], Any]]:
    """Locate the states of the recurrence and of the convolution in a layer of a cache, if it has them."""
    places = []
    for name in ("recurrent_states", "conv_states"):
        kept = getattr(layer, name, None)
        if isinstance(kept, Tensor):  # one state, an attribute
            places.append((vars(layer), name))
        elif kept:
            places += [(kept, key) for key, tensor in kept.items() if tensor is not None]
    return places


def _rglru_places(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Locate the states of RecurrentGemma: attributes of modules, by the number of the layer."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for path, module in model.named_modules():
        for name in RGLRU_STATES:
            if isinstance(getattr(module, name, None), Tensor):
                number = next(int(key) for key in path.split(".") if key.isdigit())
                found.setdefault(number, []).append((module, name))
    return {number: sorted(places, key=lambda place: RGLRU_STATES.index(place[1])) for number, places in found.items()}


def _takes_cache(model: nn.Module) -> str | None:
    """Return the name of the argument in which the model takes its cache."""
    accepted = signature(model.forward).parameters
    return next((name for name in CACHES if name in accepted), None) if hasattr(model, "config") else None


def _fresh_cache(model: nn.Module, count: int) -> _Carried:
    """Return what a model of transformers carries before the first token."""
    for module in model.modules():
        for name in RGLRU_STATES:
            if hasattr(module, name):
                setattr(module, name, None)
    if _takes_cache(model) != "past_key_values":
        return _Carried(None, model)
    caches: Any = import_module("transformers")
    return _Carried(caches.DynamicCache(config=model.config), model)


def _cached_step(model: nn.Module, token: Tensor, carried: _Carried) -> tuple[Tensor, _Carried]:
    """Read one token of each sequence."""
    if _takes_cache(model) == "state" and len(token) > 1:
        # RWKV of transformers mixes the sequences of a batch when it reads single tokens, so each is read by itself.
        alone = []
        for i in range(len(token)):
            state = None if carried.cache is None else [part[i : i + 1].clone() for part in carried.cache]
            alone.append(_cached_step(model, token[i : i + 1], _Carried(state, model)))
        joined = [torch.cat(parts) for parts in zip(*(each.cache for _, each in alone), strict=True)]
        return torch.cat([output for output, _ in alone]), _Carried(joined, model)
    name = str(_takes_cache(model))
    arguments = {"input_ids": token[:, None], "use_cache": True, name: carried.cache}
    if "position_ids" in signature(model.forward).parameters:
        # RecurrentGemma clears its state at position 0, which it takes every token for if none is given.
        arguments["position_ids"] = torch.full((1, 1), carried.count, device=token.device)
    output = model(**arguments)
    cache = getattr(output, name, None)
    return _tensor_of(output)[:, 0], _Carried(carried.cache if cache is None else cache, model, carried.count + 1)


# States in any nesting


def _by_layer(state: Any) -> State:
    if isinstance(state, _Carried):
        return state.layers()
    return dict(state) if isinstance(state, Mapping) else {"state": state}


def _with_layer(state: Any, name: str, part: Any) -> Any:
    """Return the state with that of one layer replaced."""
    if isinstance(state, _Carried):
        state.put(name, part)
        return state
    return {**state, name: part} if isinstance(state, Mapping) else part


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _like(row: Tensor, tensor: Tensor) -> Tensor:
    """Give a row of numbers the shape, the type and the imaginary part of a tensor."""
    if tensor.is_complex():
        return torch.view_as_complex(row.reshape(*tensor.shape, 2).to(tensor.real.dtype).contiguous())
    return row.reshape(tensor.shape).to(tensor.dtype, copy=True)  # caches are overwritten in place, which views forbid


def _tensor_of(output: Any) -> Tensor:
    """Return the logits of an output of transformers, else its last hidden states, or a tensor as it is."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    return output[0] if logits is None else logits


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@contextmanager
def _keep_saved_tensors(model: nn.Module) -> Iterator[None]:
    """Let gradients flow through caches that are overwritten in place.

    The backward pass needs the states of every step, and a cache holds the last alone: tensors are copied when they are
    saved, except for the weights, which are never overwritten.
    """
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        return tensor if tensor.untyped_storage().data_ptr() in weights else tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield
