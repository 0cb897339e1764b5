"""How to read data and to call a model: the options that all functions share that run a model over data."""

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

import torch


class RunOptions(TypedDict, total=False):
    """How to read data and to call a model, as keywords of every function that runs a model over data.

    The data are a tensor or array of sequences (S, ...), a list of sequences of different lengths, a PackedSequence, a
    mapping of tensors, a DataLoader, or any iterable of batches. A batch that is a mapping is passed by its keys, of a
    tuple as many entries as ``forward`` cannot do without.
    """

    lengths: Any
    """The number of real steps of each sequence: an array, a key of the batch, or a function of the batch. A matrix is
    a mask. A list of sequences, a PackedSequence, and a batch with an ``attention_mask`` know theirs."""
    forward: Callable[[Any, Any], Any] | None
    """``forward(model, batch)``, for models that are called in another way."""
    collate: Callable[[list[Any]], Any] | None
    """From a list of samples to a batch; the data are then an iterable of samples."""
    batch_size: int
    """The number of sequences to run at once, where the data are not batches already. Default: 32."""
    max_sequences: int | None
    """Stop after this many sequences of the data."""
    device: torch.device | str | None
    """Where to put batches. They go where the model is, so this matters only for a model without parameters."""
    progress: bool
    """Whether to show a progress bar if it takes long. Default: True."""


class LayerOptions(RunOptions, total=False):
    """Options of recording layers, as in `kann.record`, with `RunOptions`."""

    layer: str | Iterable[str] | Callable[[Any], Any] | None
    """A name, a list of names, a pattern, or a function of the model's output. The default is the only layer."""
    state: str | None
    """``"h"``, ``"c"`` or ``"hc"``. Default: all that the layer carries from one step to the next."""
    inputs: bool | str
    """Whether to record what the layer read, or ``"gates"`` for what its weights make of that. Default: False."""
    initial: bool
    """Whether to include the state before the first step. Default: False."""


class AxisOptions(LayerOptions, total=False):
    """Along which axis to record, as in `kann.record`, with `LayerOptions`."""

    axis: str
    """``"time"`` or ``"depth"``. Default: ``"time"``."""
    embedding: str | bool | None
    """For depth: the name of the module whose output is h_0, or True for the input of the first block."""
