# ruff: noqa: D102  # models say what they are by their names
"""Models that arrange sequences and steps in every way, and what each of their states must be by a plain loop."""

from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

UNITS, INPUTS = 4, 3


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a model arranges what it reads."""

    kind: str
    """``fused``, ``packed``, ``cell``, ``lstm`` (a cell too) or ``kept`` (a cell whose state is an attribute)."""
    order: str
    """Of the sequences in the batch: ``as they are``, ``sorted``, ``reversed`` or ``rolled``."""
    flips: bool
    """Whether it reads from the end."""
    mixes: str
    """With the state before: ``no``, ``soft`` or ``hard``; cells alone."""
    window: int
    """Steps after which it starts again; 0 for never; cells alone."""
    start: str
    """The state it starts from: ``zeros``, ``learned`` or ``read`` from the inputs."""
    pieces: int
    """Number of pieces into which it cuts its batch; cells and fused layers."""
    twice: bool
    """Whether it runs over the batch a second time, with other signs; cells and fused layers."""
    ragged: bool
    """Whether sequences differ in length."""
    sequences: int
    steps: int
    batch_size: int
    seed: int

    @staticmethod
    def drawn(rng: np.random.Generator) -> "Way":
        """Draw one; most arrange only one or two things."""

        def maybe(name: str, *others: object, often: float = 0.3) -> object:
            return others[int(rng.integers(len(others)))] if rng.random() < often else name

        kind = str(rng.choice(["fused", "packed", "cell", "lstm", "kept"]))
        is_loop, ragged = kind in ("cell", "lstm"), bool(rng.random() < 0.4) or kind == "packed"
        steps, alone = int(rng.integers(3, 13)), rng.random() < 0.5
        start = str(maybe("zeros", "learned", "read")) if is_loop else "zeros"
        # A state that a closed gate holds at a learned start looks like a new start, and closed gates hide directions.
        flips = bool(maybe(False, True)) and not ragged and kind != "kept"
        mixing = ("soft", "hard") if start == "zeros" and not flips else ("soft",)
        sizes = (2, 3, 5, 8, 16)  # of sequences of one step in batches of one, nothing shows that they are mixed
        return Way(
            kind=kind,
            order=str(maybe("as they are", "sorted", "reversed", "rolled")) if kind != "kept" else "as they are",
            flips=flips,
            mixes=str(maybe("no", *mixing)) if kind == "cell" else "no",
            window=int(rng.integers(2, 5)) if is_loop and not ragged and alone and rng.random() < 0.4 else 0,
            start=start,
            pieces=int(maybe(1, 2, 3, often=0.15)) if kind in ("fused", "cell", "lstm") else 1,
            twice=bool(maybe(False, True, often=0.15)) if kind in ("fused", "cell", "lstm") else False,
            ragged=ragged,
            sequences=int(rng.integers(2, 15)),
            steps=steps,
            batch_size=int(rng.choice(sizes if ragged else (1, *sizes))),
            seed=int(rng.integers(10**6)),
        )


class Arranging(nn.Module):
    """Arranges its batch as it is told."""

    def __init__(self, way: Way):
        super().__init__()
        torch.manual_seed(way.seed)
        self.way = way
        if way.kind in ("fused", "packed"):
            self.rnn = nn.GRU(INPUTS, UNITS, batch_first=True)
        else:
            self.cell = (nn.LSTMCell if way.kind == "lstm" else nn.GRUCell)(INPUTS, UNITS)
        self.gate, self.reader = nn.Linear(INPUTS, 1), nn.Linear(INPUTS, UNITS)
        self.learned, self.h = nn.Parameter(torch.randn(UNITS)), None

    def data(self) -> list[Tensor]:
        """Sequences to read."""
        rng = np.random.default_rng(self.way.seed)
        lengths = rng.integers(1, self.way.steps + 1, self.way.sequences)
        lengths = lengths if self.way.ragged else np.full(self.way.sequences, self.way.steps)
        return [torch.tensor(rng.normal(size=(n, INPUTS)), dtype=torch.float32) for n in lengths]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        way = self.way
        order = {
            "as they are": lambda: torch.arange(len(x)),
            "sorted": lambda: torch.as_tensor(lengths).argsort(descending=True, stable=True),
            "reversed": lambda: torch.arange(len(x)).flip(0),
            "rolled": lambda: torch.arange(len(x)).roll(1),
        }[way.order]()
        x, lengths = 2 * x[order], torch.as_tensor(lengths)[order]
        x = x.flip(1) if way.flips else x
        signs = (1.0, -1.0) if way.twice else (1.0,)
        pieces = [(part, count) for part, count in zip(x.chunk(way.pieces), lengths.chunk(way.pieces), strict=True)]
        found = [torch.cat([self.read(sign * part, count) for part, count in pieces]) for sign in signs]
        return sum(found)[order.argsort()]

    def read(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Run over a batch in its final arrangement."""
        if self.way.kind == "fused":
            return self.rnn(x)[0]
        if self.way.kind == "packed":
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])[0]
        path = []
        if self.way.kind == "kept":
            self.h = x.new_zeros(len(x), UNITS) if self.h is None or len(self.h) != len(x) else self.h
            for now in x.unbind(1):
                self.h = self.cell(now, self.h)
                path.append(self.h)
            return torch.stack(path, dim=1)
        state = self.starting(x)
        for t, now in enumerate(x.unbind(1)):
            if self.way.window and t and t % self.way.window == 0:
                state = self.starting(x[:, t:])
            state = self.step(now, state)
            path.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(path, dim=1)

    def starting(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The state from which a run over these inputs starts."""
        h = {
            "zeros": lambda: x.new_zeros(len(x), UNITS),
            "learned": lambda: self.learned.expand(len(x), -1),
            "read": lambda: torch.tanh(self.reader(x[:, 0])),
        }[self.way.start]()
        return (h, torch.zeros_like(h)) if self.way.kind == "lstm" else h

    def step(self, x: Tensor, state: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        """The state after one step."""
        new = self.cell(x, state)
        g = torch.sigmoid(self.gate(x))
        if self.way.mixes == "soft":
            return g * new + (1 - g) * state
        return torch.where(g > 0.5, new, state) if self.way.mixes == "hard" else new

    @torch.no_grad()
    def expected(self) -> list[np.ndarray]:
        """The states of each run of each sequence by itself, as paths, sequence by sequence."""
        found = []
        for x in self.data():
            own = 2 * (x.flip(0) if self.way.flips else x)[None]
            for sign in (1.0, -1.0) if self.way.twice else (1.0,):
                pieces = own.split(self.way.window, dim=1) if self.way.window else [own]
                found += [self.path(sign * piece) for piece in pieces]
        return found

    def path(self, x: Tensor) -> np.ndarray:
        """The states of one sequence, step by step."""
        if self.way.kind in ("fused", "packed"):
            return self.rnn(x)[0][0].numpy()
        state, path = self.starting(x), []
        for now in x.unbind(1):
            state = self.step(now, state)
            path.append((state[0] if isinstance(state, tuple) else state)[0])
        return torch.stack(path).numpy()


def described(way: Way) -> str:
    """A way in one line, to repeat it."""
    return ", ".join(f"{name}={value!r}" for name, value in asdict(way).items())


def batches(data: list[Tensor], size: int) -> list[dict[str, Tensor]]:
    """Padded batches with their lengths."""
    cut = [data[i : i + size] for i in range(0, len(data), size)]
    return [
        {"x": pad_sequence(part, batch_first=True), "lengths": torch.tensor([len(x) for x in part])} for part in cut
    ]
