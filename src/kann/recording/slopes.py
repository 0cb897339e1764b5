"""Jacobians of torch's recurrent layers, from their weights: what a backward pass for each unit gives, in one product.

With a = W x + U h + b for the gates, an output unit k depends on h through the k-th entry of each gate alone, so that
its row of the Jacobian is a sum over gates of ∂(unit k)/∂a_k times row k of U.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kann.typing import Float


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
