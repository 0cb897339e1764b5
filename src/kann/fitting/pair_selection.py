"""Select pairs of states by a mask or by what was read."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, is_dask
from kann.checks import array_of, call_of_user, require_float, short_repr
from kann.data.reduction import Block, SumOverBlocks, accumulate, runs_on_dask, take_rows
from kann.data.states import States
from kann.errors import KannError
from kann.typing import AnyArray, Array, Int, Shaped

REMEDY = "pass a mask with one truth value for each state, or a function from inputs (n, p) to (n,) of them"

SAME_TO = 1e-6
"""How far an input may be from the one that is looked for: it may have been recorded in float32."""


def chosen_rows(states: States, where: Any) -> Shaped[Array, " n"]:
    """Return whether the step to each state counts: a mask (N,), or a function of the inputs that returns one."""
    if not callable(where):
        mask = array_of(as_numpy(where))
        if mask.dtype != bool or mask.shape != (states.values.shape[0],):
            raise KannError(f"where={short_repr(mask)} is no mask of {states.values.shape[0]} states; {REMEDY}")
        return mask
    if states.inputs is None:
        raise KannError("where= is a function of inputs and the states have none; record them with inputs=True")
    found = accumulate(states, partial(SumOverBlocks, partial(_marked, where)), inputs=True, what="chosen pairs")
    mask = np.zeros(states.values.shape[0], dtype=bool)
    for rows, marks in found:
        mask[rows] = marks
    return mask


def _marked(where: Callable[[AnyArray], AnyArray], block: Block) -> list[tuple[Int[Array, " n"], Shaped[Array, " n"]]]:
    marks = call_of_user(where, block.inputs, what="where", on="the inputs", remedy=REMEDY)
    marks = as_numpy(marks)
    if marks.dtype != bool or marks.shape != (block.values.shape[0],):
        raise KannError(f"where(inputs) gave {short_repr(marks)} for {block.values.shape[0]} inputs; {REMEDY}")
    return [(block.rows, marks)]


def only_pairs(states: States, where: Any) -> tuple[States, Int[Array, " s"]]:
    """Return states whose sequences are cut at every step that does not count, and the sequence each piece came from.

    The pieces hold all states, and no pairs but those that were chosen.
    """
    if runs_on_dask(states) and not is_dask(states.values):
        raise KannError(
            "where= cannot choose pairs of a store or of padded states that Dask reads; pass states in memory, or the "
            "rows of all sequences as a dask array with their lengths"
        )
    mask = chosen_rows(states, where)
    if not mask[np.delete(np.arange(len(mask)), states.starts)].any():
        raise KannError("where= leaves no pair of states; choose at least one step that is not a sequence's first")
    begins = ~mask
    begins[states.starts] = True
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(mask)))
    source = np.searchsorted(states.starts, starts, side="right") - 1
    return replace(states, lengths=lengths), source


def pairs_that_read(states: States, u: Array) -> tuple[Shaped[Array, "m d"], Shaped[Array, "m d"]]:
    """Return the states before and after every step that read exactly ``u``."""
    if states.inputs is None:
        raise KannError("these states have no inputs, so that where u was read is not known; record with inputs=True")
    require_float(states.values, what="states")
    mask = chosen_rows(states, partial(_is_equal, u))
    mask[states.starts] = False
    after = np.flatnonzero(mask)
    if not len(after):
        raise KannError("u was read at no step of these states; pass states that hold it, or leave states= out")
    return take_rows(states.values, after - 1), take_rows(states.values, after)


def _is_equal(u: Array, inputs: AnyArray) -> Shaped[Array, " n"]:
    given = as_numpy(inputs)
    if given.shape[1] != len(u):
        raise KannError(f"u has {len(u)} numbers and the states have {given.shape[1]} inputs; pass one of these")
    return np.all(np.abs(given - u) <= SAME_TO * (1 + np.abs(u)), axis=1)
