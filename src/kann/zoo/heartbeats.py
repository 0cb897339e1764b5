"""Heartbeats, and made-up ones, so that the analysis can be shown and tested without the data set.

A beat is a sum of a few Gaussian bumps. Their heights, places and widths vary from beat to beat; the middle of them is
chosen so that a beat looks like one of ECG5000.
"""

from dataclasses import dataclass

import numpy as np

from kann.typing import Array, Float, Int

NORMAL = 1
"""The class of normal beats; ECG5000 numbers four kinds of anomaly 2 to 5."""

SAMPLES = 140
"""Samples of a beat, as in ECG5000."""

SHAPES = {
    # class: level, then (height, place, width) of each bump
    NORMAL: (
        0.99,
        (
            (-3.71, 2.79, 1.83),
            (-2.04, 5.59, 2.88),
            (-1.69, 30.9, 17.5),
            (-0.30, 62.5, 5.11),
            (1.76, 104.1, 4.38),
            (-2.09, 163.7, 45.5),
            (1.95, 133.5, 4.11),
            (-1.90, 139.9, 0.40),
        ),
    ),
    # A dip where a normal beat has its last rise, and no peak before it.
    2: (0.06, ((-2.81, 5.73, 3.47), (0.32, 30.1, 10.5), (0.60, 90.3, 13.8), (0.58, 112.0, 7.82), (-3.69, 135.2, 3.06))),
    # A late rise that ends in a steep fall.
    4: (0.02, ((-3.10, 5.10, 2.90), (0.55, 95.0, 25.0), (0.80, 122.0, 6.00), (-4.20, 138.5, 3.20))),
}

HEIGHT, PLACE, WIDTH = 0.06, 0.4, 0.04
"""Standard deviations of the bumps: heights and widths as fractions of themselves, places in samples."""

SHIFT = 0.3
"""Standard deviation, in samples, of the place of a whole beat."""

NOISE = 0.04
"""Standard deviation of the noise that is added to each sample."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Beats:
    """Heartbeats and what they are."""

    values: Float[Array, "n t"]
    """Each beat has mean 0 and variance 1."""
    labels: Int[Array, " n"]
    """1 is normal."""

    @property
    def normal(self) -> Float[Array, "k t"]:
        """The normal beats."""
        return self.values[self.labels == NORMAL]

    @property
    def anomalous(self) -> Float[Array, "k t"]:
        """All others."""
        return self.values[self.labels != NORMAL]


def draw_beats(rng: np.random.Generator, *, normal: int, anomalous: int) -> Beats:
    """Made-up beats: first ``normal`` normal ones, then ``anomalous`` anomalous ones, half of each kind.

    >>> draw_beats(np.random.default_rng(0), normal=3, anomalous=2).labels
    array([1, 1, 1, 2, 4])
    """
    kinds = [kind for kind in SHAPES if kind != NORMAL]
    labels = np.array([NORMAL] * normal + [kinds[i % len(kinds)] for i in range(anomalous)], dtype=np.int64)
    return Beats(values=np.stack([_beat(rng, int(label)) for label in labels]), labels=labels)


def _beat(rng: np.random.Generator, kind: int) -> Float[Array, " t"]:
    level, bumps = SHAPES[kind]
    # One random factor for all heights of a beat and one for all widths; then each bump varies on its own.
    height, place, width = np.array(bumps).T * (1 + np.array([[HEIGHT], [0.0], [WIDTH]]) * rng.normal(size=(3, 1)))
    height = height * (1 + HEIGHT * rng.normal(size=len(bumps)))
    place = place + PLACE * rng.normal(size=len(bumps)) + SHIFT * rng.normal()
    times = np.arange(SAMPLES)
    beat = level + height @ np.exp(-0.5 * ((times - place[:, None]) / width[:, None]) ** 2)
    beat = beat + NOISE * rng.normal(size=SAMPLES)
    return (beat - beat.mean()) / beat.std(ddof=1)
