"""Fits without each fold of sequences."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kann._format import percent
from kann.analysis.fidelity import driving_inputs
from kann.backends.arrays import as_numpy, indices_for, threads_for, to_device_of
from kann.backends.arrays import rounding as rounding_of
from kann.checks import require_width
from kann.data.moments import Moments
from kann.data.reduction import Block, Projection, SumOverBlocks, accumulate
from kann.data.states import States, as_states, only_pairs
from kann.errors import KannError
from kann.fitting.folds import FEWEST_FOLDS, FOLDS_TO_JUDGE, assign_folds, blocks_to_hold_out, repeats_of
from kann.fitting.horizons import HeldOutErrors, enough_sequences, held_out_errors, powers_of_two
from kann.fitting.koopman import Koopman
from kann.fitting.normal_equations import NormalEquations, designs_of_folds, sum_of, without_each
from kann.fitting.spectrum import TRUSTED
from kann.typing import Array, Complex, Float, Int

LONGEST_HORIZON = 64
"""Largest number of steps ahead for which errors are measured."""

REFIT_TO = 1e-4
"""Fraction of the states' energy (of a map between layers: of the variance) by which predictions may differ from those
of a fit to the states that are passed, if the operator was fitted to them. Rounding stays below 1e-8; other sequences
of the same network are well above."""


ONE_INPUT = (
    "koopman.at(u) was fitted to no sequences of its own: fit the steps that read u, such as quiet = lambda u: (u == "
    "0).all(-1), with kann.fit(states, where=quiet), and pass that with where=quiet"
)
"""How to ask for the trust of what a gated operator does while one input is read."""


MOST_JUDGED = 64
"""Above `JUDGED_WHOLE` units, this many modes are judged. The page shows fewer."""

JUDGED_WHOLE = 128
"""Operators up to this rank are decomposed again for each fold: it takes less time than the rest of `kann.trust`."""

FOLDS_OF_WIDE = 5
"""Number of folds by default above that rank, since without each an operator is fitted."""

FOLDS_TO_PREDICT = 2
"""Number of folds whose sequences are predicted several steps ahead, above that rank: each takes the powers of another
matrix."""

SPARE = 8
"""Eigenpairs of largest modulus that are computed beyond those that are judged, since their order may change."""

EIGENPAIRS_TO = 1e-10
"""Their relative accuracy."""

FEW_EIGENPAIRS = 0.25
"""Up to this fraction of all, Arnoldi's iteration finds eigenpairs in a fifth of the time of a decomposition."""


class Folds:
    """Fits of an operator to all folds but one, in its basis: what tells how far it can be trusted.

    Eigenpairs are those of the judged modes, in the order of the whole operator. Above rank `JUDGED_WHOLE` only the
    slowest modes are judged that the operator itself predicts where it was fitted: others fail on held-out sequences.
    """

    def __init__(
        self,
        koopman: Koopman,
        designs: Sequence[NormalEquations],
        *,
        rounding: float,
        states: States | None = None,
        fold_of: Int[Array, " s"] | None = None,
        moments: Any = None,
        in_blocks: bool = False,
    ) -> None:
        self.koopman, self.designs, self.total = koopman, designs, sum_of(designs)
        self.in_blocks = in_blocks
        """Whether sequences were cut into blocks."""
        modes = koopman.modes
        self.numbers = list(range(len(modes)))
        """Numbers of the judged modes in ``koopman.modes``."""
        if koopman.rank > JUDGED_WHOLE:
            most = int(FEW_EIGENPAIRS * koopman.rank) - SPARE
            slow = [number for number in self.numbers if modes[number].residual <= TRUSTED][:MOST_JUDGED]
            self.numbers = [number for number in slow if modes[number].indices[-1] < most]
        judged = [modes[number] for number in self.numbers]
        columns = [i for mode in judged for i in mode.indices]
        places = {column: place for place, column in enumerate(columns)}
        self.modes = tuple(replace(mode, indices=tuple(places[i] for i in mode.indices)) for mode in judged)
        """The judged modes, whose indices are columns of the eigenpairs below."""
        self.whole = koopman.eigenvalues[columns], koopman.right[:, columns], koopman.left[columns]
        """Eigenvalues, right and left eigenvectors of the whole operator."""
        self._states, self._fold_of, self._moments = states, fold_of, moments
        options: Any = {"offset": koopman.offset is not None, "ridge": koopman.ridge, "rounding": rounding}
        self.sizes = np.array([float(design.pairs) for design in designs])
        """The number of pairs of each fold."""
        self.rests = without_each(designs)
        """For each fold all others, which are fitted."""
        with threads_for(len(self.total.gram) ** 3):
            _require_own(koopman, self.total, self.total.weights(**options))
            self.weights = [rest.weights(**options) for rest in self.rests]
            """C, D and c one below the other, without each fold."""
            pairs = [_eigenpairs(koopman, weights[: koopman.rank], columns) for weights in self.weights]
        self.eigenvalues: list[Complex[Array, " r"]] = [values for values, _ in pairs]
        self.right: list[Complex[Array, "r r"]] = [vectors for _, vectors in pairs]
        """Eigenvectors of C, in columns."""

    @property
    def unknowns(self) -> int:
        """How many numbers each column of the regression had to find."""
        return len(self.total.gram) - int(self.koopman.offset is None)

    def errors(self) -> HeldOutErrors:
        """Compute errors of predictions on held-out sequences: several steps ahead of states, one step of moments."""
        koopman, states, fold_of = self.koopman, self._states, self._fold_of
        if states is None or fold_of is None:
            return self._one_step_errors()
        chosen = enough_sequences(states.lengths, seed=0)
        if koopman.rank > JUDGED_WHOLE:
            chosen = chosen[fold_of[chosen] < FOLDS_TO_PREDICT]
        # Sequences of a fold side by side: most blocks then need the powers of one or two operators, not of all.
        chosen = chosen[np.argsort(fold_of[chosen], kind="stable")]
        return held_out_errors(
            states[chosen],
            fold_of[chosen],
            [self.weights],
            basis=koopman.basis,
            mean=koopman.mean,
            horizons=powers_of_two(states.lengths[chosen], largest=LONGEST_HORIZON),
            driven=koopman.drive is not None,
            in_coordinates=koopman.in_coordinates,
        )

    def instrumented(self, columns: Sequence[int]) -> tuple[Complex[Array, "f k"], Complex[Array, "f k"]] | None:
        """Return sums by fold of a*r and a*b over steps; None of moments, which know no order of pairs.

        For an eigenvector v, a = z[t−1] v and b = z[t] v are about their mean, and r is the residual of z[t+1] v. If
        noise is part of the states, r is uncorrelated with a, and λ + Σ a*r / Σ a*b is λ. Noise that was added to
        recorded states alone pulls λ towards zero, and leaves that sum where it was: z[t−1] is an instrument.
        """
        states, fold_of = self._states, self._fold_of
        if states is None or fold_of is None or states.lengths.max() < 3:
            return None
        chosen, right = enough_sequences(states.lengths, seed=0), self.whole[1][:, list(columns)]
        koopman, k, r, folds = self.koopman, len(columns), self.koopman.rank, len(self.designs)
        along = np.hstack([np.real(right), np.imag(right)])
        weights = own_weights(koopman) @ along
        about = (np.zeros(r) if koopman.offset is None else self.total.mean[:r]) @ along
        fold_of = fold_of[chosen]

        def of_block(block: Block) -> Complex[Array, "2 f k"]:
            follow = np.flatnonzero(np.diff(block.before) == 1)  # two pairs in turn, of the same sequence
            z, at = block.values, block.before[follow + 1]
            before, now, after = (z[rows] for rows in indices_for(z, at - 1, at, at + 1))
            missed = after @ to_device_of(z, along) - now @ to_device_of(z, weights[:r]) - to_device_of(z, weights[-1])
            if block.inputs is not None:
                (rows,) = indices_for(z, at + 1)
                missed = missed - block.inputs[rows] @ to_device_of(z, weights[r:-1])
            a, b = (as_numpy(rows @ to_device_of(z, along)) - about for rows in (before, now))
            a, b, c = (part[:, :k] + 1j * part[:, k:] for part in (a, b, as_numpy(missed)))
            found, fold = np.zeros((2, folds, k), dtype=complex), fold_of[np.repeat(block.numbers, block.lengths - 1)]
            for total, other in zip(found, (c, b), strict=True):
                np.add.at(total, fold[follow], a.conj() * other)
            return found

        projection, driven = Projection(matrix=koopman.basis, mean=koopman.mean), koopman.drive is not None
        make = partial(SumOverBlocks, of_block)
        return tuple(accumulate(states[chosen], make, inputs=driven, projection=projection, what="instruments"))

    def _one_step_errors(self) -> HeldOutErrors:
        """Compute errors one step ahead, from moments; those of the coordinates where the rest is not modelled."""
        total, about = self.total, self.koopman.mean
        missed = sum(
            design.residual_sum_of_squares(own) for design, own in zip(self.designs, self.weights, strict=True)
        )
        variance, copied = total.variance(), float(np.trace(total.change_gram()))
        if not self.koopman.in_coordinates:
            whole = self._moments.numpy()
            mean, squares = whole.sum_y / whole.pairs, float(np.trace(whole.yy))
            variance = squares - whole.pairs * float(mean @ mean)
            energy = squares - 2 * float(about @ whole.sum_y) + whole.pairs * float(about @ about)
            copied = squares - 2 * float(np.trace(whole.xy)) + float(np.trace(whole.xx))
            missed += max(0.0, energy - float(np.trace(total.total)))  # what lies outside of the basis
        return HeldOutErrors(
            horizons=np.array([1]),
            operator=np.array([[missed / variance]]),
            copying=np.array([copied / variance]),
            count=np.array([total.pairs]),
        )


def own_weights(koopman: Koopman) -> Float[Array, "q r"]:
    """Return C, D and c of an operator, one below the other."""
    constant = np.zeros(koopman.rank) if koopman.offset is None else koopman.offset
    return np.vstack([koopman.matrix, *([] if koopman.drive is None else [koopman.drive]), constant])


def _eigenpairs(
    koopman: Koopman, matrix: Float[Array, "r r"], columns: Sequence[int]
) -> tuple[Complex[Array, " k"], Complex[Array, "r k"]]:
    """Return the eigenpairs of a matrix that belong to some eigenpairs of the operator."""
    known = koopman.eigenvalues
    if koopman.rank <= JUDGED_WHOLE:
        values, vectors = np.linalg.eig(matrix)
    elif not columns:
        return np.empty(0, dtype=complex), np.empty((koopman.rank, 0), dtype=complex)
    else:
        from scipy.sparse import linalg  # here, since it takes long to import

        known = known[: columns[-1] + 1]
        start = np.random.default_rng(0).normal(size=koopman.rank)
        options: Any = {"k": len(known) + SPARE, "tol": EIGENPAIRS_TO, "v0": start}
        try:
            found: Any = linalg.eigs(matrix, **options)
            values, vectors = found
        except linalg.ArpackError:  # it includes no convergence
            values, vectors = np.linalg.eig(matrix)
    matched = nearest_of(known, values)[columns]
    return values[matched].astype(complex), vectors[:, matched].astype(complex)


def nearest_of(eigenvalues: Complex[Array, " r"], others: Array) -> Int[Array, " r"]:
    """Match each eigenvalue with one of the others: smallest sum of distances, none twice."""
    from scipy.optimize import linear_sum_assignment  # here, since it takes long to import

    return linear_sum_assignment(np.abs(eigenvalues[:, None] - others))[1]


def _require_own(koopman: Koopman, total: NormalEquations, weights: Float[Array, "q r"]) -> None:
    """Raise for data to which a fit in the operator's basis, with these weights, is another operator."""
    change = own_weights(koopman) - weights
    energy = float(np.trace(total.total)) or 1.0
    apart = float(np.trace(change.T @ total.gram @ change)) / energy
    if not apart <= REFIT_TO:
        raise KannError(
            "the operator was not fitted to these sequences: a fit to them predicts states that differ by "
            f"{percent(apart)} of their energy; pass the states or moments that it was fitted to, and where= if it was "
            "fitted with it "
            f"({ONE_INPUT})"
        )


def folded_data(koopman: Koopman, data: Any, *, folds: int | None, groups: Any, where: Any, seed: int) -> Folds:
    """Put the data into folds and fit without each; raise for data that the operator was not fitted to."""
    driven = koopman.drive is not None
    if where is not None and (isinstance(data, Moments) or are_moments(data)):
        raise KannError("where= chooses steps, and moments are sums over all of them; pass the states themselves")
    is_cut = False
    if are_moments(data):
        if groups is not None:
            raise KannError("groups are for states; each of the moments is a group of its own")
        used = [moments for moments in data if moments.pairs]
        if len(used) < FEWEST_FOLDS:
            raise KannError(f"{len(used)} moments with pairs of states are too few folds; pass {FEWEST_FOLDS} or more")
    else:
        states = require_states_of(koopman, data)
        blocks = states if groups is not None else blocks_to_hold_out(states)
        is_cut = len(blocks) > len(states)
        fold_of = assign_folds(
            blocks.lengths,
            folds=folds,
            groups=groups,
            repeats=repeats_of(blocks),
            seed=seed,
            most=FOLDS_TO_JUDGE if koopman.rank <= JUDGED_WHOLE else FOLDS_OF_WIDE,
        )
        if where is None:
            read = [states.values] if not driven or states.inputs is None else [states.values, states.inputs]
            rounding = max(rounding_of(rows[0:1]) for rows in read)
            basis: Any = {"basis": koopman.basis, "mean": koopman.mean, "driven": driven}
            designs = designs_of_folds(states, fold_of, lengths=blocks.lengths, **basis)
            return Folds(koopman, designs, rounding=rounding, states=blocks, fold_of=fold_of, in_blocks=is_cut)
        used = _moments_where(blocks, where, fold_of, inputs=driven)
    rounding = max(max(moments.rounding, moments.input_rounding if driven else 0.0) for moments in used)
    total = sum(used[1:], start=used[0])
    return Folds(koopman, equations_of_groups(koopman, used), rounding=rounding, moments=total, in_blocks=is_cut)


def _moments_where(states: States, where: Any, fold_of: Int[Array, " s"], *, inputs: bool) -> list[Moments]:
    """Compute moments of the chosen steps, one for each fold of whole sequences.

    Pieces between steps that do not count may be short, and a memory is the same all through one of them: states in
    shuffled order would predict it as well. The null of moments shuffles over all pieces.
    """
    pieces, source = only_pairs(states, where)
    with_pairs = np.unique(fold_of[source[pieces.lengths > 1]])
    if len(with_pairs) < FEWEST_FOLDS:
        raise KannError(
            f"where= leaves pairs of states in {len(with_pairs)} of {len(np.unique(fold_of))} folds, and intervals "
            f"need {FEWEST_FOLDS}; choose steps of more sequences"
        )
    return [Moments.of(pieces[fold_of[source] == fold], inputs=inputs) for fold in with_pairs]


def equations_of_groups(koopman: Koopman, groups: Sequence[Moments]) -> list[NormalEquations]:
    """Sum the normal equations of each group in the basis of the operator; raise for moments that do not fit it."""
    inputs = len(koopman.drive) if koopman.drive is not None else 0
    for moments in groups:
        if moments.dim != koopman.dim or (inputs and moments.input_dim != inputs):
            raise KannError(
                f"moments of {moments.dim} units and {moments.input_dim} inputs do not belong to an operator of "
                f"{koopman.dim} units and {inputs} inputs; pass those that it was fitted to"
            )
    basis: Any = {"basis": koopman.basis, "mean": koopman.mean, "driven": koopman.drive is not None}
    return [NormalEquations.of_moments(moments, **basis) for moments in groups]


def are_moments(data: Any) -> bool:
    """Return whether these are moments of several groups of sequences."""
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(part, Moments) for part in data)


def require_states_of(koopman: Koopman, data: Any) -> States:
    """Return the states that were passed; raise for another number of units, or without inputs that are needed."""
    if isinstance(data, Moments):
        raise KannError("moments of all sequences together leave nothing to hold out; pass a list of moments of groups")
    states = as_states(data)
    inputs = driving_inputs(koopman, states)
    if inputs is not None and koopman.drive is not None:
        require_width(inputs, len(koopman.drive), what="inputs", of="the operator's drive")
    return states
