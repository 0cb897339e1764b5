"""Scores of a network with its layers replaced, or with only some directions of what they give kept."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kann import _display
from kann._format import confidence, fixed, from_to, percent
from kann.analysis.intervals import interval_of_mean
from kann.checks import require_choice
from kann.data.serialization import Saved
from kann.errors import KannError
from kann.fitting.balance import Balance
from kann.typing import Array, Float, Int

METHODS = {"identity": "identity", "one": "one operator", "each": "own maps", "span": "one map"}
"""Replacements of the layers of a span, by name and in words: none, the same operator for each layer, the map of
each layer, or one map for the whole span."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BypassEffects(Saved):
    """Scores of a network with spans of its layers replaced: by the identity, one operator, own maps, or one map.

    Measures are "kl" (of the untouched network's probabilities to those of the changed one, in nats), "agreement" (the
    fraction of decisions that are those of the untouched network) and, with labels, "loss" (cross-entropy, in nats) and
    "accuracy". Methods are "identity", "one", "each" and "span", in this order along axes m.

    >>> import kann, torch
    >>> from torch import nn
    >>> layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    >>> model, x = nn.Sequential(layers, nn.Linear(4, 2)), torch.randn(80, 4)
    >>> states = kann.record(model, x[:50], layer="0.*", axis="depth", embedding=True)
    >>> maps = kann.depth.fit(states)
    >>> found = kann.depth.bypass_effects(model, x[50:], maps, states, spans=[("0.1", "0.2")])
    >>> found.measures, bool(found.means["kl"][0, 3] < 1e-6)  # these layers are affine: one map is as good as both
    (('kl', 'agreement'), True)
    """

    spans: tuple[tuple[str, str], ...]
    """The first and the last layer of each span."""
    layers: Int[Array, " k"]
    """The number of layers of each span."""
    scores: Mapping[str, Float[Array, "k m s"]]
    """By measure: the score of each span, method and sequence."""
    untouched: Mapping[str, Float[Array, " s"]]
    """The scores of the untouched network, by measure: 0 for "kl" and 1 for "agreement"."""
    judged: Int[Array, " s"]
    """The numbers of the sequences in the data."""
    level: float
    """Confidence level of the intervals over sequences."""

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures."""
        return tuple(self.scores)

    @property
    def means(self) -> dict[str, Float[Array, "k m"]]:
        """By measure: the mean over sequences for each span and method."""
        return {name: scores.mean(axis=2) for name, scores in self.scores.items()}

    @property
    def own(self) -> dict[str, float]:
        """By measure: the mean over sequences of the untouched network."""
        return {name: float(scores.mean()) for name, scores in self.untouched.items()}

    @property
    def gaps(self) -> dict[str, Float[Array, "k m"]]:
        """By measure: how much larger the mean is than that of the untouched network."""
        return {name: means - self.own[name] for name, means in self.means.items()}

    def interval(self, measure: str, *, gap: bool = False) -> Float[Array, "k m 2"]:
        """Compute the confidence interval of each mean, or with ``gap`` of each difference from the untouched network.

        Differences are taken sequence by sequence, so that their intervals are far narrower.
        """
        require_choice(measure, "measure", self.measures)
        scores = self.scores[measure]
        scores = scores - self.untouched[measure] if gap else scores
        return np.array([[interval_of_mean(each, self.level) for each in span] for span in scores])

    @property
    def main_measure(self) -> str:
        """The loss, or without labels the Kullback-Leibler divergence."""
        return "loss" if "loss" in self.scores else "kl"

    @property
    def names(self) -> tuple[str, ...]:
        """The spans in words, such as "layers.10 – 15"."""
        return tuple(first if first == last else f"{first} – {last.rpartition('.')[2]}" for first, last in self.spans)

    def __repr__(self) -> str:
        measure = self.main_measure
        best = self.means[measure].min(axis=1)
        found = ", ".join(f"{name} {fixed(value)}" for name, value in zip(self.names[:4], best.tolist(), strict=False))
        return (
            f"BypassEffects({measure} of {len(self.judged)} sequences, untouched {fixed(self.own[measure])}, best in "
            f"place of {found})"
        )

    def __str__(self) -> str:
        """Write a table for each measure, with a line for each span."""
        return "\n\n".join(self._text(measure) for measure in self.measures)

    def _text(self, measure: str) -> str:
        rows = [[measure, *METHODS.values()]]
        for name, means, ends in zip(self.names, self.means[measure], self.interval(measure), strict=True):
            cells = [
                f"{fixed(mean)} ({from_to(low, high, fixed)})" for mean, (low, high) in zip(means, ends, strict=True)
            ]
            rows.append([name, *cells])
        note = f"untouched {fixed(self.own[measure])}, {len(self.judged)} sequences, {confidence(self.level)} intervals"
        return "\n".join([*_display.in_columns(rows), note])

    def _repr_html_(self) -> str:
        measure = self.main_measure
        rows = [[name, *map(fixed, row)] for name, row in zip(self.names, self.means[measure], strict=True)]
        return _display.table(repr(self), (measure, *METHODS.values()), rows)


PROFILED = {"balanced": "balanced", "pca": "components", "random": "random"}
"""The methods of choosing directions, in words."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Profile(Saved):
    """Agreement with the untouched network where only some directions of one layer's states are kept, layer by layer.

    Methods are "balanced", "pca" (principal components) and "random". See `kann.depth.profile` for an example.
    """

    layers: tuple[str, ...]
    counts: tuple[int, ...]
    """Numbers of directions."""
    outputs: str
    """"class", "labels" or "values". Agreement of values is R², and scores of sequences are such that R² is their
    mean."""
    kept_scores: Mapping[str, Float[Array, "l c s"]]
    """By method: the score of each layer, number of directions and held-out sequence; NaN where there are fewer
    directions. Those of "random" are means over draws."""
    none_scores: Float[Array, "l s"]
    """Scores with all states of the layer held at their mean."""
    judged: Int[Array, " s"]
    """The numbers of the sequences in the held-out data."""
    balances: tuple[Balance, ...]
    """The balanced directions of each layer."""
    level: float = 0.95
    """Confidence level of the intervals over sequences."""

    @property
    def kept(self) -> dict[str, Float[Array, "l c"]]:
        """By method: the mean score for each layer and number of directions."""
        return {name: scores.mean(axis=2) for name, scores in self.kept_scores.items()}

    @property
    def none(self) -> Float[Array, " l"]:
        """The mean score where each layer's states are held at their mean."""
        return self.none_scores.mean(axis=1)

    def interval(self, method: str) -> Float[Array, "l c 2"]:
        """Compute the confidence interval of each mean score over sequences."""
        require_choice(method, "method", tuple(self.kept_scores))
        return np.array([[interval_of_mean(row, self.level) for row in layer] for layer in self.kept_scores[method]])

    def needed(self, agreement: float = 0.95) -> dict[str, Float[Array, " l"]]:
        """Return by method the smallest tested number of directions with this agreement after each layer, or NaN."""
        if not 0 < agreement <= 1:
            raise KannError(f"agreement={agreement} must be a fraction above 0 and up to 1")
        counts, order = np.array(self.counts, dtype=float), np.argsort(self.counts)
        return {
            name: np.array([next((counts[i] for i in order if row[i] >= agreement), np.nan) for row in means])
            for name, means in self.kept.items()
        }

    def __repr__(self) -> str:
        found = self.needed()
        shown = ", ".join(f"{name} {_counts_in_words(found[key])}" for key, name in PROFILED.items())
        return (
            f"Profile({len(self.layers)} layers, {len(self.judged)} held-out sequences; directions for 95 % agreement: "
            f"{shown})"
        )

    def __str__(self) -> str:
        """Write a table with a line for each layer and method."""
        note = f"{len(self.judged)} held-out sequences; all states at their mean: {', '.join(map(percent, self.none))}"
        return "\n".join([*_display.in_columns(self._table()), note])

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        return _display.table(repr(self), head, rows)

    def _table(self) -> list[list[str]]:
        found, means = self.needed(), self.kept
        rows = [["agreement", "directions", *map(str, self.counts), "95 % with"]]
        for i, layer in enumerate(self.layers):
            for key, name in PROFILED.items():
                rows.append([layer, name, *map(percent, means[key][i]), _counts_in_words(found[key][i : i + 1])])
        return rows


def _counts_in_words(counts: Float[Array, " l"]) -> str:
    """Write numbers of directions after each layer, with "–" where more are needed than were tested."""
    return "/".join("–" if np.isnan(count) else f"{count:.0f}" for count in counts)
