"""How well states of normal and anomalous beats are apart, over time."""

import numpy as np

import kann
from kann.typing import Array, Float, Int
from kann_experiments.ecg.modes import modes_by_importance, principal_components
from kann_experiments.ecg.scikit import require_scikit_learn

DIMENSIONS = 5
"""How many principal components, or Koopman eigenvectors, the paper embeds states in."""


def silhouettes(states: Float[Array, "s t d"], labels: Int[Array, " s"], normal: kann.Koopman) -> dict[str, Array]:
    """σ(t) of each embedding, by name: the mean silhouette of all beats at a time, averaged over all times up to it.

    The operator is fitted to these very states, as the principal components are. ``normal`` is another one, fitted to
    normal beats only, for comparison.
    """
    koopman = kann.fit(states, basis="svd", offset=False, rank=states.shape[-1] - 1)
    embeddings = {
        "raw": koopman.encode(states),
        "pca": pca_embedding(states),
        "koopman": koopman_embedding(koopman, states),
        "koopman_normal": koopman_embedding(normal, states),
        "koopman_modes": koopman_embedding(koopman, states, whole=True),
        "koopman_magnitudes": koopman_embedding(koopman, states, magnitudes=True),
    }
    return {name: silhouette_over_time(embedding, labels) for name, embedding in embeddings.items()}


def silhouette_over_time(embedding: Float[Array, "s t k"], labels: Int[Array, " s"]) -> Float[Array, " t"]:
    """The paper's σ(t) = 1 / (S t) Σ over samples and times up to t."""
    require_scikit_learn()
    from sklearn.metrics import silhouette_score

    at_each_time = [silhouette_score(embedding[:, t], labels) for t in range(embedding.shape[1])]
    return np.cumsum(at_each_time) / np.arange(1, len(at_each_time) + 1)


def pca_embedding(states: Float[Array, "s t d"]) -> Float[Array, "s t k"]:
    """Coordinates along the first principal components of all states."""
    flat = states.reshape(-1, states.shape[-1])  # (s * t, d)
    return (states - flat.mean(axis=0)) @ principal_components(flat, DIMENSIONS).T


def koopman_embedding(
    koopman: kann.Koopman, states: Float[Array, "s t d"], *, whole: bool = False, magnitudes: bool = False
) -> Float[Array, "s t k"]:
    """Coordinates along the most important eigenvectors, as real and imaginary parts, or as moduli with ``magnitudes``.

    Conjugate eigenvectors stand side by side and are counted as two, so five are two pairs and one more; with ``whole``
    five modes are taken, of which a pair is one.
    """
    modes = modes_by_importance(koopman, kann.States.from_padded(states))
    if whole:
        chosen = [mode.indices[0] for mode in modes[:DIMENSIONS]]
    else:
        chosen = [index for mode in modes for index in mode.indices][:DIMENSIONS]
    coordinates = kann.project(koopman, states)[..., chosen]  # (s, t, 5), complex
    if magnitudes:
        return np.abs(coordinates)
    return np.concatenate([np.real(coordinates), np.imag(coordinates)], axis=-1)  # (s, t, 10)
