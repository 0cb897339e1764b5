"""How far apart two networks are inside."""

import math
from typing import Any, Unpack

import numpy as np

from kann.analysis.compared import Compared, measure_of
from kann.analysis.comparison_options import How, Options, shows_options
from kann.analysis.resampling import jackknife_error
from kann.errors import KannError


class Distance(float):
    """A distance between two networks: a number, with an interval and the floor below which it means nothing.

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
    """What was compared: "response", "spectrum" or "subspace"."""
    interval: tuple[float, float]
    """Confidence interval over sequences (a jackknife over groups of them); NaN if only operators are known."""
    floor: float
    """The larger of the two networks' distances from themselves, between halves of their sequences; NaN if unknown."""

    def __new__(cls, value: float, *, kind: str, interval: tuple[float, float], floor: float) -> "Distance":
        """The number, with what is known about it."""
        made = super().__new__(cls, value)
        made.kind, made.interval, made.floor = kind, interval, floor
        return made

    def __repr__(self) -> str:
        known = ""
        if not math.isnan(self.floor):
            low, high = self.interval
            known = f", {low:.4g} to {high:.4g}, floor {self.floor:.4g}"
        return f"Distance({float(self):.4g}{known}; {self.kind})"


@shows_options
def distance(a: Any, b: Any, *, readouts: Any = None, **options: Unpack[Options]) -> Distance:
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
        (``kann.record(..., into="moments", groups=20)``), or states. From groups and states come interval and floor.
    kind
        ``"response"``: what the driven systems make of an input, step after step, for networks that read the same.
        ``"spectrum"``: how far eigenvalues must be moved, each weighed by how much its mode carries, for any networks.
        ``"subspace"``: how far the spans of the trusted modes are turned, for networks with the same units, such as
        checkpoints of one.
    readouts
        For responses: the linear readouts of both, modules or weights (o, d). What comes out is then compared. Without
        them the states are, rotated to match as well as they can.
    steps
        For responses: over how many steps. Eigenvalues outside the unit circle are put onto it.
    modes
        For subspaces: how many dimensions at most, of the modes that carry most.
    rank
        The rank of operators that are fitted here, as in `kann.fit`.
    weights
        For spectra: ``"carried"``, each eigenvalue counts as much as its mode carries of the states; ``"equal"``, all
        count the same, so that fast and weak modes tell networks apart too, and noise may. For responses without
        readouts: ``"carried"``, each direction of the states counts as much as they vary along it, and only rotations
        change nothing; ``"equal"``, coordinates are scaled to variance one, and no change of coordinates does.
    level
        Confidence level of the interval.
    """
    how = How.of(options)
    if readouts is not None and (not isinstance(readouts, tuple | list) or len(readouts) != 2):
        raise KannError("readouts are those of both networks; pass (readout of a, readout of b)")
    own, theirs = readouts or (None, None)
    first = Compared.of(a, how, readout=own, name="the first network")
    second = Compared.of(b, how, readout=theirs, name="the second network")
    return between(first, second, how)


def between(a: Compared, b: Compared, how: How) -> Distance:
    """The distance of two networks, with its interval and floor."""
    from scipy.special import stdtrit  # here, since it takes long to import

    measure = measure_of(how)
    value = measure(a.whole, b.whole)
    floor = max(floor_of(a, how), floor_of(b, how))
    variance, freedom = 0.0, math.inf
    for replicates in ([measure(each, b.whole) for each in a.without], [measure(a.whole, each) for each in b.without]):
        if not replicates:
            return Distance(value, kind=how.kind, interval=(math.nan, math.nan), floor=floor)
        column = np.array(replicates)[:, None]
        error = jackknife_error(column, whole=np.array([value]), sizes=np.ones(len(column)))[0]
        variance += float(error) ** 2
        freedom = min(freedom, len(column) - 1)
    half = float(stdtrit(freedom, (1 + how.level) / 2)) * math.sqrt(variance)
    return Distance(value, kind=how.kind, interval=(max(0.0, value - half), value + half), floor=floor)


def floor_of(network: Compared, how: How) -> float:
    """The distance of a network from itself, between two halves of its sequences; NaN if that is not known."""
    if network.halves is None:
        return math.nan
    return measure_of(how)(*network.halves)
