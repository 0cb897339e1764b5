"""One affine map for each step, beside one operator for all steps."""

from dataclasses import dataclass

import numpy as np

from kann import notebook
from kann.backends.arrays import to_device_of
from kann.checks import require_float, require_width
from kann.fitting.in_basis import operand
from kann.fitting.koopman import Koopman
from kann.typing import AnyArray, Array, Complex, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AffineMap:
    """A map from the states at one step to those at a later one: h ↦ h A + b.

    >>> double = AffineMap(matrix=2 * np.eye(2), offset=np.ones(2), ridge=0.0, first=0, last=0)
    >>> double.predict(np.array([[1.0, 3.0]]))
    array([[3., 7.]])
    """

    matrix: Float[Array, "d d"]
    """A"""
    offset: Float[Array, " d"]
    """b"""
    ridge: float
    """The ridge that it was fitted with, for each pair of states, in units of the variance of each unit."""
    first: int
    """The first step that it stands for, counted from 0: it takes the states before that step, h[first]."""
    last: int
    """The last step that it stands for: it gives the states after that step, h[last + 1]."""

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return len(self.offset)

    @property
    def eigenvalues(self) -> Complex[Array, " d"]:
        """The eigenvalues of A by decreasing modulus: what the map does to deviations from its fixed point."""
        values = np.linalg.eigvals(self.matrix).astype(complex)
        return values[np.argsort(-np.abs(values), kind="stable")]

    def predict(self, h: AnyArray) -> Float[AnyArray, "... d"]:
        """The later states of states (..., d); a numpy array, or a tensor on the GPU where the states are."""
        h = operand(h, require_float, what="states")
        require_width(h, self.dim, what="states", of="the map")
        return h @ to_device_of(h, self.matrix) + to_device_of(h, self.offset)

    def __repr__(self) -> str:
        steps = f"step {self.first}"
        if self.last > self.first:
            steps = f"steps {self.first} to {self.last}"
        return f"AffineMap({steps}, {self.dim} units, ridge {self.ridge:.0e})"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepMaps:
    """One affine map for each step, beside one operator for all steps.

    Along depth a step is a layer, and the operator that fits best changes from layer to layer. Ask `kann.trust` how far
    each map is right on sequences that were not fitted.

    >>> import kann
    >>> states = np.random.default_rng(0).normal(size=(40, 1, 2)) * 2.0 ** np.arange(4)[:, None]
    >>> maps = kann.fit(states, each_step=True)
    >>> len(maps), maps.each[0].matrix.round(6).diagonal().tolist()
    (3, [2.0, 2.0])
    """

    each: tuple[AffineMap, ...]
    """The map of each step: ``each[t]`` takes h[t] to h[t + 1]."""
    one: Koopman
    """The operator for all steps."""

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return self.one.dim

    def __len__(self) -> int:
        return len(self.each)

    def __repr__(self) -> str:
        ridges = sorted({own.ridge for own in self.each})
        return (
            f"StepMaps({len(self)} steps, {self.dim} units, ridges {ridges[0]:.0e} to {ridges[-1]:.0e}; {self.one!r})"
        )

    def _repr_html_(self) -> str:
        rows = []
        for own in self.each:
            change = np.linalg.norm(own.matrix - np.eye(self.dim)) / np.sqrt(self.dim)
            rows.append([own.first, f"{own.ridge:.0e}", f"{change:.3g}"])
        return notebook.table(repr(self), ("step", "ridge", "|A − I| / √d"), rows)
