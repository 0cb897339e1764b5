"""What the sentiment experiment writes down: its details in ``results.json``, and the tables to be quoted."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import kann
from kann._format import format_eigenvalue
from kann_experiments.results import Row, markdown_table
from kann_experiments.sentiment.analysis import Study
from kann_experiments.sentiment.comparisons import PRINTED_PATHS
from kann_experiments.sentiment.ngrams import PhraseModes

MODES_LISTED = 12
"""How many modes of each operator ``results.json`` lists."""

MODES_SHOWN = 6
"""How many modes the table of words shows."""


def as_details(result: Study) -> dict[str, Any]:
    """Spectra, words, surrogates, phrases and trajectories of one network, as ``results.json`` holds them."""
    decisions, surrogates = result.decisions, result.surrogates
    tried = len(decisions.alone)
    return {
        "spectra": {name: _spectrum(koopman) for name, koopman in result.operators.by_name.items()},
        "groups": {name: asdict(groups) for name, groups in result.groups.items()},
        "confusion": result.confusion,
        "deciding": {
            "modes": decisions.order[:tried],
            "variance": decisions.variance[:tried],
            "logit_variance": decisions.logit_variance,
            "correlation": decisions.correlation[:tried],
            "alone": decisions.alone,
            "together": decisions.together,
            "accuracy": decisions.accuracy,
        },
        "movers": [asdict(words) for words in result.top_words],
        "surrogates": {
            "rank": surrogates.ranks,
            "agreement": surrogates.agreement,
            "accuracy": surrogates.accuracy,
        },
        "phrases": _phrases(result.phrases and result.phrases.of_triples),
        "phrases_of_pairs": _phrases(result.phrases and result.phrases.of_pairs),
        "paths": [asdict(trajectory) for trajectory in result.trajectories],
        "live": result.live,
    }


def _spectrum(koopman: kann.Koopman) -> list[dict[str, float]]:
    return [
        {"real": mode.eigenvalue.real, "imag": mode.eigenvalue.imag, "residual": mode.residual}
        for mode in koopman.modes[:MODES_LISTED]
    ]


def _phrases(phrases: PhraseModes | None) -> dict[str, Any] | None:
    if phrases is None:
        return None
    return {
        "modes": phrases.order,
        "importance": phrases.importance[phrases.order],
        "answers": phrases.responses,
        "groups": phrases.groups,
    }


def markdown_tables(rows: Sequence[Row], studies: Sequence[Study]) -> str:
    """The tables to be quoted, as Markdown: all numbers, then words and shuffled reviews of the first seed."""
    first = studies[0]
    lines = [*markdown_table(rows), "", *_word_table(first)]
    for number in range(len(first.trajectories)):
        lines += ["", *trajectory_table(first, number)]
    return "\n".join([*lines, ""])


def _word_table(result: Study) -> list[str]:
    """The words that change each of the most important modes most."""
    lines = [
        "| mode | λ | residual | variance of its contribution | decides alone | words that raise it | that lower it |",
        "|---|---|---|---|---|---|---|",
    ]
    modes, decisions = result.operators.unpadded.modes, result.decisions
    for k, words in enumerate(result.top_words[:MODES_SHOWN]):
        mode = modes[words.mode]
        up, down = (", ".join(word for word, _ in side) for side in (words.up, words.down))
        lines.append(
            f"| {words.mode} | {format_eigenvalue(mode.eigenvalue)} | {mode.residual:.2f} | "
            f"{decisions.variance[k]:.2f} of {decisions.logit_variance:.2f} | {100 * decisions.alone[k]:.1f} % | "
            f"{up} | {down} |"
        )
    return lines


def trajectory_table(result: Study, number: int) -> list[str]:
    """Where network, operator and driven system are after each word of a shuffled review, with the paper's numbers."""
    trajectory = result.trajectories[number]
    titles = ("network, paper", "ours", "KANN, paper", "ours", "driven by the words")
    lines = [f"| “{trajectory.text}” | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    steps = zip(PRINTED_PATHS[number], trajectory.network, trajectory.kann, trajectory.driven, strict=True)
    for step, ((paper, paper_kann), network, operator, driven) in enumerate(steps, start=1):
        cells = (f"({x:.3f}, {y:.3f})" for x, y in (paper, network, paper_kann, operator, driven))
        lines.append(f"| t = {step} | " + " | ".join(cells) + " |")
    return lines


def quoted_lines(result: Study) -> dict[str, list[str]]:
    """Tables of one network that pages quote, by name."""
    paths = {f"path_{number}": trajectory_table(result, number) for number in range(len(result.trajectories))}
    return {"words": _word_table(result)} | paths
