"""Products of several columns of numbers, each set of columns once, and where each product stands.

Columns are kept as rows here, (m, n) for n samples of m columns: products of whole rows are fast to compute.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from kann.backends.arrays import namespace
from kann.typing import AnyArray, Array, Float, Int


def pair_count(m: int) -> int:
    """How many products of two of m columns there are, squares included."""
    return m * (m + 1) // 2


def triple_count(m: int) -> int:
    """How many products of three of m columns there are."""
    return m * (m + 1) * (m + 2) // 6


def pair_index(m: int) -> Int[Array, "m m"]:
    """Where the product of columns i and j stands among `pair_products`.

    >>> pair_index(3).tolist()
    [[0, 1, 2], [1, 3, 4], [2, 4, 5]]
    """
    first, second = np.triu_indices(m)
    index = np.empty((m, m), dtype=np.int64)
    index[first, second] = index[second, first] = np.arange(len(first))
    return index


def triple_index(m: int) -> Int[Array, "m m m"]:
    """Where the product of columns i, j and l stands among `triple_products`."""
    chosen = np.array(list(itertools.combinations_with_replacement(range(m), 3)))
    index = np.empty((m, m, m), dtype=np.int64)
    for order in itertools.permutations(range(3)):
        index[tuple(chosen[:, order].T)] = np.arange(len(chosen))
    return index


def pair_panels(rows: Float[AnyArray, "m n"]) -> Iterator[Float[AnyArray, "q n"]]:
    """The products of each row with itself and all later ones, in the order of `pair_index`.

    They come one row at a time: products of all rows at once would not fit a cache.
    """
    return (rows[i:] * rows[i] for i in range(len(rows)))


def pair_products(rows: Float[AnyArray, "m n"]) -> Float[AnyArray, "q n"]:
    """The products of all pairs i ≤ j of rows, in the order of `pair_index`."""
    return namespace(rows).concat(list(pair_panels(rows)))


def triple_panels(rows: Float[AnyArray, "m n"], pairs: Float[AnyArray, "q n"]) -> Iterator[Float[AnyArray, "t n"]]:
    """The products of each row i with all pairs i ≤ j ≤ l, in the order of `triple_index`, from `pair_products`."""
    m = len(rows)
    return (pairs[-pair_count(m - i) :] * rows[i] for i in range(m))
