"""The paper's statements taken word by word: columns 1 to 4 of V, and magnitudes under each scale that it may mean."""

from collections.abc import Iterator

import numpy as np

import kann
from kann.typing import Array, Float, Int
from kann_experiments.results import Quantity
from kann_experiments.sentiment.highlighting import HIGHLIGHTED
from kann_experiments.sentiment.operators import Operators, fit_as_in_paper, last_of_each
from kann_experiments.sentiment.word_sentiment import WordSentiment

SCALES = {
    "review": "smallest and largest of the review",
    "batch": "largest of the batch",
    "none": "not scaled",
}
"""Ways to bring magnitudes to [0, 1], and what the table says of them. The paper says that they are in [0, 1]."""

RANKS = (4, 8, 16, 32, 64, 128)
"""Ranks at which bases are compared. The paper does not say at which it compared them."""

BASES = {"svd": "SVD", "pca": "PCA", "fourier": "Fourier"}
"""The bases that the paper compares, and their names in the table."""


def literal_quantities() -> tuple[Quantity, ...]:
    """The rows of the table for `literal_numbers`."""
    return (
        Quantity(key="literal_split", what="reviews with y₁₂ < .5 and y₃₄ > .5, columns as printed", format="percent"),
        Quantity(key="literal_reverse", what="    the reverse, y₁₂ > .5 and y₃₄ < .5", format="percent"),
        *(
            Quantity(
                key=f"literal_{side}_{scale}", what=f"{indent}{side} words with s({j}) ≥ .5, {what}", format="percent"
            )
            for side, j, indent in (("positive", 1, ""), ("negative", 3, ""))
            for scale, what in SCALES.items()
        ),
    )


def literal_numbers(operators: Operators, sentiment: WordSentiment) -> dict[str, float]:
    """Measure, on the paper's batch, what y₁₂, y₃₄, s(1) and s(3) are if the printed numbers of columns are meant."""
    koopman, readout = operators.padded, operators.readout
    last = last_of_each(operators.word_states)
    y12, y34 = (_part(koopman, last, columns) @ readout.weight[0] + readout.bias[0] for columns in ([0, 1], [2, 3]))
    numbers = {
        "literal_split": float(np.mean((y12 < 0) & (y34 > 0))),  # logits: 0 is a probability of .5
        "literal_reverse": float(np.mean((y12 > 0) & (y34 < 0))),
    }
    states = operators.word_states
    magnitudes = np.abs(kann.project(koopman, np.asarray(states.values, dtype=np.float64)))  # (n, r)
    is_word = np.arange(operators.ids.shape[1]) < np.asarray(operators.lengths)[:, None]
    words = operators.ids.numpy()[is_word]  # (n,), in the order of the states
    for side, column in (("positive", 0), ("negative", min(2, koopman.rank - 1))):
        asked = getattr(sentiment, side)[words]
        for scale, scaled in _scaled(magnitudes[:, column], states.lengths):
            numbers[f"literal_{side}_{scale}"] = float(np.mean(scaled[asked] >= HIGHLIGHTED)) if asked.any() else np.nan
    return numbers


def _part(koopman: kann.Koopman, h: Float[Array, "s d"], columns: list[int]) -> Float[Array, "s d"]:
    """Re(H B V_ij U_ij) Bᵀ for these columns of V, whether or not they are a conjugate pair."""
    columns = [column for column in columns if column < koopman.rank]
    coefficients = kann.project(koopman, h)[:, columns]
    return np.real(coefficients @ koopman.left[columns]) @ koopman.basis.T


def _scaled(magnitude: Float[Array, " n"], lengths: Int[Array, " s"]) -> Iterator[tuple[str, Float[Array, " n"]]]:
    """Magnitudes under each of `SCALES`."""
    ends = np.cumsum(lengths)
    parts = [_to_unit(magnitude[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    yield "review", np.concatenate(parts)
    yield "batch", magnitude / magnitude.max()
    yield "none", magnitude


def _to_unit(values: Float[Array, " t"]) -> Float[Array, " t"]:
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)


def rank_quantities() -> tuple[Quantity, ...]:
    """The rows of the table for `rank_numbers`."""
    return tuple(
        Quantity(
            key=f"rank_{rank}_{basis}", what=f"{'    ' if place else f'relative error at rank {rank}, '}{name} basis"
        )
        for rank in RANKS
        for place, (basis, name) in enumerate(BASES.items())
    )


def rank_numbers(operators: Operators) -> dict[str, float]:
    """Relative errors of the paper's operator in each basis, cut at several ranks, on the states it is fitted to."""
    moments = kann.Moments.of(operators.states)
    numbers = {}
    for basis in BASES:
        full = fit_as_in_paper(moments, basis=basis).rank
        for rank in (rank for rank in RANKS if rank < full):
            koopman = kann.fit(moments, basis=basis, offset=False, rank=rank)
            numbers[f"rank_{rank}_{basis}"] = float(kann.relative_error(koopman, operators.states))
    return numbers


def padded_by_time(operators: Operators) -> dict[str, float]:
    """The paper's other measure, |H_t predicted − H_t|² / |H_t|² at each t, averaged over t."""
    by_time = kann.relative_error(operators.padded, operators.states, reduce="time")
    return {"relative_error_by_time": float(np.nanmean(by_time))}
