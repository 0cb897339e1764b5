"""Work beside the model: on a GPU, what is recorded is multiplied while the model runs on."""

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class SideStream:
    """A CUDA stream of its own. On any other device, work is done in its turn, and nothing here does anything.

    A recurrent layer is a long chain of small kernels that leave a GPU half idle; products in another stream fill it.
    """

    def __init__(self, like: Tensor):
        self._stream = torch.cuda.Stream(like.device) if like.is_cuda else None

    def here(self) -> contextlib.AbstractContextManager[Any]:
        """Launch what is inside on this stream."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def follow(self, tensors: Iterable[Tensor | None]) -> None:
        """Let what comes on this stream wait for the model's work so far, and keep what it reads until it is done."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            _keep(tensors, self._stream)

    def join(self, tensors: Iterable[Tensor | None]) -> None:
        """Let the model's stream wait for this one, and use what was made here."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_stream(self._stream)
            _keep(tensors, current)


def _keep(tensors: Iterable[Tensor | None], stream: Any) -> None:
    """Memory that was allocated on another stream is not used again before this one has passed."""
    for tensor in tensors:
        if tensor is not None:
            tensor.record_stream(stream)
