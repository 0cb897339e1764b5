"""The figures of the sentiment experiment, as PNG and as SVG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kann.fitting.spectrum import TRUSTED
from kann.reporting.plots import COLOURS, INK, STYLE
from kann_experiments.drawing import COLUMN, WIDE, draw_curves, save_figures
from kann_experiments.sentiment.analysis import Study
from kann_experiments.sentiment.corpus import Corpus
from kann_experiments.sentiment.eigenvalue_figures import architectures_figure, bases_figure, spectrum_figure
from kann_experiments.sentiment.measurements import SMALL_RANK
from kann_experiments.sentiment.ngrams import PhraseModes
from kann_experiments.sentiment.operators import BATCH
from kann_experiments.sentiment.text_figures import phrases_figure, signed_figure, words_figure

LIGHT = "#BBBBBB"
"""Colour of lines that only help to read a figure."""


def draw_figures(studies: Sequence[Study], corpus: Corpus, *, folder: Path) -> tuple[Path, ...]:
    """Draw all figures: curves over all seeds, the others of the first."""
    first = studies[0]
    with rc_context(STYLE):
        figures = {
            "spectrum": spectrum_figure(first),
            "words": words_figure(first, corpus),
            "signed": signed_figure(first, corpus),
            "agreement": agreement_figure(first),
            "statistics": statistics_figure(first),
            "bases": bases_figure(first, corpus),
            "architectures": architectures_figure(folder.parent),
            "surrogate": surrogate_figure(studies),
            "deciding": decisions_figure(studies),
            "movers": top_words_figure(first),
            "paths": trajectories_figure(first),
        }
        if first.phrases is not None:
            figures["importance"] = importance_figure(first.phrases.of_triples)
            figures["phrases"] = phrases_figure(first, first.phrases, corpus)
        return save_figures(figures, folder)


def agreement_figure(result: Study) -> Figure:
    """The paper's columns: test reviews on whose class network and operator agree, and on which they do not."""
    (tn, fp), (fn, tp) = result.confusion
    figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
    ax = figure.subplots()
    bars = ax.bar(["TP", "TN", "FP", "FN"], [tp, tn, fp, fn], color=[COLOURS[0], COLOURS[0], COLOURS[1], COLOURS[1]])
    ax.bar_label(bars, fontsize=7)
    operator, copied = (100 * result.numbers[key] for key in ("agreement", "agreement_copying"))
    ax.set(ylabel="test reviews", title=f"as the network: operator {operator:.2f} %, copying {copied:.2f} %")
    ax.margins(y=0.12)
    return figure


def statistics_figure(result: Study) -> Figure:
    """Histograms over batches of 64 test reviews: by magnitude as in the paper, and by signed contribution."""
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_histograms(left, result, (("positive", "positive_any"), ("negative", "negative_any")))
    _draw_histograms(right, result, (("positive_up", "any_up"), ("negative_down", "any_down")))
    left.set(ylabel="batches of 64 reviews", title="highlighted: magnitude at least 0.5 (a_p, a_n)")
    right.set_title("signed: positive words up, negative words down")
    return figure


def _draw_histograms(ax: Axes, result: Study, kinds: Sequence[tuple[str, str]]) -> None:
    """Marked fractions of positive and of negative words, each with the mean over any word as its baseline."""
    names = ("positive words", "negative words")
    for colour, name, (kind, baseline) in zip(COLOURS[:2], names, kinds, strict=True):
        percent, usual = (100 * result.statistics.marked[each].fractions(BATCH) for each in (kind, baseline))
        label = f"{name}: {percent.mean():.1f} %"
        ax.hist(percent, bins=np.linspace(0, 100, 81).tolist(), color=colour, alpha=0.6, label=label)
        ax.axvline(usual.mean(), color=colour, linestyle="--", linewidth=1, label=f"any word: {usual.mean():.1f} %")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.14), frameon=False, ncols=2, columnspacing=1)
    ax.set(xlabel="words per batch [%]", xlim=(0, 100))


def importance_figure(phrases: PhraseModes) -> Figure:
    """ξ from high to low, coloured by the length of phrase that each mode responds to most."""
    figure = Figure(figsize=(WIDE, 2.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    xi, groups, places = phrases.importance[phrases.order], phrases.groups, np.arange(len(phrases.order))
    left.plot(places, xi, color=LIGHT, linewidth=0.8, zorder=1)
    for n in (1, 2, 3):
        inside = groups == n
        left.scatter(places[inside], xi[inside], color=COLOURS[n - 1], s=22, zorder=2, label=f"{n}-grams")
    left.set(xlabel="mode", ylabel="importance ξ", xticks=places, xticklabels=phrases.order, yscale="log")
    left.legend(frameon=False)
    image = right.imshow(phrases.responses.T, cmap="viridis", aspect="auto")
    right.set(xlabel="mode", xticks=places, xticklabels=phrases.order, yticks=range(3), yticklabels=["1", "2", "3"])
    right.set_ylabel("words in the phrase")
    figure.colorbar(image, ax=right, label="change at phrases / elsewhere")
    return figure


def surrogate_figure(studies: Sequence[Study]) -> Figure:
    """The network replaced by the driven linear system, at every rank."""
    fewest = min(len(each.surrogates.ranks) for each in studies)
    ranks = studies[0].surrogates.ranks[:fewest]
    curves = {
        "decides as the network": np.array([100 * each.surrogates.agreement[:fewest] for each in studies]),
        "decides rightly": np.array([100 * each.surrogates.accuracy[:fewest] for each in studies]),
        "the network decides rightly": np.array(
            [np.full(fewest, 100 * each.numbers["accuracy_test"]) for each in studies]
        ),
    }
    figure = Figure(figsize=(COLUMN, 2.9), layout="constrained")
    ax = figure.subplots()
    draw_curves(curves, ranks.astype(float), ax=ax)
    ax.axvline(SMALL_RANK, color=LIGHT, linewidth=0.8, zorder=0)
    ticks = [rank for rank in (1, 2, 4, 8, 16, 32, 64, 128, 255) if rank <= ranks[-1]]
    ax.set_xscale("log", base=2)
    ax.set(xticks=ticks, xticklabels=ticks, xlabel="rank of the linear system", ylabel="test reviews [%]")
    figure.legend(loc="outside upper center", frameon=False, ncols=1)
    return figure


def decisions_figure(studies: Sequence[Study]) -> Figure:
    """Reviews decided as by the network if only some modes are kept: the first k together, and each alone."""
    count = min(len(each.decisions.alone) for each in studies)
    curves = {
        "the first k modes together": np.array([100 * each.decisions.together[:count] for each in studies]),
        "the k-th mode alone": np.array([100 * each.decisions.alone[:count] for each in studies]),
    }
    figure = Figure(figsize=(COLUMN, 2.6), layout="constrained")
    ax = figure.subplots()
    draw_curves(curves, np.arange(1.0, count + 1), ax=ax)
    ax.axhline(50, color=LIGHT, linewidth=0.8, zorder=0)
    label = "k, by variance of the contribution to the logit"
    ax.set(xlabel=label, ylabel="decided as by the network [%]", ylim=(0, 102))
    every = 1
    if count >= 12:
        every = 3
    ax.set_xticks(range(1, count + 1, every))
    figure.legend(loc="outside upper center", frameon=False, ncols=2)
    return figure


def top_words_figure(result: Study) -> Figure:
    """The words that raise and that lower the three most important modes most."""
    shown = result.top_words[:3]
    figure = Figure(figsize=(WIDE, 3.4), layout="constrained")
    for ax, top in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        mode = result.operators.unpadded.modes[top.mode]
        words = [*top.up, *reversed(top.down)]
        places = np.arange(len(words))[::-1]
        changes = np.array([change for _, change in words])
        ax.barh(places, changes, color=np.where(changes > 0, COLOURS[5], COLOURS[0]))
        ax.set_yticks(places, [word.replace("$", r"\$") for word, _ in words], fontsize=6)
        ax.axvline(0, color=INK, linewidth=0.6)
        residual = f"residual {mode.residual:.2f}"
        if mode.residual > TRUSTED:
            residual += ", doubtful"
        ax.set_title(f"mode {top.mode}, |λ| {mode.modulus:.4f},\n{residual}")
        ax.set_xlabel("mean change of the logit")
    return figure


def trajectories_figure(result: Study) -> Figure:
    """The two shuffled reviews on the first two principal axes: network, operator, and driven linear system."""
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    panels = figure.subplots(1, len(result.trajectories), sharex=True, sharey=True, squeeze=False)[0]
    for ax, trajectory in zip(panels, result.trajectories, strict=True):
        curves = (
            ("network", trajectory.network, "o-"),
            ("KANN", trajectory.kann, "s--"),
            ("driven", trajectory.driven, "^:"),
        )
        for colour, (name, points, style) in zip(COLOURS, curves, strict=False):
            ax.plot(*points.T, style, color=colour, markersize=4, linewidth=1, label=name)
        for point, word in zip(trajectory.network, trajectory.text.split(), strict=False):
            ax.annotate(word, point, xytext=(4, 4), textcoords="offset points", fontsize=7)
        ax.axvline(0, color=LIGHT, linewidth=0.8, zorder=0)
        ax.set(title=f"“{trajectory.text}”, logit {trajectory.logit:.2f}", xlabel="first principal axis")
    panels[0].set_ylabel("second principal axis")
    panels[-1].legend(frameon=False)
    return figure
