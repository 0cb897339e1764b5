"""Linear coordinates of a state: of modes, principal components, a readout, or random directions."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kann.analysis.modes import chosen_modes
from kann.backends.arrays import as_numpy
from kann.data.moments import centre_in_place, state_gram
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.typing import Array, Float

DEPENDENT = 1e-10
"""A direction that the others explain to this fraction of its length adds nothing: float64 keeps 1e-16 of it."""

STEEPEST = 8.0
"""Random directions weigh the principal components by their variance to a power of at most this size. With more, all
but one component vanish."""


BISECTIONS = 30
"""Halvings of the range of that power: 1e-8 is left of it."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Spread:
    """Mean and covariance of states, from which everything linear about them follows."""

    mean: Float[Array, " d"]
    """The mean state."""
    covariance: Float[Array, "d d"]
    """The covariance of the units."""

    @property
    def dim(self) -> int:
        """The number of units d."""
        return len(self.mean)

    def along(self, directions: Float[Array, "d k"]) -> Float[Array, "k k"]:
        """The covariance of the coordinates along some directions."""
        return directions.T @ self.covariance @ directions


def spread_of(states: States) -> Spread:
    """Mean and covariance of all states, in one pass over them."""
    found = state_gram(states)
    total, products = as_numpy(found.sum_h), as_numpy(found.hh)
    return Spread(
        mean=total / found.states, covariance=centre_in_place(products.copy(), total, found.states) / found.states
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Coordinates:
    """Linear coordinates of a state about the mean, s = (h − mean) A, and the state that stands for each of them."""

    directions: Float[Array, "d k"]
    """A: what a state is multiplied with."""
    vectors: Float[Array, "k d"]
    """W with W A = I: the change of a state that raises one coordinate by one and leaves the others alone."""

    @staticmethod
    def of_modes(koopman: Koopman, modes: int | Mode | Iterable[int | Mode]) -> "Coordinates":
        """The coordinates z v of modes: one of a real mode, real and imaginary part of a conjugate pair.

        Their vectors are the left eigenvectors, so that (h − mean) A W is what `kann.reconstruct` keeps of a state.
        """
        columns, rows = [np.empty((koopman.rank, 0))], [np.empty((0, koopman.rank))]
        for mode in chosen_modes(koopman, modes):
            first = mode.indices[0]
            right, left = koopman.right[:, first], koopman.left[first]
            if len(mode.indices) == 1:
                columns.append(np.real(right)[:, None])
                rows.append(np.real(left)[None])
            else:  # z v u + z̄ v̄ ū = 2 Re(z v) Re u − 2 Im(z v) Im u
                columns.append(np.stack([np.real(right), np.imag(right)], axis=1))
                rows.append(np.stack([2 * np.real(left), -2 * np.imag(left)]))
        return Coordinates(
            directions=koopman.basis @ np.concatenate(columns, axis=1),
            vectors=np.concatenate(rows) @ koopman.state_vectors,
        )

    @staticmethod
    def of_directions(directions: Float[Array, "d k"]) -> "Coordinates":
        """Coordinates along any directions; their vectors lie in the span of the directions."""
        return Coordinates(directions=directions, vectors=np.linalg.pinv(directions))

    @property
    def dim(self) -> int:
        """The number of units d."""
        return self.directions.shape[0]

    @property
    def count(self) -> int:
        """The number of coordinates k."""
        return self.directions.shape[1]

    def first(self, count: int) -> "Coordinates":
        """The first ``count`` of them."""
        return Coordinates(directions=self.directions[:, :count], vectors=self.vectors[:count])

    def axes(self, spread: Spread) -> Float[Array, "d q"]:
        """Orthonormal directions of the same span, along which the states are uncorrelated, the widest first.

        There are fewer of them than coordinates if coordinates depend on each other.
        """
        if not self.count:
            return np.empty((self.dim, 0))
        lengths = np.linalg.norm(self.directions, axis=0)
        if not lengths.all():
            raise KannError("a coordinate has the direction 0 and keeps nothing of a state; leave it out")
        left, singular, _ = np.linalg.svd(self.directions / lengths, full_matrices=False)
        span = left[:, singular > DEPENDENT * singular[0]]
        _, turned = np.linalg.eigh(spread.along(span))
        return span @ turned[:, ::-1]


def principal_components(spread: Spread) -> Float[Array, "d d"]:
    """Orthonormal directions in which the states vary, the widest first."""
    return np.linalg.eigh(spread.covariance)[1][:, ::-1]


def readout_directions(
    weight: Float[Array, "o d"], spread: Spread, *, largest_decides: bool = True
) -> Float[Array, "d q"]:
    """Directions that a linear readout reads, by how much its outputs vary along them.

    Where the largest of several outputs decides, only their differences count.
    """
    if len(weight) > 1 and largest_decides:
        weight = weight - weight.mean(axis=0)
    values, turned = np.linalg.eigh(weight @ spread.covariance @ weight.T)
    order = np.argsort(-values, kind="stable")
    used = order[values[order] > DEPENDENT * max(values.max(), np.finfo(float).tiny)]
    return weight.T @ turned[:, used]


def random_directions(spread: Spread, *, count: int, fraction: float, rng: np.random.Generator) -> Float[Array, "d k"]:
    """Random directions in which lies the given ``fraction`` of the states' variance, as nearly as can be.

    Normal random numbers for the principal components are weighed by a power of their variance, and the power is chosen
    so that the fraction comes out. Directions drawn without weights would hold less variance than those of most modes,
    and a test against them would be too easy.
    """
    components = principal_components(spread)
    variances = np.maximum(np.diag(spread.along(components)), 0.0)
    relative = np.maximum(variances / variances.max(), DEPENDENT)
    drawn = rng.normal(size=(spread.dim, count))

    def span(power: float) -> Float[Array, "d k"]:
        return np.linalg.qr(relative[:, None] ** power * drawn)[0]

    low, high = -STEEPEST, STEEPEST
    for _ in range(BISECTIONS):  # the fraction grows with the power
        middle = (low + high) / 2
        if (variances @ span(middle) ** 2).sum() < fraction * variances.sum():
            low = middle
        else:
            high = middle
    return components @ span((low + high) / 2)


def mode_variances(koopman: Koopman, spread: Spread, weight: Float[Array, "o d"] | None) -> Float[Array, " m"]:
    """Variance of each mode's contribution to a readout's outputs, their sum; without a readout, to the state itself.

    A mode contributes (h − mean) A W weightᵀ, with A and W as in `Coordinates.of_modes`.
    """
    found = []
    for mode in koopman.modes:
        own = Coordinates.of_modes(koopman, mode)
        effect = own.vectors
        if weight is not None:
            effect = effect @ weight.T
        found.append(np.trace(effect.T @ spread.along(own.directions) @ effect))
    return np.array(found)
