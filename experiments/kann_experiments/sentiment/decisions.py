"""How far a few modes alone decide as the network does."""

from dataclasses import dataclass

import numpy as np

import kann
from kann.typing import Array, Float, Int
from kann_experiments.sentiment.corpus import Reviews
from kann_experiments.sentiment.one_pass import PassStatistics
from kann_experiments.sentiment.operators import Operators, Readout, contribution_vectors

MOST_MODES = 20
"""How many modes are tried together at most, the most important first."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModeDecisions:
    """Which test reviews single modes, and the first few together, decide as the network does."""

    order: Int[Array, " m"]
    """Modes of the operator without padding, by how much their contribution to the last logit varies in validation."""
    variance: Float[Array, " m"]
    """Variance of that contribution over the test set, in the same order."""
    logit_variance: float
    """Variance of the logit itself."""
    correlation: Float[Array, " m"]
    """Correlation of each mode's contribution with the logit."""
    alone: Float[Array, " k"]
    """Fraction of test reviews that each of the first modes decides as the network does, the others at their mean."""
    together: Float[Array, " k"]
    """The same for the first 1, 2, … modes together."""
    accuracy: Float[Array, " k"]
    """Fraction of test reviews that the first 1, 2, … modes together decide rightly."""


def order_by_variance(koopman: kann.Koopman, readout: Readout, last: Float[Array, "s d"]) -> Int[Array, " m"]:
    """Modes by how much their contribution to the logit of these last states varies, the largest first."""
    contributions = kann.contributions(koopman, last, readout.weight).modes[..., 0]  # (s, m)
    return np.argsort(-contributions.var(axis=0), kind="stable")


def decide_by_modes(
    operators: Operators,
    statistics: PassStatistics,
    reviews: Reviews,
    order: Int[Array, " m"],
    validated: Float[Array, "v d"],
) -> ModeDecisions:
    """Decide the test reviews by some modes only, the others held at their mean.

    Order and means come from ``validated``, the last states of validation reviews; agreement from the test reviews.
    """
    vectors = contribution_vectors(operators.unpadded, operators.readout)[:, order]
    contributions, mean = statistics.last @ vectors, (validated @ vectors).mean(axis=0)  # (s, m) and (m,)
    mean_logit = float(operators.readout(validated.mean(axis=0)[None])[0, 0])
    logits = statistics.logits
    centred = contributions - contributions.mean(axis=0)
    covariance = (centred * (logits - logits.mean())[:, None]).mean(axis=0)
    deviation = contributions.std(axis=0) * logits.std()
    # The logit of a review whose other modes are at their mean: the mean logit, plus what the kept ones exceed theirs.
    excess = (contributions - mean)[:, :MOST_MODES]
    by_network = (logits > 0)[:, None]
    by_one = mean_logit + excess > 0  # (s, k)
    by_several = mean_logit + np.cumsum(excess, axis=1) > 0
    return ModeDecisions(
        order=order,
        variance=contributions.var(axis=0),
        logit_variance=float(logits.var()),
        correlation=covariance / np.maximum(deviation, np.finfo(float).tiny),
        alone=(by_one == by_network).mean(axis=0),
        together=(by_several == by_network).mean(axis=0),
        accuracy=(by_several == (reviews.positive > 0)[:, None]).mean(axis=0),
    )
