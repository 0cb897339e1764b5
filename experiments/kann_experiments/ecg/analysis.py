"""What the autoencoder's encoder does with a beat: the paper's analysis of its states."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

import kann
from kann.fitting.spectrum import Mode
from kann.typing import Array, Float
from kann.zoo.autoencoder import Autoencoder
from kann_experiments import trusting
from kann_experiments.ecg.live import live_numbers, live_quantities
from kann_experiments.ecg.modes import (
    FEATURES,
    MedianBand,
    distances_at_features,
    dominant_pairs,
    error_of_summed_modes,
    koopman_parts,
    median_band,
    modes_by_importance,
    parts_by_method,
)
from kann_experiments.ecg.silhouettes import silhouettes
from kann_experiments.ecg.stand_ins import stand_in_numbers, stand_in_quantities
from kann_experiments.ecg.task import THRESHOLD, Config, Split, losses
from kann_experiments.results import Quantity

BATCH = 64
"""Normal beats whose modes are decoded, and anomalous beats that they are compared with, as in the paper."""

BEATS_AT_A_TIME = 512
"""Beats that go through the network together, to bound the memory."""

NAMES = {
    "kann": "KANN, |V U|",
    "kann_real": "KANN, exact",
    "pca": "PCA",
    "pca_mean": "PCA about the mean",
    "kernel_pca": "KernelPCA",
}
"""Methods that the table shows. Others are in ``results.json``."""

FEWER_BEATS = (64, 20)
"""Beats that further operators are fitted to: those of the paper, and those of its published notebook."""

QUANTITIES = (
    Quantity(key="accuracy_train", what="normal beats called normal, training", format="percent"),
    Quantity(key="accuracy_validation", what="normal beats called normal, validation", format="percent"),
    Quantity(key="accuracy_test", what="normal beats called normal, test", format="percent"),
    Quantity(key="accuracy_anomalous", what="anomalous beats called anomalous, all", format="percent"),
    Quantity(key="threshold", what="threshold of the loss"),
    Quantity(key="loss_test", what="mean loss of normal test beats"),
    Quantity(key="loss_anomalous", what="mean loss of anomalous beats"),
    Quantity(key="relative_error", what="relative error of one step, fitted sequences (normal test beats)"),
    Quantity(key="error_by_time", what="    |H_t predicted − H_t|² / |H_t|², mean over t"),
    Quantity(key="copying_error", what="    copying the previous state"),
    Quantity(key="relative_error_validation", what="relative error, held-out normal beats (validation)"),
    Quantity(key="copying_error_validation", what="    copying the previous state"),
    Quantity(key="relative_error_anomalous", what="relative error, held-out anomalous beats"),
    Quantity(key="copying_error_anomalous", what="    copying the previous state"),
    Quantity(key="agreement", what="decisions unchanged if C predicts the last state, fitted", format="percent"),
    Quantity(key="copying_agreement", what="    copying the last state but one", format="percent"),
    Quantity(key="agreement_validation", what="decisions unchanged, held-out normal beats", format="percent"),
    Quantity(key="copying_agreement_validation", what="    copying the last state but one", format="percent"),
    Quantity(key="agreement_anomalous", what="decisions unchanged, held-out anomalous beats", format="percent"),
    Quantity(key="copying_agreement_anomalous", what="    copying the last state but one", format="percent"),
    *trusting.quantities("centred", "the centred operator"),
    Quantity(key="loss_kann", what="mean loss of normal test beats, last state by C"),
    Quantity(key="loss_copying", what="    copying the last state but one"),
    *(
        Quantity(key=f"feature_{i}_{method}", what=f"{'    ' * (method != 'kann')}{name}, distance at {feature}")
        for i, feature in enumerate(FEATURES, start=1)
        for method, name in NAMES.items()
    ),
    Quantity(key="closest", what="features at which KANN is closest, of 4"),
    *(Quantity(key=f"closest_{count}", what=f"    with C from {count} beats") for count in FEWER_BEATS),
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
    Quantity(key="silhouette_lowest", what="times t at which Koopman is lowest", format="percent"),
    Quantity(key="silhouette_highest", what="    at which it is highest", format="percent"),
    *live_quantities(),
    *stand_in_quantities(),
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
    """Of each beat of each part of the data; ``kann`` is that of the test beats if C predicts the last state, and
    ``copying`` if the state before is taken for the last."""
    bands: dict[str, MedianBand]
    """Of the analysed normal and anomalous beats, and of how the network reproduces them."""
    decoded: dict[str, list[MedianBand]]
    """What each mode of each method decodes to."""
    distances: dict[str, Float[Array, "m f"]]
    """How far each mode of each method is from the normal beat at each salient feature."""
    silhouettes: dict[str, Float[Array, " t"]]
    """Over time, by embedding."""
    numbers: dict[str, float]
    """What was measured, by the keys of `QUANTITIES`."""


def study_network(network: Autoencoder, config: Config, split: Split) -> Study:
    """Record a trained encoder, fit its operator, decode single modes, and measure."""
    states = kann.record(network, split.test, layer="encoder", progress=False)
    koopman = kann.fit(states, basis="paper")
    pairs = dominant_pairs(koopman, states[:BATCH])
    analysis = Analysis(config=config, network=network, split=split, states=states, koopman=koopman, pairs=pairs)
    loss = _loss_by_part(analysis)

    normal, anomalous = split.test[:BATCH], split.anomalous[:BATCH]  # (s, t) each
    bands = _bands(network, {"normal": normal, "anomalous": anomalous})
    h = states[:BATCH].padded().astype(np.float64)  # (s, t, d), of the normal beats
    decoded = _decoded(analysis, h)
    distances = {method: distances_at_features(modes, bands["normal"]) for method, modes in decoded.items()}

    h_anomalous = kann.record(network, anomalous, layer="encoder", progress=False).padded()
    labels = np.repeat([0, 1], [len(h), len(h_anomalous)])
    over_time = silhouettes(np.concatenate([h, h_anomalous]), labels, koopman)

    numbers = _classification(loss) | _fidelity(analysis) | _closeness(distances) | _separation(over_time)
    numbers |= trusting.numbers("centred", kann.fit(states, rank="auto"), states)
    numbers |= live_numbers(network, split, koopman, pairs)
    numbers |= stand_in_numbers(network, split)
    numbers["real_before"] = _real_modes_before_last_pair(analysis)
    numbers["missing_modulus"] = error_of_summed_modes(koopman, h[:, -1], part="modulus")
    numbers["missing_real"] = error_of_summed_modes(koopman, h[:, -1], part="real")
    return Study(
        analysis=analysis,
        losses=loss,
        bands=bands,
        decoded=decoded,
        distances=distances,
        silhouettes=over_time,
        numbers=numbers,
    )


def _decoded(analysis: Analysis, states: Float[Array, "s t d"]) -> dict[str, list[MedianBand]]:
    """What each mode of each method makes of the last states of some beats."""
    samples = analysis.split.test.shape[1]
    methods = parts_by_method(analysis.koopman, states, analysis.pairs)
    for count in FEWER_BEATS:
        fewer = analysis.states[:count]
        koopman = kann.fit(fewer, basis="paper")
        pairs = dominant_pairs(koopman, fewer)
        methods[f"kann_{count}"] = koopman_parts(koopman, states[:, -1], pairs, part="modulus")
    return {
        name: [median_band(decode(analysis.network, part, samples)) for part in parts]
        for name, parts in methods.items()
    }


@torch.no_grad()
def decode(network: Autoencoder, h: Float[Array, "s d"], steps: int) -> Float[Array, "s t"]:
    """The beats that the decoder makes of states of the encoder."""
    return network.decode(torch.as_tensor(h, dtype=torch.float32), steps).numpy().astype(np.float64)


@torch.no_grad()
def network_losses(network: Autoencoder, beats: torch.Tensor) -> Float[Array, " n"]:
    """The loss of each beat, as the network reproduces it."""
    return torch.cat([losses(network(x), x) for x in beats.split(BEATS_AT_A_TIME)]).numpy().astype(np.float64)


def losses_of_states(network: Autoencoder, h: Float[Array, "n d"], *, beats: Float[Array, "n t"]) -> Float[Array, " n"]:
    """The loss of each beat if the encoder's last state were ``h``."""
    return np.abs(decode(network, h, beats.shape[1]) - beats).sum(axis=1)


def _loss_by_part(analysis: Analysis) -> dict[str, Float[Array, " n"]]:
    """Losses of every part of the data; and of the test beats if C predicts the last state, or the one before is it."""
    split, network = analysis.split, analysis.network
    before = analysis.states.padded()[:, -2]  # (c, d)
    return {
        "train": network_losses(network, split.train),
        "validation": network_losses(network, split.validation),
        "test": network_losses(network, split.test),
        "anomalous": network_losses(network, split.anomalous),
        "kann": losses_of_states(network, analysis.koopman.predict(before), beats=split.test.numpy()),
        "copying": losses_of_states(network, before, beats=split.test.numpy()),
    }


@torch.no_grad()
def _bands(network: Autoencoder, batches: Mapping[str, torch.Tensor]) -> dict[str, MedianBand]:
    """Median bands of beats as they are, and as the network reproduces them."""
    true = {name: median_band(x.numpy().astype(np.float64)) for name, x in batches.items()}
    return true | {f"{name}_reproduced": median_band(network(x).numpy()) for name, x in batches.items()}


def _classification(loss: Mapping[str, Float[Array, " n"]]) -> dict[str, float]:
    """Decisions at the threshold, which is the paper's."""
    return {
        "accuracy_train": float(np.mean(loss["train"] <= THRESHOLD)),
        "accuracy_validation": float(np.mean(loss["validation"] <= THRESHOLD)),
        "accuracy_test": float(np.mean(loss["test"] <= THRESHOLD)),
        "accuracy_anomalous": float(np.mean(loss["anomalous"] > THRESHOLD)),
        "threshold": THRESHOLD,
        "loss_test": float(loss["test"].mean()),
        "loss_anomalous": float(loss["anomalous"].mean()),
        "loss_kann": float(loss["kann"].mean()),
        "loss_copying": float(loss["copying"].mean()),
    }


def _fidelity(analysis: Analysis) -> dict[str, float]:
    """How far operator and copying can replace the encoder, on the beats the operator was fitted to and on others."""
    network, split = analysis.network, analysis.split
    parts = {"": split.test, "_validation": split.validation, "_anomalous": split.anomalous}
    numbers = {}
    for part, beats in parts.items():
        states = kann.record(network, beats, layer="encoder", progress=False)
        readout = partial(losses_of_states, network, beats=beats.numpy())
        for error, agreement, predictor in (
            ("relative_error", "agreement", analysis.koopman),
            ("copying_error", "copying_agreement", kann.copying),
        ):
            numbers[f"{error}{part}"] = float(kann.relative_error(predictor, states))
            if not part and predictor is analysis.koopman:
                by_time = kann.relative_error(predictor, states, reduce="time")
                numbers["error_by_time"] = float(np.nanmean(by_time))
            numbers[f"{agreement}{part}"] = kann.agreement(predictor, states, readout, threshold=THRESHOLD)
    return numbers


def _closeness(distances: Mapping[str, Float[Array, "m f"]]) -> dict[str, float]:
    """The distance of the best mode of each method at each feature, and at how many features KANN's is the smallest."""
    best = {method: values.min(axis=0) for method, values in distances.items()}  # (f,) each
    numbers = {
        f"feature_{i}_{method}": float(value)
        for method, values in best.items()
        for i, value in enumerate(values, start=1)
    }
    papers_rivals = np.minimum(best["pca"], best["kernel_pca"])
    # PCA about the mean keeps the mean of the states, as KernelPCA does: the fairer comparison of the two.
    fair_rivals = np.minimum(best["pca_mean"], best["kernel_pca"])
    return numbers | {
        "closest": float(np.sum(best["kann"] < papers_rivals)),
        **{f"closest_{count}": float(np.sum(best[f"kann_{count}"] < papers_rivals)) for count in FEWER_BEATS},
        "closest_real": float(np.sum(best["kann_real"] < papers_rivals)),
        "closest_mean": float(np.sum(best["kann"] < fair_rivals)),
        "own_modes": float(len(set(distances["kann"].argmin(axis=0)))),
    }


def _separation(over_time: Mapping[str, Float[Array, " t"]]) -> dict[str, float]:
    """Silhouettes averaged over all samples and times."""
    averages = {f"silhouette_{name}": float(values[-1]) for name, values in over_time.items()}
    lower = min(averages["silhouette_raw"], averages["silhouette_pca"])
    koopman, others = over_time["koopman"], np.array([over_time["raw"], over_time["pca"]])  # (t,) and (2, t)
    return averages | {
        "silhouette_gap": lower - averages["silhouette_koopman"],
        "silhouette_lowest": float(np.mean(koopman < others.min(axis=0))),
        "silhouette_highest": float(np.mean(koopman > others.max(axis=0))),
    }


def _real_modes_before_last_pair(analysis: Analysis) -> float:
    """How many real modes are more important than the last decoded pair: the paper decodes pairs only."""
    modes = modes_by_importance(analysis.koopman, analysis.states[:BATCH])
    places = [place for place, mode in enumerate(modes) if mode.indices == analysis.pairs[-1].indices]
    return float(sum(len(mode.indices) == 1 for mode in modes[: places[0]]))
