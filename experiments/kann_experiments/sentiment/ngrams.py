"""Phrases of several words: which modes respond to "not bad" and to "not very bad" more than to single words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

import kann
from kann.typing import Array, Float, Int
from kann.zoo.sentiment_network import SentimentNetwork, Vocabulary
from kann_experiments.sentiment.corpus import LONGEST, Reviews
from kann_experiments.sentiment.operators import fit_as_in_paper, on_host
from kann_experiments.sentiment.word_sentiment import WordSentiment

PHRASES = (("not", "bad"), ("not", "good"))
"""The paper's phrases."""

AMPLIFIERS = ("very", "extremely", "really", "so", "that")
"""Words that are put between the two words of a phrase, in turn."""

REVIEWS = 256
"""Reviews with phrases that are taken at most, as in the paper."""

MODES = 12
"""How many modes are looked at, the most important ones."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Phrases:
    """The batches with phrases of two and of three words, and how modes respond to them."""

    pairs: Reviews
    """Reviews with "not bad" or "not good"."""
    pair_ends: list[Int[Array, " _"]]
    """For each review, the positions of the last words of its phrases."""
    triples: Reviews
    """The same with an amplifier put into each phrase."""
    triple_ends: list[Int[Array, " _"]]
    """The same positions in these."""
    of_triples: "PhraseModes"
    """The operator fitted to the batch of triples, and what its modes respond to."""
    of_pairs: "PhraseModes"
    """The same for the batch of pairs."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PhraseModes:
    """An operator of one batch, and how its modes respond to phrases."""

    koopman: kann.Koopman
    """Fitted to the batch, padded to 1,000 as in the paper."""
    importance: Float[Array, " m"]
    """ξ of each mode (of a conjugate pair: of one of the two), in the order of ``koopman.modes``."""
    order: Int[Array, " k"]
    """The most important modes, by decreasing ξ."""
    responses: Float[Array, "k n"]
    """Change of their magnitude over phrases of 1, 2, … words, over that across the same number of words anywhere."""

    @property
    def groups(self) -> Int[Array, " k"]:
        """The length of phrase that each of the most important modes responds to most, compared with the others."""
        return 1 + self._relative().argmax(axis=1)

    def strongest(self, words: int) -> int:
        """The mode, of the most important ones, that stands out most by its response to phrases of ``words`` words."""
        relative = self._relative()
        return int(self.order[np.argmax(relative[:, words - 1] / relative.mean(axis=1))])

    def _relative(self) -> Float[Array, "k n"]:
        """Responses over the mean response to the same length; 0 for a length of which there are no phrases."""
        return np.nan_to_num(self.responses / self.responses.mean(axis=0))


def study_phrases(
    network: SentimentNetwork, reviews: Reviews, vocabulary: Vocabulary, sentiment: WordSentiment
) -> Phrases | None:
    """Find reviews with phrases, amplify them, fit and measure; None where no review holds such a phrase."""
    numbers = [tuple(vocabulary.number(word) for word in phrase) for phrase in PHRASES]
    amplifiers = [vocabulary.number(word) for word in AMPLIFIERS]
    found = find_phrases(reviews, numbers)
    if not found:
        return None
    pairs = reviews.take(np.array(list(found)))
    pair_ends = list(found.values())
    triples, triple_ends = amplify(pairs, pair_ends, amplifiers)
    pair_states, triple_states = _record(network, pairs), _record(network, triples)
    telling = sentiment.positive | sentiment.negative
    # Single words: those with a sentiment, except where they end a phrase.
    single = [np.setdiff1d(np.flatnonzero(telling[pairs[i]]), ends) for i, ends in enumerate(pair_ends)]
    phrases = ((pair_states, single), (pair_states, pair_ends), (triple_states, triple_ends))
    return Phrases(
        pairs=pairs,
        pair_ends=pair_ends,
        triples=triples,
        triple_ends=triple_ends,
        of_triples=_phrase_modes(network, triples, triple_states, phrases),
        of_pairs=_phrase_modes(network, pairs, pair_states, phrases[:2]),
    )


def _phrase_modes(
    network: SentimentNetwork,
    batch: Reviews,
    states: kann.States,
    phrases: Sequence[tuple[kann.States, list[Int[Array, " _"]]]],
) -> PhraseModes:
    """Fit the operator of a batch and measure its modes' responses to phrases of 1, 2, … words."""
    koopman = fit_as_in_paper(_padded_moments(network, batch))
    columns = np.array([mode.indices[0] for mode in koopman.modes])
    importance = kann.importance(koopman, states)[columns]
    order = np.argsort(-importance, kind="stable")[:MODES]
    responses = [
        _responses(koopman, of_phrases, ends, columns[order], span=span)
        for span, (of_phrases, ends) in enumerate(phrases, start=1)
    ]
    return PhraseModes(koopman=koopman, importance=importance, order=order, responses=np.stack(responses, axis=1))


def find_phrases(reviews: Reviews, phrases: list[tuple[int, ...]]) -> dict[int, Int[Array, " _"]]:
    """Reviews that hold one of the phrases of two words, and the positions of the second words in each.

    Reviews are taken from both halves of the list in turn, since all positive ones follow the negative ones.
    """
    words = reviews.words.astype(np.int64)
    hits = np.zeros(len(words), dtype=bool)
    for first, second in phrases:
        hits[1:] |= (words[:-1] == first) & (words[1:] == second)
    hits[reviews.starts] = False  # such a phrase would begin in the review before
    holders = np.unique(np.searchsorted(reviews.starts, np.flatnonzero(hits), side="right") - 1)
    # The first half of the list is negative, the second positive: sorting by the place within its half mixes them.
    even = holders[np.argsort(holders % max(1, len(reviews) // 2), kind="stable")][:REVIEWS]
    return {
        int(i): np.flatnonzero(hits[reviews.starts[i] : reviews.starts[i] + reviews.lengths[i]]) for i in np.sort(even)
    }


def amplify(
    reviews: Reviews, ends: list[Int[Array, " _"]], amplifiers: list[int]
) -> tuple[Reviews, list[Int[Array, " _"]]]:
    """Put an amplifier, each in its turn, before the last word of each phrase; reviews are cut at `LONGEST` words."""
    parts, moved, turn = [], [], 0
    for i, places in enumerate(ends):
        inserted = [amplifiers[(turn + k) % len(amplifiers)] for k in range(len(places))]
        turn += len(places)
        parts.append(np.insert(reviews[i], places, inserted)[:LONGEST])
        shifted = places + 1 + np.arange(len(places))
        moved.append(shifted[shifted < len(parts[-1])])
    lengths = np.array([len(part) for part in parts])
    return Reviews(words=np.concatenate(parts), lengths=lengths, positive=reviews.positive), moved


def _padded_moments(network: SentimentNetwork, reviews: Reviews) -> kann.Moments:
    """Moments of the states of reviews padded to 1,000 words, padding included, as in the paper."""
    ids, _ = reviews.batch(np.arange(len(reviews)), length=LONGEST)
    return kann.recording.record_moments(network, ids, layer="recurrent", batch_size=64, progress=False).numpy()


def _record(network: SentimentNetwork, reviews: Reviews) -> kann.States:
    """The states of reviews, without padding."""
    words = [torch.from_numpy(reviews[i]) for i in range(len(reviews))]
    return on_host(kann.record(network, words, layer="recurrent", batch_size=64, progress=False))


def _responses(
    koopman: kann.Koopman, states: kann.States, ends: list[Int[Array, " _"]], columns: Int[Array, " k"], *, span: int
) -> Float[Array, " k"]:
    """Mean change of magnitude over the ``span`` words up to ``ends``, relative to that over any ``span`` words.

    NaN where no review has such a phrase.
    """
    at_phrases, anywhere, phrases, others = np.zeros(len(columns)), np.zeros(len(columns)), 0, 0
    for i, places in enumerate(ends):
        magnitude = kann.magnitude(koopman, states[i])[:, columns]
        magnitude = np.concatenate([np.zeros((1, len(columns))), magnitude])  # before the first word it is zero
        change = np.abs(magnitude[span:] - magnitude[:-span])  # row t: over the words up to word t + span − 1
        rows = places[places >= span - 1] - (span - 1)
        at_phrases += change[rows].sum(axis=0)
        anywhere += change.sum(axis=0)
        phrases += len(rows)
        others += len(change)
    if not phrases:
        return np.full(len(columns), np.nan)
    return (at_phrases / phrases) / (anywhere / others)
