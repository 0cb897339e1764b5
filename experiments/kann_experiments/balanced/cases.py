"""The trained networks on which coordinates are compared: what each reads, and how its decisions are judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kann import zoo
from kann.typing import Array, Float
from kann.zoo.autoencoder import Autoencoder
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments import copy, ecg, flipflop
from kann_experiments.copy.task import CONFIGS as COPY
from kann_experiments.counting import task as counting
from kann_experiments.data import obtain
from kann_experiments.ecg.beats import read_beats
from kann_experiments.ecg.live import held_out_beats, loss_of_each
from kann_experiments.ecg.task import CONFIGS as ECG
from kann_experiments.ecg.task import THRESHOLD, Split, split
from kann_experiments.flipflop.analysis import same_bits
from kann_experiments.flipflop.task import CONFIGS as FLIPFLOP
from kann_experiments.flipflop.task import FITTED, LIVE
from kann_experiments.sentiment import task as sentiment
from kann_experiments.sentiment.corpus import Corpus, batches_by_length, load_corpus
from kann_experiments.sentiment.live.bench import JUDGED_ON_CPU, RECORDED_REVIEWS, words
from kann_experiments.sentiment.operators import fitted_reviews
from kann_experiments.training import generator


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """A trained network, sequences to fit to and others to judge on."""

    network: nn.Module
    fitted: Any
    """Sequences that coordinates, operators and fills are fitted to, in a form that `kann.record` reads."""
    judged: Any
    """Held-out sequences."""
    layer: str = "recurrent"
    outputs: str = "class"
    """As in `kann.balance`."""
    scored: Mapping[str, Any] = field(default_factory=dict)
    """How `kann.effects` scores sequences, such as ``metric`` and ``labels``."""
    decided: Callable[[Float[Array, " s"], Float[Array, " s"]], Float[Array, " s"]] | None = None
    """From scores, and those of the untouched network, to the fraction of decisions kept in each sequence. Default:
    scores are such fractions already."""
    has_inputs: bool = True
    """Whether the layer reads anything but its state, so that a driven operator can be fitted."""
    known: int | None = None
    """How many coordinates the task needs, where that is known."""
    learned_from: Any = None
    """Sequences that subspaces are learned from, a list if lengths differ. Default: those that all is fitted to."""
    accuracy: float | None = None
    """Fraction of the judged sequences that the untouched network classifies correctly, where that was measured."""
    batch_size: int = 256

    @property
    def learning(self) -> Any:
        """Sequences that subspaces are learned from."""
        return self.fitted if self.learned_from is None else self.learned_from

    @property
    def state(self) -> str:
        """Everything that the layer carries from step to step."""
        return "hc" if isinstance(self.network.get_submodule(self.layer), nn.LSTM) else "h"


def same_answers(outputs: Any, untouched: Any) -> Float[Array, " s"]:
    """The fraction of steps of each sequence whose largest output is the untouched network's."""
    return (np.argmax(outputs, -1) == np.argmax(untouched, -1)).reshape(len(outputs), -1).mean(axis=1)


def _ecg(arch: str, seed: int, folder: Path, device: str) -> Case:
    parts = split(read_beats(obtain("ecg5000")), seed=seed)
    return _beats(ecg.trained(ECG[arch], parts, seed=seed, folder=folder, device=device), parts)


def _shipped_ecg(arch: str, seed: int, folder: Path, device: str) -> Case:
    return _beats(zoo.load("ecg").network, split(read_beats(obtain("ecg5000")), seed=0))


def _beats(network: Autoencoder, parts: Split) -> Case:
    """Normal training beats to fit to, and held-out beats, half of them anomalous."""
    beats = held_out_beats(parts)
    return Case(
        network=network,
        fitted=parts.train[:FITTED_BEATS],
        judged=beats.values,
        layer="encoder",
        outputs="values",
        scored={"metric": loss_of_each, "labels": beats.values.numpy()},
        decided=lambda loss, untouched: ((loss > THRESHOLD) == (untouched > THRESHOLD)).astype(float),
    )


def _copy(arch: str, seed: int, folder: Path, device: str) -> Case:
    config = COPY[arch]
    network = copy.trained(config, seed=seed, folder=folder, device=device)
    inputs, _ = config.task.sequences(config.task.every())
    order = torch.from_numpy(generator(seed, 4).permutation(len(inputs)))
    half, digits = len(inputs) // 2, config.task.digits

    def same_digits(outputs: Any, untouched: Any) -> Float[Array, " s"]:
        return same_answers(outputs[:, -digits:], untouched[:, -digits:])

    layer = "recurrent.state" if arch == "dtriv" else "recurrent"
    fitted, judged = inputs[order[:half]], inputs[order[half:]]
    return Case(
        network=network,
        fitted=fitted,
        judged=judged,
        layer=layer,
        has_inputs=arch != "dtriv",  # its states pass an identity, which reads nothing else
        scored={"metric": same_digits},
    )


def _flipflop(arch: str, seed: int, folder: Path, device: str) -> Case:
    config = replace(FLIPFLOP["gru"], arch=arch)
    network = flipflop.trained(config, seed=seed, folder=folder, device=device)
    fitted, judged = (
        config.task.draw(generator(seed, purpose, 0), SEQUENCES, rate=PULSE_RATE)[0] for purpose in (FITTED, LIVE)
    )
    metric = {"metric": same_bits}
    return Case(network=network, fitted=fitted, judged=judged, outputs="labels", scored=metric, known=config.task.bits)


def _counting(classes: int) -> Callable[[str, int, Path, str], Case]:
    def case(arch: str, seed: int, folder: Path, device: str) -> Case:
        config = counting.Config(classes=classes, arch=arch, **counting.CONFIGS[arch])
        network = counting.trained(config, seed=seed, folder=folder, device=device)
        fitted, judged = (
            counting.draw(generator(seed, purpose), SEQUENCES, config)[0]
            for purpose in (counting.ANALYSED, counting.JUDGED)
        )
        return Case(network=network, fitted=fitted, judged=judged, known=classes - 1)

    return case


def _small_sentiment(arch: str, seed: int, folder: Path, device: str) -> Case:
    corpus = load_corpus()
    network = sentiment.trained(SMALL_SENTIMENT[arch], corpus, seed=seed, folder=folder, device=device)
    return _reading(network, corpus, seed)


def _shipped_sentiment(arch: str, seed: int, folder: Path, device: str) -> Case:
    return _reading(zoo.load("sentiment").network, load_corpus(), seed)


def _reading(network: SentimentNetwork, corpus: Corpus, seed: int) -> Case:
    """Training reviews to fit and learn from, and as many test reviews as are judged without a GPU."""
    training = fitted_reviews(corpus, seed)
    rng = generator(seed, sentiment.JUDGED)
    judged = corpus.test.take(rng.permutation(len(corpus.test))[:JUDGED_ON_CPU])
    logits = np.empty(len(judged))
    with torch.no_grad():
        for chosen in batches_by_length(judged.lengths):
            logits[chosen] = network(*judged.batch(chosen)).numpy()
    return Case(
        network=network,
        fitted=words(training.take(np.arange(RECORDED_REVIEWS))),
        judged=words(judged),
        learned_from=words(training),
        accuracy=sentiment.accuracy(logits, judged),
    )


SMALL_SENTIMENT = {
    arch: replace(config, units=32, embedding=32, epochs=2 if arch == "gru" else config.epochs)
    for arch, config in sentiment.CONFIGS.items()
}
"""Sentiment networks that a processor trains in minutes. torch's GRU takes three times as long as its LSTM there."""

FITTED_BEATS = 1000
"""Normal training beats that everything is fitted to."""

SEQUENCES, PULSE_RATE = 512, 0.1
"""Sequences of the synthetic tasks, and how often the flip-flop's have pulses."""

CASES: dict[str, tuple[tuple[str, ...], Callable[[str, int, Path, str], Case]]] = {
    "ecg": (("lstm", "gru"), _ecg),
    "shipped-sentiment": (("gru",), _shipped_sentiment),
    "small-sentiment": (("gru", "lstm", "rnn"), _small_sentiment),
    "shipped-ecg": (("lstm",), _shipped_ecg),
    "copy": (("dtriv", "rnn", "gru", "lstm"), _copy),
    "flipflop": (("gru", "lstm", "rnn"), _flipflop),
    **{f"counting-{classes}": (("gru", "lstm", "rnn"), _counting(classes)) for classes in counting.CLASSES},
}
"""Architectures of each task, and what makes the case of one of them and of a seed."""
