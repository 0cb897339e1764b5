"""One step of a network as a function of float64 tensors, where a search starts, and derivatives of the step."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.backends.arrays import as_array, as_numpy
from kann.checks import require_float, require_width
from kann.data.states import States
from kann.errors import KannError
from kann.recording import RecurrentStep, step_of
from kann.typing import AnyArray, Array, Complex, Float, Shaped

StepFunction = Callable[[Tensor, Tensor], Tensor]
"""From states (n, d) and inputs (n, p) to the next states (n, d), each row by itself."""

OTHER_PRECISION = {torch.float64: torch.float32, torch.float32: torch.float64}
"""In which precision to try a step that does not take the wanted one, such as a function over float32 weights."""

CELL_FORWARDS = (nn.RNNCell.forward, nn.GRUCell.forward, nn.LSTMCell.forward)
"""The forward functions of torch's cells; a subclass may have another one."""


def _of_weights(step: Any) -> Any:
    """Return one step of torch's layers, and of cells without subclass or hook; anything else as it is."""
    if isinstance(step, nn.RNNBase):
        if step.bidirectional:
            raise KannError(
                f"{step} is not one cell applied over time; pass a function step(h, x) that makes one step of what you "
                "want to analyse, its states side by side in h"
            )
        levels = [f"l{level}" for level in range(step.num_layers)]
        return step_of(step) if len(levels) == 1 else StackedStep(layers=[step_of(step, level) for level in levels])
    is_plain = isinstance(step, nn.RNNCellBase) and type(step).forward in CELL_FORWARDS
    return step_of(step) if is_plain and not (step._forward_pre_hooks or step._forward_hooks) else step


def widths_of(step: Any) -> tuple[int, int] | None:
    """Return widths of state and input of torch's cells and layers and of `kann.recording.step_of`; None for others."""
    step = _of_weights(step)
    if isinstance(step, nn.RNNCellBase):  # the state of an LSTM is h and c
        return step.hidden_size * (2 if isinstance(step, nn.LSTMCell) else 1), step.input_size
    widths = getattr(step, "dim", None), getattr(step, "input_dim", None)
    return widths if all(isinstance(width, int) for width in widths) else None  # pyright: ignore[reportReturnType]


def checked_step(
    step: Any, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], *, has_inputs: bool
) -> tuple[StepFunction, torch.dtype]:
    """Return the network as a function of tensors like h and x, and the precision in which it computes.

    That is the precision of h, or else the one that the step takes: then the states and inputs are converted for each
    call, and what it returns is converted back. A step of unknown input width gets None where no inputs were given.
    """
    if not callable(step):
        raise KannError(f"step is {type(step).__name__}; pass a function or torch module step(h, x)")
    reads_inputs = has_inputs or widths_of(step) is not None
    reasons, errors = [], []
    for dtype in (h.dtype, OTHER_PRECISION[h.dtype]):
        states, inputs = h.to(dtype), x.to(dtype)
        function = _copied(step, like=states)
        if dtype != h.dtype or not reads_inputs:
            function = _adapted(function, dtype, reads_inputs=reads_inputs)
        leaf = states.clone().requires_grad_()
        try:
            following = function(leaf * 1.0, inputs)  # times 1: a step may then change its argument in place
        except Exception as error:
            reasons.append(f"with {dtype}: {type(error).__name__}: {error}")
            errors.append(error)
            continue
        _require_next_states(following, leaf)
        _require_independent_rows(function, states, inputs, following)
        return function, dtype
    shapes = f"states {tuple(h.shape)} and inputs {tuple(x.shape) if reads_inputs else None}"
    raise KannError(
        f"step(h, x) fails on {shapes} ({'; '.join(reasons)}); it takes the states first; pass inputs= if it reads any"
    ) from errors[0]


def _adapted(step: Callable[..., Any], dtype: torch.dtype, *, reads_inputs: bool) -> StepFunction:
    """Return the step as a function of tensors of any precision: called in its own, with None if it reads no inputs."""

    def function(h: Tensor, x: Tensor) -> Any:
        following = step(h.to(dtype), x.to(dtype) if reads_inputs else None)
        return following.to(h.dtype) if isinstance(following, Tensor) and h.dtype != dtype else following

    return function


def _copied(step: Any, like: Tensor) -> Callable[..., Any]:
    """Return a copy of the network in the precision and on the device of ``like``, as a function of (h, x).

    A module is copied in evaluation mode. A function cannot be copied and is what it is.
    """
    step = _of_weights(step)
    if isinstance(step, RecurrentStep | StackedStep):
        return step.with_fixed_weights(like)
    if not isinstance(step, nn.Module):
        return step
    try:
        module = copy.deepcopy(step)
    except RuntimeError as error:
        raise KannError(f"{type(step).__name__} cannot be copied ({error}); pass lambda h, x: module(h, x)") from error
    module.to(device=like.device, dtype=like.dtype).eval().requires_grad_(False)
    if isinstance(module, nn.LSTMCell):
        return lambda h, x: torch.cat(module(x, h.chunk(2, dim=-1)), dim=-1)
    if isinstance(module, nn.RNNCellBase):
        return lambda h, x: module(x, h)
    return module


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StackedStep:
    """Recurrent layers as one function ``step(h, x)``, each of which reads what the one below gives in the same step.

    The state is that of all layers side by side, the lowest first: of an LSTM (h_0, c_0, h_1, c_1, …).
    """

    layers: Sequence[RecurrentStep]
    """The steps of the layers, the lowest first."""

    @property
    def dim(self) -> int:
        """The width d of the state."""
        return sum(layer.dim for layer in self.layers)

    @property
    def input_dim(self) -> int:
        """The width p of the input."""
        return self.layers[0].input_dim

    def __call__(self, h: Tensor, x: Tensor) -> Tensor:
        """Return the states after reading ``x``."""
        if h.shape[-1] != self.dim:
            widths = ", ".join(str(layer.dim) for layer in self.layers)
            raise KannError(
                f"the step takes states (n, {self.dim}), those of layers {widths} wide; got {tuple(h.shape)}"
            )
        states = []
        for layer, own in zip(self.layers, h.split([layer.dim for layer in self.layers], dim=-1), strict=True):
            states.append(layer(own, x))
            x = states[-1][..., : layer.output_dim]
        return torch.cat(states, dim=-1)

    def with_fixed_weights(self, like: Tensor) -> "StackedStep":
        """Return the same step with the weights of this moment, without gradients, as those of `RecurrentStep`."""
        return StackedStep(layers=[layer.with_fixed_weights(like) for layer in self.layers])


def _require_next_states(following: Any, h: Float[Tensor, "n d"]) -> None:
    """Raise if these cannot be the next states of h."""
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


def _require_independent_rows(
    function: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], following: Float[Tensor, "n d"]
) -> None:
    """Raise if the step mixes rows or draws random numbers: its Jacobians would be wrong."""
    half = (len(h) + 1) // 2
    with torch.no_grad():
        alone = function(h[:half], x[:half])
    following = following.detach()
    # Products of other sizes round differently: the tolerance is far above that, and far below any mixing.
    if not torch.allclose(alone, following[:half], rtol=1e-4, atol=1e-6 * float(following.abs().max()), equal_nan=True):
        raise KannError(
            "step(h, x) moves states differently when it is called with half of them; make it treat each row by "
            "itself, and without random numbers: put the network in evaluation mode with .eval()"
        )


def starting_tensors(
    step: Any, initial: AnyArray | States | Mapping[str, States], inputs: AnyArray | None
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n p"]]:
    """Return initial states and one input for each, as float64 tensors on the device where the network is.

    Without inputs, a step whose input width is known gets zeros, and any other gets no columns.
    """
    state_width, input_width = widths_of(step) or (None, None)
    if isinstance(initial, Mapping):
        layers = [layer.values if isinstance(layer, States) else layer for layer in initial.values()]
        initial = np.concatenate([as_numpy(layer) for layer in layers], axis=1)
    initial = initial.values if isinstance(initial, States) else initial
    states = as_array(initial)
    if states.ndim != 2 or 0 in states.shape:
        raise KannError(f"initial states have shape {tuple(states.shape)}; pass (n, d) with n, d >= 1")
    if state_width is not None:
        require_width(states, state_width, what="initial states", of=f"the state of {type(step).__name__}")
    device = _device_of(step, initial)
    h = _float64_copy(states, device, what="initial states")
    if inputs is None:
        return h, h.new_zeros(len(h), input_width or 0)
    rows = as_array(inputs)
    if rows.ndim not in (1, 2) or 0 in rows.shape or (rows.ndim == 2 and len(rows) not in (1, len(h))):
        raise KannError(
            f"inputs have shape {tuple(rows.shape)}; pass one constant input (p,), or one for each of the {len(h)} "
            f"initial states ({len(h)}, p)"
        )
    if input_width is not None:
        require_width(rows, input_width, what="inputs", of=type(step).__name__)
    x = _float64_copy(rows, device, what="inputs")
    return h, x.expand(len(h), x.shape[-1]).clone()


def _device_of(step: Any, initial: AnyArray) -> torch.device:
    """Return the device of the module's parameters or, for anything else, of the initial states."""
    device = initial.device if isinstance(initial, Tensor) else torch.empty(0).device
    if isinstance(step, nn.Module):
        device = next((parameter.device for parameter in step.parameters()), device)
    return torch.device("cpu") if device.type == "mps" else device  # mps has no float64


def _float64_copy(values: AnyArray, device: torch.device, *, what: str) -> Float[Tensor, "..."]:
    require_float(values, what=what)
    if not isinstance(values, Tensor):  # numpy knows types and orders of bytes that torch does not
        values = torch.from_numpy(values.astype(np.float64))
    tensor = values.detach().to(device=device, dtype=torch.float64, copy=True)
    bad = ~torch.isfinite(tensor).reshape(-1, tensor.shape[-1]).all(dim=-1)
    if bad.any():
        raise KannError(f"{what} hold NaN or Inf in row {int(bad.nonzero()[0])}; leave that row out")
    return tensor


# Derivatives, and the eigenvalues that decide whether a point is stable

JACOBIAN_BYTES = 64 * 2**20
"""Size of the Jacobians that are held in memory at a time."""

STABLE_MARGIN = 1e-6
"""A point is stable if every eigenvalue of its Jacobian has modulus below 1 by this much. Along an exact line attractor
one eigenvalue is 1 up to rounding, and rounding must not decide; what decays by a millionth a step is as good as
neutral."""


def row_blocks(count: int, width: int) -> Iterator[slice]:
    """Return ranges of rows whose Jacobians together stay within `JACOBIAN_BYTES`."""
    size = max(1, JACOBIAN_BYTES // (8 * width**2))
    return (slice(start, start + size) for start in range(0, count, size))


def derivatives(following: Float[Tensor, "n d"], to: Float[Tensor, "n q"]) -> Float[Tensor, "n d q"]:
    """Compute ∂following_i/∂to_j of each row: one backward pass, vectorised over i; zeros if it does not depend on it.

    Rows do not mix, so the derivative of a sum over rows holds the derivative of each. The step itself was called on
    plain tensors: only derivatives are vectorised, which asks less of it than ``torch.func.vmap(jacrev(step))`` would,
    and takes half the time.
    """
    n, d = following.shape
    slopes = None
    if following.requires_grad:
        ones = torch.eye(d, dtype=to.dtype, device=to.device)[:, None].expand(d, n, d)
        (slopes,) = torch.autograd.grad(
            following, to, ones, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
    return to.new_zeros(n, d, to.shape[1]) if slopes is None else slopes.transpose(0, 1)


UnitSlopes = list[tuple[Float[Tensor, "n d"], Float[Tensor, "n g d"]]]
"""For h' and c': the derivatives of each unit by its own state, and by what the state adds to its gates."""


def unit_slopes(rule: Callable[..., Tensor], h: Tensor, c: Tensor | None, *sums: Tensor) -> UnitSlopes:
    """Differentiate a layer without its weights: each unit of h' and c' depends on its own state and gates alone.

    So one backward pass gives the derivatives of all units. The projection of an LSTM is left out.
    """
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in (h if c is None else c, sums[1])]
        states = (leaves[0], None) if c is None else (h, leaves[0])
        following = rule(*states, sums[0].detach(), leaves[1], None)
        parts = [following] if c is None else following.chunk(2, dim=-1)
        found = []
        for part in parts:
            own, gates = torch.autograd.grad(part.sum(), leaves, retain_graph=True, materialize_grads=True)
            found.append((own, gates.unflatten(1, (-1, own.shape[1]))))
    return found


def _through_weights(gates: Float[Tensor, "n g d"], weight: Float[Tensor, "gd o"]) -> Float[Tensor, "n d o"]:
    """Compute Σ over gates of diag(slopes) U, for the U of each gate below each other in ``weight``."""
    return torch.einsum("ngk,gkj->nkj", gates, weight.unflatten(0, gates.shape[1:]))


def solve_shifted(
    slopes: Float[Tensor, "n d d"], shift: Float[Tensor, " n"], residual: Float[Tensor, "n d"]
) -> Float[Tensor, "n d"]:
    """Solve (s I − J) δ = r for each row; ``slopes`` is overwritten, and where it is singular the result is not finite.

    By normal equations: a batch of Cholesky factors is quicker than one of LU, and float64 has digits to spare.
    """
    slopes.neg_().diagonal(dim1=1, dim2=2).add_(shift[:, None])
    factor, _ = torch.linalg.cholesky_ex(slopes.mT @ slopes)
    return torch.cholesky_solve(slopes.mT @ residual[:, :, None], factor)[:, :, 0]


@torch.no_grad()
def layer_slopes(
    step: RecurrentStep, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d d"]]:
    """Return the states after reading ``x``, and ∂(next state)/∂(state) of each row, from the weights of a layer."""
    parts, weight_hh, projection = step.parts(h, x)
    found, outputs = unit_slopes(step.rule, *parts), weight_hh.shape[1]
    width = found[0][0].shape[1]
    slopes = h.new_zeros(len(h), len(found) * width, step.dim)
    for rows, (own, gates) in zip(slopes.split(width, dim=1), found, strict=True):
        rows[:, :, :outputs] = _through_weights(gates, weight_hh)
        rows[:, :, -width:].diagonal(dim1=1, dim2=2).add_(own)  # the state is h or, of an LSTM, (h, c)
    if projection is not None:  # the layer gives h' = P (o tanh(c')), and reads that
        slopes = torch.cat([projection @ slopes[:, :width], slopes[:, width:]], dim=1)
    return step.rule(*parts, projection), slopes


def step_with_slopes(
    step: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d d"]]:
    """Return the next states and ∂F_i/∂h_j of each row: from the weights of torch's layers, else by backward passes."""
    if isinstance(step, RecurrentStep):  # a nineteenth of the time, for an LSTM of 128 units
        return layer_slopes(step, h, x)
    leaf = h.clone().requires_grad_()
    following = step(leaf, x)
    return following.detach(), derivatives(following, leaf).contiguous()  # Newton changes it in place


def implicit_step(
    step: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], leaps: Float[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """Return the states after an implicit step worth τ of the network's own: h + ((1 + 1/τ) I − J)⁻¹ (step(h, x) − h).

    Of an LSTM ∂c'/∂c = f is diagonal, so that δc = (r_c + ∂c'/∂h δh) / (s − f), and only δh is left to be solved for.
    """
    shift = 1 + 1 / leaps
    if not isinstance(step, RecurrentStep) or step.dim != 2 * step.output_dim:
        following, slopes = step_with_slopes(step, h, x)
        return h + solve_shifted(slopes, shift, following - h)
    with torch.no_grad():
        parts, weight_hh, _ = step.parts(h, x)
        (own_h, gates_h), (forget, gates_c) = unit_slopes(step.rule, *parts)
        for_h, for_c = (step.rule(*parts, None) - h).chunk(2, dim=1)
        weight = own_h / (shift[:, None] - forget)  # ∂h'/∂c (s − f)⁻¹
        reduced = _through_weights(gates_h + weight[:, None] * gates_c, weight_hh)
        delta_h = solve_shifted(reduced, shift, for_h + weight * for_c)
        moved = ((delta_h @ weight_hh.T).unflatten(1, gates_c.shape[1:]) * gates_c).sum(dim=1)
        return h + torch.cat([delta_h, (for_c + moved) / (shift[:, None] - forget)], dim=1)


def jacobians(
    step: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d d"], Float[Tensor, "n d p"]]:
    """Return the next states, ∂F_i/∂h_j and ∂F_i/∂x_j of each row."""
    if not len(h):  # the step need not take no rows
        return h, h.new_zeros(0, h.shape[1], h.shape[1]), h.new_zeros(0, h.shape[1], x.shape[1])
    parts = []
    for rows in row_blocks(*h.shape):
        following, of_h = step_with_slopes(step, h[rows], x[rows])
        x_leaf = x[rows].clone().requires_grad_()
        parts.append((following, of_h, derivatives(step(h[rows], x_leaf), x_leaf)))
    following, of_h, of_x = (torch.cat(part) for part in zip(*parts, strict=True))
    return following, of_h, of_x


def eigenvalues_of(matrices: Float[Array, "k d d"]) -> Complex[Array, "k d"]:
    """Compute eigenvalues by decreasing modulus; NaN where a Jacobian is not finite."""
    eigenvalues = np.full(matrices.shape[:2], np.nan, dtype=complex)
    smooth = np.isfinite(matrices).all(axis=(1, 2))
    eigenvalues[smooth] = np.linalg.eigvals(matrices[smooth])
    # A stable sort: both of a conjugate pair have the same modulus, and rounding must not swap them.
    return np.take_along_axis(eigenvalues, np.argsort(-np.abs(eigenvalues), axis=1, kind="stable"), axis=1)


def is_stable(eigenvalues: Complex[Array, "k d"]) -> Shaped[Array, " k"]:
    """Return whether the largest eigenvalue of each point has modulus below 1, by `STABLE_MARGIN`."""
    return np.abs(eigenvalues[:, 0]) < 1 - STABLE_MARGIN
