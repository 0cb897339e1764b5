"""The autoencoder of heartbeats, and the trained one that ships with the package."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from kann.data.archives import damage_explained
from kann.typing import Array, Float, Int
from kann.zoo import PROVENANCE, WEIGHTS, folder, read_provenance, require_files, with_weights

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
    """Heartbeats with labels."""

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
    """Return made-up beats: first ``normal`` normal ones, then ``anomalous`` anomalous ones, half of each kind.

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


EXAMPLES = 64
"""Made-up beats of each kind, normal and anomalous, that come with the trained network."""

Arch = Literal["lstm", "gru"]


class Autoencoder(nn.Module):
    """A recurrent encoder, a recurrent decoder, and a linear readout of the decoder's states."""

    def __init__(self, *, arch: Arch, units: int, decoder_units: int):
        super().__init__()
        layer = {"lstm": nn.LSTM, "gru": nn.GRU}[arch]
        self.encoder = layer(1, units, batch_first=True)
        self.decoder = layer(units, decoder_units, batch_first=True)
        self.readout = nn.Linear(decoder_units, 1)

    def encode(self, x: Float[Tensor, "s t"]) -> Float[Tensor, "s d"]:
        """Return the encoder's last state, which is all that the decoder gets."""
        return self.encoder(x[..., None])[0][:, -1]

    def decode(self, h: Float[Tensor, "s d"], steps: int) -> Float[Tensor, "s t"]:
        """Decode a state of the encoder into a beat of ``steps`` samples."""
        repeated = h[:, None].expand(-1, steps, -1).contiguous()  # (s, t, d)
        return self.readout(self.decoder(repeated)[0])[..., 0]

    def forward(self, x: Float[Tensor, "s t"]) -> Float[Tensor, "s t"]:
        """Return the beats as the network reproduces them."""
        return self.decode(self.encode(x), x.shape[1])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pretrained:
    """The autoencoder that ships with the package."""

    network: Autoencoder
    beats: Beats
    """Made up by `draw_beats`: normal ones, then the same number of anomalous ones."""
    provenance: dict[str, Any]
    """Command, seed, data, versions, and what was measured."""


def pretrained(place: str | os.PathLike[str] | None = None) -> Pretrained:
    """Load the autoencoder that ships with kann, or the one in ``place``; its beats need no data set."""
    place = Path(place or folder("ecg"))
    require_files(place, WEIGHTS, PROVENANCE)
    provenance = read_provenance(place)
    with damage_explained(place / PROVENANCE, problem="describes no autoencoder", remedy="reinstall kann"):
        settings = {name: provenance["config"][name] for name in ("arch", "units", "decoder_units")}
    network = with_weights(place / WEIGHTS, lambda _: Autoencoder(**settings))
    beats = draw_beats(np.random.default_rng(0), normal=EXAMPLES, anomalous=EXAMPLES)
    return Pretrained(network=network, beats=beats, provenance=provenance)
