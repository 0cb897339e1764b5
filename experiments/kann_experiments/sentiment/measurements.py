"""The numbers of the table, by the keys of `QUANTITIES`: each function gives those of one idea."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

import kann
from kann.analysis.fidelity import Predictor
from kann.backends.arrays import as_numpy
from kann.fitting.spectrum import TRUSTED
from kann.typing import Array, Int
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments import trusting
from kann_experiments.sentiment.comparisons import Trajectory, eigenvalue_distance
from kann_experiments.sentiment.decisions import ModeDecisions
from kann_experiments.sentiment.ngrams import Phrases
from kann_experiments.sentiment.one_pass import COPYING, PassStatistics
from kann_experiments.sentiment.operators import (
    BATCH,
    RANK_WITH_WORDS,
    Operators,
    PaddedStates,
    count_dominant,
    last_of_each,
)
from kann_experiments.sentiment.surrogate import Surrogates

SMALL_RANK = 16
"""The largest rank of a linear system that is called small."""


def table_numbers(
    operators: Operators,
    statistics: PassStatistics,
    confusion: Int[Array, "2 2"],
    decisions: ModeDecisions,
    surrogates: Surrogates,
    bases: Mapping[str, kann.Koopman],
    trajectories: Sequence[Trajectory],
    phrases: Phrases | None,
) -> dict[str, float]:
    """All numbers that follow from the parts of a `Study` alone."""
    return (
        spectrum_numbers(operators)
        | fidelity_numbers(operators, statistics, confusion)
        | highlighting_numbers(statistics)
        | decision_numbers(decisions)
        | surrogate_numbers(surrogates)
        | basis_numbers(operators, bases)
        | trajectory_numbers(trajectories)
        | phrase_numbers(phrases)
    )


def spectrum_numbers(operators: Operators) -> dict[str, float]:
    """How many eigenvalues are dominant or trusted, and how far padding moves them."""
    padded, unpadded = operators.padded, operators.unpadded
    moduli = {f"modulus_{j}": float(modulus) for j, modulus in enumerate(np.abs(padded.eigenvalues[:4]), start=1)}
    groups = operators.moments_of_groups
    return {
        **moduli,
        **trusting.numbers("centred", kann.fit(operators.moments), groups),
        **trusting.numbers(
            "words", kann.fit(operators.moments, rank=min(RANK_WITH_WORDS, operators.moments.dim), driven=True), groups
        ),
        "slow_eigenvalues": float(count_dominant(padded)),
        "trusted": float((padded.residuals <= TRUSTED).sum()),
        "slow_unpadded": float(count_dominant(unpadded)),
        "padding_distance": eigenvalue_distance(padded.eigenvalues, unpadded.eigenvalues, count=4),
    }


def fidelity_numbers(
    operators: Operators, statistics: PassStatistics, confusion: Int[Array, "2 2"]
) -> dict[str, float]:
    """How far the operators can be trusted, and what padding has to do with it."""
    states, last_pairs = operators.states, _last_pairs(statistics)
    after_last_word = operators.readout(last_of_each(operators.word_states))[:, 0] > 0
    after_padding = operators.readout(states.padded()[:, -1])[:, 0] > 0
    return {
        **_padded_errors(operators.padded, operators.fitted, suffix=""),
        **_padded_errors(operators.padded, operators.held_out, suffix="_held_out"),
        **_padded_errors(kann.copying, operators.held_out, suffix="_copying"),
        "padding": float(np.mean(~operators.fitted.is_word)),
        "relative_error_whole": statistics.errors["unpadded"],
        "relative_error_driven": statistics.errors["driven"],
        "relative_error_whole_copying": statistics.errors[COPYING],
        "agreement": float(np.trace(confusion) / confusion.sum()),
        "agreement_unpadded": kann.agreement(operators.unpadded, last_pairs, operators.readout),
        "agreement_copying": kann.agreement(kann.copying, last_pairs, operators.readout),
        **{f"agreement_every_{name}": unchanged for name, unchanged in statistics.unchanged.items()},
        "sentiment_kept": float(np.mean(after_last_word == after_padding)),
    }


def _padded_errors(predictor: Predictor, reviews: PaddedStates, *, suffix: str) -> dict[str, float]:
    """Relative errors over all states of padded reviews, over words alone, and over padding alone."""
    # The first state of a review has no prediction and counts nowhere: its error is NaN.
    errors, is_word = np.asarray(kann.relative_error(predictor, reviews.states, reduce="none")), reviews.is_word
    padding_error = np.nan
    if not is_word.all():
        padding_error = float(np.nanmean(errors[~is_word]))
    return {
        f"relative_error{suffix}": float(np.nanmean(errors)),
        f"relative_error_real{suffix}": float(np.nanmean(errors[is_word])),
        f"relative_error_padding{suffix}": padding_error,
    }


def _last_pairs(statistics: PassStatistics) -> kann.States:
    """The last two states of every test review, as sequences of two."""
    values = np.stack([statistics.before, statistics.last], axis=1).reshape(-1, statistics.last.shape[1])
    return kann.States(values=values, lengths=np.full(len(statistics.last), 2))


def count_confusion(operators: Operators, statistics: PassStatistics) -> Int[Array, "2 2"]:
    """Test reviews by the network's class (rows: negative, positive) and the paper's operator's (columns)."""
    predicted = operators.readout(operators.padded.predict(statistics.before))[:, 0] > 0
    # Both classes in one number from 0 to 3, so that one count gives the whole table.
    return np.bincount(2 * (statistics.logits > 0) + predicted, minlength=4).reshape(2, 2)


def contribution_gap(network: SentimentNetwork, operators: Operators) -> float:
    """The largest distance between the sum of all contributions and the network's logit, over the words of the batch.

    It is rounding: the contributions sum to the logit exactly.
    """
    h, readout = operators.word_states.values, operators.readout
    total = kann.contributions(operators.unpadded, h, readout.weight, readout.bias).total
    with torch.no_grad():
        logits = network.readout(torch.as_tensor(h, device=network.readout.weight.device))
    return float(np.abs(total - as_numpy(logits)).max())


def highlighting_numbers(statistics: PassStatistics) -> dict[str, float]:
    """Fractions of words that are highlighted, averaged over batches as in the paper."""
    keys = {"positive": "positive_words", "negative": "negative_words"}
    return {keys.get(kind, kind): float(words.fractions(BATCH).mean()) for kind, words in statistics.marked.items()}


def decision_numbers(decisions: ModeDecisions) -> dict[str, float]:
    """How far one mode and three modes decide as the network does."""
    return {
        "one_mode": float(decisions.alone[0]),
        "one_mode_variance": float(decisions.variance[0] / decisions.logit_variance),
        "one_mode_correlation": float(decisions.correlation[0]),
        "three_modes": float(decisions.together[:3][-1]),
    }


def surrogate_numbers(surrogates: Surrogates) -> dict[str, float]:
    """How far linear systems decide as the network does: the best one, the best small one, and some ranks."""
    best = int(surrogates.agreement.argmax())
    small = np.flatnonzero(surrogates.ranks <= SMALL_RANK)
    best_small = int(small[surrogates.agreement[small].argmax()])
    numbers = {
        "surrogate_best": float(surrogates.agreement[best]),
        "surrogate_best_accuracy": float(surrogates.accuracy[best]),
        "surrogate_small": float(surrogates.agreement[best_small]),
        "surrogate_small_rank": float(surrogates.ranks[best_small]),
        "surrogate_small_accuracy": float(surrogates.accuracy[best_small]),
    }
    for rank, agreement in zip(surrogates.ranks, surrogates.agreement, strict=True):
        if rank in (1, 4, 16):
            numbers[f"surrogate_{rank}"] = float(agreement)
    return numbers


def basis_numbers(operators: Operators, bases: Mapping[str, kann.Koopman]) -> dict[str, float]:
    """Errors in three bases, and distances of their eigenvalues from those of the SVD basis."""
    numbers = {}
    for name, koopman in bases.items():
        numbers[f"relative_error_{name}"] = float(kann.relative_error(koopman, operators.states))
        numbers[f"relative_error_{name}_held_out"] = float(kann.relative_error(koopman, operators.held_out.states))
        if name != "svd":
            distance = eigenvalue_distance(bases["svd"].eigenvalues, koopman.eigenvalues)
            numbers[f"eigenvalue_distance_{name}"] = distance
    return numbers


def trajectory_numbers(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """On which side the shuffled reviews end."""
    right_sign = (1.0, -1.0)  # the first of the two is positive
    right = [np.sign(each.logit) == sign for each, sign in zip(trajectories, right_sign, strict=True)]
    return {
        "paths_end_alike": float(np.mean([each.ends_alike for each in trajectories])),
        "paths_right": float(np.mean(right)),
    }


def phrase_numbers(phrases: Phrases | None) -> dict[str, float]:
    """How many important modes respond most to phrases of one, two and three words; nothing without phrases."""
    if phrases is None:
        return {}
    groups = {f"group_{words}": float((phrases.of_triples.groups == words).sum()) for words in (1, 2, 3)}
    return groups | {"pair_group_2": float((phrases.of_pairs.groups == 2).sum())}
