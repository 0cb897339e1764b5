"""The linear operators of a network that reads reviews: the paper's, and those that leave padding out or read words."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import kann
from kann.backends.arrays import as_numpy
from kann.typing import Array, Complex, Float, Int, Shaped
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.corpus import LONGEST, Corpus, Reviews
from kann_experiments.sentiment.task import ANALYSED, FITTED, split
from kann_experiments.training import generator

BATCH = 64
"""Reviews that the paper's operator is fitted to."""

FITTED_REVIEWS = 5000
"""Training reviews that the other operators are fitted to: 1.3 million states."""

GROUPS = 10
"""Groups of these reviews, each of which is held out once."""

RANK_WITH_WORDS = 16
"""Rank of the small operator that reads words: more changes its decisions little."""

DOMINANT = 0.99
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
class PaddedStates:
    """States of reviews that are padded to 1,000 words."""

    states: kann.States
    """All of them, padding included."""
    lengths: Int[Array, " b"]
    """How many words each review has."""

    @property
    def is_word(self) -> Shaped[Array, " n"]:
        """For each state whether a word was read to reach it, not padding."""
        return (np.arange(self.states.lengths[0]) < self.lengths[:, None]).ravel()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operators:
    """The operators that are fitted to a trained network, and the states of the paper's batch."""

    ids: Int[Tensor, "b t"]
    """Numbers of the words of the batch, padded with zeros to 1,000."""
    lengths: Int[Array, " b"]
    """How many words each review of the batch has."""
    states: kann.States
    """All states of the batch, padding included."""
    word_states: kann.States
    """The same without padding."""
    held_out: PaddedStates
    """Of as many other test reviews, padded in the same way: no operator is fitted to them."""
    padded: kann.Koopman
    """The paper's operator: fitted to all states of the batch, padding included."""
    unpadded: kann.Koopman
    """Fitted to the states of `FITTED_REVIEWS` training reviews, without padding."""
    moments: kann.Moments
    """Moments of these states and of the word embeddings that drove them."""
    moments_of_groups: tuple[kann.Moments, ...]
    """The same of `GROUPS` groups of reviews, each of which can be held out."""
    driven: kann.Koopman
    """The operator that reads the words, fitted to the same moments."""
    readout: Readout

    @property
    def fitted(self) -> PaddedStates:
        """What the paper's operator is fitted to."""
        return PaddedStates(states=self.states, lengths=self.lengths)

    @property
    def by_name(self) -> dict[str, kann.Koopman]:
        """The three operators by the names that results have for them."""
        return {"padded": self.padded, "unpadded": self.unpadded, "driven": self.driven}


def fit_operators(network: SentimentNetwork, corpus: Corpus, *, seed: int) -> Operators:
    """Record the network's states and fit the operators to them."""
    order = generator(seed, ANALYSED).permutation(len(corpus.test))
    ids, fitted = record_padded(network, corpus.test, order[:BATCH])
    _, held_out = record_padded(network, corpus.test, order[BATCH : 2 * BATCH])
    states, lengths = fitted.states, fitted.lengths
    groups = record_groups(network, fitted_reviews(corpus, seed))
    moments = sum(groups[1:], start=groups[0])
    return Operators(
        ids=ids,
        lengths=lengths,
        states=states,
        word_states=kann.States.from_padded(states.padded(), lengths),
        held_out=held_out,
        padded=fit_as_in_paper(kann.Moments.of(states)),
        unpadded=fit_as_in_paper(moments),
        moments=moments,
        moments_of_groups=groups,
        driven=kann.fit(moments, basis="svd", driven=True),
        readout=Readout.of(network),
    )


def record_padded(
    network: SentimentNetwork, reviews: Reviews, chosen: Int[Array, " b"]
) -> tuple[Int[Tensor, "b t"], PaddedStates]:
    """Words of some reviews as numbers, padded with zeros to 1,000, and the network's states while it reads them."""
    ids, lengths = reviews.batch(chosen, length=LONGEST)  # (b, t) and (b,)
    states = kann.record(network, ids, layer="recurrent", batch_size=BATCH, progress=False)  # b × t rows
    return ids, PaddedStates(states=on_host(states), lengths=lengths.numpy())


def on_host(states: kann.States) -> kann.States:
    """The same states as numpy arrays."""
    inputs = states.inputs
    if inputs is not None:
        inputs = as_numpy(inputs)
    return kann.States(values=as_numpy(states.values), lengths=states.lengths, inputs=inputs)


def fitted_reviews(corpus: Corpus, seed: int) -> Reviews:
    """Training reviews, drawn at random, that operators are fitted to."""
    reviews, _ = split(corpus.train)
    return reviews.take(generator(seed, FITTED).permutation(len(reviews))[:FITTED_REVIEWS])


def record_groups(network: SentimentNetwork, reviews: Reviews) -> tuple[kann.Moments, ...]:
    """Moments of `GROUPS` groups of reviews, drawn at random as the reviews are."""
    parts = np.array_split(np.arange(len(reviews)), min(GROUPS, len(reviews)))
    return tuple(record_moments(network, reviews.take(part)).numpy() for part in parts)


def record_moments(network: SentimentNetwork, reviews: Reviews) -> kann.Moments:
    """Moments of all states and their inputs, streamed: the states themselves are never held."""
    order = np.argsort(reviews.lengths, kind="stable")  # batches of similar length
    words = [torch.from_numpy(reviews[i]) for i in order]
    return kann.recording.record_moments(network, words, layer="recurrent", inputs=True, batch_size=64)


def fit_as_in_paper(moments: kann.Moments, *, basis: str = "svd") -> kann.Koopman:
    """An operator of rank d − 1, as in the published code, or of the rank that the states resolve if that is less."""
    full = kann.fit(moments, basis=basis, offset=False)
    if full.rank < moments.dim:
        return full
    return kann.fit(moments, basis=basis, offset=False, rank=moments.dim - 1)


def count_dominant(koopman: kann.Koopman) -> int:
    """How many eigenvalues are dominant."""
    return int((np.abs(koopman.eigenvalues) > DOMINANT).sum())


def last_of_each(states: kann.States) -> Float[Array, "s d"]:
    """The last state of each sequence."""
    return np.asarray(states.values[states.starts + states.lengths - 1], dtype=np.float64)


def projection_vectors(koopman: kann.Koopman, modes: list[int]) -> Complex[Array, "d k"]:
    """Vectors whose products with a state are its projections onto some modes, one eigenvector of each.

    Of a conjugate pair one is enough: the other has the same magnitude. `kann.project` is linear in the state if the
    basis is not PCA, so the projections of the unit vectors are the vectors.
    """
    columns = [koopman.modes[mode].indices[0] for mode in modes]
    return kann.project(koopman, np.eye(koopman.dim))[:, columns]


def contribution_vectors(koopman: kann.Koopman, readout: Readout) -> Float[Array, "d m"]:
    """Vectors whose products with a state are the contributions of all modes to its logit.

    `kann.contributions` is linear in the state if the basis is not PCA, so the contributions of the unit vectors are
    the vectors. As a matrix they can be multiplied with millions of states on a GPU.
    """
    return kann.contributions(koopman, np.eye(koopman.dim), readout.weight).modes[..., 0]
