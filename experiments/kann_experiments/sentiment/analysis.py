"""Everything that is measured about one network that judges reviews, as one frozen `Study`."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import kann
from kann.backends.arrays import as_numpy
from kann.typing import Array, Int
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.sentiment.comparisons import Trajectory, fit_in_each_basis, shuffled_trajectories
from kann_experiments.sentiment.corpus import Corpus
from kann_experiments.sentiment.decisions import ModeDecisions, decide_by_modes, order_by_variance
from kann_experiments.sentiment.groups import Groups, group_modes
from kann_experiments.sentiment.literal import literal_numbers, padded_by_time, rank_numbers
from kann_experiments.sentiment.measurements import contribution_gap, count_confusion, table_numbers
from kann_experiments.sentiment.ngrams import Phrases, study_phrases
from kann_experiments.sentiment.one_pass import FOLLOWED_MODES, PassStatistics, pass_over, prepare_matrices
from kann_experiments.sentiment.operators import BATCH, Operators, fit_operators, fitted_reviews, last_of_each
from kann_experiments.sentiment.reading import read_last_states
from kann_experiments.sentiment.renn import renn_numbers
from kann_experiments.sentiment.surrogate import Surrogates, replace_network
from kann_experiments.sentiment.task import ANALYSED, Config, accuracy, split
from kann_experiments.sentiment.top_words import TopWords, find_top_words
from kann_experiments.sentiment.word_sentiment import WordSentiment, count_word_sentiment
from kann_experiments.training import generator


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Study:
    """One trained network, and all that was measured about it."""

    config: Config
    network: SentimentNetwork
    operators: Operators
    groups: dict[str, Groups]
    """Modes that read out negative and positive, of the operators with and without padding."""
    sentiment: WordSentiment
    """Which words are positive and negative."""
    statistics: PassStatistics
    """Of the whole test set."""
    confusion: Int[Array, "2 2"]
    """Test reviews by the network's class (rows: negative, positive) and the operator's (columns)."""
    decisions: ModeDecisions
    top_words: tuple[TopWords, ...]
    surrogates: Surrogates
    phrases: Phrases | None
    """None where no review holds a phrase."""
    bases: dict[str, kann.Koopman]
    """The paper's operator in three bases."""
    trajectories: tuple[Trajectory, ...]
    """Of the two shuffled reviews."""
    numbers: dict[str, float]
    """What was measured, by the keys of `QUANTITIES`."""
    live: dict[str, Any] | None = None
    """Which operators were compared in the running network; None before that."""


def study_network(network: SentimentNetwork, config: Config, corpus: Corpus, *, seed: int) -> Study:
    """Record, fit and measure."""
    # Record the network's states and fit operators to them.
    operators = fit_operators(network, corpus, seed=seed)
    readout, last = operators.readout, last_of_each(operators.word_states)  # (b, d)
    groups = {
        "padded": group_modes(operators.padded, last, readout),
        "unpadded": group_modes(operators.unpadded, last, readout),
    }

    # Words and modes are chosen on training and validation reviews, so that the test reviews decide nothing.
    training, validation = split(corpus.train)
    sentiment = count_word_sentiment(training, words=network.words)
    validated = read_last_states(network, validation)  # (v, d)
    order = order_by_variance(operators.unpadded, readout, validated)

    # One pass over all test reviews.
    followed = order[:FOLLOWED_MODES].tolist()
    matrices = prepare_matrices(operators, groups, sentiment, followed, network.embedding.weight)
    statistics = pass_over(network, corpus.test, matrices, sentiment)

    # What the modes do, and what can replace the network.
    confusion = count_confusion(operators, statistics)
    decisions = decide_by_modes(operators, statistics, corpus.test, order, validated)
    embedding = as_numpy(network.embedding.weight).astype(np.float64)  # (words, p)
    surrogates = replace_network(operators.moments, embedding, readout, corpus.test, statistics.logits)
    phrases = study_phrases(network, corpus.test, corpus.vocabulary, sentiment)
    bases = fit_in_each_basis(operators)
    trajectories = shuffled_trajectories(network, corpus.vocabulary, operators)

    fitted = fitted_reviews(corpus, seed)
    numbers = {
        "accuracy_train": accuracy(readout(read_last_states(network, fitted))[:, 0], fitted),
        "accuracy_validation": accuracy(readout(validated)[:, 0], validation),
        "accuracy_test": accuracy(statistics.logits, corpus.test),
        "accuracy_words": accuracy(sentiment.classify(corpus.test), corpus.test),
        "contribution_gap": contribution_gap(network, operators),
        "groups_split_sentiment": groups["padded"].split,
    }
    numbers |= literal_numbers(operators, sentiment) | rank_numbers(operators) | padded_by_time(operators)
    batch = corpus.test.take(generator(seed, ANALYSED).permutation(len(corpus.test))[: 2 * BATCH])
    numbers |= renn_numbers(network, batch.take(np.arange(BATCH)), batch.take(np.arange(BATCH, len(batch))))
    numbers |= table_numbers(operators, statistics, confusion, decisions, surrogates, bases, trajectories, phrases)
    return Study(
        config=config,
        network=network,
        operators=operators,
        groups=groups,
        sentiment=sentiment,
        statistics=statistics,
        confusion=confusion,
        decisions=decisions,
        top_words=find_top_words(statistics, corpus.vocabulary.words),
        surrogates=surrogates,
        phrases=phrases,
        bases=bases,
        trajectories=trajectories,
        numbers=numbers,
    )
