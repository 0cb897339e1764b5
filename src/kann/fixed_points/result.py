"""The fixed and slow points that a search found, and predictions of the network linearised about them."""

from dataclasses import dataclass

import numpy as np

from kann import _display
from kann.backends.arrays import as_numpy
from kann.checks import require_all_finite, require_float, require_real, require_whole_number, require_width
from kann.data.serialization import Saved
from kann.errors import KannError
from kann.typing import AnyArray, Array, Complex, Float, Int, Shaped


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FixedPoints(Saved):
    """Fixed and slow points of a network, fixed ones first, and among those the one that most initial states led to.

    There may be none: then ``candidate_speeds`` say how slow the states were that the searches ended at.

    Jacobians are as in the literature, J[i, j] = ∂F_i/∂h_j, so that for a column δ of differences F(h* + δ) ≈ h* + J δ.

    >>> import numpy as np, torch, kann
    >>> cell = torch.nn.RNNCell(1, 1)
    >>> for weight in cell.parameters():
    ...     _ = torch.nn.init.zeros_(weight)
    >>> _ = torch.nn.init.constant_(cell.weight_hh, 2.0)
    >>> found = kann.find_fixed_points(cell, torch.tensor([[-1.0], [0.01], [1.0]]))
    >>> np.sort(found.points[:, 0]).round(3) + 0.0
    array([-0.958,  0.   ,  0.958])
    """

    points: Float[Array, "k d"]
    """h*"""
    inputs: Float[Array, "k p"]
    """x*, the constant input under which h* is fixed; no columns for a step without inputs."""
    speeds: Float[Array, " k"]
    """q = ½|F(h*, x*) − h*|²."""
    kinds: Shaped[Array, " k"]
    """``"fixed"`` where the speed is within ``tolerance``, else ``"slow"``, where it is within ``slow_tolerance``."""
    jacobians: Float[Array, "k d d"]
    """∂F/∂h at (h*, x*): the recurrent Jacobian."""
    input_jacobians: Float[Array, "k d p"]
    """∂F/∂x at (h*, x*): the input Jacobian."""
    eigenvalues: Complex[Array, "k d"]
    """Eigenvalues of each recurrent Jacobian, by decreasing modulus; NaN at a point without a derivative."""
    stable: Shaped[Array, " k"]
    """True where every eigenvalue has modulus below 1 − 1e-6."""
    outlier: Shaped[Array, " k"]
    """True for points far outside the cloud of initial states, where the network may never be."""
    counts: Int[Array, " k"]
    """The number of initial states that led to the point or, if slow, past it; 0 for one found between others."""
    reached: Int[Array, " s"]
    """For each initial state the index of the point that it led to, −1 where the search did not converge."""
    candidate_speeds: Float[Array, " s"]
    """For each initial state the speed at which its search ended: what the tolerances cut. Infinite if it diverged."""
    tolerance: float
    """Speed up to which a point is fixed."""
    slow_tolerance: float
    """Speed up to which a point is kept."""
    adam_steps: int
    """Steps of Adam that were made."""
    newton_steps: int
    """Steps of damped Newton that were made."""
    precision: str
    """The precision in which the step was computed: ``"float64"``, or ``"float32"`` for a function that does not take
    float64 tensors. All else is float64 in any case, but then points are exact to some 1e-7 and speeds to some 1e-14.
    Pass the module itself, `kann.recording.step_of`, or a function over float64 weights for more."""

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        fixed = self.kinds == "fixed"
        found = f"{fixed.sum()} fixed, of which {(fixed & self.stable).sum()} stable, {(~fixed).sum()} slow"
        if not len(self):
            found = f"none within slow_tolerance={self.slow_tolerance:g}, smallest speed {self._least_speed()}"
        precision = "" if self.precision == "float64" else f"; computed in {self.precision}"
        return (
            f"FixedPoints({found}; "
            f"{self.outlier.sum()} outliers; {self.points.shape[1]} units; "
            f"{(self.reached >= 0).sum()} of {len(self.reached)} initial states converged{precision})"
        )

    def _least_speed(self) -> str:
        """Return the smallest speed at which a search ended, as text; "inf" where all of them diverged."""
        return f"{self.candidate_speeds.min():.3g}"

    def _require_points(self) -> None:
        """Raise if there are no points."""
        if not len(self):
            raise KannError(
                f"no search came to a speed ½|step(h, x) − h|² within slow_tolerance={self.slow_tolerance:g}, so that "
                f"there are no points; the smallest speed reached is {self._least_speed()}; pass more or other initial "
                "states, other inputs, or a slow_tolerance above that"
            )

    def _repr_html_(self) -> str:
        rows = [
            (i, self.kinds[i], bool(self.stable[i]), f"{self.speeds[i]:.1e}", f"{abs(self.eigenvalues[i, 0]):.4f}")
            for i in range(min(8, len(self)))
        ]
        return _display.table(repr(self), ("point", "kind", "stable", "speed", "largest |λ|"), rows)

    def speed_histogram(self) -> tuple[Int[Array, " b"], Int[Array, " b"]]:
        """Count the searches that ended at each order of magnitude of the speed: counts, and the decades ⌊log₁₀ q⌋.

        Decades in between without any search are listed with 0. Speeds of zero count as 1e-40, and the infinite ones
        of searches that diverged are left out.
        """
        speeds = self.candidate_speeds[np.isfinite(self.candidate_speeds)]
        decades = np.floor(np.log10(np.maximum(speeds, 1e-40))).astype(np.int64)
        if not len(decades):
            return np.zeros(0, dtype=np.int64), decades
        span = np.arange(decades.min(), decades.max() + 1)
        return np.bincount(decades - span[0], minlength=len(span)), span

    def nearest(self, h: AnyArray) -> Int[Array, "..."]:
        """Return the index of the point nearest to each state (..., d)."""
        h = self._states(h)
        require_all_finite(h, what="states", remedy="leave such states out")
        return self._nearest(h)

    def _nearest(self, h: Float[Array, "... d"]) -> Int[Array, "..."]:
        self._require_points()
        # |h − h*|² but for |h|², the same for all points
        return np.asarray(((self.points**2).sum(axis=1) - 2 * h @ self.points.T).argmin(axis=-1))

    def predict(
        self, h: AnyArray, *, inputs: AnyArray | None = None, at: int | AnyArray | None = None
    ) -> Float[Array, "... d"]:
        """Predict the states one step later by the linearised network: h* + J_rec (h − h*) + J_inp (x − x*).

        For x* = 0 this is the paper's equation for h^RENN.

        Parameters
        ----------
        h
            States (..., d).
        inputs
            The inputs of this step, (..., p); x* by default.
        at
            The point to linearise about: its index, or one index per state (...). By default the nearest.
        """
        h = self._states(h)
        place = self._places(at, h)
        x = self._inputs(inputs, h.shape[:-1])
        following = np.empty(h.shape)
        for i in np.unique(place):
            here = place == i
            following[here] = self.points[i] + (h[here] - self.points[i]) @ self.jacobians[i].T
            if x is not None:
                following[here] += (x[here] - self.inputs[i]) @ self.input_jacobians[i].T
        return following

    def rollout(
        self, h: AnyArray, steps: int, *, inputs: AnyArray | None = None, at: int | AnyArray | None = None
    ) -> Float[Array, "... t d"]:
        """Predict the next ``steps`` states, each from the one before.

        ``inputs`` are (..., steps, p). Without ``at`` the nearest point is looked up anew at each step; pass
        ``at=points.nearest(h)`` to keep the first.
        """
        steps = require_whole_number(steps, "steps", too_small="predicts nothing")
        h = self._states(h)
        x = self._inputs(inputs, (*h.shape[:-1], steps))
        inputs_of_steps = [None] * steps if x is None else np.moveaxis(x, -2, 0)
        following = []
        for x_now in inputs_of_steps:
            h = self.predict(h, inputs=x_now, at=at)
            following.append(h)
        return np.stack(following, axis=-2)

    def _states(self, h: AnyArray) -> Float[Array, "... d"]:
        """Return states as float64; raise if their width is wrong."""
        h = as_numpy(h)
        require_float(h, what="states")
        require_width(h, self.points.shape[1], what="states", of="the network")
        return h.astype(np.float64)

    def _inputs(self, inputs: AnyArray | None, leading: tuple[int, ...]) -> Float[Array, "... p"] | None:
        """Return inputs as float64; raise if their shape is wrong. None means x* of each point."""
        if inputs is None:
            return None
        x = as_numpy(inputs)
        require_real(x, what="inputs")
        require_width(x, self.inputs.shape[1], what="inputs", of="the network")
        if x.shape[:-1] != leading:
            raise KannError(
                f"inputs of shape {x.shape} do not go with states and steps of shape {leading}; "
                f"pass {(*leading, self.inputs.shape[1])}"
            )
        return x.astype(np.float64)

    def _places(self, at: int | AnyArray | None, h: Float[Array, "... d"]) -> Int[Array, "..."]:
        """Return the index of the point that each state is predicted from: the nearest, or ``at``."""
        if at is None:
            return self._nearest(h)
        self._require_points()
        place, leading = as_numpy(at), h.shape[:-1]
        if place.dtype.kind not in "iu" or not np.all((-len(self) <= place) & (place < len(self))):
            raise KannError(f"at={at} is no place among the {len(self)} points; pass whole numbers below {len(self)}")
        try:
            return np.broadcast_to(place % len(self), leading)
        except ValueError as error:
            raise KannError(f"at has shape {place.shape}; pass one place, or one per state {leading}") from error
