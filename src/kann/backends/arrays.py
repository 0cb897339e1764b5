"""The few things that differ between numpy arrays, torch tensors and dask arrays."""

import contextlib
import functools
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import array_api_compat
import numpy as np

from kann.checks import array_of, require_dense
from kann.errors import KannError
from kann.typing import AnyArray, Array, Int

HOST_BLOCK_BYTES = 8 * 2**20
"""Float64 rows converted at a time on a CPU: large enough for fast matrix products, small enough to ignore."""

HOST_MIN_ROWS = 1024
"""But at least this many rows: every block also adds d × d sums, which fewer rows do not outweigh."""

DEVICE_BLOCK_BYTES = 2**30
"""The same on an accelerator, where small products cost as much as their launch."""

HOST_DEVICES = ("cpu", "mps")
"""Torch devices whose tensors are computed with on the host, as numpy arrays; MPS has no float64."""

ONE_THREAD_UP_TO = 2**25
"""Multiplications of a product up to which one thread computes it. With two free cores the second thread saves half a
millisecond of one; where other programs use the cores, or a container allows fewer than it shows, the threads wait for
each other and the product takes twenty."""

STRIP = 32
"""`gram` multiplies wide matrices in strips whose width is a multiple of this: other widths are slow to multiply."""

NUMPY = array_api_compat.array_namespace(np.empty(0))
"""The array API namespace of numpy."""


def namespace(values: AnyArray) -> Any:
    """Return the array API namespace of an array: numpy's for anything that is not a torch tensor."""
    return array_api_compat.array_namespace(values) if array_api_compat.is_torch_array(values) else NUMPY


def as_numpy(values: AnyArray) -> Array:
    """Return the values as a numpy array, copied off their device and detached from their graph."""
    if array_api_compat.is_torch_array(values):
        require_dense(values)
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # numpy has no such type
            values = values.float()
        return values.numpy()
    return array_of(values)


def is_dask(values: Any) -> bool:
    """Return whether this is a dask array: lazy, and in chunks."""
    return array_api_compat.is_dask_array(values)


def as_array(values: AnyArray) -> AnyArray:
    """Leave a numpy array as it is and a torch tensor without its graph; read anything else into numpy."""
    if array_api_compat.is_torch_array(values):
        require_dense(values)
        return values.detach()
    return array_of(values)


def as_array_or_dask(values: AnyArray) -> AnyArray:
    """Leave a dask array as it is, if it knows its shape; `as_array` for anything else."""
    if not is_dask(values):
        return as_array(values)
    if any(np.isnan(size) for size in values.shape):
        raise KannError("the dask array does not know its shape; call its compute_chunk_sizes() first")
    return values


def on_accelerator(values: AnyArray) -> bool:
    """Return whether the values are on an accelerator that can compute in float64."""
    return array_api_compat.is_torch_array(values) and values.device.type not in HOST_DEVICES


def as_operand(values: AnyArray) -> AnyArray:
    """Return what to compute with: a float64 tensor on the accelerator where the values are, else a numpy array."""
    if on_accelerator(values):
        require_dense(values)
        return values.detach().double()
    return as_numpy(values)


def to_device_of(like: AnyArray, values: AnyArray) -> AnyArray:
    """Return a numpy array as an array of the type of ``like``, on its device."""
    return values if isinstance(like, np.ndarray) else namespace(like).asarray(values, device=like.device)


def is_contiguous(values: AnyArray) -> bool:
    """Return whether the values are in memory row after row, so that reshaping makes no copy."""
    if array_api_compat.is_torch_array(values):
        return values.is_contiguous()
    return isinstance(values, np.ndarray) and values.flags.c_contiguous


def float64_copy(values: AnyArray) -> AnyArray:
    """Return a float64 copy on the device where the values are, or on the host if that device has no float64."""
    if array_api_compat.is_torch_array(values) and values.device.type == "mps":
        values = values.cpu()
    xp = namespace(values)
    return xp.asarray(values, dtype=xp.float64, copy=True)


def indices_for(like: AnyArray, *parts: Int[Array, " _"]) -> list[AnyArray]:
    """Return several arrays of indices on the device of ``like``, moved there in a single copy."""
    if isinstance(like, np.ndarray):
        return list(parts)
    joined = namespace(like).asarray(np.concatenate(parts))
    if like.is_cuda:
        # From pinned memory the copy does not wait for what the GPU is doing.
        joined = joined.pin_memory().to(like.device, non_blocking=True)
    else:
        joined = joined.to(like.device)
    return list(joined.split([len(part) for part in parts]))


def run_indices(firsts: Int[Array, " s"], lengths: Int[Array, " s"], like: AnyArray) -> AnyArray:
    """Return indices of runs of ``lengths[i]`` consecutive rows from ``firsts[i]`` on, on the device of ``like``."""
    n = int(lengths.sum())
    shift = firsts - (np.cumsum(lengths) - lengths)
    if isinstance(like, np.ndarray):
        return np.repeat(shift, lengths) + np.arange(n)
    shift, counts = indices_for(like, shift, lengths)
    return shift.repeat_interleave(counts, output_size=n) + namespace(like).arange(n, device=like.device)


def segment_sums(rows: AnyArray, lengths: Int[Array, " s"]) -> AnyArray:
    """Sum runs of rows that follow each other: the first ``lengths[0]`` rows, the next ``lengths[1]``, ..."""
    if isinstance(rows, np.ndarray):
        return np.add.reduceat(rows, np.cumsum(lengths) - lengths, axis=0)
    (numbers,) = indices_for(rows, np.repeat(np.arange(len(lengths)), lengths))
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add_(0, numbers, rows)


def with_ones(*columns: AnyArray) -> AnyArray:
    """Join the columns of arrays of equal length, and a column of ones behind them."""
    xp, first = namespace(columns[0]), columns[0]
    ones = xp.ones((first.shape[0], 1), dtype=first.dtype, device=first.device)
    return xp.concat([*columns, ones], axis=1)


def add_product(base: AnyArray, left: AnyArray, right: AnyArray) -> AnyArray:
    """Return base + left · right, entry by entry; in torch as one operation, which a GPU launches once."""
    return base + left * right if isinstance(base, np.ndarray) else base.addcmul(left, right)


def add_matrix_product(base: AnyArray, rows: AnyArray, matrix: AnyArray) -> AnyArray:
    """Return base + rows @ matrix; in torch as one operation, which a GPU launches once."""
    return base + rows @ matrix if isinstance(base, np.ndarray) else base.addmm(rows, matrix)


def row_products(left: AnyArray, right: AnyArray) -> AnyArray:
    """Return the inner product of each row of one matrix with the same row of another."""
    if isinstance(left, np.ndarray):
        return np.einsum("ij,ij->i", left, right)  # makes no matrix of products
    return (left * right).sum(1)


_in_one_thread: ContextVar[bool] = ContextVar("_in_one_thread", default=False)


@contextlib.contextmanager
def threads_for(multiplications: int | float) -> Iterator[None]:
    """Let BLAS and torch use one thread inside this block if no product in it has more multiplications than pay."""
    if multiplications > ONE_THREAD_UP_TO or _in_one_thread.get():
        yield
        return
    token, torch = _in_one_thread.set(True), sys.modules.get("torch")
    torch_threads = torch.get_num_threads() if torch else 1
    try:
        with _blas().limit(limits=1):
            if torch_threads > 1:  # torch's MKL does not follow the limit of the OpenMP that it runs on
                torch.set_num_threads(1)  # pyright: ignore[reportOptionalMemberAccess]
            yield
    finally:
        if torch_threads > 1:
            torch.set_num_threads(torch_threads)  # pyright: ignore[reportOptionalMemberAccess]
        _in_one_thread.reset(token)


@functools.cache
def _blas() -> Any:
    """Return the BLAS libraries of numpy and scipy, whose search takes some milliseconds."""
    from threadpoolctl import ThreadpoolController  # here, since a process may never multiply

    return ThreadpoolController().select(user_api="blas")


def gram(rows: AnyArray) -> AnyArray:
    """Return the Gram matrix RᵀR of rows R, computing each pair of columns once.

    numpy sees the symmetry by itself. Torch on a CPU does not: there the product is built in strips that begin at the
    diagonal, and the other half is mirrored.
    """
    width = rows.shape[1]
    if isinstance(rows, np.ndarray) or rows.device.type != "cpu" or width < 4 * STRIP:
        return rows.T @ rows
    product, strip = rows.new_empty(width, width), -(-width // (8 * STRIP)) * STRIP
    for start in range(0, width, strip):
        stop = start + strip
        product[start:stop, start:] = rows[:, start:stop].T @ rows[:, start:]
        product[stop:, start:stop] = product[start:stop, stop:].T
    return product


class Float64Buffer:
    """Rows read in float64, ``most`` at a time, on their device (or on the host, if it has no float64).

    One memory is filled again and again: fresh memory for every block would cost more than converting the numbers.
    """

    def __init__(self, rows: AnyArray, most: int):
        like = rows[0:1]
        sample = float64_copy(like)
        self._rows = rows
        self._memory = namespace(sample).empty((most, rows.shape[1]), dtype=sample.dtype, device=sample.device)
        self.rounding = rounding(like)
        """Relative spacing of the numbers in the rows."""

    def read(self, start: int, stop: int) -> AnyArray:
        """Return some of the rows in float64. The next call overwrites them."""
        memory = self._memory[: stop - start]
        memory[:] = self._rows[start:stop]
        return memory


def block_rows(values: AnyArray, width: int) -> int:
    """Return how many rows of ``width`` float64 numbers to convert at a time on the device of ``values``."""
    if array_api_compat.is_torch_array(values) and values.device.type != "cpu":
        return max(1, DEVICE_BLOCK_BYTES // (8 * max(width, 1)))
    return max(HOST_MIN_ROWS, HOST_BLOCK_BYTES // (8 * max(width, 1)))


def rounding(values: AnyArray) -> float:
    """Return relative spacing of the numbers in ``values``: 2⁻⁵² for float64, 2⁻²³ for float32, 2⁻⁷ for bfloat16."""
    return float(namespace(values).finfo(values.dtype).eps)
