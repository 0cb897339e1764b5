"""One linear system for a network's hidden states, and what it does."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann import _display
from kann.backends.arrays import to_device_of
from kann.data.serialization import Saved, require_finite_fields, without_axes
from kann.fitting.basis import ORTHONORMAL_TO, Operator, RankCurve
from kann.fitting.features import FeatureMap
from kann.fitting.spectrum import DOUBTFUL, TRUSTED, Mode, modes
from kann.typing import AnyArray, Array, Complex, Float

CONSISTENT_TO = 1e-8
"""How far the fields of a saved operator may contradict each other, relative to their size. Rounding in float64 stays
below 1e-11, also for thousands of units, and what an edited field breaks is far above."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Koopman(Operator, Saved):
    """One linear system for a network's hidden states: z[t+1] ≈ z[t] C + c, or z[t] C + u[t+1] D + c if it is driven.

    States are rows. z = (h − mean) B are a state's coordinates; C V = V Λ and U = V⁻¹.

    >>> import numpy as np, kann
    >>> start = np.random.default_rng(0).normal(size=(20, 1, 2))
    >>> states = start * np.array([0.9, 0.5]) ** np.arange(12)[:, None]
    >>> koopman = kann.fit(states)
    >>> koopman
    Koopman(autonomous, 2 units, rank 2, |λ| = 0.9000, 0.5000)
    >>> koopman.eigenvalues.real.round(6)
    array([0.9, 0.5])
    >>> (koopman.predict(states[0, 0], steps=3) / states[0, 3]).round(6)
    array([1., 1.])
    >>> round(koopman.modes[0].horizon(), 2)
    21.85
    """

    matrix: Float[Array, "r r"]
    """C"""
    basis: Float[Array, "d r"]
    """B, in columns"""
    mean: Float[Array, " d"]
    """Subtracted from a state first: the mean of all states for PCA, zero for SVD and Fourier."""
    explained: Float[Array, " r"]
    """Fraction of the states' energy Σ|h − mean|² that each coordinate explains, beyond those before it."""
    eigenvalues: Complex[Array, " r"]
    """λ, by decreasing modulus, conjugate pairs side by side."""
    right: Complex[Array, "r r"]
    """V, in columns."""
    left: Complex[Array, "r r"]
    """U = V⁻¹, in rows: the Koopman eigenvectors."""
    residuals: Float[Array, " r"]
    """|Y v − λ X v| / |X v| for each eigenpair, on the pairs that were fitted; what inputs and offset explain is taken
    off Y, and with an offset the mean off X. See `kann.trust` for pairs that were not fitted."""
    condition: float
    """Condition number of V."""
    drive: Float[Array, "p r"] | None = None
    """D: what the inputs do; None if autonomous."""
    offset: Float[Array, " r"] | None = None
    """c; None if the operator was fitted without."""
    ridge: float = 0.0
    """The ridge that it was fitted with."""
    rank_curve: RankCurve | None = None
    """The held-out errors of the ranks that were tried, if ``rank="auto"`` was asked for."""
    decoder: Float[Array, "r d"] | None = None
    """The regression of the state on the coordinates, if the basis is a `Balance` or an array; None if it is Bᵀ."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes by decreasing modulus; a conjugate pair is one mode."""
        return modes(self.eigenvalues, self.residuals)

    @property
    def input_dim(self) -> int:
        """The number of inputs p; 0 if autonomous."""
        return 0 if self.drive is None else len(self.drive)

    @property
    def features(self) -> FeatureMap:
        """The functions of the inputs that drive the operator: the inputs themselves."""
        return FeatureMap(kind="inputs", inputs=self.input_dim, count=self.input_dim)

    @property
    def step_weights(self) -> dict[str, Array]:
        """The weights of one step of a driven operator by name, and the range of its coordinates."""
        unbounded = np.full(self.rank, np.inf)
        weights: dict[str, Any] = {"matrix": self.matrix, "drive": self.drive, "low": -unbounded, "high": unbounded}
        return weights | {"offset": np.zeros(self.rank) if self.offset is None else self.offset}

    def _path(self, z: AnyArray, steps: int, inputs: AnyArray | None) -> list[AnyArray]:
        matrix, path = to_device_of(z, self.matrix), []
        push = None if self.offset is None else to_device_of(z, self.offset)
        if inputs is not None and self.drive is not None:
            pushes = inputs @ to_device_of(inputs, self.drive)
            push = pushes if push is None else pushes + push
        for step in range(steps):
            z = z @ matrix
            if push is not None:
                z = z + (push if inputs is None else push[..., step, :])
            path.append(z)
        return path

    @classmethod
    def _from_version_1(cls, arrays: dict[str, Array], path: str | os.PathLike[str]) -> dict[str, Any]:
        content = without_axes(arrays)
        curve = {name: content.pop(name) for name in list(content) if name.startswith("curve_")}
        if curve:
            content["rank_curve"] = RankCurve(**{name.removeprefix("curve_"): array for name, array in curve.items()})
        return content

    def _check(self) -> None:
        # Raises ValueError if fields contradict each other: C V = V Λ, V U = I and, without a decoder, BᵀB = I. Matrix
        # identities are tested on a vector of random signs, in r² operations: both sides agree only if the matrices do,
        # up to chance. Multiplying the matrices would take minutes for thousands of units.
        require_finite_fields(self, except_for=("residuals", "condition"))
        matrix, basis, right, eigenvalues = self.matrix, self.basis, self.right, self.eigenvalues
        rank = len(matrix)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=rank)
        if self.decoder is None and np.abs(basis.T @ (basis @ signs) - signs).max() > rank * ORTHONORMAL_TO:
            raise ValueError("its basis is not orthonormal")
        step = matrix @ (right @ signs) - right @ (eigenvalues * signs)
        if np.linalg.norm(step) > CONSISTENT_TO * np.sqrt(rank) * np.linalg.norm(matrix):
            raise ValueError("its eigenvalues and eigenvectors are not those of its matrix")
        # Of nearly dependent eigenvectors the inverse is known to as many digits as the condition leaves.
        tolerance = CONSISTENT_TO + 100 * rank * np.finfo(float).eps * self.condition
        if tolerance < 1 and np.linalg.norm(right @ (self.left @ signs) - signs) > tolerance * np.linalg.norm(signs):
            raise ValueError("its left eigenvectors are not the inverse of the right ones")
        for name, least in (("explained", 0.0), ("residuals", 0.0), ("condition", 1.0 - CONSISTENT_TO), ("ridge", 0.0)):
            if not np.min(getattr(self, name)) >= least:  # NaN included
                raise ValueError(f"{name!r} holds numbers below {least:.0f}")
        # `modes` needs eigenvalues by decreasing modulus, and the two of a pair side by side.
        modulus = np.abs(eigenvalues)
        first, second = np.flatnonzero(np.imag(eigenvalues) > 0), np.flatnonzero(np.imag(eigenvalues) < 0)
        if not np.array_equal(first + 1, second) or (eigenvalues[first].conj() != eigenvalues[second]).any():
            raise ValueError("its complex eigenvalues are no conjugate pairs side by side")
        if (modulus[1:] > modulus[:-1] * (1 + CONSISTENT_TO) + np.finfo(float).tiny).any():
            raise ValueError("its eigenvalues are not sorted by modulus")

    def __repr__(self) -> str:
        kind = f"driven by {self.input_dim} inputs" if self.input_dim else "autonomous"
        leading = [f"{abs(value):.4f}" for value in self.eigenvalues[:4]]
        if self.rank > 4:
            leading.append("…")
        return f"Koopman({kind}, {self.dim} units, rank {self.rank}, |λ| = {', '.join(leading)})"

    def _repr_html_(self) -> str:
        rows = []
        for i, mode in enumerate(self.modes[:8]):
            numbers = (mode.eigenvalue, mode.modulus, mode.period, mode.horizon(), mode.residual)
            rows.append([i, *(f"{number:.4g}" for number in numbers)])
        head = ("mode", "λ", "|λ|", "period", "horizon", "residual on the fitted data")
        drawing = _display.spectrum(self.eigenvalues, self.residuals, small=TRUSTED, large=DOUBTFUL)
        return drawing + _display.table(repr(self), head, rows)
