"""Write the files of the trained GRU that `kann.zoo` holds: weights in half precision, vocabulary and operator."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save

import kann
from kann.data.files import replacing
from kann.errors import KannError
from kann.paper.results import versions
from kann.paper.sentiment.corpus import load_corpus
from kann.paper.sentiment.decisions import order_by_variance
from kann.paper.sentiment.operators import Readout, fit_as_in_paper, fitted_reviews, record_moments
from kann.paper.sentiment.reading import read_last_states
from kann.paper.sentiment.task import CONFIGS, accuracy, split, trained
from kann.zoo.files import PROVENANCE, WEIGHTS
from kann.zoo.sentiment_network import OPERATOR, VOCABULARY, SentimentNetwork
from kann.zoo.vocabulary import Vocabulary

SHIPPED_MODES = 12
"""How many modes are listed, the most important ones."""


def ship(
    network: SentimentNetwork,
    vocabulary: Vocabulary,
    koopman: kann.Koopman,
    *,
    modes: Any,
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
    koopman.save(place / OPERATOR)
    content = provenance | {"modes": np.asarray(modes).tolist()}
    with replacing(place / PROVENANCE) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def remake(out: str | os.PathLike[str], *, seed: int, folder: str | os.PathLike[str], device: str = "cpu") -> None:
    """Ship the GRU of a seed that `kann.paper.sentiment.reproduce` trained in ``out``.

    Its weights are rounded to half precision first, so that operator, order of modes and accuracy are those of the
    network that is shipped.
    """
    corpus, config = load_corpus(), CONFIGS["gru"]
    network = trained(config, corpus, seed=seed, folder=Path(out) / "gru" / f"seed-{seed}", device=device)
    before = accuracy(Readout.of(network)(read_last_states(network, corpus.test))[:, 0], corpus.test)
    network.half().float()  # rounded as in the file, computed with as before
    readout, (_, validation) = Readout.of(network), split(corpus.train)
    koopman = fit_as_in_paper(record_moments(network, fitted_reviews(corpus, seed)).numpy())
    validated = read_last_states(network, validation)
    provenance = {
        "model": "GRU with 256 units that judges film reviews; word embedding of 128 numbers, linear readout",
        "made_by": "kann reproduce sentiment --arch gru, then kann.paper.sentiment.shipped.remake",
        "seed": seed,
        "data": "Large Movie Review Dataset (Maas et al. 2011), https://ai.stanford.edu/~amaas/data/sentiment/",
        "config": asdict(config),
        "words": len(corpus.vocabulary),
        "precision": "half",
        "accuracy": {
            "test": accuracy(readout(read_last_states(network, corpus.test))[:, 0], corpus.test),
            "test_single_precision": before,
            "validation": accuracy(readout(validated)[:, 0], validation),
        },
        "versions": versions(),
    }
    ship(
        network,
        corpus.vocabulary,
        koopman,
        modes=order_by_variance(koopman, readout, validated)[:SHIPPED_MODES],
        provenance=provenance,
        folder=folder,
    )
