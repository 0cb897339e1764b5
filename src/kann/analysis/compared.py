"""A network that is compared with others: its operator, and the operators without each group of its sequences."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis.comparison_options import How
from kann.analysis.readout_weights import linear_weight
from kann.analysis.response_distance import Response, response_distance
from kann.analysis.spectral_distance import transport, weighed_spectrum
from kann.analysis.subspace_distance import leading_modes, nearest_modes, span_of, subspace_distance
from kann.analysis.trust import trust
from kann.data.moments import Moments
from kann.data.states import as_states
from kann.errors import KannError, KannWarning
from kann.fitting.fit import fit
from kann.fitting.folds import FEWEST_FOLDS, Together, assign_folds
from kann.fitting.koopman import Koopman

GROUPS = 10
"""Sequences are put into so many groups, each of which is left out once."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Compared:
    """What a distance needs of a network, from all its sequences, without each group of them, and from two halves."""

    whole: Any
    """Of all sequences."""
    without: tuple[Any, ...]
    """Without each group; empty if only an operator is known."""
    halves: tuple[Any, Any] | None
    """Of two halves of the groups; None if only an operator is known."""

    @staticmethod
    def of(
        network: Any, how: How, *, readout: Any = None, name: str = "the network", intervals: bool = True
    ) -> "Compared":
        """Read an operator, moments, a list of moments of groups, or states; without intervals, leave no group out."""
        if isinstance(network, Koopman):
            view = _View(how, network, readout, name)
            return Compared(whole=view(network), without=(), halves=None)
        groups = _groups_of(network, name)
        total = sum(groups[1:], start=groups[0])
        driven = total.uu is not None
        koopman = _fitted(total, rank=how.rank, driven=driven)
        view = _View(how, koopman, readout, name, groups=groups)
        if len(groups) == 1:
            return Compared(whole=view(koopman), without=(), halves=None)

        def seen_in(moments: Moments) -> Any:
            return view(_fitted(moments, rank=koopman.rank, driven=driven))

        left_out = groups
        if not intervals:
            left_out = []
        first, second = (sum(part[1:], start=part[0]) for part in (groups[::2], groups[1::2]))
        return Compared(
            whole=view(koopman),
            without=tuple(seen_in(total - group) for group in left_out),
            halves=(seen_in(first), seen_in(second)),
        )


class _View:
    """What a distance of some kind looks at in an operator: eigenvalues with weights, a response, or a span."""

    def __init__(self, how: How, koopman: Koopman, readout: Any, name: str, groups: list[Moments] | None = None):
        self._how = how
        self._weight = linear_weight(readout, koopman.dim, name=f"the readout of {name}")
        if how.kind == "subspace":
            leading = leading_modes(koopman, count=how.modes, among=_trusted(koopman, groups, name))
            self._wanted = np.array([koopman.modes[number].eigenvalue for number in leading])

    def __call__(self, koopman: Koopman) -> Any:
        if self._how.kind == "spectrum":
            return weighed_spectrum(koopman, weights=self._how.weights)
        if self._how.kind == "response":
            return Response.of(koopman, self._weight, steps=self._how.steps, weights=self._how.weights)
        return span_of(koopman, nearest_modes(koopman, self._wanted))


def measure_of(how: How) -> Callable[[Any, Any], float]:
    """The distance of two views of operators."""
    if how.kind == "spectrum":
        return lambda a, b: transport(*a, *b)
    if how.kind == "response":
        return response_distance
    return subspace_distance


def _groups_of(network: Any, name: str) -> list[Moments]:
    """The moments of groups of a network's sequences; of all together if no more is known."""
    if isinstance(network, Moments):
        found = [network]
    elif isinstance(network, list | tuple) and network and all(isinstance(part, Moments) for part in network):
        found = [part for part in network if part.pairs]
    else:
        states = as_states(network)
        count = min(GROUPS, Together.of(states.lengths).available)
        if count < FEWEST_FOLDS:
            found = [Moments.of(states)]
        else:
            fold_of = assign_folds(states.lengths, folds=count)
            found = [Moments.of(states[np.flatnonzero(fold_of == fold)]) for fold in range(fold_of.max() + 1)]
    if not sum(part.pairs for part in found):
        raise KannError(f"{name} has no pair of states; record sequences of two steps or more")
    return [part.numpy() for part in found]


def _fitted(moments: Moments, *, rank: Any, driven: bool) -> Koopman:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KannWarning)  # a part of the data may be little; intervals say how little
        return fit(moments, rank=rank, driven=driven)


def _trusted(koopman: Koopman, groups: list[Moments] | None, name: str) -> tuple[int, ...]:
    """The modes that may be compared: the trusted ones if there are data to judge by, otherwise all."""
    if groups is None or len(groups) < FEWEST_FOLDS:
        return tuple(range(len(koopman.modes)))
    found = trust(koopman, groups).trusted
    if not found:
        raise KannError(f"no mode of {name} can be trusted, so there is no subspace; record more sequences")
    return found
