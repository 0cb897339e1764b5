"""In which order a module's output has its axes."""

from torch import Tensor, nn

from kann.errors import KannError
from kann.recording.batching import Batch, tensors_of
from kann.typing import Float

ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder)
CONVOLUTIONS = (nn.Conv1d, nn.ConvTranspose1d)
CHANNELS_FIRST = (*CONVOLUTIONS, nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm)


def batch_major(values: Tensor, module: nn.Module | None, batch: Batch, layer: str) -> Float[Tensor, "b t d"]:
    """(B, T, d), whatever order of axes the module works in."""
    if values.ndim != 3:
        raise KannError(
            f"layer {layer!r} gave {tuple(values.shape)}, without a time axis; pass one that gives "
            "(sequences, steps, units)"
        )
    if module is not None and _channels_first(module, values):
        return values.transpose(1, 2)
    return values.transpose(0, 1) if _time_first(values, module, batch) else values


def _channels_first(module: nn.Module, values: Tensor) -> bool:
    """Whether a module works on (B, C, T): one that has no parameters but those of convolutions over time."""
    owners = [
        part
        for name, part in module.named_modules()
        if "parametrizations" not in name and (part._parameters or hasattr(part, "parametrizations"))
    ]
    convolutions = [part for part in owners if isinstance(part, CONVOLUTIONS)]
    if not convolutions or not all(isinstance(part, CHANNELS_FIRST) for part in owners):
        return False
    return values.shape[1] in (convolutions[0].in_channels, convolutions[-1].out_channels)


def _time_first(values: Tensor, module: nn.Module | None, batch: Batch) -> bool:
    attention = next((m for m in (module.modules() if module else ()) if isinstance(m, nn.MultiheadAttention)), None)
    if attention is not None and isinstance(module, ATTENTION):
        return not attention.batch_first
    count = batch.count if batch.span is None else len(batch.span)
    if count is None and attention is None:  # batches of a loader have their sequences along the first axis
        count = next((len(part) for part in tensors_of(batch.content) if part.ndim), None)
    if count is not None:
        return values.shape[0] != count and values.shape[1] == count
    return attention is not None and not attention.batch_first
