"""What a network that judges reviews does: every number and statistic, as one frozen `Study`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

import kann
from kann.backends.arrays import as_numpy
from kann.paper.results import Quantity
from kann.paper.sentiment.comparisons import Path, distance, other_bases, shuffled_paths
from kann.paper.sentiment.corpus import Corpus
from kann.paper.sentiment.ngrams import Phrases, study_phrases
from kann.paper.sentiment.operators import (
    BATCH,
    Groups,
    Operators,
    Readout,
    ends,
    fit_operators,
    fitted_reviews,
    group_modes,
    slow,
)
from kann.paper.sentiment.surrogate import Surrogates, surrogates
from kann.paper.sentiment.task import Config, accuracy, split
from kann.paper.sentiment.words import (
    SHARES,
    Feelings,
    Movers,
    Whole,
    count_feelings,
    ends_only,
    look_at,
    movers,
    share_vectors,
    whole,
)
from kann.typing import Array, Float, Int
from kann.zoo.sentiment_network import SentimentNetwork

SMALL = 16
"""The largest rank of a linear system that is called small."""

DECIDING = 20
"""So many modes are tried together, the most important first."""

TRUSTED = 0.1
"""A residual up to which an eigenvalue is the network's own and not an artefact of the finite basis."""

QUANTITIES = (
    Quantity(key="accuracy_train", what="accuracy, training", format="percent"),
    Quantity(key="accuracy_validation", what="accuracy, validation", format="percent"),
    Quantity(key="accuracy_test", what="accuracy, test", format="percent"),
    Quantity(key="accuracy_words", what="    of the bag of words", format="percent"),
    Quantity(key="slow_eigenvalues", what="eigenvalues of modulus above .99"),
    Quantity(key="modulus_1", what="    modulus of the first"),
    Quantity(key="modulus_2", what="    of the second"),
    Quantity(key="modulus_3", what="    of the third"),
    Quantity(key="modulus_4", what="    of the fourth"),
    Quantity(key="trusted", what="    eigenvalues with a residual up to 0.1"),
    Quantity(key="relative_error", what="relative error of one step, padded steps"),
    Quantity(key="relative_error_real", what="    words alone, same operator"),
    Quantity(key="relative_error_padding", what="    padding alone, same operator"),
    Quantity(key="padding", what="    share of the padded steps that is padding", format="percent"),
    Quantity(key="relative_error_whole", what="    all words of the test set, fitted without padding"),
    Quantity(key="relative_error_driven", what="    all words of the test set, driven by the words"),
    Quantity(key="agreement", what="agreement over the whole test set", format="percent"),
    Quantity(key="agreement_unpadded", what="    fitted without padding", format="percent"),
    Quantity(
        key="groups_split_sentiment", what="reviews where one group reads negative, one positive", format="percent"
    ),
    Quantity(key="sentiment_kept", what="reviews whose sign the padding leaves as it was", format="percent"),
    Quantity(key="slow_unpadded", what="eigenvalues above .99, fitted without padding"),
    Quantity(key="padding_distance", what="    distance of the leading four from those with padding"),
    Quantity(key="positive_words", what="positive words that are highlighted, a_p", format="percent"),
    Quantity(key="positive_any", what="    any word, to compare", format="percent"),
    Quantity(key="negative_words", what="negative words that are highlighted, a_n", format="percent"),
    Quantity(key="negative_any", what="    any word, to compare", format="percent"),
    Quantity(key="positive_best", what="a_p of the best of the leading modes, chosen on the batch", format="percent"),
    Quantity(key="positive_any_best", what="    any word, to compare", format="percent"),
    Quantity(key="negative_best", what="a_n of the best of the leading modes, chosen on the batch", format="percent"),
    Quantity(key="negative_any_best", what="    any word, to compare", format="percent"),
    Quantity(key="positive_unpadded", what="a_p, fitted without padding", format="percent"),
    Quantity(key="positive_any_unpadded", what="    any word, to compare", format="percent"),
    Quantity(key="negative_unpadded", what="a_n, fitted without padding", format="percent"),
    Quantity(key="negative_any_unpadded", what="    any word, to compare", format="percent"),
    Quantity(key="positive_up", what="positive words that raise the logit (signed)", format="percent"),
    Quantity(key="any_up", what="    any word, to compare", format="percent"),
    Quantity(key="negative_down", what="negative words that lower the logit (signed)", format="percent"),
    Quantity(key="any_down", what="    any word, to compare", format="percent"),
    Quantity(key="contribution_gap", what="largest gap between the sum of all shares and the logit"),
    Quantity(key="one_mode", what="reviews that one mode decides as the network does", format="percent"),
    Quantity(key="one_mode_variance", what="    variance of its share over the logit's"),
    Quantity(key="one_mode_correlation", what="    correlation of its share with the logit"),
    Quantity(key="three_modes", what="reviews that three modes decide as the network does", format="percent"),
    Quantity(key="surrogate_best", what="driven linear system in place of the network: agreement", format="percent"),
    Quantity(key="surrogate_best_accuracy", what="    its accuracy", format="percent"),
    Quantity(key="surrogate_small", what="    agreement, best rank up to 16", format="percent"),
    Quantity(key="surrogate_small_rank", what="    that rank"),
    Quantity(key="surrogate_small_accuracy", what="    its accuracy", format="percent"),
    Quantity(key="surrogate_16", what="    agreement, rank 16", format="percent"),
    Quantity(key="surrogate_4", what="    agreement, rank 4", format="percent"),
    Quantity(key="surrogate_1", what="    agreement, rank 1", format="percent"),
    Quantity(key="relative_error_svd", what="relative error, SVD basis"),
    Quantity(key="relative_error_pca", what="relative error, PCA basis"),
    Quantity(key="relative_error_fourier", what="relative error, Fourier basis"),
    Quantity(key="eigenvalue_distance_pca", what="dominant eigenvalues, PCA: distance from SVD's"),
    Quantity(key="eigenvalue_distance_fourier", what="dominant eigenvalues, Fourier: distance from SVD's"),
    Quantity(key="paths_end_alike", what="shuffled reviews: operator ends on the network's side", format="percent"),
    Quantity(key="paths_right", what="shuffled reviews: the network ends on the right side", format="percent"),
    Quantity(key="group_1", what="important eigenvectors that answer most to single words"),
    Quantity(key="group_2", what="    to two words"),
    Quantity(key="group_3", what="    to three words"),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Deciding:
    """Which modes alone decide as the network does."""

    order: Int[Array, " m"]
    """Modes of the operator without padding, by how much their share in the last logit varies over validation."""
    variance: Float[Array, " m"]
    """That variance over the test set, in the same order."""
    logit_variance: float
    """Variance of the logit itself."""
    correlation: Float[Array, " m"]
    """Correlation of each one's share with the logit."""
    alone: Float[Array, " k"]
    """Share of test reviews that each of the first modes decides as the network does, the others held at their mean."""
    together: Float[Array, " k"]
    """The same for the first 1, 2, … modes together."""
    accuracy: Float[Array, " k"]
    """Share of test reviews that these decide rightly."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Study:
    """One trained network, and all that was measured about it."""

    config: Config
    network: SentimentNetwork
    operators: Operators
    groups: dict[str, Groups]
    """Modes that read out negative and positive, of the operators with and without padding."""
    feelings: Feelings
    whole: Whole
    confusion: Int[Array, "2 2"]
    """Test reviews by the network's class (rows: negative, positive) and the operator's (columns)."""
    deciding: Deciding
    movers: tuple[Movers, ...]
    surrogates: Surrogates
    phrases: Phrases | None
    bases: dict[str, kann.Koopman]
    paths: tuple[Path, ...]
    numbers: dict[str, float]
    """What was measured, by the keys of `QUANTITIES`."""


def study(network: SentimentNetwork, config: Config, corpus: Corpus, *, seed: int) -> Study:
    """Record, fit and measure."""
    operators = fit_operators(network, corpus, seed=seed)
    readout, last = operators.readout, ends(operators.real)
    groups = {name: group_modes(getattr(operators, name), last, readout) for name in ("padded", "unpadded")}
    training, validation = split(corpus.train)
    feelings = count_feelings(training, words=network.words)
    validated = ends_only(network, validation)
    order = by_variance(operators.unpadded, readout, validated)
    followed = order[:SHARES].tolist()
    lens = look_at(operators, groups, feelings, followed, network.embedding.weight)
    seen = whole(network, corpus.test, lens, feelings, followed)
    embedding = as_numpy(network.embedding.weight).astype(np.float64)
    result = Study(
        config=config,
        network=network,
        operators=operators,
        groups=groups,
        feelings=feelings,
        whole=seen,
        confusion=_confusion(operators, seen),
        deciding=_deciding(operators, seen, corpus, order, validated),
        movers=movers(seen, corpus.vocabulary.words),
        surrogates=surrogates(operators.moments, embedding, readout, corpus.test, seen.logits),
        phrases=study_phrases(network, corpus.test, corpus.vocabulary, feelings),
        bases=other_bases(operators),
        paths=shuffled_paths(network, corpus.vocabulary, operators),
        numbers={"accuracy_validation": accuracy(readout(validated)[:, 0], validation)},
    )
    return replace(result, numbers=result.numbers | _numbers(result, corpus, seed=seed))


def _numbers(result: Study, corpus: Corpus, *, seed: int) -> dict[str, float]:
    """Everything else in the table."""
    operators, seen = result.operators, result.whole
    fitted = fitted_reviews(corpus, seed)
    return (
        {
            "accuracy_train": accuracy(operators.readout(ends_only(result.network, fitted))[:, 0], fitted),
            "accuracy_test": accuracy(seen.logits, corpus.test),
            "accuracy_words": accuracy(result.feelings.classify(corpus.test), corpus.test),
            "contribution_gap": contribution_gap(result.network, operators),
            "groups_split_sentiment": result.groups["padded"].split,
        }
        | _spectral(operators)
        | _fidelity(operators, seen, result.confusion)
        | _highlighted(seen)
        | _decided(result.deciding, result.surrogates)
        | _compared(operators, result.bases, result.paths)
        | _answered(result.phrases)
    )


def by_variance(koopman: kann.Koopman, readout: Readout, last: Float[Array, "s d"]) -> Int[Array, " m"]:
    """Modes by how much their share in the last logit varies."""
    shares = last @ share_vectors(koopman, readout.weight)
    return np.argsort(-shares.var(axis=0), kind="stable")


def _deciding(
    operators: Operators, seen: Whole, corpus: Corpus, order: Int[Array, " m"], validated: Float[Array, "v d"]
) -> Deciding:
    """Order and means come from validation reviews, agreement from test reviews."""
    vectors = share_vectors(operators.unpadded, operators.readout.weight)[:, order]
    shares, usual = seen.last @ vectors, (validated @ vectors).mean(axis=0)
    middle = float(operators.readout(validated.mean(axis=0)[None])[0, 0])
    positive = seen.logits > 0
    excess = (shares - usual)[:, :DECIDING]
    deviation = shares.std(axis=0) * seen.logits.std()
    covariance = ((shares - shares.mean(axis=0)) * (seen.logits - seen.logits.mean())[:, None]).mean(axis=0)
    together = middle + np.cumsum(excess, axis=1) > 0
    return Deciding(
        order=order,
        variance=shares.var(axis=0),
        logit_variance=float(seen.logits.var()),
        correlation=covariance / np.maximum(deviation, np.finfo(float).tiny),
        alone=((middle + excess > 0) == positive[:, None]).mean(axis=0),
        together=(together == positive[:, None]).mean(axis=0),
        accuracy=(together == (corpus.test.positive > 0)[:, None]).mean(axis=0),
    )


def _pairs(seen: Whole) -> kann.States:
    """The last two states of every test review, as sequences of two."""
    values = np.stack([seen.before, seen.last], axis=1).reshape(-1, seen.last.shape[1])
    return kann.States(values=values, lengths=np.full(len(seen.last), 2))


def _confusion(operators: Operators, seen: Whole) -> Int[Array, "2 2"]:
    """Classes by the network and by the paper's operator."""
    predicted = operators.readout(operators.padded.predict(seen.before))[:, 0] > 0
    return np.bincount(2 * (seen.logits > 0) + predicted, minlength=4).reshape(2, 2)


def _spectral(operators: Operators) -> dict[str, float]:
    padded, unpadded = operators.padded, operators.unpadded
    moduli = np.abs(padded.eigenvalues)
    numbers = {f"modulus_{j + 1}": float(moduli[j]) for j in range(min(4, len(moduli)))}
    return numbers | {
        "slow_eigenvalues": float(slow(padded)),
        "trusted": float((padded.residuals <= TRUSTED).sum()),
        "slow_unpadded": float(slow(unpadded)),
        "padding_distance": distance(padded.eigenvalues, unpadded.eigenvalues, count=4),
    }


def _fidelity(operators: Operators, seen: Whole, confusion: Int[Array, "2 2"]) -> dict[str, float]:
    """How far the operators can be trusted, and what padding has to do with it."""
    states, lengths = operators.states, operators.lengths
    errors = np.asarray(kann.relative_error(operators.padded, states, reduce="none")).reshape(len(states), -1)
    is_word = np.arange(errors.shape[1]) < lengths[:, None]
    h = states.padded()
    at_word, at_end = (operators.readout(each)[:, 0] > 0 for each in (ends(operators.real), h[:, -1]))
    return {
        "relative_error": float(np.nanmean(errors)),
        "relative_error_real": float(np.nanmean(errors[is_word])),
        "relative_error_padding": float(np.nanmean(errors[~is_word])) if not is_word.all() else np.nan,
        "padding": float(np.mean(~is_word)),
        "relative_error_whole": seen.errors["unpadded"],
        "relative_error_driven": seen.errors["driven"],
        "agreement": float(np.trace(confusion) / confusion.sum()),
        "agreement_unpadded": kann.agreement(operators.unpadded, _pairs(seen), operators.readout),
        "sentiment_kept": float(np.mean(at_word == at_end)),
    }


def contribution_gap(network: SentimentNetwork, operators: Operators) -> float:
    """The largest distance between the sum of all shares and the network's logit, over all words of the batch."""
    h, readout = operators.real.values, operators.readout
    total = kann.contributions(operators.unpadded, h, readout.weight, readout.bias).total
    with torch.no_grad():
        logits = network.readout(torch.as_tensor(h, device=network.readout.weight.device))
    return float(np.abs(total - as_numpy(logits)).max())


def _highlighted(seen: Whole) -> dict[str, float]:
    """Shares of words that are highlighted, over batches as in the paper."""
    names = {"positive": "positive_words", "negative": "negative_words"}
    return {names.get(kind, kind): float(mark.by_batch(BATCH).mean()) for kind, mark in seen.marks.items()}


def _decided(deciding: Deciding, linear: Surrogates) -> dict[str, float]:
    small = np.flatnonzero(linear.ranks <= SMALL)
    best, little = int(linear.agreement.argmax()), int(small[linear.agreement[small].argmax()])
    at = {int(rank): float(share) for rank, share in zip(linear.ranks, linear.agreement, strict=True)}
    numbers = {
        "one_mode": float(deciding.alone[0]),
        "one_mode_variance": float(deciding.variance[0] / deciding.logit_variance),
        "one_mode_correlation": float(deciding.correlation[0]),
        "three_modes": float(deciding.together[min(2, len(deciding.together) - 1)]),
        "surrogate_best": float(linear.agreement[best]),
        "surrogate_best_accuracy": float(linear.accuracy[best]),
        "surrogate_small": float(linear.agreement[little]),
        "surrogate_small_rank": float(linear.ranks[little]),
        "surrogate_small_accuracy": float(linear.accuracy[little]),
    }
    return numbers | {f"surrogate_{rank}": at[rank] for rank in (1, 4, 16) if rank in at}


def _compared(operators: Operators, bases: dict[str, kann.Koopman], paths: Sequence[Path]) -> dict[str, float]:
    errors = {
        f"relative_error_{name}": float(kann.relative_error(koopman, operators.states))
        for name, koopman in bases.items()
    }
    distances = {
        f"eigenvalue_distance_{name}": distance(bases["svd"].eigenvalues, bases[name].eigenvalues)
        for name in ("pca", "fourier")
    }
    wanted = (1.0, -1.0)  # the first of the two is positive
    return (
        errors
        | distances
        | {
            "paths_end_alike": float(np.mean([path.ends_alike for path in paths])),
            "paths_right": float(np.mean([np.sign(p.logit) == side for p, side in zip(paths, wanted, strict=True)])),
        }
    )


def _answered(phrases: Phrases | None) -> dict[str, float]:
    if phrases is None:
        return {}
    return {f"group_{n}": float((phrases.groups == n).sum()) for n in (1, 2, 3)}
