"""All distances between several networks."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from kann import notebook
from kann.analysis.compared import Compared
from kann.analysis.comparison_options import How, Options, shows_options
from kann.analysis.distances import between, floor_of
from kann.checks import entries_by_name, require_flag, require_path, require_sequence, require_whole_number
from kann.data.files import replacing
from kann.errors import KannError
from kann.progress import progress as with_progress
from kann.typing import Array, Float, Int

MOST_IN_A_TABLE = 12
"""How many networks a notebook shows."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Comparison:
    """The distances between several networks.

    >>> import numpy as np, kann
    >>> states = np.random.default_rng(0).normal(size=(30, 40, 3))
    >>> for t in range(1, 40):
    ...     states[:, t] = states[:, t - 1] * [0.95, 0.8, 0.4] + 0.02 * states[:, t]
    >>> koopman = kann.fit(states)
    >>> noise = np.random.default_rng(1).normal(size=(15, 40, 3))
    >>> found = kann.compare({"a": states[:15], "b": states[15:], "noise": noise}, kind="spectrum")
    >>> found.nearest()
    array([1, 0, 1])
    """

    kind: str
    """What was compared: "response", "spectrum" or "subspace"."""
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
        """Points whose distances are as near as possible to those of the networks (classical scaling)."""
        most = len(self.names)
        dimensions = require_whole_number(dimensions, "dimensions", too_small="shows nothing")
        if dimensions > most:
            raise KannError(f"dimensions={dimensions} exceeds the {most} networks; pass fewer")
        centre = np.eye(most) - 1 / most
        values, vectors = np.linalg.eigh(-centre @ self.matrix**2 @ centre / 2)
        order = np.argsort(-values)[:dimensions]
        points = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
        largest = np.abs(points).argmax(axis=0)
        return points * np.where(points[largest, range(dimensions)] < 0, -1.0, 1.0)  # the sign is arbitrary, so fix it

    def clusters(self, count: int) -> Int[Array, " n"]:
        """The number of each network's cluster, from 0 on in the order of the names (average linkage)."""
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

        if len(self.names) < 3:
            return list(range(len(self.names)))
        return leaves_list(self._linkage()).tolist()

    def nearest(self) -> Int[Array, " n"]:
        """The number of each network's nearest other one."""
        return np.where(np.eye(len(self.names), dtype=bool), np.inf, self.matrix).argmin(axis=1)

    def same(self, labels: Sequence[Any]) -> float:
        """The fraction of networks whose nearest other one has the same label, such as its task."""
        require_sequence(labels, "labels")
        if len(labels) != len(self.names):
            raise KannError(f"{len(labels)} labels for {len(self.names)} networks; pass one for each")
        return float(np.mean([labels[i] == labels[j] for i, j in enumerate(self.nearest().tolist())]))

    def csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The pairs as CSV, one line each, with intervals and floors; also written to a file if a path is given."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["a", "b", "distance", "low", "high", "floor"])
        for i, j in zip(*np.triu_indices(len(self.names), 1), strict=True):
            numbers = (self.matrix[i, j], self.low[i, j], self.high[i, j], max(self.floor[i], self.floor[j]))
            writer.writerow([self.names[i], self.names[j], *(f"{number:.6g}" for number in numbers)])
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
        return notebook.table(repr(self), ["", *(self.names[j] for j in shown), "from itself"], rows)

    def _linkage(self) -> Float[Array, "m 4"]:
        from scipy.cluster.hierarchy import linkage  # here, since it takes long to import
        from scipy.spatial.distance import squareform

        return linkage(squareform(self.matrix, checks=False), method="average")


@shows_options
def compare(
    networks: Any,
    *,
    readouts: Any = None,
    intervals: bool = True,
    progress: bool = True,
    **options: Unpack[Options],
) -> Comparison:
    """Measure all distances between several networks. What is compared and how, see `kann.distance`.

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
    >>> found.names[found.nearest()[0]]
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
    """
    how = How.of(options)
    require_flag(intervals, "intervals")
    named = entries_by_name(networks, "networks", remedy='pass {"name": operator, …}')
    if len(named) < 2:
        raise KannError(f"networks holds {len(named)} of them; pass two or more")
    heads = _readouts_of(readouts, named)
    seen = [
        Compared.of(each, how, readout=heads.get(name), name=repr(name), intervals=bool(intervals))
        for name, each in named.items()
    ]
    floor = np.array([floor_of(each, how) for each in seen])
    matrix, low, high = np.zeros((3, len(seen), len(seen)))
    for bounds in (low, high):
        np.fill_diagonal(bounds, np.nan)
    pairs = list(zip(*np.triu_indices(len(seen), 1), strict=True))
    if progress:
        pairs = with_progress(pairs, what="comparing", total=len(pairs), unit="pair")
    for i, j in pairs:
        found = between(seen[i], seen[j], how)
        matrix[i, j] = matrix[j, i] = found
        low[i, j], high[i, j] = low[j, i], high[j, i] = found.interval
    return Comparison(
        kind=how.kind, names=tuple(named), matrix=matrix, low=low, high=high, floor=floor, level=how.level
    )


def _readouts_of(readouts: Any, networks: Mapping[str, Any]) -> dict[str, Any]:
    """The readouts by name: of all networks, or of none."""
    if readouts is None:
        return {}
    heads = entries_by_name(readouts, "readouts", remedy='pass {"name": readout, …}')
    if set(heads) != set(networks):
        apart = sorted(set(heads) ^ set(networks))
        raise KannError(f"readouts and networks have different names: {', '.join(apart)}; pass one readout for each")
    return heads
