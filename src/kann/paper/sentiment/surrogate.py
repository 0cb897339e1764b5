"""The whole network replaced by a driven linear system that reads the words of a review and nothing else.

A linear system is a filter: its logit after T words is a sum over them, in which the word read τ steps before the end
counts with its embedding times k_τ = D C^τ Bᵀ w. So a table of words and distances, filled once, gives the answer of
`Koopman.simulate` for every review of the test set by looking it up.
"""

from dataclasses import dataclass

import numpy as np

import kann
from kann.errors import KannError
from kann.paper.sentiment.corpus import Reviews
from kann.paper.sentiment.operators import Readout
from kann.progress import progress
from kann.typing import Array, Float, Int

RANKS = (*range(1, 17), 20, 24, 32, 48, 64, 96, 128, 192, 255)
"""Ranks of the linear systems, as far as the states have them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Surrogates:
    """Linear systems of several ranks in place of the network."""

    ranks: Int[Array, " k"]
    agreement: Float[Array, " k"]
    """Share of test reviews that they decide as the network does."""
    accuracy: Float[Array, " k"]
    """Share that they decide rightly."""


def surrogates(
    moments: kann.Moments,
    embedding: Float[Array, "v p"],
    readout: Readout,
    reviews: Reviews,
    logits: Float[Array, " s"],
) -> Surrogates:
    """Replace the network at every rank; ``logits`` are its own."""
    most = kann.fit(moments, driven=True).rank
    ranks = [rank for rank in RANKS if rank < most] + ([most] if most <= RANKS[-1] else [])
    lag = np.repeat(reviews.lengths, reviews.lengths) - 1 - _places(reviews)
    agreement, right = [], []
    for rank in progress(ranks, what="linear systems", total=len(ranks), unit="rank"):
        ours = simulated(kann.fit(moments, driven=True, rank=rank), embedding, readout, reviews, lag)
        agreement.append(np.mean((ours > 0) == (logits > 0)))
        right.append(np.mean((ours > 0) == (reviews.positive > 0)))
    return Surrogates(ranks=np.array(ranks), agreement=np.array(agreement), accuracy=np.array(right))


def _places(reviews: Reviews) -> Int[Array, " n"]:
    """Which word of its review each word is."""
    return np.arange(len(reviews.words)) - np.repeat(reviews.starts, reviews.lengths)


def simulated(
    koopman: kann.Koopman,
    embedding: Float[Array, "v p"],
    readout: Readout,
    reviews: Reviews,
    lag: Int[Array, " n"] | None = None,
) -> Float[Array, " s"]:
    """Logits of the driven linear system, started at zero, after the last word of each review."""
    if lag is None:
        lag = np.repeat(reviews.lengths, reviews.lengths) - 1 - _places(reviews)
    kernel, constant = filters(koopman, readout, int(reviews.lengths.max()))
    table = (embedding @ kernel.T).astype(np.float32)  # (words, distances)
    shares = table[reviews.words, lag].astype(np.float64)
    return np.add.reduceat(shares, reviews.starts) + constant[reviews.lengths]


def filters(koopman: kann.Koopman, readout: Readout, steps: int) -> tuple[Float[Array, "t p"], Float[Array, " t1"]]:
    """How a word's embedding counts at each distance from the end, and what no word decides after each length."""
    if koopman.drive is None or koopman.offset is None:
        raise KannError("this operator reads no words; fit it with driven=True")
    gain = koopman.basis.T @ readout.weight[0]
    gains = np.empty((steps, koopman.rank))
    for step in range(steps):
        gains[step] = gain
        gain = koopman.matrix @ gain
    # The state of zeros is −mean B in the basis' coordinates, and is carried along.
    start = np.array([-(koopman.mean @ koopman.basis) @ g for g in (*gains[1:], gain)])
    offsets = np.cumsum(gains @ koopman.offset) + start + readout.weight[0] @ koopman.mean
    return gains @ koopman.drive.T, readout.bias[0] + np.concatenate([[0.0], offsets])
