"""Turn the data a user passes into batches with known sequence lengths."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

from kann.checks import array_of, call_of_user, require_dense, require_whole_number, shown
from kann.errors import KannError
from kann.recording.ragged import RealSteps, packed_lengths, real_steps
from kann.typing import Array


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Batch:
    """What a model is called with once."""

    content: Any
    """The batch as the data gave it."""
    real: RealSteps | None = None
    """Which of its steps are real; None if all are, or if the model itself knows."""
    has_decoder: bool = False
    """Whether ``real`` came from the mask of an encoder, and its decoder reads other sequences."""
    decoder_real: RealSteps | None = None
    """Which steps of the decoder's sequences are real; None if all are."""
    count: int | None = None
    """How many sequences it holds, where that is certain; None if only the model knows."""
    limit: int | None = None
    """How many of them to record; None for all."""

    def real_of(self, layer: str) -> RealSteps | None:
        """Which steps of what a layer gives are real: of one in a decoder, those of the decoder's own sequences."""
        if self.has_decoder and any(part.startswith("decoder") for part in layer.split(".")):
            return self.decoder_real
        return self.real


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BatchOptions:
    """How to cut data into batches."""

    lengths: Any
    """An array, a key of the batch, a function of the batch, or None."""
    collate: Callable[[list[Any]], Any] | None
    """From a list of samples to a batch."""
    batch_size: int
    """How many sequences a batch holds, where the data are not batches already."""
    max_sequences: int | None
    """After how many sequences to stop; None for the end of the data."""
    model_is_recurrent: bool
    """Whether the model itself is one of torch's fused recurrent modules: it takes (T, p) for one sequence."""
    time_first: bool
    """Whether tensors have the axes (time, sequence, …), as such a module takes them unless it is batch_first."""
    dtype: torch.dtype
    """The model's floating-point type, for numbers that come from numpy."""


Batches = tuple[Iterator[Batch], int | None]
"""Batches, and how many there are if that is known before they are made."""


def batches(data: Any, options: BatchOptions) -> Batches:
    """The batches of ``data`` with the lengths of their sequences, and how many batches there are, if that is known."""
    lengths = options.lengths
    require_whole_number(options.batch_size, "batch_size")
    if options.max_sequences is not None:
        require_whole_number(options.max_sequences, "max_sequences")
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset) and options.collate is None:
        raise KannError(f"{type(data).__name__} is a dataset of samples; pass DataLoader(dataset, batch_size=...)")
    cut, total = _cut(data, options)
    if lengths is None:
        return (_with_own_real_steps(batch) for batch in cut), total
    if isinstance(lengths, str | int) or callable(lengths):
        return (_with_real_steps(batch, _asked_real_steps(batch.content, lengths)) for batch in cut), total
    return _with_lengths_of_all(cut, real_steps(lengths), options), total


def _with_real_steps(batch: Batch, real: RealSteps | None) -> Batch:
    """The batch with these real steps: what `dataclasses.replace` does, in a third of its time."""
    return Batch(content=batch.content, real=real, count=batch.count, limit=batch.limit)


def _with_own_real_steps(batch: Batch) -> Batch:
    """The batch with the real steps that it knows by itself; of an encoder-decoder those of both."""
    known = _with_real_steps(batch, batch.real or _own_real_steps(batch.content))
    content = batch.content
    if not isinstance(content, Mapping) or not any(str(key).startswith("decoder_") for key in content):
        return known
    decoder = None
    if "decoder_attention_mask" in content:
        decoder = real_steps(content["decoder_attention_mask"])
    return replace(known, has_decoder=True, decoder_real=decoder)


def _cut(data: Any, options: BatchOptions) -> Batches:
    """Batches that know no lengths but those of the data themselves."""
    if options.collate is not None:
        return _collated(data, options.collate, options.batch_size)
    if isinstance(data, PackedSequence):
        return iter([Batch(content=data, count=int(data.batch_sizes[0]))]), 1
    if isinstance(data, Tensor | np.ndarray):
        return _cut_tensor(_to_tensor(data, options.dtype), options)
    if isinstance(data, Mapping):
        return _cut_mapping(data, options)
    if isinstance(data, list | tuple) and data and all(is_sequence(item) for item in data):
        return _pad_sequences([_to_tensor(item, options.dtype) for item in data], options)
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise KannError(f"data is {type(data).__name__}; pass a tensor, a list of tensors, or an iterable of batches")
    require_dense(data)
    return _as_they_come(data, options.dtype), _size(data)


def is_sequence(item: Any) -> bool:
    """Whether an entry of a list is one sequence: (T,), (T, p), or numbers in a list; (B, T, p) is a batch."""
    if isinstance(item, list):
        return bool(item) and all(isinstance(number, int | float) for number in item)
    return isinstance(item, Tensor | np.ndarray) and item.ndim < 3


def _as_they_come(data: Iterable[Any], dtype: torch.dtype) -> Iterator[Batch]:
    """The items of a loader, a generator or a list, each of which is a batch already."""
    for content in data:
        if isinstance(content, np.ndarray):
            yield Batch(content=_to_tensor(content, dtype))
        else:
            yield Batch(content=content)


def _collated(data: Any, collate: Callable[[list[Any]], Any], batch_size: int) -> Batches:
    """Batches that the user's function makes of ``batch_size`` samples each."""
    require_dense(data)
    if isinstance(data, DataLoader):
        raise KannError("a DataLoader has its own collate_fn; pass collate= with the samples themselves")
    size = _size(data)
    total = None
    if size is not None:
        total = -(-size // batch_size)
    samples = _samples(data, size)
    remedy = "pass one that makes a batch of a list of samples"

    def collated_batches() -> Iterator[Batch]:
        while group := list(islice(samples, batch_size)):
            content = call_of_user(collate, group, what="collate=", on=f"{len(group)} samples", remedy=remedy)
            yield Batch(content=content, count=len(group))

    return collated_batches(), total


def _samples(data: Any, size: int | None) -> Iterator[Any]:
    """The samples of a dataset, a list or a stream, one after the other."""
    if isinstance(data, Mapping):
        raise KannError(f"data is {type(data).__name__}, and collate= takes samples; pass a list of them, or a dataset")
    if size is None or not hasattr(data, "__getitem__"):
        try:
            return iter(data)
        except TypeError as error:
            raise KannError(f"data is {type(data).__name__}; pass an iterable of samples, or a dataset") from error
    # By index, as a DataLoader reads a dataset: its __getitem__ need not raise IndexError behind the last sample.
    return (data[i] for i in range(size))


def _size(data: Any) -> int | None:
    """How many items there are, if that is known before they are read."""
    try:
        return len(data)
    except TypeError:  # a generator, or a loader of a dataset without a length
        return None


def _slices(count: int, options: BatchOptions) -> list[slice]:
    """Where to cut ``count`` sequences into batches; none begins after ``max_sequences``."""
    count = min(count, options.max_sequences or count)
    return [slice(low, min(low + options.batch_size, count)) for low in range(0, count, options.batch_size)]


def _cut_tensor(data: Tensor, options: BatchOptions) -> Batches:
    """Cut a tensor along its axis of sequences, the first unless the model is a recurrent module that is time-first."""
    if options.model_is_recurrent and data.ndim == 2:  # (T, p), which torch takes as one sequence without a batch
        return iter([Batch(content=data, count=1)]), 1
    axis = int(options.time_first)
    if data.ndim < 1 + axis:
        raise KannError(f"data of shape {tuple(data.shape)} has no axis of sequences; pass (sequences, steps, ...)")
    cuts = _slices(data.shape[axis], options)
    sizes = ((cut.start, cut.stop - cut.start) for cut in cuts)
    return (Batch(content=data.narrow(axis, start, count), count=count) for start, count in sizes), len(cuts)


def _cut_mapping(data: Mapping[str, Any], options: BatchOptions) -> Batches:
    """Cut a mapping of tensors, such as a tokenizer returns, as one large batch."""
    arrays = {key: v for key, v in data.items() if isinstance(v, Tensor | np.ndarray) and v.ndim}
    tensors = {key: _to_tensor(array, options.dtype) for key, array in arrays.items()}
    counts = {len(tensor) for tensor in tensors.values()}
    if len(counts) != 1:
        raise KannError(f"the entries {list(data)} do not hold equally many sequences; pass tensors of equal length")
    cuts = _slices(counts.pop(), options)
    # What is not a tensor, such as a flag, or a single number goes with every batch.
    rest = {key: value for key, value in data.items() if key not in tensors}
    parts = (({key: tensor[cut] for key, tensor in tensors.items()} | rest, cut) for cut in cuts)
    return (Batch(content=part, count=cut.stop - cut.start) for part, cut in parts), len(cuts)


def _pad_sequences(sequences: list[Tensor], options: BatchOptions) -> Batches:
    """Pad sequences of different lengths batch by batch, so that a long one costs no more than its own batch."""
    for i, sequence in enumerate(sequences):
        if sequence.ndim == 0 or sequence.shape[1:] != sequences[0].shape[1:]:
            raise KannError(
                f"data[{i}] has shape {tuple(sequence.shape)}, data[0] has {tuple(sequences[0].shape)}; "
                "pass (steps, ...) for each sequence, alike but for the steps"
            )
    cuts = _slices(len(sequences), options)
    groups = (sequences[cut] for cut in cuts)
    return (
        Batch(
            content=pad_sequence(group, batch_first=not options.time_first),
            real=real_steps(np.array([len(sequence) for sequence in group])),
            count=len(group),
        )
        for group in groups
    ), len(cuts)


def _to_tensor(values: Any, dtype: torch.dtype) -> Tensor:
    """A tensor as it is; numbers from numpy, which are double unless told otherwise, in the model's precision."""
    if isinstance(values, Tensor):
        if not values.is_meta:  # refused where it is moved, which says where to
            require_dense(values)
        return values
    tensor = torch.from_numpy(_readable_by_torch(array_of(values)))
    if tensor.is_floating_point():
        return tensor.to(dtype)
    return tensor


def _readable_by_torch(array: Array) -> Array:
    """The same numbers in a type, an order of bytes and a layout that torch has."""
    if array.dtype.kind not in "biufc":
        raise KannError(f"data are {array.dtype}; pass numbers, such as the places of words in a vocabulary")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    # torch takes no other order of bytes and no steps backwards; a copy is made only where there are such.
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if any(stride < 0 for stride in array.strides):
        return array.copy()
    return array


def _with_lengths_of_all(cut: Iterator[Batch], real: RealSteps, options: BatchOptions) -> Iterator[Batch]:
    """Give each batch its part of the lengths of all sequences."""
    used = 0
    for batch in cut:
        count = batch.count
        if count is None:
            count = count_of(batch.content, options.time_first)
        if used + count > len(real):
            raise KannError(f"there are {len(real)} lengths and more sequences; pass one length per sequence")
        yield _with_real_steps(batch, real[used : used + count])
        used += count
    if used != len(real) and options.max_sequences is None:
        raise KannError(f"there are {len(real)} lengths for {used} sequences; pass one length per sequence")


def count_of(content: Any, time_first: bool = False) -> int:
    """How many sequences a batch holds, by its first packed sequence or else its first tensor."""
    packed = _first_packed(content)
    if packed is not None:
        return int(packed.batch_sizes[0])
    axis = int(time_first)
    for tensor in tensors_of(content):
        if tensor.ndim > axis:
            return int(tensor.shape[axis])
    text = _first_text(content)
    if text is not None:
        raise KannError(
            f"the data hold text, such as {shown(text)}, and models read numbers; pass the numbers of the words, as a "
            "tensor or a list of tensors, or collate= that makes tensors of a list of texts"
        )
    raise KannError(
        f"a batch of type {type(content).__name__} holds no tensor; pass lengths= as a function of the batch"
    )


def _first_text(content: Any) -> str | None:
    """The first text in nested lists and tuples; None if what comes first is something else."""
    while isinstance(content, list | tuple) and content:
        content = content[0]
    if isinstance(content, str):
        return content
    return None


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses, in order."""
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


def _own_real_steps(content: Any) -> RealSteps | None:
    """The lengths that a batch itself knows: from an attention mask, or from a PackedSequence."""
    if isinstance(content, Mapping) and "attention_mask" in content:
        return real_steps(content["attention_mask"])
    packed = _first_packed(content)
    if packed is None:
        return None
    return _packed_real_steps(packed)


def _asked_real_steps(content: Any, key: Any) -> RealSteps:
    """The lengths under a key of the batch, or as a function of it."""
    if callable(key):
        on, remedy = f"the batch {shown(content)}", "pass one that returns the length of each sequence"
        return real_steps(call_of_user(key, content, what="lengths=", on=on, remedy=remedy))
    try:
        value = content[key]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        have = type(content).__name__
        if isinstance(content, Mapping):
            have = sorted(map(str, content))
        raise KannError(f"lengths={key!r} is no key of the batch, which has {have}; pass one of its keys") from error
    if isinstance(value, PackedSequence):
        return _packed_real_steps(value)
    # torch's attention calls such an argument key_padding_mask or src_key_padding_mask; true means padding.
    return real_steps(value, marks_padding="padding_mask" in str(key))


def _first_packed(content: Any) -> PackedSequence | None:
    """The first PackedSequence among the entries of a batch, or the batch itself if it is one."""
    items: Iterable[Any] = ()
    if isinstance(content, PackedSequence):  # before tuple: it is one too
        return content
    if isinstance(content, Mapping):
        items = content.values()
    elif isinstance(content, list | tuple):
        items = content
    return next((item for item in items if isinstance(item, PackedSequence)), None)


def _packed_real_steps(packed: PackedSequence) -> RealSteps:
    """The lengths of packed sequences in the order of the batch, which packing may have sorted."""
    lengths = packed_lengths(packed.batch_sizes.numpy())
    if packed.unsorted_indices is not None:
        lengths = lengths[packed.unsorted_indices.cpu().numpy()]
    return RealSteps(lengths=lengths)
