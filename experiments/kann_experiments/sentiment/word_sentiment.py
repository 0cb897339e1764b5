"""Which words are positive and which negative, by counting the reviews that hold them."""

from dataclasses import dataclass

import numpy as np

from kann.typing import Array, Float, Int
from kann_experiments.sentiment.corpus import Reviews

RARE = 50
"""A word in fewer training reviews than this is called neither positive nor negative."""

TWICE_AS_OFTEN = np.log(2.0)
"""A word is positive if it is in twice as many positive reviews as negative ones, and negative the other way round."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WordSentiment:
    """A bag-of-words classifier: naive Bayes on which words a review holds."""

    log_odds: Float[Array, " v"]
    """Of each word, log of how much more often it is in positive reviews than in negative ones."""
    seen: Int[Array, " v"]
    """Training reviews that hold the word."""

    @property
    def positive(self) -> Array:
        """(v,) which words are positive."""
        return (self.log_odds >= TWICE_AS_OFTEN) & (self.seen >= RARE)

    @property
    def negative(self) -> Array:
        """(v,) which words are negative."""
        return (self.log_odds <= -TWICE_AS_OFTEN) & (self.seen >= RARE)

    def classify(self, reviews: Reviews) -> Float[Array, " s"]:
        """Log odds that each review is positive, by its distinct words."""
        holders, words = _distinct_words(reviews)
        return np.bincount(holders, weights=self.log_odds[words], minlength=len(reviews))


def count_word_sentiment(reviews: Reviews, *, words: int) -> WordSentiment:
    """Count in how many positive and negative reviews each of ``words`` words is."""
    holders, numbers = _distinct_words(reviews)
    counts = [np.bincount(numbers[reviews.positive[holders] == side], minlength=words) for side in (0, 1)]
    # One review more of each kind, with and without the word (Laplace): no logarithm of zero.
    fractions = [(count + 1) / (np.sum(reviews.positive == side) + 2) for side, count in enumerate(counts)]
    log_odds = np.log(fractions[1] / fractions[0])
    log_odds[:2] = 0.0  # padding and the unknown word say nothing
    return WordSentiment(log_odds=log_odds, seen=counts[0] + counts[1])


def _distinct_words(reviews: Reviews) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """Pairs of a review and a word that it holds, each once, sorted by review."""
    holders = np.repeat(np.arange(len(reviews)), reviews.lengths)
    # Both numbers in one, so that a single sort finds the distinct pairs.
    pairs = np.unique(holders * 2**32 + reviews.words.astype(np.int64))
    return pairs >> 32, pairs & (2**32 - 1)
