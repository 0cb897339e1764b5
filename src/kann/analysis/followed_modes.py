"""Which mode of an operator continues which mode of an earlier operator of the same network."""

from dataclasses import dataclass

import numpy as np

from kann.fitting.koopman import Koopman
from kann.typing import Array, Complex, Int

FARTHEST = 0.5
"""A mode continues another only if its eigenvalue and its direction together have moved by no more than this. A turn by
60° alone, or a jump of |λ| by a half alone, is that far: beyond, it is another mode."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Followed:
    """The modes of one operator with numbers that they keep from one operator to the next."""

    numbers: Int[Array, " m"]
    """The number of each mode; one that is new has a number that no mode had before."""
    eigenvalues: Complex[Array, " m"]
    """λ; of a conjugate pair the one above the real axis."""
    directions: Complex[Array, "m d"]
    """Where each mode moves the states, of unit length."""

    @staticmethod
    def first(koopman: Koopman) -> "Followed":
        """Modes numbered as the operator orders them."""
        found = _unnumbered(koopman)
        return Followed(numbers=np.arange(len(found[0])), eigenvalues=found[0], directions=found[1])

    def next(self, koopman: Koopman, *, unused: int) -> "Followed":
        """The modes of a later operator; new ones are numbered from ``unused`` on.

        Modes are assigned such that what eigenvalues and directions move is least in sum, |λ' − λ| + 1 − |cos|.
        """
        from scipy.optimize import linear_sum_assignment  # here, since it takes long to import

        eigenvalues, directions = _unnumbered(koopman)
        apart = np.abs(eigenvalues[:, None] - self.eigenvalues) + 1 - np.abs(directions @ self.directions.conj().T)
        # Beyond the bound all are equally wrong, so that no good match is given up for the sake of a bad one.
        rows, columns = linear_sum_assignment(np.minimum(apart, FARTHEST))
        near = apart[rows, columns] < FARTHEST
        numbers = np.full(len(eigenvalues), -1)
        numbers[rows[near]] = self.numbers[columns[near]]
        new = numbers < 0
        numbers[new] = unused + np.arange(new.sum())
        return Followed(numbers=numbers, eigenvalues=eigenvalues, directions=directions)


def _unnumbered(koopman: Koopman) -> tuple[Complex[Array, " m"], Complex[Array, "m d"]]:
    """Eigenvalue and direction of each mode."""
    first = [mode.indices[0] for mode in koopman.modes]
    directions = koopman.left[first] @ koopman.basis.T
    return koopman.eigenvalues[first], directions / np.linalg.norm(directions, axis=1, keepdims=True)
