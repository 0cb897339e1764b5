"""Products of several columns of numbers, each set of columns once, and where each product stands.

Columns are kept as rows here, (m, n) for n samples of m columns: products of whole rows are fast to compute.
"""

import itertools

import numpy as np

from kann.backends.arrays import namespace
from kann.typing import AnyArray, Array, Float, Int


def pair_count(m: int) -> int:
    """How many products of two of m columns there are, squares included."""
    return m * (m + 1) // 2


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


def pair_products(rows: Float[AnyArray, "m n"]) -> Float[AnyArray, "q n"]:
    """The products of all pairs i ≤ j of rows, in the order of `pair_index`."""
    m, n = rows.shape
    products, start = namespace(rows).empty((pair_count(m), n), dtype=rows.dtype, device=rows.device), 0
    for i in range(m):
        products[start : start + m - i] = rows[i:] * rows[i]
        start += m - i
    return products


def triple_products(rows: Float[AnyArray, "m n"], pairs: Float[AnyArray, "q n"]) -> Float[AnyArray, "t n"]:
    """The products of all triples i ≤ j ≤ l of rows, from their `pair_products`."""
    m = len(rows)
    starts = len(pairs) - np.array([pair_count(m - i) for i in range(m)])  # pairs of rows i and later
    return namespace(rows).concat([pairs[int(start) :] * rows[i] for i, start in enumerate(starts)])
