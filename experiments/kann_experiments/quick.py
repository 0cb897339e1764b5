"""``kann reproduce TASK --quick``: one network of each experiment, its table and its figures, in under three minutes.

The copy task and the flip-flop train one network, as they are quick to learn. The other two take the network that ships
with kann: the autoencoder reads made-up beats, so that nothing is downloaded, and the GRU a sample of the film reviews.
"""

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kann import zoo
from kann.zoo.autoencoder import draw_beats
from kann_experiments import copy, ecg, flipflop
from kann_experiments.ecg.analysis import QUANTITIES as ECG
from kann_experiments.ecg.analysis import study_network as study_beats
from kann_experiments.ecg.figures import draw_figures as draw_beats_figures
from kann_experiments.ecg.task import CONFIGS as BEAT_CONFIGS
from kann_experiments.ecg.task import PRINTED as PRINTED_BEAT_CONFIGS
from kann_experiments.experiment import start_run, write_results
from kann_experiments.results import Reproduction, printed_for
from kann_experiments.sentiment.analysis import study_network as study_reviews
from kann_experiments.sentiment.corpus import Reviews, load_corpus
from kann_experiments.sentiment.figures import draw_figures as draw_review_figures
from kann_experiments.sentiment.quantities import QUANTITIES as SENTIMENT
from kann_experiments.sentiment.tables import quoted_lines
from kann_experiments.sentiment.task import CONFIGS as REVIEW_CONFIGS
from kann_experiments.sentiment.task import PRINTED as PRINTED_REVIEW_CONFIGS
from kann_experiments.training import generator, repeatable

NORMAL, ANOMALOUS = 1000, 150
"""Made-up beats that the autoencoder reads."""

REVIEWS = 800
"""Film reviews of each split that the GRU reads."""

SHIPPED_SEED = 2
"""The seed of the GRU that ships with kann."""


def quick_copy(out: str | os.PathLike[str] = "runs/copy") -> Reproduction:
    """One dtriv, trained as the paper prints: 500 iterations."""
    return copy.reproduce("dtriv", out=out, seeds=[0], printed=True, suffix="-quick")


def quick_flipflop(out: str | os.PathLike[str] = "runs/flipflop") -> Reproduction:
    """One GRU."""
    return flipflop.reproduce("gru", out=out, seeds=[0], suffix="-quick")


def quick_ecg(out: str | os.PathLike[str] = "runs/ecg") -> Reproduction:
    """The autoencoder that ships with kann, on made-up beats."""
    network, config = zoo.load("ecg").network, BEAT_CONFIGS["lstm"]
    run = start_run(
        "ecg",
        "lstm",
        title="ECG, shipped LSTM, made-up beats",
        configs=BEAT_CONFIGS,
        printed_configs=PRINTED_BEAT_CONFIGS,
        printed=False,
        seeds=[0],
        out=out,
        suffix="-quick",
    )
    parts = ecg.split(draw_beats(np.random.default_rng(1), normal=NORMAL, anomalous=ANOMALOUS), seed=0)
    with repeatable():
        studies = [study_beats(network, config, parts)]
        result = write_results(run, studies, quantities=ECG, printed=printed_for("ecg", "lstm"), details={})
        figures = draw_beats_figures(studies, folder=run.folder)
    return replace(result, files=(*result.files, *figures))


def quick_sentiment(out: str | os.PathLike[str] = "runs/sentiment") -> Reproduction:
    """The GRU that ships with kann, on a sample of the reviews, without the live tests."""
    network, config = zoo.load("sentiment").network, REVIEW_CONFIGS["gru"]
    run = start_run(
        "sentiment",
        "gru",
        title=f"sentiment, shipped GRU, {REVIEWS:,} reviews",
        configs=REVIEW_CONFIGS,
        printed_configs=PRINTED_REVIEW_CONFIGS,
        printed=False,
        seeds=[SHIPPED_SEED],
        out=out,
        suffix="-quick",
    )
    corpus = load_corpus()
    corpus = replace(corpus, train=_sample(corpus.train), test=_sample(corpus.test))
    with repeatable(threads=None):
        studies = [study_reviews(network, config, corpus, seed=SHIPPED_SEED)]
        details = {"lines": quoted_lines(studies[0])}
        result = write_results(
            run, studies, quantities=SENTIMENT, printed=printed_for("sentiment", "gru"), details=details
        )
        figures = draw_review_figures(studies, corpus, folder=run.folder)
    return replace(result, files=(*result.files, *figures))


def _sample(reviews: Reviews) -> Reviews:
    """Some reviews, drawn at random, in the order of all."""
    return reviews.take(np.sort(generator(0, 0).permutation(len(reviews))[:REVIEWS]))


QUICK: dict[str, Callable[..., Reproduction]] = {
    "copy": quick_copy,
    "ecg": quick_ecg,
    "sentiment": quick_sentiment,
    "flipflop": quick_flipflop,
}
"""The quick version of each experiment."""
