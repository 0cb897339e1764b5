"""Second moments of hidden states: all that a spectral analysis needs, in d × d memory."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np

from kann.backends._distributed import add_up
from kann.backends.arrays import as_array_or_dask, as_numpy, gram, indices_for, namespace, to_device_of
from kann.checks import require_flag
from kann.data.reduction import (
    Additive,
    Block,
    Cut,
    Projection,
    SumOverBlocks,
    accumulate,
    add_to,
    number_of_all_ranks,
    require_finite,
)
from kann.data.serialization import Saved, require_finite_fields, without_axes
from kann.data.states import States, as_states, states_of
from kann.errors import KannError, NotFiniteError
from kann.typing import AnyArray, Array, Float

NEGATIVE_BY_ROUNDING = 1e-9
"""Largest negative square that rounding may leave after a subtraction, relative to the whole.
Sums of 10⁹ float64 numbers are good to 1e-11 or better."""

LARGEST_SQUARE = 1e300
"""Sums of squares above this leave no room for what is computed from them in float64."""

SYMMETRIC_TO = 1e-6
"""Largest asymmetry of a saved Gram matrix, relative to its largest entry; rounding stays far below."""

COUNTS = ("sequences", "states", "pairs")
SPACINGS = ("rounding", "input_rounding")
"""Of several moments the coarsest counts; all other fields add up."""

SCALARS = (*COUNTS, *SPACINGS)

ARRAYS = ("sum_h", "sum_x", "sum_y", "hh", "xx", "xy", "yy", "sum_u", "uu", "xu", "uy")

GRAMS = ("hh", "xx", "yy", "uu")

ROWS_TO_MULTIPLY = 1024
"""Number of rows at the ends of sequences that are multiplied together: a product of fewer takes as long."""


@dataclass(slots=True, eq=False, kw_only=True)
class Moments(Saved):
    """Counts, sums and products of states h and of consecutive pairs (x, y) = (h_t, h_{t+1}), in float64.

    They are additive: in any order, over any split of the sequences, on any device or machine. Start from an empty one
    and update it with batches, or add several; subtract what was kept apart and is to be left out.

    >>> batches = np.random.default_rng(0).normal(size=(3, 8, 10, 4))
    >>> moments = Moments()
    >>> for batch in batches:
    ...     _ = moments.update(batch)
    >>> moments.sequences, moments.states, moments.pairs
    (24, 240, 216)
    """

    sequences: int = 0
    """Number of sequences."""
    states: int = 0
    """Number of states h."""
    pairs: int = 0
    """Number of pairs (x, y)."""
    rounding: float = 0.0
    """The coarsest relative spacing of the states' numbers, such as 2⁻²³ for float32: what lies below it is noise."""
    input_rounding: float = 0.0
    """The same for the inputs."""
    sum_h: Float[AnyArray, " d"] | None = None
    """(d,) Σ h"""
    sum_x: Float[AnyArray, " d"] | None = None
    """(d,) Σ x"""
    sum_y: Float[AnyArray, " d"] | None = None
    """(d,) Σ y"""
    hh: Float[AnyArray, "d d"] | None = None
    """(d, d) HᵀH"""
    xx: Float[AnyArray, "d d"] | None = None
    """(d, d) XᵀX"""
    xy: Float[AnyArray, "d d"] | None = None
    """(d, d) XᵀY"""
    yy: Float[AnyArray, "d d"] | None = None
    """(d, d) YᵀY"""
    sum_u: Float[AnyArray, " p"] | None = None
    """(p,) Σ u, where u is the input that drove x to y; None without inputs, as are the following."""
    uu: Float[AnyArray, "p p"] | None = None
    """(p, p) UᵀU"""
    xu: Float[AnyArray, "d p"] | None = None
    """(d, p) XᵀU"""
    uy: Float[AnyArray, "p d"] | None = None
    """(p, d) UᵀY"""

    @staticmethod
    def of(states: Any, *, inputs: bool = True) -> "Moments":
        """Compute moments of all states, and of their inputs where they have any and ``inputs`` is True.

        Of a dask array or a store at an address they are computed chunk by chunk on Dask, and so they are of a store on
        disk if this process has a Dask client.
        """
        require_flag(inputs, "inputs")
        return moments_of(as_states(states), inputs=inputs)

    def update(self, values: AnyArray, lengths: Any = None, *, inputs: AnyArray | None = None) -> "Moments":
        """Add padded (S, T, d) states with their lengths, or (N, d) rows of whole sequences with their lengths.

        Without lengths, every step of padded states counts, and rows are one sequence. ``inputs`` have the same layout.
        A batch that cannot be used raises an error and leaves the moments as they were.
        """
        drive = None if inputs is None else as_array_or_dask(inputs)
        self += Moments.of(states_of(as_array_or_dask(values), lengths, inputs=drive))
        return self

    def __add__(self, other: Any) -> "Moments":
        if not isinstance(other, Moments):
            return NotImplemented
        total = Moments()
        total += self
        total += other
        return total

    def __iadd__(self, other: Any) -> "Moments":
        """Add in place, on the device where these moments are."""
        if not isinstance(other, Moments):
            return NotImplemented
        if other.sum_h is None:
            return self
        self.require_alike(other)
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in SPACINGS:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for name, theirs in other.to_device_of(self)._arrays():
            ours = getattr(self, name)
            # What is added is a copy: the other moments keep their own.
            setattr(self, name, theirs + 0 if ours is None else ours + theirs)
        return self

    def __sub__(self, other: Any) -> "Moments":
        """Leave out what ``other`` added, up to rounding: the moments of sequences that are part of these."""
        if not isinstance(other, Moments):
            return NotImplemented
        if other.sum_h is None:
            return self + Moments()
        left: dict[str, Any] = {name: getattr(self, name) - getattr(other, name) for name in COUNTS}
        if min(left.values()) >= 0:
            self.require_alike(other)
            left |= {name: getattr(self, name) for name in SPACINGS}
            left |= {name: getattr(self, name) - theirs for name, theirs in other.to_device_of(self)._arrays()}
            rest = Moments(**left)
            if _can_remain(rest, self):
                return rest if rest.states else Moments()
        raise KannError(f"{other!r} cannot be part of {self!r}; subtract only what was added")

    def __radd__(self, other: Any) -> "Moments":
        """Let ``sum([...])`` work, which starts from 0."""
        return self + Moments() if other == 0 else NotImplemented

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return 0 if self.sum_h is None else len(self.sum_h)

    @property
    def input_dim(self) -> int:
        """The number of inputs p, or 0."""
        return 0 if self.sum_u is None else len(self.sum_u)

    def all_reduce(self, *, group: Any = None) -> "Moments":
        """Sum over the ranks of torch.distributed, in place: afterwards every rank holds the moments of all of them.

        Every rank of ``group`` must call it, also one that has no data, whose moments are empty; by default these are
        all ranks. Ranks that hold the same moments raise, since each state would count once for each of them: sum
        moments once, and if several ranks run one copy of the model (tensor parallelism), pass a group with one rank
        of each copy. Record further data into new moments, sum those, and add. If it fails, the moments are as before.
        """
        sizes = {"units": self.dim, "inputs": self.input_dim}
        total = add_up(dict(self._items()), largest=SPACINGS, sizes=sizes, group=group)
        for name, value in total.items():
            setattr(self, name, value)
        return self

    def numpy(self) -> "Moments":
        """Return the same moments with every array in numpy, on the host."""
        return self._with(as_numpy)

    def to_device_of(self, other: "Moments") -> "Moments":
        """Return the same moments on the device of ``other``, in its kind of array; unchanged if they are there."""
        mine, theirs = self.sum_h, other.sum_h
        if mine is None or theirs is None or (type(mine) is type(theirs) and mine.device == theirs.device):
            return self
        return self._with(lambda array: to_device_of(theirs, as_numpy(array)))

    def _with(self, convert: Callable[[AnyArray], AnyArray]) -> "Moments":
        """Return the same moments with each array converted."""
        return Moments(**dict(self._items()) | {name: convert(array) for name, array in self._arrays()})

    def _content(self) -> dict[str, Any]:
        return dict(self.numpy()._items())

    @classmethod
    def _from_version_1(cls, arrays: dict[str, Array], path: str | os.PathLike[str]) -> dict[str, Any]:
        return without_axes(arrays)

    def _check(self) -> None:
        require_finite_fields(self)
        arrays = dict(self._arrays())
        of_states, of_inputs = ({name in arrays for name in group} for group in (ARRAYS[:7], ARRAYS[7:]))
        if len(of_states) > 1 or len(of_inputs) > 1 or ("uu" in arrays and "hh" not in arrays):
            raise ValueError("it lacks some of its sums")
        counts = f"{self.sequences} sequences, {self.states} states and {self.pairs} pairs"
        if not 0 <= self.sequences <= self.states - self.pairs or self.pairs < 0 or (self.states > 0) != bool(arrays):
            raise ValueError(f"{counts} contradict each other or the sums")
        if not all(0 <= getattr(self, name) < 1 for name in SPACINGS):
            raise ValueError("'rounding' or 'input_rounding' is no spacing of numbers")
        # Those of 1 and of each unit: |Σa| is at most √(n Σa²), and |Σab| at most √(Σa² Σb²).
        size = {name[0]: np.sqrt(np.abs(arrays[name].diagonal())) for name in GRAMS if name in arrays}
        for name, array in arrays.items():
            if name.startswith("sum_"):
                most = np.sqrt(self.states if name == "sum_h" else self.pairs) * size[name[-1]]
            else:
                most = np.outer(size[name[0]], size[name[1]])
            noise = SYMMETRIC_TO * most.max()
            if most.max() > LARGEST_SQUARE or (np.abs(array) > (1 + SYMMETRIC_TO) * most + noise).any():
                raise ValueError(f"{name!r} holds sums that the sums of squares rule out")
            if name in GRAMS and (np.abs(array - array.T).max() > noise or array.diagonal().min() < -noise):
                raise ValueError(f"{name!r} is no Gram matrix: it is not symmetric, or has negative squares")

    def __repr__(self) -> str:
        driven = f", {self.input_dim} inputs" if self.input_dim else ""
        return f"Moments({self.states} states of {self.sequences} sequences, {self.dim} units{driven})"

    def _items(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in (*SCALARS, *ARRAYS)]

    def _arrays(self) -> list[tuple[str, AnyArray]]:
        """Return the names and values of all arrays that there are."""
        return [(name, getattr(self, name)) for name in ARRAYS if getattr(self, name) is not None]

    def require_alike(self, other: "Moments") -> None:
        """Raise if the other moments have another number of units or inputs."""
        if self.sum_h is not None and (self.dim, self.input_dim) != (other.dim, other.input_dim):
            raise KannError(
                f"moments of {other.dim} units and {other.input_dim} inputs cannot be added to moments of "
                f"{self.dim} units and {self.input_dim} inputs; pass states of the same layer"
            )

    def require_pairs(self) -> None:
        """Raise for moments from which no operator can be fitted."""
        if not self.pairs:
            raise KannError(
                f"there are no consecutive pairs: {self.sequences} sequences with {self.states} states in all; "
                "pass sequences of two steps or more"
            )

    def in_basis(self, matrix: Float[Array, "d r"]) -> "Moments":
        """Return the moments of coordinates h @ matrix, multiplied where these moments are, as numpy arrays."""
        matrix = to_device_of(self.sum_h, matrix)
        values: dict[str, Any] = dict(self._items())
        values |= {name: values[name] @ matrix for name in ("sum_h", "sum_x", "sum_y")}
        values |= {name: matrix.T @ (values[name] @ matrix) for name in ("hh", "xx", "xy", "yy")}
        if self.input_dim:
            values |= {"xu": matrix.T @ self.xu, "uy": self.uy @ matrix}
        return Moments(**values).numpy()


def _can_remain(rest: Moments, whole: Moments) -> bool:
    """Return whether these can be moments of some sequences of ``whole``: counts fit, and no square is negative.

    Units are scaled to their size in the whole, so that rounding counts alike in all of them.
    """
    if (rest.states == 0) != (rest.sequences == 0) or not rest.sequences <= rest.states - rest.pairs:
        return False
    for name, total in whole._arrays():
        if name in GRAMS:
            size = np.sqrt(np.maximum(as_numpy(total.diagonal()), np.finfo(np.float64).tiny))
            scaled = as_numpy(getattr(rest, name)) / size / size[:, None]
            if not np.isfinite(scaled).all() or (not rest.states and scaled.diagonal().max() > NEGATIVE_BY_ROUNDING):
                return False
            try:
                np.linalg.cholesky(scaled + len(size) * NEGATIVE_BY_ROUNDING * np.eye(len(size)))
            except np.linalg.LinAlgError:
                return False
    return True


def moments_of(states: States, *, inputs: bool, projection: Projection | None = None) -> Moments:
    """Compute moments of all states, or of their coordinates if there is a projection."""
    moments = measure(states, inputs=inputs, projection=projection)
    require_finite_squares(states, moments.hh, moments.uu)
    return moments


def measure(states: States, *, inputs: bool, projection: Projection | None = None) -> Moments:
    """Compute moments without the check for NaN and overflow, which would synchronise a GPU."""
    moments = accumulate(states, PairProducts, inputs=inputs, projection=projection, what="moments")
    moments.sequences = number_of_all_ranks(len(states))
    return moments


class PairProducts:
    """Accumulates the moments of states, block by block.

    The states of a sequence are its first, its last and those in the middle. XᵀX is middle plus first, YᵀY middle plus
    last, HᵀH all three: one large product serves them all, without any subtraction.
    """

    needs_pairs = True
    PARTS: ClassVar = {
        "hh": ("middle", "first", "last", "single"),
        "xx": ("middle", "first", "cut_x"),
        "yy": ("middle", "last", "cut_y"),
    }
    """Of which products each Gram matrix is the sum. Pairs at a cut have an x like a first state and a y like a last
    one, but no state that would count again."""

    def __init__(self) -> None:
        self._states = self._pairs = 0
        self._rounding = self._input_rounding = 0.0
        self._totals: dict[str, AnyArray] = {}
        self._waiting: dict[str, list[AnyArray]] = {}
        self._cuts: list[Cut] = []

    def add(self, block: Block) -> None:
        """Add a block; its rows are overwritten."""
        h, is_long = block.values, block.lengths > 1
        begin = block.offsets
        end = begin + block.lengths - 1
        first, last, before, single, starts = indices_for(
            h, begin[is_long], end[is_long], end[is_long] - 1, begin[~is_long], begin
        )
        ends, before = h[last], h[before]
        blank = namespace(h).zeros_like(h[:1])  # assigning a number would synchronise a GPU
        h[last] = blank  # from here on no row is followed by one of another sequence
        if not is_long.all():
            self._collect("single", h[single])
            h[single] = blank
        add_to(self._totals, "xy", h[:-1].T @ h[1:])
        add_to(self._totals, "xy", before.T @ ends)
        if block.inputs is not None:
            u = block.inputs
            u[starts] = namespace(u).zeros_like(u[:1])  # it belongs to a pair with an earlier block, or to none
            add_to(self._totals, "xu", h[:-1].T @ u[1:])
            add_to(self._totals, "uy", u.T @ h + u[last].T @ ends)
            self._add_rows("u", u)
        self._collect("first", h[first])
        h[first] = blank
        self._add_rows("middle", h)
        self._collect("last", ends)
        self._states += len(h)
        self._pairs += len(h) - len(block.lengths)
        self._rounding = max(self._rounding, block.rounding)
        self._input_rounding = max(self._input_rounding, block.input_rounding)

    def add_cut(self, cut: Cut) -> None:
        """Add pairs whose states are counted already, in two different blocks."""
        self._pairs += len(cut.before)
        self._cuts.append(cut)
        if sum(len(each.before) for each in self._cuts) >= ROWS_TO_MULTIPLY:
            self._multiply_cuts()

    def _multiply_cuts(self) -> None:
        cuts, self._cuts = self._cuts, []
        join = namespace(cuts[0].before).concat
        x, y = join([each.before for each in cuts]), join([each.after for each in cuts])
        add_to(self._totals, "xy", x.T @ y)
        if cuts[0].inputs is not None:
            u = join([each.inputs for each in cuts])
            add_to(self._totals, "xu", x.T @ u)
            add_to(self._totals, "uy", u.T @ y)
            self._add_rows("u", u)
        self._add_rows("cut_x", x)
        self._add_rows("cut_y", y)

    def _add_rows(self, name: str, rows: AnyArray) -> None:
        add_to(self._totals, name, gram(rows))
        add_to(self._totals, f"sum_{name}", rows.sum(0))

    def _collect(self, name: str, rows: AnyArray) -> None:
        """Add rows once there are enough of them to multiply."""
        self._waiting.setdefault(name, []).append(rows)
        if sum(map(len, self._waiting[name])) >= ROWS_TO_MULTIPLY:
            self._add_waiting(name)

    def _add_waiting(self, name: str) -> None:
        rows = self._waiting.pop(name)
        self._add_rows(name, namespace(rows[0]).concat(rows))

    def result(self) -> Moments:
        """Return the totals as moments."""
        if self._cuts:
            self._multiply_cuts()
        for name in list(self._waiting):
            self._add_waiting(name)
        values: dict[str, Any] = {name: self._totals.get(name) for name in ("sum_u", "xu", "uy")}
        for name, parts in self.PARTS.items():
            values[name] = self._sum(parts)
            values[f"sum_{name[0]}"] = self._sum([f"sum_{part}" for part in parts])
        return Moments(
            states=self._states,
            pairs=self._pairs,
            rounding=self._rounding,
            input_rounding=self._input_rounding,
            xy=self._totals["xy"],
            uu=self._totals.get("u"),
            **values,
        )

    def _sum(self, parts: Sequence[str]) -> AnyArray:
        """Return the sum of the totals of these names, as far as there are any."""
        found = [self._totals[name] for name in parts if name in self._totals]
        return sum(found[1:], start=found[0])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StateGram(Additive):
    """The Gram matrix of states alone, without pairs: half the work of `Moments` and a quarter of the memory."""

    states: int
    """Number of states h."""
    rounding: float
    """The coarsest relative spacing of their numbers."""
    sum_h: AnyArray
    """(d,) Σ h"""
    hh: AnyArray
    """(d, d) HᵀH"""
    ADDED_BY: ClassVar = {"rounding": max}

    @staticmethod
    def of_block(block: Block) -> "StateGram":
        """Return the Gram matrix of the rows of a block."""
        h = block.values
        return StateGram(states=len(h), rounding=block.rounding, sum_h=h.sum(0), hh=gram(h))

    def __iadd__(self, other: "StateGram") -> "StateGram":
        products = self.hh
        products += other.hh  # in place, so that no more than two d × d matrices are held at a time
        rounding = max(self.rounding, other.rounding)
        return StateGram(
            states=self.states + other.states, rounding=rounding, sum_h=self.sum_h + other.sum_h, hh=products
        )


def state_gram(states: States) -> StateGram:
    """Return the Gram matrix of all states."""
    found = accumulate(states, partial(SumOverBlocks, StateGram.of_block), what="Gram matrix")
    require_finite_squares(states, found.hh)
    return found


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MeanAndCovariance:
    """Mean and covariance of states, from which everything linear about them follows."""

    mean: Float[Array, " d"]
    """The mean state."""
    covariance: Float[Array, "d d"]
    """The covariance of the units."""

    @property
    def dim(self) -> int:
        """The number of units d."""
        return len(self.mean)

    def along(self, directions: Float[Array, "d k"]) -> Float[Array, "k k"]:
        """Return the covariance of the coordinates along some directions."""
        return directions.T @ self.covariance @ directions


def mean_and_covariance(states: States) -> MeanAndCovariance:
    """Mean and covariance of all states, in one pass over them."""
    found = state_gram(states)
    total, products = as_numpy(found.sum_h), as_numpy(found.hh)
    return MeanAndCovariance(
        mean=total / found.states, covariance=centre_in_place(products.copy(), total, found.states) / found.states
    )


def require_finite_squares(states: States, *grams: AnyArray | None) -> None:
    """Raise if Gram matrices are NaN or infinite, and say where in the states or inputs that begins."""
    squares = [as_numpy(product.diagonal()) for product in grams if product is not None]
    if all(np.isfinite(square).all() for square in squares):
        return
    refuse_not_finite(states, inputs=len(squares) > 1)


def refuse_not_finite(states: States, *, inputs: bool) -> NoReturn:
    """Say where in states or inputs the first NaN or infinite number is; without one, sums of squares overflowed."""
    require_finite(states, inputs=inputs)
    raise NotFiniteError("the squares of the states exceed float64; divide the states by their largest value")


def centred(products: AnyArray, left: AnyArray, right: AnyArray, n: int) -> AnyArray:
    """Compute products about the means: Σabᵀ − (Σa)(Σb)ᵀ/n."""
    return products - left[:, None] * (right / n)


def centre_in_place(gram: AnyArray, total: AnyArray, n: int) -> AnyArray:
    """Compute `centred` for Σhhᵀ, written over it strip by strip: no other d × d matrix is made."""
    strip = 256
    for start in range(0, gram.shape[0], strip):
        rows = slice(start, start + strip)
        gram[rows] -= total[rows, None] * (total / n)
    return gram
