"""The n-bit flip-flop: a task whose networks are known to need 2ⁿ stable fixed points.

Each of n inputs is mostly 0 and now and then a pulse of ±1; the n outputs are the signs of the last pulses. While no
pulse comes the network must stay where it is, so every one of the 2ⁿ memories is a stable state under zero input.
"""

import torch
from torch import Tensor, nn

LAYERS = {"rnn": (nn.RNN, 24), "gru": (nn.GRU, 16), "lstm": (nn.LSTM, 16)}
"""Recurrent layers by name, and how many hidden units they get."""


class FlipFlop(nn.Module):
    """A recurrent layer and a linear readout of its hidden state."""

    def __init__(self, kind: str, bits: int):
        super().__init__()
        layer, hidden = LAYERS[kind]
        self.layer = layer(bits, hidden, batch_first=True)
        self.readout = nn.Linear(hidden, bits)
        if kind == "rnn":  # an orthogonal matrix forgets nothing at first, which makes memories easy to learn
            nn.init.orthogonal_(self.layer.weight_hh_l0)

    def forward(self, inputs: Tensor) -> Tensor:
        """From inputs (n, t, bits) to outputs (n, t, bits)."""
        return self.readout(self.layer(inputs)[0])


def trials(
    bits: int, count: int, steps: int, *, generator: torch.Generator, rate: float = 0.15
) -> tuple[Tensor, Tensor]:
    """Inputs and targets (count, steps, bits). The first step has a pulse for every bit."""
    shape = (count, steps, bits)
    sign = 2.0 * torch.randint(0, 2, shape, generator=generator) - 1
    pulse = torch.rand(shape, generator=generator) < rate
    pulse[:, 0] = True
    last = torch.where(pulse, torch.arange(steps)[:, None], 0).cummax(dim=1).values
    return sign * pulse, sign.gather(1, last)


def train(kind: str, bits: int, *, seed: int, iterations: int = 400) -> FlipFlop:
    """Train on 50 steps with a pulse every 7 steps on average; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = FlipFlop(kind, bits)
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=iterations)
    for _ in range(iterations):
        inputs, targets = trials(bits, 64, 50, generator=generator)
        loss = nn.functional.mse_loss(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return network.eval()


@torch.no_grad()
def accuracy(network: FlipFlop, *, seed: int) -> float:
    """Share of bits that are right over 200 steps with a pulse every 33 steps: memories that last."""
    inputs, targets = trials(network.layer.input_size, 128, 200, generator=_generator(seed), rate=0.03)
    return float((network(inputs).sign() == targets).float().mean())


@torch.no_grad()
def visited(network: FlipFlop, count: int, *, seed: int) -> Tensor:
    """States (count, d) that the network visits on new trials; those of an LSTM are h and c side by side."""
    generator = _generator(seed)
    inputs, _ = trials(network.layer.input_size, 64, 64, generator=generator)
    states, state = [], None
    for t in range(inputs.shape[1]):
        _, state = network.layer(inputs[:, t : t + 1], state)
        states.append(torch.cat(state, dim=2)[0] if isinstance(state, tuple) else state[0])
    rows = torch.cat(states)
    return rows[torch.randperm(len(rows), generator=generator)[:count]]


@torch.no_grad()
def memories(network: FlipFlop, states: Tensor) -> set[tuple[bool, ...]]:
    """The different memories that states (n, d) read out as."""
    hidden = states[:, : network.layer.hidden_size].to(network.readout.weight.dtype)
    return {tuple(bits) for bits in (network.readout(hidden) > 0).tolist()}


@torch.no_grad()
def held(network: FlipFlop, states: Tensor, steps: int = 2000) -> set[tuple[bool, ...]]:
    """The memories that the network itself still holds after running from states (n, d) without any pulse."""
    hidden = network.layer.hidden_size
    state = states[None]
    if isinstance(network.layer, nn.LSTM):
        state = (states[None, :, :hidden].contiguous(), states[None, :, hidden:].contiguous())
    silence = torch.zeros(len(states), steps, network.layer.input_size)
    return memories(network, network.layer(silence, state)[0][:, -1])


def _generator(seed: int) -> torch.Generator:
    """Random numbers that training with the same seed has not seen."""
    return torch.Generator().manual_seed(1_000_000 + seed)
