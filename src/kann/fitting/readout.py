"""Outputs of a network, read from the few coordinates that an operator has."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy, namespace, to_device_of, with_ones
from kann.checks import (
    require_all_finite,
    require_flag,
    require_float,
    require_instance,
    require_real,
    require_width,
    short_repr,
)
from kann.data.reduction import take_rows
from kann.data.serialization import Saved, require_finite_fields
from kann.data.states import HOLD_OUT_ONE_IN, States, held_out_rows
from kann.errors import KannError
from kann.fitting.basis import Operator, operand
from kann.fitting.features import pair_count, pair_products
from kann.fitting.normal_equations import NormalEquations, sum_of
from kann.typing import AnyArray, Array, Float, Int

RIDGE = 1e-6
"""Penalty on the weights of standardised columns, per row. It separates products that depend on each other."""

MOST_WITH_PRODUCTS = 32
"""Maximum number of coordinates whose products are tried: 32 have 528."""

BLOCK_ROWS = 2**16
"""States that are encoded at a time."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Readout(Saved):
    """A regression of a network's outputs on coordinates, y ≈ z W + b, or on their products z_i z_j, i ≤ j, too.

    Make it with `kann.stand_ins.fit_readout`. Regression commutes with linear maps: where the network reads its state
    linearly, this is its own readout, applied to the regression of the state on the same columns.
    """

    weight: Float[Array, "q o"]
    """W: rows of the coordinates, then of their products."""
    constant: Float[Array, " o"]
    """b"""
    rank: int
    """Number of coordinates r."""
    per_sequence: bool
    """True if the network has one output per sequence, which is read from the last state."""
    r_squared: float | None
    """Fraction of the outputs' variance explained on held-out sequences; None if they do not vary there."""

    @property
    def has_products(self) -> bool:
        """True if products of coordinates are read too."""
        return len(self.weight) > self.rank

    def __call__(self, z: AnyArray) -> Float[AnyArray, "... o"]:
        """Compute outputs of coordinates (..., r)."""
        z = operand(z, require_float, what="coordinates")
        require_width(z, self.rank, what="coordinates", of="the readout")
        columns = _columns(z.reshape(-1, self.rank), products=self.has_products)
        outputs = columns @ to_device_of(z, self.weight) + to_device_of(z, self.constant)
        return outputs.reshape(*z.shape[:-1], len(self.constant))

    def _check(self) -> None:
        require_finite_fields(self)
        if self.rank < 1 or len(self.weight) not in (self.rank, self.rank + pair_count(self.rank)):
            raise ValueError(f"its weight has {len(self.weight)} rows for {self.rank} coordinates")

    def __repr__(self) -> str:
        products = " and products" if self.has_products else ""
        when = "sequence" if self.per_sequence else "step"
        held_out = "" if self.r_squared is None else f", held-out R² {self.r_squared:.3f}"
        return f"Readout({len(self.constant)} outputs per {when}, {self.rank} coordinates{products}{held_out})"


def fit_readout(koopman: Operator, states: States, outputs: Any, *, products: bool | None = None) -> Readout:
    """Fit a readout of a network's outputs from the coordinates of an operator, by least squares on recorded states.

    The network's own readout needs the whole state. This one needs the coordinates alone, and is fitted to what the
    network answers, so that the network may read its state in any way.

    >>> import kann
    >>> rng = np.random.default_rng(0)
    >>> states = kann.States.from_padded(rng.normal(size=(40, 25, 3)), inputs=rng.normal(size=(40, 25, 2)))
    >>> koopman = kann.fit(states, driven=True, basis=np.eye(3)[:, :1])
    >>> fit_readout(koopman, states, states.values[:, 0] ** 2)
    Readout(1 outputs per step, 1 coordinates and products, held-out R² 1.000)

    Parameters
    ----------
    koopman
        An operator that `kann.fit` returned.
    states
        Recorded states, such as those that the operator was fitted to.
    outputs
        The network's outputs, such as logits: (n,) or (n, o), one row per state or one row per sequence; or (s, t, o)
        for every step of padded sequences.
    products
        True to read products of coordinates too, False to read coordinates alone; None to take what explains more on
        held-out sequences.

    Returns
    -------
    Readout
        A function from coordinates to outputs, with its R² on held-out sequences.
    """
    require_instance(koopman, Operator, "koopman")
    require_instance(states, States, "states")
    require_width(states.values, koopman.dim, what="states", of="the operator")
    if products is not None:
        require_flag(products, "products")
    targets, per_sequence = _targets(outputs, states)
    rows = states.starts + states.lengths - 1 if per_sequence else np.arange(len(targets))
    if len(rows) < HOLD_OUT_ONE_IN:
        raise KannError(f"{len(rows)} outputs are too few to hold some out; pass at least {HOLD_OUT_ONE_IN}")
    held_out = np.isin(rows, held_out_rows(states))
    rank = koopman.rank
    tries = products if products is not None else rank <= MOST_WITH_PRODUCTS

    def equations(rows: Int[Array, " n"], targets: Float[Array, "n o"]) -> NormalEquations:
        blocks = []
        for first in range(0, len(rows), BLOCK_ROWS):
            at = slice(first, first + BLOCK_ROWS)
            z = as_numpy(koopman.encode(take_rows(states.values, rows[at]))).astype(np.float64)
            blocks.append(NormalEquations.of_rows(with_ones(_columns(z, products=tries)), targets[at]))
        return sum_of(blocks)

    fitted, judged = (equations(rows[chosen], targets[chosen]) for chosen in (~held_out, held_out))
    linear = [*range(rank), len(fitted.gram) - 1]
    columns = [linear] if not tries else [list(range(len(fitted.gram)))] if products else [linear, slice(None)]
    errors = [_part(judged, at).residual_sum_of_squares(_part(fitted, at).ridge_weights(RIDGE)) for at in columns]
    best, spread = int(np.argmin(errors)), judged.variance()
    weights = _part(fitted + judged, columns[best]).ridge_weights(RIDGE)
    return Readout(
        weight=weights[:-1],
        constant=weights[-1],
        rank=rank,
        per_sequence=per_sequence,
        r_squared=1 - errors[best] / spread if spread > 0 else None,
    )


def _targets(outputs: Any, states: States) -> tuple[Float[Array, "n o"], bool]:
    """Return outputs in rows, and whether there is one per sequence."""
    values = as_numpy(outputs)
    require_real(values, what="outputs")
    if values.ndim == 3:
        values = as_numpy(States.from_padded(values, states.lengths).values)
    total, count = int(states.lengths.sum()), len(states)
    if values.ndim not in (1, 2) or len(values) not in (total, count):
        raise KannError(
            f"outputs have shape {values.shape} for {total} states of {count} sequences; pass one row per state or one "
            "per sequence"
        )
    require_all_finite(values, what="outputs", remedy="find out for which sequence the network fails")
    per_sequence = len(values) != total
    return values.reshape(len(values), -1).astype(np.float64), per_sequence


def _columns(z: Float[AnyArray, "n r"], *, products: bool) -> Float[AnyArray, "n q"]:
    return namespace(z).concat([z, pair_products(z.T).T], axis=1) if products else z


def _part(equations: NormalEquations, columns: Any) -> NormalEquations:
    """Return the equations of some columns alone."""
    gram = equations.gram[columns][:, columns]
    return NormalEquations(gram=gram, target=equations.target[columns], total=equations.total)


def require_step(koopman: Any, readout: Any) -> None:
    """Raise unless this is an operator that reads inputs, and the readout is None or reads its coordinates."""
    if not isinstance(koopman, Operator):
        raise KannError(f"koopman={short_repr(koopman)} is no operator; pass what kann.fit returns")
    if not koopman.input_dim:
        raise KannError("this operator is autonomous and reads no inputs; fit with driven=True or driven='bilinear'")
    if not isinstance(readout, Readout | None):
        raise KannError(
            f"readout={short_repr(readout)} is no fitted readout; pass what kann.stand_ins.fit_readout returns"
        )
    if readout is not None and readout.rank != koopman.rank:
        raise KannError(
            f"the readout is of {readout.rank} coordinates and the operator has {koopman.rank}; fit it to this operator"
        )
