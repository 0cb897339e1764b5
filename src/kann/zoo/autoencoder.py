"""The autoencoder of heartbeats, and the trained one that ships with the package."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from kann.data.archives import damage_explained
from kann.typing import Float
from kann.zoo.files import PROVENANCE, WEIGHTS, folder, read_provenance, require_files
from kann.zoo.heartbeats import Beats, draw_beats

EXAMPLES = 64
"""Made-up beats of each kind, normal and anomalous, that come with the trained network."""

Arch = Literal["lstm", "gru"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The sizes of an autoencoder, and how it is trained, always with Adam."""

    arch: Arch
    """Which recurrent layer, in encoder and decoder."""
    units: int = 64
    """Hidden units of the encoder."""
    decoder_units: int = 128
    """Hidden units of the decoder. The paper does not say; this is what the published code has."""
    epochs: int = 150
    """How often every training beat is seen."""
    batch: int = 32
    """Beats in a batch. The paper does not say, and its published code takes a single one."""
    rate: float = 1e-3
    """Learning rate."""
    schedule: Literal["constant", "linear", "exponential"] = "constant"
    """How the rate falls, see `kann.paper.training.Training`."""
    clip: float = math.inf
    """Largest norm of a gradient."""
    forget_bias: float = 0.0
    """What is added to the bias of an LSTM's forget gates before training: they then start open."""


class Autoencoder(nn.Module):
    """A recurrent encoder, a recurrent decoder, and a linear readout of the decoder's states."""

    def __init__(self, config: Config):
        super().__init__()
        layer = {"lstm": nn.LSTM, "gru": nn.GRU}[config.arch]
        self.encoder = layer(1, config.units, batch_first=True)
        self.decoder = layer(config.units, config.decoder_units, batch_first=True)
        self.readout = nn.Linear(config.decoder_units, 1)

    def encode(self, x: Float[Tensor, "s t"]) -> Float[Tensor, "s d"]:
        """The encoder's last state, which is all that the decoder gets."""
        return self.encoder(x[..., None])[0][:, -1]

    def decode(self, h: Float[Tensor, "s d"], steps: int) -> Float[Tensor, "s t"]:
        """The beat, ``steps`` samples long, that a state of the encoder stands for."""
        repeated = h[:, None].expand(-1, steps, -1).contiguous()  # (s, t, d)
        return self.readout(self.decoder(repeated)[0])[..., 0]

    def forward(self, x: Float[Tensor, "s t"]) -> Float[Tensor, "s t"]:
        """The beats as the network reproduces them."""
        return self.decode(self.encode(x), x.shape[1])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pretrained:
    """The autoencoder that ships with the package."""

    network: Autoencoder
    config: Config
    beats: Beats
    """Made up by `draw_beats`: normal ones, then as many anomalous ones."""
    provenance: dict[str, Any]
    """Command, seed, data, versions, and what was measured."""


def pretrained(place: str | os.PathLike[str] | None = None) -> Pretrained:
    """The autoencoder that ships with the package, or the one in the folder ``place``; its beats need no data set."""
    place = Path(place or folder("ecg"))
    require_files(place, WEIGHTS, PROVENANCE)
    provenance = read_provenance(place)
    with damage_explained(place / PROVENANCE, problem="describes no autoencoder", remedy="reinstall kann"):
        # JSON has no infinity: the writer puts null.
        settings: dict[str, Any] = {"clip": math.inf} | {k: v for k, v in provenance["config"].items() if v is not None}
        config = Config(**settings)
        # A new network draws starting weights; the caller's random numbers must not depend on that.
        with torch.random.fork_rng(devices=[]):
            network = Autoencoder(config)
    with damage_explained(place / WEIGHTS, problem="holds no weights of this autoencoder", remedy="reinstall kann"):
        network.load_state_dict(load_file(place / WEIGHTS))
    beats = draw_beats(np.random.default_rng(0), normal=EXAMPLES, anomalous=EXAMPLES)
    return Pretrained(network=network.eval(), config=config, beats=beats, provenance=provenance)
