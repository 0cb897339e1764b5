"""The rank that predicts held-out sequences best, or nearly so."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kann.data.states import States
from kann.errors import KannError
from kann.fitting.basis import Basis
from kann.fitting.designs import Design, Step, designs_of_folds, without_each
from kann.fitting.folds import FEWEST_FOLDS, Together, assign_folds
from kann.fitting.horizons import enough_sequences, held_out_errors
from kann.fitting.rank import RankCurve
from kann.fitting.repeats import repeats_of

FOLDS = 5
"""Sequences are held out in five folds, so that four fifths of them are fitted."""

HORIZONS = (1, 2, 5, 10)
"""A rank is judged by predictions so many steps ahead, as far as sequences are that long: one step ahead copying the
state is hard to beat and every rank looks good, and ten steps ahead little is left of what is quickly forgotten."""


def rank_curve(
    states: States, basis: Basis, *, driven: bool, offset: bool, ridge: float, groups: Any = None, seed: int = 0
) -> RankCurve:
    """Held-out errors of the ranks up to the number of columns of the basis; groups of sequences stay together."""
    apart: dict[str, Any] = {"groups": groups, "repeats": repeats_of(states)}
    sequences = Together.of(states.lengths, **apart)
    if sequences.available < FEWEST_FOLDS:
        raise KannError(
            f"rank='auto' holds out whole {sequences.name}, and {sequences.available} of two states or more are too "
            "few; pass a rank, or more sequences"
        )
    fold_of = assign_folds(states.lengths, folds=min(FOLDS, sequences.available), seed=seed, **apart)
    arguments = {"basis": basis.vectors, "mean": basis.mean, "driven": driven}
    designs = designs_of_folds(states, fold_of, **arguments)
    ranks = ranks_to_try(basis.vectors.shape[1])
    steps = [_steps_without(designs, rank, offset=offset, ridge=ridge) for rank in ranks]
    chosen = enough_sequences(states.lengths, seed=seed)
    found = held_out_errors(states[chosen], fold_of[chosen], steps, horizons=HORIZONS, **arguments)
    errors = np.where(np.isfinite(found.operator), found.operator, np.inf)
    return RankCurve(ranks=np.array(ranks), horizons=found.horizons, errors=errors, copying=found.copying)


def ranks_to_try(largest: int) -> list[int]:
    """Ranks up to ``largest``, each about a third or half larger than the one before.

    >>> ranks_to_try(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    ranks = {largest}
    for power in range(largest.bit_length()):
        ranks |= {2**power, 3 * 2**power // 2}
    return sorted(rank for rank in ranks if 1 <= rank <= largest)


def _steps_without(designs: Sequence[Design], rank: int, *, offset: bool, ridge: float) -> list[Step]:
    """The step of this rank without each fold."""
    others = without_each([design.leading(rank) for design in designs])
    return [rest.step(rest.weights(offset=offset, ridge=ridge, rounding=0.0)) for rest in others]
