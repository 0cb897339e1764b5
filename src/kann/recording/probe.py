"""Change some inputs of a batch, to see which rows of a layer follow them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from kann.recording.sequence_data import Batch, RealSteps, is_state, packed_lengths
from kann.typing import Array, Int

NO_INPUTS = ("mask", "len", "label", "target")
"""Parts of the names of entries of a batch that are not read as steps."""

TRIES = 16
"""Steps that are looked at for one that differs from the step to change."""


def changed_batch(batch: Batch, axis: int = 0, chosen: Array | None = None) -> tuple[Batch, Int[Array, " b"]] | None:
    """A batch in which some sequences read at one step what another step of the batch holds; None if it cannot be made.

    Also returns the step at which each sequence differs, −1 for those that do not. Without ``chosen`` these are about
    half of the sequences, at random, the longest one among them. Steps of zeros, such as padding that only the model
    knows, stay as they are, and nothing becomes zeros.
    """
    found = _steps_of(batch.content, axis)
    if found is None:
        return None
    steps, put_back = found
    count, most = steps.shape[:2]
    real = batch.real if batch.real is not None and len(batch.real) == count else None
    own = RealSteps(lengths=np.full(count, most)) if real is None else real
    if isinstance(batch.content, PackedSequence):
        own = RealSteps(lengths=own.lengths if real is not None else np.full(count, most))
    rng = np.random.default_rng(0)
    if chosen is None:
        chosen = rng.permutation(count) < (count + 1) // 2
        chosen[own.lengths.argmax()] = True
    rows = steps.reshape(count, most, -1)
    usable = own.mask(most, torch.device("cpu")) & (rows != 0).any(dim=2).cpu()
    places = usable.nonzero().numpy()
    changed, at = steps.clone(), np.full(count, -1)
    for number in np.flatnonzero(chosen).tolist():
        step = _step_to_change(usable[number].numpy(), rng)
        if step is None:
            continue
        for other, there in places[rng.integers(len(places), size=TRIES)].tolist():
            if not torch.equal(rows[other, there], rows[number, step]):
                changed[number, step], at[number] = steps[other, there], step
                break
    if (at < 0).all():
        return None
    return replace(batch, content=put_back(changed)), at


def _step_to_change(usable: Array, rng: np.random.Generator) -> int | None:
    """One of the usable steps, but not the one in the middle, which is the same from both ends."""
    steps = np.flatnonzero(usable)
    steps = steps[2 * steps != len(usable) - 1] if len(steps) > 1 else steps
    return int(rng.choice(steps)) if len(steps) else None


def _steps_of(content: Any, axis: int) -> tuple[Tensor, Any] | None:
    """The steps that a batch holds, (sequences, steps, ...), and a function that puts others in their place."""
    if isinstance(content, Tensor):
        if content.ndim < 2 + (axis and content.ndim == 2) or content.dtype == torch.bool or not content.numel():
            return None
        return (content.transpose(0, 1), lambda new: new.transpose(0, 1)) if axis else (content, lambda new: new)
    if isinstance(content, PackedSequence):
        return _packed_steps(content)
    if isinstance(content, Mapping):
        keys = [key for key in content if not any(word in str(key).lower() for word in NO_INPUTS)]
        for key in sorted(keys, key=lambda key: not _is_steps(content[key])):
            found = _steps_of(content[key], axis)
            if found is not None:
                steps, put_back = found
                return steps, lambda new: {**content, key: put_back(new)}  # noqa: B023  # returned at once
        return None
    if isinstance(content, list | tuple) and content and not hasattr(content, "_fields"):
        found = _steps_of(content[0], axis)
        if found is not None:
            steps, put_back = found
            return steps, lambda new: type(content)([put_back(new), *content[1:]])
    return None


def _is_steps(value: Any) -> bool:
    """Whether a tensor surely holds steps: whole numbers (sequences, steps), or real ones with units."""
    return isinstance(value, Tensor) and value.ndim == 2 + is_state(value)


def _packed_steps(packed: PackedSequence) -> tuple[Tensor, Any]:
    """The steps of packed sequences, padded with zeros, in the order of the batch."""
    sizes = packed.batch_sizes.numpy()
    lengths, count = packed_lengths(sizes), int(sizes[0])
    order = np.arange(count) if packed.unsorted_indices is None else packed.unsorted_indices.cpu().numpy()
    step, place = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes])
    sequence = np.argsort(order)[place]
    padded = packed.data.new_zeros((count, int(lengths[0]), *packed.data.shape[1:]))
    padded[sequence, step] = packed.data
    return padded, lambda new: packed._replace(data=new[sequence, step])
