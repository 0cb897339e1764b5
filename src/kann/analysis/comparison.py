"""Distances between two or several networks, with intervals."""

import csv
import io
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kann import _display
from kann.analysis._trust import trust
from kann.analysis.cross_validation import are_moments, nearest_of
from kann.analysis.decisions import linear_weight
from kann.analysis.distances import (
    Response,
    carried_by_modes,
    response_distance,
    span_of,
    subspace_distance,
    transport,
    weighed_spectrum,
)
from kann.analysis.intervals import jackknife_error, require_level, student_width
from kann.analysis.modes import first_modes
from kann.checks import entries_by_name, require_choice, require_flag, require_path, require_whole_number
from kann.data.atomic_write import replacing
from kann.data.moments import Moments
from kann.data.serialization import Saved
from kann.data.states import as_states
from kann.errors import KannError, KannWarning
from kann.fitting._fit import fit
from kann.fitting.basis import signs_of
from kann.fitting.folds import FEWEST_FOLDS, HoldoutGroups, assign_folds
from kann.fitting.koopman import Koopman
from kann.progress import progress as with_progress
from kann.typing import Array, Float, Int

KINDS = ("response", "spectrum", "subspace")
"""Kinds of distance: between responses to inputs, eigenvalues, or the directions of the modes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceConfig:
    """Options of a distance; `distance` documents the fields."""

    kind: str
    steps: int
    modes: int
    rank: Any
    weights: str
    level: float

    def __post_init__(self) -> None:
        require_choice(self.kind, "kind", KINDS)
        require_choice(self.weights, "weights", ("carried", "equal"))
        require_whole_number(self.steps, "steps", too_small="compares nothing")
        require_whole_number(self.modes, "modes", too_small="leaves no subspace")
        require_level(self.level)

    def measure(self, a: Any, b: Any) -> float:
        """Return the distance of two views of operators."""
        if self.kind == "spectrum":
            return transport(*a, *b)
        return response_distance(a, b) if self.kind == "response" else subspace_distance(a, b)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Compared:
    """A network as a distance needs it."""

    whole: Any
    """Eigenvalues with weights, a response, or a span, from all sequences."""
    without: tuple[Any, ...] = ()
    """The same without each group of sequences; empty if only an operator is known."""
    floor: float = math.nan
    """The distance of two halves of the sequences from each other; NaN if they are not known."""

    @staticmethod
    def of(
        network: Any, config: DistanceConfig, *, readout: Any = None, name: str = "the network", intervals: bool = True
    ) -> "Compared":
        """Read an operator, moments, a list of moments of groups, or states; without intervals, leave no group out."""
        groups = [] if isinstance(network, Koopman) else _groups_of(network, name)
        koopman = network if not groups else _fitted(groups, rank=config.rank)
        weight = linear_weight(readout, koopman.dim, name=f"the readout of {name}")
        wanted = np.zeros(0)
        if config.kind == "subspace":  # of all fits the modes nearest to those of the whole
            numbers, carried = tuple(range(len(koopman.modes))), carried_by_modes(koopman)
            if len(groups) >= FEWEST_FOLDS:
                numbers = trust(koopman, groups).trusted
            if not numbers:
                raise KannError(f"no mode of {name} can be trusted, so there is no subspace; record more sequences")
            leading = first_modes(koopman, sorted(numbers, key=lambda number: -carried[number]), config.modes)
            wanted = np.array([koopman.modes[number].eigenvalue for number in leading])

        def view(koopman: Koopman) -> Any:
            if config.kind == "spectrum":
                return weighed_spectrum(koopman, weights=config.weights)
            if config.kind == "response":
                return Response.of(koopman, weight, steps=config.steps, weights=config.weights)
            return span_of(koopman, nearest_of(wanted, np.array([mode.eigenvalue for mode in koopman.modes])).tolist())

        if len(groups) < 2:
            return Compared(whole=view(koopman))
        first, second = (view(_fitted(half, rank=koopman.rank)) for half in (groups[::2], groups[1::2]))
        total = sum(groups, start=Moments())
        rests = [total - group for group in groups] if intervals else []
        return Compared(
            whole=view(koopman),
            without=tuple(view(_fitted([rest], rank=koopman.rank)) for rest in rests),
            floor=config.measure(first, second),
        )


def _groups_of(network: Any, name: str) -> list[Moments]:
    """Return the moments of groups of a network's sequences; of all together if no more is known."""
    if isinstance(network, Moments):
        found = [network]
    elif are_moments(network):
        found = [part for part in network if part.pairs]
    else:
        states = as_states(network)
        fold_of = np.zeros(len(states), dtype=int)
        if HoldoutGroups.of(states.lengths).available >= FEWEST_FOLDS:
            fold_of = assign_folds(states.lengths)
        found = [Moments.of(states[np.flatnonzero(fold_of == fold)]) for fold in range(fold_of.max() + 1)]
    if not sum(part.pairs for part in found):
        raise KannError(f"{name} has no pair of states; record sequences of two steps or more")
    return [part.numpy() for part in found]


def _fitted(groups: list[Moments], *, rank: Any) -> Koopman:
    total = sum(groups, start=Moments())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KannWarning)  # a part of the data may be little; intervals say how little
        return fit(total, rank=rank, driven=total.uu is not None)


class Distance(float):
    """A distance between two networks: a number, with an interval and the floor below which it is noise.

    >>> import numpy as np, kann
    >>> states = np.random.default_rng(0).normal(size=(30, 40, 3))
    >>> for t in range(1, 40):
    ...     states[:, t] = states[:, t - 1] * [0.95, 0.8, 0.4] + 0.02 * states[:, t]
    >>> koopman = kann.fit(states)
    >>> found = kann.distance(states[:15], states[15:], kind="spectrum")
    >>> round(float(found), 2), found.kind
    (0.11, 'spectrum')
    >>> found.interval[0] < found < found.interval[1]
    True
    """

    kind: str
    """The kind of distance: "response", "spectrum" or "subspace"."""
    interval: tuple[float, float]
    """Confidence interval over sequences (a jackknife over groups of them); NaN if only operators are known."""
    floor: float
    """The larger of the two networks' distances from themselves, between halves of their sequences; NaN if unknown."""

    def __new__(cls, value: float, *, kind: str, interval: tuple[float, float], floor: float) -> "Distance":
        """Make the number, with its interval and floor."""
        made = super().__new__(cls, value)
        made.kind, made.interval, made.floor = kind, interval, floor
        return made

    def __repr__(self) -> str:
        known = ""
        if not math.isnan(self.floor):
            low, high = self.interval
            known = f", {low:.4g} to {high:.4g}, floor {self.floor:.4g}"
        return f"Distance({float(self):.4g}{known}; {self.kind})"


def distance(
    a: Any,
    b: Any,
    *,
    readouts: Any = None,
    kind: str = "response",
    steps: int = 64,
    modes: int = 8,
    rank: Any = 0.99,
    weights: str = "carried",
    level: float = 0.95,
) -> Distance:
    """Measure how far apart two networks are inside, in a way that needs no match of their units.

    >>> import kann, numpy as np
    >>> turn = np.array([[0.9, 0.2], [-0.2, 0.9]])
    >>> read = np.random.default_rng(0).normal(size=(12, 50, 1))
    >>> def run(matrix):
    ...     states = [np.zeros((12, 2))]
    ...     for t in range(50):
    ...         states.append(states[-1] @ matrix + read[:, t] @ [[1.0, 0.0]])
    ...     return kann.States.from_sequences(list(np.stack(states[1:], axis=1)), inputs=list(read))
    >>> round(kann.distance(run(turn), run(turn.T)), 6)  # the same but for the sign of a unit
    0.0
    >>> kann.distance(run(turn), run(0.5 * turn)) > 0.5
    True

    Parameters
    ----------
    a, b
        The networks: operators, `Moments`, lists of `Moments` of groups of sequences
        (`kann.recording.record_grouped_moments`), or states. From groups and states come interval and floor.
    kind
        ``"response"``: how the driven systems respond to an input, step after step, for networks that read the same.
        ``"spectrum"``: how far eigenvalues must be moved, each weighed by how much its mode carries, for any networks.
        ``"subspace"``: how far the spans of the trusted modes are turned, for networks with the same units, such as
        checkpoints of one.
    readouts
        For responses: the linear readouts of both, modules or weights (o, d). Outputs are then compared. Without them
        states are, rotated to match as well as they can.
    steps
        For responses: the number of steps. Eigenvalues outside the unit circle are put onto it.
    modes
        For subspaces: the largest number of dimensions, of the modes that carry most.
    rank
        The rank of operators that are fitted here, as in `kann.fit`.
    weights
        For spectra: ``"carried"``, each eigenvalue counts as much as its mode carries of the states; ``"equal"``, all
        count the same, so that fast and weak modes tell networks apart too, and noise may. For responses without
        readouts: ``"carried"``, each direction of the states counts as much as they vary along it, and only rotations
        have no effect; ``"equal"``, coordinates are scaled to variance one, and no change of coordinates does, as long
        as operators have every direction: pass ``rank=None`` with states, since the default rank leaves out those along
        which they vary little.
    level
        Confidence level of the interval.

    Returns
    -------
    Distance
        A number with ``interval`` and ``floor``; both are NaN for operators alone.
    """
    config = DistanceConfig(kind=kind, steps=steps, modes=modes, rank=rank, weights=weights, level=level)
    if readouts is not None and (not isinstance(readouts, tuple | list) or len(readouts) != 2):
        raise KannError("readouts are those of both networks; pass (readout of a, readout of b)")
    own, theirs = readouts or (None, None)
    first = Compared.of(a, config, readout=own, name="the first network")
    second = Compared.of(b, config, readout=theirs, name="the second network")
    return _between(first, second, config)


def _between(a: Compared, b: Compared, config: DistanceConfig) -> Distance:
    """Return the distance of two networks, with its interval and floor."""
    value, floor = config.measure(a.whole, b.whole), max(a.floor, b.floor)
    if not (a.without and b.without):
        return Distance(value, kind=config.kind, interval=(math.nan, math.nan), floor=floor)
    columns = [
        [config.measure(each, b.whole) for each in a.without],
        [config.measure(a.whole, each) for each in b.without],
    ]
    errors = [jackknife_error(np.array(column)[:, None])[0] for column in columns]
    half = float(student_width(config.level, min(map(len, columns)) - 1) * math.hypot(*errors))
    return Distance(value, kind=config.kind, interval=(max(0.0, value - half), value + half), floor=floor)


MOST_IN_A_TABLE = 12
"""Number of networks that a notebook shows."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Comparison(Saved):
    """The distances between several networks.

    >>> import numpy as np, kann
    >>> states = np.random.default_rng(0).normal(size=(30, 40, 3))
    >>> for t in range(1, 40):
    ...     states[:, t] = states[:, t - 1] * [0.95, 0.8, 0.4] + 0.02 * states[:, t]
    >>> koopman = kann.fit(states)
    >>> noise = np.random.default_rng(1).normal(size=(15, 40, 3))
    >>> found = kann.compare({"a": states[:15], "b": states[15:], "noise": noise}, kind="spectrum")
    >>> found.nearest()
    {'a': 'b', 'b': 'a', 'noise': 'b'}
    """

    kind: str
    """The kind of distance: "response", "spectrum" or "subspace"."""
    names: tuple[str, ...]
    """The networks."""
    matrix: Float[Array, "n n"]
    """Their distances."""
    low: Float[Array, "n n"]
    high: Float[Array, "n n"]
    """Confidence intervals over sequences; NaN where only operators are known, and on the diagonal."""
    floor: Float[Array, " n"]
    """The distance of each network from itself, between two halves of its sequences; NaN if it is not known."""
    level: float
    """Confidence level of the intervals."""

    def embedding(self, dimensions: int = 2) -> Float[Array, "n k"]:
        """Place the networks as points at nearly these distances (classical scaling)."""
        most = len(self.names)
        dimensions = require_whole_number(dimensions, "dimensions", too_small="shows nothing")
        if dimensions > most:
            raise KannError(f"dimensions={dimensions} exceeds the {most} networks; pass fewer")
        centre = np.eye(most) - 1 / most
        values, vectors = np.linalg.eigh(-centre @ self.matrix**2 @ centre / 2)
        order = np.argsort(-values)[:dimensions]
        points = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
        return points * signs_of(points)

    def clusters(self, count: int) -> Int[Array, " n"]:
        """Number each network's cluster, from 0 on in the order of the names (average linkage)."""
        from scipy.cluster.hierarchy import fcluster

        count = require_whole_number(count, "count", too_small="makes no cluster")
        if count > len(self.names):
            raise KannError(f"count={count} exceeds the {len(self.names)} networks; pass fewer")
        found = fcluster(self._linkage(), count, criterion="maxclust")
        numbers: dict[int, int] = {}
        return np.array([numbers.setdefault(cluster, len(numbers)) for cluster in found.tolist()])

    @property
    def order(self) -> list[int]:
        """The networks such that those of one cluster stand side by side."""
        from scipy.cluster.hierarchy import leaves_list

        return list(range(len(self.names))) if len(self.names) < 3 else leaves_list(self._linkage()).tolist()

    def nearest(self) -> dict[str, str]:
        """Return the name of each network's nearest other one."""
        nearest = np.where(np.eye(len(self.names), dtype=bool), np.inf, self.matrix).argmin(axis=1)
        return {name: self.names[j] for name, j in zip(self.names, nearest.tolist(), strict=True)}

    def csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the pairs as CSV, one line each, with intervals and floors; also to a file if a path is given.

        Control characters of names become visible, and names that a spreadsheet would compute begin with an apostrophe.
        """
        text, names = io.StringIO(), [" ".join(_display.visible(name).split("\n")) for name in self.names]
        # A spreadsheet takes text that begins with one of these signs for a formula.
        names = [f"'{name}" if name.startswith(("=", "+", "-", "@")) else name for name in names]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["a", "b", "distance", "low", "high", "floor"])
        for i, j in zip(*np.triu_indices(len(self.names), 1), strict=True):
            numbers = (self.matrix[i, j], self.low[i, j], self.high[i, j], max(self.floor[i], self.floor[j]))
            writer.writerow([names[i], names[j], *(f"{number:.6g}" for number in numbers)])
        if path is not None:
            require_path(path)
            with replacing(Path(path)) as temporary:
                temporary.write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()

    def __repr__(self) -> str:
        apart = self.matrix[np.triu_indices(len(self.names), 1)]
        return f"Comparison({len(self.names)} networks by {self.kind}: {apart.min():.4g} to {apart.max():.4g} apart)"

    def _repr_html_(self) -> str:
        shown = self.order[:MOST_IN_A_TABLE]
        rows = [[self.names[i], *(f"{self.matrix[i, j]:.3g}" for j in shown), f"{self.floor[i]:.3g}"] for i in shown]
        return _display.table(repr(self), ["", *(self.names[j] for j in shown), "from itself"], rows)

    def _linkage(self) -> Float[Array, "m 4"]:
        from scipy.cluster.hierarchy import linkage  # here, since it takes long to import
        from scipy.spatial.distance import squareform

        return linkage(squareform(self.matrix, checks=False), method="average")


def compare(
    networks: Any,
    *,
    readouts: Any = None,
    intervals: bool = True,
    progress: bool = True,
    kind: str = "response",
    steps: int = 64,
    modes: int = 8,
    rank: Any = 0.99,
    weights: str = "carried",
    level: float = 0.95,
) -> Comparison:
    """Measure all distances between several networks, as `kann.distance` does.

    >>> import kann, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> def operator(*moduli):
    ...     states = [rng.normal(size=(200, 1, len(moduli)))]
    ...     for _ in range(5):
    ...         states.append(states[-1] * moduli)
    ...     return kann.fit(np.concatenate(states, axis=1))
    >>> found = kann.compare(
    ...     {"slow": operator(0.9, 0.8), "slow too": operator(0.9, 0.79), "fast": operator(0.2, 0.1)}, kind="spectrum"
    ... )
    >>> found.nearest()["slow"]
    'slow too'

    Parameters
    ----------
    networks
        The networks by name: operators, `Moments`, lists of `Moments` of groups of sequences, or states.
    readouts
        For responses: the linear readout of each network by its name, of all of them or of none.
    intervals
        Whether to compute intervals, where there are sequences to leave out: that takes some twenty distances a pair.
    progress
        Whether to show a progress bar if it takes long.
    kind, steps, modes, rank, weights, level
        As in `kann.distance`.

    Returns
    -------
    Comparison
        The matrix of distances with intervals and floors; clusters, an embedding and CSV are made of it.
    """
    config = DistanceConfig(kind=kind, steps=steps, modes=modes, rank=rank, weights=weights, level=level)
    require_flag(intervals, "intervals")
    named = entries_by_name(networks, "networks", remedy='pass {"name": operator, …}')
    if len(named) < 2:
        raise KannError(f"networks holds {len(named)} of them; pass two or more")
    heads = {} if readouts is None else entries_by_name(readouts, "readouts", remedy='pass {"name": readout, …}')
    if readouts is not None and set(heads) != set(named):
        apart = ", ".join(sorted(set(heads) ^ set(named)))
        raise KannError(f"readouts and networks have different names: {apart}; pass one readout for each")
    seen = [
        Compared.of(each, config, readout=heads.get(name), name=repr(name), intervals=bool(intervals))
        for name, each in named.items()
    ]
    floor = np.array([each.floor for each in seen])
    matrix, low, high = np.zeros((3, len(seen), len(seen)))
    for bounds in (low, high):
        np.fill_diagonal(bounds, np.nan)
    pairs = list(zip(*np.triu_indices(len(seen), 1), strict=True))
    if progress:
        pairs = with_progress(pairs, what="comparing", total=len(pairs), unit="pair")
    for i, j in pairs:
        found = _between(seen[i], seen[j], config)
        matrix[i, j] = matrix[j, i] = found
        low[i, j], high[i, j] = low[j, i], high[j, i] = found.interval
    return Comparison(kind=kind, names=tuple(named), matrix=matrix, low=low, high=high, floor=floor, level=float(level))
