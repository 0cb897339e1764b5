"""The few things that differ between numpy arrays and torch tensors."""

from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np

from kann.errors import KannError
from kann.typing import AnyArray, Array, Int

HOST_BLOCK = 8 * 2**20
"""Bytes of float64 rows converted at a time on a CPU: large enough for fast matrix products, small enough to ignore."""

HOST_ROWS = 1024
"""But at least so many rows: every block also adds d × d sums, which few rows do not outweigh."""

DEVICE_BLOCK = 2**30
"""The same on an accelerator, where small products are bound by their launch."""

HOST_DEVICES = ("cpu", "mps")
"""Torch devices whose tensors are computed with on the host, as numpy arrays; MPS has no float64."""

STRIP = 32
"""`gram` builds wide products in strips whose width is a multiple of this: others are slow to multiply."""


def namespace(values: AnyArray) -> Any:
    """Return the array API namespace of an array: that of numpy for anything that is neither numpy nor torch."""
    if array_api_compat.is_torch_array(values):
        return array_api_compat.array_namespace(values)
    return array_api_compat.array_namespace(np.empty(0))


def as_numpy(values: AnyArray) -> Array:
    """Return the values as a numpy array, off whatever device and out of whatever graph they are in."""
    if array_api_compat.is_torch_array(values):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # numpy has no such type
            values = values.float()
        return values.numpy()
    return np.asarray(values)


def on_accelerator(values: AnyArray) -> bool:
    """Whether the values are on a device of their own, which can compute in float64."""
    return array_api_compat.is_torch_array(values) and values.device.type not in HOST_DEVICES


def as_operand(values: AnyArray) -> AnyArray:
    """Return what to compute with: a tensor on an accelerator stays there, in float64; anything else in numpy."""
    return values.detach().double() if on_accelerator(values) else as_numpy(values)


def to_device_of(like: AnyArray, values: AnyArray) -> AnyArray:
    """Return a numpy array where ``like`` is."""
    return values if isinstance(like, np.ndarray) else namespace(like).asarray(values, device=like.device)


def is_contiguous(values: AnyArray) -> bool:
    """Whether these are values in memory, row after row, so that to reshape them copies nothing."""
    if array_api_compat.is_torch_array(values):
        return values.is_contiguous()
    return isinstance(values, np.ndarray) and values.flags.c_contiguous


def is_dask(values: Any) -> bool:
    """Whether this is a dask array: lazy, and in chunks."""
    return array_api_compat.is_dask_array(values)


def as_array(values: AnyArray) -> AnyArray:
    """Leave a numpy array or torch tensor as it is, without its graph; read or compute anything else into numpy."""
    if array_api_compat.is_torch_array(values):
        return values.detach()
    return np.asarray(values)


def float64_copy(values: AnyArray) -> AnyArray:
    """Return a float64 copy on the device where the values are, or on the host if that device has no float64."""
    if array_api_compat.is_torch_array(values) and values.device.type == "mps":
        values = values.cpu()
    xp = namespace(values)
    return xp.asarray(values, dtype=xp.float64, copy=True)


def indices(parts: Sequence[Int[Array, " _"]], like: AnyArray) -> list[AnyArray]:
    """Several arrays of whole numbers where ``like`` is, moved there in one piece."""
    if isinstance(like, np.ndarray):
        return list(parts)
    whole = namespace(like).asarray(np.concatenate(parts))
    # From pinned memory the copy does not wait for what the GPU is doing.
    whole = whole.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else whole.to(like.device)
    return list(whole.split([len(part) for part in parts]))


def runs(firsts: Int[Array, " s"], lengths: Int[Array, " s"], like: AnyArray) -> AnyArray:
    """The indices of runs of rows: for each, ``length`` many from ``first`` on. They are made where ``like`` is."""
    n = int(lengths.sum())
    shift = firsts - (np.cumsum(lengths) - lengths)
    if isinstance(like, np.ndarray):
        return np.repeat(shift, lengths) + np.arange(n)
    shift, counts = indices([shift, lengths], like)
    return shift.repeat_interleave(counts, output_size=n) + namespace(like).arange(n, device=like.device)


def gram(rows: AnyArray) -> AnyArray:
    """Return RᵀR, whose symmetry numpy makes use of.

    Torch on a CPU does not: there it is built in strips that begin at the diagonal, and the rest is mirrored.
    """
    width = rows.shape[1]
    if not (array_api_compat.is_torch_array(rows) and rows.device.type == "cpu" and width >= 4 * STRIP):
        return rows.T @ rows
    product, strip = rows.new_empty(width, width), -(-width // (8 * STRIP)) * STRIP
    for start in range(0, width, strip):
        stop = start + strip
        product[start:stop, start:] = rows[:, start:stop].T @ rows[:, start:]
        product[stop:, start:stop] = product[start:stop, stop:].T
    return product


class Float64Buffer:
    """Room for rows in float64, where ``like`` is (or on the host, if that device has no float64).

    Filled again and again: fresh memory for every block would cost more than converting the numbers.
    """

    def __init__(self, *, like: AnyArray, shape: tuple[int, int]):
        sample = float64_copy(like[:0])
        self._room = namespace(sample).empty(shape, dtype=sample.dtype, device=sample.device)

    def filled_with(self, rows: AnyArray) -> AnyArray:
        """The rows, as float64, in this room."""
        room = self._room[: len(rows)]
        room[:] = rows
        return room


def block_rows(values: AnyArray, width: int) -> int:
    """How many rows of ``width`` float64 numbers to convert at a time on the device of ``values``."""
    on_host = not array_api_compat.is_torch_array(values) or values.device.type == "cpu"
    at_least, room = (HOST_ROWS, HOST_BLOCK) if on_host else (1, DEVICE_BLOCK)
    return max(at_least, room // (8 * max(width, 1)))


def rounding(values: AnyArray) -> float:
    """Relative spacing of the numbers in ``values``: 2⁻⁵² for float64, 2⁻²³ for float32, 2⁻⁷ for bfloat16."""
    if array_api_compat.is_torch_array(values):
        return float(namespace(values).finfo(values.dtype).eps)
    return float(np.finfo(values.dtype).eps)


def require_float(values: AnyArray, *, what: str) -> None:
    """Refuse complex and integer values."""
    kind = str(values.dtype).removeprefix("torch.")
    if "float" in kind:
        return
    if "complex" in kind:
        raise KannError(f"{what} are {kind}; pass real numbers, such as the real and imaginary parts side by side")
    raise KannError(f"{what} are {kind}; pass floating-point numbers, such as {what}.astype('float32')")


def require_width(values: AnyArray, width: int, *, what: str, of: str) -> None:
    """Refuse values whose last axis is not ``width`` wide."""
    got = values.shape[-1] if values.ndim else 0
    if got != width:
        raise KannError(f"{what} have {got} columns; {of} has {width}; pass an array of shape (..., {width})")
