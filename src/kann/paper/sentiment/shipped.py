"""The trained GRU that comes with kann: its weights in half precision, its vocabulary and its operator."""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kann
from kann import zoo
from kann.data.files import replacing
from kann.errors import KannError
from kann.paper.sentiment.task import CONFIGS, SentimentNetwork, build
from kann.paper.sentiment.vocabulary import Vocabulary

try:
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save
except ImportError as error:
    raise ImportError("the models that come with kann need safetensors: pip install 'kann[paper]'") from error

SHIPPED_MODES = 12
"""So many modes are listed by importance."""

WEIGHTS, WORDS, OPERATOR, PROVENANCE = "weights.safetensors", "vocabulary.json", "koopman.npz", "provenance.json"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pretrained:
    """A network that judges film reviews, ready to be analysed."""

    network: SentimentNetwork
    vocabulary: Vocabulary
    koopman: kann.Koopman
    """The operator fitted to 5,000 training reviews, without padding."""
    modes: tuple[int, ...]
    """Its modes by how much their share in the logit varies, the most important first."""


def pretrained(folder: str | os.PathLike[str] | None = None) -> Pretrained:
    """The network that comes with kann, or one that `ship` wrote into ``folder``."""
    place = zoo.folder("sentiment") if folder is None else Path(folder)
    missing = [name for name in (WEIGHTS, WORDS, OPERATOR, PROVENANCE) if not (place / name).is_file()]
    if missing:
        raise KannError(f"the sentiment network lacks {missing[0]} in {place}; reinstall kann")
    vocabulary = Vocabulary.from_json((place / WORDS).read_text(encoding="utf-8"), source=place / WORDS)
    network = _network(place / WEIGHTS, len(vocabulary))
    koopman = kann.Koopman.load(place / OPERATOR)
    if koopman.dim != network.readout.in_features:
        raise KannError(
            f"the operator in {place} is for {koopman.dim} hidden units; the network has "
            f"{network.readout.in_features}; reinstall kann"
        )
    modes = json.loads((place / PROVENANCE).read_text(encoding="utf-8"))["modes"]
    return Pretrained(network=network, vocabulary=vocabulary, koopman=koopman, modes=tuple(modes))


def _network(path: Path, words: int) -> SentimentNetwork:
    try:
        weights = load_file(path)
        known, size = weights["embedding.weight"].shape
        units = weights["readout.weight"].shape[1]
    except (SafetensorError, OSError, KeyError) as error:
        raise KannError(f"{path} holds no sentiment network ({error}); reinstall kann") from error
    if known != words:
        raise KannError(
            f"the vocabulary has {words} words and the weights in {path} are for {known}; "
            "pass the vocabulary that the network was trained with"
        )
    network = build(replace(CONFIGS["gru"], units=units, embedding=size), words=words, seed=0)
    try:
        network.load_state_dict({name: value.float() for name, value in weights.items()})
    except RuntimeError as error:
        raise KannError(f"the weights in {path} are not those of a sentiment GRU ({error}); reinstall kann") from error
    network.requires_grad_(False)
    return network.eval()


def ship(
    network: SentimentNetwork,
    vocabulary: Vocabulary,
    koopman: kann.Koopman,
    *,
    modes: Any,
    provenance: dict[str, Any],
    folder: str | os.PathLike[str],
) -> None:
    """Write what `pretrained` reads, the network in half precision."""
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
    with replacing(place / WORDS) as temporary:
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
    from kann.paper.results import versions
    from kann.paper.sentiment.analysis import by_variance
    from kann.paper.sentiment.corpus import load_corpus
    from kann.paper.sentiment.operators import Readout, fitted_reviews, moments_of, papers_fit
    from kann.paper.sentiment.task import accuracy, split, trained
    from kann.paper.sentiment.words import ends_only

    corpus, config = load_corpus(), CONFIGS["gru"]
    network = trained(config, corpus, seed=seed, folder=Path(out) / "gru" / f"seed-{seed}", device=device)
    before = accuracy(Readout.of(network)(ends_only(network, corpus.test))[:, 0], corpus.test)
    network.half().float()
    readout, (_, validation) = Readout.of(network), split(corpus.train)
    koopman = papers_fit(moments_of(network, fitted_reviews(corpus, seed)).numpy())
    validated = ends_only(network, validation)
    provenance = {
        "model": "GRU with 256 units that judges film reviews; word embedding of 128 numbers, linear readout",
        "made_by": "kann reproduce sentiment --arch gru, then kann.paper.sentiment.shipped.remake",
        "seed": seed,
        "data": "Large Movie Review Dataset (Maas et al. 2011), https://ai.stanford.edu/~amaas/data/sentiment/",
        "config": asdict(config),
        "words": len(corpus.vocabulary),
        "precision": "half",
        "accuracy": {
            "test": accuracy(readout(ends_only(network, corpus.test))[:, 0], corpus.test),
            "test_single_precision": before,
            "validation": accuracy(readout(validated)[:, 0], validation),
        },
        "versions": versions(),
    }
    ship(
        network,
        corpus.vocabulary,
        koopman,
        modes=by_variance(koopman, readout, validated)[:SHIPPED_MODES],
        provenance=provenance,
        folder=folder,
    )
