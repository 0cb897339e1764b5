"""Bring the axes of a module's output into the order (sequences, steps, units)."""

import torch
from torch import Tensor, nn

from kann.errors import KannError
from kann.recording.sequence_data import Batch, tensors_of
from kann.typing import Float


def as_real(tensor: Tensor) -> Tensor:
    """(Re, Im) along the last axis for complex numbers; any other tensor as it is."""
    if tensor.is_complex():
        return torch.cat([tensor.real, tensor.imag], dim=-1)
    return tensor


def as_complex(real: Tensor, like: Tensor) -> Tensor:
    """What `as_real` was given: complex numbers if ``like`` is complex, else the tensor as it is."""
    if not like.is_complex():
        return real
    first, second = real.chunk(2, dim=-1)
    return torch.complex(first.contiguous(), second.contiguous())


ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder)
"""Modules of torch whose output has the order of axes that their attention is set to."""
CONVOLUTIONS = (nn.Conv1d, nn.ConvTranspose1d)
"""Convolutions over time."""
CHANNELS_FIRST = (*CONVOLUTIONS, nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm)
"""Modules with parameters that work on (B, C, T)."""


def batch_major(values: Tensor, module: nn.Module | None, batch: Batch, layer: str) -> Float[Tensor, "b t d"]:
    """(B, T, d), whatever order of axes the module works in."""
    if values.ndim != 3:
        raise KannError(
            f"layer {layer!r} gave {tuple(values.shape)}, without a time axis; pass one that gives "
            "(sequences, steps, units)"
        )
    if has_channels_first(module, values):
        return values.transpose(1, 2)
    if has_time_first(values, module, batch):
        return values.transpose(0, 1)
    return values


def has_channels_first(module: nn.Module | None, values: Tensor) -> bool:
    """Whether a module works on (B, C, T): one that has no parameters but those of convolutions over time."""
    if module is None or values.ndim != 3:
        return False
    # A parametrized convolution, by weight_norm for instance, keeps its parameters in a submodule "parametrizations".
    owners = [
        part
        for name, part in module.named_modules()
        if "parametrizations" not in name and (part._parameters or hasattr(part, "parametrizations"))
    ]
    convolutions = [part for part in owners if isinstance(part, CONVOLUTIONS)]
    if not convolutions or not all(isinstance(part, CHANNELS_FIRST) for part in owners):
        return False
    # Without this, a module that transposes inside, from (B, T, C) and back, would be turned around.
    return values.shape[1] in (convolutions[0].in_channels, convolutions[-1].out_channels)


def has_time_first(values: Tensor, module: nn.Module | None, batch: Batch) -> bool:
    """Whether values are (T, B, d): as torch's attention says, or else by which axis is as long as the batch."""
    attention = first_attention(module)
    if attention is not None and isinstance(module, ATTENTION):
        return not attention.batch_first
    count = batch.count
    if batch.real is not None:
        count = len(batch.real)
    if count is None and attention is None:  # batches of a loader have their sequences along the first axis
        count = next((len(part) for part in tensors_of(batch.content) if part.ndim), None)
    if count is not None:
        return values.shape[0] != count and values.shape[1] == count
    return attention is not None and not attention.batch_first


def first_attention(module: nn.Module | None) -> nn.MultiheadAttention | None:
    """The first attention inside a module: torch's know whether they are batch_first."""
    if module is None:
        return None
    return next((part for part in module.modules() if isinstance(part, nn.MultiheadAttention)), None)
