"""dtriv: a vanilla recurrent network whose hidden matrix is orthogonal (Lezcano-Casado 2019)."""

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from kann.typing import Float


class OrthogonalCell(nn.Module):
    """One step, h' = modReLU(A h + W x) with A orthogonal: A = A₀ exp(S) for a skew-symmetric S that is trained."""

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.drive = nn.Linear(inputs, units, bias=False)
        nn.init.kaiming_normal_(self.drive.weight)
        self.turn = nn.Linear(units, units, bias=False)
        # A₀ is drawn evenly from all orthogonal matrices. From the identity, or from turns by angles below 0.3, the
        # same training of the copy task ends with half of the digits right.
        nn.init.orthogonal_(self.turn.weight)
        orthogonal(self.turn, "weight", orthogonal_map="matrix_exp")
        self.threshold = nn.Parameter(torch.empty(units).uniform_(-0.01, 0.01))

    def forward(self, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> Float[Tensor, "n d"]:
        """The states after reading ``x``."""
        return modrelu(self.turn(h) + self.drive(x), self.threshold)


class OrthogonalRNN(nn.Module):
    """The cell over time, called like ``torch.nn.RNN(batch_first=True)``, always from the zero state."""

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.cell = OrthogonalCell(inputs, units)
        self.state = nn.Identity()  # every state passes it, so that one can be replaced before the next step

    def forward(self, x: Float[Tensor, "s t p"]) -> tuple[Float[Tensor, "s t d"], Float[Tensor, "1 s d"]]:
        """All states and the last ones."""
        turn = self.cell.turn.weight.T  # once for all steps: it is a matrix exponential
        h = x.new_zeros(len(x), len(turn))
        states = []
        for drive in self.cell.drive(x).unbind(dim=1):  # (s, d) for each step
            h = self.state(modrelu(torch.addmm(drive, h, turn), self.cell.threshold))
            states.append(h)
        return torch.stack(states, dim=1), h[None]


def modrelu(z: Float[Tensor, "n d"], threshold: Float[Tensor, " d"]) -> Float[Tensor, "n d"]:
    """sign(z)·max(|z| + b, 0), for a threshold b of either sign.

    Written as z + b·sign(z) where |z| > −b, so that its slope is 1 there, also at z = 0, where for b > 0 the function
    jumps from −b to b: the slope of both sides. As a product of signs and moduli it would be 0 at that point.
    """
    return torch.where(z.abs() + threshold > 0, z + threshold * z.sign(), 0.0)
