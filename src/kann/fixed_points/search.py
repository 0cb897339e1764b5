"""Fixed and slow points of a recurrent network, and the network linearised about them.

This is the baseline (RENN) that the paper compares with. Its definition of the speed of a state h under a constant
input x is that of the literature, q(h) = ½|F(h, x) − h|², for a network that goes from h to F(h, x) in one step. A
fixed point has speed zero; where q is small but not zero the network is slow, as along a line attractor.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kann import notebook
from kann.backends.arrays import as_array, as_numpy, require_float, require_width
from kann.errors import KannError
from kann.progress import progress
from kann.typing import AnyArray, Array, Complex, Float, Int, Shaped

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.utils import parametrize
    from torch.overrides import TorchFunctionMode
except ImportError as error:
    raise ImportError("fixed points need torch: pip install 'kann[torch]'") from error

Step = Callable[[Tensor, Tensor], Tensor]
"""From states (n, d) and inputs (n, p) to the next states (n, d), each row by itself."""

STABLE_MARGIN = 1e-6
"""A point is stable if every eigenvalue of its Jacobian has modulus below 1 by this much. Along an exact line attractor
one eigenvalue is 1 up to rounding, and rounding must not decide; what decays by a millionth a step is as good as
neutral."""

ROUNDING = 1e-28
"""A speed of this much relative to |h|² is rounding: (50 ε)², since F sums over some hundreds of units."""

JACOBIAN_BYTES = 64 * 2**20
"""Size of the Jacobians that are held at a time."""

MAX_PAIRS = 1000
"""How many pairs of stable points are searched between, the nearest first."""

DAMPING = (0.1, 5.0)
"""By how much Levenberg–Marquardt's damping changes after a step that gains, and after one that does not."""

BEYOND = 1.1
"""A search that starts beyond the border may go so many times as far out as it starts."""

PATIENCE = 6
"""After so many steps in a row, none of which lowers the speed by 1 %, Newton gives a state up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to search, and what counts as the same point."""

    dtype: Literal["float32", "float64"] = "float64"
    """Precision of Adam. All else is float64 in any case."""
    follow_steps: int = 50
    """Steps of the network itself, from each initial state, to further states from which Newton starts."""
    newton_steps: int = 100
    """Steps of damped Newton, at most; 0 leaves it out, and Adam is all."""
    adam_steps: int = 300
    """Steps of Adam, at most. Where there is Newton, Adam is for the initial states that lead nowhere without it, and
    Newton is tried again from where it ends."""
    learning_rate: float = 0.1
    """Adam's rate at the start."""
    schedule: Literal["linear", "plateau", "constant"] = "linear"
    """How the rate falls: to zero in a straight line, by 5 % after 5 steps without gain, or not at all."""
    average: bool = False
    """Minimise the mean of the speeds, not their sum; with Adam it only matters beside its epsilon."""
    stop: Literal["each", "change", "mean"] = "each"
    """Stop Adam when each speed is within the tolerance, or else has stopped changing, or when their mean is."""
    relative: bool = True
    """Rates and distances are in units of the spread of the initial states in one hidden unit, not absolute."""
    distinct: float = 1e-3
    """Fixed points that differ by no more than this in any hidden unit are one point."""
    apart: float = 0.05
    """The same for slow points. A slow manifold is a continuum: this is how finely it is sampled."""
    outlier: float = 3.0
    """Points farther from the centre of the initial states than this many times their mean distance are outliers.
    Newton goes out there only from states that are there already."""
    slow_tolerance: float = 1e-6
    """Speed up to which a point is kept as slow, unless the caller says otherwise."""


RECIPES = {
    "kann": Recipe(),
    # FixedPointFinder (Golub & Sussillo 2018), defaults of FixedPointFinderTorch: lr_init=1.0, lr_patience=5,
    # lr_factor=0.95 for torch's Adam and ReduceLROnPlateau; of FixedPointFinderBase: dtype float32, max_iters=5000,
    # method "joint" (the mean of all speeds), tol_q=1e-12 (here the caller's tolerance), tol_dq=1e-20,
    # tol_unique=1e-3 along any dimension, outlier_distance_scale=10. It has no filter on the speed: every candidate
    # comes back. It drops outliers, which here are marked like all others.
    "fpf": Recipe(
        dtype="float32",
        follow_steps=0,
        newton_steps=0,
        adam_steps=5000,
        learning_rate=1.0,
        schedule="plateau",
        average=True,
        stop="change",
        relative=False,
        distinct=1e-3,
        apart=1e-3,
        outlier=10.0,
        slow_tolerance=math.inf,
    ),
    # The published code of "Reverse engineering neural networks" (Maheswaranathan et al. 2019): find_fixed_points
    # has steps=range(1000) and stops when the mean speed is within the tolerance; its sentiment notebook passes
    # adam(0.01). float32 is jax's default. Points are neither merged nor left out (exclude_outliers: threshold=inf).
    "renn": Recipe(
        dtype="float32",
        follow_steps=0,
        newton_steps=0,
        adam_steps=1000,
        learning_rate=0.01,
        schedule="constant",
        average=True,
        stop="mean",
        relative=False,
        distinct=0.0,
        apart=0.0,
        outlier=math.inf,
        slow_tolerance=math.inf,
    ),
}
"""Recipes by name."""

CELLS: dict[type[nn.RNNBase], type[nn.RNNCellBase]] = {nn.RNN: nn.RNNCell, nn.GRU: nn.GRUCell, nn.LSTM: nn.LSTMCell}
"""The cell of each of torch's recurrent layers."""

TOL_DQ = 1e-20
"""FixedPointFinder's tol_dq: a speed that changes by less than this times the learning rate has stopped changing."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FixedPoints:
    """Fixed and slow points of a network, fixed ones first, and among those the one that most initial states led to.

    Jacobians are as in the literature, J[i, j] = ∂F_i/∂h_j, so that for a column δ of differences F(h* + δ) ≈ h* + J δ.
    """

    points: Float[Array, "k d"]
    """h*"""
    inputs: Float[Array, "k p"]
    """x*, the constant input under which h* is fixed; no columns for a step without inputs."""
    speeds: Float[Array, " k"]
    """q = ½|F(h*, x*) − h*|², in float64."""
    kinds: Shaped[Array, " k"]
    """``"fixed"`` where the speed is within ``tolerance``, else ``"slow"``, where it is within ``slow_tolerance``."""
    jacobians: Float[Array, "k d d"]
    """∂F/∂h at (h*, x*): the recurrent Jacobian."""
    input_jacobians: Float[Array, "k d p"]
    """∂F/∂x at (h*, x*): the input Jacobian."""
    eigenvalues: Complex[Array, "k d"]
    """Eigenvalues of each recurrent Jacobian, by decreasing modulus; NaN at a point without a derivative."""
    stable: Shaped[Array, " k"]
    """Whether every eigenvalue has modulus below 1 − 1e-6."""
    outlier: Shaped[Array, " k"]
    """Whether the point lies far outside the cloud of initial states, where the network may never be."""
    counts: Int[Array, " k"]
    """How many initial states led to the point or, for a slow one, past it; 0 for one found between others."""
    reached: Int[Array, " s"]
    """For each initial state the place of the point that it led to, −1 where the search did not converge."""
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

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        fixed = self.kinds == "fixed"
        return (
            f"FixedPoints({fixed.sum()} fixed, of which {(fixed & self.stable).sum()} stable, {(~fixed).sum()} slow; "
            f"{self.outlier.sum()} outliers; {self.points.shape[1]} units; "
            f"{(self.reached >= 0).sum()} of {len(self.reached)} initial states converged)"
        )

    def _repr_html_(self) -> str:
        rows = [
            (i, self.kinds[i], bool(self.stable[i]), f"{self.speeds[i]:.1e}", f"{abs(self.eigenvalues[i, 0]):.4f}")
            for i in range(min(8, len(self)))
        ]
        return notebook.table(repr(self), ("point", "kind", "stable", "speed", "largest |λ|"), rows)

    def speed_histogram(self) -> tuple[Int[Array, " b"], Int[Array, " b"]]:
        """How many candidates ended at each order of magnitude: counts, and the decades ⌊log₁₀ q⌋ they are of.

        Decades in between without any candidate are listed with 0. Speeds of zero count as 1e-40, the infinite ones
        of diverged candidates are left out.
        """
        speeds = self.candidate_speeds[np.isfinite(self.candidate_speeds)]
        decades = np.floor(np.log10(np.maximum(speeds, 1e-40))).astype(np.int64)
        if not len(decades):
            return np.zeros(0, dtype=np.int64), decades
        span = np.arange(decades.min(), decades.max() + 1)
        return np.bincount(decades - span[0], minlength=len(span)), span

    def nearest(self, h: AnyArray) -> Int[Array, "..."]:
        """Place of the point nearest to each state (..., d)."""
        h = self._states(h)
        squares = (self.points**2).sum(axis=1) - 2 * h @ self.points.T  # |h − h*|² without |h|², which all share
        return np.asarray(squares.argmin(axis=-1))

    def predict(
        self, h: AnyArray, *, inputs: AnyArray | None = None, at: int | AnyArray | None = None
    ) -> Float[Array, "... d"]:
        """The states one step later by the linearised network: h* + J_rec (h − h*) + J_inp (x − x*).

        For x* = 0 this is the paper's equation for h^RENN.

        Parameters
        ----------
        h
            States (..., d).
        inputs
            What the network reads in this step, (..., p); x* if not given.
        at
            Which point to linearise about: its place, or one place per state (...). By default the nearest.
        """
        h = self._states(h)
        place = self.nearest(h) if at is None else self._places(at, h.shape[:-1])
        x = None if inputs is None else self._inputs(inputs, h.shape[:-1])
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
        """The next ``steps`` states one after the other, each predicted from the one before.

        ``inputs`` are (..., steps, p). Without ``at`` the nearest point is looked up anew at each step; pass
        ``at=points.nearest(h)`` to keep the first.
        """
        if steps < 1:
            raise KannError(f"steps={steps} predicts nothing; pass steps>=1")
        h, path = self._states(h), []
        x = None if inputs is None else self._inputs(inputs, (*h.shape[:-1], steps))
        for t in range(steps):
            h = self.predict(h, inputs=None if x is None else x[..., t, :], at=at)
            path.append(h)
        return np.stack(path, axis=-2)

    def _states(self, h: AnyArray) -> Float[Array, "... d"]:
        h = as_numpy(h)
        require_float(h, what="states")
        require_width(h, self.points.shape[1], what="states", of="the network")
        return h.astype(np.float64)

    def _inputs(self, inputs: AnyArray, leading: tuple[int, ...]) -> Float[Array, "... p"]:
        x = as_numpy(inputs)
        require_width(x, self.inputs.shape[1], what="inputs", of="the network")
        if x.shape[:-1] != leading:
            raise KannError(
                f"inputs of shape {x.shape} do not go with states and steps of shape {leading}; "
                f"pass {(*leading, self.inputs.shape[1])}"
            )
        return x.astype(np.float64)

    def _places(self, at: int | AnyArray, leading: tuple[int, ...]) -> Int[Array, "..."]:
        place = as_numpy(at)
        if place.dtype.kind not in "iu" or not np.all((-len(self) <= place) & (place < len(self))):
            raise KannError(f"at={at} is no place among the {len(self)} points; pass whole numbers below {len(self)}")
        try:
            return np.broadcast_to(place % len(self), leading)
        except ValueError as error:
            raise KannError(f"at has shape {place.shape}; pass one place, or one per state {leading}") from error


def find_fixed_points(
    step: Any,
    initial: AnyArray,
    *,
    inputs: AnyArray | None = None,
    tolerance: float = 1e-10,
    slow_tolerance: float | None = None,
    preset: str | Recipe = "kann",
) -> FixedPoints:
    """Find the fixed and slow points of a network under constant input, starting from many states.

    >>> W = torch.diag(torch.tensor([2.0, 0.5], dtype=torch.float64))
    >>> points = find_fixed_points(lambda h, x: torch.tanh(h @ W), np.random.default_rng(0).normal(size=(50, 2)))
    >>> points.points[points.stable, 0].round(3)  # the solutions of h = tanh(2h) but zero, which is unstable
    array([-0.958,  0.958])

    All in float64, damped Newton (Levenberg–Marquardt) on the speed q = ½|step(h, x) − h|² starts from each initial
    state and from where the network itself goes from there, and converges to stable and unstable fixed points alike.
    Where both end in a local minimum of q instead, it starts again from where Adam leads. It also starts halfway
    between each two stable points, since that is where to look for the saddle that parts them. A slow state that a
    search comes by, and from which it leaps far to a fixed point, is kept too: slow manifolds are shown, not skipped.

    Parameters
    ----------
    step
        ``step(h, x)`` goes from states (n, d) and inputs (n, p), torch tensors, to the next states (n, d), by
        differentiable operations and each row by itself. A module is copied to float64 and to evaluation mode, and is
        itself left alone. A function is called with float64 tensors; the float32 tensors that it holds are read as
        float64. `kann.step_of` makes a step of any recurrent layer in a model. torch's own cells and one-layer
        ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` may also be passed as they are, although they take (x, h). The state of
        an LSTM is h and c side by side, (n, 2·hidden).
    initial
        States (n, d) to start from, numpy or torch: states that the network visits, since what is found depends on
        them. `kann.record` gives them.
    inputs
        The constant input (p,), or one for each initial state (n, p). Without it a step whose input width is known,
        such as torch's cells and layers, gets zeros, and any other gets None.
    tolerance
        Speed up to which a point is called fixed. The search itself goes on as long as it gains.
    slow_tolerance
        Speed up to which a point is kept and called slow; 1e-6 if not given, unlimited for the published recipes. With
        ``math.inf`` the end of every search comes back, local minima of the speed among them.
    preset
        ``"kann"``; ``"fpf"`` or ``"renn"``, which follow the published recipes of FixedPointFinder and of "Reverse
        engineering neural networks" for comparison; or a `Recipe`.
    """
    recipe = _recipe(preset)
    limit = recipe.slow_tolerance if slow_tolerance is None else slow_tolerance
    if not 0 < tolerance <= limit:
        raise KannError(f"tolerance={tolerance}, slow_tolerance={limit}; pass 0 < tolerance <= slow_tolerance")
    # A caller may have switched gradients off; the last context computes the weights of parametrised modules once.
    with torch.inference_mode(False), torch.enable_grad(), parametrize.cached():
        h, x = _start(step, initial, inputs)
        advance = _prepare(step, h, x, blind=inputs is None)
        search = _Search(
            advance=advance,
            coarse=_prepare(step, h.float(), x.float(), blind=inputs is None) if recipe.dtype == "float32" else advance,
            recipe=recipe,
            tolerance=tolerance,
            limit=limit,
            centre=h.mean(0),
            spread=_spread(h),
            border=recipe.outlier * _spread(h) if (h != h[0]).any() else math.inf,
        )
        return _describe(search, _explore(search, h, x), initial=len(h))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Search:
    """What one search is about."""

    advance: Step
    """The network in float64."""
    coarse: Step
    """The network in the precision of Adam."""
    recipe: Recipe
    tolerance: float
    limit: float
    """Speed up to which a point is kept."""
    centre: Float[Tensor, " d"]
    """Mean of the initial states."""
    spread: float
    """Mean distance of the initial states from their centre, or, where they are all the same, a length to go by."""
    border: float
    """Distance from the centre beyond which points are outliers: infinite where all initial states are the same."""

    @property
    def unit(self) -> float:
        """What rates and distances in one hidden unit are multiples of."""
        return self.spread / math.sqrt(len(self.centre)) if self.recipe.relative else 1.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Paths:
    """Where searches went: those from the initial states first, then any others."""

    x: Float[Tensor, "m p"]
    """The input of each."""
    final: Float[Tensor, "m d"]
    """Where each ended."""
    passed: Float[Tensor, "m d"]
    """The first slow state that each came by; where there is none, its end."""
    adam_steps: int = 0
    newton_steps: int = 0

    def rows(self, places: Int[Tensor, " r"]) -> "_Paths":
        """Some of them."""
        return dataclasses.replace(self, x=self.x[places], final=self.final[places], passed=self.passed[places])

    def __add__(self, other: "_Paths") -> "_Paths":
        return _Paths(
            x=torch.cat([self.x, other.x]),
            final=torch.cat([self.final, other.final]),
            passed=torch.cat([self.passed, other.passed]),
            adam_steps=max(self.adam_steps, other.adam_steps),
            newton_steps=max(self.newton_steps, other.newton_steps),
        )


def _recipe(preset: str | Recipe) -> Recipe:
    if isinstance(preset, Recipe):
        return preset
    if preset not in RECIPES:
        raise KannError(f"preset={preset!r} is unknown; pass one of {', '.join(map(repr, RECIPES))}, or a Recipe")
    return RECIPES[preset]


def _start(step: Any, initial: AnyArray, inputs: AnyArray | None) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n p"]]:
    """Initial states and their inputs as float64 tensors where the network is."""
    sizes = _sizes(step)
    states = as_array(initial)
    if states.ndim != 2 or 0 in states.shape:
        raise KannError(f"initial states have shape {tuple(states.shape)}; pass (n, d) with n, d >= 1")
    if sizes is not None:
        require_width(states, sizes[0], what="initial states", of=f"the state of {type(step).__name__}")
    h = _tensor(states, step, like=initial, what="initial states")
    if inputs is None:
        return h, h.new_zeros(len(h), 0 if sizes is None else sizes[1])
    rows = as_array(inputs)
    if rows.ndim not in (1, 2) or 0 in rows.shape or (rows.ndim == 2 and len(rows) not in (1, len(h))):
        raise KannError(
            f"inputs have shape {tuple(rows.shape)}; pass one constant input (p,), or one for each of the {len(h)} "
            f"initial states ({len(h)}, p)"
        )
    if sizes is not None:
        require_width(rows, sizes[1], what="inputs", of=type(step).__name__)
    x = _tensor(rows, step, like=initial, what="inputs")
    return h, x.expand(len(h), x.shape[-1]).clone()


def _tensor(values: AnyArray, step: Any, *, like: AnyArray, what: str) -> Float[Tensor, "..."]:
    """A float64 copy on the device of the module's parameters or, for a function, of the initial states."""
    require_float(values, what=what)
    own = next(step.parameters(), None) if isinstance(step, nn.Module) else None
    if own is None:
        own = like if isinstance(like, Tensor) else torch.empty(0)
    device = "cpu" if own.device.type == "mps" else own.device  # mps has no float64
    host = values if isinstance(values, Tensor) else torch.tensor(as_numpy(values))
    tensor = host.detach().to(device=device, dtype=torch.float64, copy=True)
    bad = ~torch.isfinite(tensor).reshape(-1, tensor.shape[-1]).all(dim=-1)
    if bad.any():
        raise KannError(f"{what} hold NaN or Inf in row {int(bad.nonzero()[0])}; leave that row out")
    return tensor


def _sizes(step: Any) -> tuple[int, int] | None:
    """Widths of the state and of the input of torch's own cells and layers and of `kann.step_of`; None for others."""
    if isinstance(step, nn.RNNBase) and (step.num_layers > 1 or step.bidirectional or step.proj_size):
        raise KannError(
            f"{step} is not one cell applied over time; pass a function step(h, x) that makes one step of what you "
            "want to analyse, its states side by side in h"
        )
    if isinstance(step, nn.RNNBase | nn.RNNCellBase):
        width = step.hidden_size * (2 if isinstance(step, nn.LSTM | nn.LSTMCell) else 1)
        return width, step.input_size
    if isinstance(getattr(step, "input_dim", None), int) and isinstance(getattr(step, "dim", None), int):
        return step.dim, step.input_dim
    return None


def _prepare(step: Any, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], *, blind: bool) -> Step:
    """The network as a function of tensors like h and x, tried once. A blind one, given no inputs, gets None."""
    if not callable(step):
        raise KannError(f"step is {type(step).__name__}; pass a function or torch module step(h, x)")
    call = _frozen(step, h) if isinstance(step, nn.Module) else step
    blind = blind and _sizes(step) is None
    leaf = h.clone().requires_grad_()
    failure = None
    # A function may hold tensors of another precision: where that makes it fail, it is called with all of them cast.
    for cast in (False, True):
        advance = _call(call, h.dtype, blind=blind, cast=cast)
        try:
            following = advance(leaf * 1.0, x)  # times 1: a step may then change its argument in place
        except Exception as error:
            failure = failure or error
            continue
        _require_next(following, leaf)
        _require_rows(advance, h, x, following)
        return advance
    raise KannError(
        f"step(h, x) fails on states {tuple(h.shape)} and inputs {None if blind else tuple(x.shape)} "
        f"({type(failure).__name__}: {failure}); it takes the states first; pass inputs= if it reads any"
    ) from failure


def _frozen(step: nn.Module, like: Tensor) -> Callable[..., Any]:
    """A copy of a module in the precision of ``like`` and in evaluation mode, as a function of (h, x)."""
    try:
        module = copy.deepcopy(_cell(step) if isinstance(step, nn.RNNBase) else step)
    except RuntimeError as error:
        raise KannError(f"{type(step).__name__} cannot be copied ({error}); pass lambda h, x: module(h, x)") from error
    module.to(device=like.device, dtype=like.dtype).eval().requires_grad_(False)
    if isinstance(module, nn.LSTMCell):
        return lambda h, x: torch.cat(module(x, h.chunk(2, dim=-1)), dim=-1)
    if isinstance(module, nn.RNNCellBase):
        return lambda h, x: module(x, h)
    return module


def _cell(layer: nn.RNNBase) -> nn.RNNCellBase:
    """The cell that a layer of one direction applies over time."""
    options = {"nonlinearity": layer.nonlinearity} if isinstance(layer, nn.RNN) else {}
    kind = next(cell for base, cell in CELLS.items() if isinstance(layer, base))
    cell = kind(layer.input_size, layer.hidden_size, bias=layer.bias, **options)
    for name, parameter in cell.named_parameters():
        parameter.data = getattr(layer, f"{name}_l0").detach()
    return cell


def _call(call: Callable[..., Any], dtype: torch.dtype, *, blind: bool, cast: bool) -> Step:
    """Call with None for the inputs if blind, and with all tensors of one precision if cast."""

    def advance(h: Tensor, x: Tensor) -> Any:
        given = None if blind else x
        if not cast:
            return call(h, given)
        with _Cast(dtype):
            return call(h, given)

    return advance


class _Cast(TorchFunctionMode):
    """Every torch function reads floating-point tensors as being of one precision; the tensors stay as they are."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*self._cast(args), **self._cast(kwargs or {}))

    def _cast(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._dtype) if value.is_floating_point() else value
        if isinstance(value, list | tuple):
            return type(value)(self._cast(item) for item in value)
        if isinstance(value, dict):
            return {key: self._cast(item) for key, item in value.items()}
        return value


def _require_next(following: Any, h: Float[Tensor, "n d"]) -> None:
    """Refuse what cannot be the next states of h."""
    if not isinstance(following, Tensor):
        raise KannError(f"step(h, x) returns {type(following).__name__}; return the next states alone, a torch tensor")
    if following.shape != h.shape:
        raise KannError(
            f"step(h, x) returns shape {tuple(following.shape)} for states {tuple(h.shape)}; return as many and as wide"
        )
    if following.dtype != h.dtype:
        raise KannError(f"step(h, x) returns {following.dtype} for states of {h.dtype}; leave out the conversion")
    if not following.requires_grad:
        raise KannError(
            "step(h, x) is not differentiable: its result does not depend on h by torch operations that track "
            "gradients; leave out detach(), no_grad() and conversions to numpy"
        )


def _require_rows(advance: Step, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], following: Tensor) -> None:
    """Refuse a step that mixes rows or draws random numbers: its Jacobians would be wrong."""
    half = (len(h) + 1) // 2
    with torch.no_grad():
        alone = advance(h[:half], x[:half])
    following = following.detach()
    # Far above rounding, of which products of other sizes have another amount, and far below any mixing.
    if not torch.allclose(alone, following[:half], rtol=1e-4, atol=1e-6 * float(following.abs().max()), equal_nan=True):
        raise KannError(
            "step(h, x) moves states differently when it is called with half of them; make it treat each row by "
            "itself, and without random numbers: put the network in evaluation mode with .eval()"
        )


def _spread(h: Float[Tensor, "n d"]) -> float:
    """Mean distance of states from their centre; of a single one its length, or 1 if that is zero too."""
    spread = float((h - h.mean(0)).norm(dim=1).mean())
    return spread or float(h.norm(dim=1).mean()) or 1.0


def _speed(advance: Step, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
    """The speed ½|step(h, x) − h|² of each state."""
    return 0.5 * (advance(h, x) - h).square().sum(dim=1)


def _explore(search: _Search, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> _Paths:
    """Newton from where the network goes, from between stable points, from the initial states, and by way of Adam.

    An initial state from which Newton gets stuck leads to where the network goes from there or, if Newton got stuck
    there too, to where Adam does. Adam is last: on a GRU it drives states out of the cube that the network lives in, to
    where its update gate saturates and every state is slow.
    """
    if not search.recipe.newton_steps:
        end, steps = _descend(search, h, x)
        return _Paths(x=x, final=end, passed=end, adam_steps=steps)
    followed, owner = _follow(search, h, x)
    between = _newton(search, *_between(search, followed))
    paths = _newton(search, h, x, known=_distinct(search, followed + between))
    stuck = _stuck(search, paths)
    stuck = stuck[owner[stuck] >= 0]
    paths = _replace(search, paths, stuck, followed.rows(owner[stuck]))
    stuck = _stuck(search, paths)
    if search.recipe.adam_steps and len(stuck):
        lowered, steps = _descend(search, h[stuck], x[stuck])
        near = (lowered - search.centre).norm(dim=1) <= _reach(search, h[stuck])
        again = _newton(search, lowered[near], x[stuck[near]])
        paths = _replace(search, paths, stuck[near], dataclasses.replace(again, adam_steps=steps))
    return paths + followed + between


def _stuck(search: _Search, paths: _Paths) -> Int[Tensor, " r"]:
    """Which searches did not come to a fixed point."""
    with torch.no_grad():
        return (~(_speed(search.advance, paths.final, paths.x) <= search.tolerance)).nonzero()[:, 0]


def _reach(search: _Search, start: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """How far from the centre a search from each state may go.

    Far out a GRU's update gate saturates and every state is slow. Without a border, searches that find nothing inside
    come back from there with slow points where the network never is.
    """
    return (BEYOND * (start - search.centre).norm(dim=1)).clamp(min=search.border)


def _replace(search: _Search, paths: _Paths, rows: Int[Tensor, " r"], again: _Paths) -> _Paths:
    """Put second searches in the place of first ones where they ended at a lower speed."""
    with torch.no_grad():
        first, second = (
            _speed(search.advance, part, again.x).nan_to_num(math.inf) for part in (paths.final[rows], again.final)
        )
    better = second < first
    final, passed = paths.final.clone(), paths.passed.clone()
    final[rows[better]], passed[rows[better]] = again.final[better], again.passed[better]
    return _Paths(
        x=paths.x,
        final=final,
        passed=passed,
        adam_steps=max(paths.adam_steps, again.adam_steps),
        newton_steps=max(paths.newton_steps, again.newton_steps),
    )


def _follow(search: _Search, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> tuple[_Paths, Int[Tensor, " n"]]:
    """Newton from where the network itself goes, for states close together only once; and which is whose, or −1."""
    owner = torch.full((len(h),), -1, device=h.device)
    if not search.recipe.follow_steps:
        return _newton(search, h[:0], x[:0]), owner
    with torch.no_grad():
        for _ in range(search.recipe.follow_steps):
            h = search.advance(h, x)
    finite = torch.isfinite(h).all(dim=1)
    h, x = h[finite], x[finite]
    radius = np.full(len(h), search.recipe.apart * search.unit)
    firsts, place = _merge(as_numpy(h), as_numpy(x), np.arange(len(h)), radius)
    owner[finite] = torch.from_numpy(place).to(h.device)
    return _newton(search, h[firsts], x[firsts]), owner


def _between(search: _Search, paths: _Paths) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m p"]]:
    """The middle between each two stable points."""
    h, x = _distinct(search, paths)
    if len(h) < 2:
        return h[:0], x[:0]
    _, jacobians, _ = _jacobians(search.advance, h, x)
    stable = _stable(_eigenvalues(as_numpy(jacobians)))
    h, x = h[stable], x[stable]
    one, other = torch.triu_indices(len(h), len(h), offset=1, device=h.device)
    alike = (x[one] == x[other]).all(dim=1)
    one, other = one[alike], other[alike]
    nearest = (h[one] - h[other]).norm(dim=1).argsort(stable=True)[:MAX_PAIRS]
    return ((h[one] + h[other]) / 2)[nearest], x[one][nearest]


def _distinct(search: _Search, paths: _Paths) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k p"]]:
    """The fixed points among the ends of searches, and their inputs."""
    with torch.no_grad():
        speeds = as_numpy(_speed(search.advance, paths.final, paths.x))
    fixed = np.flatnonzero(speeds <= search.tolerance)
    h, x = paths.final[fixed], paths.x[fixed]
    radius = np.full(len(h), search.recipe.distinct * search.unit)
    firsts, _ = _merge(as_numpy(h), as_numpy(x), np.argsort(speeds[fixed]), radius)
    return h[firsts], x[firsts]


def _descend(search: _Search, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> tuple[Float[Tensor, "n d"], int]:
    """Lower the speeds with Adam in the recipe's precision; where each state came to, and the steps made."""
    recipe = search.recipe
    dtype = getattr(torch, recipe.dtype)
    h, x = h.to(dtype, copy=True).requires_grad_(), x.to(dtype)
    adam = torch.optim.Adam([h], lr=recipe.learning_rate * search.unit)
    falling = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=0.95, patience=5)
    before = torch.full_like(h[:, 0], math.inf)
    used = 0
    for used in progress(range(1, recipe.adam_steps + 1), what="descent", unit="step"):
        speeds = _speed(search.coarse, h, x)
        total = speeds.mean() if recipe.average else speeds.sum()
        (h.grad,) = torch.autograd.grad(total, h)
        adam.step()
        if recipe.schedule == "linear":
            adam.param_groups[0]["lr"] = recipe.learning_rate * search.unit * (1 - used / recipe.adam_steps)
        elif recipe.schedule == "plateau":
            falling.step(total.detach())
        within = speeds <= search.tolerance
        if recipe.stop == "change":
            within |= (speeds - before).abs() < TOL_DQ * adam.param_groups[0]["lr"]
        if total <= search.tolerance if recipe.stop == "mean" else within.all():
            break
        before = speeds.detach()
    return h.detach().double(), used


def _newton(
    search: _Search,
    h: Float[Tensor, "n d"],
    x: Float[Tensor, "n p"],
    known: tuple[Float[Tensor, "k d"], Float[Tensor, "k p"]] | None = None,
) -> _Paths:
    """Damped Newton from each state by itself. A search that comes upon a known fixed point ends there."""
    paths = _Paths(x=x[:0], final=h[:0], passed=h[:0])
    for rows in _blocks(*h.shape):
        paths = paths + _newton_block(search, h[rows].clone(), x[rows], known or (h[:0], x[:0]))
    return paths


def _blocks(count: int, width: int) -> Iterator[slice]:
    """Ranges of rows whose Jacobians together stay within `JACOBIAN_BYTES`."""
    size = max(1, JACOBIAN_BYTES // (8 * width**2))
    return (slice(start, start + size) for start in range(0, count, size))


def _newton_block(
    search: _Search,
    h: Float[Tensor, "n d"],
    x: Float[Tensor, "n p"],
    known: tuple[Float[Tensor, "k d"], Float[Tensor, "k p"]],
) -> _Paths:
    """Levenberg–Marquardt with damping ∝ |r|, which keeps convergence quadratic even where J − I is singular.

    A row leaves the batch when its speed is down to rounding, or when it hardly falls any more, as at a local minimum.
    """
    with torch.no_grad():
        speeds = _speed(search.advance, h, x)
    damping, idle = torch.ones_like(speeds), torch.zeros_like(speeds)
    slowness = min(search.limit, search.recipe.slow_tolerance)  # however much the caller keeps in the end
    slow, passed = speeds <= slowness, h.clone()
    reach = _reach(search, h)
    active, used = torch.isfinite(speeds).nonzero()[:, 0], 0
    for _ in progress(range(search.recipe.newton_steps), what="Newton", unit="step"):
        trial = _newton_trial(search, h[active], x[active], damping[active])
        trial = _snapped(search, trial, x[active], known)
        with torch.no_grad():
            trial_speeds = _speed(search.advance, trial, x[active])
        trial_speeds[(trial - search.centre).norm(dim=1) > reach[active]] = math.inf
        better = trial_speeds < speeds[active]  # false where the trial is not finite
        idle[active] = torch.where(trial_speeds < 0.99 * speeds[active], 0.0, idle[active] + 1)
        h[active] = torch.where(better[:, None], trial, h[active])
        speeds[active] = torch.where(better, trial_speeds, speeds[active])
        damping[active] *= torch.where(better, *DAMPING)
        passed = torch.where(slow[:, None], passed, h)
        slow |= speeds <= slowness
        used += 1
        done = (speeds <= _rounding(search, h)) | (idle >= PATIENCE)
        active = active[~done[active]]
        if not len(active):
            break
    return _Paths(x=x, final=h, passed=passed, newton_steps=used)


def _rounding(search: _Search, h: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """The speed of each state below which there is only rounding."""
    return ROUNDING * (h.square().sum(dim=1) + search.spread**2)


def _snapped(
    search: _Search,
    h: Float[Tensor, "n d"],
    x: Float[Tensor, "n p"],
    known: tuple[Float[Tensor, "k d"], Float[Tensor, "k p"]],
) -> Float[Tensor, "n d"]:
    """Put states that differ from a known point by so little that they would count as the same, at that point."""
    points, inputs = known
    if not len(points):
        return h
    distance = torch.cdist(h, points, p=math.inf)
    distance[~torch.isfinite(h).all(dim=1)] = math.inf  # cdist calls them 0
    distance[(x[:, None] != inputs).any(dim=2)] = math.inf
    least, place = distance.min(dim=1)
    near = least <= search.recipe.distinct * search.unit
    return torch.where(near[:, None], points[place], h)


def _newton_trial(
    search: _Search, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], damping: Float[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """Add −(AᵀA + μ I)⁻¹ Aᵀ r to h, for r = F(h, x) − h, its Jacobian A = J − I, and μ = damping · |r| / spread."""
    leaf = h.clone().requires_grad_()
    following = search.advance(leaf, x)
    slope = _slopes(following, leaf) - torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
    residual = following.detach() - h
    normal = slope.mT @ slope
    normal.diagonal(dim1=1, dim2=2).add_((damping * residual.norm(dim=1) / search.spread)[:, None])
    factor, _ = torch.linalg.cholesky_ex(normal)  # one that fails gives a trial that gains nothing
    return h - torch.cholesky_solve(slope.mT @ residual[:, :, None], factor)[:, :, 0]


def _slopes(following: Float[Tensor, "n d"], to: Float[Tensor, "n q"]) -> Float[Tensor, "n d q"]:
    """∂following_i/∂to_j of each row: one backward pass, vectorised over i.

    Rows do not mix, so the derivative of a sum over rows holds the derivative of each. The step itself was called on
    plain tensors: only derivatives are vectorised, which asks less of it than ``torch.func.vmap(jacrev(step))`` would,
    and takes half the time.
    """
    n, d = following.shape
    outputs = torch.eye(d, dtype=to.dtype, device=to.device)[:, None].expand(d, n, d)
    (slopes,) = torch.autograd.grad(following, to, outputs, retain_graph=True, is_grads_batched=True, allow_unused=True)
    return to.new_zeros(n, d, to.shape[1]) if slopes is None else slopes.transpose(0, 1)


def _jacobians(
    advance: Step, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d d"], Float[Tensor, "n d p"]]:
    """The next states, ∂F_i/∂h_j and ∂F_i/∂x_j of each row."""
    parts = []
    for rows in _blocks(*h.shape):
        h_leaf, x_leaf = h[rows].clone().requires_grad_(), x[rows].clone().requires_grad_()
        following = advance(h_leaf, x_leaf)
        parts.append((following.detach(), _slopes(following, h_leaf), _slopes(following, x_leaf)))
    following, of_h, of_x = (torch.cat(part) for part in zip(*parts, strict=True))
    return following, of_h, of_x


def _merge(
    points: Float[Array, "m d"], inputs: Float[Array, "m p"], order: Int[Array, " m"], radius: Float[Array, " m"]
) -> tuple[Int[Array, " k"], Int[Array, " m"]]:
    """Points that stand for all others, chosen in the given order, and for each point by which of them it is covered.

    A point is covered by one with the same input that differs from it by no more than its radius in any hidden unit.
    """
    owner = np.full(len(points), -1)
    firsts: list[int] = []
    for i in order:
        if owner[i] < 0:
            near = (np.abs(points - points[i]).max(axis=1) <= radius) & (inputs == inputs[i]).all(axis=1)
            owner[near & (owner < 0)] = len(firsts)
            firsts.append(int(i))
    return np.array(firsts, dtype=np.int64), owner


def _candidates(search: _Search, paths: _Paths) -> tuple[Int[Array, " c"], Float[Array, " m2"]]:
    """Which rows of ends and passed states, one above the other, are points to keep; and the speeds of all."""
    with torch.no_grad():
        speeds = as_numpy(_speed(search.advance, torch.cat([paths.final, paths.passed]), paths.x.repeat(2, 1)))
    speeds = np.where(np.isfinite(speeds), speeds, np.inf)
    # A slow state that a search came by counts by itself only if the search went elsewhere from there.
    left = as_numpy((paths.final - paths.passed).abs().amax(dim=1)) > search.recipe.apart * search.unit
    counted = np.concatenate([np.ones_like(left), left])
    kept = np.flatnonzero(counted & np.isfinite(speeds) & (speeds <= search.limit))
    if not len(kept):
        raise KannError(
            f"no search came to a speed ½|step(h, x) − h|² within slow_tolerance={search.limit:g}; the smallest speed "
            f"reached is {speeds.min():.3g}; pass more or other initial states, other inputs, or a slow_tolerance "
            "above that"
        )
    return kept, speeds


def _groups(
    search: _Search,
    h: Float[Tensor, "c d"],
    x: Float[Tensor, "c p"],
    speeds: Float[Array, " c"],
    ended: Shaped[Array, " c"],
) -> tuple[Int[Array, " k"], Int[Array, " c"]]:
    """Which candidates stand for all, and by which of them each is covered."""
    # Where Newton did not come to rest, or only came by, a point is a sample of a manifold, however slow.
    sharp = ended & (speeds <= search.tolerance) & (speeds <= 1e4 * as_numpy(_rounding(search, h)))
    radius = np.where(sharp, search.recipe.distinct, search.recipe.apart) * search.unit
    return _merge(as_numpy(h), as_numpy(x), np.lexsort((speeds, ~sharp)), radius)


def _describe(search: _Search, paths: _Paths, *, initial: int) -> FixedPoints:
    """Filter candidates by speed, merge those that are one point, sort, and say what is left."""
    kept, speeds = _candidates(search, paths)
    h, x = torch.cat([paths.final, paths.passed])[kept], paths.x.repeat(2, 1)[kept]
    firsts, owner = _groups(search, h, x, speeds[kept], kept < len(paths.final))
    from_initial = kept % len(paths.final) < initial
    counts = np.bincount(owner[from_initial], minlength=len(firsts))
    order = np.lexsort((firsts, -counts, speeds[kept][firsts] > search.tolerance))
    reached = np.full(initial, -1)
    reached[kept[kept < initial]] = np.argsort(order)[owner[kept < initial]]
    h, x = h[firsts[order]], x[firsts[order]]
    following, jacobians, input_jacobians = _jacobians(search.advance, h, x)
    return _label(
        search,
        points=as_numpy(h),
        inputs=as_numpy(x),
        speeds=as_numpy(0.5 * (following - h).square().sum(dim=1)),
        jacobians=as_numpy(jacobians),
        input_jacobians=as_numpy(input_jacobians),
        counts=counts[order],
        reached=reached,
        candidate_speeds=speeds[:initial],
        adam_steps=paths.adam_steps,
        newton_steps=paths.newton_steps,
    )


def _label(
    search: _Search,
    *,
    points: Float[Array, "k d"],
    speeds: Float[Array, " k"],
    jacobians: Float[Array, "k d d"],
    **rest: Any,
) -> FixedPoints:
    """Eigenvalues, stability, kinds and outliers of points."""
    eigenvalues = _eigenvalues(jacobians)
    return FixedPoints(
        points=points,
        speeds=speeds,
        kinds=np.where(speeds <= search.tolerance, "fixed", "slow"),
        jacobians=jacobians,
        eigenvalues=eigenvalues,
        stable=_stable(eigenvalues),
        outlier=np.linalg.norm(points - as_numpy(search.centre), axis=1) > search.border,
        tolerance=search.tolerance,
        slow_tolerance=search.limit,
        **rest,
    )


def _eigenvalues(jacobians: Float[Array, "k d d"]) -> Complex[Array, "k d"]:
    """Eigenvalues by decreasing modulus; NaN where a Jacobian is not finite, at a point without a derivative."""
    eigenvalues = np.full(jacobians.shape[:2], np.nan, dtype=complex)
    smooth = np.isfinite(jacobians).all(axis=(1, 2))
    eigenvalues[smooth] = np.linalg.eigvals(jacobians[smooth])
    return np.take_along_axis(eigenvalues, np.argsort(-np.abs(eigenvalues), axis=1, kind="stable"), axis=1)


def _stable(eigenvalues: Complex[Array, "k d"]) -> Shaped[Array, " k"]:
    return np.abs(eigenvalues[:, 0]) < 1 - STABLE_MARGIN
