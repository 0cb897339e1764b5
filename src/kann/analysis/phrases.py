"""Phrases that push a mode otherwise than the sum of their words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kann.analysis.label_means import LabelMeans, means_by_label
from kann.analysis.pushes import ModeAxis, Pushes
from kann.typing import Array, Complex, Float, Int

LEAST_COUNT = 5
"""A phrase is judged if it stands in so many sequences at least: rarer ones are many, and little is known of each."""

MOST_PHRASES = 20
"""How many phrases are kept for each mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """Two tokens in a row, and how they push a mode together."""

    words: tuple[str, str]
    push: float
    """Mean push of both steps together, in standard deviations of the mode's coordinate."""
    expected: float
    """The sum of the mean pushes of its words, the first of which has decayed by one step."""
    low: float
    high: float
    """The interval of ``push − expected`` over sequences."""
    count: int
    """How often it occurs."""
    sequences: int
    """In how many sequences."""
    sure: bool
    """Whether the interval excludes zero even if widened for the number of phrases that were looked at."""


def phrases_of(
    axes: Sequence[ModeAxis], pushes: Pushes, labels: Int[Array, " n"], names: tuple[str, ...], *, level: float
) -> tuple[tuple[Phrase, ...], ...]:
    """For each mode the phrases of two tokens whose push differs from the sum of their tokens', the surest first."""
    second, phrase, words = _frequent(pushes, labels, names)
    if not words:
        return tuple(() for _ in axes)
    first_label, second_label = labels[second - 1], labels[second]
    together, alone = [], []
    for axis, own in zip(axes, pushes.values.T, strict=True):
        mean = _mean_of_each(own, labels, len(names))
        together.append(axis.real(axis.eigenvalue * own[second - 1] + own[second]))
        alone.append(axis.real(axis.eigenvalue * mean[first_label] + mean[second_label]))
    expected = np.stack(alone, axis=1)
    gaps = np.stack(together, axis=1) - expected
    means = means_by_label(gaps, phrase, pushes.sequences[second], count=len(words))
    sums = means_by_label(expected, phrase, pushes.sequences[second], count=len(words)).mean
    width, widened = means.half_width(level), means.half_width(1 - (1 - level) / len(words))  # Bonferroni
    columns = zip(means.mean.T, sums.T, width.T, widened.T, strict=True)
    return tuple(_differing(means, words, *own) for own in columns)


def _frequent(
    pushes: Pushes, labels: Int[Array, " n"], names: tuple[str, ...]
) -> tuple[Int[Array, " p"], Int[Array, " p"], list[tuple[str, str]]]:
    """The pushes that end a phrase which occurs often enough, the number of the phrase at each, and all phrases."""
    second = np.flatnonzero(np.diff(pushes.rows) == 1) + 1
    pairs, phrase, count = np.unique(
        labels[second - 1] * len(names) + labels[second], return_inverse=True, return_counts=True
    )
    is_frequent = count >= LEAST_COUNT
    kept = is_frequent[phrase]
    number = np.cumsum(is_frequent) - 1
    words = [(names[pair // len(names)], names[pair % len(names)]) for pair in pairs[is_frequent].tolist()]
    return second[kept], number[phrase[kept]], words


def _differing(
    means: LabelMeans,
    words: Sequence[tuple[str, str]],
    gap: Float[Array, " k"],
    expected: Float[Array, " k"],
    width: Float[Array, " k"],
    widened: Float[Array, " k"],
) -> tuple[Phrase, ...]:
    """The phrases whose interval, gap ± width, excludes zero, by how far it does."""
    bound = np.where(means.sequences >= LEAST_COUNT, np.abs(gap) - width, -np.inf)
    chosen = [i for i in np.argsort(-bound, kind="stable")[:MOST_PHRASES].tolist() if bound[i] > 0]
    return tuple(
        Phrase(
            words=words[i],
            push=float(gap[i] + expected[i]),
            expected=float(expected[i]),
            low=float(gap[i] - width[i]),
            high=float(gap[i] + width[i]),
            count=int(means.count[i]),
            sequences=int(means.sequences[i]),
            sure=bool(abs(gap[i]) > widened[i]),
        )
        for i in chosen
    )


def _mean_of_each(values: Complex[Array, " n"], labels: Int[Array, " n"], count: int) -> Complex[Array, " k"]:
    """The mean of complex values by label."""
    sums = [np.bincount(labels, weights=part, minlength=count) for part in (np.real(values), np.imag(values))]
    return (sums[0] + 1j * sums[1]) / np.maximum(np.bincount(labels, minlength=count), 1)
