"""How the autoencoder reproduces beats, and decides, if only some coordinates of its encoder's state are kept."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import kann
from kann.analysis.modes import mode_directions
from kann.data.moments import mean_and_covariance
from kann.fitting.spectrum import Mode
from kann.live._effects import principal_components, random_like
from kann.live._intervene import only_target, replaced, replacement
from kann.live.completion import fit_fills, orthonormal_axes
from kann.typing import Array, Float, Shaped
from kann.zoo.autoencoder import Autoencoder
from kann_experiments.ecg.task import THRESHOLD, Split, losses
from kann_experiments.results import Quantity

LAYER = "encoder"
"""The layer whose state is replaced."""

COUNTS = (2, 8, 16)
"""How many coordinates are kept."""

RECORDED_BEATS = 300
"""Normal training beats whose states the operator and the fills are fitted to: 42,000 states."""

RANK = 32
"""Rank of the operator whose modes are kept: twice as many as are kept at most."""

DRAWS = 3
"""Draws of random directions."""

METHODS = {"modes": "modes", "pca": "principal components", "random": "random directions, three draws"}
"""What is kept, by the names that `kann.effects` has for it."""

PAIRS = {"pairs": "the paper's four pairs", "pca": "as many principal components", "random": "random directions"}
"""What the paper's pairs are compared with."""


def live_quantities() -> tuple[Quantity, ...]:
    """The rows of the table for `live_numbers`."""
    rows = [
        Quantity(key="live_beats", what="held-out beats judged in the running network, half of them anomalous"),
        Quantity(key="live_loss", what="mean loss of the normal ones, untouched network"),
        Quantity(key="live_none", what="decisions kept with the encoder held at its mean state", format="percent"),
    ]
    for count in COUNTS:
        for name, what in METHODS.items():
            if name != "random":  # its losses are means over draws, which decide nothing
                rows.append(
                    Quantity(key=f"live_{name}_{count}", what=f"    only {count} {what} kept", format="percent")
                )
            rows.append(Quantity(key=f"live_{name}_{count}_loss", what=f"    loss of normal beats, {count} {what}"))
    for keep, verb in ((True, "only"), (False, "without")):
        for name, what in PAIRS.items():
            key, text = _pair_key(name, keep=keep), f"decisions kept, {verb} {what}"
            rows.append(Quantity(key=key, what=text, format="percent"))
            rows.append(Quantity(key=f"{key}_loss", what="    mean loss of normal beats"))
    return tuple(rows)


def _pair_key(name: str, *, keep: bool) -> str:
    if keep:
        return f"live_pairs_{name}"
    return f"live_pairs_removed_{name}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldOutBeats:
    """Beats that the network was not trained on, normal and anomalous ones in turn."""

    values: Float[Tensor, "n t"]
    is_normal: Shaped[Array, " n"]


def held_out_beats(parts: Split) -> HeldOutBeats:
    """All normal beats of validation and test, and as many anomalous ones, each kind in every other place."""
    normal = torch.cat([parts.validation, parts.test])
    count = min(len(normal), len(parts.anomalous))
    values = torch.stack([normal[:count], parts.anomalous[:count]], dim=1).flatten(0, 1)  # (2 count, t)
    return HeldOutBeats(values=values, is_normal=np.arange(2 * count) % 2 == 0)


def live_numbers(
    network: Autoencoder, parts: Split, koopman: kann.Koopman, pairs: tuple[Mode, ...]
) -> dict[str, float]:
    """Decisions and losses with coordinates kept or removed: modes against others, and the paper's pairs."""
    beats = held_out_beats(parts)
    return effect_numbers(network, parts.train[:RECORDED_BEATS], beats) | pair_numbers(
        network, parts.train[:RECORDED_BEATS], beats, koopman, pairs
    )


def effect_numbers(network: Autoencoder, recorded: Float[Tensor, "n t"], beats: HeldOutBeats) -> dict[str, float]:
    """What `kann.effects` says about modes of the operator that reads the samples; of an LSTM, h and c together."""
    state = "h"
    if isinstance(network.encoder, nn.LSTM):
        state = "hc"
    states = kann.record(network, recorded, layer=LAYER, state=state, inputs=True, progress=False)
    found = kann.effects(
        network,
        beats.values,
        kann.fit(states, basis="pca", rank=min(RANK, states.dim), driven=True),
        states,
        metric=loss_of_each,
        labels=beats.values.numpy(),
        counts=[count for count in COUNTS if count <= states.dim],
        fill="linear",
        draws=DRAWS,
        layer=LAYER,
        state=state,
        batch_size=256,
        progress=False,
    )
    own, normal = found.full_scores > THRESHOLD, beats.is_normal[found.judged]
    numbers = {
        "live_beats": float(len(found.judged)),
        "live_loss": float(found.full_scores[normal].mean()),
        "live_none": float(np.mean((found.none_scores > THRESHOLD) == own)),
    }
    for name in METHODS:
        for count, loss in zip(found.counts, found.kept_scores[name], strict=True):
            if np.isfinite(loss).all():  # the operator has so many modes
                if name != "random":
                    numbers[f"live_{name}_{count}"] = float(np.mean((loss > THRESHOLD) == own))
                numbers[f"live_{name}_{count}_loss"] = float(loss[normal].mean())
    return numbers


def loss_of_each(reproduced: Float[Array, "n t"], beats: Float[Array, "n t"]) -> Float[Array, " n"]:
    """The sum over time of |difference|, for each beat."""
    return np.abs(reproduced - beats).sum(axis=1)


def pair_numbers(
    network: Autoencoder,
    recorded: Float[Tensor, "n t"],
    beats: HeldOutBeats,
    koopman: kann.Koopman,
    pairs: tuple[Mode, ...],
) -> dict[str, float]:
    """What the four pairs of the paper's operator, which is of h alone, keep, and what is left without them."""
    states = kann.record(network, recorded, layer=LAYER, progress=False)
    spread = mean_and_covariance(states)
    axes = orthonormal_axes(mode_directions(koopman, pairs), spread)
    chosen = {
        "pairs": axes,
        "pca": principal_components(spread)[:, : axes.shape[1]],
        "random": random_like(axes, spread, np.random.default_rng(0)),
    }
    fills = dict(zip(chosen, fit_fills(list(chosen.values()), states, "linear", spread=spread), strict=True))
    target, untouched = only_target(network, LAYER, "h"), _losses(network, beats.values) > THRESHOLD
    numbers = {}
    for keep in (True, False):
        for name, fill in fills.items():
            change = replacement(fill, keep=keep)
            with replaced(network, target, change, state="h", width=states.dim):
                loss = _losses(network, beats.values)
            key = _pair_key(name, keep=keep)
            numbers[key] = float(np.mean((loss > THRESHOLD) == untouched))
            numbers[f"{key}_loss"] = float(loss[beats.is_normal].mean())
    return numbers


@torch.no_grad()
def _losses(network: Autoencoder, beats: Float[Tensor, "n t"]) -> Float[Array, " n"]:
    return losses(network(beats), beats).numpy().astype(np.float64)
