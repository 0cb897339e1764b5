"""How many decisions turn over if the words that push them most are deleted, by several ways to say which these are.

A deleted word is taken out of the sequence, and the shorter review is read anew by the untouched network.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

import kann
from kann.progress import progress
from kann.typing import Array, Float, Int
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.corpus import Reviews, batches_by_length
from kann_experiments.sentiment.live.attributions import captum_attributions
from kann_experiments.sentiment.live.bench import LAYER, Bench
from kann_experiments.sentiment.operators import on_host
from kann_experiments.sentiment.reading import read_last_states
from kann_experiments.sentiment.task import DELETED
from kann_experiments.training import generator

WORDS_REVIEWS = 2000
"""Test reviews whose words are deleted: flips are then known to 1 %."""

WORDS_REVIEWS_ON_CPU = 200
"""The same without a GPU, where integrated gradients of one review take a second."""

DELETED_FRACTION = 0.1
"""Fraction of the words of a review that is deleted, rounded up; one word is always left."""

TOKENS = 2**14
"""Words, padding included, that are attributed together: gradients keep every step in memory."""

Attribute = Callable[[Int[Tensor, "b t"], Int[Tensor, " b"]], Float[Array, "b t"]]
"""From numbers of words and lengths to how much each word pushes the logit up; what it says of padding is not used."""


def flipped_by_deletion(
    bench: Bench, direction: Float[Array, " d"], *, seed: int, others: Mapping[str, Attribute] | None = None
) -> dict[str, float]:
    """The fraction of decisions that deleting words turns over, by the name of the way in which words were chosen.

    ``direction`` is that of the coordinate that the network was held on. ``others`` are ways besides the coordinate,
    the logit and chance; without them Captum's, if it is installed.
    """
    network, count = bench.network, WORDS_REVIEWS
    if network.readout.weight.device.type == "cpu":
        count = WORDS_REVIEWS_ON_CPU
    reviews = bench.judged.take(generator(seed, DELETED).permutation(len(bench.judged))[:count])
    logit = network.readout.weight.detach().cpu().double().numpy()[0]
    logit = np.pad(logit, (0, bench.spread.dim - len(logit)))
    # A coordinate has no sign of its own: it is to rise where the logit does, over the recorded states.
    rises = np.sign(direction @ bench.spread.covariance @ logit)
    if others is None:
        others = captum_attributions(network)
    ways = {
        "mode": along(bench, rises * direction),
        "logit": along(bench, logit),
        "random": _at_random(generator(seed, DELETED, 1)),
        **others,
    }
    own = _decisions(network, reviews)
    flips = {}
    for name in progress(ways, what="deleted words", total=len(ways), unit="way"):
        shorter = without_pushing(reviews, pushes_of(network, reviews, ways[name]), own)
        flips[name] = float(np.mean(_decisions(network, shorter) != own))
    return flips


def along(bench: Bench, direction: Float[Array, " d"]) -> Attribute:
    """How much each word moves the state along a direction, while the untouched network reads."""

    def attribute(ids: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Array, "b t"]:
        words = [row[:length] for row, length in zip(ids.cpu(), lengths.tolist(), strict=True)]
        states = kann.record(
            bench.network, words, layer=LAYER, state=bench.state, batch_size=len(words), progress=False
        )
        h = on_host(states).padded()  # (b, t, d)
        return np.diff(h @ direction, axis=1, prepend=0.0)  # the network starts from the state 0

    return attribute


def _at_random(rng: np.random.Generator) -> Attribute:
    return lambda ids, _: rng.normal(size=tuple(ids.shape))


def pushes_of(network: SentimentNetwork, reviews: Reviews, attribute: Attribute) -> list[Float[Array, " _"]]:
    """How much each word of each review pushes the logit up."""
    device = network.readout.weight.device
    pushes: list[Array] = [np.empty(0)] * len(reviews)
    for chosen in batches_by_length(reviews.lengths, tokens=TOKENS):
        ids, lengths = (each.to(device) for each in reviews.batch(chosen))
        for i, row in zip(chosen, attribute(ids, lengths), strict=True):
            pushes[i] = np.asarray(row[: reviews.lengths[i]], dtype=np.float64)
    return pushes


def without_pushing(reviews: Reviews, pushes: list[Float[Array, " _"]], positive: Array) -> Reviews:
    """The reviews without the words that push most toward the decision, True for a positive one.

    >>> one = Reviews(words=np.array([5, 6, 7, 8]), lengths=np.array([4]), positive=np.array([1]))
    >>> without_pushing(one, [np.array([0.0, 2.0, -3.0, 1.0])], np.array([True])).words.tolist()
    [5, 7, 8]
    """
    left = []
    for i, push in enumerate(pushes):
        toward = push
        if not positive[i]:
            toward = -push
        count = min(int(np.ceil(DELETED_FRACTION * len(push))), len(push) - 1)
        deleted = np.argsort(-toward, kind="stable")[:count]
        left.append(np.delete(reviews[i], deleted))
    return Reviews(
        words=np.concatenate(left), lengths=np.array([len(words) for words in left]), positive=reviews.positive
    )


def _decisions(network: SentimentNetwork, reviews: Reviews) -> Array:
    """Which reviews the untouched network calls positive."""
    last = read_last_states(network, reviews)
    with torch.no_grad():
        logits = network.readout(torch.as_tensor(last, dtype=torch.float32, device=network.readout.weight.device))
    return logits[:, 0].cpu().numpy() > 0
