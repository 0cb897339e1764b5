"""Derivatives of a step, and the eigenvalues that decide whether a point is stable."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from kann.fixed_points.step_function import StepFunction
from kann.recording import RecurrentStep
from kann.recording.recurrent import gru_rule, lstm_rule, rnn_relu_rule, rnn_tanh_rule
from kann.typing import Array, Complex, Float, Shaped

JACOBIAN_BYTES = 64 * 2**20
"""Size of the Jacobians that are held in memory at a time."""

STABLE_MARGIN = 1e-6
"""A point is stable if every eigenvalue of its Jacobian has modulus below 1 by this much. Along an exact line attractor
one eigenvalue is 1 up to rounding, and rounding must not decide; what decays by a millionth a step is as good as
neutral."""


def row_blocks(count: int, width: int) -> Iterator[slice]:
    """Ranges of rows whose Jacobians together stay within `JACOBIAN_BYTES`."""
    size = max(1, JACOBIAN_BYTES // (8 * width**2))
    return (slice(start, start + size) for start in range(0, count, size))


def derivatives(following: Float[Tensor, "n d"], to: Float[Tensor, "n q"]) -> Float[Tensor, "n d q"]:
    """∂following_i/∂to_j of each row: one backward pass, vectorised over i.

    Rows do not mix, so the derivative of a sum over rows holds the derivative of each. The step itself was called on
    plain tensors: only derivatives are vectorised, which asks less of it than ``torch.func.vmap(jacrev(step))`` would,
    and takes half the time.
    """
    n, d = following.shape
    outputs = torch.eye(d, dtype=to.dtype, device=to.device)[:, None].expand(d, n, d)
    (slopes,) = torch.autograd.grad(following, to, outputs, retain_graph=True, is_grads_batched=True, allow_unused=True)
    if slopes is None:  # following does not depend on it
        return to.new_zeros(n, d, to.shape[1])
    return slopes.transpose(0, 1)


def rnn_tanh_slopes(
    h: Float[Tensor, "n d"], _c: None, from_input: Tensor, from_state: Tensor, weight_hh: Float[Tensor, "d d"]
) -> Float[Tensor, "n d d"]:
    """∂h'/∂h of h' = tanh(a)."""
    return (1 - torch.tanh(from_input + from_state).square())[:, :, None] * weight_hh


def rnn_relu_slopes(
    h: Float[Tensor, "n d"], _c: None, from_input: Tensor, from_state: Tensor, weight_hh: Float[Tensor, "d d"]
) -> Float[Tensor, "n d d"]:
    """∂h'/∂h of h' = max(a, 0)."""
    return (from_input + from_state > 0).to(h.dtype)[:, :, None] * weight_hh


def gru_slopes(
    h: Float[Tensor, "n d"], _c: None, from_input: Tensor, from_state: Tensor, weight_hh: Float[Tensor, "d3 d"]
) -> Float[Tensor, "n d d"]:
    """∂h'/∂h of h' = n + z (h − n), with r, z = σ(a) and n = tanh(W x + r (U h))."""
    r_input, z_input, n_input = from_input.chunk(3, dim=-1)
    r_state, z_state, n_state = from_state.chunk(3, dim=-1)
    r, z = torch.sigmoid(r_input + r_state), torch.sigmoid(z_input + z_state)
    n = torch.tanh(n_input + r * n_state)
    of_n = (1 - z) * (1 - n.square())
    factors = (of_n * n_state * r * (1 - r), (h - n) * z * (1 - z), of_n * r)
    slopes = _summed_over_gates(factors, weight_hh)
    slopes.diagonal(dim1=1, dim2=2).add_(z)
    return slopes


def lstm_slopes(
    h: Float[Tensor, "n o"], c: Float[Tensor, "n d"], from_input: Tensor, from_state: Tensor, weight_hh: Tensor
) -> Float[Tensor, "n d2 od"]:
    """∂(o tanh(c'), c')/∂(h, c) of c' = f c + i g. Without a projection the first is the next h."""
    width, outputs = c.shape[1], h.shape[1]
    forget, of_cell, cell, output = _lstm_factors(c, from_input + from_state)
    slopes = h.new_zeros(len(h), 2 * width, outputs + width)
    slopes[:, width:, :outputs] = _summed_over_gates(cell, weight_hh[: 3 * width])
    slopes[:, :width, :outputs] = _summed_over_gates(output, weight_hh)
    slopes[:, width:, outputs:].diagonal(dim1=1, dim2=2).copy_(forget)
    slopes[:, :width, outputs:].diagonal(dim1=1, dim2=2).copy_(of_cell * forget)
    return slopes


def solve_lstm(
    h: Float[Tensor, "n d"],
    c: Float[Tensor, "n d"],
    from_input: Tensor,
    from_state: Tensor,
    weight_hh: Float[Tensor, "d4 d"],
    *,
    shift: Float[Tensor, " n"],
    residual: Float[Tensor, "n d2"],
) -> Float[Tensor, "n d2"]:
    """Solve (s I − J) δ = r for J = ∂(h', c')/∂(h, c) of an LSTM, by way of a system half as wide.

    ∂c'/∂c = f is diagonal, so that δc = (r_c + ∂c'/∂h δh) / (s − f), and only δh is left to be solved for.
    """
    forget, of_cell, cell, output = _lstm_factors(c, from_input + from_state)
    for_h, for_c = residual.chunk(2, dim=1)
    weight = of_cell * forget / (shift[:, None] - forget)  # ∂h'/∂c (s − f)⁻¹
    joined = (*(each + weight * own for each, own in zip(output, cell, strict=False)), output[-1])
    reduced = _summed_over_gates(joined, weight_hh)
    delta_h = solve_shifted(reduced, shift, for_h + weight * for_c)
    moved = _times_gates(cell, weight_hh[: 3 * c.shape[1]], delta_h)
    return torch.cat([delta_h, (for_c + moved) / (shift[:, None] - forget)], dim=1)


def solve_shifted(
    slopes: Float[Tensor, "n d d"], shift: Float[Tensor, " n"], residual: Float[Tensor, "n d"]
) -> Float[Tensor, "n d"]:
    """Solve (s I − J) δ = r for each row; ``slopes`` is overwritten, and where it is singular the result is not finite.

    By normal equations: a batch of Cholesky factors is quicker than one of LU, and float64 has digits to spare.
    """
    slopes.neg_().diagonal(dim1=1, dim2=2).add_(shift[:, None])
    factor, _ = torch.linalg.cholesky_ex(slopes.mT @ slopes)
    return torch.cholesky_solve(slopes.mT @ residual[:, :, None], factor)[:, :, 0]


def _lstm_factors(
    c: Float[Tensor, "n d"], sums: Float[Tensor, "n d4"]
) -> tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The forget gate, ∂h'/∂c', and what c' and h' change by with what each gate sums up: i, f, g, and o for h'."""
    i, f, g, o = sums.chunk(4, dim=-1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    squashed = torch.tanh(f * c + i * g)
    of_cell = o * (1 - squashed.square())
    cell = (g * i * (1 - i), c * f * (1 - f), i * (1 - g.square()))
    return f, of_cell, cell, (*(of_cell * factor for factor in cell), squashed * o * (1 - o))


def _summed_over_gates(factors: Sequence[Float[Tensor, "n d"]], weight: Float[Tensor, "g o"]) -> Float[Tensor, "n d o"]:
    """Σ over gates of diag(factor) U, for the U of each gate below each other in ``weight``."""
    stacked = weight.reshape(len(factors), -1, weight.shape[1])
    return torch.einsum("gnk,gkj->nkj", torch.stack(list(factors)), stacked)


def _times_gates(
    factors: Sequence[Float[Tensor, "n d"]], weight: Float[Tensor, "g o"], values: Float[Tensor, "n o"]
) -> Float[Tensor, "n d"]:
    """The product of `_summed_over_gates` and a vector for each row, without the matrices."""
    sums = (values @ weight.T).chunk(len(factors), dim=1)
    return torch.stack([factor * part for factor, part in zip(factors, sums, strict=True)]).sum(dim=0)


SLOPES = {
    lstm_rule: lstm_slopes,
    gru_rule: gru_slopes,
    rnn_tanh_rule: rnn_tanh_slopes,
    rnn_relu_rule: rnn_relu_slopes,
}
"""The Jacobian that belongs to each rule."""


def layer_slopes(
    step: RecurrentStep, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d d"]]:
    """The states after reading ``x``, and ∂(next state)/∂(state) of each row, from the weights of a layer."""
    parts, weight_hh, projection = step.parts(h, x)
    slopes = SLOPES[step.rule](*parts, weight_hh)
    if projection is not None:  # the layer gives h' = P (o tanh(c')), and reads that
        width = slopes.shape[1] // 2
        slopes = torch.cat([projection @ slopes[:, :width], slopes[:, width:]], dim=1)
    return step.rule(*parts, projection), slopes


def implicit_step(
    step: RecurrentStep, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], leaps: Float[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """The states after an implicit step worth τ of the layer's own: h + ((1 + 1/τ) I − J)⁻¹ (step(h, x) − h)."""
    parts, weight_hh, projection = step.parts(h, x)
    residual = step.rule(*parts, projection) - h
    if step.rule is lstm_rule and projection is None:
        return h + solve_lstm(*parts, weight_hh, shift=1 + 1 / leaps, residual=residual)  # type: ignore[arg-type]
    return h + solve_shifted(layer_slopes(step, h, x)[1], 1 + 1 / leaps, residual)


def step_with_slopes(
    step: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d d"]]:
    """The next states and ∂F_i/∂h_j of each row: from the weights of torch's own layers, else by backward passes."""
    if isinstance(step, RecurrentStep):  # a nineteenth of the time, for an LSTM of 128 units
        with torch.no_grad():
            return layer_slopes(step, h, x)
    leaf = h.clone().requires_grad_()
    following = step(leaf, x)
    return following.detach(), derivatives(following, leaf).contiguous()  # Newton changes it in place


def jacobians(
    step: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d d"], Float[Tensor, "n d p"]]:
    """The next states, ∂F_i/∂h_j and ∂F_i/∂x_j of each row."""
    if not len(h):  # the step need not take no rows
        return h, h.new_zeros(0, h.shape[1], h.shape[1]), h.new_zeros(0, h.shape[1], x.shape[1])
    parts = []
    for rows in row_blocks(*h.shape):
        following, of_h = step_with_slopes(step, h[rows], x[rows])
        x_leaf = x[rows].clone().requires_grad_()
        parts.append((following, of_h, _derivatives_of_inputs(step, h[rows], x_leaf)))
    following, of_h, of_x = (torch.cat(part) for part in zip(*parts, strict=True))
    return following, of_h, of_x


def _derivatives_of_inputs(
    step: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> Float[Tensor, "n d p"]:
    """∂F_i/∂x_j of each row; zeros for a step that does not read its inputs."""
    following = step(h, x)
    if not following.requires_grad:
        return x.new_zeros(*h.shape, x.shape[1])
    return derivatives(following, x)


def eigenvalues_of(matrices: Float[Array, "k d d"]) -> Complex[Array, "k d"]:
    """Eigenvalues by decreasing modulus; NaN where a Jacobian is not finite, at a point without a derivative."""
    eigenvalues = np.full(matrices.shape[:2], np.nan, dtype=complex)
    smooth = np.isfinite(matrices).all(axis=(1, 2))
    eigenvalues[smooth] = np.linalg.eigvals(matrices[smooth])
    # A stable sort: both of a conjugate pair have the same modulus, and rounding must not swap them.
    return np.take_along_axis(eigenvalues, np.argsort(-np.abs(eigenvalues), axis=1, kind="stable"), axis=1)


def is_stable(eigenvalues: Complex[Array, "k d"]) -> Shaped[Array, " k"]:
    """Whether the largest eigenvalue of each point has modulus below 1, by `STABLE_MARGIN`."""
    return np.abs(eigenvalues[:, 0]) < 1 - STABLE_MARGIN
