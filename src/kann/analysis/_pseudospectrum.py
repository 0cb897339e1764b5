"""Which points of the complex plane could be eigenvalues, and up to what tolerance."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis.cross_validation import are_moments, equations_of_groups, require_states_of
from kann.backends.arrays import as_numpy
from kann.checks import require_dense, require_instance
from kann.data.moments import Moments
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import NormalEquations, designs_of_folds, noise_floor, sum_of
from kann.typing import AnyArray, Array, Complex, Float

GRID = 61
"""Points on each side of the grid if the user passes none. Those below the real axis mirror those above."""

MARGIN = 1.15
"""How far beyond the unit circle, or the largest eigenvalue, the grid reaches."""

BATCH_NUMBERS = 2**21
"""Complex numbers in the matrices that are decomposed at a time: 32 MB."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pseudospectrum:
    """How nearly each point of the complex plane is an eigenvalue, by the fitted data.

    >>> import numpy as np, kann
    >>> states = np.random.default_rng(0).normal(size=(30, 40, 3))
    >>> for t in range(1, 40):
    ...     states[:, t] = states[:, t - 1] * [0.95, 0.8, 0.4] + 0.02 * states[:, t]
    >>> koopman = kann.fit(states)
    >>> found = kann.pseudospectrum(koopman, states, grid=np.array([0.95, 0.6]))
    >>> found.residual.round(2)  # nearly an eigenvalue, and none
    array([0.04, 0.2 ])
    """

    grid: Complex[Array, "*points"]
    """The points ζ."""
    residual: Float[Array, "*points"]
    """The smallest |Y v − ζ X v| / |X v| over all v: no eigenpair with this ζ has a smaller residual."""


FARTHEST = 1e6
"""Points farther from zero are no eigenvalue of any network, and their squares would drown everything else."""


def pseudospectrum(koopman: Koopman, data: Any, *, grid: AnyArray | None = None) -> Pseudospectrum:
    """Compute how nearly each point ζ of a grid is an eigenvalue: the smallest residual |Y v − ζ X v| / |X v|.

    >>> import kann, numpy as np
    >>> path = 0.5 ** np.arange(8.0)[:, None]
    >>> pseudospectrum(kann.fit(path[None]), path[None], grid=np.array([0.5, 0.8])).residual.round(6)
    array([0. , 0.3])

    ζ is an eigenvalue up to ε where the residual is at most ε. An eigenvalue whose surroundings have a residual hardly
    larger than its own is not well determined. This is ResDMD's pseudospectrum (Colbrook and Townsend): X and Y are the
    coordinates of states and next states, about their means if the operator has an offset, less what the inputs added
    if it is driven.

    Parameters
    ----------
    koopman
        An operator. Its basis is what v ranges over.
    data
        The states that it was fitted to, their `Moments`, or a list of `Moments` of groups.
    grid
        Points of the complex plane, of any shape; without it 61 × 61 points around the unit circle.

    Returns
    -------
    Pseudospectrum
        ``grid`` and ``residual``, of the same shape.
    """
    require_instance(koopman, Koopman, "koopman")
    points = _points(koopman, grid)
    step, missed = _whitened(koopman, _design(koopman, data))
    # Data are real, so that a point and its conjugate have the same residual.
    upper, place = np.unique(np.real(points) + 1j * np.abs(np.imag(points)), return_inverse=True)
    residual = _smallest_residuals(step, missed, upper)
    return Pseudospectrum(grid=points, residual=residual[place].reshape(points.shape))


def _points(koopman: Koopman, grid: AnyArray | None) -> Complex[Array, "..."]:
    """Return the points of the user, or a grid around the unit circle."""
    if grid is None:
        reach = MARGIN * max(1.0, float(np.abs(koopman.eigenvalues[0])))
        half = np.linspace(-reach, reach, GRID)
        return half + 1j * half[:, None]
    require_dense(grid)
    points = as_numpy(grid)
    if points.dtype.kind not in "cfiu" or not points.size or not (np.abs(points) <= FARTHEST).all():
        raise KannError(
            f"grid= holds what is no complex number of modulus up to {FARTHEST:g}; pass points of the complex plane"
        )
    return points.astype(complex)


def _design(koopman: Koopman, data: Any) -> NormalEquations:
    """Sum the normal equations of all pairs, in the basis of the operator."""
    data = [data] if isinstance(data, Moments) else data
    if are_moments(data):
        for moments in data:
            moments.require_pairs()
        return sum_of(equations_of_groups(koopman, data))
    states = require_states_of(koopman, data)
    if not (states.lengths > 1).any():
        raise KannError("no sequence has two states, so that no pair says what a step does; pass longer sequences")
    basis: dict[str, Any] = {"basis": koopman.basis, "mean": koopman.mean, "driven": koopman.drive is not None}
    return sum_of(designs_of_folds(states, np.zeros(len(states), dtype=int), **basis))


def _whitened(koopman: Koopman, design: NormalEquations) -> tuple[Float[Array, "k k"], Float[Array, "k k"]]:
    """Return A and R with |Y v − ζ X v|² = |(A − ζ) w|² + w* R w and |X v| = |w|.

    The residual E of a least-squares step is orthogonal to X, so that Y = X C + E splits it: X (C − ζ) v and E v.
    Directions without energy are left out.
    """
    offset, rank = koopman.offset is not None, koopman.rank
    weights = design.weights(offset=offset, ridge=0.0, rounding=0.0)
    about = design.gram[-1, :rank] / design.gram[-1, -1] if offset else np.zeros(rank)
    energy, vectors = np.linalg.eigh(design.state_gram(about))
    # By eigenvectors, not by Cholesky, which fails where coordinates nearly depend on each other.
    kept = energy > noise_floor(rank, 0.0) * energy[-1]
    root, vectors = np.sqrt(energy[kept]), vectors[:, kept]
    step = root[:, None] * (vectors.T @ weights[:rank] @ vectors) / root
    missed = (vectors.T @ design.residual_gram(weights) @ vectors) / np.outer(root, root)
    return step, (missed + missed.T) / 2


def _smallest_residuals(
    step: Float[Array, "k k"], missed: Float[Array, "k k"], points: Complex[Array, " n"]
) -> Float[Array, " n"]:
    """Compute √ of the smallest eigenvalue of (A − ζ)*(A − ζ) + R for each ζ, in batches."""
    rank = len(step)
    residual = np.empty(len(points))
    # (A − ζ)*(A − ζ) = AᵀA − ζ Aᵀ − ζ̄ A + |ζ|². Residuals below 1e-8 drown in its rounding, and no data are that exact.
    fixed, own = step.T @ step + missed, np.eye(rank)
    size = max(1, BATCH_NUMBERS // rank**2)
    for start in range(0, len(points), size):
        zeta = points[start : start + size, None, None]
        matrices = fixed - zeta * step.T - zeta.conj() * step + np.abs(zeta) ** 2 * own
        residual[start : start + size] = np.linalg.eigvalsh(matrices)[:, 0]
    return np.sqrt(np.maximum(residual, 0.0))
