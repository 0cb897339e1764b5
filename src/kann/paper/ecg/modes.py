"""What single modes of the encoder's states decode to: Koopman's, PCA's and KernelPCA's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import kann
from kann.errors import KannError
from kann.fitting.spectrum import Mode
from kann.paper.ecg.scikit import require
from kann.typing import Array, Float

FEATURES = {"t = 3": (3, 4), "35 ≤ t ≤ 75": (35, 76), "t = 103": (103, 104), "t = 133": (133, 134)}
"""The paper's salient features of a normal beat, as ranges of samples, the first sample being 0.

The median of all normal beats has its minimum at 3, a maximum at 104, and the lower one behind it at 133.
"""

SHOWN = 4
"""How many modes of each method are looked at."""

KERNEL_STEP = 10
"""KernelPCA is fitted to every tenth state: its kernel matrix is as wide as there are states."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Band:
    """The middle of many signals, and how far they are from it."""

    median: Float[Array, " t"]
    deviation: Float[Array, " t"]
    """Median absolute deviation."""


def band(signals: Float[Array, "s t"]) -> Band:
    """Median and median absolute deviation at each time."""
    median = np.median(signals, axis=0)
    return Band(median=median, deviation=np.median(np.abs(signals - median), axis=0))


def distances(bands: Sequence[Band], original: Band) -> Float[Array, "m f"]:
    """How far the median of each mode is from the original one at each feature: the norm over its samples."""
    return np.array(
        [
            [np.linalg.norm(each.median[slice(*span)] - original.median[slice(*span)]) for span in FEATURES.values()]
            for each in bands
        ]
    )


def contrast(normal: Band, anomalous: Band) -> dict[str, float]:
    """How far normal and anomalous beats are apart at each feature, and over the whole beat: mean |difference|."""
    apart = np.abs(normal.median - anomalous.median)
    return {name: float(apart[slice(*span)].mean()) for name, span in FEATURES.items()} | {"all": float(apart.mean())}


def dominant(koopman: kann.Koopman, states: kann.States) -> tuple[Mode, ...]:
    """All modes by decreasing importance ξ; that of a conjugate pair is the sum of both, as they come together."""
    weight = kann.importance(koopman, states)
    return tuple(sorted(koopman.modes, key=lambda mode: -weight[list(mode.indices)].sum()))


def dominant_pairs(koopman: kann.Koopman, states: kann.States) -> tuple[Mode, ...]:
    """The four conjugate pairs of the largest importance."""
    pairs = tuple(mode for mode in dominant(koopman, states) if len(mode.indices) == 2)[:SHOWN]
    if not pairs:
        raise KannError("the operator has no conjugate pairs, and it is pairs that are decoded; train longer")
    return pairs


Parts = list[Float[Array, "s d"]]
"""The last states of some beats, of which each mode alone is kept."""


def koopman_parts(koopman: kann.Koopman, last: Float[Array, "s d"], modes: Sequence[Mode], *, part: str) -> Parts:
    """The paper's H B |V U| Bᵀ (``part="modulus"``), or the exact projection (``part="real"``)."""
    return [kann.reconstruct(koopman, last, mode, part) for mode in modes]


def missing(koopman: kann.Koopman, last: Float[Array, "s d"], *, part: str) -> float:
    """How far the parts of all modes together are from the states: |Σ parts − h| / |h|.

    The exact projection loses only what lies outside the basis. Moduli do not add up to anything in particular.
    """
    total = np.sum(koopman_parts(koopman, last, koopman.modes, part=part), axis=0)
    return float(np.linalg.norm(total - last) / np.linalg.norm(last))


def pca_parts(fitted_to: Float[Array, "n d"], last: Float[Array, "s d"], *, mean: bool) -> Parts:
    """Projection onto each of the first principal components.

    Without ``mean`` it is the projection H p pᵀ alone, as for Koopman modes. With it the projection is about the mean
    of the states, which is put back: the usual way to go back from principal components.
    """
    middle = fitted_to.mean(axis=0)
    components = np.linalg.svd(fitted_to - middle, full_matrices=False)[2][:SHOWN]
    at = middle if mean else np.zeros_like(middle)
    return [at + np.outer((last - at) @ each, each) for each in components]


def kernel_pca_parts(fitted_to: Float[Array, "n d"], last: Float[Array, "s d"]) -> Parts:
    """The same with KernelPCA (rbf), whose way back from a component is learnt, with scikit-learn's settings."""
    model = require("decomposition").KernelPCA(n_components=SHOWN, kernel="rbf", fit_inverse_transform=True)
    model.fit(fitted_to)
    coordinates = model.transform(last)
    parts = []
    for i in range(coordinates.shape[1]):
        alone = np.zeros_like(coordinates)
        alone[:, i] = coordinates[:, i]
        parts.append(model.inverse_transform(alone))
    return parts


def every_method(
    koopman: kann.Koopman, states: Float[Array, "s t d"], pairs: Sequence[Mode]
) -> dict[str, Callable[[], Parts]]:
    """How each method splits the last states, by a name that is also a key of the results.

    All are fitted to the states of the same beats at all times; those on ``last`` to the last states alone.
    """
    last, flat = states[:, -1], states.reshape(-1, states.shape[-1])
    sparse = states[:, KERNEL_STEP - 1 :: KERNEL_STEP].reshape(-1, states.shape[-1])
    return {
        "kann": lambda: koopman_parts(koopman, last, pairs, part="modulus"),
        "kann_real": lambda: koopman_parts(koopman, last, pairs, part="real"),
        "pca": lambda: pca_parts(flat, last, mean=False),
        "pca_mean": lambda: pca_parts(flat, last, mean=True),
        "kernel_pca": lambda: kernel_pca_parts(sparse, last),
        "pca_last": lambda: pca_parts(last, last, mean=False),
        "pca_last_mean": lambda: pca_parts(last, last, mean=True),
        "kernel_pca_last": lambda: kernel_pca_parts(last, last),
        "mean_last": lambda: [np.repeat(last.mean(axis=0, keepdims=True), len(last), axis=0)],
    }
