"""What pages of the manual take for granted: the reader's own network and data. Here they are small and never trained.

The page "Start here" does without: whoever copies its blocks has nothing yet.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import kann

WORDS = ("a", "film", "the", "plot", "is", "good", "bad", "not", "very", "and")
UNITS = 40
"""More than the largest rank that a page asks for."""


class Reviews(nn.Module):
    """A network that judges reviews; its parts are named as in the network that ships with kann."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 6)
        self.recurrent = nn.GRU(6, UNITS, batch_first=True)
        self.readout = nn.Linear(UNITS, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The logits of both classes."""
        return self.readout(self.recurrent(self.embedding(words))[0][:, -1])


def names_of_reader(folder: Path) -> dict[str, Any]:
    """Every name that a page may use without saying where it comes from; files are in the folder."""
    torch.manual_seed(0)
    model = Reviews().eval()
    data = [torch.randint(len(WORDS), (int(length),)) for length in torch.randint(8, 14, (48,))]
    states = kann.record(model, data, inputs=True)
    watched = kann.Monitor(model, data[:24])
    watched.update(0, loss=0.7)
    np.save(folder / "x.npy", np.random.default_rng(0).integers(len(WORDS), size=(48, 12)))
    states.save(folder / "states.zarr")
    return {
        "kann": kann,
        "np": np,
        "torch": torch,
        "model": model,
        "network": model,
        "readout": model.readout,
        "data": data,
        "reviews": data,
        "part": data,
        "probe": data[:24],
        "batch": nn.utils.rnn.pad_sequence(data[:8], batch_first=True),
        "batches": [None] * 251,  # a monitor works at every 250th call
        "loss": 0.5,
        "log": lambda figures: None,
        "labels": [int(sequence.sum()) % 2 for sequence in data],
        "words": [[WORDS[i] for i in sequence] for sequence in data],
        "lengths": [len(sequence) for sequence in data],
        "rows": states.values,
        "states": states,
        "held_out": states,
        "koopman": kann.fit(states, rank="auto", driven=True),
        "speakers": [i % 6 for i in range(48)],
        "operator_a": kann.fit(states, rank=8, driven=True),
        "moments_b": kann.Moments.of(states[:24]),
        "states_c": states[24:],
        "other": watched.history,
        "vocabulary": None,
    }
