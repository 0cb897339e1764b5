"""Tables and a figure of what words do as matrices: ``python -m kann_experiments.sentiment.word_pages runs/words``.

Writes ``words.json``, ``tables.md`` and ``words.png`` for the GRU that ships with the package.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from kann import zoo
from kann.data.atomic_write import replacing
from kann_experiments.drawing import WIDE, save_figures
from kann_experiments.results import versions, write_json
from kann_experiments.sentiment.corpus import load_corpus
from kann_experiments.sentiment.word_matrices import WordMatrices, measure_words
from kann_experiments.training import require_folder

WORD_COLUMNS = ("word", "its matrix keeps", "its matrix pushes", "network keeps", "network pushes", "places")

PHRASE_COLUMNS = (
    "phrase",
    "network: whole phrase",
    "last word alone",
    "after the others",
    "factor",
    "gated operator",
    "pushed operator",
    "factor on the mode, network",
    "gated operator",
    "places",
)


def markdown_tables(found: WordMatrices) -> str:
    """Words; what is left of them a word later, in the network and the operator; phrases. With 95 % intervals."""
    words = [
        [text, by["matrix"].keeps, by["matrix"].pushes, by["network"].keeps, by["network"].pushes, found.contexts[text]]
        for text, by in found.words.items()
    ]
    phrases = []
    for text, by in found.phrases.items():
        network, gated, driven = by["network"], by["operator"], by["driven"]
        row = [text, network.total, network.alone, network.after, network.factor, gated.factor]
        row += [f"{driven.factor.value:+.2f}", network.lasting, gated.lasting, found.contexts[text]]
        phrases.append(row)
    courses = [_course_table(found, kind) for kind in ("network", "operator")]
    return "\n\n".join([_table(WORD_COLUMNS, words), *courses, _table(PHRASE_COLUMNS, phrases)]) + "\n"


def _course_table(found: WordMatrices, kind: str) -> str:
    """What each word moves, after the word and after one more: the logit first, then the leading modes."""
    rows, columns = [], ["word"]
    for text, by in found.courses.items():
        course = by[kind]
        rows.append([text, *(number for pair in (course.logit, *course.modes) for number in pair)])
    for moved in ("logit", *(f"mode {place}" for place in found.leading)):
        columns += [f"{moved}, {kind}", "and one word later"]
    return _table(tuple(columns), rows)


def _table(columns: tuple[str, ...], rows: list[list[Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def draw_words(found: WordMatrices) -> Figure:
    """What words before another make of its push: the network, the gated operator, and the one that words push."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDE, 3.2), layout="constrained", width_ratios=(2, 3))
    for place, (name, by) in enumerate(found.words.items()):
        left.errorbar(
            by["matrix"].pushes.value,
            by["network"].pushes.value,
            xerr=1.96 * by["matrix"].pushes.error,
            yerr=1.96 * by["network"].pushes.error,
            fmt=".",
            color=f"C{place}",
        )
        left.annotate(
            name,
            (by["matrix"].pushes.value, by["network"].pushes.value),
            fontsize=7,
            xytext=(3, 3),
            textcoords="offset points",
        )
    left.axline((0, 0), slope=1, color="0.8", zorder=0)
    left.set(xlabel="push of the word's matrix, logits", ylabel="push in the network, logits")
    places = np.arange(len(found.phrases))
    for shift, (name, label) in enumerate((("network", "network"), ("operator", "gated"), ("driven", "pushed"))):
        factors = [by[name].factor for by in found.phrases.values()]
        errors = [1.96 * factor.error for factor in factors]
        heights = [factor.value for factor in factors]
        right.bar(places + 0.27 * (shift - 1), heights, 0.25, yerr=errors, label=label)
    right.axhline(1, color="0.5", linewidth=0.8)
    right.set_xticks(places, list(found.phrases), rotation=40, ha="right", fontsize=7)
    right.set_ylabel("factor on the last word's push")
    right.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    return figure


def write_words(found: WordMatrices, folder: str | Path) -> tuple[Path, ...]:
    """Write numbers, tables and figure into a folder; returns the files."""
    place = require_folder(folder)
    content = {
        "versions": versions(),
        "eigenvalue": found.eigenvalue,
        "fraction": found.fraction,
        "contexts": found.contexts,
        "words": {text: {name: asdict(effect) for name, effect in by.items()} for text, by in found.words.items()},
        "leading": found.leading,
        "courses": {text: {name: asdict(course) for name, course in by.items()} for text, by in found.courses.items()},
        "phrases": {text: {name: asdict(effect) for name, effect in by.items()} for text, by in found.phrases.items()},
        "profiles": found.profiles,
        "profile_correlations": found.profile_correlations,
    }
    write_json(place / "words.json", content)
    with replacing(place / "tables.md") as temporary:
        temporary.write_text(markdown_tables(found), encoding="utf-8")
    figure = draw_words(found)
    files = save_figures({"words": figure}, place)
    plt.close(figure)
    return (place / "words.json", place / "tables.md", *files)


if __name__ == "__main__":
    shipped, seed = zoo.load("sentiment"), int(zoo.provenance("sentiment")["seed"])
    for path in write_words(measure_words(shipped.network, load_corpus(), seed=seed), sys.argv[1]):
        sys.stdout.write(f"{path}\n")
