"""Fits without each fold of sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kann._format import percent
from kann.backends.arrays import rounding as rounding_of
from kann.checks import require_width
from kann.data.moments import Moments
from kann.data.states import States, as_states
from kann.errors import KannError
from kann.fitting.folds import FEWEST_FOLDS, assign_folds, repeats_of
from kann.fitting.horizons import HeldOutErrors, enough_sequences, held_out_errors, powers_of_two
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import NormalEquations, designs_of_folds, sum_of, without_each
from kann.fitting.pair_selection import only_pairs
from kann.typing import Array, Complex, Float, Int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FoldFit:
    """The operator without one fold, its eigenpairs in the order of those of the whole operator."""

    design: NormalEquations
    """The fold that was left out."""
    rest: NormalEquations
    """The folds that were fitted."""
    weights: Float[Array, "q r"]
    """C, D and c one below the other."""
    eigenvalues: Complex[Array, " r"]
    right: Complex[Array, "r r"]
    """Eigenvectors of C, in columns."""


def leave_out_each(koopman: Koopman, designs: Sequence[NormalEquations], *, rounding: float) -> list[FoldFit]:
    """Fit without each fold in turn, in the basis of the whole operator, and match the eigenvalues with its own."""
    found = []
    for design, rest in zip(designs, without_each(designs), strict=True):
        weights = rest.weights(offset=koopman.offset is not None, ridge=koopman.ridge, rounding=rounding)
        values, vectors = np.linalg.eig(weights[: koopman.rank])
        matched = _nearest(koopman.eigenvalues, values)
        found.append(
            FoldFit(
                design=design,
                rest=rest,
                weights=weights,
                eigenvalues=values[matched].astype(complex),
                right=vectors[:, matched].astype(complex),
            )
        )
    return found


def _nearest(eigenvalues: Complex[Array, " r"], others: Array) -> Array:
    """For each eigenvalue one of the others, such that the distances are smallest in sum and none is taken twice."""
    from scipy.optimize import linear_sum_assignment  # here, since it takes long to import

    return linear_sum_assignment(np.abs(eigenvalues[:, None] - others))[1]


LONGEST_HORIZON = 64
"""Errors are measured up to so many steps ahead."""

REFIT_TO = 1e-4
"""Fraction of the states' energy by which the operator's predictions may differ from those of a fit to the states that
are passed, if it is to be theirs. Rounding stays below 1e-8; other sequences of the same network are well above."""


ONE_INPUT = (
    "koopman.at(u) was fitted to no sequences of its own: fit the steps that read u, such as quiet = lambda u: (u == "
    "0).all(-1), with kann.fit(states, where=quiet), and pass that with where=quiet"
)
"""How to ask for the trust of what a gated operator does while one input is read."""


class Folded:
    """The designs of the folds of some data, and where the data are."""

    def __init__(
        self,
        designs: tuple[NormalEquations, ...],
        *,
        rounding: float,
        states: States | None = None,
        fold_of: Int[Array, " s"] | None = None,
        moments: Moments | None = None,
    ) -> None:
        self.designs, self.rounding = designs, rounding
        self._states, self._fold_of, self._moments = states, fold_of, moments

    @cached_property
    def total(self) -> NormalEquations:
        """The design of all data."""
        return sum_of(self.designs)

    def unknowns(self, koopman: Koopman) -> int:
        """How many numbers each column of the regression had to find."""
        return len(self.total.gram) - int(koopman.offset is None)

    def errors(self, koopman: Koopman, fits: Sequence[FoldFit]) -> HeldOutErrors:
        """Errors of predictions on held-out sequences: several steps ahead of states, one step of moments."""
        if self._moments is not None:
            return _one_step_errors(koopman, fits, self._moments)
        states, fold_of = self._states, self._fold_of
        assert states is not None and fold_of is not None  # noqa: S101, PT018
        chosen = enough_sequences(states.lengths, seed=0)
        return held_out_errors(
            states[chosen],
            fold_of[chosen],
            [[fit.weights for fit in fits]],
            basis=koopman.basis,
            mean=koopman.mean,
            horizons=powers_of_two(states.lengths[chosen], largest=LONGEST_HORIZON),
            driven=koopman.drive is not None,
            in_coordinates=koopman.in_coordinates,
        )


def folded_data(koopman: Koopman, data: Any, *, folds: int | None, groups: Any, seed: int) -> Folded:
    """Put the data into folds; refuse data that the operator was not fitted to."""
    driven = koopman.drive is not None
    basis: dict[str, Any] = {"basis": koopman.basis, "mean": koopman.mean, "driven": driven}
    if _are_moments(data):
        if groups is not None:
            raise KannError("groups are for states; each of the moments is a group of its own")
        found = _folded_moments(koopman, data, basis)
    else:
        states = require_states_of(koopman, data)
        repeats = repeats_of(states)
        fold_of = assign_folds(states.lengths, folds=folds, groups=groups, repeats=repeats, seed=seed)
        designs = designs_of_folds(states, fold_of, **basis)
        found = Folded(designs, rounding=_rounding(states, driven=driven), states=states, fold_of=fold_of)
    _require_own(koopman, found)
    return found


def moments_where(
    koopman: Koopman, data: Any, where: Any, *, folds: int | None, groups: Any, seed: int
) -> list[Moments]:
    """Moments of the chosen steps, one for each fold of whole sequences.

    Pieces between steps that do not count may be short, and a memory is the same all through one of them: states in
    shuffled order would predict it as well. The null of moments shuffles over all pieces.
    """
    if isinstance(data, Moments) or _are_moments(data):
        raise KannError("where= chooses steps, and moments are sums over all of them; pass the states themselves")
    states, driven = require_states_of(koopman, data), koopman.drive is not None
    fold_of = assign_folds(states.lengths, folds=folds, groups=groups, repeats=repeats_of(states), seed=seed)
    pieces, source = only_pairs(states, where)
    with_pairs = np.unique(fold_of[source[pieces.lengths > 1]])
    if len(with_pairs) < FEWEST_FOLDS:
        raise KannError(
            f"where= leaves pairs of states in {len(with_pairs)} of {len(np.unique(fold_of))} folds, and intervals "
            f"need {FEWEST_FOLDS}; choose steps of more sequences"
        )
    return [Moments.of(pieces[fold_of[source] == fold], inputs=driven) for fold in with_pairs]


def _are_moments(data: Any) -> bool:
    """Whether these are moments of several groups of sequences."""
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(part, Moments) for part in data)


def require_states_of(koopman: Koopman, data: Any) -> States:
    """The states that were passed, of as many units as the operator has, with inputs if it needs them."""
    if isinstance(data, Moments):
        raise KannError("moments of all sequences together leave nothing to hold out; pass a list of moments of groups")
    states = as_states(data)
    require_width(states.values, koopman.dim, what="states", of="the operator")
    if koopman.drive is not None:
        if states.inputs is None:
            raise KannError("the operator is driven and these states have no inputs; record them with inputs=True")
        require_width(states.inputs, len(koopman.drive), what="inputs", of="the operator's drive")
    return states


def require_moments_of(koopman: Koopman, moments: Moments) -> None:
    """Refuse moments of more or fewer units or inputs than the operator has."""
    inputs = len(koopman.drive) if koopman.drive is not None else 0
    if moments.dim != koopman.dim or (inputs and moments.input_dim != inputs):
        raise KannError(
            f"moments of {moments.dim} units and {moments.input_dim} inputs do not belong to an operator of "
            f"{koopman.dim} units and {inputs} inputs; pass those that it was fitted to"
        )


def _rounding(states: States, *, driven: bool) -> float:
    """The coarsest relative spacing of the numbers, as in a fit."""
    rounding = rounding_of(states.values[0:1])
    if driven and states.inputs is not None:
        rounding = max(rounding, rounding_of(states.inputs[0:1]))
    return rounding


def _folded_moments(koopman: Koopman, data: Sequence[Moments], basis: dict[str, Any]) -> Folded:
    """Each of the moments as a fold."""
    used = [moments for moments in data if moments.pairs]
    if len(used) < FEWEST_FOLDS:
        raise KannError(f"{len(used)} moments with pairs of states are too few folds; pass {FEWEST_FOLDS} or more")
    for moments in used:
        require_moments_of(koopman, moments)
    designs = tuple(NormalEquations.of_moments(moments, **basis) for moments in used)
    rounding = max(moments.rounding for moments in used)
    if koopman.drive is not None:
        rounding = max(rounding, *(moments.input_rounding for moments in used))
    return Folded(designs, rounding=rounding, moments=sum(used[1:], start=used[0]))


def _require_own(koopman: Koopman, folded: Folded) -> None:
    """Refuse data to which a fit in the operator's basis is another operator."""
    total = folded.total
    weights = total.weights(offset=koopman.offset is not None, ridge=koopman.ridge, rounding=folded.rounding)
    own = [koopman.matrix]
    if koopman.drive is not None:
        own.append(koopman.drive)
    constant = koopman.offset if koopman.offset is not None else np.zeros(koopman.rank)
    change = np.vstack([*own, constant]) - weights
    energy = float(np.trace(total.total)) or 1.0
    apart = float(np.trace(change.T @ total.gram @ change)) / energy
    if not apart <= REFIT_TO:
        raise KannError(
            "the operator was not fitted to these sequences: a fit to them predicts states that differ by "
            f"{percent(apart)} of their energy; pass the states or moments that it was fitted to, and where= if it was "
            "fitted with it "
            f"({ONE_INPUT})"
        )


def _one_step_errors(koopman: Koopman, fits: Sequence[FoldFit], moments: Moments) -> HeldOutErrors:
    """Held-out errors one step ahead, from moments; those of the coordinates where the rest is not modelled."""
    missed = sum(float(np.trace(fit.design.residual_gram(fit.weights))) for fit in fits)
    if koopman.in_coordinates:
        total = sum_of([fit.design for fit in fits])
        return HeldOutErrors(
            horizons=np.array([1]),
            operator=np.array([[missed / total.variance()]]),
            copying=np.array([float(np.trace(total.change_gram())) / total.variance()]),
            count=np.array([total.pairs]),
        )
    whole: Any = moments.numpy()
    mean = whole.sum_y / whole.pairs
    variance = float(np.trace(whole.yy)) - whole.pairs * float(mean @ mean)
    about = koopman.mean
    energy = float(np.trace(whole.yy)) - 2 * float(about @ whole.sum_y) + whole.pairs * float(about @ about)
    inside = sum(float(np.trace(fit.design.total)) for fit in fits)
    copied = float(np.trace(whole.yy) - 2 * np.trace(whole.xy) + np.trace(whole.xx))
    return HeldOutErrors(
        horizons=np.array([1]),
        operator=np.array([[(missed + max(0.0, energy - inside)) / variance]]),
        copying=np.array([copied / variance]),
        count=np.array([whole.pairs]),
    )
