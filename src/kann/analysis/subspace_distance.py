"""How far the spans of the modes of two operators are turned against each other, where the units are the same."""

from collections.abc import Sequence

import numpy as np

from kann.analysis.spectral_distance import carried_by_modes
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Complex, Float


def subspace_distance(a: Float[Array, "d k"], b: Float[Array, "e q"]) -> float:
    """The chordal distance of two spans: the root of the summed squared sines of their principal angles.

    A direction that one span has more than the other counts one half. It is a metric also of spans of different size.
    """
    if len(a) != len(b):
        raise KannError(
            f"one network has {len(a)} units and the other {len(b)}; subspaces are compared of networks with the same "
            'units, and kind="spectrum" or "response" compares others'
        )
    shared = float(np.sum((a.T @ b) ** 2))
    return float(np.sqrt(max(0.0, (a.shape[1] + b.shape[1]) / 2 - shared)))


def span_of(koopman: Koopman, modes: Sequence[int]) -> Float[Array, "d k"]:
    """Orthonormal directions of the states in which some modes move them."""
    rows = []
    for number in modes:
        left = koopman.left[koopman.modes[number].indices[0]]
        rows.append(np.real(left))
        if len(koopman.modes[number].indices) == 2:
            rows.append(np.imag(left))
    return koopman.basis @ np.linalg.qr(np.array(rows).T)[0]


def leading_modes(koopman: Koopman, *, count: int, among: Sequence[int]) -> list[int]:
    """The modes that carry most of the states, until they have ``count`` dimensions; of a pair, both."""
    carried = carried_by_modes(koopman)
    chosen, dimensions = [], 0
    for number in sorted(among, key=lambda number: -carried[number]):
        if dimensions >= count:
            break
        chosen.append(number)
        dimensions += len(koopman.modes[number].indices)
    return chosen


def nearest_modes(koopman: Koopman, eigenvalues: Complex[Array, " k"]) -> list[int]:
    """The mode nearest to each eigenvalue, none of them twice."""
    from scipy.optimize import linear_sum_assignment  # here, since it takes long to import

    own = np.array([mode.eigenvalue for mode in koopman.modes])
    return linear_sum_assignment(np.abs(eigenvalues[:, None] - own))[1].tolist()
