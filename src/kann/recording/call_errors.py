"""Explain errors of a model that cannot read a batch."""

import re
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kann.checks import short_repr
from kann.errors import KannError


def explained(
    error: Exception,
    model: nn.Module,
    content: Any,
    tensors: Sequence[Tensor],
    *,
    dtype: torch.dtype,
    device: torch.device | None,
    by_forward: bool,
) -> KannError | None:
    """Explain why a model cannot read a batch; None for any other error, which the model itself raised.

    ``tensors`` are those of the batch, ``dtype`` and ``device`` those of the model; ``by_forward`` is True if the user
    passed ``forward=``.
    """
    if isinstance(error, KannError):
        return None
    line = (str(error).splitlines() or [""])[0]
    if not tensors and not by_forward and isinstance(error, TypeError | AttributeError):
        return KannError(
            f"the model cannot read the batch {short_repr(content)}, which holds no tensor "
            f"({type(error).__name__}: {error}); pass tensors, or forward= that makes them of such a batch"
        )
    if not by_forward and f"{type(model).__name__}.forward() missing" in line:
        return KannError(
            f"the model reads more than the batch ({line}); pass forward=lambda model, batch: model(batch, ...)"
        )
    if "argument #1 'indices'" in line:
        return KannError(
            f"an embedding of the model reads whole numbers, and the data are {short_repr(str(tensors[0].dtype))}; "
            "pass data.long()"
        )
    if isinstance(error, IndexError):
        is_of_embedding = traceback.extract_tb(error.__traceback__)[-1].name == "embedding"
        return _explained_embedding(model, tensors) if is_of_embedding else None
    if not isinstance(error, RuntimeError | ValueError):
        return None
    kinds = {tensor.dtype for tensor in tensors}
    has_type = dtype in kinds or (all(map(_is_whole, tensors)) and _embeddings(model))
    if tensors and not has_type and not by_forward and any(True for _ in model.parameters()):
        names = ", ".join(sorted(map(str, kinds)))
        return KannError(
            f"the model and the data hold different types of numbers ({dtype} and {names}: {line}); pass "
            "data of the model's type, such as data.float(), and whole numbers only to an embedding"
        )
    # Torch has no classes for these errors, only words.
    if re.search("same device|expected device", line):
        return KannError(
            f"the model, on {device}, and something that it reads are on different devices ({error}); move "
            "all of the model with model.to(...), and what forward= makes as well"
        )
    if re.search("input_size|Expected input to be|shapes cannot be multiplied|Expected sequence length", line):
        shape = tuple(tensors[0].shape) if tensors else ()
        return KannError(f"the model cannot read a batch of shape {shape} ({line}); {_remedy_of_shape(shape, line)}")
    return None


def _remedy_of_shape(shape: tuple[int, ...], line: str) -> str:
    """Return which shape to pass; ``line`` is torch's error, which may name the width that the model reads."""
    width = re.search(r"Expected (\d+), got", line)
    if len(shape) == 2:
        return (
            "pass (sequences, steps, channels) as wide as the model reads: data[..., None] if each row holds a number "
            "for each step, data[:, None] if it is a single step"
        )
    if width and len(shape) == 3 and shape[1] == int(width[1]):
        return f"pass (sequences, steps, channels): here data.swapaxes(1, 2), since the model reads {width[1]} channels"
    return "pass (sequences, steps, ...) as wide as the model reads, with at least one step"


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _embeddings(model: nn.Module) -> dict[str, int]:
    """Return the number of rows of each embedding of the model."""
    return {name: part.num_embeddings for name, part in model.named_modules() if isinstance(part, nn.Embedding)}


def _explained_embedding(model: nn.Module, tensors: Sequence[Tensor]) -> KannError | None:
    """Explain that an embedding lacks rows, for words or for positions; None if it lacks none."""
    sizes = _embeddings(model)
    numbers = [part for part in tensors if part.numel() and _is_whole(part)]
    if not sizes or not numbers:
        return None
    low, high = min(int(part.min()) for part in numbers), max(int(part.max()) for part in numbers)
    rows = ", ".join(f"{name!r} has {size} rows (0 to {size - 1})" for name, size in sizes.items())
    return KannError(
        f"an embedding was asked for a row that it does not have: the data hold numbers from {low} to {high}, and "
        f"{rows}; pass numbers of its vocabulary, and sequences no longer than it has positions"
    )
