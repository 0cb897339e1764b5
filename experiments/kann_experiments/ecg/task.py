"""Tell anomalous heartbeats by how badly an autoencoder, which has only seen normal ones, reproduces them.

The encoder reads a beat of 140 samples; its last state is repeated 140 times as the input of the decoder, whose states
a linear readout turns into the beat again. A beat whose loss, the sum of |difference| over time, exceeds a threshold is
called anomalous.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kann.errors import KannError
from kann.typing import Array, Float
from kann.zoo import ADDED_LATER
from kann.zoo.autoencoder import Arch, Autoencoder, Beats
from kann_experiments.training import Training, generator, seeded

TRAINING, SPLITTING, ANOMALOUS = 0, 1, 2
"""What random numbers are for: batches, the split of the normal beats, and the order of the anomalous ones."""

THRESHOLD = 26.0
"""The loss above which the paper calls a beat anomalous. It is fixed before training and never fitted."""

HELD_OUT, TESTED = 0.15, 0.33
"""Fraction of the normal beats that is not trained on, and the fraction of those that tests instead of validating."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The sizes of an autoencoder, and how it is trained, always with Adam."""

    arch: Arch
    """The recurrent layer of encoder and decoder."""
    units: int = 64
    """Hidden units of the encoder."""
    decoder_units: int = 128
    """Hidden units of the decoder. The paper does not say; this is what the published code has."""
    epochs: int = 150
    """Passes over the training beats."""
    batch: int = 32
    """Beats in a batch. The paper does not say, and its published code takes a single one."""
    rate: float = 1e-3
    """Learning rate."""
    schedule: Literal["constant", "linear", "exponential", "plateau"] = "constant"
    """The schedule of the rate, see `Training`."""
    clip: float = math.inf
    """Largest norm of a gradient."""
    forget_bias: float = 0.0
    """Added to the bias of an LSTM's forget gates before training, so that they start open."""
    weight_decay: float = field(default=0.0, metadata=ADDED_LATER)
    """Adam's weight decay. The paper mentions it without a number; its published notebook has 5e-3."""


PRINTED = {"lstm": Config(arch="lstm"), "gru": Config(arch="gru")}
"""The paper's table of hyperparameters, in batches of 32 and without the weight decay that it mentions."""

NOTEBOOK = {arch: replace(config, batch=1, schedule="plateau", weight_decay=5e-3) for arch, config in PRINTED.items()}
"""The recipe of the authors' published notebook: one beat at a time, weight decay, half the rate at each plateau."""

CONFIGS = {
    # Forget gates that start open let gradients reach over 140 steps from the first; a falling rate ends the jumps of
    # the loss. Both together make up for the thirty times fewer steps that batches of 32 mean.
    "lstm": replace(PRINTED["lstm"], rate=2e-3, schedule="linear", forget_bias=1.0),
    "gru": replace(PRINTED["gru"], rate=2e-3, schedule="linear"),
}
"""What reaches the paper's accuracies, as close to its table as was found."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Split:
    """Normal beats in three parts, and all anomalous ones, shuffled."""

    train: Float[Tensor, "a t"]
    validation: Float[Tensor, "b t"]
    test: Float[Tensor, "c t"]
    anomalous: Float[Tensor, "e t"]
    """Never trained on: they are only there to be told apart."""


def split(beats: Beats, *, seed: int) -> Split:
    """Shuffle the normal beats; 85 % are for training, and 67 % of the rest for validation.

    Parts are rounded as scikit-learn does: the smaller one up. Of 2,919 normal beats that leaves 2,481, 293 and 145.
    """
    normal = _shuffled(beats.normal, generator(seed, SPLITTING))
    held_out = math.ceil(HELD_OUT * len(normal))
    tested = math.ceil(TESTED * held_out)
    train, validation, test = torch.split(normal, [len(normal) - held_out, held_out - tested, tested])
    anomalous = _shuffled(beats.anomalous, generator(seed, ANOMALOUS))
    if not min(map(len, (train, validation, test, anomalous))):
        raise KannError(f"{len(normal)} normal and {len(anomalous)} anomalous beats are too few to split; pass more")
    return Split(train=train, validation=validation, test=test, anomalous=anomalous)


def _shuffled(values: Float[Array, "n t"], rng: np.random.Generator) -> Float[Tensor, "n t"]:
    return torch.as_tensor(values[rng.permutation(len(values))], dtype=torch.float32)


def build(config: Config, *, seed: int) -> Autoencoder:
    """An untrained network."""
    with seeded(seed):
        network = Autoencoder(arch=config.arch, units=config.units, decoder_units=config.decoder_units)
    if config.forget_bias:
        for layer in (network.encoder, network.decoder):
            with torch.no_grad():  # torch's LSTM has its gates in the order input, forget, cell, output
                layer.bias_hh_l0[layer.hidden_size : 2 * layer.hidden_size] += config.forget_bias
    return network


def training_plan(config: Config, beats: int) -> Training:
    """The plan for this number of training beats, with a checkpoint and a validation after each epoch."""
    batches = math.ceil(beats / config.batch)
    return Training(
        iterations=config.epochs * batches,
        schedule=config.schedule,
        gamma=0.5 if config.schedule == "plateau" else 1.0,
        clip=config.clip,
        every=batches,
    )


def losses(reproduced: Float[Tensor, "s t"], x: Float[Tensor, "s t"]) -> Float[Tensor, " s"]:
    """Sum over time of |difference|, for each beat."""
    return (reproduced - x).abs().sum(dim=1)


def training_batch(train: Float[Tensor, "n t"], config: Config, *, seed: int, iteration: int) -> Float[Tensor, "s t"]:
    """The beats of an iteration: each epoch goes once through all of them, in an order of its own."""
    batches = math.ceil(len(train) / config.batch)
    epoch, place = divmod(iteration, batches)
    order = generator(seed, TRAINING, epoch).permutation(len(train))
    chosen = order[place * config.batch : (place + 1) * config.batch]
    return train[torch.as_tensor(chosen, device=train.device)]
