"""What words do as matrices: how "not", "very" or a full stop act on the mode that holds the sentiment.

A network that gates reads a word by multiplying: z becomes z C(word) + push(word). So one can ask how much of the
sentiment a word keeps, and what it makes of the push of the word that follows. Each answer is given for the operator,
with an interval by refitting it without each of ten groups of training reviews, and for the network itself, run from
the states at which the words occur in test reviews.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

import kann
from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.progress import progress
from kann.recording.runner import evaluation_mode
from kann.typing import Array, Complex, Float, Int, Shaped
from kann.zoo.sentiment_network import SentimentNetwork, Vocabulary
from kann_experiments.sentiment.corpus import Corpus, Reviews
from kann_experiments.sentiment.operators import Readout
from kann_experiments.sentiment.reading import read_reviews
from kann_experiments.sentiment.stand_ins import Recorded, record_for_stand_ins, state_of, training_reviews
from kann_experiments.sentiment.task import JUDGED
from kann_experiments.training import generator

RANK = 16
"""Coordinates of the operator. Each refit takes a third of the time of 24, which change few decisions."""

GROUPS = 10
"""Groups of training reviews, and of contexts, that are left out in turn."""

CONTEXTS = 300
"""Places in test reviews at which a word or phrase is looked at, at most."""

FEWEST_CONTEXTS = 2 * GROUPS
"""Fewer places say nothing: the word or phrase is left out."""

SINGLE_WORDS = ("not", "never", "but", "very", "really", ".", "good", "great", "bad", "awful")
"""Words whose matrices are looked at."""

PHRASES = (
    ("not", "good"),
    ("not", "bad"),
    ("not", "very", "good"),
    ("very", "good"),
    ("very", "bad"),
    ("really", "good"),
    ("really", "bad"),
    ("but", "good"),
    ("but", "bad"),
)
"""Words before another: what they make of its push. The first three are the paper's."""

PAPERS = PHRASES[:3]
"""The paper's phrases."""

NEXT_WORD = "the"
"""The commonest word that says nothing: what is read after a word, to see what is left of its effect."""

LEADING_MODES = 3
"""Modes whose contribution to the logit varies most: a word's effect is followed along these."""

PROFILES: tuple[str, ...] = ("one", "two", "three", "two_added", "three_added")
"""What moves modes: the last word of phrases, phrases of two and three words, and their words one by one, summed."""

REAL_BELOW = 1e-9
"""Imaginary parts of eigenvalues below this are rounding."""

Step = Callable[[Array, tuple[int, ...]], Array]
"""From states and the numbers of some words to the states after reading them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A number and its standard error, by a jackknife over groups."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:+.2f} ± {1.96 * self.error:.2f}"


@dataclass(frozen=True, slots=True)
class WordEffect:
    """What one word does to the sentiment mode, in logits, by the operator or the network."""

    keeps: Interval
    """What the mode is multiplied by."""
    pushes: Interval
    """What is added to it, from the mean state of the contexts."""


@dataclass(frozen=True, slots=True)
class WordCourse:
    """What a word moves, and what is left of it when the next word has been read, by the operator or the network."""

    logit: tuple[Interval, Interval]
    """Change of the logit, after the word and after the next one."""
    modes: tuple[tuple[Interval, Interval], ...]
    """Change of what each of the leading modes contributes to the logit."""


@dataclass(frozen=True, slots=True)
class PhraseEffect:
    """What words before another make of its push, in logits, by the operator or the network."""

    total: Interval
    """Change of the logit over the whole phrase."""
    alone: Interval
    """Change by the last word, read in the same places without those before it."""
    after: Interval
    """Change by the last word after those before it."""
    factor: Interval
    """The second of these over the first: 1 if words only add up, negative if the push is turned round."""
    lasting: Interval
    """The same factor along the sentiment mode, which is what stays."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WordMatrices:
    """All that was measured about one network."""

    eigenvalue: float
    """Of the sentiment mode, of the operator at the mean of all words."""
    fraction: float
    """Fraction of the logit's variance over the recorded states that this mode's contribution has."""
    contexts: dict[str, int]
    """In how many places each word and phrase was looked at."""
    words: dict[str, dict[str, WordEffect]]
    """By word, then "operator" or "network"."""
    leading: tuple[int, ...]
    """The modes whose contributions to the logit vary most, as they are counted in the operator at the mean word."""
    courses: dict[str, dict[str, WordCourse]]
    """By word, then "operator" or "network"."""
    phrases: dict[str, dict[str, PhraseEffect]]
    """By phrase, then "operator", "driven" or "network"."""
    profiles: Float[Array, "5 m"]
    """How far the paper's phrases move each mode of the network's state, in its deviations up to one factor: rows are
    `PROFILES`."""

    @property
    def profile_correlations(self) -> dict[str, float]:
        """Correlations over modes of the responses to one, two and three words, and to the sums of single words.

        They are 1 where the same modes respond; NaN for a single mode, or a length of which there is no phrase.
        """
        rows: dict[str, Array] = dict(zip(PROFILES, self.profiles, strict=True))
        pairs = [("one", "two"), ("one", "three"), ("two", "three"), ("two", "two_added"), ("three", "three_added")]
        return {f"{a} {b}": _correlation(rows[a], rows[b]) for a, b in pairs}


def _correlation(x: Float[Array, " m"], y: Float[Array, " m"]) -> float:
    if len(x) < 2 or not np.isfinite([*x, *y]).all():
        return np.nan
    return float(np.corrcoef(x, y)[0, 1])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SentimentMode:
    """The mode that holds the sentiment: h @ vector + constant is its contribution to the logit."""

    eigenvalue: float
    fraction: float
    vector: Float[Array, " d"]
    gains: tuple[Float[Array, " r"], Float[Array, " r"]]
    """Its left and right eigenvectors: left @ C @ right is what a matrix C keeps of it."""
    modes: Complex[Array, "d m"]
    """Vectors whose products with a state are the coordinates of all modes, in units of their deviations."""
    leading: dict[int, Float[Array, " d"]]
    """By mode, those whose contribution to the logit varies most, the largest first: h @ vector is the contribution."""

    def of(self, h: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The contribution, but for a constant."""
        return h @ self.vector


def sentiment_mode(koopman: kann.Bilinear, weight: Float[Array, " d"]) -> SentimentMode:
    """The real mode, while the mean of all words is read, whose contribution to the logit varies most."""
    mean, gram = koopman.at("mean"), koopman.state_gram
    is_real = np.abs(np.imag(mean.eigenvalues)) < REAL_BELOW
    if not is_real.any():
        raise KannError("no mode of this operator is real; fit another number of coordinates")
    logit = mean.basis.T @ weight
    contributions = mean.right * (mean.left @ logit)  # (r, r), a column for each mode
    energy = _energies(contributions, gram)
    best = int(np.flatnonzero(is_real)[energy[is_real].argmax()])
    first = [mode.indices[0] for mode in mean.modes]  # of a conjugate pair one of the two
    spread = np.sqrt(_energies(mean.right, gram))
    return SentimentMode(
        eigenvalue=float(np.real(mean.eigenvalues[best])),
        fraction=float(energy[best] / (logit @ gram @ logit)),
        vector=mean.basis @ np.real(contributions[:, best]),
        gains=(np.real(mean.left[best]), np.real(mean.right[:, best])),
        modes=mean.basis @ (mean.right / spread)[:, first],
        leading=_leading(mean, contributions, gram),
    )


def _leading(
    koopman: kann.Koopman, contributions: Complex[Array, "r r"], gram: Float[Array, "r r"]
) -> dict[int, Float[Array, " d"]]:
    """The modes whose contribution to the logit varies most, with the vector that reads it off a state."""
    each = np.stack([np.real(contributions[:, mode.indices].sum(axis=1)) for mode in koopman.modes], axis=1)  # (r, m)
    order = np.argsort(-_energies(each, gram))[:LEADING_MODES]
    return {int(place): koopman.basis @ each[:, place] for place in order}


def _energies(columns: Shaped[Array, "r m"], gram: Float[Array, "r r"]) -> Float[Array, " m"]:
    """The energy of the states along each of some vectors."""
    return np.real(np.sum(columns.conj() * (gram @ columns), axis=0))


def measure_words(network: SentimentNetwork, corpus: Corpus, *, seed: int) -> WordMatrices:
    """Fit the operator, find its sentiment mode, and measure words and phrases in it and in the network."""
    if state_of(network) != "h":
        raise KannError("the contexts of words are states h alone; pass a network with a GRU or an RNN")
    vocabulary = corpus.vocabulary
    with evaluation_mode(network):
        recorded = record_for_stand_ins(network, training_reviews(network, corpus, seed=seed))
        operators = Operators.of(recorded)
        weight = Readout.of(network).weight[0]
        mode = sentiment_mode(operators.whole, weight)
        texts = [(word,) for word in SINGLE_WORDS] + list(PHRASES)
        numbers = {text: _numbers(vocabulary, text) for text in texts if _is_known(vocabulary, text)}
        contexts = states_before(network, corpus.test, list(numbers.values()), seed=seed)
        contexts = {text: contexts[ids] for text, ids in numbers.items() if len(contexts[ids]) >= FEWEST_CONTEXTS}
        after = vocabulary.number(NEXT_WORD)
        bench = Bench(
            network=network, operators=operators, words=recorded.words, mode=mode, weight=weight, next_word=after
        )
        return WordMatrices(
            eigenvalue=mode.eigenvalue,
            fraction=mode.fraction,
            contexts={" ".join(text): len(h) for text, h in contexts.items()},
            words={text[0]: bench.word(numbers[text], h) for text, h in contexts.items() if len(text) == 1},
            leading=tuple(mode.leading),
            courses={text[0]: bench.course(numbers[text], h) for text, h in contexts.items() if len(text) == 1},
            phrases={" ".join(text): bench.phrase(numbers[text], h) for text, h in contexts.items() if len(text) > 1},
            profiles=bench.profiles({numbers[text]: h for text, h in contexts.items() if text in PAPERS}),
        )


def _is_known(vocabulary: Vocabulary, text: tuple[str, ...]) -> bool:
    return all(vocabulary.tokenizer.token_to_id(word) is not None for word in text)


def _numbers(vocabulary: Vocabulary, text: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(vocabulary.number(word) for word in text)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operators:
    """The operator that words gate, the same without each group of training reviews, and one that words only push."""

    whole: kann.Bilinear
    without: tuple[kann.Bilinear, ...]
    driven: kann.Koopman

    @staticmethod
    def of(recorded: Recorded) -> "Operators":
        """Fit all of them on the coordinates of the first, and with its ridge."""
        states, rank = recorded.states, min(RANK, recorded.states.dim)
        whole = kann.fit(states, driven="bilinear", rank=rank, lift="squares")
        # Reviews are in the order of their lengths: every tenth one gives groups of the same lengths.
        group_of = np.arange(len(states.lengths)) % GROUPS
        without = []
        for group in progress(range(GROUPS), what="refits", total=GROUPS, unit="group"):
            part = states[group_of != group]
            without.append(kann.fit(part, driven="bilinear", basis=whole.basis, lift="squares", ridge=whole.ridge))
        return Operators(whole=whole, without=tuple(without), driven=kann.fit(states, driven=True, rank=rank))


def states_before(
    network: SentimentNetwork, reviews: Reviews, texts: Sequence[tuple[int, ...]], *, seed: int
) -> dict[tuple[int, ...], Float[Array, "n d"]]:
    """The network's states just before some words, in places of the reviews that are drawn at random."""
    rng, places = generator(seed, JUDGED), {}
    for ids in texts:
        found = find_text(reviews, ids)
        places[ids] = np.sort(found[rng.permutation(len(found))[:CONTEXTS]])
    every = np.unique(np.concatenate(list(places.values())))
    holder = np.searchsorted(reviews.starts, every, side="right") - 1
    held = np.unique(holder)
    found = {int(place): np.zeros(network.readout.in_features) for place in every}  # zero before the first word
    for batch in read_reviews(network, reviews.take(held)):
        h = as_numpy(batch.h)
        for row, review in enumerate(held[batch.reviews]):
            for place in every[(holder == review) & (every > reviews.starts[review])]:
                found[int(place)] = h[row, place - reviews.starts[review] - 1].astype(np.float64)
    return {ids: np.array([found[int(place)] for place in own]) for ids, own in places.items()}


def find_text(reviews: Reviews, ids: tuple[int, ...]) -> Int[Array, " n"]:
    """Where in ``reviews.words`` some words follow each other inside a review.

    >>> one = Reviews(words=np.array([5, 6, 5, 6]), lengths=np.array([3, 1]), positive=np.array([1, 0]))
    >>> find_text(one, (5, 6)).tolist()
    [0]
    """
    words, last = reviews.words, len(reviews.words) - len(ids) + 1
    hits = np.ones(max(last, 0), dtype=bool)
    for k, number in enumerate(ids):
        hits &= words[k : k + len(hits)] == number
    starts = np.flatnonzero(hits)
    review = np.searchsorted(reviews.starts, starts, side="right") - 1
    return starts[starts + len(ids) <= reviews.starts[review] + reviews.lengths[review]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bench:
    """A network and its operators, ready to read words from any state."""

    network: SentimentNetwork
    operators: Operators
    words: Float[Array, "v p"]
    mode: SentimentMode
    weight: Float[Array, " d"]
    """Of the readout."""
    next_word: int
    """What is read after a word whose course is followed."""

    def course(self, ids: tuple[int, ...], h: Float[Array, "n d"]) -> dict[str, WordCourse]:
        """What a word moves, and what is left when the next word has been read, by the operator and by the network.

        What the next word does by itself, in the same places, is taken off.
        """
        read = np.stack([self.weight, *self.mode.leading.values()])

        def effect(step: Step, h: Float[Array, "n d"]) -> Float[Array, " k"]:
            after_one = step(h, ids) - step(h, ())
            after_two = step(h, (*ids, self.next_word)) - step(h, (self.next_word,))
            return np.concatenate([read @ after.mean(axis=0) for after in (after_one, after_two)])

        return {
            "operator": _as_course(self._refitted(lambda koopman: effect(self._stepping(koopman), h))),
            "network": _as_course(self._regrouped(effect, h)),
        }

    def word(self, ids: tuple[int, ...], h: Float[Array, "n d"]) -> dict[str, WordEffect]:
        """What a word does: by its matrix, and by a line through what operator and network make of its contexts."""

        def by_line(step: Step, h: Float[Array, "n d"]) -> Float[Array, " 2"]:
            mean = self.operators.whole.mean @ self.mode.vector
            return np.polyfit(self.mode.of(step(h, ())) - mean, self.mode.of(step(h, ids)) - mean, 1)

        return {
            "matrix": WordEffect(*self._refitted(lambda koopman: self._matrix_effect(koopman, ids))),
            "operator": WordEffect(*self._refitted(lambda koopman: by_line(self._stepping(koopman), h))),
            "network": WordEffect(*self._regrouped(by_line, h)),
        }

    def phrase(self, ids: tuple[int, ...], h: Float[Array, "n d"]) -> dict[str, PhraseEffect]:
        """What words before the last one make of its push, by operators and by the network."""

        def effect(step: Step, h: Float[Array, "n d"]) -> Float[Array, " 5"]:
            states = [step(h, part) for part in ((), ids[-1:], ids[:-1], ids)]
            start, alone, before, whole = (np.mean(state @ self.weight) for state in states)
            mode = [np.mean(self.mode.of(state)) for state in states]
            lasting = (mode[3] - mode[2]) / (mode[1] - mode[0])
            factor = (whole - before) / (alone - start)
            return np.array([whole - start, alone - start, whole - before, factor, lasting])

        driven = effect(self._stepping(self.operators.driven), h)
        return {
            "operator": PhraseEffect(*self._refitted(lambda koopman: effect(self._stepping(koopman), h))),
            "driven": PhraseEffect(*(Interval(value=float(value), error=0.0) for value in driven)),
            "network": PhraseEffect(*self._regrouped(effect, h)),
        }

    def profiles(self, contexts: dict[tuple[int, ...], Float[Array, "n d"]]) -> Float[Array, "5 m"]:
        """How far phrases, their last words, and the sum of what their words do alone move each mode of the network."""
        moved: dict[str, list[Array]] = {name: [] for name in PROFILES}
        for ids, h in contexts.items():
            alone = [self._read(h, (word,)) - h for word in ids]
            length = PROFILES[len(ids) - 1]
            moved["one"].append(alone[-1])
            moved[length].append(self._read(h, ids) - h)
            moved[f"{length}_added"].append(np.sum(alone, axis=0))
        rows = np.full((len(PROFILES), self.mode.modes.shape[1]), np.nan)
        for row, found in zip(rows, moved.values(), strict=True):
            if found:
                row[:] = np.abs(np.concatenate(found) @ self.mode.modes).mean(axis=0)
        return rows

    def _matrix_effect(self, koopman: kann.Bilinear, ids: tuple[int, ...]) -> Float[Array, " 2"]:
        """What a word's matrix keeps of the mode, and what its push adds to it."""
        at, (left, right) = koopman.at(self.words[ids[0]]), self.mode.gains
        offset = at.offset + (koopman.mean - self.operators.whole.mean) @ koopman.basis
        return np.array([left @ at.matrix @ right, offset @ (koopman.basis.T @ self.mode.vector)])

    def _stepping(self, koopman: kann.Bilinear | kann.Koopman) -> Step:
        """An operator that reads words from states; no words leave what it knows of the state."""

        def step(h: Float[Array, "n d"], ids: tuple[int, ...]) -> Float[Array, "n d"]:
            if not ids:
                return np.asarray(koopman.decode(koopman.encode(h)))
            inputs = np.broadcast_to(self.words[list(ids)], (len(h), len(ids), self.words.shape[1]))
            return np.asarray(koopman.predict(h, len(ids), inputs=np.ascontiguousarray(inputs)))

        return step

    @torch.no_grad()
    def _read(self, h: Float[Array, "n d"], ids: tuple[int, ...]) -> Float[Array, "n d"]:
        """The network's states after it read words from some states."""
        if not ids:
            return h
        device = self.network.readout.weight.device
        start = torch.as_tensor(h, dtype=torch.float32, device=device)[None]
        words = torch.tensor(ids, device=device).expand(len(h), -1)
        return as_numpy(self.network.recurrent(self.network.embedding(words), start)[0][:, -1]).astype(np.float64)

    def _refitted(self, estimate: Callable[[kann.Bilinear], Array]) -> list[Interval]:
        """Numbers of the operator, with intervals over the groups of training reviews."""
        return jackknife(estimate(self.operators.whole), [estimate(part) for part in self.operators.without])

    def _regrouped(self, estimate: Callable[[Step, Array], Array], h: Float[Array, "n d"]) -> list[Interval]:
        """Numbers of the network, with intervals over groups of contexts."""
        groups = [np.arange(len(h)) % GROUPS != group for group in range(GROUPS)]
        return jackknife(estimate(self._read, h), [estimate(self._read, h[chosen]) for chosen in groups])


def _as_course(found: list[Interval]) -> WordCourse:
    """Numbers after one word and then after two, the logit's before those of modes."""
    half = len(found) // 2
    pairs = tuple(zip(found[:half], found[half:], strict=True))
    return WordCourse(logit=pairs[0], modes=pairs[1:])


def jackknife(whole: Float[Array, " k"], without: Sequence[Float[Array, " k"]]) -> list[Interval]:
    """Numbers with standard errors, from the same numbers without each of several groups.

    >>> jackknife(np.array([2.0]), [np.array([1.0]), np.array([3.0])])
    [Interval(value=2.0, error=1.0)]
    """
    parts = np.stack(without)
    errors = np.sqrt((len(parts) - 1) * parts.var(axis=0))
    return [Interval(value=float(value), error=float(error)) for value, error in zip(whole, errors, strict=True)]
