"""Linear coordinates of a state: of modes, principal components, a readout, or random directions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis.modes import chosen_modes
from kann.backends.arrays import as_numpy
from kann.checks import array_of, require_all_finite, require_real, require_whole_number, shown
from kann.data.moments import centre_in_place, state_gram
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.balance import Balance
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


def mode_vectors(koopman: Koopman, mode: int | Mode) -> tuple[Float[Array, "d k"], Float[Array, "k d"]]:
    """Directions A and vectors W of a mode: (h − mean) A W is what `kann.reconstruct` keeps of a state.

    A real mode has one coordinate z v, a conjugate pair two: its real and its imaginary part.
    """
    (chosen,) = chosen_modes(koopman, mode)
    right, left = koopman.right[:, chosen.indices[0]], koopman.left[chosen.indices[0]]
    if len(chosen.indices) == 1:
        directions, vectors = np.real(right)[:, None], np.real(left)[None]
    else:  # z v u + z̄ v̄ ū = 2 Re(z v) Re u − 2 Im(z v) Im u
        directions = np.stack([np.real(right), np.imag(right)], axis=1)
        vectors = np.stack([2 * np.real(left), -2 * np.imag(left)])
    return koopman.basis @ directions, vectors @ koopman.state_vectors


def mode_directions(koopman: Koopman, modes: int | Mode | Iterable[int | Mode]) -> Float[Array, "d k"]:
    """Directions of the coordinates of several modes, side by side."""
    parts = [mode_vectors(koopman, mode)[0] for mode in chosen_modes(koopman, modes)]
    return np.concatenate([np.empty((koopman.dim, 0)), *parts], axis=1)


def first_modes(koopman: Koopman, order: Sequence[int], count: int) -> list[int]:
    """Select the first modes of an order that have ``count`` coordinates together, of which a conjugate pair has two.

    Where only one coordinate is left, the next real mode is taken; if there is none, the first pair.
    """
    chosen, left = [], count
    for number in order:
        size = len(koopman.modes[number].indices)
        if size <= left:
            chosen.append(number)
            left -= size
    return chosen or list(order[:1])


def directions_of(coordinates: Any) -> Float[Array, "d k"]:
    """Return the directions of a `Balance`, or an array of directions (d, k) that the user passed."""
    directions = array_of(coordinates.directions if isinstance(coordinates, Balance) else coordinates)
    if directions.ndim != 2 or not directions.shape[1] or directions.dtype.kind not in "biufc":
        raise KannError(
            f"coordinates={shown(coordinates)} must be a Balance, a Koopman or an array of directions (units, count); "
            "for a single direction pass direction[:, None]"
        )
    require_real(directions, what="directions")
    directions = directions.astype(np.float64)
    require_all_finite(directions, what="directions", remedy="pass finite ones")
    return directions


def chosen_directions(coordinates: Any, chosen: Any) -> Float[Array, "d k"]:
    """Select modes of a `Koopman`, or directions of a `Balance` or an array (d, k), by their numbers."""
    if isinstance(coordinates, Koopman):
        return mode_directions(coordinates, chosen)
    directions = directions_of(coordinates)
    numbers = [chosen] if isinstance(chosen, str) or np.ndim(chosen) == 0 else list(chosen)
    for number in numbers:
        if not 0 <= require_whole_number(number, "coordinate", least=0) < directions.shape[1]:
            raise KannError(f"coordinate {number} does not exist; there are coordinates 0 to {directions.shape[1] - 1}")
    return directions[:, [int(number) for number in numbers]]


def orthonormal_axes(directions: Float[Array, "d k"], spread: Spread) -> Float[Array, "d q"]:
    """Compute an orthonormal basis of the directions' span along which the states are uncorrelated, the widest first.

    There are fewer axes than directions if directions depend on each other.
    """
    if not directions.shape[1]:
        return directions
    lengths = np.linalg.norm(directions, axis=0)
    if not lengths.all():
        raise KannError("a coordinate has the direction 0 and keeps nothing of a state; leave it out")
    left, singular, _ = np.linalg.svd(directions / lengths, full_matrices=False)
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


def random_like(axes: Float[Array, "d q"], spread: Spread, rng: np.random.Generator) -> Float[Array, "d q"]:
    """Draw as many random directions as there are orthonormal axes, with the same variance of the states."""
    fraction = float(np.trace(spread.along(axes)) / np.trace(spread.covariance))
    return random_directions(spread, count=axes.shape[1], fraction=fraction, rng=rng)


def mode_variances(koopman: Koopman, spread: Spread, weight: Float[Array, "o d"] | None) -> Float[Array, " m"]:
    """Variance of each mode's contribution to a readout's outputs, their sum; without a readout, to the state itself.

    A mode contributes (h − mean) A W weightᵀ, with A and W as in `mode_vectors`.
    """
    found = []
    for mode in koopman.modes:
        directions, effect = mode_vectors(koopman, mode)
        if weight is not None:
            effect = effect @ weight.T
        found.append(np.trace(effect.T @ spread.along(directions) @ effect))
    return np.array(found)
