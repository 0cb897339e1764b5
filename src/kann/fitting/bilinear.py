"""An operator that its inputs gate: every input has its matrix."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from kann import _display
from kann.backends.arrays import as_numpy, namespace, to_device_of
from kann.checks import require_float, require_instance, require_real, require_width, short_repr
from kann.data.moments import SYMMETRIC_TO
from kann.data.reduction import take_rows
from kann.data.serialization import Saved, load_npz, made, require_finite_fields, without_axes
from kann.data.states import States, chosen_rows
from kann.errors import KannError
from kann.fitting.basis import ORTHONORMAL_TO, Operator, operand
from kann.fitting.features import KINDS, FeatureMap, pair_count, pair_index, pair_products
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import RidgeCurve
from kann.fitting.spectrum import decompose, residuals
from kann.typing import AnyArray, Array, Float, Int, Shaped


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bilinear(Operator, Saved):
    """An operator that its inputs gate: z[t+1] ≈ z[t] C + φ D + c + Σ φ_k z[t] E_k with features φ of u[t+1].

    While u is read it is one linear operator, ``koopman.at(u)``, with its eigenvalues and modes. Where the state was
    lifted, products z_i z_j add (z ⊗ z) Q.

    >>> import numpy as np, kann
    >>> rng = np.random.default_rng(0)
    >>> pulses = (rng.random((30, 50, 1)) < 0.2) * rng.choice([-1.0, 1.0], size=(30, 50, 1))
    >>> held = np.ones((30, 50, 1))
    >>> for t in range(1, 50):
    ...     held[:, t] = np.where(pulses[:, t] == 0, held[:, t - 1], pulses[:, t])
    >>> states = kann.States.from_padded(held, inputs=pulses)
    >>> koopman = kann.fit(states, driven="bilinear", features="squares")
    >>> koopman
    Bilinear(gated by 2 features of 1 inputs, 1 units, rank 1)
    >>> abs(koopman.at(None).eigenvalues).round(6)  # without input, the state is kept
    array([1.])
    >>> abs(koopman.at([1.0]).eigenvalues).round(6)  # a pulse clears it
    array([0.])
    """

    instead: ClassVar[str] = (
        "it has a matrix for each input; pass koopman.at(None), or koopman.at(u) for what it does while u is read"
    )
    """The remedy in errors of functions that need a single operator."""

    matrix: Float[Array, "r r"]
    """C: what is left where all features are zero."""
    drive: Float[Array, "k r"]
    """D: what features add."""
    gates: Float[Array, "k r r"]
    """E: how features change the matrix."""
    offset: Float[Array, " r"]
    """c"""
    squares: Float[Array, "s r"] | None
    """Q: what products z_i z_j, i ≤ j, add; None if the state was not lifted."""
    features: FeatureMap
    """φ"""
    feature_mean: Float[Array, " k"]
    """The mean of φ over the pairs that were fitted."""
    basis: Float[Array, "d r"]
    """B, in columns"""
    mean: Float[Array, " d"]
    """Subtracted from a state before it is projected."""
    explained: Float[Array, " r"]
    """Fraction of the states' energy Σ|h − mean|² that each coordinate explains, beyond those before it."""
    bounds: Float[Array, "2 r"]
    """The smallest and largest coordinates that were recorded, which bound every predicted state."""
    residual_gram: Float[Array, "r r"]
    """EᵀE of what one step misses on the pairs that were fitted."""
    state_gram: Float[Array, "r r"]
    """XᵀX of the coordinates of these pairs about their mean."""
    ridge: float
    """The ridge that it was fitted with, per pair and in units of the columns' variance."""
    ridge_curve: RidgeCurve | None = None
    """The held-out errors of the ridges that were tried, unless one was passed."""
    decoder: Float[Array, "r d"] | None = None
    """The regression of the state on the coordinates, if the basis is a `Balance` or an array; None if it is Bᵀ."""

    def at(self, u: Any = None, *, around: AnyArray | None = None, states: States | None = None) -> Koopman:
        """Return the operator while ``u`` (p,) is read, z C + φ(u) D + c + Σ φ_k(u) z E_k, with its own modes.

        None is an input of zeros: what the network does by itself. ``"mean"`` is the mean over all that was read. A
        lifted operator is linearised about the state ``around``, by default where its coordinates are zero: at the mean
        of the states, or at zero for a basis that does not take the mean off.

        Residuals are those of this operator on the pairs of ``states`` that read ``u``. Without ``states`` they are
        those of the bilinear step on all pairs that were fitted; for a lifted operator, of which products are then left
        out, they are infinite, since they are not known.
        """
        phi = self._features_at(u)
        if around is not None:
            around = as_numpy(self.encode(around))
        matrix = self.matrix + np.tensordot(phi, self.gates, axes=1)
        offset = self.offset + phi @ self.drive
        if self.squares is not None and around is not None:
            matrix, offset = self._linearised(matrix, offset, around)
        spectrum = decompose(matrix)
        residual_gram, state_gram = self.residual_gram, self.state_gram
        if states is not None:
            require_instance(states, States, "states")
            residual_gram, state_gram = self._grams_where_read(u, states, matrix, offset)
        noise = np.finfo(float).eps * np.diag(state_gram)
        is_unknown = self.squares is not None and states is None
        found = residuals(spectrum.right, residual_gram, state_gram, noise)
        return Koopman(
            matrix=matrix,
            basis=self.basis,
            mean=self.mean,
            explained=self.explained,
            eigenvalues=spectrum.eigenvalues,
            right=spectrum.right,
            left=spectrum.left,
            residuals=np.full(self.rank, np.inf) if is_unknown else found,
            condition=spectrum.condition,
            offset=offset,
            decoder=self.decoder,
        )

    def matrices(self, inputs: AnyArray) -> Float[AnyArray, "n r r"]:
        """Return the matrix C + Σ φ_k(u) E_k of each of many inputs (n, p): z becomes z @ matrix + push."""
        phi = self._features(inputs)
        gates = to_device_of(phi, self.gates.reshape(len(self.gates), -1))
        return (phi @ gates).reshape(len(phi), self.rank, self.rank) + to_device_of(phi, self.matrix)

    def pushes(self, inputs: AnyArray) -> Float[AnyArray, "n r"]:
        """Return the push φ(u) D + c of each of many inputs (n, p): it is added to the coordinates."""
        phi = self._features(inputs)
        return phi @ to_device_of(phi, self.drive) + to_device_of(phi, self.offset)

    @property
    def input_dim(self) -> int:
        """The number of inputs p."""
        return self.features.inputs

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, features: Any = None) -> "Bilinear":
        """Read what `save` wrote; raise if the file is damaged, edited, of another kind, or of a later release.

        ``features`` is the function of the inputs that the operator was fitted with, if it was one.
        """
        loaded = load_npz(path, Bilinear)
        if loaded.features.kind != "function":
            if features is not None:
                raise KannError(f"{path} knows its features; leave features= out")
            return loaded
        if not isinstance(features, Callable):
            raise KannError(
                f"{path} was fitted with features that are a function, which no file can hold; pass it: "
                "kann.Bilinear.load(path, features=...)"
            )
        return replace(loaded, features=replace(loaded.features, function=features))

    @classmethod
    def _from_version_1(cls, arrays: dict[str, Array], path: str | os.PathLike[str]) -> dict[str, Any]:
        kind, width = KINDS[int(arrays.pop("kind"))], int(arrays.pop("inputs"))
        own = {name: arrays.pop(f"feature_{name}", None) for name in ("centre", "matrix", "phase")}
        features = {"kind": kind, "inputs": width, "count": len(arrays["drive"]), "function": None, **own}
        content: dict[str, Any] = {"squares": None, "features": made(FeatureMap, features), **without_axes(arrays)}
        if "ridges" in content:
            content["ridge_curve"] = RidgeCurve(ridges=content.pop("ridges"), errors=content.pop("ridge_errors"))
        return content

    def _check(self) -> None:
        require_finite_fields(self)
        basis, rank, bounds = self.basis, len(self.matrix), self.bounds
        if self.decoder is None and np.abs(basis.T @ basis - np.eye(rank)).max() > rank * ORTHONORMAL_TO:
            raise ValueError("its basis is not orthonormal")
        if self.squares is not None and len(self.squares) != pair_count(rank):
            raise ValueError(f"'squares' has {len(self.squares)} rows for {pair_count(rank)} products of coordinates")
        if (bounds[0] > bounds[1]).any():
            raise ValueError("'bounds' are no smallest and largest coordinates")
        for name in ("residual_gram", "state_gram"):
            gram = getattr(self, name)
            noise = SYMMETRIC_TO * np.abs(gram).max()
            if np.abs(gram - gram.T).max() > noise or gram.diagonal().min() < -noise:
                raise ValueError(f"{name!r} is no Gram matrix: it is not symmetric, or has negative squares")
        curve = self.ridge_curve
        sizes = {"explained": self.explained, "ridge": self.ridge}
        if curve is not None:
            sizes |= {"ridges": curve.ridges, "ridge_errors": curve.errors}
        for name, value in sizes.items():
            if not np.min(value) >= 0:  # NaN included
                raise ValueError(f"{name!r} holds negative numbers")
        features = self.features
        if features.inputs < 1 or features.count != len(self.drive) or isinstance(features.function, str):
            raise ValueError(
                f"its features are {features.count} of {features.inputs} inputs, with a function "
                f"{features.function!r:.20} (a file holds none), and its drive has {len(self.drive)} rows"
            )

    def __repr__(self) -> str:
        lift = "" if self.squares is None else ", squares"
        return (
            f"Bilinear(gated by {self.features.count} features of {self.features.inputs} inputs{lift}, "
            f"{self.dim} units, rank {self.rank})"
        )

    def _repr_html_(self) -> str:
        phi, name = self.feature_mean, "the mean over all that was read"
        eigenvalues = np.linalg.eigvals(self.matrix + np.tensordot(phi, self.gates, axes=1))
        moduli = np.sort(np.abs(eigenvalues))[::-1][:8]
        rows = [[i, f"{modulus:.4g}"] for i, modulus in enumerate(moduli)]
        return _display.table(repr(self), ("mode", f"|λ| at {name}"), rows)

    def _path(self, z: AnyArray, steps: int, inputs: AnyArray | None) -> list[AnyArray]:
        self.features.require_known(inputs)
        # In float64 first: numpy inputs then move to where the coordinates are.
        read: Any = namespace(inputs).astype(inputs, namespace(inputs).float64)
        read = to_device_of(z, read) if isinstance(read, np.ndarray) else read
        weights = {name: to_device_of(z, weight) for name, weight in self.step_weights.items()}
        path, xp = [], namespace(z)
        for t in range(steps):
            after = self._step(z, self.features.of(read[..., t, :]), weights)
            z = xp.minimum(xp.maximum(after, weights["low"]), weights["high"])
            path.append(z)
        return path

    @property
    def step_weights(self) -> dict[str, Array]:
        """The weights of one step by name: those of φ ⊗ z as one matrix, ``squares`` if the state was lifted."""
        weights = {"matrix": self.matrix, "drive": self.drive, "offset": self.offset}
        weights |= {"gates": self.gates.reshape(-1, self.rank), "low": self.bounds[0], "high": self.bounds[1]}
        return weights if self.squares is None else weights | {"squares": self.squares}

    def _step(self, z: AnyArray, phi: AnyArray, weights: dict[str, AnyArray]) -> AnyArray:
        """Return the next coordinates of z (..., r), while features (..., k) are read."""
        gated = phi[..., :, None] * z[..., None, :]
        gated = gated.reshape(*gated.shape[:-2], len(weights["gates"]))
        after = z @ weights["matrix"] + phi @ weights["drive"] + weights["offset"] + gated @ weights["gates"]
        return after if self.squares is None else after + self._products(z) @ weights["squares"]

    def _products(self, z: AnyArray) -> AnyArray:
        """Return the products z_i z_j, i ≤ j, of coordinates (..., r)."""
        products = pair_products(z.reshape(-1, self.rank).T).T
        return products.reshape(*z.shape[:-1], -1)

    def _linearised(self, matrix: Array, offset: Array, z: Array) -> tuple[Array, Array]:
        """Return matrix and offset that agree with the lifted step and its derivative at coordinates z (r,)."""
        require_width(z, self.rank, what="the state around which to linearise", of="the operator")
        if z.ndim != 1 or self.squares is None:
            raise KannError(f"around={short_repr(z)} is no single state; pass one of shape ({self.dim},)")
        # Products of different coordinates are listed once, squares too: their slope is twice the coordinate.
        both, places = self.squares[pair_index(self.rank)], np.arange(self.rank)
        bent = np.tensordot(z, both, axes=1) + z[:, None] * both[places, places]
        return matrix + bent, offset + self._products(z) @ self.squares - z @ bent

    def _features_at(self, u: Any) -> Float[Array, " k"]:
        """Compute φ of a single input, of none, or the mean one."""
        if u is None:
            return self.features.of_nothing()
        if isinstance(u, str):
            if u != "mean":
                raise KannError(f"u={short_repr(u)} is no input; pass numbers, None for zeros, or 'mean'")
            return self.feature_mean
        given = as_numpy(u)
        if given.shape != (self.features.inputs,):
            raise KannError(f"u has shape {given.shape}; pass one input of shape ({self.features.inputs},)")
        return self._features(given[None])[0]

    def _features(self, inputs: AnyArray) -> Float[AnyArray, "n k"]:
        """Compute φ of inputs (n, p)."""
        given: Any = operand(inputs, require_real, what="inputs")
        require_width(given, self.features.inputs, what="inputs", of="the operator")
        if given.ndim != 2:
            raise KannError(f"inputs have shape {tuple(given.shape)}; pass one row for each input, (n, inputs)")
        self.features.require_known(given)
        return self.features.of(namespace(given).astype(given, namespace(given).float64))

    def _grams_where_read(self, u: Any, states: States, matrix: Array, offset: Array) -> tuple[Array, Array]:
        """Compute Gram matrices of the residuals, and of the coordinates about their mean, where ``u`` was read."""
        if isinstance(u, str):
            raise KannError("the mean of all inputs is read at no step; leave states= out, or pass an input")
        after = _rows_that_read(states, np.zeros(self.features.inputs) if u is None else as_numpy(u).astype(np.float64))
        x, y = (as_numpy(self.encode(take_rows(states.values, rows))) for rows in (after - 1, after))
        missed, about = y - x @ matrix - offset, x - x.mean(axis=0)
        return missed.T @ missed, about.T @ about


SAME_TO = 1e-6
"""Largest difference between an input and the one that is looked for, which may have been recorded in float32."""


def _rows_that_read(states: States, u: Array) -> Int[Array, " m"]:
    """Find the states that were reached by reading ``u`` in a step from another state."""
    if states.inputs is None:
        raise KannError("these states have no inputs, so that where u was read is not known; record with inputs=True")
    require_float(states.values, what="states")

    def is_equal(inputs: AnyArray) -> Shaped[Array, " n"]:
        given = as_numpy(inputs)
        if given.shape[1] != len(u):
            raise KannError(f"u has {len(u)} numbers and the states have {given.shape[1]} inputs; pass one of these")
        return np.all(np.abs(given - u) <= SAME_TO * (1 + np.abs(u)), axis=1)

    mask = chosen_rows(states, is_equal)
    mask[states.starts] = False
    if not mask.any():
        raise KannError("u was read at no step of these states; pass states that hold it, or leave states= out")
    return np.flatnonzero(mask)
