"""Write the files of the trained GRU that `kann.zoo` holds: weights in half precision, vocabulary and operator."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

import kann
from kann.data.atomic_write import replacing
from kann.errors import KannError
from kann.typing import Array, Int
from kann.zoo import PROVENANCE, WEIGHTS, read_provenance
from kann.zoo.sentiment_network import (
    OPERATOR,
    TRUST,
    VOCABULARY,
    SentimentNetwork,
    Vocabulary,
    read_network,
)
from kann_experiments.results import versions
from kann_experiments.sentiment.corpus import Corpus, load_corpus
from kann_experiments.sentiment.decisions import order_by_variance
from kann_experiments.sentiment.operators import FITTED_REVIEWS, Readout, fitted_reviews
from kann_experiments.sentiment.reading import read_last_states
from kann_experiments.sentiment.task import CONFIGS, accuracy, split, trained

SHIPPED_MODES = 12
"""How many modes are listed, the most important ones."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShippedOperator:
    """The operator of a network that ships, how far it can be trusted, and its most important modes."""

    koopman: kann.Koopman
    trust: kann.Trust
    modes: Int[Array, " k"]
    """Those whose contribution to the logit varies most over the validation reviews, the most important first."""


def fit_shipped(network: SentimentNetwork, corpus: Corpus, *, seed: int) -> ShippedOperator:
    """Fit the operator to training reviews, its rank chosen by those held out, and measure its trust on them."""
    reviews, (_, validation) = fitted_reviews(corpus, seed), split(corpus.train)
    order = np.argsort(reviews.lengths, kind="stable")  # batches of similar length
    words = [torch.from_numpy(reviews[i]) for i in order]
    states = kann.record(network, words, layer="recurrent", batch_size=64, progress=False)
    koopman = kann.fit(states, rank="auto")
    modes = order_by_variance(koopman, Readout.of(network), read_last_states(network, validation))
    return ShippedOperator(koopman=koopman, trust=kann.trust(koopman, states), modes=modes[:SHIPPED_MODES])


def ship(
    network: SentimentNetwork,
    vocabulary: Vocabulary,
    operator: ShippedOperator,
    *,
    provenance: dict[str, Any],
    folder: str | os.PathLike[str],
) -> None:
    """Write the files that `kann.zoo.sentiment_network.pretrained` reads, the network in half precision."""
    if len(vocabulary) != network.words:
        raise KannError(
            f"the vocabulary has {len(vocabulary)} words and the network knows {network.words}; "
            "pass the vocabulary that it was trained with"
        )
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    halves = {name: value.detach().cpu().half().contiguous() for name, value in network.state_dict().items()}
    with replacing(place / WEIGHTS) as temporary:
        temporary.write_bytes(save(halves))
    with replacing(place / VOCABULARY) as temporary:
        temporary.write_text(vocabulary.to_json(), encoding="utf-8")
    ship_operator(operator, provenance=provenance, folder=place)


def ship_operator(operator: ShippedOperator, *, provenance: dict[str, Any], folder: Path) -> None:
    """Write the operator, its trust and the provenance."""
    operator.koopman.save(folder / OPERATOR)
    operator.trust.save(folder / TRUST)
    content = provenance | {"modes": operator.modes.tolist()}
    with replacing(folder / PROVENANCE) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def refit(folder: str | os.PathLike[str]) -> ShippedOperator:
    """Fit the operator of the network in ``folder`` again and write it; weights and vocabulary stay as they are."""
    place = Path(folder)
    provenance, corpus = read_provenance(place), load_corpus()
    network = read_network(place / WEIGHTS, words=len(corpus.vocabulary))
    found = fit_shipped(network, corpus, seed=int(provenance["seed"]))
    ship_operator(found, provenance=provenance | _made_operator(), folder=place)
    return found


def _made_operator() -> dict[str, Any]:
    """How the operator was made, for the provenance."""
    return {
        "operator": {
            "fitted_to": f"the states of {FITTED_REVIEWS} training reviews, without padding",
            "made_by": 'kann.fit(states, rank="auto"), then kann.trust(koopman, states)',
            "versions": versions(),
        }
    }


def remake(out: str | os.PathLike[str], *, seed: int, folder: str | os.PathLike[str], device: str = "cpu") -> None:
    """Ship the GRU of a seed that `kann_experiments.sentiment.reproduce` trained in ``out``.

    Its weights are rounded to half precision first, so that operator, order of modes and accuracy are those of the
    network that is shipped.
    """
    corpus, config = load_corpus(), CONFIGS["gru"]
    network = trained(config, corpus, seed=seed, folder=Path(out) / "gru" / f"seed-{seed}", device=device)
    before = accuracy(Readout.of(network)(read_last_states(network, corpus.test))[:, 0], corpus.test)
    network.half().float()  # rounded as in the file, computed with as before
    readout, (_, validation) = Readout.of(network), split(corpus.train)
    provenance = {
        "model": "GRU with 256 units that judges film reviews; word embedding of 128 numbers, linear readout",
        "made_by": "kann reproduce sentiment --arch gru, then kann_experiments.sentiment.shipped.remake",
        "seed": seed,
        "data": "Large Movie Review Dataset (Maas et al. 2011), https://ai.stanford.edu/~amaas/data/sentiment/",
        "config": asdict(config),
        "words": len(corpus.vocabulary),
        "precision": "half",
        "accuracy": {
            "test": accuracy(readout(read_last_states(network, corpus.test))[:, 0], corpus.test),
            "test_single_precision": before,
            "validation": accuracy(readout(read_last_states(network, validation))[:, 0], validation),
        },
        "versions": versions(),
    } | _made_operator()
    operator = fit_shipped(network, corpus, seed=seed)
    ship(network, corpus.vocabulary, operator, provenance=provenance, folder=folder)
