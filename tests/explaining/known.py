# ruff: noqa: D102  # models say what they are by their names
"""Networks whose answer is known: what each was trained to compute, and data that it reads.

weights/make.py trains them; tests load the weights.
"""

import math

import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

from kann import zoo

# A cyclic counter


class Counter(nn.Module):
    """Counts pulses modulo 3, at every step: a pulse turns its state by a third of a circle."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def pulses(count, steps, generator):
    """Zeros and, with probability 0.3, ones; the number of ones so far modulo 3."""
    x = (torch.rand(count, steps, 1, generator=generator) < 0.3).float()
    return x, x[..., 0].cumsum(dim=1).long() % 3


# Context-dependent integration (Mante et al. 2013)


class ContextIntegrator(nn.Module):
    """Integrates motion or colour, whichever the cue selects, and tells the sign at the last step."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.RNN(4, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


CHANNELS = ("motion", "colour", "motion cue", "colour cue")


def evidence(count, steps, generator):
    """Noisy motion and colour of a random strength each, a one-hot cue, and whether the cued sum is positive."""
    strength = 0.4 * (2 * torch.rand(count, 1, 2, generator=generator) - 1)
    x = strength + 0.5 * torch.randn(count, steps, 2, generator=generator)
    cue = torch.randint(2, (count,), generator=generator)
    cues = one_hot(cue, 2).float()[:, None].expand(-1, steps, -1)
    cued = x.sum(dim=1).gather(1, cue[:, None])[:, 0]
    return torch.cat([x, cues], dim=2), (cued > 0).long()


# A gate without a recurrent module


class MinGRU(nn.Module):
    """h ← (1 − z) h + z c, with z and c functions of the input alone (Feng et al. 2024)."""

    def __init__(self, inputs, units):
        super().__init__()
        self.gate, self.candidate = nn.Linear(inputs, units), nn.Linear(inputs, units)

    def forward(self, x):
        z, c = torch.sigmoid(self.gate(x)), self.candidate(x)
        h, states = torch.zeros_like(c[:, 0]), []
        for t in range(x.shape[1]):
            h = (1 - z[:, t]) * h + z[:, t] * c[:, t]
            states.append(h)
        return torch.stack(states, dim=1)


class Latch(nn.Module):
    """Gives at every step the value that it read when the flag was last set."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = MinGRU(2, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.layer(x))


def flagged(count, steps, generator):
    """A random value and, with probability 0.2, a flag; the value at the last flag. The first step has one."""
    value = torch.randn(count, steps, generator=generator)
    flag = (torch.rand(count, steps, generator=generator) < 0.2).float()
    flag[:, 0] = 1
    last = torch.cummax(torch.arange(steps) * flag, dim=1).values.long()
    return torch.stack([value, flag], dim=2), value.gather(1, last)[..., None]


# A forecaster


class Forecaster(nn.Module):
    """Reads a damped oscillation with noise and forecasts it, each step from its own last forecast."""

    AHEAD, MODULUS, PERIOD = 24, 0.97, 12

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.head = nn.GRU(1, 16, batch_first=True), nn.GRUCell(1, 16), nn.Linear(16, 1)

    def forward(self, past):
        h, last, forecasts = self.encoder(past)[1][0], past[:, -1], []
        for _ in range(self.AHEAD):
            h = self.decoder(last, h)
            last = self.head(h)
            forecasts.append(last)
        return torch.stack(forecasts, dim=1)


def oscillations(count, generator):
    """A batch with 30 noisy steps of oscillations of any size and phase, and the noise-free steps that follow."""
    steps = torch.arange(30 + Forecaster.AHEAD)
    size = 0.5 + 1.5 * torch.rand(count, 1, generator=generator)
    phase = 2 * math.pi * torch.rand(count, 1, generator=generator)
    # The size is that at the first forecast, so that what is forecast does not vanish.
    decay = Forecaster.MODULUS ** (steps - 30)
    signal = size * decay * torch.cos(2 * math.pi * steps / Forecaster.PERIOD + phase)
    noisy = signal[:, :30] + 0.05 * torch.randn(count, 30, generator=generator)
    return {"past": noisy[..., None]}, signal[:, 30:, None]


# A state-space model by convolution


class DiagonalStateSpace(nn.Module):
    """S4D: complex states h ← exp(Δ a) h + b u, of which y = Re(c h), computed as one convolution by FFT."""

    def __init__(self, channels, states):
        super().__init__()
        self.log_decay = nn.Parameter(torch.full((channels, states), math.log(0.02)))
        self.frequency = nn.Parameter(torch.linspace(0.1, 1.5, states).expand(channels, -1).clone())
        self.mix = nn.Parameter(torch.randn(channels, states, 2) / math.sqrt(states))

    def kernel(self, steps):
        exponent = torch.complex(-self.log_decay.exp(), self.frequency)[..., None] * torch.arange(steps)
        return torch.einsum("cn,cnt->ct", torch.view_as_complex(self.mix.contiguous()), exponent.exp()).real

    def forward(self, u):
        steps = u.shape[1]
        found = torch.fft.irfft(
            torch.fft.rfft(u, n=2 * steps, dim=1) * torch.fft.rfft(self.kernel(steps).T, n=2 * steps, dim=0),
            n=2 * steps,
            dim=1,
        )
        return found[:, :steps]


class PeriodDetector(nn.Module):
    """Tells whether a noisy oscillation has a period of 10 or of 16 steps, by its power."""

    def __init__(self):
        super().__init__()
        self.read, self.layer, self.head = nn.Linear(1, 8), DiagonalStateSpace(8, 4), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.layer(self.read(x))[:, -16:].square().mean(dim=1))


PERIODS = (10, 16)


def periodic(count, steps, generator):
    """Oscillations of one of two periods in as much noise, and which of them."""
    which = torch.randint(2, (count,), generator=generator)
    period = torch.tensor(PERIODS)[which][:, None]
    phase = 2 * math.pi * torch.rand(count, 1, generator=generator)
    signal = torch.cos(2 * math.pi * torch.arange(steps) / period + phase)
    return (signal + 0.7 * torch.randn(count, steps, generator=generator))[..., None], which


# Cells of the user's own, called in a loop


class ConvCell(nn.Module):
    """A ConvLSTM over four places: states (B, 4, 4)."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Conv1d(5, 16, 3, padding=1)

    def forward(self, x, h, c):
        i, f, o, g = self.gates(torch.cat([x, h], dim=1)).chunk(4, dim=1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class PlaceMemory(nn.Module):
    """Tells for each of four places whether the last pulse there was positive."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = ConvCell(), nn.Conv1d(4, 1, 1)

    def forward(self, x):
        h = c = torch.zeros(len(x), 4, 4)
        outputs = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t, None], h, c)
            outputs.append(self.head(h)[:, 0])
        return torch.stack(outputs, dim=1)


class FlatCell(nn.Module):
    """A gated cell that keeps its state as one vector."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Linear(4 + 12, 24)

    def forward(self, x, h):
        z, g = self.gates(torch.cat([x, h], dim=1)).chunk(2, dim=1)
        z = torch.sigmoid(z)
        return (1 - z) * h + z * torch.tanh(g)


class FlatPlaceMemory(nn.Module):
    """The same with a flat state."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = FlatCell(), nn.Linear(12, 4)

    def forward(self, x):
        h, outputs = torch.zeros(len(x), 12), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            outputs.append(self.head(h))
        return torch.stack(outputs, dim=1)


def place_pulses(count, steps, generator):
    """Rare pulses of either sign at four places, and whether the last one at each was positive (0 before any)."""
    drawn = torch.rand(count, steps, 4, generator=generator)
    x = (drawn < 0.08).float() - (drawn > 0.92).float()
    state, states = torch.zeros(count, 4), []
    for t in range(steps):
        state = torch.where(x[:, t] == 0, state, x[:, t])
        states.append(state)
    return x, (torch.stack(states, dim=1) > 0).float()


# Transformers


class Majority(nn.Module):
    """A transformer encoder that tells whether padded words hold more of letter A than of letter B."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)

    def forward(self, words, src_key_padding_mask=None):
        found = self.encoder(self.embedding(words), src_key_padding_mask=src_key_padding_mask)
        if src_key_padding_mask is not None:
            real = ~src_key_padding_mask[..., None]
            return self.head((found * real).sum(dim=1) / real.sum(dim=1))
        return self.head(found.mean(dim=1))


def letters(count, generator):
    """A batch of padded words of 8 to 20 letters 1 to 4, with more of 1 (A) or of 2 (B), and which."""
    words, labels = [], []
    while len(words) < count:
        word = torch.randint(1, 5, (int(torch.randint(8, 21, (1,), generator=generator)),), generator=generator)
        difference = int((word == 1).sum() - (word == 2).sum())
        if difference:
            words.append(word)
            labels.append(int(difference > 0))
    padded = pad_sequence(words, batch_first=True)
    return {"words": padded, "src_key_padding_mask": padded == 0}, torch.tensor(labels)


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        steps = x.shape[1]
        mask = torch.triu(torch.ones(steps, steps, dtype=torch.bool), diagonal=1)
        y = self.first(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.second(x))


class Adder(nn.Module):
    """A GPT of four blocks that adds two numbers modulo 11: a, b, "=" → sum."""

    NUMBERS = 11

    def __init__(self):
        super().__init__()
        width = 16
        self.embedding, self.places = nn.Embedding(self.NUMBERS + 1, width), nn.Parameter(0.1 * torch.randn(3, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, self.NUMBERS)

    def forward(self, words):
        x = self.embedding(words) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, -1])


def additions():
    """All pairs of numbers, and their sums."""
    n = Adder.NUMBERS
    a, b = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    words = torch.stack([a.flatten(), b.flatten(), torch.full((n * n,), n)], dim=1)
    return words, (a + b).flatten() % n


# Text


class CharacterModel(nn.Module):
    """Predicts the next character of English text."""

    ALPHABET = " abcdefghijklmnopqrstuvwxyz',.-"

    def __init__(self):
        super().__init__()
        size = len(self.ALPHABET)
        self.embedding, self.head = nn.Embedding(size, 12), nn.Linear(48, size)
        self.rnn = nn.GRU(12, 48, batch_first=True)

    def forward(self, words):
        return self.head(self.rnn(self.embedding(words))[0])


def characters(count, steps, generator):
    """Pieces of the demo's reviews, and the next character at each step."""
    text = " ".join(zoo.load("sentiment").reviews(120)[0]).lower()
    known = {character: i for i, character in enumerate(CharacterModel.ALPHABET)}
    ids = torch.tensor([known[character] for character in text if character in known])
    starts = torch.randint(len(ids) - steps - 1, (count,), generator=generator)
    pieces = torch.stack([ids[start : start + steps + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]
