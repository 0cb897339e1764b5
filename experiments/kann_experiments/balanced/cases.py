"""The trained networks on which coordinates are compared: what each reads, and how its decisions are judged."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kann.typing import Array, Float
from kann_experiments import copy, counting, ecg, flipflop, sentiment
from kann_experiments.data import obtain
from kann_experiments.ecg.beats import read_beats
from kann_experiments.ecg.live import held_out_beats, loss_of_each
from kann_experiments.ecg.task import THRESHOLD
from kann_experiments.sentiment.corpus import load_corpus
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
    batch_size: int = 256

    @property
    def state(self) -> str:
        """Everything that the layer carries from step to step."""
        return "hc" if isinstance(self.network.get_submodule(self.layer), nn.LSTM) else "h"


def same_answers(outputs: Any, untouched: Any) -> Float[Array, " s"]:
    """The fraction of steps of each sequence whose largest output is the untouched network's."""
    return (np.argmax(outputs, -1) == np.argmax(untouched, -1)).reshape(len(outputs), -1).mean(axis=1)


def _sentiment(arch: str, seed: int, folder: Path, device: str) -> Case:
    corpus = load_corpus()
    network = sentiment.trained(sentiment.CONFIGS[arch], corpus, seed=seed, folder=folder, device=device)
    recorded = fitted_reviews(corpus, seed).take(np.arange(FITTED_REVIEWS))
    judged = corpus.test
    if device == "cpu":
        judged = judged.take(generator(seed, 3).permutation(len(judged))[:REVIEWS_ON_CPU])
    fitted, tested = ([torch.from_numpy(reviews[i]) for i in range(len(reviews))] for reviews in (recorded, judged))
    return Case(network=network, fitted=fitted, judged=tested, batch_size=1024)


def _ecg(arch: str, seed: int, folder: Path, device: str) -> Case:
    parts = ecg.split(read_beats(obtain("ecg5000")), seed=seed)
    network = ecg.trained(ecg.CONFIGS[arch], parts, seed=seed, folder=folder, device=device)
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
    config = copy.CONFIGS[arch]
    network = copy.trained(config, seed=seed, folder=folder, device=device)
    inputs, _ = config.task.sequences(config.task.every())
    order = torch.from_numpy(generator(seed, 4).permutation(len(inputs)))
    half, digits = len(inputs) // 2, config.task.digits

    def same_digits(outputs: Any, untouched: Any) -> Float[Array, " s"]:
        return same_answers(outputs[:, -digits:], untouched[:, -digits:])

    layer = "recurrent.state" if arch == "dtriv" else "recurrent"
    fitted, judged = inputs[order[:half]], inputs[order[half:]]
    return Case(network=network, fitted=fitted, judged=judged, layer=layer, scored={"metric": same_digits})


def _flipflop(arch: str, seed: int, folder: Path, device: str) -> Case:
    config = replace(flipflop.CONFIGS["gru"], arch=arch)
    network = flipflop.trained(config, seed=seed, folder=folder, device=device)
    fitted, judged = (
        config.task.draw(generator(seed, purpose, 0), SEQUENCES, rate=PULSE_RATE)[0]
        for purpose in (flipflop.FITTED, flipflop.LIVE)
    )
    metric = {"metric": flipflop.same_bits}
    return Case(network=network, fitted=fitted, judged=judged, outputs="labels", scored=metric)


def _counting(classes: int) -> Callable[[str, int, Path, str], Case]:
    def case(arch: str, seed: int, folder: Path, device: str) -> Case:
        config = counting.Config(classes=classes, arch=arch, **counting.CONFIGS[arch])
        network = counting.trained(config, seed=seed, folder=folder, device=device)
        fitted, judged = (
            counting.draw(generator(seed, purpose), SEQUENCES, config)[0]
            for purpose in (counting.ANALYSED, counting.JUDGED)
        )
        return Case(network=network, fitted=fitted, judged=judged)

    return case


FITTED_REVIEWS, REVIEWS_ON_CPU = 1000, 2000
"""Training reviews that everything is fitted to, and test reviews to judge on without a GPU; all 25,000 with one."""

FITTED_BEATS = 1000
"""Normal training beats that everything is fitted to."""

SEQUENCES, PULSE_RATE = 512, 0.1
"""Sequences of the synthetic tasks, and how often the flip-flop's have pulses."""

CASES: dict[str, tuple[tuple[str, ...], Callable[[str, int, Path, str], Case]]] = {
    "sentiment": (("gru", "lstm", "rnn"), _sentiment),
    "ecg": (("lstm", "gru"), _ecg),
    "copy": (("dtriv", "rnn", "gru", "lstm"), _copy),
    "flipflop": (("gru", "lstm", "rnn"), _flipflop),
    **{f"counting/{classes}": (("gru", "lstm", "rnn"), _counting(classes)) for classes in counting.CLASSES},
}
"""Architectures of each task, and what makes the case of one of them and of a seed."""


def cases(
    task: str, arch: str, *, seeds: Iterator[int] | range | tuple[int, ...], runs: Path, device: str
) -> Iterator[tuple[int, Case]]:
    """The case of each seed; networks that are in ``runs`` are used again."""
    for seed in seeds:
        yield seed, CASES[task][1](arch, seed, runs / task / arch / f"seed-{seed}", device)
