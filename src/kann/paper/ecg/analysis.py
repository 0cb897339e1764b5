"""What the autoencoder's encoder does with a beat: the paper's analysis of its states."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

import kann
from kann.fitting.spectrum import Mode
from kann.paper.ecg.modes import FEATURES, Band, band, distances, dominant, dominant_pairs, every_method, missing
from kann.paper.ecg.silhouettes import silhouettes
from kann.paper.ecg.task import THRESHOLD, Split, losses
from kann.paper.results import Quantity
from kann.typing import Array, Float
from kann.zoo.autoencoder import Autoencoder, Config

BATCH = 64
"""Normal beats whose modes are decoded, and anomalous ones beside them, as in the paper."""

PASS = 512
"""Beats that go through the network at a time."""

RIVALS = ("pca", "kernel_pca")
"""What the paper compares KANN with."""

NAMES = {
    "kann": "KANN, |V U|",
    "kann_real": "KANN, exact",
    "pca": "PCA",
    "pca_mean": "PCA about the mean",
    "kernel_pca": "KernelPCA",
}
"""Methods that the table shows. Others are in ``results.json``."""

QUANTITIES = (
    Quantity(key="accuracy_train", what="normal beats called normal, training", format="percent"),
    Quantity(key="accuracy_validation", what="normal beats called normal, validation", format="percent"),
    Quantity(key="accuracy_test", what="normal beats called normal, test", format="percent"),
    Quantity(key="accuracy_anomalous", what="anomalous beats called anomalous, all", format="percent"),
    Quantity(key="threshold", what="threshold of the loss"),
    Quantity(key="loss_test", what="mean loss of normal test beats"),
    Quantity(key="loss_anomalous", what="mean loss of anomalous beats"),
    Quantity(key="relative_error", what="relative error of one step, normal test beats"),
    Quantity(key="relative_error_validation", what="    the same operator on validation beats"),
    Quantity(key="relative_error_anomalous", what="    and on anomalous beats"),
    Quantity(key="agreement", what="decisions unchanged if C predicts the last state", format="percent"),
    Quantity(key="agreement_anomalous", what="    on anomalous beats", format="percent"),
    Quantity(key="loss_kann", what="mean loss of normal test beats, last state by C"),
    *(
        Quantity(key=f"feature_{i}_{method}", what=f"{'    ' * (method != 'kann')}{name}, distance at {feature}")
        for i, feature in enumerate(FEATURES, start=1)
        for method, name in NAMES.items()
    ),
    Quantity(key="closest", what="features at which KANN is closest, of 4"),
    Quantity(key="closest_real", what="    with the exact projection"),
    Quantity(key="closest_mean", what="    against PCA about the mean and KernelPCA"),
    Quantity(key="own_modes", what="pairs that are closest at some feature, of 4"),
    Quantity(key="real_before", what="real modes more important than the fourth pair"),
    Quantity(key="missing_modulus", what="|sum of all modes − state| / |state|, with |V U|"),
    Quantity(key="missing_real", what="    with the exact projection"),
    Quantity(key="silhouette_raw", what="silhouette of normal and anomalous states"),
    Quantity(key="silhouette_pca", what="    in 5 principal components"),
    Quantity(key="silhouette_koopman", what="    along 5 Koopman eigenvectors"),
    Quantity(key="silhouette_gap", what="    Koopman below the lower of the others by"),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Analysis:
    """One trained autoencoder, its encoder linearised."""

    config: Config
    network: Autoencoder
    split: Split
    states: kann.States
    """Of the encoder, for all normal test beats."""
    koopman: kann.Koopman
    """Fitted to them, of rank d − 1."""
    pairs: tuple[Mode, ...]
    """The four dominant conjugate pairs, the most important one first."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Study:
    """One trained autoencoder, and all that was measured about it."""

    analysis: Analysis
    losses: dict[str, Float[Array, " n"]]
    """Of each beat of each part of the data; ``kann`` is that of the test beats if C predicts the last state."""
    bands: dict[str, Band]
    """Of the analysed normal and anomalous beats, and of how the network reproduces them."""
    decoded: dict[str, list[Band]]
    """What each mode of each method decodes to."""
    distances: dict[str, Float[Array, "m f"]]
    """How far each mode of each method is from the normal beat at each salient feature."""
    silhouettes: dict[str, Float[Array, " t"]]
    """Over time, by embedding."""
    numbers: dict[str, float]
    """What was measured, by the keys of `QUANTITIES`."""


def study(network: Autoencoder, config: Config, split: Split) -> Study:
    """Record, fit, decode and measure."""
    states = kann.record(network, split.test, layer="encoder", progress=False)
    koopman = kann.fit(states, rank=states.dim - 1)
    pairs = dominant_pairs(koopman, states[:BATCH])
    analysis = Analysis(config=config, network=network, split=split, states=states, koopman=koopman, pairs=pairs)
    lost = _losses(analysis)
    normal, anomalous = split.test[:BATCH], split.anomalous[:BATCH]
    bands = _bands(network, {"normal": normal, "anomalous": anomalous})
    batch = states[:BATCH].padded().astype(np.float64)
    decoded = _decoded(analysis, batch)
    apart = {name: distances(each, bands["normal"]) for name, each in decoded.items()}
    others = kann.record(network, anomalous, layer="encoder", progress=False).padded()
    labels = np.repeat([0, 1], [len(batch), len(others)])
    over_time = silhouettes(np.concatenate([batch, others]), labels, koopman)
    numbers = _classification(lost) | _fidelity(analysis, lost) | _closeness(apart) | _separation(over_time)
    numbers["real_before"] = _real_before(analysis)
    numbers |= {f"missing_{part}": missing(koopman, batch[:, -1], part=part) for part in ("modulus", "real")}
    return Study(
        analysis=analysis,
        losses=lost,
        bands=bands,
        decoded=decoded,
        distances=apart,
        silhouettes=over_time,
        numbers=numbers,
    )


def _decoded(analysis: Analysis, states: Float[Array, "s t d"]) -> dict[str, list[Band]]:
    """What each mode of each method makes of the last states of some beats."""
    steps = analysis.split.test.shape[1]
    methods = every_method(analysis.koopman, states, analysis.pairs)
    return {name: [band(decode(analysis.network, part, steps)) for part in parts()] for name, parts in methods.items()}


@torch.no_grad()
def decode(network: Autoencoder, h: Float[Array, "s d"], steps: int) -> Float[Array, "s t"]:
    """The beats that states of the encoder stand for."""
    return network.decode(torch.as_tensor(h, dtype=torch.float32), steps).numpy().astype(np.float64)


@torch.no_grad()
def network_losses(network: Autoencoder, beats: torch.Tensor) -> Float[Array, " n"]:
    """How badly each beat is reproduced."""
    return torch.cat([losses(network(x), x) for x in beats.split(PASS)]).numpy().astype(np.float64)


def _losses(analysis: Analysis) -> dict[str, Float[Array, " n"]]:
    """Of every beat there is; and of the test beats if the last state is predicted from the one before."""
    split, network = analysis.split, analysis.network
    parts = {"train": split.train, "validation": split.validation, "test": split.test, "anomalous": split.anomalous}
    predicted = analysis.koopman.predict(analysis.states.padded()[:, -2])
    beats = split.test.numpy()
    by_operator = np.abs(decode(network, predicted, beats.shape[1]) - beats).sum(axis=1)
    return {name: network_losses(network, beats) for name, beats in parts.items()} | {"kann": by_operator}


def _bands(network: Autoencoder, batches: Mapping[str, torch.Tensor]) -> dict[str, Band]:
    """Of beats as they are and as they are reproduced."""
    bands = {name: band(x.numpy().astype(np.float64)) for name, x in batches.items()}
    with torch.no_grad():
        return bands | {f"{name}_reproduced": band(network(x).numpy()) for name, x in batches.items()}


def _classification(lost: Mapping[str, Float[Array, " n"]]) -> dict[str, float]:
    """Decisions at the threshold, which is the paper's."""
    right = {name: float(np.mean(lost[name] <= THRESHOLD)) for name in ("train", "validation", "test")}
    return {f"accuracy_{name}": share for name, share in right.items()} | {
        "accuracy_anomalous": float(np.mean(lost["anomalous"] > THRESHOLD)),
        "threshold": THRESHOLD,
        "loss_test": float(lost["test"].mean()),
        "loss_anomalous": float(lost["anomalous"].mean()),
        "loss_kann": float(lost["kann"].mean()),
    }


def _fidelity(analysis: Analysis, lost: Mapping[str, Float[Array, " n"]]) -> dict[str, float]:
    """How far the operator stands for the encoder, on the beats it was fitted to and on others."""
    network, koopman, split = analysis.network, analysis.koopman, analysis.split
    validation, anomalous = (
        kann.record(network, x, layer="encoder", progress=False) for x in (split.validation, split.anomalous)
    )

    def loss(h: Float[Array, "n d"]) -> Float[Array, " n"]:
        return np.abs(decode(network, h, beats.shape[1]) - beats).sum(axis=1)

    beats = split.anomalous.numpy()
    return {
        "relative_error": float(kann.relative_error(koopman, analysis.states)),
        "relative_error_validation": float(kann.relative_error(koopman, validation)),
        "relative_error_anomalous": float(kann.relative_error(koopman, anomalous)),
        "agreement": float(np.mean((lost["test"] > THRESHOLD) == (lost["kann"] > THRESHOLD))),
        "agreement_anomalous": kann.agreement(koopman, anomalous, loss, threshold=THRESHOLD),
    }


def _closeness(apart: Mapping[str, Float[Array, "m f"]]) -> dict[str, float]:
    """The best mode of each method at each feature, and who is closest."""
    best = {name: values.min(axis=0) for name, values in apart.items()}
    numbers = {
        f"feature_{i}_{name}": float(value) for name, values in best.items() for i, value in enumerate(values, start=1)
    }
    rival = np.min([best[name] for name in RIVALS], axis=0)
    fair = np.minimum(best["pca_mean"], best["kernel_pca"])
    return numbers | {
        "closest": float(np.sum(best["kann"] < rival)),
        "closest_real": float(np.sum(best["kann_real"] < rival)),
        "closest_mean": float(np.sum(best["kann"] < fair)),
        "own_modes": float(len(set(apart["kann"].argmin(axis=0)))),
    }


def _separation(over_time: Mapping[str, Float[Array, " t"]]) -> dict[str, float]:
    """Silhouettes averaged over all samples and times."""
    ends = {name: float(values[-1]) for name, values in over_time.items()}
    return {f"silhouette_{name}": value for name, value in ends.items()} | {
        "silhouette_gap": min(ends["raw"], ends["pca"]) - ends["koopman"]
    }


def _real_before(analysis: Analysis) -> float:
    """The paper looks at pairs only: how many real modes that leaves out."""
    ordered = dominant(analysis.koopman, analysis.states[:BATCH])
    shown = {mode.indices for mode in analysis.pairs}
    last = max(i for i, mode in enumerate(ordered) if mode.indices in shown)
    return float(sum(len(mode.indices) == 1 for mode in ordered[:last]))
