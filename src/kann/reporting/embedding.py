"""States and fixed points in a plane, with stable points and saddles told apart."""

from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.reporting.inputs import ReportInputs

MAX_EMBEDDED_STATES = 3000
"""States in the picture of principal components: more would only cover each other."""


def embedding(inputs: ReportInputs) -> dict[str, Any]:
    """States and fixed points in the plane of the two leading principal components of the states."""
    states = inputs.states
    picked = np.unique(np.linspace(0, len(states.values) - 1, MAX_EMBEDDED_STATES).astype(int))
    h = np.concatenate([as_numpy(states.values[int(i) : int(i) + 1]) for i in picked]).astype(np.float64)
    mean, axes = h.mean(axis=0), np.zeros((2, h.shape[1]))
    components = np.linalg.svd(h - mean, full_matrices=False)[2][:2]
    axes[: len(components)] = components  # a network of a single unit has one component only; the other axis stays 0
    owner = np.searchsorted(states.starts, picked, side="right") - 1
    points = None
    if inputs.fixed_points is not None:
        # Fixed points of an LSTM hold its cell state too, behind the hidden state.
        found = np.asarray(inputs.fixed_points.points)[:, : inputs.koopman.dim]
        points = {"at": ((found - mean) @ axes.T).round(4).tolist(), "kinds": kinds_of_points(inputs.fixed_points)}
    return {
        "at": ((h - mean) @ axes.T).round(4).tolist(),
        "sequence": owner.tolist(),
        "step": (picked - states.starts[owner]).tolist(),
        "points": points,
    }


def kinds_of_points(fixed_points: Any) -> list[str]:
    """What each point is: "stable", "saddle" or "unstable" if it is fixed, else "slow".

    A saddle draws states in along some directions and drives them away along others; an unstable point drives them away
    along all.
    """
    kinds = list(map(str, fixed_points.kinds))
    stable, eigenvalues = getattr(fixed_points, "stable", None), getattr(fixed_points, "eigenvalues", None)
    if stable is None or eigenvalues is None:
        return kinds
    return [
        _kind(kind, bool(is_stable), np.abs(own))
        for kind, is_stable, own in zip(kinds, stable, eigenvalues, strict=True)
    ]


def _kind(kind: str, is_stable: bool, moduli: Any) -> str:
    if kind != "fixed":
        return kind
    if is_stable:
        return "stable"
    if moduli.size and (moduli > 1).all():
        return "unstable"
    return "saddle"
