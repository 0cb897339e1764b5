"""What words do as matrices, for the manual: ``python -m kann_experiments.sentiment.word_pages runs/words/gru``.

Measures the GRU that ships with the package and writes ``results.json``, ``words.json`` with every number, and figures.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from kann import zoo
from kann.reporting.plots import STYLE
from kann.stand_ins import WordPairs
from kann_experiments.drawing import WIDE, save_figures
from kann_experiments.results import Quantity, common_json, tabulate, write_json
from kann_experiments.sentiment.corpus import load_corpus
from kann_experiments.sentiment.word_matrices import WordMatrices, measure_words
from kann_experiments.sentiment.word_plane import LEAST, OneCoordinate, measure_pairs, word_plane
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


PAIRS = 8
"""Words that are listed of each kind: those that add most, add least and keep least of one coordinate."""

QUANTITIES = (
    Quantity(key="eigenvalue", what="eigenvalue of the sentiment mode, at the mean of all words"),
    Quantity(key="fraction", what="fraction of the logit's variance in its contribution", format="percent"),
    Quantity(key="two_two_added", what="correlation over modes: two words, and the sum of the two alone"),
    Quantity(key="three_three_added", what="    three words, and the sum of the three alone"),
    Quantity(key="one_two", what="    last word, and two words"),
    Quantity(key="one_three", what="    last word, and three words"),
    Quantity(key="two_three", what="    two words, and three words"),
    Quantity(key="one_coordinate", what="decisions of an operator on one balanced coordinate", format="percent"),
    Quantity(key="explained", what="variance of the logit that the coordinate explains, held out", format="percent"),
)
"""What `measured_numbers` gives."""


def markdown_tables(found: WordMatrices) -> dict[str, list[str]]:
    """Lines of each table, with 95 % intervals: words, what is left of them a word later, and phrases."""
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
    courses = {f"courses_{kind}": _course_table(found, kind) for kind in ("network", "operator")}
    return {"words": _table(WORD_COLUMNS, words), **courses, "phrases": _table(PHRASE_COLUMNS, phrases)}


def pairs_table(pairs: WordPairs) -> list[str]:
    """Lines of a table of what words keep of the one coordinate and add to it."""
    often = pairs.read_often(LEAST)
    by_adding, by_keeping = (often[np.argsort(values[often], kind="stable")] for values in (pairs.adds, pairs.keeps))
    rows = []
    for title, chosen in (("adds most", by_adding[::-1]), ("adds least", by_adding), ("keeps least", by_keeping)):
        for i in chosen[:PAIRS].tolist():
            rows.append([title, pairs.words[i], f"{pairs.keeps[i]:.3f}", f"{pairs.adds[i]:+.3f}", pairs.counts[i]])
            title = ""
    return _table(("", "word", "keeps", "adds", "read"), rows)


def measured_numbers(found: WordMatrices, one: OneCoordinate) -> dict[str, float]:
    """The numbers of `QUANTITIES`."""
    correlations = {key.replace(" ", "_"): value for key, value in found.profile_correlations.items()}
    return correlations | {
        "eigenvalue": found.eigenvalue,
        "fraction": found.fraction,
        "one_coordinate": one.agreement,
        "explained": np.nan if one.readout.r_squared is None else one.readout.r_squared,
    }


def _course_table(found: WordMatrices, kind: str) -> list[str]:
    """What each word moves, after the word and after one more: the logit first, then the leading modes."""
    rows, columns = [], ["word"]
    for text, by in found.courses.items():
        course = by[kind]
        rows.append([text, *(number for pair in (course.logit, *course.modes) for number in pair)])
    for moved in ("logit", *(f"mode {place}" for place in found.leading)):
        columns += [f"{moved}, {kind}", "and one word later"]
    return _table(tuple(columns), rows)


def _table(columns: tuple[str, ...], rows: list[list[Any]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


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


def write_words(
    found: WordMatrices, one: OneCoordinate, folder: str | Path, *, provenance: Mapping[str, Any]
) -> tuple[Path, ...]:
    """Write numbers, tables and figures into a folder; returns the files."""
    place = require_folder(folder)
    rows = tabulate(QUANTITIES, [measured_numbers(found, one)], {})
    lines = markdown_tables(found) | {"pairs": pairs_table(one.pairs)}
    results = common_json("words", seeds=[provenance["seed"]], rows=rows) | {"lines": lines}
    content = {
        "contexts": found.contexts,
        "words": {text: {name: asdict(effect) for name, effect in by.items()} for text, by in found.words.items()},
        "leading": found.leading,
        "courses": {text: {name: asdict(course) for name, course in by.items()} for text, by in found.courses.items()},
        "phrases": {text: {name: asdict(effect) for name, effect in by.items()} for text, by in found.phrases.items()},
        "profiles": found.profiles,
    }
    write_json(place / "results.json", results)
    write_json(place / "words.json", content)
    with plt.rc_context(STYLE):
        figures = {"words": draw_words(found), "word-plane": word_plane(one.pairs)}
        files = save_figures(figures, place)
    for figure in figures.values():
        plt.close(figure)
    return (place / "results.json", place / "words.json", *files)


if __name__ == "__main__":
    network, corpus, shipped = zoo.load("sentiment").network, load_corpus(), zoo.provenance("sentiment")
    matrices = measure_words(network, corpus, seed=int(shipped["seed"]))
    pairs = measure_pairs(network, corpus, seed=int(shipped["seed"]))
    for path in write_words(matrices, pairs, sys.argv[1], provenance=shipped):
        sys.stdout.write(f"{path}\n")
