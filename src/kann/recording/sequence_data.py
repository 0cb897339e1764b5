"""Turn the data of a user into batches with known sequence lengths, and call a model with them."""

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_sequence
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from kann.backends.arrays import as_numpy
from kann.checks import array_of, call_of_user, require_dense, require_flag, require_whole_number, short_repr
from kann.errors import KannError
from kann.progress import progress as progress_bar
from kann.recording.call_errors import explained
from kann.recording.runner import reset_state
from kann.typing import AnyArray, Array, Int, Shaped


class RunOptions(TypedDict, total=False):
    """How to read data and to call a model, as keywords of every function that runs a model over data.

    The data are a tensor or array of sequences (S, ...), a list of sequences of different lengths, a PackedSequence, a
    mapping of tensors, a DataLoader, or any iterable of batches. A batch that is a mapping is passed by its keys, of a
    tuple the entries that ``forward`` requires.
    """

    lengths: Any
    """The number of real steps of each sequence: an array, a key of the batch, or a function of the batch. A matrix is
    a mask. A list of sequences, a PackedSequence, and a batch with an ``attention_mask`` know theirs."""
    forward: Callable[[Any, Any], Any] | None
    """``forward(model, batch)``, for models that are called in another way."""
    collate: Callable[[list[Any]], Any] | None
    """From a list of samples to a batch; the data are then an iterable of samples."""
    batch_size: int | None
    """The number of sequences to run at once, where the data are not batches already. Default: 32. None for up to 128,
    and fewer of long ones."""
    max_sequences: int | None
    """Stop after this many sequences of the data."""
    device: torch.device | str | None
    """Where to put batches. They go where the model is, so this matters only for a model without parameters."""
    progress: bool
    """Whether to show a progress bar if it takes long. Default: True."""


DEFAULT_SIZE = 32
"""Number of sequences in a batch."""

MOST_SEQUENCES, FEWEST_SEQUENCES, MOST_STEPS = 128, 8, 16_000
"""Without a fixed number: sequences in a batch at most and at least, and its steps, with padding."""

RANDOM_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""What DataLoaders draw sequences with in another order each time."""


def require_order(data: Any, **given: Any) -> None:
    """Raise for a DataLoader that gives sequences in another order each time, if something belongs to each of them."""
    names = [name for name, value in given.items() if value is not None]
    samplers = [getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None)]
    if names and any(isinstance(sampler, RANDOM_SAMPLERS) for sampler in samplers):
        raise KannError(
            f"the DataLoader shuffles, so the sequence that each of the {' and '.join(names)} belongs to is not known; "
            "pass DataLoader(dataset, batch_size=..., shuffle=False)"
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RealSteps:
    """Which steps of each sequence of a padded batch are real: ``lengths`` many, from ``starts`` on."""

    lengths: Int[Array, " s"]
    """The number of real steps of each sequence."""
    starts: Int[Array, " s"]
    """Where they begin: at 0 unless the padding is on the left."""

    @staticmethod
    def from_the_first(lengths: Int[Array, " s"]) -> "RealSteps":
        """Return the real steps of sequences that begin at step 0."""
        return RealSteps(lengths=lengths, starts=np.zeros_like(lengths))

    def __getitem__(self, key: slice | Int[Array, " k"]) -> "RealSteps":
        return RealSteps(lengths=self.lengths[key], starts=self.starts[key])

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def ends(self) -> Int[Array, " s"]:
        """The step behind the last real one."""
        return self.starts + self.lengths

    def mask(self, steps: int) -> Shaped[Array, "s t"]:
        """Return a mask (s, steps), true for the real steps."""
        step = np.arange(steps)
        return (step >= self.starts[:, None]) & (step < self.ends[:, None])


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """The data of one call of a model."""

    content: Any
    """The batch as the data gave it."""
    real: RealSteps | None = None
    """Which of its steps are real; None if all are, or if the model itself knows."""
    has_decoder: bool = False
    """Whether ``real`` came from the mask of an encoder, and its decoder reads other sequences."""
    decoder_real: RealSteps | None = None
    """Which steps of the decoder's sequences are real; None if all are."""
    count: int | None = None
    """The number of sequences, where that is certain; None if only the model knows."""
    numbers: Int[Array, " b"] = field(default_factory=partial(np.arange, 0))
    """The numbers of the sequences in the data; empty unless the batch is from `SequenceData.groups`."""

    def real_of(self, layer: str) -> RealSteps | None:
        """Return the real steps of a layer's output: for a layer in a decoder, those of the decoder's sequences."""
        if self.has_decoder and any(part.startswith("decoder") for part in layer.split(".")):
            return self.decoder_real
        return self.real

    def __len__(self) -> int:
        """Return the number of sequences of a batch from `SequenceData.groups`."""
        return len(self.numbers)


class SequenceData:
    """The data of a user, with `RunOptions`, as batches for a model; and the call of the model with one of them.

    >>> words = [torch.zeros(5, 3), torch.zeros(2, 3), torch.zeros(4, 3)]
    >>> data = SequenceData(nn.GRU(3, 4, batch_first=True), words, batch_size=2)
    >>> for batch in data.batches():
    ...     states, last = data.call(batch)
    ...     print(batch.real.lengths, tuple(states.shape))
    [5 2] (2, 5, 4)
    [4] (1, 4, 4)

    `batches` reads the data once and forgets them. `groups` keeps all batches in memory, for tests that run the model
    on the same sequences again and again; there each batch has the ``numbers`` of its sequences in the data.

    >>> [batch.numbers.tolist() for batch in data.groups()]
    [[0, 2], [1]]

    `call` moves a batch to the model's device, tells a model that takes lengths or a mask what is padding, and explains
    errors. It changes neither the mode of the model nor gradients: `kann.recording.runner.evaluation_mode` does.

    Parameters
    ----------
    model
        Any torch module.
    data
        See `RunOptions`.
    run
        `RunOptions`.
    """

    def __init__(self, model: nn.Module, data: Any, **run: Unpack[RunOptions]):
        if unknown := run.keys() - RunOptions.__annotations__.keys():
            raise TypeError(f"unknown options {sorted(unknown)}; pass those of RunOptions")
        self.model, self.data = model, data
        self.lengths, self._collate, self._forward = run.get("lengths"), run.get("collate"), run.get("forward")
        for name, function in (("forward", self._forward), ("collate", self._collate)):
            if function is not None and not callable(function):
                raise KannError(f"{name}={short_repr(function)} is not a function; pass one, or leave it out")
        self.shows_progress = run.get("progress", True)
        require_flag(self.shows_progress, "progress")
        size = run.get("batch_size", DEFAULT_SIZE)
        self.batch_size = None if size is None else require_whole_number(size, "batch_size")
        self.max_sequences = run.get("max_sequences")
        if self.max_sequences is not None:
            require_whole_number(self.max_sequences, "max_sequences")
        if not (isinstance(self.lengths, str | int) or callable(self.lengths)):
            require_order(data, lengths=self.lengths)
        self._is_recurrent = isinstance(model, nn.RNNBase)
        # A fused recurrent module itself takes tensors (time, sequence, …) unless it is batch_first.
        self.axis = int(isinstance(model, nn.RNNBase) and not model.batch_first)
        self._dtype = floating_type(model)
        self.device = device_of(model, run.get("device"))
        # A model that is called in another way has no parameters that matter here.
        self._parameters = {} if self._forward is not None else parameters_of(model)
        self._options: dict[str, Any] = {}

    def request_hidden_states(self) -> None:
        """Ask a model that takes ``output_hidden_states`` for them."""
        if "output_hidden_states" in self._parameters or _takes_any_keyword(self._parameters):
            self._options["output_hidden_states"] = True

    @property
    def count(self) -> int | None:
        """The number of sequences, where `take` can take some of them; None for data that come in batches."""
        data = self.data
        if self._collate is not None:
            return _size(data) if hasattr(data, "__getitem__") else None
        if isinstance(data, Tensor | np.ndarray):
            is_one = self._is_recurrent and data.ndim == 2
            return data.shape[self.axis] if data.ndim > self.axis and not is_one else None
        if isinstance(data, Mapping):
            return next((len(each) for each in data.values() if getattr(each, "ndim", 0)), None)
        is_listed = isinstance(data, list | tuple) and not isinstance(data, PackedSequence)
        return len(data) if is_listed and data and all(map(is_sequence, data)) else None

    def take(self, numbers: Int[Array, " k"]) -> "SequenceData":
        """Return the same for some of the sequences, in this order; only if there is a `count`."""
        data, lengths, taken = self.data, self.lengths, copy.copy(self)
        if isinstance(data, Tensor | np.ndarray) and self._collate is None:
            taken.data = data[:, numbers] if self.axis else data[numbers]
        elif isinstance(data, Mapping):
            taken.data = {key: each[numbers] if getattr(each, "ndim", 0) else each for key, each in data.items()}
        else:
            taken.data = [data[i] for i in numbers]
        if lengths is not None and not isinstance(lengths, str | int) and not callable(lengths):
            lengths = as_numpy(lengths)
            if len(numbers) and numbers.max() >= len(lengths):
                raise KannError(f"there are {len(lengths)} lengths and more sequences; pass one length per sequence")
            taken.lengths = lengths[numbers]
        return taken

    def batches(self, *, bar: str | None = None) -> Iterator[Batch]:
        """Read the batches in the order of the data, each with its lengths; ``bar`` is the title of a progress bar."""
        if isinstance(self.data, Dataset) and not isinstance(self.data, IterableDataset) and self._collate is None:
            raise KannError(
                f"{type(self.data).__name__} is a dataset of samples; pass DataLoader(dataset, batch_size=...)"
            )
        cut, total = self._cut()
        found = self._with_real_steps(cut)
        if bar is None or not self.shows_progress:
            return found
        return progress_bar(found, what=bar, total=total, unit="batch")

    def groups(self) -> list[Batch]:
        """Return all batches, with the numbers of their sequences.

        Sequences that come in a list, or as samples to collate, are sorted by length, so that little of a batch is
        padding. Batches of a loader are whole: the last one may hold more sequences than ``max_sequences``.
        """
        data, order, count, most = self.data, None, self.count, self.max_sequences
        if count is not None and most is not None and count > most:  # before sorting, which would choose the longest
            return self.take(np.arange(most)).groups()
        is_listed = isinstance(data, list | tuple) and count is not None and self.lengths is None
        if is_listed and all(map(_steps_of, data)):
            order = np.argsort([-_steps_of(item) for item in data], kind="stable")
        ordered = self if order is None else self.take(order)
        found: list[Batch] = []
        first = 0
        for batch in ordered.batches():
            last = first + self.count_of(batch)
            batch.numbers = np.arange(first, last) if order is None else order[first:last]
            found.append(batch)
            first = last
            if most is not None and first >= most:
                break
        if not found:
            raise KannError("the data hold no batches, so that nothing can be tested; pass at least one sequence")
        return found

    def first_groups(self, sequences: int) -> list[Batch]:
        """Read batches until they hold enough sequences, and number these; for data that may come only once."""
        found, total = [], 0
        for batch in self.batches():
            batch.numbers = np.arange(total, total + self.count_of(batch))
            found.append(batch)
            total += len(batch)
            if total >= sequences:
                return found
        if not found:
            raise KannError("the data hold no batches; pass at least one sequence")
        return found

    @property
    def needs_lengths(self) -> bool:
        """Whether the model's forward cannot be called without the lengths of the sequences."""
        return any(takes_lengths(p) and p.default is p.empty for p in list(self._parameters.values())[1:])

    def count_of(self, batch: Batch) -> int:
        """Return the number of sequences of a batch, by its tensors where the data do not tell."""
        return count_of(batch.content, self.axis) if batch.count is None else batch.count

    def call(self, batch: Batch) -> Any:
        """Move a batch to the device, run the model on it, and return the model's output.

        Inside of `evaluation_mode`, a model that keeps a state by itself begins each batch with the one that it had.
        """
        reset_state(self.model)
        content = batch.content
        if self.device is not None:
            content = to_device(content, self.device, except_for=_lengths_entry(content, self.lengths))
        try:
            return self._output_of(content, batch.real)
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            own: Any = {"dtype": self._dtype, "device": self.device, "by_forward": self._forward is not None}
            found = explained(error, self.model, content, list(tensors_of(content)), **own)
            if found is None:
                raise
            raise found from error

    def _output_of(self, content: Any, real: RealSteps | None) -> Any:
        """Call the model by ``forward``, or by the arguments of its own forward."""
        model, parameters, options = self.model, self._parameters, self._options
        if self._forward is not None:
            return self._forward(model, content)
        try:
            if isinstance(content, Mapping):
                return model(**_accepted(content, parameters) | options)
            if isinstance(content, list | tuple) and not isinstance(content, PackedSequence):
                # What follows the arguments without a default are labels and the like.
                positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                required = sum(p.kind in positional and p.default is p.empty for p in parameters.values())
                return model(*content[: max(1, required)], **options)
            return model(content, **padding_arguments(model, parameters, content, real), **options)
        except TypeError as error:
            if not options or "output_hidden_states" not in str(error):
                raise
            raise KannError(
                f"{type(model).__name__} does not take output_hidden_states ({error}); pass forward=lambda model, "
                "batch: ... that calls it as it wants to be called"
            ) from error

    def _with_real_steps(self, cut: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches with the lengths that the user passed, or else with those that they know by themselves."""
        lengths = self.lengths
        if lengths is None:
            return map(_with_own_real_steps, cut)
        if isinstance(lengths, str | int) or callable(lengths):
            return (replace(batch, real=_asked_real_steps(batch.content, lengths)) for batch in cut)
        return self._with_lengths_of_all(cut, real_steps(lengths))

    def _with_lengths_of_all(self, cut: Iterator[Batch], real: RealSteps) -> Iterator[Batch]:
        """Give each batch its part of the lengths of all sequences."""
        used = 0
        for batch in cut:
            count = self.count_of(batch)
            if used + count > len(real):
                raise KannError(f"there are {len(real)} lengths and more sequences; pass one length per sequence")
            yield replace(batch, real=real[used : used + count])
            used += count
        if used != len(real) and self.max_sequences is None:
            raise KannError(f"there are {len(real)} lengths for {used} sequences; pass one length per sequence")

    def _cut(self) -> tuple[Iterator[Batch], int | None]:
        """Return batches that know only the lengths of the data, and their number if that is known."""
        data, dtype, axis = self.data, self._dtype, self.axis
        if self._collate is not None:
            return self._collated(self._collate)
        if isinstance(data, PackedSequence):
            return iter([Batch(content=data, count=int(data.batch_sizes[0]))]), 1
        if isinstance(data, Tensor | np.ndarray):
            tensor = _to_tensor(data, dtype)
            if self._is_recurrent and data.ndim == 2:  # (T, p), which torch takes as one sequence without a batch
                return iter([Batch(content=tensor, count=1)]), 1
            if data.ndim < 1 + axis:
                raise KannError(
                    f"data of shape {tuple(data.shape)} has no axis of sequences; pass (sequences, steps, ...)"
                )
            steps = np.full(data.shape[axis], data.shape[1 - axis] if data.ndim > 1 else 1)
            return self._slices(steps, lambda cut: Batch(content=tensor[:, cut] if axis else tensor[cut]))
        if isinstance(data, Mapping):
            return self._cut_mapping(data)
        if isinstance(data, list | tuple) and data and all(map(is_sequence, data)):
            return self._pad_sequences([_to_tensor(item, dtype) for item in data])
        if not isinstance(data, Iterable) or isinstance(data, str | bytes):
            raise KannError(
                f"data is {type(data).__name__}; pass a tensor, a list of tensors, or an iterable of batches"
            )
        require_dense(data)
        # The items of a loader, a generator or a list, each of which is a batch already.
        items = (_to_tensor(item, dtype) if isinstance(item, np.ndarray) else item for item in data)
        return (Batch(content=item) for item in items), _size(data)

    def _collated(self, collate: Callable[[list[Any]], Any]) -> tuple[Iterator[Batch], int | None]:
        """Return batches that the user's function makes of ``batch_size`` samples each, whose steps are unknown."""
        require_dense(self.data)
        if isinstance(self.data, DataLoader):
            raise KannError("a DataLoader has its own collate_fn; pass collate= with the samples themselves")
        size, most = _size(self.data), self.batch_size or DEFAULT_SIZE
        samples = _samples(self.data, size)
        remedy = "pass one that makes a batch of a list of samples"

        def collated() -> Iterator[Batch]:
            while group := list(islice(samples, most)):
                content = call_of_user(collate, group, what="collate=", on=f"{len(group)} samples", remedy=remedy)
                yield Batch(content=content, count=len(group))

        return collated(), size and -(-size // most)

    def _slices(self, steps: Int[Array, " s"], batch_of: Callable[[slice], Batch]) -> tuple[Iterator[Batch], int]:
        """Return batches of sequences of so many steps; none begins after ``max_sequences``."""
        steps = steps[: self.max_sequences]
        cuts, low = list[slice](), 0
        while low < len(steps):
            high = min(low + (self.batch_size or _fitting(steps[low : low + MOST_SEQUENCES])), len(steps))
            cuts.append(slice(low, high))
            low = high

        def batches() -> Iterator[Batch]:
            for cut in cuts:
                batch = batch_of(cut)
                batch.count = cut.stop - cut.start
                yield batch

        return batches(), len(cuts)

    def _cut_mapping(self, data: Mapping[str, Any]) -> tuple[Iterator[Batch], int]:
        """Cut a mapping of tensors, such as a tokenizer returns, as one large batch."""
        arrays = {key: v for key, v in data.items() if isinstance(v, Tensor | np.ndarray) and v.ndim}
        tensors = {key: _to_tensor(array, self._dtype) for key, array in arrays.items()}
        counts = {len(tensor) for tensor in tensors.values()}
        if len(counts) != 1:
            raise KannError(
                f"the entries {list(data)} do not hold equally many sequences; pass tensors of equal length"
            )
        # What is not a tensor, such as a flag, or a single number goes with every batch.
        rest = {key: value for key, value in data.items() if key not in tensors}
        longest = max(tensor.shape[1] if tensor.ndim > 1 else 1 for tensor in tensors.values())
        return self._slices(
            np.full(counts.pop(), longest),
            lambda cut: Batch(content={key: tensor[cut] for key, tensor in tensors.items()} | rest),
        )

    def _pad_sequences(self, sequences: list[Tensor]) -> tuple[Iterator[Batch], int]:
        """Pad sequences of different lengths batch by batch, so that a long one costs no more than its own batch."""
        for i, sequence in enumerate(sequences):
            if sequence.ndim == 0 or sequence.shape[1:] != sequences[0].shape[1:]:
                raise KannError(
                    f"data[{i}] has shape {tuple(sequence.shape)}, data[0] has {tuple(sequences[0].shape)}; "
                    "pass (steps, ...) for each sequence, alike but for the steps"
                )

        def padded(cut: slice) -> Batch:
            lengths = np.array([len(sequence) for sequence in sequences[cut]])
            return Batch(content=pad_sequence(sequences[cut], batch_first=not self.axis), real=real_steps(lengths))

        return self._slices(np.array([len(sequence) for sequence in sequences]), padded)


def _fitting(steps: Int[Array, " s"]) -> int:
    """Return how many of these sequences fit into one batch, which is padded to the longest of them."""
    padded = np.maximum.accumulate(steps) * np.arange(1, len(steps) + 1)
    return max(FEWEST_SEQUENCES, int(np.searchsorted(padded, MOST_STEPS, side="right")))


def real_steps(value: AnyArray, *, marks_padding: bool = False) -> RealSteps:
    """Read (S,) lengths, or an (S, T) mask, which is true for the real steps unless it ``marks_padding``.

    A mask of real numbers, none of them positive, is one that attention adds: 0 at real steps.
    """
    lengths, real = as_numpy(value), None
    if lengths.ndim == 2:
        is_added = lengths.dtype.kind == "f" and bool((lengths <= 0).all())
        real = lengths == 0 if is_added else (lengths != 0) != marks_padding
        if not real.shape[1]:
            raise KannError(f"lengths are a mask of shape {real.shape}, without a step; pass (sequences, steps)")
        lengths = real.sum(axis=1)
    elif lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):  # numpy takes [] for real numbers
        raise KannError(
            f"lengths are {lengths.dtype} of shape {lengths.shape}; pass one whole number per sequence, "
            "or a mask of shape (sequences, steps)"
        )
    if len(lengths) and lengths.min() < 1:
        raise KannError(
            f"sequence {int(lengths.argmin())} has length {lengths.min()}; every sequence needs at least one step; "
            "leave it out"
        )
    lengths = lengths.astype(np.int64)
    return RealSteps.from_the_first(lengths) if real is None else RealSteps(lengths=lengths, starts=_starts_in(real))


def _starts_in(real: Shaped[Array, "s t"]) -> Int[Array, " s"]:
    """Return the first real step of each row of a mask; raise if the real steps have gaps."""
    starts, lengths = real.argmax(axis=1), real.sum(axis=1)
    ends = real.shape[1] - real[:, ::-1].argmax(axis=1)
    broken = np.flatnonzero(ends - starts != lengths)
    if len(broken):
        raise KannError(
            f"the mask of sequence {broken[0]} of the batch has holes: {lengths[broken[0]]} real steps between "
            f"{starts[broken[0]]} and {ends[broken[0]] - 1}; pass a mask whose real steps follow each other"
        )
    return starts


def packed_lengths(sizes: Int[Array, " t"]) -> Int[Array, " b"]:
    """Return the lengths of the sorted sequences."""
    return (sizes[None] > np.arange(sizes[0])[:, None]).sum(axis=1)


def _with_own_real_steps(batch: Batch) -> Batch:
    """Return the batch with the real steps that it knows by itself; of an encoder-decoder those of both."""
    content, packed = batch.content, _first_packed(batch.content)
    if batch.real is None and isinstance(content, Mapping) and "attention_mask" in content:
        batch.real = real_steps(content["attention_mask"])
    elif batch.real is None and packed is not None:
        batch.real = packed_real_steps(packed)
    if isinstance(content, Mapping) and any(str(key).startswith("decoder_") for key in content):
        mask = content.get("decoder_attention_mask")
        batch.has_decoder, batch.decoder_real = True, None if mask is None else real_steps(mask)
    return batch


def is_sequence(item: Any) -> bool:
    """Return True if an entry of a list is one sequence: (T,), (T, p), or numbers in a list; (B, T, p) is a batch."""
    if isinstance(item, list):
        return bool(item) and all(isinstance(number, int | float) for number in item)
    return isinstance(item, Tensor | np.ndarray) and item.ndim < 3


def _steps_of(item: Any) -> int:
    """Return the number of steps of a sequence; 0 for what is none."""
    if getattr(item, "ndim", 1) in (1, 2) and hasattr(item, "__len__") and not isinstance(item, str | bytes | dict):
        return len(item)
    return 0


def _samples(data: Any, size: int | None) -> Iterator[Any]:
    """Return the samples of a dataset, a list or a stream, one after the other."""
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
    """Return the number of items if it is known before reading them."""
    try:
        return len(data)
    except TypeError:  # a generator, or a loader of a dataset without a length
        return None


def _to_tensor(values: Any, dtype: torch.dtype) -> Tensor:
    """Return tensors unchanged, and numbers from numpy, doubles by default, in the model's precision."""
    if isinstance(values, Tensor):
        if not values.is_meta:  # refused where it is moved, which says where to
            require_dense(values)
        return values
    tensor = torch.from_numpy(_readable_by_torch(array_of(values)))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _readable_by_torch(array: Array) -> Array:
    """Return the same numbers in a type, an order of bytes and a layout that torch has."""
    if array.dtype.kind not in "biufc":
        raise KannError(f"data are {array.dtype}; pass numbers, such as the places of words in a vocabulary")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    # torch takes no other order of bytes and no steps backwards; a copy is made only where there are such.
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array.copy() if any(stride < 0 for stride in array.strides) else array


def count_of(content: Any, axis: int = 0) -> int:
    """Return the number of sequences of a batch, by its first packed sequence or else its first tensor."""
    packed = _first_packed(content)
    if packed is not None:
        return int(packed.batch_sizes[0])
    for tensor in tensors_of(content):
        if tensor.ndim > axis:
            return int(tensor.shape[axis])
    for _, text in named_tensors(content, kinds=str):
        raise KannError(
            f"the data hold text, such as {short_repr(text)}, and models read numbers; pass the numbers of the words, "
            "as a tensor or a list of tensors, or collate= that makes tensors of a list of texts"
        )
    raise KannError(
        f"a batch of type {type(content).__name__} holds no tensor; pass lengths= as a function of the batch"
    )


def named_tensors(value: Any, name: str = "", *, kinds: Any = Tensor) -> Iterator[tuple[str, Any]]:
    """Return all tensors in nested tuples, lists, mappings and dataclasses with their names, in order.

    ``x.0`` is the first entry of the entry ``x``; the empty name is the value itself. ``kinds`` are the types that are
    not looked into, tensors by default.
    """
    if isinstance(value, kinds):
        yield name, value
        return
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        keys = getattr(value, "_fields", None) or range(len(value))
        items = [(str(key), item) for key, item in zip(keys, value, strict=True)]
    else:
        items = [(key, getattr(value, key)) for key in getattr(value, "__dataclass_fields__", ())]
    for key, item in items:
        yield from named_tensors(item, f"{name}.{key}" if name else key, kinds=kinds)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Return all tensors in nested tuples, lists, mappings and dataclasses, in order."""
    return (tensor for _, tensor in named_tensors(value))


def with_tensors(value: Any, new: Mapping[int, Tensor]) -> Any:
    """Return the same nested structure with some tensors, known by their ``id``, replaced by others."""
    if isinstance(value, Tensor):
        return new.get(id(value), value)
    if isinstance(value, Mapping):  # also what HuggingFace models return, which is a dataclass too
        changed: Any = copy.copy(value)
        for key, item in value.items():
            changed[key] = with_tensors(item, new)
        return changed
    if isinstance(value, list | tuple):
        items = [with_tensors(item, new) for item in value]
        if hasattr(value, "_fields"):  # a namedtuple takes its fields one by one
            return type(value)(*items)
        return type(value)(items)
    if hasattr(value, "__dataclass_fields__"):
        changed = copy.copy(value)
        for name in value.__dataclass_fields__:
            object.__setattr__(changed, name, with_tensors(getattr(value, name), new))
        return changed
    return value


def is_state(tensor: Tensor) -> bool:
    """Return True if a tensor holds real or complex numbers, and not whole ones or truth values."""
    return tensor.is_floating_point() or tensor.is_complex()


def _asked_real_steps(content: Any, key: Any) -> RealSteps:
    """Return the lengths under a key of the batch, or as a function of it."""
    if callable(key):
        on, remedy = f"the batch {short_repr(content)}", "pass one that returns the length of each sequence"
        return real_steps(call_of_user(key, content, what="lengths=", on=on, remedy=remedy))
    try:
        value = content[key]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        have = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise KannError(f"lengths={key!r} is no key of the batch, which has {have}; pass one of its keys") from error
    if isinstance(value, PackedSequence):
        return packed_real_steps(value)
    # torch's attention calls such an argument key_padding_mask or src_key_padding_mask; true means padding.
    return real_steps(value, marks_padding="padding_mask" in str(key))


def _first_packed(content: Any) -> PackedSequence | None:
    """Return the first PackedSequence of a batch."""
    return next((packed for _, packed in named_tensors(content, kinds=PackedSequence)), None)


def packed_real_steps(packed: PackedSequence) -> RealSteps:
    """Return the lengths of packed sequences in the order of the batch, which packing may have sorted."""
    lengths = packed_lengths(packed.batch_sizes.numpy())
    if packed.unsorted_indices is not None:
        lengths = lengths[packed.unsorted_indices.cpu().numpy()]
    return RealSteps.from_the_first(lengths)


# How a model is called


def floating_type(model: nn.Module) -> torch.dtype:
    """Return the type of the model's real parameters; torch's default for a model without any."""
    types = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(types, torch.get_default_dtype())


def _lengths_entry(content: Any, lengths: Any) -> Any:
    """Return the batch's lengths, if they are an entry of it: torch packs sequences by lengths on the host alone."""
    if not isinstance(lengths, str | int):
        return None
    entry = content[lengths]
    return entry if getattr(entry, "ndim", 0) == 1 else None  # a model reads a mask on its own device


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the model's ``forward``."""
    if not isinstance(model, torch.jit.ScriptModule):
        return inspect.signature(model.forward).parameters
    # Compiled code has no signature of Python; torch keeps its own.
    found, kind = {}, inspect.Parameter.POSITIONAL_OR_KEYWORD
    schema: Any = model.forward.schema  # type: ignore[attr-defined]
    for argument in schema.arguments[1:]:
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        found[argument.name] = inspect.Parameter(argument.name, kind, default=default)
    return found


def _takes_any_keyword(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _accepted(content: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return the entries of a batch that the model takes."""
    if _takes_any_keyword(parameters):
        return dict(content)
    taken = {key: value for key, value in content.items() if key in parameters}
    if not taken:
        raise KannError(
            f"the batch has the keys {sorted(map(str, content))} and the model takes {list(parameters)}; "
            "pass forward=lambda model, batch: ..."
        )
    return taken


def device_of(model: nn.Module, device: torch.device | str | None) -> torch.device | None:
    """Return the device for batches: the model's, or ``device`` if it has neither parameters nor buffers."""
    try:
        asked = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise KannError(
            f"device={short_repr(device)} is no device of torch ({reason}); pass one, such as 'cpu'"
        ) from error
    found = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    if found is None:
        return asked
    if found.type == "meta":
        raise KannError("the model is on the meta device and its weights hold no numbers; load them first")
    if asked is not None and (asked.type != found.type or (asked.index is not None and asked.index != found.index)):
        raise KannError(f"the model is on {found} and device={str(asked)!r}; call model.to({str(asked)!r}) first")
    return found


def to_device(value: Any, device: torch.device, *, except_for: Any = None) -> Any:
    """Return the batch on ``device``, in the same structure. The entry ``except_for`` stays where it is."""
    if value is except_for and value is not None:
        return value
    if isinstance(value, Tensor) and value.device.type == "meta":
        raise KannError(f"the data are on the meta device and hold no numbers to move to {device}; load them first")
    # A mapping that moves itself, as a tokenizer's result does, would move all of its entries.
    move = getattr(value, "to", None)
    if callable(move) and (except_for is None or not isinstance(value, Mapping)):
        return move(device)
    if isinstance(value, Mapping):
        return {key: to_device(item, device, except_for=except_for) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_device(item, device, except_for=except_for) for item in value]
        if hasattr(value, "_fields"):  # a namedtuple takes its fields one by one
            return type(value)(*items)
        return type(value)(items)
    return value


def takes_lengths(parameter: inspect.Parameter) -> bool:
    """Return True if an argument holds the lengths of sequences, by its name, such as ``lengths`` or ``src_lens``."""
    is_required = parameter.default is parameter.empty  # an optional ``max_len`` is something else
    return bool(re.fullmatch(r"(.*_)?(lengths|lens)", parameter.name)) or (is_required and "len" in parameter.name)


def padding_arguments(
    model: nn.Module, parameters: Mapping[str, inspect.Parameter], content: Any, real: RealSteps | None
) -> dict[str, Any]:
    """Return arguments that mark the real steps of a padded tensor, by the names in the model's ``forward``.

    Without them a network with attention would read the padding, and one that packs its sequences could not run.
    Batches of a loader hold what the model needs already.
    """
    if not isinstance(content, Tensor) or content.ndim < 2:
        return {}
    sequences, steps = content.shape[:2]
    if real is not None and len(real) != sequences:
        return {}
    values: dict[str, Any] = {}
    for name, parameter in list(parameters.items())[1:]:
        is_required = parameter.default is parameter.empty
        if takes_lengths(parameter):
            if real is None and is_required:
                values[name] = torch.full((sequences,), steps)
            elif real is not None and not real.starts.any():  # on the host, as torch packs by them
                values[name] = torch.from_numpy(np.ascontiguousarray(real.lengths))
            elif real is not None and is_required:
                raise KannError(
                    "lengths= is a mask with padding before some sequences, and the model takes lengths, which cannot "
                    "say that; pad sequences at their ends, or pass forward="
                )
        elif real is not None and name.endswith("mask") and int(real.lengths.min()) < steps:
            values |= _mask_argument(name, model, torch.from_numpy(real.mask(steps)).to(content.device))
    return values


def _mask_argument(name: str, model: nn.Module, real: Tensor) -> dict[str, Tensor]:
    """Return the mask of real steps, as the argument ``name`` has it; empty for any other argument."""
    if name == "attention_mask":
        return {name: real.long()}
    # A list is padded to (sequences, steps); attention that takes (steps, sequences, ...) gets no such data.
    attention = (part.batch_first for part in model.modules() if isinstance(part, nn.MultiheadAttention))
    return {name: ~real} if name.endswith("key_padding_mask") and next(attention, True) else {}
