"""Derivatives of a step, and the eigenvalues that decide whether a point is stable."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from kann.fixed_points.step_function import StepFunction
from kann.recording import RecurrentStep
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
    """∂following_i/∂to_j of each row: one backward pass, vectorised over i; zeros if it does not depend on it.

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
        from_input, leaves = (
            sums[0].detach(),
            [each.detach().requires_grad_() for each in (h if c is None else c, sums[1])],
        )
        states = (leaves[0], None) if c is None else (h, leaves[0])
        following = rule(*states, from_input, leaves[1], None)
        parts = [following] if c is None else following.chunk(2, dim=-1)
        found = []
        for part in parts:
            own, gates = torch.autograd.grad(part.sum(), leaves, retain_graph=True, materialize_grads=True)
            found.append((own, gates.unflatten(1, (-1, own.shape[1]))))
    return found


def _through_weights(gates: Float[Tensor, "n g d"], weight: Float[Tensor, "gd o"]) -> Float[Tensor, "n d o"]:
    """Σ over gates of diag(slopes) U, for the U of each gate below each other in ``weight``."""
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
    """The states after reading ``x``, and ∂(next state)/∂(state) of each row, from the weights of a layer."""
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
    """The next states and ∂F_i/∂h_j of each row: from the weights of torch's own layers, else by backward passes."""
    if isinstance(step, RecurrentStep):  # a nineteenth of the time, for an LSTM of 128 units
        return layer_slopes(step, h, x)
    leaf = h.clone().requires_grad_()
    following = step(leaf, x)
    return following.detach(), derivatives(following, leaf).contiguous()  # Newton changes it in place


def implicit_step(
    step: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], leaps: Float[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """The states after an implicit step worth τ of the network's own: h + ((1 + 1/τ) I − J)⁻¹ (step(h, x) − h).

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
    """The next states, ∂F_i/∂h_j and ∂F_i/∂x_j of each row."""
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
    """Eigenvalues by decreasing modulus; NaN where a Jacobian is not finite, at a point without a derivative."""
    eigenvalues = np.full(matrices.shape[:2], np.nan, dtype=complex)
    smooth = np.isfinite(matrices).all(axis=(1, 2))
    eigenvalues[smooth] = np.linalg.eigvals(matrices[smooth])
    # A stable sort: both of a conjugate pair have the same modulus, and rounding must not swap them.
    return np.take_along_axis(eigenvalues, np.argsort(-np.abs(eigenvalues), axis=1, kind="stable"), axis=1)


def is_stable(eigenvalues: Complex[Array, "k d"]) -> Shaped[Array, " k"]:
    """Whether the largest eigenvalue of each point has modulus below 1, by `STABLE_MARGIN`."""
    return np.abs(eigenvalues[:, 0]) < 1 - STABLE_MARGIN
