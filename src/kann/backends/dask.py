"""Dask: sums of many tasks, and functions of every chunk of an array."""

import contextlib
import sys
import warnings
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from kann.backends.arrays import is_dask
from kann.errors import KannError
from kann.progress import SECONDS_BEFORE_BAR
from kann.typing import AnyArray

SUMS_PER_TASK = 4
"""Number of sums that one task adds: few, since each of them holds d × d matrices."""


def delayed(value: Any) -> Any:
    """Return a function as one whose calls become tasks, and any other value as an entry of the graph.

    A value that many tasks share is then in the graph once, not once for each task.
    """
    return _dask().delayed(value, traverse=False)


def current_client() -> Any:
    """Return the Dask client of this process: the one that Dask is configured with, else the default, else None."""
    distributed, dask = sys.modules.get("distributed"), sys.modules.get("dask")
    if distributed is None or dask is None:
        return None
    chosen = dask.config.get("scheduler", None)
    if isinstance(chosen, distributed.Client):
        return chosen
    try:
        return distributed.default_client()
    except ValueError:
        return None


def as_dask_array(array: Any, *, chunks: Any = None) -> Any:
    """Return a dask array in these chunks, or in its own. Its last axis is never cut."""
    last = array.ndim - 1
    if not is_dask(array):
        automatic = dict.fromkeys(range(last), "auto")
        array = _dask().array.from_array(array, chunks=automatic | {last: -1})
    wanted = {last: -1}
    if chunks is not None:
        wanted |= dict(enumerate(chunks))
    return array.rechunk(wanted)


def map_chunks(array: Any, function: Callable[[AnyArray], AnyArray], *, width: int, dtype: Any) -> Any:
    """Return the dask array of ``function(chunk)``, which changes the width of the last axis to ``width``."""
    whole = array.rechunk({array.ndim - 1: -1})
    return whole.map_blocks(
        _call,
        delayed(function),
        dtype=dtype,
        chunks=(*whole.chunks[:-1], (width,)),
        meta=np.empty((0,) * array.ndim, dtype),
    )


def _call(chunk: AnyArray, function: Callable[[AnyArray], AnyArray]) -> AnyArray:
    return function(chunk)


def compute_sum(tasks: list[Any]) -> Any:
    """Compute the sum of the results of all tasks, a few at a time so that no worker holds many of them."""
    while len(tasks) > 1:
        groups = [tasks[i : i + SUMS_PER_TASK] for i in range(0, len(tasks), SUMS_PER_TASK)]
        tasks = [_dask().delayed(_add)(group) for group in groups]
    try:
        with warnings.catch_warnings(), _progress(what="chunks"):
            # Dask advises to scatter what all tasks share, but that dies with its worker; the graph is sent again.
            warnings.filterwarnings("ignore", message="Sending large graph")
            return tasks[0].compute()
    except (OSError, EOFError, KeyError) as error:
        if type(error).__module__.startswith("distributed"):  # these are about workers, not about chunks
            raise
        raise KannError(
            f"a chunk of the states cannot be read ({type(error).__name__}: {error}); see that every worker can reach "
            "all of them"
        ) from error


def _add(sums: list) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is looked for once, in the sum of all
        return reduce(add, sums)


def _progress(*, what: str) -> contextlib.AbstractContextManager[Any]:
    """Return a progress bar for what Dask computes in this process; a client has its dashboard."""
    try:
        from tqdm.dask import TqdmCallback
    except ImportError:
        return contextlib.nullcontext()
    return TqdmCallback(desc=what, unit="task", delay=SECONDS_BEFORE_BAR, disable=None, leave=False)


def _dask() -> Any:
    try:
        import dask
        import dask.array
    except ImportError as error:
        raise ImportError("states in chunks and at addresses need dask: pip install 'kann[dask]'") from error
    return dask
