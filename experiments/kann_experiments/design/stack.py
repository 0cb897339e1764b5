"""Train many small networks at once: a recurrent layer and a readout each, padded to one width and stacked."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kann.typing import Float
from kann_experiments.training import seeded

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
KINDS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Network(nn.Module):
    """A recurrent layer that reads one-hot words or numbers, and a linear readout of each state."""

    def __init__(self, arch: str, *, inputs: int, units: int, outputs: int, seed: int, last: bool):
        super().__init__()
        self.arch, self.inputs, self.last = arch, inputs, last
        with seeded(seed), torch.no_grad():
            self.recurrent: Any = KINDS[arch](inputs, units, batch_first=True)
            self.readout = nn.Linear(units, outputs)
            if arch == "rnn":  # as in the other experiments: it forgets nothing at first
                nn.init.eye_(self.recurrent.weight_hh_l0)
            if arch == "lstm":  # torch stores the gates in the order input, forget, cell, output
                self.recurrent.bias_hh_l0[units : 2 * units] += 1.0

    def forward(self, x: Tensor) -> Float[Tensor, "s *t o"]:
        """Outputs of all steps, or of the last one; ``x`` holds numbers of words (s, t) or numbers (s, t, p)."""
        x = x if x.is_floating_point() else nn.functional.one_hot(x, self.inputs).float()
        states = self.recurrent(x)[0]
        return self.readout(states[:, -1] if self.last else states)


def train_together(
    networks: Sequence[Network],
    draw: Callable[[int], tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Float[Tensor, " e"]],
    *,
    iterations: int,
    rate: float,
    clip: float = 1.0,
) -> None:
    """Train networks of one architecture and any sizes on the same batches, each by itself, with Adam.

    They are padded with units whose weights are all 0. Such units are 0 at every step and have zero gradients, so they
    stay 0. ``draw`` gives the batch of an iteration; ``loss`` takes outputs (e, s, …) and answers to the loss of each
    network. The rate stays for the first half and then falls to zero.
    """
    stack = _Stack(networks)
    optimizer = torch.optim.Adam(stack.weights.values(), lr=rate)
    for iteration in range(iterations):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, 2 * (1 - iteration / iterations))
        x, answers = draw(iteration)
        optimizer.zero_grad()
        loss(stack(x), answers).sum().backward()  # a sum: the gradient of each network is of its loss alone
        gradients = [weight.grad for weight in stack.weights.values() if weight.grad is not None]
        norms = torch.stack([each.flatten(1).norm(dim=1) for each in gradients]).norm(dim=0)
        for gradient in gradients:
            gradient *= (clip / norms.clamp(min=clip)).reshape(-1, *[1] * (gradient.ndim - 1))
        optimizer.step()
    stack.write_back()


class _Stack:
    """The weights of all networks, (e, gates, width, …), of which each network has a corner; the rest is 0."""

    def __init__(self, networks: Sequence[Network]):
        self.networks, self.arch, self.last = networks, networks[0].arch, networks[0].last
        self.weights: dict[str, Tensor] = {}
        for name, _ in networks[0].named_parameters():
            blocks = [self._blocks(name, each) for each in networks]
            wide = torch.zeros(len(blocks), *(max(sizes) for sizes in zip(*(own.shape for own in blocks), strict=True)))
            for weight, own in zip(wide, blocks, strict=True):
                weight[_corner(own)] = own
            self.weights[name] = wide.requires_grad_()

    def _blocks(self, name: str, network: Network) -> Tensor:
        """A weight of one network with its gates as the first axis."""
        weight = network.get_parameter(name).detach()
        return weight.unflatten(0, (GATES[self.arch], -1)) if name.startswith("recurrent") else weight

    @torch.no_grad()
    def write_back(self) -> None:
        """Give the networks their weights."""
        for name, wide in self.weights.items():
            for weight, network in zip(wide, self.networks, strict=True):
                blocks = self._blocks(name, network)
                blocks.copy_(weight[_corner(blocks)])

    def __call__(self, x: Tensor) -> Float[Tensor, "e s *t o"]:
        """Outputs of all networks."""
        weights = {name.removesuffix("_l0"): weight for name, weight in self.weights.items()}
        states = self._states(
            x, *(weights[f"recurrent.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        )
        read = states[-1] if self.last else torch.stack(states, dim=2)  # (e, s, d) or (e, s, t, d)
        bias = weights["readout.bias"].reshape(len(read), *[1] * (read.ndim - 2), -1)
        return torch.einsum("e...d,eod->e...o", read, weights["readout.weight"]) + bias

    def _states(self, x: Tensor, read: Tensor, turn: Tensor, bias: Tensor, hidden_bias: Tensor) -> list[Tensor]:
        """The states (e, s, d) of all steps."""
        if x.is_floating_point():
            drive = torch.einsum("stp,egdp->tesgd", x, read).flatten(3)
        else:
            drive = read.movedim(3, 1)[:, x.T].transpose(0, 1).flatten(3)  # (t, e, s, g·d)
        drive = drive + bias.flatten(1)[:, None]
        turn, hidden_bias = turn.flatten(1, 2).transpose(1, 2), hidden_bias.flatten(1)[:, None]
        h = c = drive.new_zeros(*drive.shape[1:3], turn.shape[1])
        states = []
        for own in drive:
            felt = torch.baddbmm(hidden_bias, h, turn)
            if self.arch == "rnn":
                h = torch.tanh(own + felt)
            elif self.arch == "gru":
                (r, z), width = (own + felt)[..., : 2 * h.shape[-1]].sigmoid().chunk(2, -1), 2 * h.shape[-1]
                n = torch.tanh(own[..., width:] + r * felt[..., width:])
                h = n + z * (h - n)
            else:
                i, f, g, o = (own + felt).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            states.append(h)
        return states


def _corner(weight: Tensor) -> tuple[slice, ...]:
    return tuple(map(slice, weight.shape))
