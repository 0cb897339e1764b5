"""Derivatives of a step, and the eigenvalues that decide whether a point is stable."""

from collections.abc import Iterator

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


def step_with_slopes(
    step: StepFunction, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d d"]]:
    """The next states and ∂F_i/∂h_j of each row: from the weights of torch's own layers, else by backward passes."""
    if isinstance(step, RecurrentStep):  # a nineteenth of the time, for an LSTM of 128 units
        with torch.no_grad():
            return step.with_slopes(h, x)
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
