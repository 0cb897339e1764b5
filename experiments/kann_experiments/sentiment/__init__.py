"""The paper's main experiment: which modes of a network that judges film reviews read which words.

Load, train, record, fit, measure, draw: `reproduce` does it all for one architecture over several seeds. A trained
network ships with the package, see `kann.zoo`; `kann_experiments.sentiment.shipped` writes its files.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kann.data.atomic_write import replacing
from kann.errors import KannError
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.experiment import start_run, write_results
from kann_experiments.results import Reproduction, printed_for
from kann_experiments.sentiment.analysis import Study, study_network
from kann_experiments.sentiment.corpus import Corpus, load_corpus
from kann_experiments.sentiment.figures import draw_figures
from kann_experiments.sentiment.live.measurements import PaperGroups
from kann_experiments.sentiment.live.store import LIVE_FILE, live_result, measure_shipped
from kann_experiments.sentiment.published import load_pieces, read_authors_network, with_reading
from kann_experiments.sentiment.quantities import QUANTITIES
from kann_experiments.sentiment.stand_ins import STAND_INS_FILE, stand_in_numbers
from kann_experiments.sentiment.tables import as_details, markdown_tables, quoted_lines
from kann_experiments.sentiment.task import CONFIGS, PRINTED, Config, trained
from kann_experiments.training import repeatable, require_device, require_folder

__all__ = ["reproduce", "trained"]


def reproduce(
    arch: str = "gru",
    *,
    out: str | os.PathLike[str] = "runs/sentiment",
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    printed: bool = False,
    pieces: str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> Reproduction:
    """Train, analyse and draw one architecture; networks that are in ``out`` already are used again.

    With ``printed`` the networks are trained as the paper's table says, even where that does not suffice. With
    ``pieces``, the authors' list of word pieces, reviews are read as their published code reads them, and with
    ``weights``, their trained GRU, that network is analysed. The figure that compares architectures shows those that
    have been analysed in ``out`` before. With the GRU's seed that ships with the package, the shipped network is tested
    too.
    """
    if weights is not None and (pieces is None or arch != "gru" or printed):
        raise KannError("weights= are of the authors' GRU; pass arch='gru', their word pieces as pieces=, no printed=")
    configs, printed_configs = (with_reading(known, pieces is not None) for known in (CONFIGS, PRINTED))
    run = start_run(
        "sentiment",
        arch,
        title=f"sentiment, {arch}",
        configs=configs,
        printed_configs=printed_configs,
        printed=printed,
        seeds=seeds,
        out=out,
        suffix="-authors" if weights is not None else "-word-pieces" * (pieces is not None),
    )
    corpus = load_corpus() if pieces is None else load_pieces(pieces)
    with repeatable(threads=None):
        studies = []
        for seed, folder in run.seeds_and_folders():
            if weights is None:
                network = trained(run.config, corpus, seed=seed, folder=folder, device=device)
            else:
                network = read_authors_network(weights, words=len(corpus.vocabulary)).to(require_device(device))
            studies.append(_study_seed(network, run.config, corpus, seed=seed, folder=require_folder(folder)))
        shipped = ()
        if arch == "gru" and not printed and pieces is None:
            shipped = measure_shipped(corpus, seeds=run.seeds, folder=Path(out) / "shipped", device=device)
    details = {
        "measured": run.by_seed(study.numbers for study in studies),
        "lines": quoted_lines(studies[0]),
        "details": run.by_seed(as_details(study) for study in studies),
    }
    result = write_results(run, studies, quantities=QUANTITIES, printed=printed_for("sentiment", arch), details=details)
    tables = run.folder / "tables.md"
    with replacing(tables) as temporary:
        temporary.write_text(markdown_tables(result.rows, studies), encoding="utf-8")
    figures = draw_figures(studies, corpus, folder=run.folder)
    return replace(result, files=(*result.files, tables, *figures, *shipped))


def _study_seed(network: SentimentNetwork, config: Config, corpus: Corpus, *, seed: int, folder: Path) -> Study:
    """Analyse a network on its device, and save its operators."""
    result = study_network(network, config, corpus, seed=seed)
    paper = PaperGroups(koopman=result.operators.padded, groups=result.groups["padded"])
    live = live_result(network, corpus, seed=seed, path=folder / LIVE_FILE, paper=paper)
    stand_ins = stand_in_numbers(network, corpus, seed=seed, path=folder / STAND_INS_FILE)
    network.cpu()  # the study holds the same object, and figures are drawn on the host
    result.operators.padded.save(folder / "padded.npz")
    result.operators.unpadded.save(folder / "unpadded.npz")
    return replace(result, numbers=result.numbers | live.numbers | stand_ins, live=live.details)
