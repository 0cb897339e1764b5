"""One network, ready to be run with its state replaced: on reviews to choose with, and on test reviews to judge on."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

import kann
from kann.analysis.coordinates import Coordinates, Spread, spread_of
from kann.live._effects import readout_weight
from kann.live._intervene import only_target, replacement
from kann.live.completion import fit_fills
from kann.live.evaluation import Running, Trials, make_trials
from kann.live.mode_search import Search
from kann.live.scoring import Scorer
from kann.progress import progress
from kann.typing import Array, Shaped
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.corpus import Corpus, Reviews
from kann_experiments.sentiment.operators import fitted_reviews, on_host
from kann_experiments.sentiment.task import JUDGED, split
from kann_experiments.training import generator

LAYER = "recurrent"
"""The layer whose state is replaced."""

RECORDED_REVIEWS = 1000
"""Training reviews whose states operators and fills are fitted to: 240,000 states, 600 for each bin of a curve."""

CHOOSING_REVIEWS = 1024
"""Validation reviews that coordinates are chosen on: agreement is then known to 1.5 %."""

CHOOSING_BATCH, JUDGING_BATCH = 128, 1024
"""Reviews that are run together. Few, so that a search can begin with some of them; many, since a GPU takes as long for
a step of a thousand reviews as for one of a hundred (5 GB of its memory where reviews are longest)."""

JUDGED_ON_CPU = 2000
"""Test reviews that are judged without a GPU, where each of about forty runs over all 25,000 takes three minutes."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Change:
    """A change of the state after every word: which coordinates are kept or removed, and how the rest is filled."""

    coordinates: Coordinates
    fill: str = "curve"
    keep: bool = True


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bench:
    """A network, recorded states, reviews to choose coordinates on, and test reviews to judge them on."""

    network: SentimentNetwork
    state: str
    """Which state is replaced: "hc" of an LSTM, h and c together; else "h"."""
    states: kann.States
    """Recorded from training reviews, with the word embeddings that drove them."""
    search: Search
    """Tests on validation reviews, one coordinate on its curve."""
    judging: Trials
    """Tests on test reviews."""
    judged: Reviews
    """The test reviews, in the order in which they are judged."""
    positive: Shaped[Array, " s"]
    """Which of them the untouched network calls positive."""

    @property
    def spread(self) -> Spread:
        """Mean and covariance of the recorded states."""
        return self.search.spread

    def kept(self, changes: Mapping[str, Change]) -> dict[str, Shaped[Array, " s"]]:
        """Which decisions on test reviews stay as they are under each change, by its name."""
        fills = {}
        for fill in {change.fill for change in changes.values()}:
            names = [name for name, change in changes.items() if change.fill == fill]
            sets = [changes[name].coordinates for name in names]
            fills |= zip(names, fit_fills(sets, self.states, fill, spread=self.spread), strict=True)
        found = {}
        for name in progress(changes, what="live", total=len(changes), unit="run"):
            found[name] = self.judging.scores(replacement(fills[name], keep=changes[name].keep)) == 1
        return found


def make_bench(network: SentimentNetwork, corpus: Corpus, *, seed: int) -> Bench:
    """Record training reviews, and prepare the tests on validation and test reviews."""
    state = "h"
    if isinstance(network.recurrent, torch.nn.LSTM):
        state = "hc"
    recorded = fitted_reviews(corpus, seed).take(np.arange(RECORDED_REVIEWS))
    states = on_host(
        kann.record(network, sequences(recorded), layer=LAYER, state=state, inputs=True, batch_size=CHOOSING_BATCH)
    )
    spread = spread_of(states)
    weight = readout_weight(network, network.readout, layer=LAYER, state=state, width=spread.dim)
    _, validation = split(corpus.train)
    rng = generator(seed, JUDGED)
    choosing = _trials(network, _some(validation, CHOOSING_REVIEWS, rng), state, spread.dim, batch=CHOOSING_BATCH)
    count = len(corpus.test)
    if network.readout.weight.device.type == "cpu":
        count = JUDGED_ON_CPU
    tested = _some(corpus.test, count, rng)
    judging = _trials(network, tested, state, spread.dim, batch=JUDGING_BATCH)
    return Bench(
        network=network,
        state=state,
        states=states,
        search=Search(trials=choosing, states=states, spread=spread, fill="curve", weight=weight),
        judging=judging,
        judged=tested.take(judging.sequences),
        positive=_own_decisions(judging),
    )


def sequences(reviews: Reviews) -> list[torch.Tensor]:
    """The words of each review, the shortest review first: those of a batch then have similar lengths."""
    return [torch.from_numpy(reviews[i]) for i in np.argsort(reviews.lengths, kind="stable")]


def _some(reviews: Reviews, count: int, rng: np.random.Generator) -> Reviews:
    """Reviews drawn at random, all of them if there are no more."""
    return reviews.take(rng.permutation(len(reviews))[:count])


@torch.no_grad()
def _trials(network: SentimentNetwork, reviews: Reviews, state: str, width: int, *, batch: int) -> Trials:
    """Tests on reviews, with the untouched network's logits."""
    words = [torch.from_numpy(reviews[i]) for i in range(len(reviews))]
    trials = make_trials(
        network,
        words,
        Running(lengths=None, forward=None, collate=None, batch_size=batch, device=None),
        target=only_target(network, LAYER, state),
        state=state,
        width=width,
        scorer=Scorer.of("agreement", None),
    )
    return trials.with_untouched()


def _own_decisions(trials: Trials) -> Shaped[Array, " s"]:
    """Which reviews the untouched network calls positive, in the order in which they are run."""
    return np.concatenate([np.asarray(group.untouched) > 0 for group in trials.groups])
