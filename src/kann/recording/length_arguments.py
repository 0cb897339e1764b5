"""What a model is told about padding besides its data: lengths or a mask, where its forward takes them."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.recording.layouts import first_attention
from kann.recording.ragged import RealSteps
from kann.recording.sequence_data import Batch
from kann.typing import Int, Shaped

LENGTHS = re.compile(r"(.*_)?(lengths|lens)")
"""Names of arguments that hold the number of steps of each sequence, such as ``lengths`` and ``src_lens``."""


def told_lengths(model: nn.Module, parameters: Mapping[str, inspect.Parameter], batch: Batch) -> dict[str, Any]:
    """Arguments that tell a model which steps of a padded tensor are real, by the names that its ``forward`` has.

    Without them a network with attention would read the padding, and one that packs its sequences could not run.
    Batches of a loader hold what the model needs already.
    """
    if not isinstance(batch.content, Tensor) or batch.content.ndim < 2:
        return {}
    told: dict[str, Any] = {}
    for name, parameter in list(parameters.items())[1:]:
        value = _value_for(name, parameter, model, batch)
        if value is not None:
            told[name] = value
    return told


def _value_for(name: str, parameter: inspect.Parameter, model: nn.Module, batch: Batch) -> Tensor | None:
    """What to pass for one argument; None to leave it out."""
    real, steps = batch.real, batch.content.shape[1]
    if LENGTHS.fullmatch(name):
        if real is None and parameter.default is not parameter.empty:
            return None
        if real is None:
            return torch.full((len(batch.content),), steps)
        if real.starts is not None or len(real) != len(batch.content):
            return None
        return _lengths(real)  # on the host, as torch packs by them
    if real is None or len(real) != len(batch.content) or int(real.lengths.min()) == steps:
        return None
    if name == "attention_mask":
        return _is_real(real, steps).to(batch.content.device, torch.long)
    if name.endswith("key_padding_mask") and not _has_time_first(model):
        return ~_is_real(real, steps).to(batch.content.device)
    return None


def _lengths(real: RealSteps) -> Int[Tensor, " s"]:
    return torch.from_numpy(np.ascontiguousarray(real.lengths))


def _is_real(real: RealSteps, steps: int) -> Shaped[Tensor, "s t"]:
    """A mask that is true for real steps."""
    starts = real.starts
    if starts is None:
        starts = np.zeros_like(real.lengths)
    place = np.arange(steps)
    return torch.from_numpy((place >= starts[:, None]) & (place < (starts + real.lengths)[:, None]))


def _has_time_first(model: nn.Module) -> bool:
    """Whether torch's attention in the model takes (steps, sequences, ...), which is not what a list is padded to."""
    attention = first_attention(model)
    return attention is not None and not attention.batch_first
