"""The whole network replaced by a small operator that its words gate, beside one that its words only push.

A word is read as 128 principal components of what the layer's gates make of it alone. Both operators are fitted to the
same states of training reviews, and run over whole test reviews in place of the network. How many coordinates they have
is fixed in advance, and the ridge is chosen on training reviews that are held out: nothing is tuned on test reviews.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kann
from kann.backends.arrays import as_numpy
from kann.progress import progress
from kann.recording.runner import evaluation_mode
from kann.typing import Array, Float
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.results import Quantity, versions, write_json
from kann_experiments.sentiment.corpus import Corpus, Reviews, batches_by_length, load_corpus
from kann_experiments.sentiment.kept import read_kept, weights_digest
from kann_experiments.sentiment.live.bench import LAYER, sequences
from kann_experiments.sentiment.operators import FITTED_REVIEWS, Readout, fitted_reviews
from kann_experiments.sentiment.reading import read_last_states
from kann_experiments.sentiment.task import CONFIGS, accuracy, trained

COORDINATES = (4, 8, 16, 24, 32)
"""How many coordinates the operators have."""

COMPONENTS = 128
"""Principal components of a word's gates that are read, as in the trial that this repeats."""

RECORDED_ON_CPU = 1000
"""Training reviews that are fitted without a GPU, where recording and fitting 5,000 takes five times as long."""

RECORDED_TOGETHER = 128
"""Reviews that the network reads together while it is recorded."""

TOKENS, TOKENS_ON_CPU = 2**20, 2**17
"""Words, padding included, that a stand-in reads together. A step of a thousand reviews takes a GPU no longer than one
of a hundred."""

STAND_INS_FILE = "stand_ins.json"
"""The name of the file beside a network that keeps the numbers."""

FORMAT = 2
"""Counted up whenever the measurement changes, so that older files are not taken for the same."""


def stand_in_quantities() -> tuple[Quantity, ...]:
    """The rows of the table for `measure_stand_ins`."""
    rows = [
        Quantity(key="standin_recorded", what="training reviews that stand-ins are fitted to"),
        Quantity(key="standin_reviews", what="    test reviews that they are judged on"),
        Quantity(key="standin_network", what="    accuracy of the network on these", format="percent"),
    ]
    for count in COORDINATES:
        rows += [
            Quantity(key=f"standin_{count}", what=f"{count} coordinates that words gate: agreement", format="percent"),
            Quantity(key=f"standin_{count}_accuracy", what="    their accuracy", format="percent"),
            Quantity(key=f"driven_{count}", what="    words push only: agreement", format="percent"),
            Quantity(key=f"driven_{count}_accuracy", what="    their accuracy", format="percent"),
        ]
    return tuple(rows)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recorded:
    """States of training reviews, and what each word of the vocabulary is read as."""

    states: kann.States
    """From the state of zeros on; their inputs are rows of ``words``."""
    words: Float[Array, "v p"]
    """Principal components of the gates of each word."""


def stand_in_numbers(
    network: SentimentNetwork, corpus: Corpus, *, seed: int, path: str | os.PathLike[str]
) -> dict[str, float]:
    """The numbers in the file ``path``, if they are of this network and made in the same way; else measure and write.

    They are those of `measure_stand_ins`.
    """
    path, made_by = Path(path), _made_by(network, corpus, seed)
    kept = read_kept(path, made_by)
    if kept is not None:
        return kept["numbers"]
    numbers = measure_stand_ins(network, corpus, seed=seed)
    write_json(path, {"made_by": made_by, "numbers": numbers})
    return numbers


def measure_stand_ins(network: SentimentNetwork, corpus: Corpus, *, seed: int) -> dict[str, float]:
    """How far small operators decide test reviews as the network does, and how often they are right.

    By the keys of `stand_in_quantities`; sizes that the network's state does not have are left out.
    """
    tested = corpus.test
    with evaluation_mode(network):
        recorded = record_for_stand_ins(network, training_reviews(network, corpus, seed=seed))
        own = Readout.of(network)(read_last_states(network, tested))[:, 0]
        numbers = {
            "standin_recorded": float(len(recorded.states.lengths)),
            "standin_reviews": float(len(tested)),
            "standin_network": accuracy(own, tested),
        }
        counts = [count for count in COORDINATES if count <= recorded.states.dim]
        for count in progress(counts, what="stand-ins", total=len(counts), unit="size"):
            operators = {"standin": fit_gated(recorded, count), "driven": fit_pushed(recorded, count)}
            for name, koopman in operators.items():
                logits = simulated_logits(koopman, recorded.words, network, tested)
                numbers[f"{name}_{count}"] = float(np.mean((logits > 0) == (own > 0)))
                numbers[f"{name}_{count}_accuracy"] = accuracy(logits, tested)
    return numbers


def training_reviews(network: SentimentNetwork, corpus: Corpus, *, seed: int) -> Reviews:
    """The training reviews that operators are fitted to, fewer without a GPU."""
    reviews = fitted_reviews(corpus, seed)
    if is_on_cpu(network):
        return reviews.take(np.arange(min(RECORDED_ON_CPU, len(reviews))))
    return reviews


def record_for_stand_ins(network: SentimentNetwork, reviews: Reviews) -> Recorded:
    """Record reviews, with the principal components of each word's gates as inputs.

    The components are found over the vocabulary, each word counted as often as it is read. So the gates of every step,
    four times as wide as the state of an LSTM, are never held.
    """
    texts = sequences(reviews)
    words = gate_components(gates_of_words(network), np.bincount(reviews.words, minlength=network.words))
    states = kann.record(
        network, texts, layer=LAYER, state=state_of(network), initial=True, batch_size=RECORDED_TOGETHER, progress=False
    )
    # The state of zeros is reached by reading nothing: its input is in no pair of states.
    read = torch.cat([torch.cat([text.new_zeros(1), text]) for text in texts])
    inputs: Any = words[read.numpy()]
    if isinstance(states.values, Tensor):
        inputs = torch.as_tensor(inputs).to(states.values)
    return Recorded(states=kann.States(values=states.values, lengths=states.lengths, inputs=inputs), words=words)


def state_of(network: SentimentNetwork) -> str:
    """Which state stands for the network: h and c of an LSTM together."""
    if isinstance(network.recurrent, torch.nn.LSTM):
        return "hc"
    return "h"


def gates_of_words(network: SentimentNetwork) -> Float[Array, "v g"]:
    """What the layer's weights make of each word of the vocabulary alone."""
    each = torch.arange(network.words)[:, None]
    states = kann.record(network, each, layer=LAYER, inputs="gates", batch_size=network.words, progress=False)
    return as_numpy(states.inputs).astype(np.float64)


def gate_components(gates: Float[Array, "v g"], counts: Array) -> Float[Array, "v p"]:
    """The leading principal components of the words' gates, about their mean, each word counted ``counts`` times."""
    weights = counts / counts.sum()
    centred = gates - weights @ gates
    _, vectors = np.linalg.eigh((centred * weights[:, None]).T @ centred)
    return centred @ vectors[:, ::-1][:, :COMPONENTS]


def fit_gated(recorded: Recorded, count: int) -> kann.Bilinear:
    """The operator that words gate, on ``count`` coordinates and their products."""
    return kann.fit(recorded.states, driven="bilinear", rank=count, lift="squares")


def fit_pushed(recorded: Recorded, count: int) -> kann.Koopman:
    """The operator that words only push, on as many coordinates."""
    return kann.fit(recorded.states, driven=True, rank=count)


@torch.no_grad()
def simulated_logits(
    koopman: kann.Koopman | kann.Bilinear,
    words: Float[Array, "v p"],
    network: SentimentNetwork,
    reviews: Reviews,
    *,
    readout: kann.stand_ins.Readout | None = None,
) -> Float[Array, " s"]:
    """Logits of the operator, run in place of the network from zero, after the last word of each review.

    They are read by ``readout``, by default by the network's own from the restored state.
    """
    device = network.readout.weight.device
    module = kann.stand_in(koopman, vocabulary=words, readout=readout).to(device)
    tokens = TOKENS
    if is_on_cpu(network):
        tokens = TOKENS_ON_CPU
    own, logits = Readout.of(network), np.empty(len(reviews))
    for chosen in batches_by_length(reviews.lengths, tokens=tokens):
        ids, lengths = (each.to(device) for each in reviews.batch(chosen))
        path = module.coordinates(ids)  # (b, t, r)
        last = path[torch.arange(len(ids), device=device), lengths - 1]
        if readout is not None:
            logits[chosen] = as_numpy(module.read(last))[:, 0]
        else:  # the network's readout sees h, which comes before the cell of an LSTM
            h = as_numpy(module.decode(last))[:, : network.readout.in_features]
            logits[chosen] = own(h.astype(np.float64))[:, 0]
    return logits


def is_on_cpu(network: SentimentNetwork) -> bool:
    """Whether the network runs without a GPU, where fewer reviews are read."""
    return network.readout.weight.device.type == "cpu"


def _made_by(network: SentimentNetwork, corpus: Corpus, seed: int) -> dict[str, Any]:
    """Everything that the numbers depend on, but for the rounding of a processor."""
    return {
        "format": FORMAT,
        "network": weights_digest(network),
        "seed": seed,
        "reviews": [len(corpus.train), len(corpus.test)],
        "device": network.readout.weight.device.type,
        "coordinates": list(COORDINATES),
        "components": COMPONENTS,
        "recorded": [FITTED_REVIEWS, RECORDED_ON_CPU],
        "versions": versions(),
    }


def measure_seed(arch: str, *, seed: int, out: str | os.PathLike[str], device: str) -> dict[str, float]:
    """Measure the stand-ins of a network that `reproduce` trained in ``out``, and store the numbers."""
    folder = Path(out) / arch / f"seed-{seed}"
    corpus = load_corpus()
    network = trained(CONFIGS[arch], corpus, seed=seed, folder=folder, device=device)
    return stand_in_numbers(network, corpus, seed=seed, path=folder / STAND_INS_FILE)


if __name__ == "__main__":  # python -m kann_experiments.sentiment.stand_ins runs/sentiment gru 0 cuda
    place, name, number, where = sys.argv[1:]
    found = measure_seed(name, seed=int(number), out=place, device=where)
    sys.stdout.write(f"{name} {number} {found}\n")
