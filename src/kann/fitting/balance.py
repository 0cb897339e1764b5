"""Balanced coordinates: directions along which states vary and on which the outputs depend."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from kann import _display
from kann.backends.arrays import as_array, as_numpy, float64_copy, namespace, on_accelerator, to_device_of
from kann.checks import require_all_finite, require_float, require_whole_number, require_width
from kann.data.moments import refuse_not_finite
from kann.data.reduction import SumOverBlocks, accumulate
from kann.data.serialization import Saved, require_finite_fields
from kann.data.states import as_states
from kann.errors import KannError
from kann.fitting.basis import factor_of_gram, operand, signs_of
from kann.typing import AnyArray, Array, Float, Int

CONSISTENT_TO = 1e-6
"""Largest |W A − I| of a saved balance. Rounding leaves about 1e-10."""

MOST_DIRECTIONS = 256
"""Directions that are kept. With 100,000 units they and their decoder take 400 MB."""

BLOCK_NUMBERS = 2**24
"""Numbers of a snapshot matrix converted to float64 at a time (128 MB)."""

EXACT, ROUNDED = 64 * np.finfo(np.float64).eps, 1e-7
"""Singular values below this fraction of |X| |Y| are rounding noise: of float64 snapshots; of float32 ones, and of
covariances, whose factors keep half of the digits of float64."""

REPLICATES, LEADING, LEAST_SEQUENCES = 200, 32, 8
"""Bootstrap replicates, singular values that are resampled, and the minimum number of sequences: replicates of fewer
hardly differ, and would make every gap look certain."""

JITTER = 1e-12
"""Fraction of its trace that is added to Q of a replicate."""

LEVEL = 0.95
"""Fraction of the replicates that must have a gap, and that the interval of the count covers."""

SHOWN = 12
"""Coordinates in a printed table."""

OUTPUTS = {
    "class": "classes, only their differences count (pass outputs='values' for a regression)",
    "labels": "labels",
    "values": "values",
    "single": "one number",
}
"""How a printed table names what outputs were taken for."""

LEAST_VALUE, LEAST_TAIL, LEAST_RATIO, LEAST_LEAD = 0.05, 0.01, 2.5, 2.0
"""See `count_before_gap`. Chosen on linear systems with k = 1 … 10 equal or unequal values before a gap and flat,
geometric or power-law tails, estimated from 64 or 256 sequences (tests/fitting/test_balance_count.py): gaps by a factor
of 8 are found, none is found in geometric decays, power laws and flat spectra, and no count is wrong. Gaps by a factor
of 4 are found where the values before them are nearly equal. A second gap was admitted after LSTMs had shown one; on
networks of other seeds that rule finds the known number in 38 of 45 LSTMs and 44 of 45 GRUs, and no gap in the others
(docs/balanced.md)."""


def count_before_gap(values: Float[Array, " k"]) -> int | None:
    """Count the singular values before the first gap; None if there is no gap.

    Gaps are the largest one or two ratios of a value to the next, among values of at least 1 % of the first. Each must
    be at least 2.5, and at least twice any other ratio: a steady decay has no gap, however fast. With two gaps, a few
    weak values lie between those that count and the rest. The last value that counts is at least 5 % of the first.

    >>> count_before_gap(np.array([1, 0.95, 0.92, 0.08, 0.07])), count_before_gap(0.5 ** np.arange(9))
    (3, None)
    >>> count_before_gap(np.array([1, 0.9, 0.8, 0.15, 0.03, 0.03, 0.02]))
    3
    """
    if len(values) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (values[:-1] / values[1:])[values[:-1] >= LEAST_TAIL * values[0]]
    order = np.argsort(-ratios, kind="stable")
    for number in (1, 2):
        gaps, others = order[:number], ratios[order[number:]].max(initial=1.0)
        least = ratios[gaps].min()
        if least >= LEAST_RATIO and least >= LEAST_LEAD * others:
            first = int(gaps.min())
            return first + 1 if values[first] >= LEAST_VALUE * values[0] else None
    return None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Balance(Saved):
    """Directions that balance how much the states vary with how much the outputs depend on them.

    Coordinates of states are s = (h − mean) A. They are uncorrelated on the recorded states, their variances are the
    first singular values, and mean + s W is the linear regression of the state on them. With P = X Xᵀ the covariance of
    the states, Q = Y Yᵀ that of the adjoints (gradients of the outputs with respect to the state) and the singular
    value decomposition Yᵀ X = U Σ Vᵀ, A = Y U Σ^(−1/2) and W = (X V Σ^(−1/2))ᵀ. This is balanced truncation (Moore
    1981) with covariances of states and gradients (Otto, Padovan and Rowley 2022). Adjoints are scaled so that Σ begins
    with 1.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> states = rng.normal(size=(500, 3)) * [10.0, 1.0, 0.1]
    >>> adjoints = rng.normal(size=(500, 3)) * [0.0, 1.0, 0.1]  # the outputs ignore the unit that varies most
    >>> balance = Balance.of_snapshots(states, adjoints)
    >>> np.abs(balance.directions[:, 0]).round(1).tolist()
    [0.0, 1.0, 0.0]
    """

    values: Float[Array, " m"]
    """All singular values relative to the first, decreasing; those beyond the directions are below rounding, or were
    not asked for."""
    directions: Float[Array, "d k"]
    """A, in columns. The component of largest modulus of each is positive."""
    decoder: Float[Array, "k d"]
    """W: by how much the mean state changes with each coordinate. W A = I."""
    mean: Float[Array, " d"]
    """Mean of the states."""
    resampled: Float[Array, "b q"] | None = None
    """The leading singular values of bootstrap replicates over sequences; None for fewer than 8 sequences."""
    has_adjoints: bool = True
    """False for principal components, see `of_states`."""
    outputs: str | None = None
    """What `kann.balance` took the outputs of the network for: "class", "labels", "values", or "single" for one."""

    instead = "pass what kann.balance or Balance.of_states returned"

    @property
    def dim(self) -> int:
        """Number of hidden units d."""
        return self.directions.shape[0]

    @property
    def rank(self) -> int:
        """Number of directions k."""
        return self.directions.shape[1]

    @property
    def count(self) -> int | None:
        """Number of coordinates before the gap in the singular values; None without a gap, or without adjoints.

        A gap that fewer than 95 % of the replicates over sequences have is none.
        """
        is_stable = self.resampled is None or self._resampled_counts()
        return count_before_gap(self.values) if self.has_adjoints and is_stable else None

    @property
    def count_interval(self) -> tuple[int, int] | None:
        """Range of the count over resampled sequences; None without a gap, or without sequences to resample."""
        counts = self._resampled_counts()
        if self.count is None or not counts:
            return None
        low, high = np.quantile(counts, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="closest_observation")
        return int(low), int(high)

    def _resampled_counts(self) -> list[int]:
        """Return the count of each replicate that has a gap; none if too few have."""
        replicates = [] if self.resampled is None else self.resampled
        counts = [count for row in replicates if (count := count_before_gap(row)) is not None]
        return counts if len(counts) >= LEVEL * len(replicates) else []

    def coordinates(self, h: AnyArray) -> Float[AnyArray, "... k"]:
        """Compute coordinates s = (h − mean) A of states (..., d)."""
        h = operand(h, require_float, what="states")
        require_width(h, self.dim, what="states", of="the balance")
        return (h - to_device_of(h, self.mean)) @ to_device_of(h, self.directions)

    def complete(self, s: AnyArray) -> Float[AnyArray, "... d"]:
        """Mean state given the first coordinates s (..., j), by linear regression: mean + s W."""
        s = operand(s, require_float, what="coordinates")
        if not s.ndim or not 0 < s.shape[-1] <= self.rank:
            raise KannError(f"coordinates of shape {tuple(s.shape)} were passed; pass (..., j) with j<={self.rank}")
        return s @ to_device_of(s, self.decoder[: s.shape[-1]]) + to_device_of(s, self.mean)

    @staticmethod
    def of_snapshots(
        states: AnyArray, adjoints: AnyArray, *, sequences: Int[Array, "_"] | None = None, rank: int | None = None
    ) -> "Balance":
        """Balance states with adjoints, both in rows; no d × d matrix is formed if there are fewer rows.

        Parameters
        ----------
        states
            States (n, d).
        adjoints
            Adjoints (m, d), or (n, draws, d): several of each state.
        sequences
            The sequence that each state is of. The singular values are then resampled over sequences; it needs
            the adjoints of the same n states.
        rank
            Largest number of directions to keep.
        """
        states, rows = (each if on_accelerator(each) else as_numpy(each) for each in (states, adjoints))
        rows = rows.reshape(-1, rows.shape[-1]) if rows.ndim == 3 else rows
        _require_rows(states, rows)
        mean = as_numpy(namespace(states).sum(states, axis=0, dtype=namespace(states).float64)) / len(states)
        x, y = _factor(states, mean), _factor(rows, np.zeros_like(mean))
        exact = _is_double(states) and _is_double(rows)
        balance = _balanced(x, y, mean=mean, count=len(states), noise=EXACT if exact else ROUNDED, rank=rank)
        if sequences is None or len(np.unique(sequences)) < LEAST_SEQUENCES:
            return balance
        if len(sequences) != len(states) or len(rows) % len(states):
            raise KannError(
                f"there are {len(sequences)} sequence numbers and {len(rows)} adjoints for {len(states)} states; pass "
                "one number and equally many adjoints for each state"
            )
        return _with_replicates(balance, states, rows, sequences)

    @staticmethod
    def of_covariances(
        states: Float[Array, "d d"],
        adjoints: Float[Array, "d d"],
        *,
        mean: Float[Array, " d"] | None = None,
        rank: int | None = None,
    ) -> "Balance":
        """Balance the covariance P of the states with the second moments Q of the adjoints.

        A covariance keeps half of the digits: singular values below 1e-7 of the largest possible are left out.
        """
        _require_rows(states, adjoints)
        zero = np.zeros(len(states))
        x, y = (_Factor(rows=factor_of_gram(each, noise=0.0), centre=zero) for each in (states, adjoints))
        return _balanced(x, y, mean=zero if mean is None else mean, count=1, noise=ROUNDED, rank=rank)

    @staticmethod
    def of_states(states: Any, *, rank: int | None = None) -> "Balance":
        """Compute principal components, for states without a model: as if outputs depended on the states as they vary.

        They are where the states vary most, which need not be what the outputs depend on: in a sentiment network one
        balanced coordinate keeps 93 % of the decisions, and the first principal component 72 %. ``values`` are
        variances relative to the largest, and do not show the number of coordinates that the outputs need.

        >>> states = np.random.default_rng(0).normal(size=(20, 50, 3)) * [1.0, 3.0, 0.1]
        >>> np.abs(Balance.of_states(states).values).round(2).tolist()
        [1.0, 0.12, 0.0]
        """
        states = as_states(states)
        make = partial(SumOverBlocks, lambda block: as_numpy(block.values.sum(0)))
        total = accumulate(states, make, what="mean")
        if not np.isfinite(total).all():
            refuse_not_finite(states, inputs=False)
        mean = total / len(states.values)
        factor, noise = _factor(states.values, mean), EXACT if _is_double(states.values) else ROUNDED
        balance = _balanced(factor, factor, mean=mean, count=len(states.values), noise=noise, rank=rank)
        return replace(balance, has_adjoints=False)

    def _check(self) -> None:
        require_finite_fields(self)
        values, identity = self.values, self.decoder @ self.directions
        if np.abs(identity - np.eye(self.rank)).max() > CONSISTENT_TO:
            raise ValueError("its decoder does not belong to its directions")
        if values[0] != 1 or values.min() < 0 or len(values) < self.rank or (np.diff(values) > 0).any():
            raise ValueError("its values do not decrease from 1")
        if self.outputs is not None and self.outputs not in OUTPUTS:
            raise ValueError("its outputs are of an unknown kind")

    def __repr__(self) -> str:
        shown = ", ".join(f"{value:.2g}" for value in self.values[:6]) + (", …" if len(self.values) > 6 else "")
        kind = "" if self.outputs is None else f", outputs {self.outputs!r}"
        return f"Balance({self.dim} units, {self.rank} coordinates, {self._count_in_words()}{kind}; values {shown})"

    def __str__(self) -> str:
        rows = [["coordinate", "value", "next/this"]]
        for i, value in enumerate(self.values[: min(SHOWN, self.rank)]):
            following = f"{self.values[i + 1] / value:.2f}" if i + 1 < len(self.values) else "–"
            rows.append([f"{i + 1}{' <' if i + 1 == self.count else ''}", f"{value:.3f}", following])
        taken_for = "" if self.outputs is None else f"; outputs: {OUTPUTS[self.outputs]}"
        return "\n".join([f"{self.dim} units, {self._count_in_words()}{taken_for}", *_display.in_columns(rows)])

    def _count_in_words(self) -> str:
        if self.count is None:
            return "no gap" if self.has_adjoints else "principal components"
        interval = self.count_interval
        return f"count {self.count}" + (f" ({interval[0]}–{interval[1]})" if interval else "")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Factor:
    """Rows F with FᵀF = the second moments about a mean; they are centred and converted block by block."""

    rows: Float[Array, "r d"]
    centre: Float[Array, " d"]

    def columns(self, at: slice) -> Float[Array, "r _"]:
        return self.rows[:, at] - self.centre[at]  # float64, as the centre is


def _is_double(rows: AnyArray) -> bool:
    return str(rows.dtype).endswith("float64")


def _factor(rows: AnyArray, centre: Float[Array, " d"]) -> _Factor:
    """Return the rows themselves where they are few, else d rows with the same second moments."""
    n, d = rows.shape
    if n <= d:
        return _Factor(rows=as_numpy(rows), centre=centre)
    step = max(2 * d, BLOCK_NUMBERS // 16 // d)  # smaller blocks stay in the processor's cache
    blocks = (as_array(rows[first : first + step]) for first in range(0, n, step))  # of a store or Dask, read here
    blocks = (block - to_device_of(block, centre) for block in blocks)
    if not _is_double(rows):  # rounded to 6e-8, below which a Gram matrix loses digits; five times as fast as QR
        rows = factor_of_gram(as_numpy(sum(block.T @ block for block in blocks)), noise=0.0)
        return _Factor(rows=rows, centre=np.zeros(d))
    factor: Any = np.empty((0, d))
    for block in blocks:
        stacked = np.concatenate([factor, as_numpy(block)])
        factor = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:d]
    return _Factor(rows=factor, centre=np.zeros(d))


def _balanced(
    x: _Factor, y: _Factor, *, mean: Float[Array, " d"], count: int, noise: float, rank: int | None
) -> Balance:
    """Balance XXᵀ/count with YYᵀ: Yᵀ X = U Σ Vᵀ, in blocks of units."""
    if rank is not None:
        require_whole_number(rank, "rank")
    d = len(mean)
    step = max(1, BLOCK_NUMBERS // max(len(x.rows), len(y.rows)))
    blocks = [slice(first, first + step) for first in range(0, d, step)]
    core, energies = 0.0, np.zeros(2)
    for at in blocks:
        left, right = y.columns(at), x.columns(at)
        core = core + left @ right.T
        energies += np.vdot(left, left), np.vdot(right, right)
    if not energies[1] > 0:
        raise KannError("every state is the same, so there is nothing to balance; pass states that change")
    if not energies[0] > 0:
        raise KannError(
            "all adjoints are zero: the outputs do not depend on these states; pass another layer, or use "
            "Balance.of_states(states), whose directions are principal components"
        )
    u, values, vt = np.linalg.svd(core, full_matrices=False)
    resolved = int(np.sum(values > noise * np.sqrt(energies.prod())))
    k = min(resolved, MOST_DIRECTIONS if rank is None else rank)
    if not k:
        raise KannError(
            "the states do not vary where the outputs depend on them, so there is nothing to balance; pass other "
            "sequences, or use Balance.of_states(states), whose directions are principal components"
        )
    relative = values[:k] / values[0]
    # The scale of the adjoints is arbitrary: with this one the coordinates have the relative values as variances.
    left, right = u[:, :k] / np.sqrt(relative) * (np.sqrt(count) / values[0]), vt[:k].T / np.sqrt(relative * count)
    directions, decoder = np.empty((d, k)), np.empty((k, d))
    for at in blocks:
        directions[at] = y.columns(at).T @ left
        decoder[:, at] = right.T @ x.columns(at)
    signs = signs_of(directions)
    return Balance(
        values=values / values[0], directions=directions * signs, decoder=decoder * signs[:, None], mean=mean
    )


def _with_replicates(balance: Balance, states: AnyArray, adjoints: AnyArray, sequences: Int[Array, " n"]) -> Balance:
    """Resample the leading values over sequences.

    In balanced coordinates P and Q are small: AᵀPA and WQWᵀ, whose product has the squared singular values as
    eigenvalues. Each sequence adds to both, so that a replicate costs sums of small matrices.
    """
    q = min(LEADING, balance.rank)
    _, place = np.unique(sequences, return_inverse=True)
    s = _times(states, balance.directions[:, :q]) - balance.mean @ balance.directions[:, :q]
    g = _times(adjoints, balance.decoder[:q].T)
    of_states, of_adjoints = _products_by(place, s), _products_by(np.repeat(place, len(g) // len(s)), g)
    groups = len(of_states)
    weights = np.random.default_rng(0).multinomial(groups, np.full(groups, 1 / groups), size=REPLICATES)
    p, adjoint = (np.tensordot(weights, each, axes=1) for each in (of_states, of_adjoints))
    # A replicate with few sequences may be singular. What is added is far below the values that a gap is looked for in.
    ridge = JITTER * np.trace(adjoint, axis1=1, axis2=2)[:, None, None] * np.eye(q)
    factor = np.linalg.cholesky(adjoint + ridge)
    squares = np.linalg.eigvalsh(factor.transpose(0, 2, 1) @ p @ factor)[:, ::-1]
    values = np.sqrt(np.maximum(squares, 0.0))
    beyond = np.tile(balance.values[q : q + 1], (REPLICATES, 1))  # so that a gap before values of rounding is seen
    return replace(balance, resampled=np.hstack([values / values[:, :1], beyond]))


def _times(rows: AnyArray, columns: Float[Array, "d q"]) -> Float[Array, "n q"]:
    """Return the product in float64, converting some rows at a time."""
    step, columns = max(1, BLOCK_NUMBERS // 16 // rows.shape[1]), to_device_of(rows, columns)
    parts = (float64_copy(rows[i : i + step]) @ columns for i in range(0, len(rows), step))
    return np.concatenate([as_numpy(part) for part in parts])


def _products_by(place: Int[Array, " n"], rows: Float[Array, "n q"]) -> Float[Array, "g q q"]:
    """Compute Σ zᵀz over the rows of each group."""
    order = np.argsort(place, kind="stable")
    groups = np.split(rows[order], np.flatnonzero(np.diff(place[order])) + 1)
    return np.stack([group.T @ group for group in groups])


def _require_rows(states: AnyArray, adjoints: AnyArray) -> None:
    """Raise unless both have rows of the same width, of finite numbers."""
    for rows, what in ((states, "states"), (adjoints, "adjoints")):
        if rows.ndim != 2 or 0 in rows.shape or rows.shape[1] != states.shape[-1]:
            shapes = tuple(rows.shape), tuple(states.shape)
            raise KannError(f"{what} have shape {shapes[0]}, states {shapes[1]}; pass rows of the same width")
        require_float(rows, what=what)
        if not bool(namespace(rows).all(namespace(rows).isfinite(rows))):
            remedy = "shorten the sequences, or run the model in float64"
            require_all_finite(as_numpy(rows), what=what, remedy=remedy)
