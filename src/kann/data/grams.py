"""Whether a matrix can be a Gram matrix, that is, a sum of squares."""

import numpy as np

from kann.typing import Array, Float

NEGATIVE_BY_ROUNDING = 1e-9
"""How far below zero the rounding of sums may take a square that is left by a subtraction, relative to the whole.
Sums of 10⁹ float64 numbers are good to 1e-11 or better."""


def can_remain_of(matrix: Float[Array, "d d"], whole: Float[Array, "d d"], *, empty: bool = False) -> bool:
    """Whether this can be the Gram matrix of some of the rows whose Gram matrix is ``whole``: no square is negative.

    With ``empty`` no row is left, so that every square must be zero. Units are scaled to their size in the whole, so
    that rounding counts alike in all of them.
    """
    size = np.sqrt(np.maximum(whole.diagonal(), np.finfo(np.float64).tiny))
    scaled = matrix / size / size[:, None]
    if not np.isfinite(scaled).all() or (empty and scaled.diagonal().max() > NEGATIVE_BY_ROUNDING):
        return False
    try:
        np.linalg.cholesky(scaled + len(size) * NEGATIVE_BY_ROUNDING * np.eye(len(size)))
    except np.linalg.LinAlgError:
        return False
    return True
