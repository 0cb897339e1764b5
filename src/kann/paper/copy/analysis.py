"""What a network that learnt the copy task does while it waits: KANN's answer and RENN's."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import kann
from kann.errors import KannError
from kann.paper.copy.task import ANALYSED, BLANK, Config, CopyNetwork
from kann.paper.orthogonal import OrthogonalRNN
from kann.paper.results import Quantity
from kann.paper.training import generator
from kann.typing import Array, Float, Int

BATCH = 32
"""Sequences that are analysed, as in the paper."""

NEAR_UNIT = 5e-2
"""The paper calls an eigenvalue approximately of unit length if its modulus is within this of 1."""

ENOUGH = 0.8
"""Share of digits recalled that the paper calls good."""

SLOW = 1e-6
"""Speed up to which a state is called slow."""

STARTS = 4
"""Fixed points are searched from so many states of each sequence, evenly over the blanks."""

KANN, DRIVEN = "KANN", "KANN, driven by the inputs"
RENN, RENN_NEAREST = "RENN, at one point", "RENN, at the nearest point"
RENN_WAITING, RENN_IDENTITY = "RENN, under blanks", "RENN, with J = I"

QUANTITIES = (
    Quantity(key="accuracy", what="accuracy of the network on the recalled digits", format="percent"),
    Quantity(key="sequences", what="sequences answered without any error", format="percent"),
    Quantity(key="relative_error", what="relative error of one step"),
    Quantity(key="orthogonality", what="orthogonality |CᵀC − I|² / |C|²"),
    Quantity(key="unit_eigenvalues", what="eigenvalues within 0.05 of unit modulus"),
    Quantity(key="horizon", what="median memory horizon of these, ε = 0.1"),
    Quantity(key="outliving", what="eigenvalues whose horizon exceeds the blanks"),
    Quantity(key="spanning", what="eigenvectors that span several characters", format="percent"),
    Quantity(key="recall", what="digits recalled from three true states with C", format="percent"),
    Quantity(key="recall_first", what="    the first digit", format="percent"),
    Quantity(key="recall_later", what="    the second and third digit", format="percent"),
    Quantity(key="kann_needs", what="true states that C needs for 80 %"),
    Quantity(key="driven_error", what="relative error of one step, driven operator"),
    Quantity(key="driven_recall", what="digits recalled from three true states, driven", format="percent"),
    Quantity(key="simulated", what="digits recalled from no true state, driven", format="percent"),
    Quantity(key="fixed_points", what="fixed points of F(h, 0)"),
    Quantity(key="slow_points", what="slow points of F(h, 0), speed up to 1e-6"),
    Quantity(key="closed_units", what="units that modReLU closes at rest, b < 0"),
    Quantity(key="waiting_points", what="fixed points under blanks"),
    Quantity(key="smallest_speed", what="    smallest speed reached from recorded states"),
    Quantity(key="renn_identity", what="|J_rec − I| / |I| at RENN's point"),
    Quantity(key="renn_orthogonality", what="orthogonality |JᵀJ − I|² / |J|² of J_rec"),
    Quantity(key="renn_operator", what="|BᵀJᵀB − C| / |C|, distance of C from J_rec"),
    Quantity(key="renn_recall", what="digits recalled from three true states, RENN", format="percent"),
    Quantity(key="renn_nearest_recall", what="    at the nearest of its points", format="percent"),
    Quantity(key="renn_waiting_recall", what="    at the slowest state under blanks", format="percent"),
    Quantity(key="renn_identity_recall", what="    with J_rec replaced by I", format="percent"),
    Quantity(key="renn_needs", what="true states that RENN needs for 80 %"),
    Quantity(key="renn_identity_needs", what="    with J_rec replaced by I"),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Analysis:
    """One trained network, linearised by KANN and by RENN."""

    config: Config
    network: CopyNetwork
    inputs: Float[Array, "s t p"]
    """What the network read."""
    targets: Int[Tensor, "s t"]
    """What it should answer."""
    states: kann.States
    """Its hidden states, with the inputs."""
    koopman: kann.Koopman
    """The paper's operator, of rank d − 1."""
    driven: kann.Koopman
    """The operator that reads the inputs."""
    points: kann.FixedPoints
    """Fixed points of F(h, 0), those that most searches led to first; the first is where RENN is linearised."""
    waiting: kann.FixedPoints
    """Fixed points while blanks are read, or the slowest states that searches ended at: a blank is no zero input."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Study:
    """One trained network, and all that was measured about it."""

    analysis: Analysis
    curves: dict[str, Float[Array, " t"]]
    """Digits recalled if the first l = 1, …, T states are true and the others predicted, by method."""
    numbers: dict[str, float]
    """What was measured, by the keys of `QUANTITIES`."""


def study(network: CopyNetwork, config: Config, *, seed: int) -> Study:
    """Record, fit, find fixed points, and measure."""
    x, y = config.task.sequences(config.task.draw(generator(seed, ANALYSED), BATCH))
    states = kann.record(network, x, layer="recurrent", inputs=True, progress=False)
    points, waiting = _fixed_points(network, x, config)
    analysis = Analysis(
        config=config,
        network=network,
        inputs=x.numpy(),
        targets=y,
        states=states,
        koopman=kann.fit(states, rank=states.dim - 1),
        driven=kann.fit(states, driven=True),
        points=points,
        waiting=waiting,
    )
    curves = _curves(analysis)
    return Study(analysis=analysis, curves=curves, numbers=_numbers(analysis, curves))


def _fixed_points(
    network: CopyNetwork, x: Float[Tensor, "s t p"], config: Config
) -> tuple[kann.FixedPoints, kann.FixedPoints]:
    """Fixed points without input, as in the paper, and under blanks.

    Searches start from the zero state, in which every sequence begins, and from states of the blanks.
    """
    task = config.task
    steps = task.digits + np.arange(STARTS) * task.blanks // STARTS
    visited = full_states(network, x)[:, steps].reshape(-1, _width(network))
    starts = np.concatenate([np.zeros((1, visited.shape[1])), visited])
    blank = np.eye(task.width)[BLANK]
    return _points(network, starts, np.zeros(task.width)), _points(network, visited, blank)


def _points(network: CopyNetwork, starts: Float[Array, "n w"], inputs: Float[Array, " p"]) -> kann.FixedPoints:
    """Fixed and slow points, or the slowest states if there are none."""
    cell = cell_of(network)
    try:
        return kann.find_fixed_points(cell, starts, inputs=inputs, slow_tolerance=SLOW)
    except KannError:
        return kann.find_fixed_points(cell, starts, inputs=inputs, slow_tolerance=math.inf)


def cell_of(network: CopyNetwork) -> nn.Module:
    """The network's F(h, x); the state of an LSTM is its output and its cell side by side."""
    recurrent = network.recurrent
    return recurrent.cell if isinstance(recurrent, OrthogonalRNN) else recurrent


def full_states(network: CopyNetwork, x: Float[Tensor, "s t p"]) -> Float[Array, "s t w"]:
    """All that the network carries from step to step: for an LSTM the cells too."""
    kind = "hc" if isinstance(network.recurrent, nn.LSTM) else "h"
    states = kann.record(network, x, layer="recurrent", state=kind, progress=False)
    return states.padded().astype(np.float64)


def _width(network: CopyNetwork) -> int:
    return network.readout.in_features * (2 if isinstance(network.recurrent, nn.LSTM) else 1)


def recalled(analysis: Analysis, path: Float[Array, "s t w"]) -> Float[Array, " k"]:
    """Share of sequences in which each digit is recalled, if the network's states were these."""
    readout, digits = analysis.network.readout, analysis.config.task.digits
    with torch.no_grad():
        states = torch.as_tensor(path[:, -digits:, : readout.in_features], dtype=torch.float32)
        right = readout(states).argmax(dim=-1) == analysis.targets[:, -digits:]
    return right.double().mean(dim=0).numpy()


def _curves(analysis: Analysis) -> dict[str, Float[Array, " t"]]:
    """Digits recalled against the number of true states, by method."""
    true = full_states(analysis.network, torch.as_tensor(analysis.inputs))
    points, waiting, inputs = analysis.points, analysis.waiting, analysis.inputs
    slowest = int(waiting.speeds.argmin())
    methods = {
        KANN: lambda known: kann.hybrid(analysis.koopman, analysis.states, known).padded(),
        DRIVEN: lambda known: kann.hybrid(analysis.driven, analysis.states, known).padded(),
        RENN: lambda known: renn_path(points, true, inputs, known, at=0),
        RENN_NEAREST: lambda known: renn_path(points, true, inputs, known, at=None),
        RENN_WAITING: lambda known: renn_path(waiting, true, inputs, known, at=slowest),
        RENN_IDENTITY: lambda known: identity_path(points, true, inputs, known),
    }
    lengths = range(1, analysis.config.task.length + 1)
    return {
        name: np.array([recalled(analysis, method(known)).mean() for known in lengths])
        for name, method in methods.items()
    }


def renn_path(
    points: kann.FixedPoints,
    true: Float[Array, "s t w"],
    inputs: Float[Array, "s t p"],
    known: int,
    *,
    at: int | None,
) -> Float[Array, "s t w"]:
    """The paper's path of RENN: the first states as they are, the rest by the network linearised about a point."""
    steps = true.shape[1] - known
    if not steps:
        return true
    rest = points.rollout(true[:, known - 1], steps, inputs=inputs[:, known:], at=at)
    return np.concatenate([true[:, :known], rest], axis=1)


def identity_path(
    points: kann.FixedPoints, true: Float[Array, "s t w"], inputs: Float[Array, "s t p"], known: int
) -> Float[Array, "s t w"]:
    """The same with the recurrent Jacobian replaced by the identity, which the paper found it to be nearly."""
    pushes = inputs[:, known:] @ points.input_jacobians[0].T
    return np.concatenate([true[:, :known], true[:, known - 1 : known] + np.cumsum(pushes, axis=1)], axis=1)


def _numbers(analysis: Analysis, curves: dict[str, Float[Array, " t"]]) -> dict[str, float]:
    """Everything in the table."""
    three = analysis.config.task.digits
    return (
        _accuracy(analysis)
        | _spectral(analysis)
        | _linear(analysis, curves)
        | _about_renn(analysis)
        | {
            "renn_recall": curves[RENN][three - 1],
            "renn_needs": needed(curves[RENN]),
            "renn_nearest_recall": curves[RENN_NEAREST][three - 1],
            "renn_waiting_recall": curves[RENN_WAITING][three - 1],
            "renn_identity_recall": curves[RENN_IDENTITY][three - 1],
            "renn_identity_needs": needed(curves[RENN_IDENTITY]),
        }
    )


def _accuracy(analysis: Analysis) -> dict[str, float]:
    """How well the task was learnt, over all sequences that there are."""
    task = analysis.config.task
    x, y = task.sequences(task.every())
    with torch.no_grad():
        right = analysis.network(x).argmax(dim=-1) == y
    return {
        "accuracy": float(right[:, -task.digits :].double().mean()),
        "sequences": float(right.all(dim=1).double().mean()),
    }


def _spectral(analysis: Analysis) -> dict[str, float]:
    """What the operator says by itself."""
    koopman = analysis.koopman
    moduli = np.abs(koopman.eigenvalues)
    near = np.abs(moduli - 1) < NEAR_UNIT
    horizons = np.array([mode.horizon() for mode in koopman.modes for _ in mode.indices])
    return {
        "relative_error": float(kann.relative_error(koopman, analysis.states)),
        "orthogonality": kann.orthogonality(koopman),
        "unit_eigenvalues": float(near.sum()),
        "horizon": float(np.median(horizons[near])) if near.any() else 0.0,
        "outliving": float((horizons > analysis.config.task.blanks).sum()),
        "spanning": float(np.mean([len(characters) > 1 for characters in spanned(analysis)])),
    }


def _linear(analysis: Analysis, curves: dict[str, Float[Array, " t"]]) -> dict[str, float]:
    """How far the operators stand for the network."""
    three = analysis.config.task.digits
    by_place = recalled(analysis, kann.hybrid(analysis.koopman, analysis.states, three).padded())
    alone = recalled(analysis, analysis.driven.simulate(analysis.inputs))
    return {
        "recall": float(by_place.mean()),
        "recall_first": float(by_place[0]),
        "recall_later": float(by_place[1:].mean()),
        "kann_needs": needed(curves[KANN]),
        "driven_error": float(kann.relative_error(analysis.driven, analysis.states)),
        "driven_recall": float(curves[DRIVEN][three - 1]),
        "simulated": float(alone.mean()),
    }


def _about_renn(analysis: Analysis) -> dict[str, float]:
    """What the fixed points say by themselves."""
    points, waiting, recurrent = analysis.points, analysis.waiting, analysis.network.recurrent
    jacobian = points.jacobians[0]
    identity = np.eye(len(jacobian))
    square = jacobian.T @ jacobian - identity
    operator, inside = analysis.koopman.matrix, in_coordinates(jacobian, analysis.koopman)
    numbers = {
        "fixed_points": float((points.kinds == "fixed").sum()),
        "slow_points": float((points.speeds[points.kinds == "slow"] <= SLOW).sum()),
        "waiting_points": float((waiting.kinds == "fixed").sum()),
        "smallest_speed": float(waiting.candidate_speeds.min()),
        "renn_identity": float(np.linalg.norm(jacobian - identity) / np.linalg.norm(identity)),
        "renn_orthogonality": float(np.linalg.norm(square) ** 2 / np.linalg.norm(jacobian) ** 2),
        "renn_operator": float(np.linalg.norm(inside - operator) / np.linalg.norm(operator)),
    }
    if isinstance(recurrent, OrthogonalRNN):
        numbers["closed_units"] = float((recurrent.cell.threshold < 0).sum())
    return numbers


def in_coordinates(jacobian: Float[Array, "w w"], koopman: kann.Koopman) -> Float[Array, "r r"]:
    """A recurrent Jacobian as a matrix for rows of coordinates, BᵀJᵀB, to lay beside C; of an LSTM the part for h."""
    d = koopman.dim
    return koopman.basis.T @ jacobian[:d, :d].T @ koopman.basis


def needed(curve: Float[Array, " t"]) -> float:
    """How many true states it takes until `ENOUGH` digits are recalled, with that many and with any more."""
    short = np.flatnonzero(curve < ENOUGH)
    if not len(short):
        return 1.0
    return math.inf if short[-1] == len(curve) - 1 else float(short[-1] + 2)


def radii(analysis: Analysis) -> Float[Array, " m"]:
    """How strong each mode gets in the analysed states: the largest |z|, if its part of a state is Re(z u)."""
    coefficients = np.abs(kann.project(analysis.koopman, analysis.states.values)).max(axis=0)
    return np.array([len(mode.indices) * coefficients[mode.indices[0]] for mode in analysis.koopman.modes])


def spanned(analysis: Analysis) -> list[list[int]]:
    """The characters that each mode alone gives, blank being 0, in the order of ``koopman.modes``.

    Each mode is multiplied by the 72nd roots of unity, and by five strengths up to the largest that it reaches.
    """
    unity = np.exp(2j * np.pi * np.arange(72) / 72)
    disc = np.linspace(0, 1, 5)[:, None] * unity
    readout = analysis.network.readout
    return [
        np.unique(kann.decision_map(analysis.koopman, mode, readout, radius * disc)).tolist()
        for mode, radius in zip(analysis.koopman.modes, radii(analysis), strict=True)
    ]
