"""Statistics of the whole test set, from one pass over its 25,000 reviews on the device where the network is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import kann
from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.progress import progress
from kann.typing import Array, Float, Int
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.corpus import Reviews
from kann_experiments.sentiment.groups import Groups
from kann_experiments.sentiment.highlighting import (
    WORD_KINDS,
    WordCounts,
    change_by_word,
    highlighting_vectors,
    marked_words,
)
from kann_experiments.sentiment.operators import Operators, contribution_vectors
from kann_experiments.sentiment.reading import ReadBatch, read_reviews
from kann_experiments.sentiment.word_sentiment import WordSentiment

COPYING = "copying"
"""The name of the baseline that copies the previous state, beside those of the operators."""

FOLLOWED_MODES = 12
"""How many modes are followed word by word, those whose contribution to the last logit varies most."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PassMatrices:
    """Everything that the pass multiplies states with, in float32 on the network's device."""

    steps: dict[str, tuple[Float[Tensor, "d d"], Float[Tensor, "v d"] | None]]
    """By operator: the matrix of one step and, if it is driven, what each word adds."""
    highlighting: Float[Tensor, "d k2"]
    """Real parts, then imaginary parts, of the eigenvectors that highlight words."""
    highlighting_names: tuple[tuple[str, str], ...]
    """Their names: see `highlighting_vectors`."""
    modes: tuple[int, ...]
    """Modes of the operator without padding that are followed word by word."""
    contributions: Float[Tensor, "d k"]
    """From a state to the contributions of these modes to the logit."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PassStatistics:
    """What one pass over all test reviews gave."""

    logits: Float[Array, " s"]
    """The network's logit of each review."""
    last: Float[Array, "s d"]
    """The state after the last word."""
    before: Float[Array, "s d"]
    """The state one word earlier; of a review of one word the last one again."""
    errors: dict[str, float]
    """Relative error of one step over all words, by operator; ``copying`` is that of copying the previous state."""
    unchanged: dict[str, float]
    """Fraction of all words after which the logit has the same sign if the state is predicted, by the same names."""
    marked: dict[str, WordCounts]
    """Highlighted words, by kind: see `WORD_KINDS`."""
    modes: tuple[int, ...]
    """Modes of the operator without padding that were followed word by word."""
    mean_change: Float[Array, "v k"]
    """By how much a word changes the contribution of each of these modes to the logit, on average."""
    counts: Int[Array, " v"]
    """How often each word was seen."""


def prepare_matrices(
    operators: Operators,
    groups: dict[str, Groups],
    sentiment: WordSentiment,
    modes: Sequence[int],
    embedding: Float[Tensor, "v p"],
) -> PassMatrices:
    """Turn operators, groups of modes and followed modes into matrices."""

    def on_device(values: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32, device=embedding.device)

    words = as_numpy(embedding).astype(np.float64)
    steps: dict[str, tuple[Tensor, Tensor | None]] = {
        "padded": (on_device(_one_step(operators.padded)), None),
        "unpadded": (on_device(_one_step(operators.unpadded)), None),
        "driven": (on_device(_one_step(operators.driven)), on_device(_added_by_words(operators.driven, words))),
    }
    names, vectors = highlighting_vectors(operators, groups, sentiment)
    return PassMatrices(
        steps=steps,
        highlighting=on_device(np.concatenate([np.real(vectors), np.imag(vectors)], axis=1)),
        highlighting_names=names,
        modes=tuple(modes),
        contributions=on_device(contribution_vectors(operators.unpadded, operators.readout)[:, list(modes)]),
    )


def _one_step(koopman: kann.Koopman) -> Float[Array, "d d"]:
    """B C Bᵀ: one step of an operator whose basis has no mean, from state to state."""
    return koopman.basis @ koopman.matrix @ koopman.basis.T


def _added_by_words(koopman: kann.Koopman, embedding: Float[Array, "v p"]) -> Float[Array, "v d"]:
    """What reading each word adds to the state that a driven operator predicts."""
    if koopman.drive is None or koopman.offset is None:
        raise KannError("this operator reads no words; fit it with driven=True")
    return (embedding @ koopman.drive + koopman.offset) @ koopman.basis.T


@torch.no_grad()
def pass_over(
    network: SentimentNetwork, reviews: Reviews, matrices: PassMatrices, sentiment: WordSentiment
) -> PassStatistics:
    """Read every review once and keep statistics alone: memory does not grow with the number of words."""
    count, units = len(reviews), network.readout.in_features
    logits = np.empty(count)
    last, before = (np.empty((count, units), dtype=np.float32) for _ in range(2))
    # Sums over all batches; they are divided by their counts at the end.
    sums, pairs = {name: np.zeros(2) for name in (COPYING, *matrices.steps)}, 0
    marked = {kind: WordCounts.zeros(count) for kind in WORD_KINDS}
    change, seen = np.zeros((network.words, len(matrices.modes))), np.zeros(network.words, np.int64)
    for batch in progress(read_reviews(network, reviews), what="test reviews", unit="batch"):
        ends = batch.state_at(batch.lengths - 1)  # (b, d)
        last[batch.reviews] = as_numpy(ends)
        # A review of one word has no state before its last.
        before[batch.reviews] = as_numpy(batch.state_at((batch.lengths - 2).clamp(min=0)))
        logits[batch.reviews] = as_numpy(network.readout(ends)[:, 0])
        pairs += int(batch.is_word[:, 1:].sum())
        for name, added in _step_sums(network, batch, matrices):
            sums[name] += added
        contributions = batch.h @ matrices.contributions  # (b, t, k)
        magnitudes = _magnitudes(batch.h @ matrices.highlighting)
        total = contributions.sum(dim=-1)
        names = matrices.highlighting_names
        for kind, words, marks in marked_words(batch, names, magnitudes, total, sentiment):
            marked[kind].add(batch, words, marks)
        _add_changes(change, seen, batch, contributions)
    return PassStatistics(
        logits=logits,
        last=last,
        before=before,
        errors={name: float(error / max(1, pairs)) for name, (error, _) in sums.items()},
        unchanged={name: float(same / max(1, pairs)) for name, (_, same) in sums.items()},
        marked=marked,
        modes=matrices.modes,
        mean_change=change / np.maximum(seen, 1)[:, None],
        counts=seen,
    )


def _step_sums(
    network: SentimentNetwork, batch: ReadBatch, matrices: PassMatrices
) -> Iterator[tuple[str, tuple[float, float]]]:
    """For copying and each operator: sum of |predicted − true|² / |true|² over all words, and words of unchanged sign.

    These are what `kann.relative_error` and `kann.agreement` average, and a test compares them. The library encodes,
    steps and decodes in float64, which on a CPU takes three times as long as the one float32 product here (256 units,
    rank 255).
    """
    inside = batch.is_word[:, 1:]
    x, y, words = batch.h[:, :-1][inside], batch.h[:, 1:][inside], batch.ids[:, 1:][inside]  # (n, d), (n, d), (n,)
    size, positive = y.square().sum(dim=1), network.readout(y)[:, 0] > 0
    for name, predicted in _predictions(x, words, matrices):
        error = ((predicted - y).square().sum(dim=1) / size).double().sum()
        same = (network.readout(predicted)[:, 0] > 0) == positive
        yield name, (float(error), float(same.sum()))


def _predictions(
    x: Float[Tensor, "n d"], words: Int[Tensor, " n"], matrices: PassMatrices
) -> Iterator[tuple[str, Float[Tensor, "n d"]]]:
    """The states that follow on x while these words are read: as copies, and as each operator predicts them."""
    yield COPYING, x
    for name, (matrix, added_by_words) in matrices.steps.items():
        predicted = x @ matrix
        if added_by_words is not None:
            predicted += added_by_words[words]
        yield name, predicted


def _magnitudes(parts: Float[Tensor, "b t k2"]) -> Float[Tensor, "b t k"]:
    """Moduli of complex numbers whose real parts come before all imaginary ones."""
    real, imaginary = parts.chunk(2, dim=-1)
    return torch.hypot(real, imaginary)


def _add_changes(change: Array, seen: Array, batch: ReadBatch, contributions: Float[Tensor, "b t k"]) -> None:
    """Add up by how much each word changes the contributions of the followed modes, and how often it is seen."""
    changes = as_numpy(change_by_word(contributions)[batch.is_word].double())  # (n, k)
    words = as_numpy(batch.ids[batch.is_word])  # (n,)
    seen += np.bincount(words, minlength=len(seen))
    # One bincount for each mode is faster than numpy's add.at for all of them.
    for k in range(changes.shape[1]):
        change[:, k] += np.bincount(words, weights=changes[:, k], minlength=len(seen))
