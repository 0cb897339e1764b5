"""The words that raise and that lower a mode's contribution to the logit most."""

from dataclasses import dataclass

import numpy as np

from kann_experiments.sentiment.one_pass import PassStatistics

OFTEN = 100
"""Words seen less often than this in the test set are not ranked."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TopWords:
    """The words that change a mode's contribution to the logit most, each with its mean change."""

    mode: int
    up: tuple[tuple[str, float], ...]
    """Words that raise it, the strongest first."""
    down: tuple[tuple[str, float], ...]
    """Words that lower it, the strongest first."""


def find_top_words(statistics: PassStatistics, words: tuple[str, ...], *, count: int = 12) -> tuple[TopWords, ...]:
    """The top words of each followed mode, of those that are seen often enough."""
    known = np.flatnonzero(statistics.counts >= OFTEN)
    known = known[known > 1]  # neither padding nor the unknown word
    ranked = []
    for k, mode in enumerate(statistics.modes):
        change = statistics.mean_change[:, k]
        order = known[np.argsort(change[known], kind="stable")]
        down, up = ([(words[i], float(change[i])) for i in side] for side in (order[:count], order[::-1][:count]))
        ranked.append(TopWords(mode=mode, up=tuple(up), down=tuple(down)))
    return tuple(ranked)
