"""From whatever holds a model's inputs to batches, each with what is known about its lengths."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

from kann.errors import KannError
from kann.recording.ragged import Span, as_span, packed_lengths


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Batch:
    """What a model is called with once."""

    content: Any
    """The batch as the data gave it."""
    span: Span | None = None
    """Which of its steps are real; None if all are, or if the model itself knows."""
    count: int | None = None
    """How many sequences it certainly holds; None if only the model knows."""
    keep: int | None = None
    """How many of them to record; None for all."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Plan:
    """How to cut data into batches."""

    lengths: Any
    """An array, a key of the batch, a function of the batch, or None."""
    collate: Callable[[list[Any]], Any] | None
    """From a list of samples to a batch."""
    batch_size: int
    """How many sequences a batch holds, where the data are not batches already."""
    max_sequences: int | None
    """Where to stop."""
    bare: bool
    """Whether the model is one of torch's recurrent modules itself, so that two axes are one sequence."""
    time_first: bool
    """Whether tensors have the axes (time, sequence, …), as such a module takes them unless it is batch_first."""
    dtype: torch.dtype
    """The model's floating-point type, for numbers that come from numpy."""


def batches(data: Any, plan: Plan) -> tuple[Iterator[Batch], int | None]:
    """The batches of ``data`` and how many there are, if that is known."""
    if plan.batch_size < 1 or (plan.max_sequences is not None and plan.max_sequences < 1):
        raise KannError(f"batch_size={plan.batch_size} and max_sequences={plan.max_sequences} must be at least 1")
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset) and plan.collate is None:
        raise KannError(f"{type(data).__name__} is a dataset of samples; pass DataLoader(dataset, batch_size=...)")
    chunks, total = _chunks(data, plan)
    if plan.lengths is None:
        return (_spanned(chunk, chunk.span or _own_span(chunk.content)) for chunk in chunks), total
    if isinstance(plan.lengths, str | int) or callable(plan.lengths):
        return (_spanned(chunk, _asked_span(chunk.content, plan.lengths)) for chunk in chunks), total
    return _with_lengths(chunks, as_span(plan.lengths), plan), total


def _spanned(batch: Batch, span: Span | None) -> Batch:
    """The batch with this span: what `dataclasses.replace` does, in a third of its time."""
    return Batch(content=batch.content, span=span, count=batch.count, keep=batch.keep)


def _chunks(data: Any, plan: Plan) -> tuple[Iterator[Batch], int | None]:
    """Batches without the lengths that the user gave."""
    if plan.collate is not None:
        return _collated(data, plan.collate, plan)
    if isinstance(data, PackedSequence):
        return iter([Batch(content=data, span=None, count=int(data.batch_sizes[0]))]), 1
    if isinstance(data, Tensor | np.ndarray):
        return _cut_tensor(_tensor(data, plan.dtype), plan)
    if isinstance(data, Mapping):
        return _cut_mapping(data, plan)
    if isinstance(data, list | tuple) and data and all(_is_sequence(item) for item in data):
        return _padded(
            [_tensor(np.asarray(item) if isinstance(item, list) else item, plan.dtype) for item in data], plan
        )
    if not isinstance(data, Iterable):
        raise KannError(f"data is {type(data).__name__}; pass a tensor, a list of tensors, or an iterable of batches")
    return (Batch(content=_tensor(i, plan.dtype) if isinstance(i, np.ndarray) else i) for i in data), _size(data)


def _is_sequence(item: Any) -> bool:
    """Whether an entry of a list is one sequence: (T,), (T, p), or numbers in a list; (B, T, p) is a batch."""
    if isinstance(item, list):
        return bool(item) and all(isinstance(number, int | float) for number in item)
    return isinstance(item, Tensor | np.ndarray) and item.ndim < 3


def _collated(data: Any, collate: Callable[[list[Any]], Any], plan: Plan) -> tuple[Iterator[Batch], int | None]:
    if isinstance(data, DataLoader):
        raise KannError("a DataLoader has its own collate_fn; pass collate= with the samples themselves")
    indexed = hasattr(data, "__getitem__") and _size(data) is not None  # an IterableDataset has the one alone
    samples = (data[i] for i in range(len(data))) if indexed else iter(data)

    def groups() -> Iterator[Batch]:
        while group := list(islice(samples, plan.batch_size)):
            yield Batch(content=collate(group), count=len(group))

    size = _size(data)
    return groups(), None if size is None else -(-size // plan.batch_size)


def _size(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:  # a generator, or a loader of a dataset without a length
        return None


def _ranges(count: int, plan: Plan) -> tuple[list[slice], int]:
    count = min(count, plan.max_sequences or count)
    cuts = [slice(low, min(low + plan.batch_size, count)) for low in range(0, count, plan.batch_size)]
    return cuts, len(cuts)


def _cut_tensor(data: Tensor, plan: Plan) -> tuple[Iterator[Batch], int]:
    if plan.bare and data.ndim == 2:
        return iter([Batch(content=data, count=1)]), 1
    axis = 1 if plan.time_first else 0
    if data.ndim < 1 + axis:
        raise KannError(f"data of shape {tuple(data.shape)} has no axis of sequences; pass (sequences, steps, ...)")
    cuts, total = _ranges(data.shape[axis], plan)
    pieces = ((data[:, cut] if axis else data[cut], cut) for cut in cuts)
    return (Batch(content=piece, count=cut.stop - cut.start) for piece, cut in pieces), total


def _cut_mapping(data: Mapping[str, Any], plan: Plan) -> tuple[Iterator[Batch], int]:
    """A mapping of tensors is one large batch, such as a tokenizer returns."""
    tensors = {key: _tensor(v, plan.dtype) for key, v in data.items() if isinstance(v, Tensor | np.ndarray)}
    counts = {len(tensor) for tensor in tensors.values()}
    if len(counts) != 1:
        raise KannError(f"the entries {list(data)} do not hold equally many sequences; pass tensors of equal length")
    cuts, total = _ranges(counts.pop(), plan)
    rest = {key: value for key, value in data.items() if key not in tensors}
    parts = (({key: tensor[cut] for key, tensor in tensors.items()} | rest, cut) for cut in cuts)
    return (Batch(content=part, count=cut.stop - cut.start) for part, cut in parts), total


def _padded(sequences: list[Tensor], plan: Plan) -> tuple[Iterator[Batch], int]:
    for i, sequence in enumerate(sequences):
        if sequence.ndim == 0 or sequence.shape[1:] != sequences[0].shape[1:]:
            raise KannError(
                f"data[{i}] has shape {tuple(sequence.shape)}, data[0] has {tuple(sequences[0].shape)}; "
                "pass (steps, ...) for each sequence, alike but for the steps"
            )
    cuts, total = _ranges(len(sequences), plan)
    groups = (sequences[cut] for cut in cuts)
    return (
        Batch(
            content=pad_sequence(group, batch_first=not plan.time_first),
            span=as_span(np.array([len(sequence) for sequence in group])),
            count=len(group),
        )
        for group in groups
    ), total


def _tensor(values: Any, dtype: torch.dtype) -> Tensor:
    """A tensor as it is; numbers from numpy, which are double unless told otherwise, in the model's precision."""
    if isinstance(values, Tensor):
        return values
    tensor = torch.as_tensor(np.asarray(values))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _with_lengths(chunks: Iterator[Batch], span: Span, plan: Plan) -> Iterator[Batch]:
    """Give each batch its part of the lengths of all sequences."""
    used = 0
    for chunk in chunks:
        count = chunk.count if chunk.count is not None else count_of(chunk.content, plan.time_first)
        if used + count > len(span):
            raise KannError(f"there are {len(span)} lengths and more sequences; pass one length per sequence")
        yield _spanned(chunk, span[used : used + count])
        used += count
    if used != len(span) and plan.max_sequences is None:
        raise KannError(f"there are {len(span)} lengths for {used} sequences; pass one length per sequence")


def count_of(content: Any, time_first: bool = False) -> int:
    """How many sequences a batch holds, by its first tensor."""
    for packed in (item for item in _items(content) if isinstance(item, PackedSequence)):
        return int(packed.batch_sizes[0])
    for tensor in tensors_of(content):
        if tensor.ndim > (1 if time_first else 0):
            return int(tensor.shape[1 if time_first else 0])
    raise KannError(
        f"a batch of type {type(content).__name__} holds no tensor; pass lengths= as a function of the batch"
    )


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists, mappings and objects with named fields, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors_of(getattr(value, name))


def _own_span(content: Any) -> Span | None:
    """The lengths that a batch itself knows: from an attention mask, or from a PackedSequence."""
    if isinstance(content, Mapping) and "attention_mask" in content:
        return as_span(content["attention_mask"])
    packed = next((item for item in _items(content) if isinstance(item, PackedSequence)), None)
    return None if packed is None else _packed_span(packed)


def _asked_span(content: Any, key: Any) -> Span:
    """The lengths under a key of the batch, or as a function of it."""
    if callable(key):
        return as_span(key(content))
    try:
        value = content[key]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        have = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise KannError(f"lengths={key!r} is no key of the batch, which has {have}; pass one of its keys") from error
    if isinstance(value, PackedSequence):
        return _packed_span(value)
    return as_span(value, padding="padding_mask" in str(key))


def _items(content: Any) -> Iterable[Any]:
    if isinstance(content, PackedSequence):
        return [content]
    if isinstance(content, Mapping):
        return content.values()
    return content if isinstance(content, list | tuple) else []


def _packed_span(packed: PackedSequence) -> Span:
    lengths = packed_lengths(packed.batch_sizes.numpy())
    order = packed.unsorted_indices
    return Span(lengths=lengths if order is None else lengths[order.cpu().numpy()])
