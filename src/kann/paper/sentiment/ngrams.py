"""Phrases of several words: which eigenvectors answer to "not bad" and to "not very bad" more than to single words."""

from dataclasses import dataclass

import numpy as np
import torch

import kann
from kann.paper.sentiment.corpus import LONGEST, Reviews
from kann.paper.sentiment.operators import on_host, papers_fit
from kann.paper.sentiment.words import Feelings
from kann.typing import Array, Float, Int
from kann.zoo.sentiment_network import SentimentNetwork
from kann.zoo.vocabulary import Vocabulary

PHRASES = (("not", "bad"), ("not", "good"))
"""The paper's."""

AMPLIFIERS = ("very", "extremely", "really", "so", "that")
"""Put between the two words, in turn."""

REVIEWS = 256
"""Reviews in the batch, as in the paper."""

SHOWN = 12
"""How many eigenvectors are looked at, the most important ones."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Phrases:
    """The batches with phrases of two and of three words, and how eigenvectors answer to them."""

    pairs: Reviews
    """Reviews with "not bad" or "not good"."""
    pair_ends: list[Int[Array, " _"]]
    """In each, the places of the phrase's last word."""
    triples: Reviews
    """The same with an amplifier put into each phrase."""
    triple_ends: list[Int[Array, " _"]]
    koopman: kann.Koopman
    """The operator fitted to the batch of triples, padded to 1,000 as in the paper."""
    importance: Float[Array, " m"]
    """ξ of each mode (of a conjugate pair: of one of the two), in the order of ``koopman.modes``."""
    order: Int[Array, " k"]
    """The most important modes, by decreasing ξ."""
    answers: Float[Array, "k 3"]
    """How much more their magnitude changes over a one-, two- or three-word phrase than over as many other words."""

    @property
    def groups(self) -> Int[Array, " k"]:
        """The length of phrase that each of the most important modes answers to most, compared with the others."""
        return 1 + self._relative().argmax(axis=1)

    def strongest(self, words: int) -> int:
        """The mode, of the most important ones, that answers to phrases of so many words more than to others."""
        relative = self._relative()
        return int(self.order[np.argmax(relative[:, words - 1] / relative.mean(axis=1))])

    def _relative(self) -> Float[Array, "k 3"]:
        """Answers as multiples of what is usual for the length; 0 for a length of which there are no phrases."""
        return np.nan_to_num(self.answers / self.answers.mean(axis=0))


def study_phrases(
    network: SentimentNetwork, reviews: Reviews, vocabulary: Vocabulary, feelings: Feelings
) -> Phrases | None:
    """Collect, amplify, fit and measure; None where no review holds such a phrase."""
    numbers = [tuple(vocabulary.number(word) for word in phrase) for phrase in PHRASES]
    amplifiers = [vocabulary.number(word) for word in AMPLIFIERS]
    found = find_phrases(reviews, numbers)
    if not found:
        return None
    pairs = reviews.take(np.array(list(found)))
    pair_ends = list(found.values())
    triples, triple_ends = amplify(pairs, pair_ends, amplifiers)
    koopman = papers_fit(_padded_moments(network, triples))
    states = {2: _states(network, pairs), 3: _states(network, triples)}
    columns = [mode.indices[0] for mode in koopman.modes]
    xi = kann.importance(koopman, states[3])[columns]
    order = np.argsort(-xi, kind="stable")[:SHOWN]
    chosen = np.array(columns)[order]
    single = [np.flatnonzero((feelings.positive | feelings.negative)[pairs[i]]) for i in range(len(pairs))]
    single = [np.setdiff1d(places, ends) for places, ends in zip(single, pair_ends, strict=True)]
    answers = [
        _answers(koopman, states[2], single, chosen, 1),
        _answers(koopman, states[2], pair_ends, chosen, 2),
        _answers(koopman, states[3], triple_ends, chosen, 3),
    ]
    return Phrases(
        pairs=pairs,
        pair_ends=pair_ends,
        triples=triples,
        triple_ends=triple_ends,
        koopman=koopman,
        importance=xi,
        order=order,
        answers=np.stack(answers, axis=1),
    )


def find_phrases(reviews: Reviews, phrases: list[tuple[int, ...]]) -> dict[int, Int[Array, " _"]]:
    """The first reviews that hold one of the phrases of two words, and where the second word stands in each.

    Reviews are taken from both halves of the list in turn, since positive ones stand behind negative ones.
    """
    words = reviews.words.astype(np.int64)
    hits = np.zeros(len(words), dtype=bool)
    for first, second in phrases:
        hits[1:] |= (words[:-1] == first) & (words[1:] == second)
    hits[reviews.starts] = False
    holders = np.unique(np.searchsorted(reviews.starts, np.flatnonzero(hits), side="right") - 1)
    even = holders[np.argsort(holders % max(1, len(reviews) // 2), kind="stable")][:REVIEWS]
    return {
        int(i): np.flatnonzero(hits[reviews.starts[i] : reviews.starts[i] + reviews.lengths[i]]) for i in np.sort(even)
    }


def amplify(
    reviews: Reviews, ends: list[Int[Array, " _"]], amplifiers: list[int]
) -> tuple[Reviews, list[Int[Array, " _"]]]:
    """Put an amplifier before the last word of each phrase, one after the other; what then is too long is cut off."""
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
    ids, _ = reviews.batch(np.arange(len(reviews)), length=LONGEST)
    return kann.record(network, ids, layer="recurrent", into="moments", batch_size=64, progress=False).numpy()


def _states(network: SentimentNetwork, reviews: Reviews) -> kann.States:
    words = [torch.from_numpy(reviews[i]) for i in range(len(reviews))]
    return on_host(kann.record(network, words, layer="recurrent", batch_size=64, progress=False))


def _answers(
    koopman: kann.Koopman, states: kann.States, ends: list[Int[Array, " _"]], columns: Int[Array, " k"], span: int
) -> Float[Array, " k"]:
    """Mean change of magnitude over phrases that end at ``ends``, over that between any two words as far apart."""
    inside, everywhere, phrases, others = np.zeros(len(columns)), np.zeros(len(columns)), 0, 0
    for i, places in enumerate(ends):
        size = kann.magnitude(koopman, states[i])[:, columns]
        size = np.concatenate([np.zeros((1, len(columns))), size])  # before the first word nothing is there
        change = np.abs(size[span:] - size[:-span])  # row t: over the words up to word t + span − 1
        rows = places[places >= span - 1] - (span - 1)
        inside += change[rows].sum(axis=0)
        everywhere += change.sum(axis=0)
        phrases, others = phrases + len(rows), others + len(change)
    return (inside / phrases) / (everywhere / others) if phrases else np.full(len(columns), np.nan)
