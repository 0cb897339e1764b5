"""The paper's main experiment: which modes of a network that judges film reviews read which words.

Load, train, record, fit, measure, draw: `reproduce` does it all for one architecture over several seeds. A trained
network ships with the package, see `kann.zoo`; `kann.paper.sentiment.shipped` writes its files.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from kann.data.files import replacing
from kann.paper.configs import choose, differences
from kann.paper.results import Reproduction, tabulate, write_json
from kann.paper.sentiment.analysis import Study, study
from kann.paper.sentiment.corpus import Corpus, load_corpus
from kann.paper.sentiment.figures import draw_figures
from kann.paper.sentiment.quantities import QUANTITIES
from kann.paper.sentiment.tables import markdown_tables, printed_numbers, results_json
from kann.paper.sentiment.task import CONFIGS, PRINTED, Config, trained
from kann.paper.training import repeatable, require_run_folder
from kann.progress import progress

__all__ = ["reproduce", "trained"]


def reproduce(
    arch: str = "gru",
    *,
    out: str | os.PathLike[str] = "runs/sentiment",
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    printed: bool = False,
) -> Reproduction:
    """Train, analyse and draw one architecture; networks that are in ``out`` already are used again.

    With ``printed`` the networks are trained as the paper's table says, even where that does not suffice. The figure
    that compares architectures shows those that have been analysed in ``out`` before.
    """
    known = CONFIGS
    if printed:
        known = PRINTED
    config = choose(arch, known)
    folder = require_run_folder(out, arch, seeds=seeds, printed=printed)
    corpus = load_corpus()
    with repeatable(threads=None):
        studies = [
            _study_seed(config, corpus, seed=seed, folder=folder / f"seed-{seed}", device=device)
            for seed in progress(seeds, what=f"sentiment, {arch}", total=len(seeds), unit="seed")
        ]
    rows = tabulate(QUANTITIES, [each.numbers for each in studies], printed_numbers(arch))
    notes = differences(config, PRINTED[arch])
    write_json(folder / "results.json", results_json(config, seeds, rows, studies))
    with replacing(folder / "tables.md") as temporary:
        temporary.write_text(markdown_tables(rows, studies), encoding="utf-8")
    figures = draw_figures(studies, corpus, folder=folder)
    return Reproduction(
        title=f"sentiment, {arch}",
        seeds=tuple(seeds),
        rows=rows,
        notes=notes,
        studies=tuple(studies),
        files=(folder / "results.json", folder / "tables.md", *figures),
    )


def _study_seed(config: Config, corpus: Corpus, *, seed: int, folder: Path, device: str) -> Study:
    """Train the network of a seed, or take the one in ``folder``, analyse it on its device, and save its operators."""
    network = trained(config, corpus, seed=seed, folder=folder, device=device)
    result = study(network, config, corpus, seed=seed)
    network.cpu()  # the study holds the same object, and figures are drawn on the host
    result.operators.padded.save(folder / "padded.npz")
    result.operators.unpadded.save(folder / "unpadded.npz")
    return result
