"""Figures of shaded text: reviews whose words are coloured by what the modes make of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

import kann
from kann.typing import Array, Float, Int
from kann_experiments.drawing import LETTERS, LONGEST_WORD, SIGNED, WIDE, draw_words
from kann_experiments.sentiment.analysis import Study
from kann_experiments.sentiment.corpus import Corpus, Reviews
from kann_experiments.sentiment.ngrams import Phrases

LINE = 0.155
"""Height of a line of words in inches."""

TITLE_LINES = 1.6
"""Room for the title of a text and the gap below the text, in lines."""

SHADES = {"positive": "Blues", "negative": "Reds", "context": "Greens"}
"""The paper's colours."""

SHORTEST, LONGEST = 40, 75
"""Words of the reviews that are shown."""

WINDOW = 18
"""Words that are shown before and after a phrase."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShadedText:
    """A text whose words are shaded."""

    title: str
    words: Sequence[str]
    shades: Float[Array, " t"]
    """A number in [0, 1] for each word."""
    colours: str
    """The colour map that the numbers refer to."""


def draw_texts(texts: Sequence[ShadedText]) -> Figure:
    """Several shaded texts below each other, each with its title."""
    heights = [count_lines(text.words) + TITLE_LINES for text in texts]
    figure = Figure(figsize=(WIDE, LINE * sum(heights) + 0.1))
    top = sum(heights)
    for text, height in zip(texts, heights, strict=True):
        ax = figure.add_axes((0.01, (top - height + 0.25) / sum(heights), 0.98, (height - 1.45) / sum(heights)))
        draw_words(text.words, text.shades, ax=ax, colours=text.colours)
        ax.set_title(text.title, loc="left", fontsize=7.5, pad=3)
        top -= height
    return figure


def count_lines(words: Sequence[str]) -> int:
    """Lines that `draw_words` needs for these words."""
    used, lines = 0, 1
    for word in words:
        size = min(len(word), LONGEST_WORD)
        if used + size > LETTERS:
            used, lines = 0, lines + 1
        used += size + 1
    return lines


def choose_review(result: Study, reviews: Reviews, *, positive: bool, place: int = 0) -> Int[Array, " t"]:
    """The words of a review to show: short, of known words, rightly told, and as clear as any.

    ``place`` is 0 for the clearest one, 1 for the next, and so on.
    """
    unknown = np.add.reduceat(reviews.words == 1, reviews.starts)
    fits = (reviews.lengths >= SHORTEST) & (reviews.lengths <= LONGEST) & (unknown <= 1)
    found = np.flatnonzero(fits & ((reviews.positive > 0) == positive))
    if not len(found):
        found = np.arange(len(reviews))
    sign = 2 * positive - 1
    clearest = found[np.argsort(-sign * result.statistics.logits[found], kind="stable")]
    return reviews[int(clearest[min(place, len(found) - 1)])]


def read_states(result: Study, ids: Int[Array, " t"]) -> Float[Array, "t d"]:
    """The network's states while it reads one review."""
    with torch.no_grad():
        return result.network.states(torch.from_numpy(ids)[None])[0].double().numpy()


def shade_by_magnitude(koopman: kann.Koopman, h: Float[Array, "t d"], modes: Sequence[int]) -> Float[Array, " t"]:
    """The paper's Σ_j s(j, h) over eigenvectors of some modes, from 0 to 1 over the review."""
    columns = [koopman.modes[mode].indices[0] for mode in modes]  # of a pair, either has the same magnitude
    return _scale_to_unit(kann.magnitude(koopman, h)[:, columns].sum(axis=1))


def _scale_to_unit(values: Float[Array, " t"]) -> Float[Array, " t"]:
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)


def to_words(corpus: Corpus, ids: Int[Array, " t"]) -> list[str]:
    """The words of these numbers."""
    words = corpus.vocabulary.words
    return [words[i] for i in ids]


def _list_modes(modes: Sequence[int]) -> str:
    """Modes by their numbers, such as "modes 0, 3"."""
    return f"mode{'s' * (len(modes) > 1)} {', '.join(map(str, modes))}"


def words_figure(result: Study, corpus: Corpus) -> Figure:
    """The paper's shaded reviews: positive ones by the positive group, negative ones by the negative, and phrases."""
    koopman, groups = result.operators.padded, result.groups["padded"]
    texts = []
    for kind, modes in (("positive", groups.positive), ("negative", groups.negative)):
        for place in (0, 1):
            ids = choose_review(result, corpus.test, positive=kind == "positive", place=place)
            texts.append(
                ShadedText(
                    title=f"a {kind} review projected onto {_list_modes(modes)}",
                    words=to_words(corpus, ids),
                    shades=shade_by_magnitude(koopman, read_states(result, ids), modes),
                    colours=SHADES[kind],
                )
            )
    if result.phrases is not None:
        texts += _texts_around_phrases(result, result.phrases, corpus, length=2, count=2)
    return draw_texts(texts)


def phrases_figure(result: Study, phrases: Phrases, corpus: Corpus) -> Figure:
    """Words, pairs and triples, each shaded by the mode that responds most to phrases of that length."""
    modes = phrases.of_triples
    mode = modes.strongest(1)
    ids = choose_review(result, corpus.test, positive=True, place=2)
    single = ShadedText(
        title=f"single words, projected onto mode {mode}",
        words=to_words(corpus, ids),
        shades=shade_by_magnitude(modes.koopman, read_states(result, ids), [mode]),
        colours=SHADES["positive"],
    )
    pairs = _texts_around_phrases(result, phrases, corpus, length=2, count=3)
    triples = _texts_around_phrases(result, phrases, corpus, length=3, count=3)
    return draw_texts([single, *pairs, *triples])


def _texts_around_phrases(
    result: Study, phrases: Phrases, corpus: Corpus, *, length: int, count: int
) -> list[ShadedText]:
    """Parts of reviews around phrases of two or three words, shaded by the mode that responds most to them."""
    reviews, ends, modes = phrases.pairs, phrases.pair_ends, phrases.of_pairs  # each batch has an operator
    if length == 3:
        reviews, ends, modes = phrases.triples, phrases.triple_ends, phrases.of_triples
    mode = modes.strongest(length)
    # Only phrases with a whole window before them, and of those some that are spread over all reviews.
    found = [(i, int(places[0])) for i, places in enumerate(ends) if len(places) and places[0] >= WINDOW]
    column = modes.koopman.modes[mode].indices[0]
    texts = []
    for i, end in found[:: max(1, len(found) // count)][:count]:
        ids, shown = reviews[i], slice(end - WINDOW, end + WINDOW)
        # Magnitudes depend on all that was read before: the whole review is read, and a part of it shown.
        magnitude = kann.magnitude(modes.koopman, read_states(result, ids))[:, column]
        phrase = " ".join(to_words(corpus, ids[end - length + 1 : end + 1]))
        texts.append(
            ShadedText(
                title=f"around “{phrase}”, projected onto mode {mode}",
                words=to_words(corpus, ids[shown]),
                shades=_scale_to_unit(magnitude[shown]),
                colours=SHADES["context"],
            )
        )
    return texts


def signed_figure(result: Study, corpus: Corpus) -> Figure:
    """What each word adds to the contribution of the three most important modes: orange raises, purple lowers."""
    modes = list(result.statistics.modes[:3])
    texts = []
    for kind in ("positive", "negative"):
        ids = choose_review(result, corpus.test, positive=kind == "positive")
        title = f"a {kind} review: what each word adds to the logit by {_list_modes(modes)}"
        shades = _shade_by_change(result, ids, modes)
        texts.append(ShadedText(title=title, words=to_words(corpus, ids), shades=shades, colours=SIGNED))
    if result.phrases is not None:
        ids = result.phrases.pairs[0]
        end = int(result.phrases.pair_ends[0][0])
        shown = slice(max(0, end - WINDOW), end + WINDOW)
        words, shades = to_words(corpus, ids[shown]), _shade_by_change(result, ids, modes)[shown]
        texts.append(ShadedText(title="around a phrase", words=words, shades=shades, colours=SIGNED))
    return draw_texts(texts)


def _shade_by_change(result: Study, ids: Int[Array, " t"], modes: Sequence[int]) -> Float[Array, " t"]:
    """From 0 for the word that lowers the logit most to 1 for the one that raises it most; 0.5 changes nothing."""
    operators = result.operators
    contributions = kann.contributions(operators.unpadded, read_states(result, ids), operators.readout.weight).modes
    change = np.diff(contributions[:, modes, 0].sum(axis=1), prepend=0.0)  # (t,)
    return 0.5 + 0.5 * change / max(float(np.abs(change).max()), 1e-12)
