"""Distances between the spectra, subspaces and responses of two operators."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Complex, Float

PERTURBATION = 1e-13
"""All amounts together are changed by this fraction while ways are chosen, so that each step moves something: a simplex
with empty steps may cycle. The result is of the true amounts."""

NO_CHEAPER = 1e-13
"""Fraction of the largest cost below which a saving is rounding."""

MOST_EXCHANGES = 100
"""Exchanges for each point after which the search is given up; 4 for each point is the most that was seen."""


def least_cost(cost: Float[Array, "n m"], leaving: Float[Array, " n"], arriving: Float[Array, " m"]) -> float:
    """Return the least cost of moving what leaves some points to where it arrives; both amounts add up to the same.

    >>> least_cost(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.5, 0.5]), np.array([0.2, 0.8]))
    0.3

    This is the transport simplex. It starts with the first points going to the first ones, and ends soonest if both
    sides are sorted such that this is nearly right. For up to 100 points on each side it takes a third or less of the
    time of ``scipy.optimize.linprog``, whose 1e-7 would be 3e-4 in the distance of a network from itself.
    """
    # The solver of POT (ot.emd2) is faster for more than ten points, and gives the same cost up to rounding. But POT
    # imports torch, which the analysis must not and which takes seconds, and installs as much as numpy and scipy.
    n, m = cost.shape
    # The n + m − 1 ways in use join all points without a circle, so that each amount is a sum of what leaves and
    # arrives with factors 1, 0 and −1. The inverse of the equations is made of these three numbers, and an exchange of
    # one way for another changes it without rounding. The last equation follows from the others.
    ends = np.concatenate([np.cumsum(leaving)[:-1], np.cumsum(arriving)[:-1]])
    next_row = np.argsort(ends, kind="stable") < n - 1
    rows, columns = np.concatenate([[0], np.cumsum(next_row)]), np.concatenate([[0], np.cumsum(~next_row)])
    equations, numbers = np.zeros((n + m, n + m - 1)), np.arange(n + m - 1)
    equations[rows, numbers] = equations[n + columns, numbers] = 1.0
    inverse, costs = np.round(np.linalg.inv(equations[:-1])), cost[rows, columns]
    prices, tolerance = costs @ inverse, NO_CHEAPER * float(cost.max())
    amounts = inverse @ np.concatenate([leaving + PERTURBATION * float(leaving.sum()) / n, arriving[:-1]])
    for _ in range(MOST_EXCHANGES * (n + m)):
        saving = prices[:n, None] - cost
        saving[:, :-1] += prices[n:]
        i, j = divmod(int(saving.argmax()), m)
        if saving[i, j] <= tolerance:
            return float(costs @ (inverse @ np.concatenate([leaving, arriving[:-1]])))
        # Send as much as possible from i to j, and give up the way that is empty then.
        less = inverse[:, i] + inverse[:, n + j] if j < m - 1 else inverse[:, i].copy()
        emptied = np.flatnonzero(less > 0)
        given_up = emptied[amounts[emptied].argmin()]
        row, moved = inverse[given_up].copy(), amounts[given_up]
        changed = np.flatnonzero(less)
        amounts[changed] -= moved * less[changed]
        inverse[changed] -= less[changed, None] * row
        amounts[given_up], inverse[given_up], costs[given_up] = moved, row, cost[i, j]
        prices -= saving[i, j] * row
    raise KannError(f"no transport between {n} and {m} points was found; pass operators of lower rank")


ROUNDING = 1e-13
"""Squared distances below this are rounding, where 1 − cosine of a network and its copy ends in 1e-15 to 1e-14."""

EQUAL_TO = 1e-12
"""Weights below this fraction of the whole are left out: rounding, and to transport them takes as long as others."""


def carried_by(koopman: Koopman) -> Float[Array, " r"]:
    """Return the fraction of the states' energy that each eigenpair carries; they add up to one.

    Principal and balanced coordinates are uncorrelated, so that E|z v|² = Σ var(z) |v|². The energy of a
    mode in the state is that times the squared length of the state vector of its left eigenvector. The result is
    invariant under rotations and a common scale of the units.
    """
    directions = np.sum(np.abs(koopman.left @ koopman.state_vectors) ** 2, axis=1)
    energy = _deviations(koopman) ** 2 @ np.abs(koopman.right) ** 2 * directions
    total = energy.sum()
    if not total > 0:
        raise KannError("the operator's modes carry nothing of its states; fit it to states that vary")
    return energy / total


def carried_by_modes(koopman: Koopman) -> Float[Array, " m"]:
    """Compute what each mode carries, of a conjugate pair both together."""
    carried = carried_by(koopman)
    return np.array([carried[list(mode.indices)].sum() for mode in koopman.modes])


def weighed_spectrum(koopman: Koopman, *, weights: str) -> tuple[Complex[Array, " n"], Float[Array, " n"]]:
    """Compute eigenvalues and how much each counts: all the same ("equal"), or as much as its mode carries ("carried").

    A pair that carries something is one point above the real axis. That changes no distance: both ends of a way are
    mirrored together, and two points on one side of the axis are never farther apart than on two sides.
    """
    if weights == "equal":
        return koopman.eigenvalues, np.full(koopman.rank, 1 / koopman.rank)
    return koopman.eigenvalues[[mode.indices[0] for mode in koopman.modes]], carried_by_modes(koopman)


def transport(
    a: Complex[Array, " n"], a_weights: Float[Array, " n"], b: Complex[Array, " m"], b_weights: Float[Array, " m"]
) -> float:
    """Compute the Wasserstein distance of order two between weighed points of the plane; weights add up to one.

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
    """Return points that weigh something from left to right, where most of their distances lie, and their weights."""
    used = np.flatnonzero(weights > EQUAL_TO)
    used = used[np.argsort(np.real(points[used]), kind="stable")]
    return points[used], weights[used] / weights[used].sum()


def subspace_distance(a: Float[Array, "d k"], b: Float[Array, "e q"]) -> float:
    """Return the chordal distance of two spans: the root of the summed squared sines of their principal angles.

    A direction that one span has more than the other counts one half. It is a metric also of spans of different size.
    """
    if len(a) != len(b):
        raise KannError(
            f"one network has {len(a)} units and the other {len(b)}; subspaces are compared of networks with the same "
            'units, and kind="spectrum" or "response" compares others'
        )
    square = (a.shape[1] + b.shape[1]) / 2 - float(np.sum((a.T @ b) ** 2))
    return float(np.sqrt(square)) if square > ROUNDING else 0.0


def span_of(koopman: Koopman, modes: Sequence[int]) -> Float[Array, "d k"]:
    """Return orthonormal directions of the states in which some modes move them."""
    rows = []
    for number in modes:
        left = koopman.left[koopman.modes[number].indices[0]]
        rows.append(np.real(left))
        if len(koopman.modes[number].indices) == 2:
            rows.append(np.imag(left))
    return np.linalg.qr((np.array(rows) @ koopman.state_vectors).T)[0]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Response:
    """Response of a driven system to an input after 0, 1, 2, … steps: D Cᵏ W, one row for each input."""

    matrix: Float[Array, "r r"]
    """C, with no eigenvalue outside the unit circle."""
    drive: Float[Array, "p r"]
    """D"""
    readout: Float[Array, "r o"] | None
    """W, from coordinates to outputs; None if the states themselves are the response, up to a rotation."""
    steps: int
    """Over how many steps it is compared."""
    size: float
    """Its norm over these steps."""

    @staticmethod
    def of(koopman: Koopman, readout: Float[Array, "o d"] | None, *, steps: int, weights: str) -> "Response":
        """Return the response of an operator that reads inputs; with equal weights in coordinates of variance one."""
        if koopman.drive is None:
            raise KannError(
                "responses are of operators that read inputs, and this one is autonomous; fit with driven=True, or "
                'pass kind="spectrum"'
            )
        outputs, matrix, drive = None, _bounded(koopman), koopman.drive
        if readout is not None:
            outputs = koopman.state_vectors @ readout.T
        elif weights == "equal":
            deviation = _deviations(koopman)
            if not (deviation > 0).all():
                raise KannError(
                    'an operator has a direction along which its states do not vary; pass weights="carried"'
                )
            matrix, drive = matrix * deviation[:, None] / deviation, drive / deviation
        unsized = Response(matrix=matrix, drive=drive, readout=outputs, steps=steps, size=1.0)
        size = float(np.sqrt(max(0.0, _product(unsized, unsized))))
        if not size > 0:
            raise KannError("an operator does not respond to its inputs; record inputs that reach its states")
        return replace(unsized, size=size)


def response_distance(a: Response, b: Response) -> float:
    """Return the norm of the difference of two responses over their steps, each first scaled to norm one.

    With readouts it is the distance of what comes out: it does not depend on the coordinates of the states at all.
    Without, the states of one are rotated so that they come as close as possible to those of the other; in coordinates
    of variance one that makes up for any change of coordinates. Either is a metric: symmetric, with the triangle
    inequality.
    """
    if len(a.drive) != len(b.drive):
        raise KannError(
            f"one operator reads {len(a.drive)} inputs and the other {len(b.drive)}; responses are compared of "
            'networks that read the same, and kind="spectrum" compares others'
        )
    square = 2 - 2 * _product(a, b) / (a.size * b.size)
    return float(np.sqrt(square)) if square > ROUNDING else 0.0


def _product(a: Response, b: Response) -> float:
    """Compute Σₖ tr(responseᵀ response) of two systems; of states the largest over all rotations of one of them."""
    gram = _summed(a.matrix, b.matrix, a.drive.T @ b.drive, steps=a.steps)
    if a.readout is None or b.readout is None:
        return float(np.linalg.norm(gram, "nuc"))
    if a.readout.shape[1] != b.readout.shape[1]:
        raise KannError(
            f"one readout has {a.readout.shape[1]} outputs and the other {b.readout.shape[1]}; pass the same"
        )
    return float(np.sum((a.readout.T @ gram) * b.readout.T))


def _summed(
    a: Float[Array, "r r"], b: Float[Array, "q q"], start: Float[Array, "r q"], *, steps: int
) -> Float[Array, "r q"]:
    """Compute Σ (Aᵀ)ᵏ M Bᵏ for k < steps: the Sylvester equation X = Aᵀ X B + M, cut off after ``steps``.

    Sums of 1, 2, 4, … terms are made of each other; the binary digits of ``steps`` say which are put together.
    """
    total, term = np.zeros_like(start), start
    a_power, b_power = a.T, b
    a_done, b_done = np.eye(len(a)), np.eye(len(b))
    while steps:
        if steps % 2:
            total = total + a_done @ term @ b_done
            a_done, b_done = a_done @ a_power, b_done @ b_power
        term = term + a_power @ term @ b_power
        a_power, b_power = a_power @ a_power, b_power @ b_power
        steps //= 2
    return total


def _deviations(koopman: Koopman) -> Float[Array, " r"]:
    """Return the standard deviation of each coordinate, up to a common factor."""
    return np.sqrt(koopman.explained) / np.linalg.norm(koopman.state_vectors, axis=1)


def _bounded(koopman: Koopman) -> Float[Array, "r r"]:
    """Put eigenvalues of C outside the unit circle onto it: states of a network are bounded, and do not grow."""
    modulus = np.abs(koopman.eigenvalues)
    if modulus.max() <= 1:
        return koopman.matrix
    values = koopman.eigenvalues / np.maximum(modulus, 1.0)
    return np.real((koopman.right * values) @ koopman.left)
