"""Keep what was measured about a network in a file beside it: a live test takes minutes, and is not made twice."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kann import zoo
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.results import common_json, tabulate, versions, write_json
from kann_experiments.sentiment.corpus import Corpus
from kann_experiments.sentiment.kept import read_kept, weights_digest
from kann_experiments.sentiment.live import attributions, bench, words
from kann_experiments.sentiment.live.measurements import LiveResult, PaperGroups, measure_live
from kann_experiments.sentiment.quantities import LIVE
from kann_experiments.sentiment.stand_ins import STAND_INS_FILE, stand_in_numbers, stand_in_quantities
from kann_experiments.sentiment.task import CONFIGS, PRINTED
from kann_experiments.training import require_device, require_folder

LIVE_FILE = "live.json"
"""The name of that file."""

FORMAT = 3
"""Counted up whenever the tests change, so that older files are not taken for the same."""


def live_result(
    network: SentimentNetwork,
    corpus: Corpus,
    *,
    seed: int,
    path: str | os.PathLike[str],
    paper: PaperGroups | None = None,
) -> LiveResult:
    """The result in the file ``path``, if it was made of this network in the same way; else measure, and write it."""
    path, made_by = Path(path), _made_by(network, corpus, seed, paper)
    kept = read_kept(path, made_by)
    if kept is not None and "details" in kept:
        return LiveResult(numbers=kept["numbers"], details=kept["details"])
    result = measure_live(network, corpus, seed=seed, paper=paper)
    write_json(path, {"made_by": made_by, "numbers": result.numbers, "details": result.details})
    return result


def measure_shipped(
    corpus: Corpus, *, seeds: Sequence[int], folder: str | os.PathLike[str], device: str
) -> tuple[Path, ...]:
    """Test the GRU that ships with the package, and write ``results.json`` into ``folder``; returns that file.

    Nothing is done if its seed is not among ``seeds``, or if its vocabulary is another than that of the corpus.
    """
    shipped, provenance = zoo.load("sentiment"), zoo.provenance("sentiment")
    seed = int(provenance["seed"])
    if seed not in seeds or shipped.vocabulary.words != corpus.vocabulary.words:
        return ()
    folder = require_folder(folder)
    network = shipped.network.to(require_device(device))
    result = live_result(network, corpus, seed=seed, path=folder / LIVE_FILE)
    numbers = result.numbers | stand_in_numbers(network, corpus, seed=seed, path=folder / STAND_INS_FILE)
    rows = tabulate((*LIVE, *stand_in_quantities()), [numbers], {})
    content = common_json("sentiment", config=CONFIGS["gru"], printed_config=PRINTED["gru"], seeds=[seed], rows=rows)
    path = folder / "results.json"
    write_json(path, content | {"network": "the one that ships with kann", "live": result.details})
    return (path,)


def _made_by(network: SentimentNetwork, corpus: Corpus, seed: int, paper: PaperGroups | None) -> dict[str, Any]:
    """Everything that the result depends on, but for the rounding of a processor."""
    groups = None
    if paper is not None:
        groups = [list(paper.groups.negative), list(paper.groups.positive)]
    return {
        "format": FORMAT,
        "network": weights_digest(network),
        "seed": seed,
        "groups": groups,
        "reviews": [len(corpus.train), len(corpus.test)],
        "device": network.readout.weight.device.type,
        "recorded": bench.RECORDED_REVIEWS,
        "judged on a CPU": bench.JUDGED_ON_CPU,
        "deleted words": [words.WORDS_REVIEWS, words.WORDS_REVIEWS_ON_CPU],
        "captum": attributions.captum_is_installed(),
        "versions": versions(),
    }
