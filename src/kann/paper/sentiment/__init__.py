"""The paper's main experiment: which modes of a network that judges film reviews read which words.

Load, train, record, fit, measure, draw: `reproduce` does it all for one architecture over several seeds. A trained
network ships with the package, see `kann.zoo`; `kann.paper.sentiment.shipped` writes its files.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kann.data.files import replacing
from kann.fitting.spectrum import format_eigenvalue
from kann.paper.configs import choose, differences
from kann.paper.results import Printed, Reproduction, Row, common_json, expected, tabulate, write_json
from kann.paper.sentiment.analysis import QUANTITIES, Study, study
from kann.paper.sentiment.corpus import Corpus, load_corpus
from kann.paper.sentiment.figures import draw_figures
from kann.paper.sentiment.task import CONFIGS, PRINTED, Config, trained
from kann.paper.training import repeatable, require_run_folder
from kann.progress import progress

__all__ = ["reproduce", "trained"]

ONE_OF_EACH = ("positive_words", "negative_words")
"""What the paper printed for every architecture."""


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
    config = choose(arch, PRINTED if printed else CONFIGS)
    folder = require_run_folder(out, arch, seeds=seeds, printed=printed)
    corpus = load_corpus()
    with repeatable(threads=None):
        studies = [
            _studied(config, corpus, seed=seed, folder=folder / f"seed-{seed}", device=device)
            for seed in progress(seeds, what=f"sentiment, {arch}", total=len(seeds), unit="seed")
        ]
    rows = tabulate(QUANTITIES, [each.numbers for each in studies], _printed(arch))
    notes = differences(config, PRINTED[arch])
    write_json(folder / "results.json", _report(config, seeds, rows, studies))
    with replacing(folder / "tables.md") as temporary:
        temporary.write_text(_tables(rows, studies), encoding="utf-8")
    figures = draw_figures(studies, corpus, folder=folder)
    return Reproduction(
        title=f"sentiment, {arch}",
        seeds=tuple(seeds),
        rows=rows,
        notes=notes,
        studies=tuple(studies),
        files=(folder / "results.json", folder / "tables.md", *figures),
    )


def _studied(config: Config, corpus: Corpus, *, seed: int, folder: Path, device: str) -> Study:
    """Train or take the network of a seed, analyse it where it is, and keep its operators beside it."""
    network = trained(config, corpus, seed=seed, folder=folder, device=device)
    result = study(network, config, corpus, seed=seed)
    network.cpu()  # the same object that the study holds: figures are drawn on the host
    result.operators.padded.save(folder / "padded.npz")
    result.operators.unpadded.save(folder / "unpadded.npz")
    return result


def _printed(arch: str) -> dict[str, Printed]:
    """What the paper printed for an architecture: everything for the GRU, the words alone for the others."""
    every = expected("sentiment")
    known = {key: every[f"{key}_{arch}"] for key in ONE_OF_EACH if f"{key}_{arch}" in every}
    return known | (
        {key: value for key, value in every.items() if key[-3:] not in ("gru", "stm", "rnn")} if arch == "gru" else {}
    )


def _report(config: Config, seeds: Sequence[int], rows: Sequence[Row], studies: Sequence[Study]) -> dict[str, Any]:
    """What ``results.json`` holds."""
    by_seed = list(zip(map(str, seeds), studies, strict=True))
    common = common_json("sentiment", config=config, printed_config=PRINTED[config.arch], seeds=seeds, rows=rows)
    return common | {
        "measured": {seed: each.numbers for seed, each in by_seed},
        "details": {seed: _details(each) for seed, each in by_seed},
    }


def _details(result: Study) -> dict[str, Any]:
    """Spectra, words, surrogates, phrases and paths of one network."""
    deciding, linear = result.deciding, result.surrogates
    return {
        "spectra": {name: _spectrum(getattr(result.operators, name)) for name in ("padded", "unpadded", "driven")},
        "groups": {name: asdict(groups) for name, groups in result.groups.items()},
        "confusion": result.confusion,
        "deciding": {
            "modes": deciding.order[: len(deciding.alone)],
            "variance": deciding.variance[: len(deciding.alone)],
            "logit_variance": deciding.logit_variance,
            "correlation": deciding.correlation[: len(deciding.alone)],
            "alone": deciding.alone,
            "together": deciding.together,
            "accuracy": deciding.accuracy,
        },
        "movers": [asdict(each) for each in result.movers],
        "surrogates": {"rank": linear.ranks, "agreement": linear.agreement, "accuracy": linear.accuracy},
        "phrases": None
        if result.phrases is None
        else {
            "modes": result.phrases.order,
            "importance": result.phrases.importance[result.phrases.order],
            "answers": result.phrases.answers,
            "groups": result.phrases.groups,
        },
        "paths": [asdict(path) for path in result.paths],
    }


def _spectrum(koopman: Any, *, count: int = 12) -> list[dict[str, float]]:
    return [
        {"real": mode.eigenvalue.real, "imag": mode.eigenvalue.imag, "residual": mode.residual}
        for mode in koopman.modes[:count]
    ]


def _tables(rows: Sequence[Row], studies: Sequence[Study]) -> str:
    """The tables to be quoted, as Markdown: numbers, words, shuffled reviews, eigenvalues of the first seed."""
    first = studies[0]
    lines = ["| | paper | ours, mean | from – to | |", "|---|---|---|---|---|"]
    for row in rows:
        cells = row.cells()
        lines.append("| " + " | ".join([cells[0].replace("    ", "– "), *cells[1:]]) + " |")
    lines += [
        "",
        "| mode | λ | residual | variance of its share | decides alone | words that raise it | that lower it |",
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    modes, deciding = first.operators.unpadded.modes, first.deciding
    for k, moved in enumerate(first.movers[:6]):
        mode = modes[moved.mode]
        up, down = (", ".join(word for word, _ in side) for side in (moved.up, moved.down))
        lines.append(
            f"| {moved.mode} | {format_eigenvalue(mode.eigenvalue)} | {mode.residual:.2f} | "
            f"{deciding.variance[k]:.2f} of {deciding.logit_variance:.2f} | {100 * deciding.alone[k]:.1f} % | "
            f"{up} | {down} |"
        )
    for path in first.paths:
        lines += ["", f"| “{path.text}” | network | KANN | driven by the words |", "|---|---|---|---|"]
        for step, points in enumerate(zip(path.network, path.kann, path.driven, strict=True)):
            lines.append(f"| t = {step + 1} | " + " | ".join(f"({x:.3f}, {y:.3f})" for x, y in points) + " |")
    return "\n".join([*lines, ""])
