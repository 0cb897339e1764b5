"""How beats are reproduced, and judged, if a small operator takes the encoder's place.

A sample of a beat is read as principal components of what the layer's gates make of it alone. Three kinds of
operators are fitted to normal training beats: samples gate it; the same with products of coordinates; samples only
push it.
"""

import numpy as np
import torch
from torch import Tensor, nn

import kann
from kann.backends.arrays import as_numpy
from kann.fitting.features import FeatureMap, fit_features, input_sums
from kann.typing import Array, Float
from kann.zoo.autoencoder import Autoencoder
from kann_experiments.ecg.live import LAYER, RECORDED_BEATS, held_out_beats
from kann_experiments.ecg.task import THRESHOLD, Split, losses
from kann_experiments.results import Quantity
from kann_experiments.stand_in_kinds import KINDS, operators_of

COORDINATES = (4, 8, 16, 24, 32)
"""How many coordinates the operators have."""

COMPONENTS = 8
"""Principal components of a sample's gates: one number is read, so that gates lie on a curve, which eight span."""

BEATS_AT_A_TIME = 256
"""Beats that an operator reads together, to bound the memory that their gates take."""


def stand_in_quantities() -> tuple[Quantity, ...]:
    """The rows of the table for `stand_in_numbers`."""
    rows = []
    for count in COORDINATES:
        what = f"{count} coordinates in place of the encoder"
        for name, kind in KINDS.items():
            text = f"{what}, samples {kind}: decisions kept"
            rows.append(Quantity(key=f"{name}_{count}", what=text, format="percent"))
            rows.append(Quantity(key=f"{name}_{count}_loss", what="    mean loss of normal beats"))
            what = "    as many"
    return tuple(rows)


def stand_in_numbers(network: Autoencoder, parts: Split) -> dict[str, float]:
    """Decisions and losses on held-out beats with operators in place of the encoder; see `held_out_beats`."""
    beats = held_out_beats(parts)
    states, features = record_for_stand_ins(network, parts.train[:RECORDED_BEATS])
    read = components_of(network, beats.values, features)
    own = losses_of_encoded(network, _encode(network, beats.values), beats.values) > THRESHOLD
    numbers = {}
    for count in COORDINATES:
        if count > states.dim:
            continue
        for name, koopman in operators_of(states, count).items():
            last = np.asarray(koopman.simulate(read))[:, -1]
            loss = losses_of_encoded(network, last, beats.values)
            numbers[f"{name}_{count}"] = float(np.mean((loss > THRESHOLD) == own))
            numbers[f"{name}_{count}_loss"] = float(loss[beats.is_normal].mean())
    return numbers


def record_for_stand_ins(network: Autoencoder, beats: Float[Tensor, "n t"]) -> tuple[kann.States, FeatureMap]:
    """States from zero on, of an LSTM h and c together, with components of the samples' gates; and these components."""
    state = "h"
    if isinstance(network.encoder, nn.LSTM):
        state = "hc"
    recorded = kann.record(
        network,
        beats,
        layer=LAYER,
        state=state,
        inputs="gates",
        initial=True,
        batch_size=BEATS_AT_A_TIME,
        progress=False,
    )
    gates = as_numpy(recorded.inputs).astype(np.float64)
    features = fit_features(kann.features.Components(min(COMPONENTS, gates.shape[1])), input_sums(recorded))
    states = kann.States(values=recorded.values, lengths=recorded.lengths, inputs=features.of(gates))
    return states, features


def components_of(network: Autoencoder, beats: Float[Tensor, "n t"], features: FeatureMap) -> Float[Array, "n t k"]:
    """What an operator reads of beats, some hundred beats at a time."""
    parts = []
    for x in beats.split(BEATS_AT_A_TIME):
        recorded = kann.record(network, x, layer=LAYER, inputs="gates", batch_size=len(x), progress=False)
        read = features.of(as_numpy(recorded.inputs).astype(np.float64))
        parts.append(read.reshape(*x.shape, features.count))
    return np.concatenate(parts)


@torch.no_grad()
def _encode(network: Autoencoder, beats: Float[Tensor, "n t"]) -> Float[Array, "n d"]:
    return network.encode(beats).numpy()


@torch.no_grad()
def losses_of_encoded(
    network: Autoencoder, last: Float[Array, "n w"], beats: Float[Tensor, "n t"]
) -> Float[Array, " n"]:
    """The loss of each beat if the encoder ended in these states, of which h comes first."""
    h = torch.as_tensor(last[:, : network.encoder.hidden_size], dtype=torch.float32)
    return losses(network.decode(h, beats.shape[1]), beats).numpy().astype(np.float64)
