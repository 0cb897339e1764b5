"""Second moments of hidden states: all that a spectral analysis needs, in d × d memory."""

import os
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kann.backends.arrays import (
    Float64Buffer,
    as_numpy,
    block_rows,
    float64_copy,
    gram,
    indices,
    namespace,
    rounding,
    to_device_of,
)
from kann.backends.distributed import add_up
from kann.data.files import load_npz, save_npz
from kann.data.reduction import Cut, Piece, is_spread, total
from kann.data.rows import read_width
from kann.data.states import States, any_rows, as_states, input_rows, lazy_or_array, require_finite
from kann.errors import KannError
from kann.progress import progress
from kann.typing import AnyArray, Array, Float, Int

KIND = "kann.Moments"
VERSION = 1
COUNTS = ("sequences", "states", "pairs", "rounding", "input_rounding")


@dataclass(slots=True, eq=False, kw_only=True)
class Moments:
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
    """How many sequences were seen."""
    states: int = 0
    """How many states h."""
    pairs: int = 0
    """How many pairs (x, y)."""
    rounding: float = 0.0
    """The coarsest relative spacing of the states' numbers, such as 2⁻²³ for float32: what lies below it is noise."""
    input_rounding: float = 0.0
    """The same for the inputs."""
    sum_h: AnyArray = None
    """(d,) Σ h"""
    sum_x: AnyArray = None
    """(d,) Σ x"""
    sum_y: AnyArray = None
    """(d,) Σ y"""
    hh: AnyArray = None
    """(d, d) HᵀH"""
    xx: AnyArray = None
    """(d, d) XᵀX"""
    xy: AnyArray = None
    """(d, d) XᵀY"""
    yy: AnyArray = None
    """(d, d) YᵀY"""
    sum_u: AnyArray = None
    """(p,) Σ u, where u is the input that drove x to y; None without inputs, as are the following."""
    uu: AnyArray = None
    """(p, p) UᵀU"""
    xu: AnyArray = None
    """(d, p) XᵀU"""
    uy: AnyArray = None
    """(p, d) UᵀY"""

    @staticmethod
    def of(states: Any, *, inputs: bool = True) -> "Moments":
        """Moments of all states, and of their inputs where they have any and ``inputs`` is True.

        Of a dask array or a store at an address they are computed chunk by chunk on Dask, and so they are of a store on
        disk if this process has a Dask client.
        """
        states = as_states(states)
        if not is_spread(states):
            return _of_states(states, inputs=inputs)
        moments = total(states, _of_piece, _of_cut, shared=(inputs,))
        moments.sequences = len(states)
        _require_no_overflow(moments)
        return moments

    def update(self, values: AnyArray, lengths: Any = None, *, inputs: AnyArray | None = None) -> "Moments":
        """Add padded (S, T, d) states with their lengths, or (N, d) rows of whole sequences with their lengths.

        Without lengths, every step of padded states counts, and rows are one sequence. ``inputs`` have the same layout.
        A batch that cannot be used raises an error and leaves the moments as they were.
        """
        values = lazy_or_array(values)
        rows, counts = any_rows(values, lengths)
        drive = None if inputs is None else input_rows(lazy_or_array(inputs), values, lengths)
        self._absorb(Moments.of(States(values=rows, lengths=counts, inputs=drive)))
        return self

    def __add__(self, other: Any) -> "Moments":
        if not isinstance(other, Moments):
            return NotImplemented
        total = Moments()
        total._absorb(self)
        total._absorb(other)
        return total

    def __iadd__(self, other: Any) -> "Moments":
        if not isinstance(other, Moments):
            return NotImplemented
        self._absorb(other)
        return self

    def __sub__(self, other: Any) -> "Moments":
        """Leave out the share of ``other``, up to rounding: moments of sequences that are part of these."""
        if not isinstance(other, Moments):
            return NotImplemented
        if other.sum_h is None:
            return self + Moments()
        if any(getattr(self, name) < getattr(other, name) for name in ("sequences", "states", "pairs")):
            raise KannError(f"{other!r} cannot be part of {self!r}; subtract only what was added")
        self.require_alike(other)
        if self.states == other.states:
            return Moments()
        left: dict[str, Any] = {"rounding": self.rounding, "input_rounding": self.input_rounding}
        for name, theirs in _beside(other, self)._items():
            if theirs is not None and name not in left:
                left[name] = getattr(self, name) - theirs
        return Moments(**left)

    def __radd__(self, other: Any) -> "Moments":
        """Let ``sum([...])`` work, which starts from 0."""
        return self + Moments() if other == 0 else NotImplemented

    @property
    def dim(self) -> int:
        """The number of hidden units d."""
        return 0 if self.sum_h is None else int(self.sum_h.shape[0])

    @property
    def input_dim(self) -> int:
        """The number of inputs p, or 0."""
        return 0 if self.sum_u is None else int(self.sum_u.shape[0])

    def all_reduce(self, *, group: Any = None) -> "Moments":
        """Sum over the ranks of torch.distributed, in place: afterwards every rank holds the moments of all of them.

        Every rank of ``group`` must call it, also one that has no data, whose moments are empty; by default these are
        all ranks. What was summed once is part of every rank's moments and would count again, once for each rank:
        record further data into new moments, sum those, and add. If it fails, the moments are as before.
        """
        sizes = {"units": self.dim, "inputs": self.input_dim}
        total = add_up(dict(self._items()), largest=("rounding", "input_rounding"), sizes=sizes, group=group)
        for name, value in total.items():
            setattr(self, name, value)
        return self

    def numpy(self) -> "Moments":
        """Return the same moments with every array in numpy, on the host."""
        return Moments(**{name: _to_numpy(value) for name, value in self._items()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` file that `load` reads, to be added to later or elsewhere."""
        arrays = {name: None if value is None else as_numpy(value) for name, value in self._items()}
        save_npz(path, kind=KIND, version=VERSION, arrays=arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Moments":
        """Read what `save` wrote."""
        arrays = load_npz(path, kind=KIND, version=VERSION)
        values: dict[str, Any] = {name: array.item() if name in COUNTS else array for name, array in arrays.items()}
        return Moments(**values)

    def __repr__(self) -> str:
        driven = f", {self.input_dim} inputs" if self.input_dim else ""
        return f"Moments({self.states} states of {self.sequences} sequences, {self.dim} units{driven})"

    def _items(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    def _absorb(self, other: "Moments") -> None:
        """Add ``other`` in place, on the device where this one is."""
        if other.sum_h is None:
            return
        self.require_alike(other)
        other = _beside(other, self)
        for name, theirs in other._items():
            ours = getattr(self, name)
            if name in ("rounding", "input_rounding"):
                setattr(self, name, max(ours, theirs))
            elif ours is None and theirs is not None:
                setattr(self, name, theirs + 0)  # a copy: the other one stays its own
            elif theirs is not None:
                setattr(self, name, ours + theirs)

    def require_alike(self, other: "Moments") -> None:
        """Refuse moments of another number of units or inputs."""
        if self.sum_h is not None and (self.dim, self.input_dim) != (other.dim, other.input_dim):
            raise KannError(
                f"moments of {other.dim} units and {other.input_dim} inputs cannot be added to moments of "
                f"{self.dim} units and {self.input_dim} inputs; pass states of the same layer"
            )


def state_moments(states: States) -> Moments:
    """Counts, sums and HᵀH alone, without products of pairs: half the work and a quarter of the memory."""
    moments = total(states, _energy_of_piece) if is_spread(states) else _energy(states)
    _require_no_overflow(moments)
    moments.sequences, moments.pairs = len(states), states.values.shape[0] - len(states)
    return moments


def in_basis(moments: Moments, matrix: Float[Array, "d r"]) -> Moments:
    """Moments of the pairs in coordinates h @ matrix, multiplied where the moments are, as numpy arrays."""
    matrix = to_device_of(moments.sum_x, matrix)
    sums = {name: getattr(moments, name) @ matrix for name in ("sum_h", "sum_x", "sum_y")}
    grams = {name: matrix.T @ (getattr(moments, name) @ matrix) for name in ("xx", "xy", "yy")}
    if moments.input_dim:
        grams |= {"xu": matrix.T @ moments.xu, "uy": moments.uy @ matrix, "uu": moments.uu, "sum_u": moments.sum_u}
    values: dict[str, Any] = {name: getattr(moments, name) for name in COUNTS}
    values |= {name: as_numpy(value) for name, value in (sums | grams).items()}
    return Moments(**values)


def _of_states(states: States, *, inputs: bool) -> Moments:
    """Moments of states that this process reads."""
    drive = states.inputs if inputs else None
    moments = measure(states, drive)
    require_finite_squares(moments, states, drive)
    return moments


def _of_piece(piece: Piece, inputs: bool) -> Moments:
    return _of_states(piece.states, inputs=inputs)


def _of_cut(cut: Cut, inputs: bool) -> Moments:
    """What pairs add whose states are counted already, each in a piece of its own."""
    x, y = float64_copy(cut.before), float64_copy(cut.after)
    u = float64_copy(cut.inputs) if inputs and cut.inputs is not None else None
    with np.errstate(over="ignore", invalid="ignore"):  # of states it is found in the pieces, of inputs here
        sums = {"sum_h": np.zeros(x.shape[1]), "sum_x": x.sum(0), "sum_y": y.sum(0)}
        pairs = {"xx": gram(x), "xy": x.T @ y, "yy": gram(y)}
        if u is not None:
            pairs |= {"sum_u": u.sum(0), "uu": gram(u), "xu": x.T @ u, "uy": u.T @ y}
    if u is not None and not np.isfinite(pairs["uu"].diagonal()).all():
        for i, (number, step) in enumerate(zip(cut.numbers.tolist(), cut.steps.tolist(), strict=True)):
            require_finite(u[i : i + 1], np.array([-step]), what="inputs", sequence=number)
    values: dict[str, Any] = sums | pairs
    return Moments(pairs=len(x), **values)


def _energy(states: States) -> Moments:
    """Sums and HᵀH of states that this process reads. No more than two d × d matrices are held at a time."""
    sample = states.values[0:1]
    max_rows = min(block_rows(sample, read_width(states.values)), states.values.shape[0])
    buffer = Float64Buffer(like=sample, shape=(max_rows, states.dim))
    sum_h: Any = 0
    hh: Any = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for start, stop in progress(states.ranges(max_rows), what="energy", unit="block"):
            h = buffer.filled_with(states.values[start:stop])
            sum_h += h.sum(0)
            hh += gram(h)
    moments = Moments(states=states.values.shape[0], rounding=rounding(sample), sum_h=sum_h, hh=hh)
    require_finite_squares(moments, states, None)
    return moments


def _energy_of_piece(piece: Piece) -> Moments:
    return _energy(piece.states)


def require_finite_squares(moments: Moments, states: States, inputs: AnyArray | None) -> None:
    """Refuse the moments of states that are not finite, or whose squares are not."""
    if not _has_finite_squares(moments):
        _find_not_finite(states, inputs)
        _require_no_overflow(moments)


def _has_finite_squares(moments: Moments) -> bool:
    squares = [product.diagonal() for product in (moments.hh, moments.uu) if product is not None]
    return all(np.isfinite(as_numpy(square)).all() for square in squares)


def _require_no_overflow(moments: Moments) -> None:
    if not _has_finite_squares(moments):
        raise KannError("the squares of the states exceed float64; divide the states by their largest value")


def _to_numpy(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else as_numpy(value)


def _beside(other: Moments, ours: Moments) -> Moments:
    """Return ``other`` where ``ours`` is: unchanged on the same device, else in that array type and place."""
    mine, theirs = ours.sum_h, other.sum_h
    if mine is None or (type(mine) is type(theirs) and mine.device == theirs.device):
        return other
    xp, device = namespace(mine), mine.device
    moved: dict[str, Any] = {
        name: value if name in COUNTS or value is None else xp.asarray(value, device=device)
        for name, value in other.numpy()._items()
    }
    return Moments(**moved)


def measure(states: States, inputs: AnyArray | None) -> Moments:
    """One pass over the states in blocks of bounded size. Whether they are finite is not looked at: a GPU must wait."""
    sample, width = states.values[0:1], read_width(states.values) + (0 if inputs is None else inputs.shape[1])
    max_rows = min(block_rows(sample, width), states.values.shape[0])
    h = Float64Buffer(like=sample, shape=(max_rows + 1, states.dim))
    u = None if inputs is None else Float64Buffer(like=inputs[0:1], shape=(max_rows + 1, inputs.shape[1]))
    sums = _Sums()
    with np.errstate(over="ignore", invalid="ignore"):
        for start, stop in progress(states.ranges(max_rows), what="moments", unit="block"):
            sums.add(_read_block(states, inputs, start, stop, h, u))
        moments = sums.moments()
    moments.sequences, moments.rounding = len(states), rounding(sample)
    moments.input_rounding = 0.0 if inputs is None else rounding(inputs[0:1])
    return moments


def _find_not_finite(states: States, inputs: AnyArray | None) -> None:
    """Say where the first NaN or Inf is, if there is one. Inputs of first states belong to no pair and may be any."""
    for start, stop in states.ranges():
        require_finite(float64_copy(states.values[start:stop]), states.starts, what="states", row=start)
        if inputs is not None:
            u = float64_copy(inputs[start:stop])
            inside = (states.starts >= start) & (states.starts < stop)
            u[indices([states.starts[inside] - start], u)[0]] = 0
            require_finite(u, states.starts, what="inputs", row=start)


@dataclass(slots=True, eq=False, kw_only=True)
class _Block:
    """Consecutive rows in float64. Behind its ``own`` rows stands one more where the block cuts a sequence.

    ``first`` and ``last`` are the places where sequences of two states or more begin and end, ``single`` those of
    sequences of one state; all may include the row behind the own ones. They stay on the host, where asking how many
    there are does not wait for a GPU.
    """

    h: AnyArray
    u: AnyArray | None
    own: int
    first: Int[Array, " f"]
    last: Int[Array, " l"]
    single: Int[Array, " k"]


def _read_block(
    states: States,
    inputs: AnyArray | None,
    start: int,
    stop: int,
    h_buffer: Float64Buffer,
    u_buffer: Float64Buffer | None,
) -> _Block:
    end = stop if _ends_a_sequence(states, stop) else stop + 1
    h = h_buffer.filled_with(states.values[start:end])
    first, last, single = (places - start for places in _boundaries(states, start, end))
    u = None
    if inputs is not None and u_buffer is not None:
        u = u_buffer.filled_with(inputs[start:end])
        u[indices([np.concatenate([first, single])], u)[0]] = 0  # what led to the first state belongs to no pair
    return _Block(h=h, u=u, own=stop - start, first=first, last=last, single=single)


def _ends_a_sequence(states: States, stop: int) -> bool:
    following = int(np.searchsorted(states.starts, stop))
    return stop == states.values.shape[0] or (following < len(states) and int(states.starts[following]) == stop)


def _boundaries(states: States, start: int, end: int) -> tuple[Array, Array, Array]:
    """Rows in ``start:end`` where sequences of two states or more begin, where they end, and those of one state."""
    inside = slice(np.searchsorted(states.starts, start, side="right") - 1, np.searchsorted(states.starts, end))
    begin, length = states.starts[inside], states.lengths[inside]
    finish, long = begin + length - 1, length > 1
    return begin[long & (begin >= start)], finish[long & (finish < end)], begin[~long]


class _Sums:
    """Running totals over blocks.

    The states of a sequence are its first, its last and those in the middle. XᵀX is middle plus first, YᵀY middle plus
    last, HᵀH all three: one large product serves them all, and nothing is ever subtracted.
    """

    ENOUGH = 1024
    """So many boundary states are collected before they are multiplied: products of a few rows cost as much."""

    def __init__(self) -> None:
        self.states = self.pairs = 0
        self.totals: dict[str, AnyArray] = {}
        self.waiting: dict[str, list[AnyArray]] = {"first": [], "last": [], "single": []}

    def _accumulate(self, name: str, value: AnyArray) -> None:
        if name in self.totals:
            self.totals[name] += value
        else:
            self.totals[name] = value

    def _gram(self, name: str, rows: AnyArray) -> None:
        self._accumulate(name, gram(rows))
        self._accumulate(f"sum_{name}", rows.sum(0))

    def _collect(self, name: str, rows: AnyArray, *, enough: int = ENOUGH) -> None:
        if not len(rows):
            return
        waiting = self.waiting[name]
        waiting.append(rows)
        if sum(map(len, waiting)) >= enough:
            self._gram(name, namespace(rows).concat(waiting))
            waiting.clear()

    def add(self, block: _Block) -> None:
        """Add a block; its rows are overwritten."""
        h, own = block.h, block.own
        count = {name: int((getattr(block, name) < own).sum()) for name in ("first", "last", "single")}
        # A last state in row 0 was the target of a pair in the block before.
        reached = block.last[block.last > 0]
        first, last, single, before = indices([block.first, block.last, block.single, reached - 1], h)
        ends, before = h[last], h[before]
        blank = namespace(h).zeros(
            (1, h.shape[1]), dtype=h.dtype, device=h.device
        )  # to bring a 0 there makes a GPU wait
        h[last] = blank  # from here on no row is the source of a pair across a boundary
        if len(single):
            self._collect("single", h[single[: count["single"]]])
            h[single] = blank
        if len(h) > 1:
            self._accumulate("xy", h[:-1].T @ h[1:])
        if len(reached):
            self._accumulate("xy", before.T @ ends[len(block.last) - len(reached) :])
        if block.u is not None:
            own_last = last[: count["last"]]
            self._add_inputs(h, block.u[:own], own_last, ends[: len(own_last)], next_input=block.u[1:])
        self._collect("first", h[first[: count["first"]]])
        h[first] = blank
        self._gram("middle", h[:own])
        self._collect("last", ends[: count["last"]])
        self.states += own
        self.pairs += own - count["single"] - count["last"]

    def _add_inputs(self, h: AnyArray, u: AnyArray, last: AnyArray, ends: AnyArray, *, next_input: AnyArray) -> None:
        """Products with inputs; ``h`` has zeros in place of last states, which are ``ends``."""
        self._accumulate("xu", h[:-1].T @ next_input)
        self._accumulate("uy", u.T @ h[: len(u)] + u[last].T @ ends)
        self._gram("u", u)

    def moments(self) -> Moments:
        """The totals as `Moments`."""
        for name, waiting in self.waiting.items():
            if waiting:
                self._collect(name, waiting.pop(), enough=0)
        get = self.totals.get  # 0 for what never occurred
        first, middle, last, single = (get(name, 0) for name in ("first", "middle", "last", "single"))
        sums = [get(f"sum_{name}", 0) for name in ("first", "middle", "last", "single")]
        xx = middle + first
        return Moments(
            states=self.states,
            pairs=self.pairs,
            sum_h=sums[0] + sums[1] + sums[2] + sums[3],
            sum_x=sums[0] + sums[1],
            sum_y=sums[1] + sums[2],
            hh=xx + last + single,
            xx=xx,
            xy=get("xy", 0 * middle),
            yy=middle + last,
            sum_u=get("sum_u"),
            uu=get("u"),
            xu=get("xu"),
            uy=get("uy"),
        )


def require_pairs(moments: Moments) -> None:
    """Refuse moments from which no operator can be fitted."""
    if not moments.pairs:
        raise KannError(
            f"there are no consecutive pairs: {moments.sequences} sequences with {moments.states} states in all; "
            "pass sequences of two steps or more"
        )


def centred(products: AnyArray, left: AnyArray, right: AnyArray, n: int) -> AnyArray:
    """Products about the means: Σabᵀ − (Σa)(Σb)ᵀ/n."""
    return products - left[:, None] * (right / n)


def centre_in_place(gram: AnyArray, total: AnyArray, n: int) -> AnyArray:
    """`centred` for Σhhᵀ, written over it strip by strip: no other d × d matrix is made."""
    strip = 256
    for start in range(0, gram.shape[0], strip):
        rows = slice(start, start + strip)
        gram[rows] -= total[rows, None] * (total / n)
    return gram
