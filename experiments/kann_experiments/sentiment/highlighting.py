"""Which words a mode highlights: the paper's a_p and a_n, their baseline over all words, and a signed version."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kann.backends.arrays import as_numpy
from kann.typing import Array, Complex, Float, Int, Shaped
from kann_experiments.sentiment.groups import Groups
from kann_experiments.sentiment.operators import LEADING, Operators, projection_vectors
from kann_experiments.sentiment.reading import ReadBatch
from kann_experiments.sentiment.word_sentiment import WordSentiment

HIGHLIGHTED = 0.5
"""The paper counts a word as highlighted if its magnitude, scaled to [0, 1], is at least this."""

WORD_KINDS = (
    "positive",  # positive words that the positive mode highlights: the paper's a_p
    "negative",  # negative words that the negative mode highlights: the paper's a_n
    "positive_any",  # all words that the positive mode highlights, the baseline
    "negative_any",
    "positive_best",  # the same with that one of the leading modes that highlights most such words of the paper's batch
    "positive_any_best",
    "negative_best",
    "negative_any_best",
    "positive_unpadded",  # the same with the operator that saw no padding
    "negative_unpadded",
    "positive_any_unpadded",
    "negative_any_unpadded",
    "positive_up",  # positive words at which the followed modes' contribution to the logit rises
    "negative_down",
    "any_up",
    "any_down",
)
"""Kinds of words that are counted, by the keys that the table of results has for them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WordCounts:
    """How many words of some kind each review has, and how many of them are highlighted (or rise, or fall)."""

    total: Int[Array, " s"]
    marked: Int[Array, " s"]

    @staticmethod
    def zeros(reviews: int) -> "WordCounts":
        """Nothing counted yet."""
        return WordCounts(total=np.zeros(reviews, np.int64), marked=np.zeros(reviews, np.int64))

    def add(self, batch: ReadBatch, words: Shaped[Tensor, "b t"], marked: Shaped[Tensor, "b t"]) -> None:
        """Count some words of a batch, and those of them that are marked."""
        self.total[batch.reviews] += as_numpy(words.sum(dim=1))
        self.marked[batch.reviews] += as_numpy((words & marked).sum(dim=1))

    def fractions(self, batch: int) -> Float[Array, " b"]:
        """The paper's a(H): the marked fraction of all such words, in random batches of ``batch`` reviews each."""
        # The paper's batches are random. One seed for all kinds of words: they are compared on the same batches.
        order = np.random.default_rng(0).permutation(len(self.total))
        cuts = [order[i : i + batch] for i in range(0, len(order), batch)]
        return np.array([self.marked[cut].sum() / max(1, self.total[cut].sum()) for cut in cuts])


def highlighting_vectors(
    operators: Operators, groups: dict[str, Groups], sentiment: WordSentiment
) -> tuple[tuple[tuple[str, str], ...], Complex[Array, "d k"]]:
    """The eigenvectors that highlight words, and for each a pair of names: of the words, and of the way it was chosen.

    A state's product with the vector is its projection. The second name is the end of a key of `WORD_KINDS`.
    """
    names, vectors = [], []
    for side in ("positive", "negative"):
        for ending, koopman, mode in (
            ("", operators.padded, getattr(groups["padded"], side)[0]),
            ("_best", operators.padded, best_mode(operators, getattr(sentiment, side))),
            ("_unpadded", operators.unpadded, getattr(groups["unpadded"], side)[0]),
        ):
            names.append((side, ending))
            vectors.append(projection_vectors(koopman, [mode])[:, 0])
    return tuple(names), np.stack(vectors, axis=1)


def best_mode(operators: Operators, words: Array) -> int:
    """Of the leading modes the one that highlights most of ``words``, a mask (v,), in the paper's batch."""
    is_word = torch.arange(operators.ids.shape[1]) < torch.as_tensor(operators.lengths)[:, None]
    asked = torch.as_tensor(words)[operators.ids] & is_word  # (b, t)
    leading = list(range(min(LEADING, len(operators.padded.modes))))
    h = operators.states.padded()  # (b, t, d)
    highlighted = []
    for vector in projection_vectors(operators.padded, leading).T:
        magnitude = torch.as_tensor(np.abs(h @ vector))
        highlighted.append(int((asked & (scale_to_unit(magnitude, is_word) >= HIGHLIGHTED)).sum()))
    return int(np.argmax(highlighted))


def scale_to_unit(values: Float[Tensor, "b t"], is_word: Shaped[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """Magnitudes brought to [0, 1] by the smallest and largest of each review; 0 where there is padding.

    The paper says that its magnitudes are in [0, 1], and not how they came there.
    """
    low = values.masked_fill(~is_word, torch.inf).amin(dim=1, keepdim=True)
    high = values.masked_fill(~is_word, -torch.inf).amax(dim=1, keepdim=True)
    return ((values - low) / (high - low).clamp(min=1e-12)).masked_fill(~is_word, 0.0)


def marked_words(
    batch: ReadBatch,
    names: tuple[tuple[str, str], ...],
    magnitudes: Float[Tensor, "b t k"],
    contribution: Float[Tensor, "b t"],
    sentiment: WordSentiment,
) -> Iterator[tuple[str, Shaped[Tensor, "b t"], Shaped[Tensor, "b t"]]]:
    """For every kind of `WORD_KINDS`: its name, which words of a batch are of it, and which words are marked.

    ``magnitudes`` are those of the vectors of `highlighting_vectors`, ``contribution`` what the followed modes together
    contribute to the logit.
    """
    # A table of all words, looked up on the device: (v,) → (b, t).
    by_side = {
        side: torch.as_tensor(words, device=batch.ids.device)[batch.ids] & batch.is_word
        for side, words in (("positive", sentiment.positive), ("negative", sentiment.negative))
    }
    for place, (side, ending) in enumerate(names):
        high = scale_to_unit(magnitudes[..., place], batch.is_word) >= HIGHLIGHTED
        yield f"{side}{ending}", by_side[side], high
        yield f"{side}_any{ending}", batch.is_word, high
    change = change_by_word(contribution)
    yield "positive_up", by_side["positive"], change > 0
    yield "negative_down", by_side["negative"], change < 0
    yield "any_up", batch.is_word, change > 0
    yield "any_down", batch.is_word, change < 0


def change_by_word(values: Float[Tensor, "b t ..."]) -> Float[Tensor, "b t ..."]:
    """By how much each word changes a value that is zero before the first word."""
    return torch.diff(values, dim=1, prepend=torch.zeros_like(values[:, :1]))
