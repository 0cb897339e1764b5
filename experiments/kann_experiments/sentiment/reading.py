"""Let the network read reviews, batch by batch, on the device where it is."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kann.backends.arrays import as_numpy
from kann.typing import Array, Float, Int, Shaped
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.corpus import Reviews, batches_by_length


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReadBatch:
    """Some reviews, padded to the longest of them, and the network's states while it read them."""

    reviews: Int[Array, " b"]
    """Which of all reviews these are."""
    ids: Int[Tensor, "b t"]
    """Numbers of their words."""
    lengths: Int[Tensor, " b"]
    """How many words each has."""
    h: Float[Tensor, "b t d"]
    """The state after each word."""
    is_word: Shaped[Tensor, "b t"]
    """False where there is padding."""

    def state_at(self, steps: Int[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """One state of each review."""
        return self.h[torch.arange(len(self.h), device=self.h.device), steps]


@torch.no_grad()
def read_reviews(network: SentimentNetwork, reviews: Reviews) -> Iterator[ReadBatch]:
    """All reviews once, the longest first."""
    device = network.readout.weight.device
    for chosen in batches_by_length(reviews.lengths):
        ids, lengths = (each.to(device) for each in reviews.batch(chosen))
        is_word = torch.arange(ids.shape[1], device=device) < lengths[:, None]
        yield ReadBatch(reviews=chosen, ids=ids, lengths=lengths, h=network.states(ids), is_word=is_word)


def read_last_states(network: SentimentNetwork, reviews: Reviews) -> Float[Array, "s d"]:
    """The network's state after the last word of every review."""
    last = np.empty((len(reviews), network.readout.in_features))
    for batch in read_reviews(network, reviews):
        last[batch.reviews] = as_numpy(batch.state_at(batch.lengths - 1))
    return last
