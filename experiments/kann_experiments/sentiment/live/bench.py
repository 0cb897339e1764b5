"""One network, ready to be run with its state replaced on test reviews."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

import kann
from kann.data.moments import MeanAndCovariance, mean_and_covariance
from kann.live._effects import Change, readout_weight, run_changes
from kann.live._intervene import replaced, replaced_layer
from kann.live.evaluation import Scorer, score_runs
from kann.recording.sequence_data import SequenceData
from kann.typing import Array, Float, Shaped
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.corpus import Corpus, Reviews
from kann_experiments.sentiment.operators import fitted_reviews, on_host
from kann_experiments.sentiment.task import JUDGED, split
from kann_experiments.training import generator

LAYER = "recurrent"
"""The layer whose state is replaced."""

RECORDED_REVIEWS = 1000
"""Training reviews whose states operators and fills are fitted to: 240,000 states, 600 for each bin of a curve."""

RECORDING_BATCH, JUDGING_BATCH = 128, 1024
"""Reviews that are run together. Few for recording; many for judging, since a GPU takes as long for a step of
a thousand reviews as for one of a hundred (5 GB of its memory where reviews are longest)."""

JUDGED_ON_CPU = 2000
"""Test reviews that are judged without a GPU, where each of about forty runs over all 25,000 takes three minutes."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bench:
    """A network, recorded states, and test reviews to judge on."""

    network: SentimentNetwork
    state: str
    """Which state is replaced: "hc" of an LSTM, h and c together; else "h"."""
    recorded: list[Tensor]
    """The words of some training reviews."""
    states: kann.States
    """Recorded from them, with the word embeddings that drove them."""
    spread: MeanAndCovariance
    """Mean and covariance of the recorded states."""
    weight: Float[Array, "o d"]
    """The weight of the network's readout, as wide as the state."""
    replaced: Callable[[Callable[[Tensor], Tensor]], AbstractContextManager[None]]
    """A block in which the network runs with a function applied to its state after every word."""
    judging: SequenceData
    """Test reviews."""
    judged: Reviews
    """The same test reviews."""
    positive: Shaped[Array, " s"]
    """Which of them the untouched network calls positive."""

    def kept(self, changes: Mapping[str, Change], *, fill: str = "auto") -> dict[str, Array]:
        """Which decisions on test reviews stay as they are under each change, by its name."""
        _, scores, _ = run_changes(
            self.judging,
            self.replaced,
            list(changes.values()),
            self.states,
            self.spread,
            fill=fill,
            scorer=Scorer.of("agreement"),
        )
        return dict(zip(changes, scores[1:] == 1, strict=True))


def make_bench(network: SentimentNetwork, corpus: Corpus, *, seed: int) -> Bench:
    """Record training reviews, and prepare the tests on test reviews."""
    recorded = sequences(fitted_reviews(corpus, seed).take(np.arange(RECORDED_REVIEWS)))
    state = "hc" if isinstance(network.recurrent, torch.nn.LSTM) else "h"
    states = on_host(kann.record(network, recorded, layer=LAYER, state=state, inputs=True, batch_size=RECORDING_BATCH))
    weight = readout_weight(network, network.readout, layer=LAYER, state=state, width=states.dim)
    assert weight is not None  # noqa: S101  # the readout was passed
    target, _ = replaced_layer(network, LAYER, state, states.dim)
    _, validation = split(corpus.train)
    rng = generator(seed, JUDGED)
    rng.permutation(len(validation))  # the test reviews are still those of results that drew validation reviews first
    is_on_cpu = network.readout.weight.device.type == "cpu"
    judged = _some(corpus.test, JUDGED_ON_CPU if is_on_cpu else len(corpus.test), rng)
    judging = SequenceData(network, words(judged), batch_size=JUDGING_BATCH)
    says_yes = Scorer.of(lambda outputs, _: outputs.reshape(len(outputs)) > 0)
    _, (positive,) = score_runs(judging, [], says_yes, what="reviews")
    return Bench(
        network=network,
        state=state,
        recorded=recorded,
        states=states,
        spread=mean_and_covariance(states),
        weight=weight,
        replaced=partial(replaced, network, target, state=state, width=states.dim),
        judging=judging,
        judged=judged,
        positive=positive == 1,
    )


def sequences(reviews: Reviews) -> list[Tensor]:
    """The words of each review, the shortest review first: those of a batch then have similar lengths."""
    return [torch.from_numpy(reviews[i]) for i in np.argsort(reviews.lengths, kind="stable")]


def words(reviews: Reviews) -> list[Tensor]:
    """The words of each review."""
    return [torch.from_numpy(reviews[i]) for i in range(len(reviews))]


def _some(reviews: Reviews, count: int, rng: np.random.Generator) -> Reviews:
    """Reviews drawn at random, all of them if there are no more."""
    return reviews.take(rng.permutation(len(reviews))[:count])
