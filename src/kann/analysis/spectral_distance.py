"""How far apart the eigenvalues of two operators are, each weighed by how much its mode carries."""

import numpy as np

from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Complex, Float

EQUAL_TO = 1e-12
"""Weights below this fraction of the whole are left out: rounding, and transport solvers need none of it."""


def spectrum_distance(a: Koopman, b: Koopman) -> float:
    """The least root mean square way over which the eigenvalues of one are moved to become those of the other.

    This is the Wasserstein distance of order two in the complex plane. It needs no match of units and none of inputs.
    """
    return transport(a.eigenvalues, carried_by(a), b.eigenvalues, carried_by(b))


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


def transport(
    a: Complex[Array, " n"], a_weights: Float[Array, " n"], b: Complex[Array, " m"], b_weights: Float[Array, " m"]
) -> float:
    """The Wasserstein distance of order two between weighed points of the plane; the weights of each add up to one.

    >>> one = np.ones(1)
    >>> transport(np.array([0.5 + 0j]), one, np.array([0.9 + 0.3j]), one)
    0.5
    """
    from scipy.optimize import linear_sum_assignment, linprog  # here, since it takes long to import
    from scipy.sparse import eye_array, kron, vstack

    used_a, used_b = a_weights > EQUAL_TO, b_weights > EQUAL_TO
    a, a_weights = a[used_a], a_weights[used_a] / a_weights[used_a].sum()
    b, b_weights = b[used_b], b_weights[used_b] / b_weights[used_b].sum()
    cost = np.abs(a[:, None] - b) ** 2
    n, m = cost.shape
    if n == m and np.ptp(a_weights) == np.ptp(b_weights) == 0:  # as many points, all alike: each goes to one other
        return float(np.sqrt(cost[linear_sum_assignment(cost)].mean()))
    # What leaves each point of a, and what arrives at each of b. The last row follows from the others.
    sums = vstack([kron(eye_array(n), np.ones((1, m))), kron(np.ones((1, n)), eye_array(m))]).tocsr()[:-1]
    found = linprog(cost.ravel(), A_eq=sums, b_eq=np.concatenate([a_weights, b_weights])[:-1], method="highs")
    if not found.success:
        raise KannError(f"no transport between the spectra was found ({found.message}); pass operators of lower rank")
    return float(np.sqrt(max(0.0, found.fun)))
