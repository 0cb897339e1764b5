"""The linear operators of a network that reads reviews: the paper's, and those that leave padding out or read words."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kann
from kann.backends.arrays import as_numpy
from kann.fitting.spectrum import Mode
from kann.paper.sentiment.corpus import LONGEST, Corpus, Reviews
from kann.paper.sentiment.task import ANALYSED, FITTED, split
from kann.paper.training import generator
from kann.typing import Array, Float, Int
from kann.zoo.sentiment_network import SentimentNetwork

BATCH = 64
"""Reviews that the paper's operator is fitted to."""

FITTED_REVIEWS = 5000
"""Training reviews that the other operators are fitted to: 1.3 million states."""

SLOW = 0.99
"""The paper calls an eigenvalue dominant if its modulus is greater."""

LEADING = 4
"""How many modes the paper looks at."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Readout:
    """The network's linear readout of a state: h @ weight.T + bias is the logit."""

    weight: Float[Array, "1 d"]
    bias: Float[Array, " 1"]

    @staticmethod
    def of(network: SentimentNetwork) -> "Readout":
        """The readout of a network."""
        weight, bias = (as_numpy(part).astype(np.float64) for part in (network.readout.weight, network.readout.bias))
        return Readout(weight=weight, bias=bias)

    def __call__(self, h: Float[Array, "... d"]) -> Float[Array, "... 1"]:
        """Logits of states."""
        return h @ self.weight.T + self.bias


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operators:
    """What is fitted to a trained network."""

    batch: Int[Array, " b"]
    """The test reviews of the paper's batch."""
    ids: Int[Tensor, "b t"]
    """Their words, padded with zeros to 1,000."""
    lengths: Int[Array, " b"]
    """How many words they have."""
    states: kann.States
    """All their states, padding included."""
    real: kann.States
    """The same without padding."""
    padded: kann.Koopman
    """The paper's operator: fitted to all states of the batch, padding included."""
    unpadded: kann.Koopman
    """Fitted to the states of `FITTED_REVIEWS` training reviews, without padding."""
    moments: kann.Moments
    """Moments of these states and of the word embeddings that drove them."""
    driven: kann.Koopman
    """The operator that reads the words, fitted to the same."""
    readout: Readout


def fit_operators(network: SentimentNetwork, corpus: Corpus, *, seed: int) -> Operators:
    """Record and fit."""
    chosen = generator(seed, ANALYSED).permutation(len(corpus.test))[:BATCH]
    ids, lengths = corpus.test.batch(chosen, length=LONGEST)
    lengths = lengths.numpy()
    states = on_host(kann.record(network, ids, layer="recurrent", batch_size=BATCH, progress=False))
    moments = moments_of(network, fitted_reviews(corpus, seed)).numpy()
    return Operators(
        batch=chosen,
        ids=ids,
        lengths=lengths,
        states=states,
        real=kann.States.from_padded(states.padded(), lengths),
        padded=papers_fit(kann.Moments.of(states)),
        unpadded=papers_fit(moments),
        moments=moments,
        driven=kann.fit(moments, driven=True),
        readout=Readout.of(network),
    )


def on_host(states: kann.States) -> kann.States:
    """The same states as numpy arrays."""
    inputs = None if states.inputs is None else as_numpy(states.inputs)
    return kann.States(values=as_numpy(states.values), lengths=states.lengths, inputs=inputs)


def fitted_reviews(corpus: Corpus, seed: int) -> Reviews:
    """Training reviews, drawn at random, that operators are fitted to."""
    reviews, _ = split(corpus.train)
    return reviews.take(generator(seed, FITTED).permutation(len(reviews))[:FITTED_REVIEWS])


def moments_of(network: SentimentNetwork, reviews: Reviews) -> kann.Moments:
    """Moments of all states and their inputs, streamed: nothing but them is held."""
    order = np.argsort(reviews.lengths, kind="stable")  # batches of similar length
    words = [torch.from_numpy(reviews[i]) for i in order]
    return kann.record(network, words, layer="recurrent", inputs=True, into="moments", batch_size=64)


def papers_fit(moments: kann.Moments, *, basis: str = "svd") -> kann.Koopman:
    """An operator of rank d − 1, as in the published code, or of the rank that the states resolve if that is less."""
    whole = kann.fit(moments, basis=basis)
    return whole if whole.rank < moments.dim else kann.fit(moments, basis=basis, rank=moments.dim - 1)


def slow(koopman: kann.Koopman) -> int:
    """How many eigenvalues are dominant."""
    return int((np.abs(koopman.eigenvalues) > SLOW).sum())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Groups:
    """Two groups of leading modes, by what the readout makes of them."""

    negative: tuple[int, ...]
    """Modes whose part of a state reads out negative."""
    positive: tuple[int, ...]
    """Modes whose part of a state reads out positive."""
    split: float
    """Share of reviews for which both is so: the paper's y12 < .5 and y34 > .5."""


def group_modes(koopman: kann.Koopman, last: Float[Array, "s d"], readout: Readout) -> Groups:
    """Split the leading modes into two groups so that one reads out negative and the other positive most often.

    As in the paper each group's part of the state is read out, bias included. Of splits that are equally good the one
    whose readouts differ most is taken.
    """
    modes = range(min(LEADING, len(koopman.modes)))
    parts = {j: kann.reconstruct(koopman, last, j) @ readout.weight[0] for j in modes}
    best: tuple[float, float, Groups] | None = None
    for size in range(1, len(modes)):
        for chosen in itertools.combinations(modes, size):
            others = tuple(j for j in modes if j not in chosen)
            low, high = (sum(parts[j] for j in group) + readout.bias[0] for group in (chosen, others))
            share = float(np.mean((low < 0) & (high > 0)))
            gap = float(np.mean(high - low))
            if best is None or (share, gap) > best[:2]:
                best = share, gap, Groups(negative=chosen, positive=others, split=share)
    if best is None:  # an operator of a single mode has nothing to split
        return Groups(negative=(0,), positive=(0,), split=0.0)
    return best[2]


def ends(states: kann.States) -> Float[Array, "s d"]:
    """The last state of each sequence."""
    return np.asarray(states.values[states.starts + states.lengths - 1], dtype=np.float64)


def mode_columns(koopman: kann.Koopman, modes: Any) -> list[int]:
    """Eigenvectors that modes consist of, one of each pair: the other has the same magnitude."""
    return [_mode(koopman, mode).indices[0] for mode in modes]


def _mode(koopman: kann.Koopman, mode: int | Mode) -> Mode:
    return mode if isinstance(mode, Mode) else koopman.modes[mode]
