"""What a report shows, computed once: numbers, and one table of small integers for every sequence and mode."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.analysis.decisions import Readout, decide, read_out
from kann.analysis.fidelity import agreement, relative_error
from kann.analysis.modes import importance, magnitude, project, reconstruct
from kann.backends.arrays import as_numpy
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import TRUSTED
from kann.reporting.packing import Packed, pack
from kann.typing import AnyArray, Array, Float, Int

TIMES = 400
"""Points of a curve over time: more cannot be told apart on a screen."""

SLOW = 0.99
"""Modulus above which a mode is called slow."""

EMBEDDED = 3000
"""States in the PCA picture: more only cover each other."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Material:
    """What the user passed to `report`, checked."""

    koopman: Koopman
    states: States
    tokens: Sequence[Sequence[str]] | None
    signals: list[Float[Array, "_ _"]] | None
    readout: Readout | None
    decode: Callable[[Any], Any] | None
    labels: Sequence[str] | None
    classes: Sequence[str] | None
    others: Mapping[str, Koopman]
    fixed_points: Any
    shown: tuple[int, ...]
    """Numbers of the modes that sequences are shown for."""

    @property
    def linear(self) -> AnyArray | None:
        """The weight of the readout, (outputs, units), if it is linear."""
        weight = getattr(self.readout, "weight", None)
        return None if weight is None or weight.ndim != 2 else weight


def mode_importance(koopman: Koopman, states: States) -> Float[Array, " m"]:
    """ξ of each mode: that of its eigenvectors together."""
    by_vector = importance(koopman, states)
    return np.array([by_vector[list(mode.indices)].sum() for mode in koopman.modes])


def mode_rows(koopman: Koopman, shares: Float[Array, " m"]) -> list[dict[str, Any]]:
    """One line for each mode, by decreasing modulus."""
    return [
        {
            "number": number,
            "re": mode.eigenvalue.real,
            "im": mode.eigenvalue.imag,
            "pair": len(mode.indices) > 1,
            "modulus": mode.modulus,
            "period": _finite(mode.period),
            "horizon": _finite(mode.horizon()),
            "residual": mode.residual,
            "importance": float(share),
        }
        for number, (mode, share) in enumerate(zip(koopman.modes, shares, strict=True))
    ]


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def errors_over_time(koopman: Koopman, states: States) -> dict[str, list[Any]]:
    """The relative error at each step, averaged over the sequences that are that long."""
    errors = np.asarray(relative_error(koopman, states, reduce="none"))
    steps = np.arange(len(errors)) - np.repeat(states.starts, states.lengths)
    valid = ~np.isnan(errors)
    count = np.bincount(steps[valid], minlength=steps.max() + 1)
    total = np.bincount(steps[valid], weights=errors[valid], minlength=steps.max() + 1)
    with np.errstate(invalid="ignore"):
        mean = total / count
    places = (
        np.unique(np.linspace(1, len(mean) - 1, TIMES).astype(int)) if len(mean) > TIMES else np.arange(1, len(mean))
    )
    return {"step": places.tolist(), "error": [None if np.isnan(mean[i]) else float(mean[i]) for i in places]}


def fit_numbers(material: Material, koopman: Koopman) -> dict[str, Any]:
    """How well an operator stands for the network."""
    states = material.states
    numbers: dict[str, Any] = {
        "driven": koopman.drive is not None,
        "rank": koopman.rank,
        "explained": float(koopman.explained.sum()),
        "error": float(relative_error(koopman, states)),
        "times": errors_over_time(koopman, states),
        "agreement": None,
        "condition": _finite(koopman.condition),
        "slow": sum(mode.modulus > SLOW for mode in koopman.modes),
        "trusted": sum(mode.residual <= TRUSTED for mode in koopman.modes),
        "modes": len(koopman.modes),
        "eigenvalues": [[value.real, value.imag] for value in koopman.eigenvalues.tolist()],
    }
    if material.readout is not None and (states.lengths > 1).any():
        numbers["agreement"] = agreement(koopman, states, material.readout)
    return numbers


def sequence_rows(material: Material) -> list[dict[str, Any]]:
    """Length, label, prediction, and the words of each sequence."""
    states, predictions = material.states, _predictions(material)
    return [
        {
            "length": int(length),
            "start": int(start),
            "label": None if material.labels is None else str(material.labels[i]),
            "prediction": None if predictions is None else predictions[i],
            "tokens": None if material.tokens is None else [str(token) for token in material.tokens[i]],
        }
        for i, (start, length) in enumerate(zip(states.starts, states.lengths, strict=True))
    ]


def _classes(material: Material) -> Int[Array, " s"] | None:
    """The class of each sequence, read out from its last state."""
    if material.readout is None:
        return None
    ends = material.states.starts + material.states.lengths - 1
    return decide(read_out(material.readout, as_numpy(material.states.values[ends])))


def _predictions(material: Material) -> list[str] | None:
    found = _classes(material)
    if found is None:
        return None
    names = None if material.classes is None else list(material.classes)
    if names is not None and found.max(initial=0) >= len(names):
        raise KannError(f"the readout gives class {found.max()} and classes= has {len(names)} names; pass one for each")
    return [str(value) if names is None else names[value] for value in found.tolist()]


def magnitudes(material: Material) -> Packed:
    """|ĥ| of each shown mode at each state; of a pair, that of either eigenvector."""
    places = [material.koopman.modes[number].indices[0] for number in material.shown]
    return pack(_blocks(material, lambda h, start: magnitude(material.koopman, h)[:, places]))


def shares(material: Material) -> Packed | None:
    """Signed share of each shown mode in the output at each state, if the readout is linear.

    With several outputs it is the share in the one that wins at the end, less the mean over all of them.
    """
    if material.linear is None:
        return None
    koopman = material.koopman
    weight = as_numpy(material.linear).astype(np.float64)
    if len(weight) > 1:
        weight = weight - weight.mean(axis=0)
    gains = koopman.left @ (koopman.basis.T @ weight.T)  # (r, o)
    winners = _classes(material) if len(weight) > 1 else None
    rows = np.repeat(np.zeros(len(material.states), int) if winners is None else winners, material.states.lengths)
    groups = [list(koopman.modes[number].indices) for number in material.shown]

    def of(h: Any, start: int) -> AnyArray:
        parts = project(koopman, h)
        own = gains.T[rows[start : start + len(h)]]  # (n, r): that of the output of each row
        return np.stack([(parts[:, group] * own[:, group]).sum(axis=1).real for group in groups], axis=1)

    return pack(_blocks(material, of), wide=True)


def _blocks(material: Material, of: Callable[[Any, int], Float[Array, "n m"]]) -> Float[Array, "n m"]:
    """Apply a function of states, and of where they begin, to all states, block by block."""
    values = material.states.values
    parts = (of(as_numpy(values[start:stop]), start) for start, stop in material.states.ranges())
    return np.concatenate([np.asarray(part, dtype=np.float32) for part in parts])


def decoded(material: Material) -> dict[str, Any] | None:
    """Signals, what the decoder makes of the states, and of each shown mode alone; the first channel of each."""
    if material.signals is None:
        return None
    content: dict[str, Any] = {"signal": pack(np.concatenate(material.signals)[:, :1], wide=True)}
    if material.decode is None:
        return content
    whole, alone = [], []
    for h in material.states:
        h = as_numpy(h)
        whole.append(_first_channel(material.decode(h), len(h)))
        parts = [reconstruct(material.koopman, h, number) for number in material.shown]
        alone.append(np.stack([_first_channel(material.decode(part), len(h)) for part in parts], axis=1))
    return content | {
        "whole": pack(np.concatenate(whole)[:, None], wide=True),
        "alone": pack(np.concatenate(alone), wide=True),
    }


def _first_channel(values: Any, length: int) -> Float[Array, " t"]:
    values = as_numpy(values)
    if values.shape[:1] != (length,):
        raise KannError(f"decode= gave shape {values.shape} for {length} states; return (T,) or (T, channels)")
    if not np.isfinite(values).all():
        raise KannError("decode= gave NaN or Inf; it must return finite numbers")
    return values.reshape(length, -1)[:, 0].astype(np.float64)


def embedding(material: Material) -> dict[str, Any]:
    """States and fixed points on the two leading principal components."""
    states = material.states
    picked = np.unique(np.linspace(0, len(states.values) - 1, EMBEDDED).astype(int))
    h = np.concatenate([as_numpy(states.values[int(i) : int(i) + 1]) for i in picked]).astype(np.float64)
    mean = h.mean(axis=0)
    axes = np.zeros((2, h.shape[1]))  # a single unit has one component alone
    found_axes = np.linalg.svd(h - mean, full_matrices=False)[2][:2]
    axes[: len(found_axes)] = found_axes
    owner = np.searchsorted(states.starts, picked, side="right") - 1
    points = None
    if material.fixed_points is not None:
        found = np.asarray(material.fixed_points.points)[:, : material.koopman.dim]
        points = {
            "at": ((found - mean) @ axes.T).round(4).tolist(),
            "kinds": list(map(str, material.fixed_points.kinds)),
        }
    return {
        "at": ((h - mean) @ axes.T).round(4).tolist(),
        "sequence": owner.tolist(),
        "step": (picked - states.starts[owner]).tolist(),
        "points": points,
    }


def worth_showing(shares: Float[Array, " m"], count: int) -> tuple[int, ...]:
    """Numbers of modes: half of them the slowest, the others the most important of the rest."""
    slowest = list(range(min(len(shares), (count + 1) // 2)))
    rest = [number for number in np.argsort(-shares, kind="stable").tolist() if number not in slowest]
    return tuple(sorted([*slowest, *rest[: count - len(slowest)]]))
