"""How well states of normal and anomalous beats are apart, over time."""

import numpy as np

import kann
from kann.paper.ecg.modes import dominant
from kann.paper.ecg.scikit import require
from kann.typing import Array, Float, Int

DIMENSIONS = 5
"""How many principal components, or Koopman eigenvectors, the paper embeds states in."""


def silhouettes(states: Float[Array, "s t d"], labels: Int[Array, " s"], normal: kann.Koopman) -> dict[str, Array]:
    """σ(t) of each embedding, by name: the mean silhouette of all beats at a time, averaged over all times up to it.

    The operator is fitted to these very states, as the principal components are. ``normal`` is another one, fitted to
    normal beats only, for comparison.
    """
    koopman = kann.fit(states, rank=states.shape[-1] - 1)
    embeddings = {"raw": koopman.encode(states), "pca": principal(states)}
    embeddings |= {"koopman": koopman_embedding(koopman, states), "koopman_normal": koopman_embedding(normal, states)}
    embeddings["koopman_modes"] = koopman_embedding(koopman, states, whole=True)
    embeddings["koopman_magnitudes"] = koopman_embedding(koopman, states, magnitudes=True)
    return {name: over_time(embedding, labels) for name, embedding in embeddings.items()}


def over_time(embedding: Float[Array, "s t k"], labels: Int[Array, " s"]) -> Float[Array, " t"]:
    """The paper's σ(t) = 1 / (S t) Σ over samples and times up to t."""
    score = require("metrics").silhouette_score
    at_each = [score(embedding[:, t], labels) for t in range(embedding.shape[1])]
    return np.cumsum(at_each) / np.arange(1, len(at_each) + 1)


def principal(states: Float[Array, "s t d"]) -> Float[Array, "s t k"]:
    """Coordinates along the first principal components of all states."""
    flat = states.reshape(-1, states.shape[-1])
    components = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)[2][:DIMENSIONS]
    return (states - flat.mean(axis=0)) @ components.T


def koopman_embedding(
    koopman: kann.Koopman, states: Float[Array, "s t d"], *, whole: bool = False, magnitudes: bool = False
) -> Float[Array, "s t k"]:
    """Coordinates along the dominant eigenvectors, as real and imaginary parts, or as moduli with ``magnitudes``.

    Conjugate eigenvectors stand side by side and are counted as two, so five are two pairs and one more; with ``whole``
    five modes are taken, of which a pair is one.
    """
    ordered = dominant(koopman, kann.States.from_padded(states))
    if whole:
        chosen = [mode.indices[0] for mode in ordered[:DIMENSIONS]]
    else:
        chosen = [index for mode in ordered for index in mode.indices][:DIMENSIONS]
    coordinates = kann.project(koopman, states)[..., chosen]
    if magnitudes:
        return np.abs(coordinates)
    return np.concatenate([np.real(coordinates), np.imag(coordinates)], axis=-1)
