"""The result of keeping only some coordinates of a network's state, and of removing them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kann import _display
from kann._display import in_columns
from kann._format import fixed
from kann.analysis.intervals import interval_of_mean
from kann.data.serialization import Saved
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Float, Int

NAMES = {
    "balanced": "balanced coordinates",
    "modes": "modes, largest contribution first",
    "directions": "the directions",
    "pca": "principal components",
    "readout": "the readout's directions",
    "random": "random directions",
}
"""The methods of choosing coordinates, in words."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Effects(Saved):
    """Scores of a network with only some coordinates of its state kept after every step, and with them removed.

    Scores have one row for each number of coordinates and one column for each sequence; NaN where a method does not
    have so many coordinates.

    >>> import torch, kann
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 1)
    ...     def forward(self, x):
    ...         return self.head(self.rnn(x)[0][:, -1])
    >>> model, data = Reader(), torch.randn(24, 12, 2)
    >>> states = kann.record(model, data, inputs=True)
    >>> found = kann.effects(model, torch.randn(24, 12, 2), kann.fit(states), states, counts=(1, 2), progress=False)
    >>> sorted(found.kept)
    ['modes', 'pca', 'random', 'readout']
    >>> float(found.full), found.kept["modes"].shape
    (1.0, (2,))
    """

    counts: tuple[int, ...]
    """Numbers of coordinates; a conjugate pair of modes has two."""
    metric: str
    """"agreement", "accuracy", "loss", or "own" for a function of the user."""
    fill: str
    """How the state was to be completed: "auto", "linear" or "curve"."""
    order: tuple[int, ...]
    """Modes by the variance of their contribution, as numbers of ``koopman.modes``; empty without an operator."""
    koopman: Koopman | None
    """The operator whose modes were compared."""
    kept_scores: Mapping[str, Float[Array, "c s"]]
    """By the name of the method: scores with only its coordinates kept. Those of "random" are means over draws."""
    removed_scores: Mapping[str, Float[Array, "c s"]]
    """The same with its coordinates removed."""
    full_scores: Float[Array, " s"]
    """Scores of the untouched network."""
    none_scores: Float[Array, " s"]
    """Scores of the network with its state held at the mean."""
    random_kept: Float[Array, "w c"]
    """Mean score of each draw of random directions kept."""
    random_removed: Float[Array, "w c"]
    """The same with them removed."""
    judged: Int[Array, " s"]
    """The numbers of the sequences in the data."""
    fills: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the name of the method: how the state was completed from each number of coordinates, "linear", "curve" or
    "quadratic"; empty where the method does not have so many. Of "random" that of the last draw."""
    outputs: str = "class"
    """"class", "labels" or "values". Agreement and accuracy of values are R², and the scores of sequences are such that
    R² is their mean."""
    level: float = 0.95
    """Confidence level of `interval`."""

    @property
    def full(self) -> float:
        """Mean score of the untouched network."""
        return self.full_scores.mean()

    @property
    def none(self) -> float:
        """Mean score of the network where nothing of its state is kept."""
        return self.none_scores.mean()

    @property
    def kept(self) -> dict[str, Float[Array, " c"]]:
        """Mean scores with only the coordinates of each method kept."""
        return {name: scores.mean(axis=1) for name, scores in self.kept_scores.items()}

    @property
    def removed(self) -> dict[str, Float[Array, " c"]]:
        """Mean scores with the coordinates of each method removed."""
        return {name: scores.mean(axis=1) for name, scores in self.removed_scores.items()}

    @property
    def recovered(self) -> dict[str, Float[Array, " c"]]:
        """(kept − none) / (full − none): 1 if nothing is lost, 0 if it is as good as keeping nothing."""
        if self.full == self.none:
            return {name: np.full(len(self.counts), np.nan) for name in self.kept_scores}
        return {name: (mean - self.none) / (self.full - self.none) for name, mean in self.kept.items()}

    def interval(self, name: str, *, removed: bool = False) -> Float[Array, "c 2"]:
        """Lower and upper end of the interval of each mean score over sequences."""
        scores = self.removed_scores if removed else self.kept_scores
        if name not in scores:
            raise KannError(f"there is no method {name!r}; the methods are {', '.join(scores)}; pass one of them")
        return np.array([interval_of_mean(row, self.level) for row in scores[name]])

    @property
    def metric_in_words(self) -> str:
        """The metric, and that it is an R² if it is one."""
        is_r_squared = self.outputs == "values" and self.metric in ("agreement", "accuracy")
        return f"{self.metric} (R²)" if is_r_squared else self.metric

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(self.kept_scores)

    def __repr__(self) -> str:
        first = ", ".join(f"{name} {fixed(scores[0])}" for name, scores in self.kept.items())
        return f"Effects({self.metric_in_words} of {len(self.judged)} sequences, {self.counts[0]} kept: {first})"

    def __str__(self) -> str:
        """Two tables: what is left if coordinates are kept, and if they are removed."""
        ends = f"  untouched {fixed(self.full)}, nothing kept {fixed(self.none)}, {len(self.judged)} sequences"
        tables = []
        for what, means in (("kept", self.kept), ("removed", self.removed)):
            head = [f"{self.metric_in_words}, coordinates {what}:", *map(str, self.counts)]
            rows = [[f"  {NAMES.get(name, name)}", *map(fixed, row)] for name, row in means.items()]
            tables.append("\n".join([*in_columns([head, *rows]), ends]))
        return "\n\n".join(tables)

    def _repr_html_(self) -> str:
        head = ["kept", *map(str, self.counts)]
        rows = [[NAMES.get(name, name), *map(fixed, means)] for name, means in self.kept.items()]
        return _display.table(repr(self), head, rows)
