"""The whole network replaced by a driven linear system that reads the words of a review and nothing else.

A linear system is a filter: its logit after T words is a sum over them, in which the word read τ steps before the end
counts with its embedding times k_τ = D C^τ Bᵀ w. So a table of words and distances, filled once, gives what
`Koopman.simulate` gives, for every review of the test set, by looking it up: a simulation would take T products with C
for each of 25,000 reviews and each of 25 ranks.
"""

from dataclasses import dataclass

import numpy as np

import kann
from kann.errors import KannError
from kann.progress import progress
from kann.typing import Array, Float, Int
from kann_experiments.sentiment.corpus import Reviews
from kann_experiments.sentiment.operators import Readout

RANKS = (*range(1, 17), 20, 24, 32, 48, 64, 96, 128, 192, 255)
"""Ranks of the linear systems, as far as the states have them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Surrogates:
    """Linear systems of several ranks in place of the network."""

    ranks: Int[Array, " k"]
    agreement: Float[Array, " k"]
    """Fraction of test reviews that they decide as the network does."""
    accuracy: Float[Array, " k"]
    """Fraction that they decide rightly."""


def replace_network(
    moments: kann.Moments,
    embedding: Float[Array, "v p"],
    readout: Readout,
    reviews: Reviews,
    logits: Float[Array, " s"],
) -> Surrogates:
    """Put a linear system of every rank in place of the network, whose own logits are ``logits``."""
    largest = kann.fit(moments, basis="svd", driven=True).rank
    ranks = [rank for rank in RANKS if rank < largest]
    if largest <= RANKS[-1]:
        ranks.append(largest)
    agreement, accuracy = [], []
    for rank in progress(ranks, what="linear systems", total=len(ranks), unit="rank"):
        koopman = kann.fit(moments, basis="svd", driven=True, rank=rank)
        positive = simulate_logits(koopman, embedding, readout, reviews) > 0
        agreement.append(np.mean(positive == (logits > 0)))
        accuracy.append(np.mean(positive == (reviews.positive > 0)))
    return Surrogates(ranks=np.array(ranks), agreement=np.array(agreement), accuracy=np.array(accuracy))


def simulate_logits(
    koopman: kann.Koopman, embedding: Float[Array, "v p"], readout: Readout, reviews: Reviews
) -> Float[Array, " s"]:
    """Logits of the driven linear system, started at zero, after the last word of each review."""
    response, constant = impulse_response(koopman, readout, int(reviews.lengths.max()))
    # The table has ten million entries, which are read at random: float32 halves the memory traffic.
    table = (embedding @ response.T).astype(np.float32)  # (words, distances)
    contributions = table[reviews.words, _distance_from_end(reviews)].astype(np.float64)  # one for each word
    return np.add.reduceat(contributions, reviews.starts) + constant[reviews.lengths]


def _distance_from_end(reviews: Reviews) -> Int[Array, " n"]:
    """How many words follow each word in its review."""
    ends = reviews.starts + reviews.lengths - 1
    return np.repeat(ends, reviews.lengths) - np.arange(len(reviews.words))


def impulse_response(
    koopman: kann.Koopman, readout: Readout, steps: int
) -> tuple[Float[Array, "t p"], Float[Array, " t1"]]:
    """How a word's embedding counts at each distance from the end, and the part of the logit that no word decides.

    The second has an entry for each number of words, from 0 to ``steps``.
    """
    if koopman.drive is None or koopman.offset is None:
        raise KannError("this operator reads no words; fit it with driven=True")
    gain = koopman.basis.T @ readout.weight[0]
    gains = np.empty((steps, koopman.rank))  # row τ: C^τ Bᵀ w
    for step in range(steps):
        gains[step] = gain
        gain = koopman.matrix @ gain
    # The state of zeros is −mean B in the basis' coordinates, and is carried along.
    start = np.array([-(koopman.mean @ koopman.basis) @ g for g in (*gains[1:], gain)])
    offsets = np.cumsum(gains @ koopman.offset) + start + readout.weight[0] @ koopman.mean
    return gains @ koopman.drive.T, readout.bias[0] + np.concatenate([[0.0], offsets])
