"""Gated operators on few coordinates in place of the network: balanced ones compared with principal components.

``python -m kann_experiments.sentiment.stand_in_bases runs/sentiment gru 0 1 2 3 4`` measures the networks that
`reproduce` trained there, and writes ``experiments/results/sentiment-stand-ins/gru.json``. With ``shipped 0`` it
measures the network that ships with kann.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import kann
from kann import zoo
from kann.backends.arrays import as_numpy
from kann.progress import progress
from kann.recording.runner import evaluation_mode
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.pages import RESULTS
from kann_experiments.results import Quantity, common_json, tabulate, write_json
from kann_experiments.sentiment.corpus import Corpus, Reviews, load_corpus
from kann_experiments.sentiment.live.bench import JUDGED_ON_CPU, LAYER, sequences
from kann_experiments.sentiment.operators import Readout
from kann_experiments.sentiment.reading import read_last_states
from kann_experiments.sentiment.stand_ins import (
    is_on_cpu,
    record_for_stand_ins,
    simulated_logits,
    state_of,
    training_reviews,
)
from kann_experiments.sentiment.task import CONFIGS, JUDGED, accuracy, trained
from kann_experiments.training import generator

COUNTS = (1, 2, 4, 8, 16)
"""How many balanced coordinates and principal components are compared."""

SHIPPED = "shipped"
"""The network that ships with kann, in place of an architecture."""

MOST_LIFTED = 4
"""Coordinates whose products are compared too: eight have 36, and with 128 components of words 5,700 weights."""

KINDS = {
    "balanced": "agreement",
    "balanced_squares": "    with products of coordinates",
    "pca": "    principal components instead",
    "pca_squares": "    with products of these",
}
"""The bases and lifts that are compared, by key."""


def basis_quantities() -> tuple[Quantity, ...]:
    """The rows of the table for `compare_bases`."""
    rows = [
        Quantity(key="recorded", what="training reviews that stand-ins are fitted to"),
        Quantity(key="reviews", what="    test reviews that they are judged on"),
        Quantity(key="network", what="    accuracy of the network on these", format="percent"),
    ]
    for count in COUNTS:
        for kind, what in KINDS.items():
            title = f"{count} balanced coordinates: {what}" if kind == "balanced" else what
            rows.append(Quantity(key=f"{kind}_{count}", what=title, format="percent"))
            if kind == "balanced_squares":
                rows.append(Quantity(key=f"{kind}_{count}_accuracy", what="    their accuracy", format="percent"))
    return tuple(rows)


def compare_bases(
    network: SentimentNetwork, corpus: Corpus, *, seed: int, counts: Sequence[int] = COUNTS
) -> dict[str, float]:
    """How often gated operators on few coordinates decide test reviews as the network does, by basis and lift.

    Their readouts are fitted to what the network answers after the last word of the training reviews. The keys are
    those of `basis_quantities`.
    """
    with evaluation_mode(network):
        reviews = training_reviews(network, corpus, seed=seed)
        recorded = record_for_stand_ins(network, reviews)
        balance = kann.balance(
            network, sequences(reviews), layer=LAYER, state=state_of(network), seed=seed, progress=False
        )
        tested = judged_reviews(network, corpus, seed=seed)
        readout = Readout.of(network)
        own = readout(read_last_states(network, tested))[:, 0]
        states = recorded.states
        last = as_numpy(states.values[states.starts + states.lengths - 1]).astype(np.float64)
        answers = readout(last[:, : network.readout.in_features])
        numbers = {
            "recorded": float(len(reviews)),
            "reviews": float(len(tested)),
            "network": accuracy(own, tested),
        }
        for count in progress(counts, what="stand-ins", total=len(counts), unit="size"):
            for kind in KINDS:
                if kind.endswith("squares") and count > MOST_LIFTED:
                    continue
                koopman = kann.fit(
                    states,
                    driven="bilinear",
                    rank=count,
                    basis=balance if kind.startswith("balanced") else "pca",
                    lift="squares" if kind.endswith("squares") else None,
                )
                fitted = kann.stand_ins.fit_readout(koopman, states, answers)
                logits = simulated_logits(koopman, recorded.words, network, tested, readout=fitted)
                numbers[f"{kind}_{count}"] = float(np.mean((logits > 0) == (own > 0)))
                if kind == "balanced_squares":
                    numbers[f"{kind}_{count}_accuracy"] = accuracy(logits, tested)
    return numbers


def judged_reviews(network: SentimentNetwork, corpus: Corpus, *, seed: int) -> Reviews:
    """Test reviews to judge on: all of them, or without a GPU some that are drawn at random."""
    if not is_on_cpu(network):
        return corpus.test
    return corpus.test.take(generator(seed, JUDGED).permutation(len(corpus.test))[:JUDGED_ON_CPU])


def compare_seeds(
    arch: str,
    *,
    seeds: Sequence[int],
    out: str | os.PathLike[str],
    counts: Sequence[int] = COUNTS,
    device: str = "cpu",
) -> Path:
    """Compare bases in networks that `reproduce` trained in ``out``, and write the numbers where pages find them."""
    corpus, measured = load_corpus(), []
    for seed in seeds:
        folder = Path(out) / arch / f"seed-{seed}"
        if arch == SHIPPED:
            network = zoo.load("sentiment").network
        else:
            network = trained(CONFIGS[arch], corpus, seed=seed, folder=folder, device=device)
        measured.append(compare_bases(network, corpus, seed=seed, counts=counts))
        sys.stdout.write(f"{arch} {seed} {measured[-1]}\n")
        sys.stdout.flush()
    place = RESULTS / "sentiment-stand-ins" / f"{arch}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    rows = tabulate(basis_quantities(), measured, {})
    config = CONFIGS["gru" if arch == SHIPPED else arch]
    write_json(place, common_json("sentiment", seeds=seeds, rows=rows, config=config))
    return place


if __name__ == "__main__":
    place, name, *numbers = sys.argv[1:]
    compare_seeds(name, seeds=[int(number) for number in numbers], out=place)
