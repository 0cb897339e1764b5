"""The figures of the sentiment experiment, as PNG and as SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import kann
from kann.paper.drawing import COLUMN, WIDE, save_figures
from kann.paper.sentiment.analysis import SMALL, TRUSTED, Study
from kann.paper.sentiment.corpus import Corpus, Reviews
from kann.paper.sentiment.operators import BATCH, SLOW, mode_columns
from kann.reporting.plots import (
    COLOURS,
    INK,
    LETTERS,
    LONGEST_WORD,
    SIGNED,
    STYLE,
    draw_curves,
    draw_spectrum,
    draw_words,
)
from kann.typing import Array, Float, Int

LINE = 0.155
"""Height of a line of words in inches."""

SHADES = {"positive": "Blues", "negative": "Reds", "context": "Greens"}
"""The paper's colours."""

LENGTHS = (40, 75)
"""Words of the reviews that are shown."""

WINDOW = 18
"""Words that are shown before and after a phrase."""

Line = tuple[str, Sequence[str], Float[Array, " _"], str]
"""A title, words, a shade for each of them in [0, 1], and a colour map."""


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
            "deciding": deciding_figure(studies),
            "movers": movers_figure(first),
            "paths": paths_figure(first),
        }
        if first.phrases is not None:
            figures["importance"] = importance_figure(first)
            figures["phrases"] = phrases_figure(first, corpus)
        return save_figures(figures, folder)


def _named(modes: Sequence[int]) -> str:
    """Modes by their numbers."""
    return f"mode{'s' * (len(modes) > 1)} {', '.join(map(str, modes))}"


def _rows(words: Sequence[str]) -> int:
    """Lines that `draw_words` needs."""
    x, rows = 0, 1
    for word in words:
        size = min(len(word), LONGEST_WORD)
        if x + size > LETTERS:
            x, rows = 0, rows + 1
        x += size + 1
    return rows


def _pages(lines: Sequence[Line]) -> Figure:
    """Several shaded texts below each other, each with its title."""
    heights = [_rows(words) + 1.6 for _, words, _, _ in lines]
    figure = Figure(figsize=(WIDE, LINE * sum(heights) + 0.1))
    top = sum(heights)
    for (title, words, shades, colours), height in zip(lines, heights, strict=True):
        ax = figure.add_axes((0.01, (top - height + 0.25) / sum(heights), 0.98, (height - 1.45) / sum(heights)))
        draw_words(words, shades, ax=ax, colours=colours)
        ax.set_title(title, loc="left", fontsize=7.5, pad=3)
        top -= height
    return figure


def _states(result: Study, ids: Int[Array, " t"]) -> Float[Array, "t d"]:
    with torch.no_grad():
        return result.network.states(torch.from_numpy(ids)[None])[0].double().numpy()


def _scaled(values: Float[Array, " t"]) -> Float[Array, " t"]:
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)


def _magnitudes(koopman: kann.Koopman, h: Float[Array, "t d"], modes: Sequence[int]) -> Float[Array, " t"]:
    """The paper's Σ_j s(j, h) over eigenvectors of some modes, from 0 to 1 over the review."""
    return _scaled(kann.magnitude(koopman, h)[:, mode_columns(koopman, modes)].sum(axis=1))


def chosen_review(result: Study, reviews: Reviews, *, positive: bool, place: int = 0) -> int:
    """A review to show: short, of known words, rightly told, and as clear as any; ``place`` counts further ones."""
    logits = result.whole.logits if positive else -result.whole.logits
    unknown = np.add.reduceat(reviews.words == 1, reviews.starts)
    fits = (reviews.lengths >= LENGTHS[0]) & (reviews.lengths <= LENGTHS[1]) & (unknown <= 1)
    fits &= (reviews.positive > 0) == positive
    found = np.flatnonzero(fits) if fits.any() else np.arange(len(reviews))
    return int(found[np.argsort(-logits[found], kind="stable")[min(place, len(found) - 1)]])


def _text(corpus: Corpus, ids: Int[Array, " t"]) -> list[str]:
    words = corpus.vocabulary.words
    return [words[i] for i in ids]


def words_figure(result: Study, corpus: Corpus) -> Figure:
    """The paper's shaded reviews: a positive one on the positive group, a negative one on the negative, and context."""
    koopman, groups = result.operators.padded, result.groups["padded"]
    lines: list[Line] = []
    for kind, modes in (("positive", groups.positive), ("negative", groups.negative)):
        for place in (0, 1):
            ids = corpus.test[chosen_review(result, corpus.test, positive=kind == "positive", place=place)]
            shades = _magnitudes(koopman, _states(result, ids), modes)
            lines.append((f"a {kind} review projected onto {_named(modes)}", _text(corpus, ids), shades, SHADES[kind]))
    if result.phrases is not None:
        lines += _phrase_lines(result, corpus, 2)
    return _pages(lines)


def _phrase_lines(result: Study, corpus: Corpus, size: int, *, count: int = 2) -> list[Line]:
    """Pieces of reviews around phrases of two or three words, shaded by the mode that answers most to them."""
    phrases = result.phrases
    if phrases is None:
        return []
    mode = phrases.strongest(size)
    reviews, ends = (phrases.pairs, phrases.pair_ends) if size == 2 else (phrases.triples, phrases.triple_ends)
    found = [(i, int(places[0])) for i, places in enumerate(ends) if len(places) and places[0] >= WINDOW]
    lines: list[Line] = []
    for i, end in found[:: max(1, len(found) // count)][:count]:
        ids = reviews[i]
        shades = kann.magnitude(phrases.koopman, _states(result, ids))[:, mode_columns(phrases.koopman, [mode])[0]]
        piece = slice(end - WINDOW, end + WINDOW)
        name = " ".join(_text(corpus, ids[end - size + 1 : end + 1]))
        title = f"around “{name}”, projected onto mode {mode}"
        lines.append((title, _text(corpus, ids[piece]), _scaled(shades[piece]), SHADES["context"]))
    return lines


def phrases_figure(result: Study, corpus: Corpus) -> Figure:
    """Words, pairs and triples, each shaded by the mode that answers most to phrases of that length."""
    phrases = result.phrases
    if phrases is None:
        raise ValueError("there are no phrases to draw")
    mode = phrases.strongest(1)
    ids = corpus.test[chosen_review(result, corpus.test, positive=True, place=2)]
    shades = _magnitudes(phrases.koopman, _states(result, ids), [mode])
    lines: list[Line] = [(f"single words, projected onto mode {mode}", _text(corpus, ids), shades, SHADES["positive"])]
    return _pages([*lines, *_phrase_lines(result, corpus, 2, count=3), *_phrase_lines(result, corpus, 3, count=3)])


def signed_figure(result: Study, corpus: Corpus) -> Figure:
    """Each word's change of the logit's share of the three most important modes: orange raises, purple lowers."""
    modes = list(result.whole.modes[:3])
    lines: list[Line] = []
    for positive in (True, False):
        ids = corpus.test[chosen_review(result, corpus.test, positive=positive)]
        title = (
            f"a {'positive' if positive else 'negative'} review: what each word adds to the logit by {_named(modes)}"
        )
        lines.append((title, _text(corpus, ids), _changes(result, ids, modes), SIGNED))
    if result.phrases is not None:
        ids = result.phrases.pairs[0]
        end = int(result.phrases.pair_ends[0][0])
        piece = slice(max(0, end - WINDOW), end + WINDOW)
        lines.append(("around a phrase", _text(corpus, ids[piece]), _changes(result, ids, modes)[piece], SIGNED))
    return _pages(lines)


def _changes(result: Study, ids: Int[Array, " t"], modes: Sequence[int]) -> Float[Array, " t"]:
    """From 0 for the strongest push down to 1 for the strongest push up."""
    operators = result.operators
    shares = kann.contributions(operators.unpadded, _states(result, ids), operators.readout.weight).modes
    change = np.diff(shares[:, modes, 0].sum(axis=1), prepend=0.0)
    return 0.5 + 0.5 * change / max(float(np.abs(change).max()), 1e-12)


def spectrum_figure(result: Study) -> Figure:
    """Eigenvalues with and without padding, coloured by residual."""
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    panels = figure.subplots(1, 2)
    for ax, name, title in zip(panels, ("padded", "unpadded"), ("padded to 1,000 steps", "words alone"), strict=True):
        koopman = getattr(result.operators, name)
        draw_spectrum(koopman, ax=ax)
        slow, trusted = (np.abs(koopman.eigenvalues) > SLOW).sum(), (koopman.residuals <= TRUSTED).sum()
        ax.set_title(f"{title}\n{slow} with |λ| > {SLOW}, {trusted} with residual ≤ {TRUSTED}")
    return figure


def agreement_figure(result: Study) -> Figure:
    """The paper's columns: test reviews on whose class network and operator agree, and on which they do not."""
    (tn, fp), (fn, tp) = result.confusion
    figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
    ax = figure.subplots()
    bars = ax.bar(["TP", "TN", "FP", "FN"], [tp, tn, fp, fn], color=[COLOURS[0], COLOURS[0], COLOURS[1], COLOURS[1]])
    ax.bar_label(bars, fontsize=7)
    share = result.numbers["agreement"]
    ax.set(ylabel="test reviews", title=f"operator and network agree on {100 * share:.2f} %")
    ax.margins(y=0.12)
    return figure


def statistics_figure(result: Study) -> Figure:
    """Histograms over batches of 64 test reviews: by magnitude as in the paper, and by signed share."""
    marks = result.whole.marks
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    kinds = {
        left: (
            ("positive", "positive_any", "positive words"),
            ("negative", "negative_any", "negative words"),
        ),
        right: (("positive_up", "any_up", "positive words"), ("negative_down", "any_down", "negative words")),
    }
    for ax, sides in kinds.items():
        for colour, (kind, usual, name) in zip(COLOURS, sides, strict=False):
            shares, base = (100 * marks[each].by_batch(BATCH) for each in (kind, usual))
            label = f"{name}: {shares.mean():.1f} %"
            ax.hist(shares, bins=np.linspace(0, 100, 81), color=colour, alpha=0.6, label=label)
            ax.axvline(base.mean(), color=colour, linestyle="--", linewidth=1, label=f"any word: {base.mean():.1f} %")
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.14), frameon=False, ncols=2, columnspacing=1)
        ax.set(xlabel="words per batch [%]", xlim=(0, 100))
    left.set(ylabel="batches of 64 reviews", title="highlighted: magnitude at least 0.5 (a_p, a_n)")
    right.set_title("signed: positive words up, negative words down")
    return figure


def importance_figure(result: Study) -> Figure:
    """ξ from high to low, coloured by the length of phrase that each mode answers to most."""
    phrases = result.phrases
    if phrases is None:
        raise ValueError("there are no phrases to draw")
    figure = Figure(figsize=(WIDE, 2.6), layout="constrained")
    ax, beside = figure.subplots(1, 2, width_ratios=[3, 2])
    xi, groups, places = phrases.importance[phrases.order], phrases.groups, np.arange(len(phrases.order))
    ax.plot(places, xi, color="#BBBBBB", linewidth=0.8, zorder=1)
    for n in (1, 2, 3):
        inside = groups == n
        ax.scatter(places[inside], xi[inside], color=COLOURS[n - 1], s=22, zorder=2, label=f"{n}-grams")
    ax.set(xlabel="mode", ylabel="importance ξ", xticks=places, xticklabels=phrases.order, yscale="log")
    ax.legend(frameon=False)
    image = beside.imshow(phrases.answers.T, cmap="viridis", aspect="auto")
    beside.set(xlabel="mode", xticks=places, xticklabels=phrases.order, yticks=range(3), yticklabels=["1", "2", "3"])
    beside.set_ylabel("words in the phrase")
    figure.colorbar(image, ax=beside, label="change at phrases / elsewhere")
    return figure


def bases_figure(result: Study, corpus: Corpus) -> Figure:
    """Dominant eigenvalues in three bases, and the same review shaded in each."""
    ids = corpus.test[chosen_review(result, corpus.test, positive=True)]
    words, h = _text(corpus, ids), _states(result, ids)
    rows = _rows(words)
    height = 3 * (LINE * (rows + 1.6)) + 2.3
    figure = Figure(figsize=(WIDE, height))
    ax = figure.add_axes((0.09, 1 - 1.75 / height, 0.86, 1.5 / height))
    _scatter(ax, {name: koopman.eigenvalues for name, koopman in result.bases.items()})
    for place, (name, koopman) in enumerate(result.bases.items()):
        low = (3 - place - 1) * LINE * (rows + 1.6) + 0.05
        page = figure.add_axes((0.01, low / height, 0.98, LINE * rows / height))
        shades = _magnitudes(koopman, h, _positive_mode(result, koopman))
        draw_words(words, shades, ax=page, colours=SHADES["positive"])
        page.set_title(f"basis {name}", loc="left", fontsize=7.5, pad=3)
    return figure


def _positive_mode(result: Study, koopman: kann.Koopman) -> list[int]:
    """The mode that corresponds to the positive group's first, by its eigenvalue."""
    wanted = result.operators.padded.modes[result.groups["padded"].positive[0]].eigenvalue
    return [int(np.argmin([abs(mode.eigenvalue - wanted) for mode in koopman.modes]))]


def _scatter(ax: Axes, spectra: dict[str, Array]) -> None:
    """Eigenvalues of several operators near 1, each with a sign of its own."""
    circle = np.exp(1j * np.linspace(-0.5, 0.5, 201))
    ax.plot(np.real(circle), np.imag(circle), color="#999999", linewidth=0.8, zorder=1)
    for (name, values), colour, sign in zip(spectra.items(), COLOURS, "o+x^", strict=False):
        near = values[np.abs(values) > 0.8]
        style: Any = {"facecolors": "none", "edgecolors": colour} if sign in "o^" else {"color": colour}
        ax.scatter(np.real(near), np.imag(near), marker=sign, s=26, linewidths=0.9, label=name, **style)
    ax.set(xlabel="Re λ", ylabel="Im λ", xlim=(0.78, 1.02), ylim=(-0.13, 0.13))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=len(spectra))


def architectures_figure(out: Path) -> Figure:
    """Dominant eigenvalues of every architecture that has been analysed."""
    figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
    found = {
        arch.upper(): sorted((out / arch).glob("seed-*/padded.npz"))
        for arch in ("gru", "lstm", "rnn")
        if (out / arch).is_dir()
    }
    spectra = {name: kann.Koopman.load(paths[0]).eigenvalues for name, paths in found.items() if paths}
    _scatter(figure.subplots(), spectra)
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
    ax.axvline(SMALL, color="#BBBBBB", linewidth=0.8, zorder=0)
    ticks = [rank for rank in (1, 2, 4, 8, 16, 32, 64, 128, 255) if rank <= ranks[-1]]
    ax.set_xscale("log", base=2)
    ax.set(xticks=ticks, xticklabels=ticks, xlabel="rank of the linear system", ylabel="test reviews [%]")
    figure.legend(loc="outside upper center", frameon=False, ncols=1)
    return figure


def deciding_figure(studies: Sequence[Study]) -> Figure:
    """Reviews decided as by the network if only some modes are kept: the first k together, and each alone."""
    count = min(len(each.deciding.alone) for each in studies)
    curves = {
        "the first k modes together": np.array([100 * each.deciding.together[:count] for each in studies]),
        "the k-th mode alone": np.array([100 * each.deciding.alone[:count] for each in studies]),
    }
    figure = Figure(figsize=(COLUMN, 2.6), layout="constrained")
    ax = figure.subplots()
    draw_curves(curves, np.arange(1.0, count + 1), ax=ax)
    ax.axhline(50, color="#BBBBBB", linewidth=0.8, zorder=0)
    ax.set(xlabel="k, by variance of the share in the logit", ylabel="decided as by the network [%]", ylim=(0, 102))
    ax.set_xticks(range(1, count + 1, 1 if count < 12 else 3))
    figure.legend(loc="outside upper center", frameon=False, ncols=2)
    return figure


def movers_figure(result: Study) -> Figure:
    """The words that move the three most important modes most."""
    shown = result.movers[:3]
    figure = Figure(figsize=(WIDE, 3.4), layout="constrained")
    for ax, moved in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        mode = result.operators.unpadded.modes[moved.mode]
        words = [*moved.up, *reversed(moved.down)]
        places = np.arange(len(words))[::-1]
        changes = np.array([change for _, change in words])
        ax.barh(places, changes, color=np.where(changes > 0, COLOURS[5], COLOURS[0]))
        ax.set_yticks(places, [word.replace("$", r"\$") for word, _ in words], fontsize=6)
        ax.axvline(0, color=INK, linewidth=0.6)
        doubtful = "" if mode.residual <= TRUSTED else ", doubtful"
        ax.set_title(f"mode {moved.mode}, |λ| {mode.modulus:.4f},\nresidual {mode.residual:.2f}{doubtful}")
        ax.set_xlabel("mean change of the logit")
    return figure


def paths_figure(result: Study) -> Figure:
    """The two shuffled reviews on the first two principal axes: network, operator, and driven linear system."""
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    panels = figure.subplots(1, len(result.paths), sharex=True, sharey=True, squeeze=False)[0]
    for ax, path in zip(panels, result.paths, strict=True):
        curves = (("network", path.network, "o-"), ("KANN", path.kann, "s--"), ("driven", path.driven, "^:"))
        for colour, (name, points, style) in zip(COLOURS, curves, strict=False):
            ax.plot(*points.T, style, color=colour, markersize=4, linewidth=1, label=name)
        for point, word in zip(path.network, path.text.split(), strict=False):
            ax.annotate(word, point, xytext=(4, 4), textcoords="offset points", fontsize=7)
        ax.axvline(0, color="#BBBBBB", linewidth=0.8, zorder=0)
        ax.set(title=f"“{path.text}”, logit {path.logit:.2f}", xlabel="first principal axis")
    panels[0].set_ylabel("second principal axis")
    panels[-1].legend(frameon=False)
    return figure
