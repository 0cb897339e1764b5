"""Words as pairs of numbers, in the one coordinate that the shipped GRU mostly computes with. See `word_pages`."""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

import kann
from kann.backends.arrays import as_numpy
from kann.recording.runner import evaluation_mode
from kann.reporting.plots import draw_word_plane
from kann.stand_ins import WordPairs
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.drawing import WIDE
from kann_experiments.sentiment.corpus import Corpus
from kann_experiments.sentiment.live.bench import LAYER, sequences
from kann_experiments.sentiment.operators import Readout
from kann_experiments.sentiment.reading import read_last_states
from kann_experiments.sentiment.stand_in_bases import judged_reviews
from kann_experiments.sentiment.stand_ins import record_for_stand_ins, simulated_logits, state_of, training_reviews

LEAST = 100
"""Words that the fitted reviews have less often are left out: some dozens of steps leave their numbers uncertain."""

LIMITS = (0.955, 1.025), (-0.7, 0.7)
"""Of the axes: a single word, "worst", is far outside."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OneCoordinate:
    """An operator on one balanced coordinate, and what each word does to it."""

    koopman: kann.Bilinear
    readout: kann.stand_ins.Readout
    pairs: WordPairs
    agreement: float
    """With the network, in its place, on test reviews that were not fitted."""


def measure_pairs(network: SentimentNetwork, corpus: Corpus, *, seed: int = 0) -> OneCoordinate:
    """Fit one balanced coordinate to training reviews, and find what each word keeps of the logit and adds to it."""
    with evaluation_mode(network):
        reviews = training_reviews(network, corpus, seed=seed)
        recorded = record_for_stand_ins(network, reviews)
        states = recorded.states
        texts = sequences(reviews)
        balance = kann.balance(network, texts, layer=LAYER, state=state_of(network), seed=seed, progress=False)
        koopman = kann.fit(states, driven="bilinear", basis=balance, rank=1)
        h = as_numpy(states.values)[:, : network.readout.in_features]
        readout = kann.stand_ins.fit_readout(koopman, states, Readout.of(network)(h), products=False)
        tested = judged_reviews(network, corpus, seed=seed)
        own = Readout.of(network)(read_last_states(network, tested))[:, 0]
        logits = simulated_logits(koopman, recorded.words, network, tested, readout=readout)
    names = np.array(corpus.vocabulary.words)
    tokens = [["", *names[text.numpy()]] for text in texts]  # the state of zeros is reached by reading nothing
    pairs = kann.stand_ins.word_pairs(koopman, states, tokens, readout=readout)
    agreement = float(np.mean((logits > 0) == (own > 0)))
    return OneCoordinate(koopman=koopman, readout=readout, pairs=pairs, agreement=agreement)


def word_plane(pairs: WordPairs) -> Figure:
    """The words that are read often, in the plane of what they keep and add; words beyond `LIMITS` are outside."""
    figure, ax = plt.subplots(figsize=(WIDE, 0.65 * WIDE))
    figure.subplots_adjust(left=0.08, right=0.99, bottom=0.1, top=0.98)
    ax.set(xlim=LIMITS[0], ylim=LIMITS[1])
    draw_word_plane(pairs, ax=ax, count=90, least=LEAST)
    return figure
