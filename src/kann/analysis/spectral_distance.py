"""How far apart the eigenvalues of two operators are, each weighed by how much its mode carries."""

import numpy as np

from kann.analysis.optimal_transport import least_cost
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Complex, Float

EQUAL_TO = 1e-12
"""Weights below this fraction of the whole are left out: rounding, and to transport them takes as long as others."""


def carried_by(koopman: Koopman) -> Float[Array, " r"]:
    """The fraction of the states' energy that each eigenpair carries; they add up to one.

    Coordinates along the basis are uncorrelated with variances `explained`, so that E|z v|² = Σ explained |v|². What a
    mode puts into the state is that times the squared length of its left eigenvector. Rotating the units or scaling all
    of them changes nothing.
    """
    energy = koopman.explained @ np.abs(koopman.right) ** 2 * np.sum(np.abs(koopman.left) ** 2, axis=1)
    total = energy.sum()
    if not total > 0:
        raise KannError("the operator's modes carry nothing of its states; fit it to states that vary")
    return energy / total


def carried_by_modes(koopman: Koopman) -> Float[Array, " m"]:
    """What each mode carries, of a conjugate pair both together."""
    carried = carried_by(koopman)
    return np.array([carried[list(mode.indices)].sum() for mode in koopman.modes])


def weighed_spectrum(koopman: Koopman, *, weights: str) -> tuple[Complex[Array, " n"], Float[Array, " n"]]:
    """Eigenvalues and how much each counts: all the same ("equal"), or as much as its mode carries ("carried").

    A pair that carries something is one point above the real axis. That changes no distance: both ends of a way are
    mirrored together, and two points on one side of the axis are never farther apart than on two sides.
    """
    if weights == "equal":
        return koopman.eigenvalues, np.full(koopman.rank, 1 / koopman.rank)
    return koopman.eigenvalues[[mode.indices[0] for mode in koopman.modes]], carried_by_modes(koopman)


def transport(
    a: Complex[Array, " n"], a_weights: Float[Array, " n"], b: Complex[Array, " m"], b_weights: Float[Array, " m"]
) -> float:
    """The Wasserstein distance of order two between weighed points of the plane; the weights of each add up to one.

    It is the least root mean square way over which the points of one are moved to become those of the other.

    >>> one = np.ones(1)
    >>> transport(np.array([0.5 + 0j]), one, np.array([0.9 + 0.3j]), one)
    0.5
    """
    a, a_weights = _sorted(a, a_weights)
    b, b_weights = _sorted(b, b_weights)
    cost = np.abs(a[:, None] - b) ** 2
    if len(a) == len(b) and np.ptp(a_weights) == np.ptp(b_weights) == 0:  # all alike: each goes to one other
        from scipy.optimize import linear_sum_assignment  # here, since it takes long to import

        return float(np.sqrt(cost[linear_sum_assignment(cost)].mean()))
    return float(np.sqrt(max(0.0, least_cost(cost, a_weights, b_weights))))


def _sorted(
    points: Complex[Array, " n"], weights: Float[Array, " n"]
) -> tuple[Complex[Array, " k"], Float[Array, " k"]]:
    """Points that weigh something from left to right, where most of their distances lie, and their weights."""
    used = np.flatnonzero(weights > EQUAL_TO)
    used = used[np.argsort(np.real(points[used]), kind="stable")]
    return points[used], weights[used] / weights[used].sum()
