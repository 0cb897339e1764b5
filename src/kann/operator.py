"""The Koopman operator of a network: fitting it, and what a linear system does."""

import os
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kann import notebook
from kann.arrays import as_numpy, require_float, require_width
from kann.basis import GRAM_NOISE, Scatter, choose, require_known, scatter
from kann.errors import KannError
from kann.files import load_npz, save_npz
from kann.moments import Moments, centred, require_pairs
from kann.regression import Coordinates, regress
from kann.rows import MappedRows
from kann.spectrum import DOUBTFUL, TRUSTED, Mode, decompose, modes, residuals
from kann.states import States, as_states
from kann.typing import AnyArray, Array, Complex, Float

KIND = "kann.Koopman"
VERSION = 1
EXACT = 1e-10
"""Relative error of C that is tolerated from the rounding of the Gram, ε·(σ₁/σᵣ)², before the states are read again."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Koopman:
    """One linear system for a network's hidden states: z[t+1] ≈ z[t] C, or z[t] C + u[t+1] D + c if it is driven.

    States are rows. z = (h − mean) B are a state's coordinates; C V = V Λ and U = V⁻¹.
    """

    matrix: Float[Array, "r r"]
    """C"""
    basis: Float[Array, "d r"]
    """B, with BᵀB = I"""
    mean: Float[Array, " d"]
    """What is taken off a state first; zero unless the basis is PCA."""
    explained: Float[Array, " r"]
    """Share of the states' energy Σ|h − mean|² in each basis direction."""
    eigenvalues: Complex[Array, " r"]
    """λ, by decreasing modulus, conjugate pairs side by side."""
    right: Complex[Array, "r r"]
    """V, in columns."""
    left: Complex[Array, "r r"]
    """U = V⁻¹, in rows: the Koopman eigenvectors."""
    residuals: Float[Array, " r"]
    """|Y v − λ X v| / |X v| for each eigenpair; if driven, what inputs and offset explain is taken off Y, and the mean
    off X."""
    condition: float
    """Condition number of V."""
    drive: Float[Array, "p r"] | None = None
    """D: what the inputs do; None if autonomous."""
    offset: Float[Array, " r"] | None = None
    """c; None if autonomous."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes by decreasing modulus; a conjugate pair is one mode."""
        return modes(self.eigenvalues, self.residuals)

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        """The number of basis directions r."""
        return self.basis.shape[1]

    def encode(self, h: AnyArray) -> Float[Array, "... r"]:
        """Coordinates z = (h − mean) B of states (..., d)."""
        return (self._states(h) - self.mean) @ self.basis

    def decode(self, z: AnyArray) -> Float[Array, "... d"]:
        """States z Bᵀ + mean of coordinates (..., r)."""
        z = as_numpy(z)
        require_width(z, self.rank, what="coordinates", of="the operator's basis")
        return z @ self.basis.T + self.mean

    def predict(self, h: AnyArray, steps: int = 1, *, inputs: AnyArray | None = None) -> Float[Array, "... d"]:
        """The states ``steps`` later: (h − mean) B Cˢ Bᵀ + mean, the paper's equation for H^KANN.

        A driven operator also takes what the network reads on the way, (..., steps, p), or (..., p) for one step.
        """
        return self._rolled(h, steps, inputs)[..., -1, :]

    def rollout(self, h: AnyArray, steps: int, *, inputs: AnyArray | None = None) -> Float[Array, "... s d"]:
        """The next ``steps`` states one after the other, each predicted from the one before."""
        return self._rolled(h, steps, inputs)

    def simulate(self, inputs: AnyArray, initial: AnyArray | None = None) -> Float[Array, "... t d"]:
        """Run the driven linear system over whole input sequences (..., T, p), in place of the network.

        Starts from the states ``initial`` (..., d), zero if not given. The result has one state per input, reached
        by reading it.
        """
        inputs = self._inputs(inputs, None)
        h = np.zeros((*inputs.shape[:-2], self.dim)) if initial is None else initial
        return self._rolled(h, inputs.shape[-2], inputs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` file that `load` reads."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        save_npz(path, kind=KIND, version=VERSION, arrays=arrays | {"condition": np.array(self.condition)})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Koopman":
        """Read what `save` wrote."""
        arrays: dict[str, Any] = load_npz(path, kind=KIND, version=VERSION)
        arrays["condition"] = float(arrays["condition"])
        return Koopman(**arrays)

    def __repr__(self) -> str:
        kind = "autonomous" if self.drive is None else f"driven by {len(self.drive)} inputs"
        leading = ", ".join(f"{abs(value):.4f}" for value in self.eigenvalues[:4])
        more = ", …" if self.rank > 4 else ""
        return f"Koopman({kind}, {self.dim} units, rank {self.rank}, |λ| = {leading}{more})"

    def _repr_html_(self) -> str:
        rows = [
            [
                i,
                *(
                    f"{value:.4g}"
                    for value in (mode.eigenvalue, mode.modulus, mode.period, mode.horizon(), mode.residual)
                ),
            ]
            for i, mode in enumerate(self.modes[:8])
        ]
        head = ("mode", "λ", "|λ|", "period", "horizon", "residual")
        drawing = notebook.spectrum(self.eigenvalues, self.residuals, trusted=TRUSTED, doubtful=DOUBTFUL)
        return drawing + notebook.table(repr(self), head, rows)

    def _states(self, h: AnyArray) -> Float[Array, "... d"]:
        h = as_numpy(h)
        require_float(h, what="states")
        require_width(h, self.dim, what="states", of="the operator")
        return h

    def _inputs(self, inputs: AnyArray | None, steps: int | None) -> Float[Array, "... t p"]:
        if self.drive is None:
            raise KannError("this operator is autonomous and reads no inputs; fit with driven=True")
        if inputs is None:
            raise KannError("this operator is driven; pass inputs=, what the network reads at each step")
        inputs = as_numpy(inputs)
        require_width(inputs, len(self.drive), what="inputs", of="the operator's drive")
        if inputs.ndim < 2 or (steps is not None and inputs.shape[-2] != steps):
            raise KannError(f"inputs of shape {inputs.shape} do not cover {steps or 'the'} steps; pass (..., steps, p)")
        return inputs

    def _rolled(self, h: AnyArray, steps: int, inputs: AnyArray | None) -> Float[Array, "... s d"]:
        """All states from 1 to ``steps`` ahead."""
        if steps < 1:
            raise KannError(f"steps={steps} predicts nothing; pass steps>=1")
        z = self.encode(h)
        pushes = None
        if self.drive is not None or inputs is not None:
            if inputs is not None and steps == 1 and as_numpy(inputs).ndim == z.ndim:
                inputs = as_numpy(inputs)[..., None, :]
            pushes = self._inputs(inputs, steps) @ self.drive + self.offset
        path = []
        for step in range(steps):
            z = z @ self.matrix
            if pushes is not None:
                z = z + pushes[..., step, :]
            path.append(z)
        return self.decode(np.stack(path, axis=-2))


def fit(
    data: States | Moments | AnyArray,
    *,
    rank: Any = None,
    basis: str | AnyArray = "svd",
    lengths: Any = None,
    driven: bool = False,
    ridge: int | float = 0.0,
) -> Koopman:
    """Fit one linear operator to how hidden states evolve.

    >>> turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> path = np.stack([np.linalg.matrix_power(turn, t)[0] for t in range(9)])
    >>> fit(path[None])
    Koopman(autonomous, 2 units, rank 2, |λ| = 1.0000, 1.0000)

    Parameters
    ----------
    data
        `States`, `Moments`, an array (S, T, d), or a list of arrays (T_i, d); numpy or torch.
    rank
        How many basis directions to keep: a whole number, a share of explained variance such as ``0.99``, or None for
        every direction that the data resolve.
    basis
        ``"svd"`` (the paper's), ``"pca"`` (the same about the mean), ``"fourier"`` (which looks at no data), or an
        orthonormal (d, r) array.
    lengths
        For an array: how many steps of each sequence are real. Without it padding is fitted too.
    driven
        Fit z[t+1] ≈ z[t] C + u[t+1] D + c to states that were recorded with their inputs u: what the network does by
        itself, apart from what its input makes it do.
    ridge
        Adds ridge·(|C|² + |D|²) to the sum of squares over all pairs.
    """
    require_known(basis)
    if not ridge >= 0:
        raise KannError(f"ridge={ridge} would reward large operators; pass ridge>=0")
    states, moments = _gather(data, lengths, driven)
    require_pairs(moments)
    if driven and not moments.input_dim:
        raise KannError("driven=True needs the inputs that drove the states; pass States with inputs")
    mean = moments.sum_h / moments.states if isinstance(basis, str) and basis == "pca" else np.zeros(moments.dim)
    at = Coordinates(shift=mean)
    size = float(np.sqrt(np.trace(moments.hh)))
    found = scatter(_gram(moments, at), size=size, rounding=moments.rounding)
    if states is not None and not ridge and _blurred(found, moments, rank):
        moments, at, found = _sharpen(states, found, mean, size=size, driven=driven)
    chosen = choose(basis, rank, found, mean)
    step = regress(moments, chosen, at, driven=driven, ridge=ridge)
    spectrum = decompose(step.matrix)
    return Koopman(
        matrix=step.matrix,
        basis=chosen.vectors,
        mean=chosen.mean,
        explained=chosen.explained,
        eigenvalues=spectrum.eigenvalues,
        right=spectrum.right,
        left=spectrum.left,
        residuals=residuals(spectrum.right, step.error, step.energy),
        condition=spectrum.condition,
        drive=step.drive,
        offset=step.offset,
    )


def _gather(data: States | Moments | AnyArray, lengths: Any, driven: bool) -> tuple[States | None, Moments]:
    """States, where they can be read again, and their moments."""
    if isinstance(data, States | Moments) and lengths is not None:
        raise KannError("lengths are for arrays; States and Moments know theirs")
    if isinstance(data, Moments):
        return None, data.numpy()
    states = as_states(data, lengths)
    return states, Moments.of(states, inputs=driven).numpy()


def _gram(moments: Moments, at: Coordinates) -> Float[Array, "k k"]:
    """Products of all states, about their mean where one is taken off."""
    if not at.shift.any():
        return moments.hh
    return centred(moments.hh, moments.sum_h, moments.sum_h, moments.states)


def _blurred(found: Scatter, moments: Moments, rank: Any) -> bool:
    """Whether float64 states have directions that their Gram cannot give to `EXACT`.

    States of lower precision never do: their own rounding changes C by ε₃₂·σ₁/σᵣ, which is above ε₆₄·(σ₁/σᵣ)² as far
    down as they resolve anything.
    """
    eps = np.finfo(np.float64).eps
    if moments.rounding > eps:
        return False
    needed = int(rank) if isinstance(rank, int | np.integer) else len(found.values)
    smallest = found.values[min(needed, len(found.values)) - 1]
    return bool(eps * np.trace(moments.hh) > EXACT * smallest**2)


def _sharpen(
    states: States, found: Scatter, mean: Float[Array, " d"], *, size: float, driven: bool
) -> tuple[Moments, Coordinates, Scatter]:
    """Moments in coordinates in which the states are nearly orthonormal, where a Gram is as exact as a QR factor.

    This is QR by Cholesky: one reading of the states gives coordinates good to σ/σ₁ ≈ 1e-7, the next one to 1e-14. A
    Householder QR of all pairs would do it in one reading, at some twenty times the cost of these products.
    """
    eps = np.finfo(np.float64).eps
    for reading in (1, 2):
        floor = np.sqrt(GRAM_NOISE) ** reading * found.values[0]
        width = np.maximum(found.values, floor)
        rows = MappedRows(states.values, found.vectors / width, mean)
        moments = Moments.of(States(values=rows, lengths=states.lengths, inputs=states.inputs), inputs=driven)
        at = Coordinates(back=width[:, None] * found.vectors.T, shift=np.zeros(len(width)))
        found = scatter(moments.numpy().hh, size=size, rounding=eps, map_back=at.back)
        if not found.resolved or eps * floor**2 < EXACT * found.values[found.resolved - 1] ** 2:
            break
    return moments.numpy(), at, found
