"""The copy task, the orthogonal network of the paper that learns it, and the trained one that ships with kann.

The paper's example, ``928---:--`` in and ``------928`` out, has three digits and three blanks. ``-`` is a blank, and
``:`` tells the network to start; the first digit is due in the step in which the network reads it.
"""

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from kann.data.archives import damage_explained
from kann.typing import Array, Float, Int
from kann.zoo import ADDED_LATER, PROVENANCE, WEIGHTS, folder, read_provenance, require_files, with_weights

BLANK = 0
"""The number of the blank, in inputs and answers; the digits are 1, 2, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The size of the task."""

    digits: int = 3
    """The number of digits to remember."""
    blanks: int = 30
    """The number of steps to wait."""
    letters: int = 9
    """The number of different digits: 1 to 9, since the paper's example has a 9 and it writes a blank as 0."""
    zero_blanks: bool = field(default=False, metadata=ADDED_LATER)
    """Whether a blank is an input of zeros, as in the paper. By default it is a character like the others, an input
    that is 1, as in the published code of dtriv."""

    @property
    def length(self) -> int:
        """Steps of a sequence: digits, blanks, the sign to start, and the rest of the answer."""
        return 2 * self.digits + self.blanks

    @property
    def width(self) -> int:
        """Inputs of the network, of which one is 1 and the others 0: blank, digits, the sign to start."""
        return self.letters + 2

    def sequences(self, digits: Int[Array, "s k"]) -> tuple[Float[Tensor, "s t p"], Int[Tensor, "s t"]]:
        """Return the inputs of the network and the correct answers.

        >>> x, answer = Task(blanks=3).sequences(np.array([[9, 2, 8]]))
        >>> x.shape, answer.tolist()
        (torch.Size([1, 9, 11]), [[0, 0, 0, 0, 0, 0, 9, 2, 8]])
        """
        read = torch.full((len(digits), self.length), BLANK)
        answer = read.clone()
        read[:, : self.digits] = answer[:, -self.digits :] = torch.as_tensor(digits)
        read[:, self.digits + self.blanks] = self.width - 1
        x = nn.functional.one_hot(read, self.width).float()
        if self.zero_blanks:
            x[..., BLANK] = 0.0
        return x, answer

    def draw(self, rng: np.random.Generator, count: int) -> Int[Array, "s k"]:
        """Return random digits of ``count`` sequences."""
        return rng.integers(1, self.letters, size=(count, self.digits), endpoint=True)

    def every(self) -> Int[Array, "s k"]:
        """Return digits of all sequences that there are: 729 of three digits."""
        return np.array(list(itertools.product(range(1, self.letters + 1), repeat=self.digits)))


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
        """Return the states after reading ``x``."""
        return modrelu(self.turn(h) + self.drive(x), self.threshold)


class OrthogonalRNN(nn.Module):
    """The cell over time, called like ``torch.nn.RNN(batch_first=True)``, always from the zero state."""

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.cell = OrthogonalCell(inputs, units)
        self.state = nn.Identity()  # every state passes it, so that one can be replaced before the next step

    def forward(self, x: Float[Tensor, "s t p"]) -> tuple[Float[Tensor, "s t d"], Float[Tensor, "1 s d"]]:
        """Return all states and the last ones."""
        turn = self.cell.turn.weight.T  # once for all steps: it is a matrix exponential
        h = x.new_zeros(len(x), len(turn))
        states = []
        for drive in self.cell.drive(x).unbind(dim=1):  # (s, d) for each step
            h = self.state(modrelu(torch.addmm(drive, h, turn), self.cell.threshold))
            states.append(h)
        return torch.stack(states, dim=1), h[None]


def modrelu(z: Float[Tensor, "n d"], threshold: Float[Tensor, " d"]) -> Float[Tensor, "n d"]:
    """Compute sign(z)·max(|z| + b, 0), for a threshold b of either sign.

    Written as z + b·sign(z) where |z| > −b, so that its slope is 1 there, also at z = 0, where for b > 0 the function
    jumps from −b to b: the slope of both sides. As a product of signs and moduli it would be 0 at that point.
    """
    return torch.where(z.abs() + threshold > 0, z + threshold * z.sign(), 0.0)


class CopyNetwork(nn.Module):
    """A recurrent layer and a linear readout of each of its states."""

    def __init__(self, recurrent: nn.Module, units: int, outputs: int):
        super().__init__()
        self.recurrent = recurrent
        self.readout = nn.Linear(units, outputs)

    def forward(self, x: Float[Tensor, "s t p"]) -> Float[Tensor, "s t o"]:
        """Return scores of blank and digits at each step."""
        return self.readout(self.recurrent(x)[0])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pretrained:
    """The network of the copy task that ships with kann."""

    network: CopyNetwork
    task: Task
    provenance: dict[str, Any]
    """Command, seed, versions, and what was measured."""

    def draw(self, count: int, *, seed: int = 0) -> tuple[Float[Tensor, "s t p"], Int[Tensor, "s t"]]:
        """Draw random sequences: inputs and correct answers."""
        return self.task.sequences(self.task.draw(np.random.default_rng(seed), count))

    @property
    def characters(self) -> list[str]:
        """Characters by input number: blank, digits, the sign to start. The outputs are all but the last."""
        return ["-", *map(str, range(1, self.task.letters + 1)), ":"]


def pretrained(place: str | os.PathLike[str] | None = None) -> Pretrained:
    """Load the network that ships with kann, or the one in the folder ``place``."""
    place = Path(place or folder("copy"))
    require_files(place, WEIGHTS, PROVENANCE)
    provenance = read_provenance(place)
    with damage_explained(place / PROVENANCE, problem="describes no copy task", remedy="reinstall kann"):
        task, units = Task(**provenance["task"]), int(provenance["units"])
    network = with_weights(
        place / WEIGHTS, lambda _: CopyNetwork(OrthogonalRNN(task.width, units), units, task.letters + 1)
    )
    return Pretrained(network=network, task=task, provenance=provenance)
