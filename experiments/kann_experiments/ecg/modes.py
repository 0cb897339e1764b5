"""What single modes of the encoder's states decode to: Koopman's, PCA's and KernelPCA's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import kann
from kann.errors import KannError
from kann.fitting.spectrum import Mode
from kann.typing import Array, Float
from kann_experiments.ecg.scikit import require_scikit_learn

FEATURES = {"t = 3": (3, 4), "35 ≤ t ≤ 75": (35, 76), "t = 103": (103, 104), "t = 133": (133, 134)}
"""The paper's salient features of a normal beat, as ranges of samples, the first sample being 0.

The median of all normal beats has its minimum at 3, a maximum at 104, and the lower one behind it at 133.
"""

MODES_DECODED = 4
"""How many modes of each method are decoded, as in the paper."""

KERNEL_STEP = 10
"""KernelPCA is fitted to every tenth state: its kernel matrix is as wide as there are states."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MedianBand:
    """The median of many signals at each time, and how far they are from it."""

    median: Float[Array, " t"]
    deviation: Float[Array, " t"]
    """Median absolute deviation."""


def median_band(signals: Float[Array, "s t"]) -> MedianBand:
    """Median and median absolute deviation of some signals, at each time.

    >>> median_band(np.array([[0.0, 1.0], [1.0, 1.0], [10.0, 4.0]])).median
    array([1., 1.])
    """
    median = np.median(signals, axis=0)
    return MedianBand(median=median, deviation=np.median(np.abs(signals - median), axis=0))


def distances_at_features(decoded: Sequence[MedianBand], original: MedianBand) -> Float[Array, "m f"]:
    """How far the median that each mode decodes to is from the original one: the norm over the samples of a feature."""
    spans = [slice(*span) for span in FEATURES.values()]
    return np.array([[np.linalg.norm((band.median - original.median)[span]) for span in spans] for band in decoded])


def differences_at_features(normal: MedianBand, anomalous: MedianBand) -> dict[str, float]:
    """Mean |difference| of the medians of normal and anomalous beats, at each feature and over the whole beat."""
    gap = np.abs(normal.median - anomalous.median)  # (t,)
    return {name: float(gap[slice(*span)].mean()) for name, span in FEATURES.items()} | {"all": float(gap.mean())}


def modes_by_importance(koopman: kann.Koopman, states: kann.States) -> tuple[Mode, ...]:
    """All modes by decreasing importance ξ; that of a conjugate pair is the sum of both, as they come together."""
    importance = kann.importance(koopman, states)  # (r,)
    return tuple(sorted(koopman.modes, key=lambda mode: -importance[list(mode.indices)].sum()))


def dominant_pairs(koopman: kann.Koopman, states: kann.States) -> tuple[Mode, ...]:
    """The four conjugate pairs of the largest importance."""
    pairs = [mode for mode in modes_by_importance(koopman, states) if len(mode.indices) == 2]
    if not pairs:
        raise KannError("the operator has no conjugate pairs, and it is pairs that are decoded; train longer")
    return tuple(pairs[:MODES_DECODED])


Parts = list[Float[Array, "s d"]]
"""The last states of some beats with one mode alone kept, an entry for each mode."""


def koopman_parts(koopman: kann.Koopman, last: Float[Array, "s d"], modes: Sequence[Mode], *, part: str) -> Parts:
    """The paper's H B |V U| Bᵀ (``part="modulus"``), or the exact projection (``part="real"``)."""
    return [kann.reconstruct(koopman, last, mode, part) for mode in modes]


def error_of_summed_modes(koopman: kann.Koopman, last: Float[Array, "s d"], *, part: str) -> float:
    """How far the parts of all modes together are from the states: |Σ parts − h| / |h|.

    The exact projection loses only what lies outside the basis. Moduli do not add up to anything in particular.
    """
    total = np.sum(koopman_parts(koopman, last, koopman.modes, part=part), axis=0)
    return float(np.linalg.norm(total - last) / np.linalg.norm(last))


def principal_components(states: Float[Array, "n d"], count: int) -> Float[Array, "k d"]:
    """The first principal components, one a row."""
    return np.linalg.svd(states - states.mean(axis=0), full_matrices=False)[2][:count]


def pca_parts(fitted_to: Float[Array, "n d"], last: Float[Array, "s d"], *, mean: bool) -> Parts:
    """Projection onto each of the first principal components.

    Without ``mean`` it is the projection H p pᵀ alone, as for Koopman modes. With it the projection is about the mean
    of the states, which is put back: the usual way to go back from principal components.
    """
    centre = np.zeros(fitted_to.shape[1], fitted_to.dtype)
    if mean:
        centre = fitted_to.mean(axis=0)
    components = principal_components(fitted_to, MODES_DECODED)
    return [centre + np.outer((last - centre) @ component, component) for component in components]


def kernel_pca_parts(fitted_to: Float[Array, "n d"], last: Float[Array, "s d"]) -> Parts:
    """The same with KernelPCA (rbf), whose way back from a component is learnt, with scikit-learn's settings."""
    require_scikit_learn()
    from sklearn.decomposition import KernelPCA

    model = KernelPCA(n_components=MODES_DECODED, kernel="rbf", fit_inverse_transform=True)
    model.fit(fitted_to)
    coordinates = model.transform(last)  # (s, k)
    parts = []
    for i in range(coordinates.shape[1]):
        one_alone = np.zeros_like(coordinates)
        one_alone[:, i] = coordinates[:, i]
        parts.append(model.inverse_transform(one_alone))
    return parts


def parts_by_method(koopman: kann.Koopman, states: Float[Array, "s t d"], pairs: Sequence[Mode]) -> dict[str, Parts]:
    """What each method keeps of the last states for each of its modes, by a name that is also a key of the results.

    All are fitted to the states of the same beats at all times; those with ``last`` in the name to the last states
    alone. ``mean_last`` has no modes: every state is replaced by the mean of the last states.
    """
    d = states.shape[-1]
    last = states[:, -1]  # (s, d)
    at_all_times = states.reshape(-1, d)  # (s * t, d)
    at_some_times = states[:, KERNEL_STEP - 1 :: KERNEL_STEP].reshape(-1, d)
    return {
        "kann": koopman_parts(koopman, last, pairs, part="modulus"),
        "kann_real": koopman_parts(koopman, last, pairs, part="real"),
        "pca": pca_parts(at_all_times, last, mean=False),
        "pca_mean": pca_parts(at_all_times, last, mean=True),
        "kernel_pca": kernel_pca_parts(at_some_times, last),
        "pca_last": pca_parts(last, last, mean=False),
        "pca_last_mean": pca_parts(last, last, mean=True),
        "kernel_pca_last": kernel_pca_parts(last, last),
        "mean_last": [np.repeat(last.mean(axis=0, keepdims=True), len(last), axis=0)],
    }
