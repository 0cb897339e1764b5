"""Results of tests in the running network: coordinates kept and removed, memory, and the modes that they single out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import isotonic_regression

from kann import _display
from kann._display import in_columns
from kann._format import MISSING, duration, fixed, from_to, number_of_steps, percent, plural
from kann.analysis._movers import Movers
from kann.analysis._trust import Trust
from kann.analysis.intervals import interval_of_mean
from kann.analysis.modes import first_modes
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


SCORES = {
    ("agreement", "class"): "decisions that stay the network's",
    ("agreement", "labels"): "answers that stay the network's",
    ("agreement", "values"): "R² with the network's own outputs",
    ("accuracy", "class"): "decisions that are right",
    ("accuracy", "labels"): "answers that are right",
    ("accuracy", "values"): "R² with the true values",
}
"""Meaning of a score, by the metric and the kind of outputs."""

RESAMPLED = 200
"""Draws of sequences for intervals."""

ALL = "all inputs"
"""The name of a change of all inputs of a step together."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Effects(Saved):
    """Scores of a network with only some coordinates of its state kept after every step, and with them removed.

    Scores have one row for each number of coordinates and one column for each sequence; NaN where a method does not
    have this number of coordinates.

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
    "quadratic"; empty where the method has fewer. Of "random" that of the last draw."""
    outputs: str = "class"
    """"class", "labels" or "values". Agreement and accuracy of values are R², and the scores of sequences are such that
    R² is their mean."""
    level: float = 0.95
    """Confidence level of `interval`."""
    groups: Int[Array, " s"] | None = None
    """A number for each sequence, the same for those of a group, which intervals count together."""

    @property
    def full(self) -> float:
        """Mean score of the untouched network."""
        return self.full_scores.mean()

    @property
    def none(self) -> float:
        """Mean score of the network with its state held at the mean."""
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
        """(kept − none) / (full − none): 1 if all is kept, 0 if it equals the score of the mean state."""
        if self.full == self.none:
            return {name: np.full(len(self.counts), np.nan) for name in self.kept_scores}
        return {name: (mean - self.none) / (self.full - self.none) for name, mean in self.kept.items()}

    def interval(self, name: str, *, removed: bool = False) -> Float[Array, "c 2"]:
        """Lower and upper end of the interval of each mean score over sequences, or over groups of them."""
        scores = self.removed_scores if removed else self.kept_scores
        if name not in scores:
            raise KannError(f"there is no method {name!r}; the methods are {', '.join(scores)}; pass one of them")
        return np.array([interval_of_mean(row, self.level, self.groups) for row in scores[name]])

    @property
    def metric_in_words(self) -> str:
        """The metric, and that it is an R² if it is one."""
        is_r_squared = self.outputs == "values" and self.metric in ("agreement", "accuracy")
        return f"{self.metric} (R²)" if is_r_squared else self.metric

    @property
    def is_fraction(self) -> bool:
        """Whether scores are fractions of answers, to be written in percent."""
        return self.metric in ("agreement", "accuracy") and self.outputs != "values"

    @property
    def score_in_words(self) -> str:
        """Meaning of a score: "decisions that stay the network's", "loss", or "score" for a function of the user."""
        return SCORES.get((self.metric, self.outputs), "score" if self.metric == "own" else self.metric)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(self.kept_scores)

    def __repr__(self) -> str:
        first = ", ".join(f"{name} {fixed(scores[0])}" for name, scores in self.kept.items())
        return f"Effects({self.metric_in_words} of {len(self.judged)} sequences, {self.counts[0]} kept: {first})"

    def __str__(self) -> str:
        """Write two tables: scores with coordinates kept, and with them removed."""
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Memory(Saved):
    """Differences of states and outputs after the input of one step was replaced, by the number of steps since then.

    They are relative to unrelated sequences: 1 if states or outputs differ as much as theirs, 0 if the input is
    forgotten. See `kann.memory`.
    """

    lags: tuple[int, ...]
    """Numbers of steps after the change."""
    names: tuple[str, ...]
    """Names of the changes: "all inputs" of a step, then single channels."""
    state_squares: Float[Array, "c s l"] | None
    """|h'ₜ₊ₖ − hₜ₊ₖ|² for each change, sequence and lag; NaN where a sequence is too short or unchanged. None
    for a model without a recurrent layer."""
    output_squares: Float[Array, "c s l"] | None
    """The same of outputs. Those of a whole sequence are compared at its end. None if they could not be compared."""
    state_scale: float
    """The mean of |h' − h|² for unrelated states: twice their variance."""
    output_scale: float
    """The same of outputs."""
    untrained: "Memory | None" = None
    """The same for a copy with newly drawn weights."""
    step_seconds: float | None = None
    """Duration of a step."""
    level: float = 0.95
    """Confidence level of `interval`."""

    def left(self, name: str = ALL, *, of: str | None = None) -> Float[Array, " l"]:
        """Return the relative difference after each number of steps; NaN where it is not known.

        ``of`` is "states" or "outputs"; by default outputs if they could be compared.
        """
        return self._curves(self._squares(name, of), of)[0]

    def interval(self, name: str = ALL, *, of: str | None = None) -> Float[Array, "l 2"]:
        """Return an interval of each of `left`, over resampled sequences."""
        return np.nanquantile(self._resampled(name, of), self._ends, axis=0).T

    def half_life(self, name: str = ALL, *, of: str | None = None) -> float:
        """Return the number of steps after which half of the largest difference is left.

        Infinite if more than half is left after the largest lag that was measured, NaN if there never was a difference.
        """
        return _half_life(self.lags, self.left(name, of=of))

    def half_life_interval(self, name: str = ALL, *, of: str | None = None) -> tuple[float, float]:
        """Return an interval of `half_life`, over resampled sequences."""
        lives = np.array([_half_life(self.lags, curve) for curve in self._resampled(name, of)])
        lives = np.sort(lives[~np.isnan(lives)])  # a quantile between two infinite values is not defined
        if not len(lives):
            return np.nan, np.nan
        low, high = (lives[round(end * (len(lives) - 1))] for end in self._ends)
        return float(low), float(high)

    @property
    def _ends(self) -> tuple[float, float]:
        return (1 - self.level) / 2, (1 + self.level) / 2

    @property
    def compared(self) -> tuple[str, ...]:
        """The compared quantities: "outputs", "states" or both."""
        known = (("outputs", self.output_squares), ("states", self.state_squares))
        return tuple(name for name, squares in known if squares is not None)

    def _squares(self, name: str, of: str | None) -> Float[Array, "1 s l"]:
        of = self.compared[0] if of is None else of
        if of not in self.compared:
            raise KannError(f"of={of!r} was not compared; pass one of {self.compared}")
        if name not in self.names:
            raise KannError(f"{name!r} was not changed; pass one of {self.names}")
        squares = self.state_squares if of == "states" else self.output_squares
        assert squares is not None  # noqa: S101  # it was compared
        return squares[self.names.index(name)][None]

    def _curves(self, squares: Float[Array, "n s l"], of: str | None) -> Float[Array, "n l"]:
        scale = self.state_scale if (of or self.compared[0]) == "states" else self.output_scale
        known = ~np.isnan(squares)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(np.where(known, squares, 0).sum(axis=1) / known.sum(axis=1) / scale)

    def _resampled(self, name: str, of: str | None) -> Float[Array, "n l"]:
        squares = self._squares(name, of)[0]
        drawn = np.random.default_rng(0).integers(len(squares), size=(RESAMPLED, len(squares)))
        return self._curves(squares[drawn], of)

    def half_life_in_words(self, name: str = ALL, *, of: str | None = None) -> str:
        """Write a half-life with its interval, and in seconds where a step has a duration."""
        text = self._in_words(self.half_life(name, of=of))
        low, high = self.half_life_interval(name, of=of)
        return f"{text} ({from_to(low, high, number_of_steps)})" if low < high else text

    def _in_words(self, steps: float) -> str:
        if np.isnan(steps):
            return MISSING
        over, steps = ("", steps) if steps < np.inf else ("over ", self.lags[-1])
        text = plural("step", over + (f"{steps:,}" if over else number_of_steps(steps)))
        return text if self.step_seconds is None else f"{text} = {over}{duration(steps * self.step_seconds)}"

    def __repr__(self) -> str:
        lives = ", ".join(f"{of} {self._in_words(self.half_life(of=of))}" for of in self.compared)
        return f"Memory(half-life after one input: {lives})"

    def __str__(self) -> str:
        """Write half-lives and the rest after some numbers of steps, for each change, and for an untrained copy."""
        shown = [i for i in range(len(self.lags)) if i % max(1, -(-len(self.lags) // 8)) == 0]
        lines = []
        for of in self.compared:
            head = [f"{of}: difference left", *(str(self.lags[i]) for i in shown), "half-life"]
            named: list[tuple[str, Memory, str]] = [(name, self, name) for name in self.names]
            if self.untrained is not None and of in self.untrained.compared:
                named.append(("untrained copy", self.untrained, ALL))
            rows = []
            for title, measured, name in named:
                left = measured.left(name, of=of)[shown]
                rows.append([f"  {title}", *map(percent, left), measured.half_life_in_words(name, of=of)])
            lines += in_columns([head, *rows])
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = ["changed", *(f"half-life in {of}" for of in self.compared)]
        rows = [[name, *(self.half_life_in_words(name, of=of) for of in self.compared)] for name in self.names]
        if self.untrained is not None:
            copy = self.untrained
            rows.append(["untrained copy", *(copy.half_life_in_words(of=of) for of in copy.compared)])
        return _display.table(repr(self), head, rows)


def _half_life(lags: Sequence[int], left: Float[Array, " l"]) -> float:
    """Return the steps from the largest difference to half of it, interpolated linearly between lags.

    From the largest difference on, the curve is replaced by the closest one that never rises: a single low value of
    a curve from few sequences is noise, not the end of a memory.
    """
    known = ~np.isnan(left)
    steps, left = np.array(lags)[known], left[known]
    if not len(left) or not left.max() > 0:
        return float("nan")
    top = int(left.argmax())
    steps, falling = steps[top:], isotonic_regression(left[top:], increasing=False).x
    below = np.flatnonzero(falling <= falling[0] / 2)
    if not len(below):
        return float("inf")
    at = below[0]
    (a, b), (x, y) = falling[at - 1 : at + 1], steps[at - 1 : at + 1]
    return float(x + (y - x) * (a - falling[0] / 2) / (a - b) - steps[0])


# Modes to look at

MOST_MODES = 6
"""Largest number of modes that a reader compares card by card."""

ADDS = 0.02
"""A mode adds something if it brings back this fraction of the score: of 200 decisions, chance makes as much."""

DECIDES_ALONE = 0.5
"""A mode also matters if it brings back this fraction of the score alone, though others do so already."""


def modes_that_matter(
    koopman: Koopman,
    *,
    trust: Trust | None = None,
    effects: Effects | None = None,
    movers: Movers | None = None,
    alone: Mapping[int, tuple[float, float]] | None = None,
) -> list[int]:
    """Return the modes that a reader should look at, the most important first; at most six.

    These are the first modes of the live test, as long as they add to the score, and those that bring back half of the
    score alone. Without a live test, or if no mode kept decisions, they are the trusted modes: by contribution
    if ``movers`` are known, else the slowest first.

    >>> import kann, numpy as np
    >>> modes_that_matter(kann.fit(np.random.default_rng(0).normal(size=(20, 10, 3))))
    []
    """
    found: list[int] = []
    if effects is not None:
        found = _modes_that_decide(koopman, effects) + _modes_enough_alone(effects, alone or {})
    if not found and trust is not None:
        by_contribution = range(len(koopman.modes))
        if movers is not None:
            by_contribution = [*movers.modes, *by_contribution]
        found = [number for number in by_contribution if number in trust.trusted]
    return list(dict.fromkeys(found))[:MOST_MODES]


def _modes_that_decide(koopman: Koopman, effects: Effects) -> list[int]:
    """Return the first modes of the order, up to the number of coordinates after which the score stays."""
    recovered = effects.recovered.get("modes", np.full(1, np.nan))
    if not np.nanmax(recovered, initial=0.0) > ADDS:
        return []
    enough = int(np.argmax(recovered >= np.nanmax(recovered) - ADDS))
    return first_modes(koopman, effects.order, effects.counts[enough])


def _modes_enough_alone(effects: Effects, alone: Mapping[int, tuple[float, float]]) -> list[int]:
    """Return the modes that bring back much of the score alone, the best first."""
    gap = effects.full - effects.none
    if not gap:
        return []
    recovered = {number: (kept - effects.none) / gap for number, (kept, _) in alone.items()}
    best_first = sorted(recovered, key=lambda number: -recovered[number])
    return [number for number in best_first if recovered[number] >= DECIDES_ALONE]
