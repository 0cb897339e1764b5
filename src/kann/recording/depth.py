"""Record along depth: the layers of a network are the steps of time."""

import contextlib
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.errors import KannError
from kann.recording.layer_selection import Target
from kann.recording.sequence_data import Batch, tensors_of
from kann.recording.tracer import (
    HiddenStatesTracer,
    NamedRows,
    Padded,
    SequenceRows,
    Tracer,
    batch_major,
    hook_last,
    require_called,
    returned_states,
)
from kann.typing import Float


class DepthTracer(Tracer):
    """Records the outputs of blocks, in the order of their calls, as one sequence for each position."""

    follows_time = False

    def __init__(self, targets: Sequence[Target], embedding: Target | None, *, starts_with_input: bool):
        super().__init__(["depth"])
        self._targets, self._embedding = targets, embedding
        self._starts_with_input = starts_with_input  # h_0 is what the first block reads

    def attach(self, stack: contextlib.ExitStack) -> None:
        """Hook the blocks and the embedding."""
        for target in self._targets:
            module: Any = target.module
            hook_last(module, partial(self._on_block, target), stack)
            for part in module.modules():
                if isinstance(part, nn.MultiheadAttention):
                    stack.callback(part.register_forward_pre_hook(self._on_attention, with_kwargs=True).remove)
        if self._embedding is not None:
            module = self._embedding.module
            hook_last(module, self._on_embedding, stack)

    def _on_attention(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note that self-attention masks padding: its mask is true, or −∞, at masked positions."""
        mask = kwargs.get("key_padding_mask")
        is_own = len(args) > 1 and args[0] is args[1]  # else the mask is of what another network gave
        if self._is_masked or mask is None or not is_own or not self.is_watching:
            return
        if mask.is_floating_point():
            mask = mask == -torch.inf
        self._is_masked = bool(mask.any())

    def begin(self, batch: Batch) -> None:
        """Forget the calls of the last batch."""
        super().begin(batch)
        self._outputs: list[tuple[Target, Tensor]] = []
        self._first: list[tuple[str, Tensor]] = []  # h_0 and its name, once it was seen
        self._is_masked = False

    def _on_embedding(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        # Only its first call: an encoder and a decoder may share it, and then it is called again.
        if self._embedding is not None and not self._first and self.is_watching:
            self._first.append((self._embedding.name, _copy_of_states(output, self._embedding.name)))

    def _on_block(self, target: Target, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self.is_watching:
            return
        if self._starts_with_input and not self._first:
            self._first.append(("what it reads", _copy_of_states((args, kwargs), target.name)))
        self._outputs.append((target, _copy_of_states(output, target.name)))

    def take(self, output: Any) -> NamedRows:
        """Return one sequence for each position, the embedding first."""
        for target in self._targets:
            require_called([called for called, _ in self._outputs if called is target], target.name)
        if self._embedding is not None:
            require_called(self._first, self._embedding.name)
        layers = [(name, value, self._outputs[0][0].module) for name, value in self._first]
        layers += [(target.name, value, target.module) for target, value in self._outputs]
        rows = depth_rows(layers, self.batch, of=self._targets[0].path)
        if self._is_masked and self.batch.real_of(self._targets[0].path) is None:
            self.warn_once(
                "the network's attention masks some positions as padding, and they were recorded like all others; pass "
                "lengths=, or a mask, to leave them out"
            )
        yield "depth", rows


def _copy_of_states(value: Any, block: str) -> Tensor:
    """Return the first tensor of real numbers, copied, since later modules may change it in place."""
    for part in tensors_of(value):
        if part.is_floating_point():
            return part.detach().clone()
    raise KannError(f"block {block!r} has {type(value).__name__} without real numbers; pass blocks that give states")


class HiddenDepthTracer(HiddenStatesTracer):
    """Records the hidden states that a model returns by itself along depth."""

    follows_time = False

    def take(self, output: Any) -> NamedRows:
        """Return one sequence for each position."""
        states = returned_states(output, self._target.field)
        layers = [(f"{self._target.field}.{i}", values.detach(), None) for i, values in enumerate(states)]
        yield "depth", depth_rows(layers, self.batch, of=self._target.field)


def _positions(values: Tensor, module: nn.Module | None, batch: Batch) -> Float[Tensor, "b s d"]:
    """Arrange values as (B, positions, units); of images, channels are units and pixels are positions."""
    if values.ndim == 2:
        return values[:, None]
    if values.ndim == 3:
        return batch_major(values, module, batch, "block")
    return values.flatten(2).transpose(1, 2)


def _require_equal_shapes(layers: Sequence[tuple[str, Tensor]]) -> None:
    """Raise for blocks of different widths or numbers of positions, and name the longest run of equal ones."""
    if len(layers) < 2:
        raise KannError(f"depth has one state, {layers[0][0]!r}; pass at least two blocks, or the embedding too")
    runs = [list(run) for _, run in groupby(layers, key=lambda layer: layer[1].shape)]
    if len(runs) == 1:
        return
    longest = [name for name, _ in max(runs, key=len)]
    sizes = ((name, *values.shape[1:]) for name, values in layers)
    widths = ", ".join(f"{name}: {units}" + f" at {steps}" * (steps > 1) for name, steps, units in sizes)
    raise KannError(
        f"the blocks differ in width, and one operator needs equal ones (units at positions: {widths}); the longest "
        f"run of equal ones is layer={longest}"
    )


def depth_rows(layers: Sequence[tuple[str, Tensor, nn.Module | None]], batch: Batch, *, of: str) -> SequenceRows:
    """Make a sequence h_0, h_1, … h_L of each position of each sequence of the batch.

    ``layers`` are names, outputs and modules. ``of`` is the name of one of the blocks, which tells those of a decoder
    from others.
    """
    named = [(name, _positions(values, module, batch)) for name, values, module in layers]
    _require_equal_shapes(named)
    batch_sequences, positions, width = named[0][1].shape
    # A vector for the whole sequence has no padding.
    real = None if positions == 1 else batch.real_of(of)
    layered = Padded(values=torch.stack([values for _, values in named], dim=2).flatten(2))
    rows = layered.rows(real, layer="depth")  # whose padding is dropped as it is along time
    values, positions_of = rows.values.reshape(-1, width), rows.lengths
    return SequenceRows(
        padded=(values,),
        lengths=np.full(len(rows.values), len(named)),
        batch_sequences=batch_sequences,
        origins=np.repeat(np.arange(len(positions_of)), positions_of),
    )
