"""Which words are positive, by counting; and how modes answer to them, over every word of every review."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kann
from kann.backends.arrays import as_numpy
from kann.paper.sentiment.corpus import Reviews, by_length
from kann.paper.sentiment.operators import LEADING, Groups, Operators, mode_columns
from kann.progress import progress
from kann.typing import Array, Float, Int
from kann.zoo.sentiment_network import SentimentNetwork

RARE = 50
"""A word in fewer training reviews than this has no sentiment."""

FEELING = np.log(2.0)
"""A word is positive if it is in twice as many positive reviews as negative ones, and negative the other way round."""

HIGH = 0.5
"""The paper counts a word as highlighted if its magnitude, scaled to [0, 1], is at least this."""

SHARES = 12
"""How many modes are followed word by word, those whose share in the last logit varies most."""

OFTEN = 100
"""Words seen less often than this in the test set are not ranked."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Feelings:
    """A bag-of-words classifier: naive Bayes on which words a review holds."""

    log_odds: Float[Array, " v"]
    """Of each word, how much more often it is in positive reviews than in negative ones."""
    seen: Int[Array, " v"]
    """Training reviews that hold it."""

    @property
    def positive(self) -> Array:
        """Which words are positive."""
        return (self.log_odds >= FEELING) & (self.seen >= RARE)

    @property
    def negative(self) -> Array:
        """Which words are negative."""
        return (self.log_odds <= -FEELING) & (self.seen >= RARE)

    def classify(self, reviews: Reviews) -> Float[Array, " s"]:
        """Log odds that each review is positive, by its distinct words."""
        places, words = _distinct(reviews)
        return np.bincount(places, weights=self.log_odds[words], minlength=len(reviews))


def count_feelings(reviews: Reviews, *, words: int) -> Feelings:
    """Count in how many positive and negative reviews each word is. Padding and unknown words say nothing."""
    places, numbers = _distinct(reviews)
    counts = [np.bincount(numbers[reviews.positive[places] == side], minlength=words) for side in (0, 1)]
    shares = [(count + 1) / (np.sum(reviews.positive == side) + 2) for side, count in enumerate(counts)]
    log_odds = np.log(shares[1] / shares[0])
    log_odds[:2] = 0.0
    return Feelings(log_odds=log_odds, seen=counts[0] + counts[1])


def _distinct(reviews: Reviews) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """Pairs of a review and a word that it holds, each once."""
    places = np.repeat(np.arange(len(reviews)), reviews.lengths)
    pairs = np.unique(places * 2**32 + reviews.words.astype(np.int64))
    return pairs >> 32, pairs & (2**32 - 1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Marks:
    """How many words of some kind each review has, and how many of them are marked."""

    of: Int[Array, " s"]
    marked: Int[Array, " s"]

    @property
    def share(self) -> float:
        """Mean over the reviews that have such words of the share that is marked."""
        some = self.of > 0
        return float(np.mean(self.marked[some] / self.of[some])) if some.any() else np.nan

    def by_batch(self, size: int) -> Float[Array, " b"]:
        """The paper's a(H): the marked share of all such words in each batch of so many reviews, drawn at random."""
        order = np.random.default_rng(0).permutation(len(self.of))
        cuts = [order[i : i + size] for i in range(0, len(order), size)]
        return np.array([self.marked[cut].sum() / max(1, self.of[cut].sum()) for cut in cuts])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Whole:
    """Everything that one pass over all test reviews gave."""

    logits: Float[Array, " s"]
    """The network's logit of each review."""
    last: Float[Array, "s d"]
    """Its last state."""
    before: Float[Array, "s d"]
    """The state before; of a review of one word the last one again."""
    errors: dict[str, float]
    """Relative error of one step over all words, by operator."""
    marks: dict[str, Marks]
    """Highlighted words, by kind: see `WORD_KINDS`."""
    modes: tuple[int, ...]
    """Modes of the operator without padding that were followed word by word."""
    moved: Float[Array, "v k"]
    """By how much a word changes the share of each mode in the logit, on average."""
    counts: Int[Array, " v"]
    """How often each word was seen."""


WORD_KINDS = (
    "positive",  # positive words that the positive mode highlights: the paper's a_p
    "negative",  # negative words that the negative mode highlights: the paper's a_n
    "positive_any",  # all words that the positive mode highlights, to compare with
    "negative_any",
    "positive_best",  # the same with that one of the leading modes that highlights most such words of the paper's batch
    "positive_any_best",
    "negative_best",
    "negative_any_best",
    "positive_unpadded",  # the same with the operator that saw no padding
    "negative_unpadded",
    "positive_any_unpadded",
    "negative_any_unpadded",
    "positive_up",  # positive words at which the followed modes' share in the logit rises
    "negative_down",
    "any_up",
    "any_down",
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Lens:
    """What is asked of the states, as matrices that are multiplied with them."""

    steps: dict[str, tuple[Tensor, Tensor | None]]
    """By operator: the matrix of one step and, if it is driven, what each word adds."""
    columns: Tensor
    """(d, 2k) real and imaginary parts of eigenvectors whose magnitudes are asked for."""
    kinds: tuple[tuple[str, str], ...]
    """Of each eigenvector, the words that are looked at and a name: see `WORD_KINDS`."""
    shares: Tensor
    """(d, k) from a state to the shares of the followed modes in the logit."""


def look_at(
    operators: Operators, groups: dict[str, Groups], feelings: Feelings, modes: Sequence[int], embedding: Tensor
) -> Lens:
    """Prepare what `whole` asks of the states."""
    columns, kinds = [], []
    for side in ("positive", "negative"):
        for tail, name, mode in (
            ("", "padded", getattr(groups["padded"], side)[0]),
            ("_best", "padded", best_mode(operators, getattr(feelings, side))),
            ("_unpadded", "unpadded", getattr(groups["unpadded"], side)[0]),
        ):
            koopman = getattr(operators, name)
            columns.append(koopman.basis @ koopman.right[:, mode_columns(koopman, [mode])[0]])
            kinds.append((side, tail))
    stacked = np.stack(columns, axis=1)

    def single(values: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32, device=embedding.device)

    steps: dict[str, tuple[Tensor, Tensor | None]] = {
        name: (single(_step(getattr(operators, name))), None) for name in ("padded", "unpadded")
    }
    driven: Any = operators.driven
    pushes = (as_numpy(embedding).astype(np.float64) @ driven.drive + driven.offset) @ driven.basis.T
    steps["driven"] = single(_step(driven)), single(pushes)
    return Lens(
        steps=steps,
        columns=single(np.concatenate([np.real(stacked), np.imag(stacked)], axis=1)),
        kinds=tuple(kinds),
        shares=single(share_vectors(operators.unpadded, operators.readout.weight)[:, list(modes)]),
    )


def _step(koopman: kann.Koopman) -> Float[Array, "d d"]:
    return koopman.basis @ koopman.matrix @ koopman.basis.T


def share_vectors(koopman: kann.Koopman, weight: Float[Array, "1 d"]) -> Float[Array, "d m"]:
    """Vectors whose products with a state are the shares of all modes in the logit, those of `kann.contributions`."""
    gains = koopman.left @ (koopman.basis.T @ weight[0])
    vectors = [
        ((koopman.basis @ koopman.right[:, list(mode.indices)]) @ gains[list(mode.indices)]).real
        for mode in koopman.modes
    ]
    return np.stack(vectors, axis=1)


def states_of(network: SentimentNetwork, reviews: Reviews) -> Iterator[tuple[Int[Array, " b"], Tensor, Tensor, Tensor]]:
    """Which reviews, their words (b, t), their lengths and the states (b, t, d) after each word, batch by batch."""
    device = network.readout.weight.device
    for chosen in by_length(reviews.lengths):
        ids, lengths = (each.to(device) for each in reviews.batch(chosen))
        with torch.no_grad():
            yield chosen, ids, lengths, network.states(ids)


def at(h: Tensor, places: Tensor) -> Tensor:
    """One state of each review."""
    return h[torch.arange(len(h), device=h.device), places]


def best_mode(operators: Operators, words: Array) -> int:
    """Of the leading modes the one that highlights the largest share of some words in the paper's batch."""
    koopman, lengths = operators.padded, operators.lengths
    real = torch.arange(operators.ids.shape[1]) < torch.as_tensor(lengths)[:, None]
    asked = torch.as_tensor(words)[operators.ids] & real
    leading = range(min(LEADING, len(koopman.modes)))
    h = operators.states.padded()
    shares = []
    for column in mode_columns(koopman, leading):
        size = torch.as_tensor(np.abs(h @ (koopman.basis @ koopman.right[:, column])))
        shares.append(float((asked & (scaled(size, real) >= HIGH)).sum()))
    return int(np.argmax(shares))


@torch.no_grad()
def whole(network: SentimentNetwork, reviews: Reviews, lens: Lens, feelings: Feelings, modes: Sequence[int]) -> Whole:
    """Read every review once and keep statistics alone: memory does not grow with the number of reviews."""
    count, units = len(reviews), network.readout.in_features
    logits = np.empty(count)
    last, before = (np.empty((count, units), dtype=np.float32) for _ in range(2))
    errors = dict.fromkeys(lens.steps, 0.0)
    marks = {kind: Marks(of=np.zeros(count, np.int64), marked=np.zeros(count, np.int64)) for kind in WORD_KINDS}
    moved, seen = np.zeros((network.words, len(modes))), np.zeros(network.words, np.int64)
    pairs = 0
    for chosen, ids, lengths, h in progress(states_of(network, reviews), what="test reviews", unit="batch"):
        real = torch.arange(ids.shape[1], device=h.device) < lengths[:, None]
        last[chosen] = as_numpy(at(h, lengths - 1))
        before[chosen] = as_numpy(at(h, (lengths - 2).clamp(min=0)))
        logits[chosen] = as_numpy(network.readout(at(h, lengths - 1))[:, 0])
        pairs += int(real[:, 1:].sum())
        for name, total in _missed(h, ids, real, lens).items():
            errors[name] += total
        _mark(marks, chosen, h, ids, real, lens, feelings)
        _follow(moved, seen, h, ids, real, lens)
    return Whole(
        logits=logits,
        last=last,
        before=before,
        errors={name: total / max(1, pairs) for name, total in errors.items()},
        marks=marks,
        modes=tuple(modes),
        moved=moved / np.maximum(seen, 1)[:, None],
        counts=seen,
    )


def _missed(h: Tensor, ids: Tensor, real: Tensor, lens: Lens) -> dict[str, float]:
    """Sums over all words of |predicted − true|² / |true|², by operator."""
    inside = real[:, 1:]
    x, y, words = h[:, :-1][inside], h[:, 1:][inside], ids[:, 1:][inside]
    size = y.square().sum(dim=1)
    sums = {}
    for name, (matrix, pushes) in lens.steps.items():
        missed = x @ matrix - y
        if pushes is not None:
            missed += pushes[words]
        sums[name] = float((missed.square().sum(dim=1) / size).double().sum())
    return sums


def scaled(values: Tensor, real: Tensor) -> Tensor:
    """Magnitudes (b, t) of each review brought to [0, 1] by its smallest and largest; 0 where there is padding.

    The paper says that its magnitudes are in [0, 1], and not how they came there.
    """
    low = values.masked_fill(~real, torch.inf).amin(dim=1, keepdim=True)
    high = values.masked_fill(~real, -torch.inf).amax(dim=1, keepdim=True)
    return ((values - low) / (high - low).clamp(min=1e-12)).masked_fill(~real, 0.0)


def _mark(
    marks: dict[str, Marks],
    chosen: Int[Array, " b"],
    h: Tensor,
    ids: Tensor,
    real: Tensor,
    lens: Lens,
    feelings: Feelings,
) -> None:
    """Count the words that are highlighted, of each kind."""
    kinds = (torch.as_tensor(kind, device=ids.device) for kind in (feelings.positive, feelings.negative))
    liked, disliked = (kind[ids] & real for kind in kinds)
    parts = h @ lens.columns
    half = parts.shape[-1] // 2
    magnitudes = torch.hypot(parts[..., :half], parts[..., half:])
    for place, (side, tail) in enumerate(lens.kinds):
        high = scaled(magnitudes[..., place], real) >= HIGH
        _count(marks, f"{side}{tail}", chosen, liked if side == "positive" else disliked, high)
        _count(marks, f"{side}_any{tail}", chosen, real, high)
    total = (h @ lens.shares).sum(dim=-1)
    change = torch.diff(total, dim=1, prepend=torch.zeros_like(total[:, :1]))
    for kind, words, turned in (
        ("positive_up", liked, change > 0),
        ("negative_down", disliked, change < 0),
        ("any_up", real, change > 0),
        ("any_down", real, change < 0),
    ):
        _count(marks, kind, chosen, words, turned)


def _count(marks: dict[str, Marks], kind: str, chosen: Array, words: Tensor, turned: Tensor) -> None:
    marks[kind].of[chosen] += as_numpy(words.sum(dim=1))
    marks[kind].marked[chosen] += as_numpy((words & turned).sum(dim=1))


def _follow(moved: Array, seen: Array, h: Tensor, ids: Tensor, real: Tensor, lens: Lens) -> None:
    """Add up by how much each word changes the shares of the followed modes in the logit. At first they are zero."""
    shares = h @ lens.shares
    changes = torch.diff(shares, dim=1, prepend=torch.zeros_like(shares[:, :1]))[real].double()
    changes, words = as_numpy(changes), as_numpy(ids[real])
    seen += np.bincount(words, minlength=len(seen))
    for k in range(changes.shape[1]):
        moved[:, k] += np.bincount(words, weights=changes[:, k], minlength=len(seen))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Movers:
    """The words that move a mode's share in the logit most."""

    mode: int
    up: tuple[tuple[str, float], ...]
    """Words that raise it, with the mean change."""
    down: tuple[tuple[str, float], ...]


def movers(seen: Whole, words: tuple[str, ...], *, count: int = 12) -> tuple[Movers, ...]:
    """The words that move each followed mode most, of those that are seen often enough."""
    known = np.flatnonzero(seen.counts >= OFTEN)
    known = known[known > 1]  # neither padding nor the unknown word
    ranked = []
    for k, mode in enumerate(seen.modes):
        order = known[np.argsort(seen.moved[known, k], kind="stable")]
        down, up = order[:count], order[::-1][:count]
        ranked.append(
            Movers(
                mode=mode,
                up=tuple((words[i], float(seen.moved[i, k])) for i in up.tolist()),
                down=tuple((words[i], float(seen.moved[i, k])) for i in down.tolist()),
            )
        )
    return tuple(ranked)


def ends_only(network: SentimentNetwork, reviews: Reviews) -> Float[Array, "s d"]:
    """The last state of every review."""
    last = np.empty((len(reviews), network.readout.in_features))
    for chosen, _, lengths, h in states_of(network, reviews):
        last[chosen] = as_numpy(at(h, lengths - 1))
    return last
