"""Means of values by label, with intervals over whole sequences: steps of one sequence are not independent."""

from dataclasses import dataclass

import numpy as np

from kann.typing import Array, Float, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LabelMeans:
    """The mean of each label over the places where it stands."""

    mean: Float[Array, "k m"]
    error: Float[Array, "k m"]
    """Standard error over sequences; infinite for a label that stands in one sequence only."""
    count: Int[Array, " k"]
    """In how many places it stands."""
    sequences: Int[Array, " k"]
    """In how many sequences."""
    freedom: Int[Array, " k"]
    """Degrees of freedom of the standard errors."""

    def half_width(self, level: float) -> Float[Array, "k m"]:
        """Half the width of the intervals that hold the mean with probability ``level``."""
        from scipy.stats import t  # here, since it takes long to import

        return t.ppf((1 + level) / 2, np.maximum(self.freedom, 1))[:, None] * self.error


def means_by_label(
    values: Float[Array, "n m"], labels: Int[Array, " n"], sequences: Int[Array, " n"], *, count: int
) -> LabelMeans:
    """Means of the values whose label is 0, 1, …, ``count`` − 1.

    With S the sum and n the number of values of a label in a sequence, the mean is ΣS / Σn, and its variance is that of
    a ratio, K / (K − 1) · Σ (S − mean n)² / (Σn)² over the K sequences in which the label stands.
    """
    width = int(sequences.max(initial=0)) + 1
    pairs, places = np.unique(labels * width + sequences, return_inverse=True)
    label_of = pairs // width
    own_count = np.bincount(places)  # of each label in each sequence
    sums = np.stack([np.bincount(places, weights=column) for column in values.T], axis=1)
    total_count = np.bincount(label_of, weights=own_count, minlength=count)
    mean = _summed(sums, label_of, count) / np.maximum(total_count, 1)[:, None]
    gaps = sums - mean[label_of] * own_count[:, None]
    clusters = np.bincount(label_of, minlength=count)
    with np.errstate(divide="ignore", invalid="ignore"):
        correction = clusters / (clusters - 1)
        error = np.sqrt(correction[:, None] * _summed(gaps**2, label_of, count)) / total_count[:, None]
    error[clusters < 2] = np.inf
    return LabelMeans(
        mean=mean, error=error, count=total_count.astype(np.int64), sequences=clusters, freedom=clusters - 1
    )


def _summed(values: Float[Array, "p m"], labels: Int[Array, " p"], count: int) -> Float[Array, "k m"]:
    columns = [np.bincount(labels, weights=column, minlength=count) for column in values.T]
    return np.stack(columns, axis=1)
