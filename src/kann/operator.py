"""The Koopman operator of a network: fitting it, and what a linear system does."""

import os
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kann import notebook
from kann.arrays import as_numpy, beside, namespace, require_float, require_width, where_it_is
from kann.basis import DATA_BASES, GRAM_NOISE, Basis, Scatter, choose, require_known, scatter
from kann.errors import KannError
from kann.files import load_npz, save_npz
from kann.moments import Moments, centre_in_place, in_basis, require_pairs, state_moments
from kann.regression import regress
from kann.rows import MappedRows
from kann.spectrum import DOUBTFUL, TRUSTED, Mode, decompose, modes, residuals
from kann.states import States, as_states
from kann.typing import AnyArray, Array, Complex, Float

KIND = "kann.Koopman"
VERSION = 1
EXACT = 1e-10
"""Relative error of C that is tolerated from the rounding of the Gram, ε·(σ₁/σᵣ)², before the states are read again."""

WIDE = 1024
"""From so many units on, a rank of at most a quarter of them is fitted in two readings: HᵀH alone, then pairs in the
basis. That is half the work of multiplying pairs of whole states, with two d × d matrices at a time instead of five."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Coordinates:
    """How the rows a of which there are moments relate to states: h − mean = (a − shift) @ back."""

    shift: Float[Array, " k"]
    """Zero unless a mean is to be taken off."""
    back: Float[Array, "k d"] | None = None
    """None where the rows are the states themselves."""


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

    def encode(self, h: AnyArray) -> Float[AnyArray, "... r"]:
        """Coordinates z = (h − mean) B of states (..., d).

        Here and below, the result is a numpy array, or a tensor on the GPU where the states are.
        """
        h = self._states(h)
        return (h - beside(self.mean, h)) @ beside(self.basis, h)

    def decode(self, z: AnyArray) -> Float[AnyArray, "... d"]:
        """States z Bᵀ + mean of coordinates (..., r)."""
        z = where_it_is(z)
        require_width(z, self.rank, what="coordinates", of="the operator's basis")
        return z @ beside(self.basis.T, z) + beside(self.mean, z)

    def predict(self, h: AnyArray, steps: int = 1, *, inputs: AnyArray | None = None) -> Float[AnyArray, "... d"]:
        """The states ``steps`` later: (h − mean) B Cˢ Bᵀ + mean, the paper's equation for H^KANN.

        A driven operator also takes what the network reads on the way, (..., steps, p), or (..., p) for one step.
        """
        return self._rolled(h, steps, inputs)[..., -1, :]

    def rollout(self, h: AnyArray, steps: int, *, inputs: AnyArray | None = None) -> Float[AnyArray, "... s d"]:
        """The next ``steps`` states one after the other, each predicted from the one before."""
        return self._rolled(h, steps, inputs)

    def simulate(self, inputs: AnyArray, initial: AnyArray | None = None) -> Float[AnyArray, "... t d"]:
        """Run the driven linear system over whole input sequences (..., T, p), in place of the network.

        Starts from the states ``initial`` (..., d), zero if not given. The result has one state per input, reached
        by reading it.
        """
        inputs = self._inputs(inputs, None)
        h = beside(np.zeros((*inputs.shape[:-2], self.dim)), inputs) if initial is None else initial
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

    def _states(self, h: AnyArray) -> Float[AnyArray, "... d"]:
        require_float(h if hasattr(h, "dtype") else as_numpy(h), what="states")
        h = where_it_is(h)
        require_width(h, self.dim, what="states", of="the operator")
        return h

    def _inputs(self, inputs: AnyArray | None, steps: int | None) -> Float[AnyArray, "... t p"]:
        if self.drive is None:
            raise KannError("this operator is autonomous and reads no inputs; fit with driven=True")
        if inputs is None:
            raise KannError("this operator is driven; pass inputs=, what the network reads at each step")
        given: Any = where_it_is(inputs)
        require_width(given, len(self.drive), what="inputs", of="the operator's drive")
        if given.ndim < 2 or (steps is not None and given.shape[-2] != steps):
            shape = tuple(given.shape)
            raise KannError(f"inputs of shape {shape} do not cover {steps or 'the'} steps; pass (..., steps, p)")
        return given

    def _rolled(self, h: AnyArray, steps: int, inputs: AnyArray | None) -> Float[AnyArray, "... s d"]:
        """All states from 1 to ``steps`` ahead."""
        if steps < 1:
            raise KannError(f"steps={steps} predicts nothing; pass steps>=1")
        z = self.encode(h)
        pushes = self._pushes(inputs, steps, z)
        matrix = beside(self.matrix, z)
        path = []
        for step in range(steps):
            z = z @ matrix
            if pushes is not None:
                z = z + pushes[..., step, :]
            path.append(z)
        return self.decode(namespace(z).stack(path, axis=-2))

    def _pushes(self, inputs: AnyArray | None, steps: int, z: AnyArray) -> AnyArray | None:
        """What the inputs add to the coordinates at each step, (..., steps, r); None if autonomous."""
        if self.drive is None and inputs is None:
            return None
        if inputs is not None and steps == 1 and where_it_is(inputs).ndim == z.ndim:
            inputs = where_it_is(inputs)[..., None, :]
        drive = self._inputs(inputs, steps)
        return drive @ beside(self.drive, drive) + beside(self.offset, drive)


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
        `States`, `Moments`, an array (S, T, d), a list of arrays (T_i, d), (N, d) rows of all sequences with their
        ``lengths``, or the path or address of a store. Arrays are numpy, torch or dask. On a GPU everything is computed
        there but the small eigenproblem. Dask arrays and stores at an address (``s3://…``) are read in chunks by Dask,
        on the current client or in this process.
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
    source = _source(data, lengths, driven=driven)
    if isinstance(source, States) and _is_wide(source, rank, basis):
        chosen, pairs, shift = _in_two_readings(source, rank=rank, basis=basis, driven=driven, exact=not ridge)
    else:
        chosen, pairs, shift = _from_pairs(source, rank=rank, basis=basis, driven=driven, exact=not ridge)
    step = regress(pairs, shift, driven=driven, ridge=ridge)
    near = source.sum_h if isinstance(source, Moments) else source.values[:0]
    spectrum = decompose(step.matrix, near=near)
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


def _source(data: States | Moments | AnyArray, lengths: Any, *, driven: bool) -> States | Moments:
    """What the user passed, as states that can be read more than once, or as moments."""
    if isinstance(data, States | Moments) and lengths is not None:
        raise KannError("lengths are for arrays; States and Moments know theirs")
    source = data if isinstance(data, Moments) else as_states(data, lengths)
    has_inputs = source.inputs is not None if isinstance(source, States) else source.input_dim
    if driven and not has_inputs:
        raise KannError("driven=True needs the inputs that drove the states; pass States with inputs")
    return source


def _whole(rank: Any) -> int | None:
    """A rank that is a number of directions, or None."""
    return int(rank) if isinstance(rank, int | np.integer) and not isinstance(rank, bool) and rank > 0 else None


def _is_wide(states: States, rank: Any, basis: str | AnyArray) -> bool:
    whole = _whole(rank)
    chosen_by_data = isinstance(basis, str) and basis in DATA_BASES
    return chosen_by_data and whole is not None and states.dim >= max(WIDE, 4 * whole)


def _in_two_readings(
    states: States, *, rank: Any, basis: str | AnyArray, driven: bool, exact: bool
) -> tuple[Basis, Moments, Float[Array, " r"]]:
    """The basis from HᵀH alone, then moments of the pairs in it: products of d × r, where others are of d × d."""
    found, mean, size, rounding = _scatter_of(states, rank, basis)
    if exact and _blurred(found, rank, size=size, rounding=rounding):
        return _from_pairs(states, rank=rank, basis=basis, driven=driven, exact=True)
    chosen = choose(basis, rank, found, mean)
    pairs = _mapped_moments(states, chosen.vectors, mean, driven=driven)
    pairs.rounding = rounding
    return chosen, pairs, np.zeros(len(chosen.explained))


def _scatter_of(states: States, rank: Any, basis: str | AnyArray) -> tuple[Scatter, Float[Array, " d"], float, float]:
    """Where the states lie, about which mean, how large and how coarse they are. What is d × d is gone afterwards."""
    energy = state_moments(states)
    require_pairs(energy)
    mean, size = _mean(energy, basis), _size(energy)
    gram = centre_in_place(energy.hh, energy.sum_h, energy.states) if mean.any() else energy.hh
    found = scatter(gram, size=size, rounding=energy.rounding, largest=_whole(rank))
    return found, mean, size, energy.rounding


def _from_pairs(
    source: States | Moments, *, rank: Any, basis: str | AnyArray, driven: bool, exact: bool
) -> tuple[Basis, Moments, Float[Array, " r"]]:
    """Basis and pairs from one set of moments. Where these are blurred and ``exact`` is True, states are read again.

    Returns the basis, moments of the pairs in coordinates along it, and what is to be taken off those.
    """
    moments = source if isinstance(source, Moments) else Moments.of(source, inputs=driven)
    require_pairs(moments)
    mean, size = _mean(moments, basis), _size(moments)
    gram = _gram(moments, mean)
    by_data = isinstance(basis, str) and basis in DATA_BASES
    found = scatter(gram, size=size, rounding=moments.rounding, largest=_whole(rank) if by_data else None)
    at = Coordinates(shift=mean)
    if isinstance(source, States) and exact and _blurred(found, rank, size=size, rounding=moments.rounding):
        if len(found.values) < len(mean):
            found = scatter(gram, size=size, rounding=moments.rounding)
        moments, at, found = _sharpen(source, found, mean, size=size, driven=driven)
    chosen = choose(basis, rank, found, mean)
    to_basis = chosen.vectors if at.back is None else at.back @ chosen.vectors
    return chosen, in_basis(moments, to_basis), at.shift @ to_basis


def _mean(moments: Moments, basis: str | AnyArray) -> Float[Array, " d"]:
    """What is taken off a state before it is projected."""
    is_pca = isinstance(basis, str) and basis == "pca"
    return as_numpy(moments.sum_h) / moments.states if is_pca else np.zeros(moments.dim)


def _size(moments: Moments) -> float:
    """|H|, the root of the sum of all squares."""
    return float(namespace(moments.hh).trace(moments.hh)) ** 0.5


def _gram(moments: Moments, mean: Float[Array, " d"]) -> AnyArray:
    """Products of all states, about their mean where one is taken off, where the moments are."""
    return centre_in_place(moments.hh + 0, moments.sum_h, moments.states) if mean.any() else moments.hh


def _mapped_moments(states: States, matrix: Float[Array, "d r"], mean: Float[Array, " d"], *, driven: bool) -> Moments:
    """Moments of the rows (h − mean) @ matrix, which are computed as the states are read."""
    rows = MappedRows(states.values, matrix, mean)
    return Moments.of(States(values=rows, lengths=states.lengths, inputs=states.inputs), inputs=driven).numpy()


def _blurred(found: Scatter, rank: Any, *, size: float, rounding: float) -> bool:
    """Whether float64 states have directions that their Gram cannot give to `EXACT`.

    States of lower precision never do: their own rounding changes C by ε₃₂·σ₁/σᵣ, which is above ε₆₄·(σ₁/σᵣ)² as far
    down as they resolve anything.
    """
    eps = np.finfo(np.float64).eps
    if rounding > eps:
        return False
    needed = int(rank) if isinstance(rank, int | np.integer) else len(found.values)
    smallest = found.values[min(needed, len(found.values)) - 1]
    return bool(eps * size**2 > EXACT * smallest**2)


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
        moments = _mapped_moments(states, found.vectors / width, mean, driven=driven)
        at = Coordinates(back=width[:, None] * found.vectors.T, shift=np.zeros(len(width)))
        found = scatter(moments.hh, size=size, rounding=eps, map_back=at.back)
        if not found.resolved or eps * floor**2 < EXACT * found.values[found.resolved - 1] ** 2:
            break
    return moments, at, found
