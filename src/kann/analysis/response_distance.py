"""How differently two driven systems respond to the same inputs, step after step."""

from dataclasses import dataclass, replace

import numpy as np

from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Response:
    """What a driven system makes of an input after 0, 1, 2, … steps: D Cᵏ W, one row for each input."""

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
        """The response of an operator that reads inputs; with equal weights in coordinates of variance one."""
        if koopman.drive is None:
            raise KannError(
                "responses are of operators that read inputs, and this one is autonomous; fit with driven=True, or "
                'pass kind="spectrum"'
            )
        outputs, matrix, drive = None, _bounded(koopman), koopman.drive
        if readout is not None:
            outputs = koopman.basis.T @ readout.T
        elif weights == "equal":
            deviation = _deviations(koopman)
            matrix, drive = matrix * deviation[:, None] / deviation, drive / deviation
        unsized = Response(matrix=matrix, drive=drive, readout=outputs, steps=steps, size=1.0)
        size = float(np.sqrt(max(0.0, _product(unsized, unsized))))
        if not size > 0:
            raise KannError("an operator does not respond to its inputs; record inputs that reach its states")
        return replace(unsized, size=size)


def response_distance(a: Response, b: Response) -> float:
    """The norm of the difference of two responses over their steps, each first scaled to norm one.

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
    cosine = _product(a, b) / (a.size * b.size)
    return float(np.sqrt(max(0.0, 2 - 2 * cosine)))


def _product(a: Response, b: Response) -> float:
    """Σₖ tr(responseᵀ response) of two systems; of states the largest over all rotations of one of them."""
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
    """Σ (Aᵀ)ᵏ M Bᵏ for k < steps: the Sylvester equation X = Aᵀ X B + M, cut off after ``steps``.

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
    """The standard deviation of each coordinate, up to a common factor."""
    if not (koopman.explained > 0).all():
        raise KannError('an operator has a direction along which its states do not vary; pass weights="carried"')
    return np.sqrt(koopman.explained)


def _bounded(koopman: Koopman) -> Float[Array, "r r"]:
    """C with eigenvalues outside the unit circle put onto it: states of a network are bounded, and do not grow."""
    modulus = np.abs(koopman.eigenvalues)
    if modulus.max() <= 1:
        return koopman.matrix
    values = koopman.eigenvalues / np.maximum(modulus, 1.0)
    return np.real((koopman.right * values) @ koopman.left)
