"""A small Mamba, as a scan and one step at a time, and an LSTM and a transformer of about the same size."""

import math
from typing import Any

import torch
from torch import Tensor, nn

import kann
from kann.recording import step_by_step
from kann.typing import Float, Int

WIDTH, CHANNELS, KERNEL, RANK = 32, 64, 4, 2
"""Width of the residual stream, channels of the block, inputs that the convolution reads, and width of the bottleneck
before the step sizes Δ: as published, relative to the width."""

STATE = 8
"""Numbers of the state of each channel."""

LEAST_STEP, LARGEST_STEP = 1e-3, 1e-1
"""Range of the step sizes Δ at the start, as published (Gu and Dao 2023)."""

LSTM_UNITS = 32
"""Units of the LSTM, which then has about the parameters of the Mamba."""

ATTENTION_WIDTH, HEADS, ATTENTION_LAYERS = 24, 4, 2
"""The same for the transformer. One layer cannot find the token that follows another one."""

BlockState = tuple[Float[Tensor, "s c n"], Float[Tensor, "s c w"]]
"""The state of a block: h of the recurrence, and the buffer of the convolution with its last inputs."""


class MambaBlock(nn.Module):
    """A selective state-space block: x + out(y · silu(gate)), with h ← exp(ΔA) h + ΔBu and y = C h + D u.

    u is a gated input after a causal convolution of each channel; Δ, B and C are linear functions of u, so each token
    decides what is written, read and forgotten. A is diagonal and negative.
    """

    def __init__(self, state: int):
        super().__init__()
        self.state = state
        self.norm = nn.RMSNorm(WIDTH)
        self.into = nn.Linear(WIDTH, 2 * CHANNELS, bias=False)
        self.convolution = nn.Conv1d(CHANNELS, CHANNELS, KERNEL, groups=CHANNELS)
        self.select = nn.Linear(CHANNELS, RANK + 2 * state, bias=False)
        self.step_size = nn.Linear(RANK, CHANNELS)
        self.log_rates = nn.Parameter(torch.empty(CHANNELS, state))
        self.skip = nn.Parameter(torch.empty(CHANNELS))
        self.out = nn.Linear(CHANNELS, WIDTH, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw what the modules inside do not draw themselves, as published."""
        self.log_rates.copy_(torch.arange(1.0, self.state + 1).log().expand_as(self.log_rates))
        self.skip.fill_(1.0)
        low, high = math.log(LEAST_STEP), math.log(LARGEST_STEP)
        steps = torch.exp(low + (high - low) * torch.rand(CHANNELS))
        self.step_size.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus

    def forward(self, x: Float[Tensor, "s t d"]) -> Float[Tensor, "s t d"]:
        """Read all steps: everything but the scan is computed for all of them at once."""
        u, gate = self.into(self.norm(x)).chunk(2, dim=-1)
        u = self.convolved(u)
        h, read = u.new_zeros(len(x), CHANNELS, self.state), []
        # Not by index: the gradient of an index is a tensor of all steps.
        for decay, write, reads in zip(*(each.unbind(dim=1) for each in self.selected(u)), strict=True):
            h = torch.addcmul(write, decay, h)
            read.append((h @ reads.transpose(-1, -2)).squeeze(-1))
        return x + self.out((torch.stack(read, dim=1) + self.skip * u) * nn.functional.silu(gate))

    def convolved(self, u: Float[Tensor, "s t c"]) -> Float[Tensor, "s t c"]:
        """Convolve each channel over the last inputs, zeros before the first."""
        padded = nn.functional.pad(u.transpose(1, 2), (KERNEL - 1, 0))
        return nn.functional.silu(self.convolution(padded)).transpose(1, 2)

    def selected(
        self, u: Float[Tensor, "... c"]
    ) -> tuple[Float[Tensor, "... c n"], Float[Tensor, "... c n"], Float[Tensor, "... 1 n"]]:
        """Compute from u what is kept of the state, exp(ΔA), what is added, ΔBu, and how it is read, C."""
        small, b, c = self.select(u).split([RANK, self.state, self.state], dim=-1)
        sizes = nn.functional.softplus(self.step_size(small))
        decays = torch.exp(-sizes[..., None] * self.log_rates.exp())
        return decays, (sizes * u)[..., None] * b[..., None, :], c[..., None, :]

    def step(self, x: Float[Tensor, "s d"], state: BlockState) -> tuple[Float[Tensor, "s d"], BlockState]:
        """Read one step."""
        h, buffer = state
        new, gate = self.into(self.norm(x)).chunk(2, dim=-1)
        window = torch.cat([buffer, new[..., None]], dim=-1)
        weight, bias = self.convolution.parameters()
        u = nn.functional.silu((window * weight[:, 0]).sum(-1) + bias)
        decays, writes, reads = self.selected(u)
        h = decays * h + writes
        y = (h * reads).sum(-1) + self.skip * u
        return x + self.out(y * nn.functional.silu(gate)), (h, window[..., 1:])

    def initial(self, count: int) -> BlockState:
        """Return the state before the first step."""
        return torch.zeros(count, CHANNELS, self.state), torch.zeros(count, CHANNELS, KERNEL - 1)


class Mamba(nn.Module):
    """Embedding, one block, and a linear readout of every step."""

    def __init__(self, tokens: int, classes: int, *, state: int = STATE):
        super().__init__()
        self.embedding = nn.Embedding(tokens, WIDTH)
        self.block = MambaBlock(state)
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, tokens: Int[Tensor, "s t"]) -> Float[Tensor, "s t o"]:
        """Compute the outputs of all steps."""
        return self.head(self.norm(self.block(self.embedding(tokens))))

    @torch.no_grad()
    def decays(self, tokens: Int[Tensor, "s t"]) -> Float[Tensor, "s t c n"]:
        """Compute exp(ΔA) at each step."""
        u, _ = self.block.into(self.block.norm(self.embedding(tokens))).chunk(2, dim=-1)
        return self.block.selected(self.block.convolved(u))[0]


class LSTM(nn.Module):
    """The same with an LSTM."""

    def __init__(self, tokens: int, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(tokens, WIDTH)
        self.recurrent = nn.LSTM(WIDTH, LSTM_UNITS, batch_first=True)
        self.head = nn.Linear(LSTM_UNITS, classes)

    def forward(self, tokens: Int[Tensor, "s t"]) -> Float[Tensor, "s t o"]:
        """Compute the outputs of all steps."""
        return self.head(self.recurrent(self.embedding(tokens))[0])


class Transformer(nn.Module):
    """The same with causal attention; its keys and values grow with every step, so there is no state to analyse."""

    def __init__(self, tokens: int, classes: int, *, steps: int):
        super().__init__()
        width = ATTENTION_WIDTH
        self.embedding, self.position = nn.Embedding(tokens, width), nn.Embedding(steps, width)
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 2 * width, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, ATTENTION_LAYERS, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, tokens: Int[Tensor, "s t"]) -> Float[Tensor, "s t o"]:
        """Compute the outputs of all steps."""
        steps = tokens.shape[1]
        x = self.embedding(tokens) + self.position(torch.arange(steps))
        mask = nn.Transformer.generate_square_subsequent_mask(steps)
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))


def recurrent_form(network: Mamba, example: Int[Tensor, "s t"]) -> kann.recording.StepByStep:
    """Return the Mamba in its recurrent form, after a comparison with the scan on ``example``.

    Its state, ``layers.state``, is h, then the buffer.
    """

    def step(model: Any, token: Int[Tensor, " s"], state: BlockState) -> tuple[Float[Tensor, "s o"], BlockState]:
        x, state = model.block.step(model.embedding(token), state)
        return model.head(model.norm(x)), state

    def initial(model: Any, count: int) -> BlockState:
        return model.block.initial(count)

    return step_by_step(network, step=step, initial=initial, example=example)
