"""What the stages of an explanation find, one after the other."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from kann.analysis._movers import Movers
from kann.analysis._trust import Trust
from kann.data.states import States
from kann.depth._trust import StepTrust
from kann.explaining.layer_search import Place, Probe
from kann.explaining.operators import Fitted
from kann.explaining.options import Clock, Options
from kann.explaining.outputs import Outputs
from kann.explaining.readout_search import Reading
from kann.explaining.sequences import Sequences
from kann.fitting.folds import FEWEST_FOLDS, FOLDS_TO_JUDGE
from kann.live.results import Effects
from kann.typing import Array, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rightness:
    """How well a network does on sequences that were held out."""

    outputs: str
    """"class" or "labels", whose score is the fraction that is right; or "values", whose score is R²."""
    score: float
    low: float
    high: float
    """The interval of the score over sequences."""
    baseline: float
    """The score of always giving the most frequent label, or the mean of values."""

    @property
    def is_clear(self) -> bool:
        """Whether the network does better than its baseline, beyond chance."""
        return self.low > self.baseline


@dataclass(slots=True, eq=False, kw_only=True)
class Findings:
    """Everything that is known so far; later stages fill in what earlier ones left open."""

    model: nn.Module
    options: Options
    sequences: Sequences
    probe: Probe
    clock: Clock
    place: Place
    outputs: Outputs | None
    """What outputs are; None if the model gives none that can be compared."""
    together: Int[Array, " n"]
    """For each sequence a number; those with the same are of one group, or repeats, and stay on one side of a split."""
    fitted_numbers: Int[Array, " k"]
    """Which sequences were fitted."""
    held_out: Int[Array, " h"]
    """Which sequences were not."""
    shown_numbers: Int[Array, " s"]
    """Which of these are shown."""
    channels: tuple[str, ...] | None = None
    """The names of what is read at each step, if the user gave them."""
    choices: list[str] = field(default_factory=list)
    states: States | None = None
    """Of the sequences that were fitted."""
    shown: States | None = None
    reading: Reading | None = None
    tokens: list[list[str]] | None = None
    """Of the sequences that were fitted."""
    fitted: Fitted | None = None
    steps: StepTrust | None = None
    """How far a map of its own is right for each layer, along depth."""
    trust: Trust | None = None
    effects: Effects | None = None
    alone: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Live score of modes alone kept, and alone removed."""
    rightness: Rightness | None = None
    """How well the network does on held-out sequences, if labels say it."""
    movers: Movers | None = None

    @property
    def groups(self) -> Any:
        """Who each fitted sequence of states comes from: the user's groups, or along depth the sequence itself."""
        groups: Any = self.options.group_of
        if groups is not None:
            groups = groups[self.fitted_numbers].tolist()
        if self.place.axis == "depth" and self.states is not None:
            positions = positions_of(self.sequences, self.fitted_numbers, len(self.states))
            own = groups
            if own is None:
                own = self.fitted_numbers.tolist()
            groups = [group for group, count in zip(own, positions.tolist(), strict=True) for _ in range(count)]
        return groups


def folds_of(fitted: Fitted) -> int:
    """In how many folds the sequences that were fitted, or groups of them, are held out."""
    available = len(fitted.states)
    if fitted.groups is not None:
        available = len(np.unique(fitted.groups))
    return max(FEWEST_FOLDS, min(FOLDS_TO_JUDGE, available))


def positions_of(sequences: Sequences, numbers: Int[Array, " k"], total: int) -> Int[Array, " k"]:
    """How many positions, each with states along depth of its own, the sequences have."""
    if total == len(numbers):
        return np.ones(len(numbers), dtype=int)
    if total % len(numbers) == 0:
        return np.full(len(numbers), total // len(numbers))
    return sequences.positions(numbers)
