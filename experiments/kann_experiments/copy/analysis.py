"""What a network that learnt the copy task does while it waits: KANN's answer and RENN's."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import kann
from kann.typing import Array, Float, Int
from kann.zoo.copy_task import OrthogonalRNN
from kann_experiments import trusting
from kann_experiments.copy.held_out import HeldOut, held_out_numbers, hold_out, recalled_digits
from kann_experiments.copy.live import GOOD_RECALL, live_numbers, live_quantities
from kann_experiments.copy.renn import (
    SLOW_SPEED,
    find_points,
    full_states,
    identity_states,
    jacobian_in_basis,
    renn_states,
)
from kann_experiments.copy.stand_ins import stand_in_numbers, stand_in_quantities
from kann_experiments.copy.task import ANALYSED, Config, CopyNetwork
from kann_experiments.results import Quantity
from kann_experiments.training import generator

SEQUENCES = 32
"""How many sequences are analysed, as in the paper."""

NEAR_UNIT = 5e-2
"""The paper calls an eigenvalue approximately of unit length if its modulus is within this of 1."""

# Names of the curves, in ``results.json`` and in the figure.
KANN, DRIVEN = "KANN", "KANN, driven by the inputs"
RENN, RENN_NEAREST = "RENN, at one point", "RENN, at the nearest point"
RENN_WAITING, RENN_IDENTITY = "RENN, under blanks", "RENN, with J = I"

QUANTITIES = (
    Quantity(key="accuracy", what="accuracy of the network on the recalled digits", format="percent"),
    Quantity(key="sequences", what="sequences answered without any error", format="percent"),
    Quantity(key="relative_error", what="relative error of one step, fitted sequences"),
    Quantity(key="error_by_time", what="    |H_t predicted − H_t|² / |H_t|², mean over t"),
    Quantity(key="held_out_error", what="    held-out sequences"),
    Quantity(key="copying_error", what="    held-out sequences, copying the previous state"),
    Quantity(key="orthogonality", what="orthogonality |CᵀC − I|² / |C|²"),
    Quantity(key="unit_eigenvalues", what="eigenvalues within 0.05 of unit modulus, ||λ| − 1| < 0.05"),
    Quantity(key="near_one", what="    |λ − 1| < 0.05, as printed"),
    Quantity(key="horizon", what="median memory horizon of these, ε = 0.1"),
    Quantity(key="outliving", what="eigenvalues whose horizon exceeds the blanks"),
    Quantity(key="spanning", what="eigenvectors that span several characters", format="percent"),
    Quantity(key="recall", what="digits recalled from three true states with C, fitted", format="percent"),
    Quantity(key="recall_first", what="    the first digit", format="percent"),
    Quantity(key="recall_later", what="    the second and third digit", format="percent"),
    Quantity(key="held_out_recall", what="    all digits, held-out sequences", format="percent"),
    Quantity(key="copying_recall", what="    held-out sequences, copying the third state", format="percent"),
    Quantity(key="kann_needs", what="true states that C needs for 80 %"),
    Quantity(key="driven_error", what="relative error of one step, driven operator, fitted"),
    Quantity(key="driven_held_out_error", what="    held-out sequences"),
    Quantity(key="driven_recall", what="digits recalled from three true states, driven, fitted", format="percent"),
    Quantity(key="driven_held_out_recall", what="    held-out sequences", format="percent"),
    Quantity(key="simulated", what="digits recalled from no true state, driven, fitted", format="percent"),
    Quantity(key="simulated_held_out", what="    held-out sequences", format="percent"),
    Quantity(key="held_out_answers", what="answers unchanged by one step with C, held-out sequences", format="percent"),
    Quantity(key="driven_held_out_answers", what="    with the driven operator", format="percent"),
    Quantity(key="copying_answers", what="    copying the previous state", format="percent"),
    Quantity(key="held_out_digits", what="    the digits alone, with C", format="percent"),
    Quantity(key="driven_held_out_digits", what="    the digits alone, with the driven operator", format="percent"),
    Quantity(key="copying_digits", what="    the digits alone, copying the previous state", format="percent"),
    Quantity(key="fixed_points", what="fixed points of F(h, 0)"),
    Quantity(key="slow_points", what="slow points of F(h, 0), speed up to 1e-6"),
    Quantity(key="closed_units", what="units that modReLU closes at rest, b < 0"),
    Quantity(key="waiting_points", what="fixed points under blanks"),
    Quantity(key="smallest_speed", what="    smallest speed reached from recorded states"),
    Quantity(key="renn_identity", what="|J_rec − I| / |I| at RENN's point"),
    Quantity(key="renn_orthogonality", what="orthogonality |JᵀJ − I|² / |J|² of J_rec"),
    Quantity(key="renn_operator", what="|BᵀJᵀB − C| / |C|, distance of C from J_rec"),
    *trusting.quantities("centred", "the centred operator"),
    *trusting.quantities("reading", "the operator that reads the characters"),
    Quantity(key="renn_recall", what="digits recalled from three true states, RENN", format="percent"),
    Quantity(key="renn_nearest_recall", what="    at the nearest of its points", format="percent"),
    Quantity(key="renn_waiting_recall", what="    at the slowest state under blanks", format="percent"),
    Quantity(key="renn_identity_recall", what="    with J_rec replaced by I", format="percent"),
    Quantity(key="renn_needs", what="true states that RENN needs for 80 %"),
    Quantity(key="renn_identity_needs", what="    with J_rec replaced by I"),
    *live_quantities(),
    *stand_in_quantities(),
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
    """Its hidden states, with the inputs: what operators are fitted to."""
    held_out: HeldOut | None
    """Sequences that no operator was fitted to; None where the task has no others."""
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
    """Fraction of digits recalled if the first 1, …, T states are true and the others predicted, by method."""
    characters: list[list[int]]
    """The characters that each mode alone can make the network answer, in the order of ``koopman.modes``."""
    numbers: dict[str, float]
    """What was measured, by the keys of `QUANTITIES`."""


def study_network(network: CopyNetwork, config: Config, *, seed: int) -> Study:
    """Record a trained network, fit operators, find fixed points, and measure."""
    digits = config.task.draw(generator(seed, ANALYSED), SEQUENCES)  # (s, k)
    x, answer = config.task.sequences(digits)  # (s, t, p) and (s, t)
    states = kann.record(network, x, layer="recurrent", inputs=True, progress=False)
    points, waiting = find_points(network, x, config.task)
    analysis = Analysis(
        config=config,
        network=network,
        inputs=x.numpy(),
        targets=answer,
        states=states,
        held_out=hold_out(network, config.task, digits),
        koopman=kann.fit(states, basis="paper"),
        driven=kann.fit(states, basis="svd", driven=True),
        points=points,
        waiting=waiting,
    )
    curves = _recall_curves(analysis)
    characters = characters_by_mode(analysis)
    numbers = (
        _accuracy(analysis)
        | _spectrum_numbers(analysis, characters)
        | _operator_recall(analysis, curves)
        | held_out_numbers(network, analysis.koopman, analysis.driven, analysis.held_out)
        | _fixed_point_numbers(analysis)
        | _renn_recall(analysis, curves)
        | _trust_numbers(states)
        | live_numbers(network, analysis.held_out, analysis.inputs)
        | stand_in_numbers(network, config.task, seed=seed)
    )
    return Study(analysis=analysis, curves=curves, characters=characters, numbers=numbers)


def _trust_numbers(states: kann.States) -> dict[str, float]:
    if not trusting.can_hold_out(states):
        return trusting.unknown("centred") | trusting.unknown("reading")
    centred, reading = kann.fit(states, rank="auto"), kann.fit(states, rank="auto", driven=True)
    return trusting.numbers("centred", centred, states) | trusting.numbers("reading", reading, states)


def digit_recall(analysis: Analysis, states: Float[Array, "s t w"]) -> Float[Array, " k"]:
    """Fraction of analysed sequences in which each digit is answered rightly, if the network's states were these."""
    return recalled_digits(analysis.network, states, analysis.targets[:, -analysis.config.task.digits :])


def _recall_curves(analysis: Analysis) -> dict[str, Float[Array, " t"]]:
    """Fraction of digits recalled against the number of true states, by method."""
    true = full_states(analysis.network, torch.as_tensor(analysis.inputs))  # (s, t, w)
    points, waiting, inputs = analysis.points, analysis.waiting, analysis.inputs
    slowest = int(waiting.speeds.argmin())
    # Each method gives all states of all sequences, of which the first `known` are true.
    methods = {
        KANN: lambda known: kann.hybrid(analysis.koopman, analysis.states, known).padded(),
        DRIVEN: lambda known: kann.hybrid(analysis.driven, analysis.states, known).padded(),
        RENN: lambda known: renn_states(points, true, inputs, known, at=0),
        RENN_NEAREST: lambda known: renn_states(points, true, inputs, known, at=None),
        RENN_WAITING: lambda known: renn_states(waiting, true, inputs, known, at=slowest),
        RENN_IDENTITY: lambda known: identity_states(points, true, inputs, known),
    }
    counts = range(1, analysis.config.task.length + 1)
    return {
        name: np.array([digit_recall(analysis, method(known)).mean() for known in counts])
        for name, method in methods.items()
    }


def true_states_needed(curve: Float[Array, " t"]) -> float:
    """The fewest true states from which on recall is good, with that many and with any more; infinite if it never is.

    Entry i of the curve is the recall with i + 1 true states.
    """
    too_low = np.flatnonzero(curve < GOOD_RECALL)
    if not len(too_low):
        return 1.0
    last = int(too_low[-1])
    if last == len(curve) - 1:
        return math.inf
    return float(last + 2)


def _accuracy(analysis: Analysis) -> dict[str, float]:
    """How well the task was learnt, over all sequences that there are."""
    task = analysis.config.task
    x, answer = task.sequences(task.every())
    with torch.no_grad():
        right = analysis.network(x).argmax(dim=-1) == answer  # (s, t)
    return {
        "accuracy": float(right[:, -task.digits :].double().mean()),
        "sequences": float(right.all(dim=1).double().mean()),
    }


def _spectrum_numbers(analysis: Analysis, characters: list[list[int]]) -> dict[str, float]:
    """What the eigenvalues and eigenvectors of the paper's operator say."""
    koopman = analysis.koopman
    near_unit = np.abs(np.abs(koopman.eigenvalues) - 1) < NEAR_UNIT  # (r,)
    horizons = np.array([mode.horizon() for mode in koopman.modes for _ in mode.indices])  # (r,), a pair counts twice
    median_horizon = 0.0
    if near_unit.any():
        median_horizon = float(np.median(horizons[near_unit]))
    return {
        "relative_error": float(kann.relative_error(koopman, analysis.states)),
        "orthogonality": kann.orthogonality(koopman),
        "error_by_time": float(np.nanmean(kann.relative_error(koopman, analysis.states, reduce="time"))),
        "unit_eigenvalues": float(near_unit.sum()),
        "near_one": float((np.abs(koopman.eigenvalues - 1) < NEAR_UNIT).sum()),
        "horizon": median_horizon,
        "outliving": float((horizons > analysis.config.task.blanks).sum()),
        "spanning": float(np.mean([len(answers) > 1 for answers in characters])),
    }


def _operator_recall(analysis: Analysis, curves: dict[str, Float[Array, " t"]]) -> dict[str, float]:
    """How many digits are recalled with the operators in place of the network, once the digits have been read."""
    known = analysis.config.task.digits
    by_digit = digit_recall(analysis, kann.hybrid(analysis.koopman, analysis.states, known).padded())
    simulated = digit_recall(analysis, analysis.driven.simulate(analysis.inputs))
    return {
        "recall": float(by_digit.mean()),
        "recall_first": float(by_digit[0]),
        "recall_later": float(by_digit[1:].mean()),
        "kann_needs": true_states_needed(curves[KANN]),
        "driven_error": float(kann.relative_error(analysis.driven, analysis.states)),
        "driven_recall": float(curves[DRIVEN][known - 1]),
        "simulated": float(simulated.mean()),
    }


def _fixed_point_numbers(analysis: Analysis) -> dict[str, float]:
    """How many fixed points there are, and how far the Jacobian at RENN's point is from I and from C."""
    points, waiting, recurrent = analysis.points, analysis.waiting, analysis.network.recurrent
    jacobian = points.jacobians[0]  # (w, w)
    identity = np.eye(len(jacobian))
    gram_gap = jacobian.T @ jacobian - identity
    operator, in_basis = analysis.koopman.matrix, jacobian_in_basis(jacobian, analysis.koopman)
    numbers = {
        "fixed_points": float((points.kinds == "fixed").sum()),
        # Where there are no such points, `points` holds the slowest states, which are called slow at any speed.
        "slow_points": float((points.speeds[points.kinds == "slow"] <= SLOW_SPEED).sum()),
        "waiting_points": float((waiting.kinds == "fixed").sum()),
        "smallest_speed": float(waiting.candidate_speeds.min()),
        "renn_identity": float(np.linalg.norm(jacobian - identity) / np.linalg.norm(identity)),
        "renn_orthogonality": float(np.linalg.norm(gram_gap) ** 2 / np.linalg.norm(jacobian) ** 2),
        "renn_operator": float(np.linalg.norm(in_basis - operator) / np.linalg.norm(operator)),
    }
    if isinstance(recurrent, OrthogonalRNN):
        numbers["closed_units"] = float((recurrent.cell.threshold < 0).sum())
    return numbers


def _renn_recall(analysis: Analysis, curves: dict[str, Float[Array, " t"]]) -> dict[str, float]:
    """How many digits are recalled with RENN in place of the network, once the digits have been read."""
    known = analysis.config.task.digits
    return {
        "renn_recall": curves[RENN][known - 1],
        "renn_needs": true_states_needed(curves[RENN]),
        "renn_nearest_recall": curves[RENN_NEAREST][known - 1],
        "renn_waiting_recall": curves[RENN_WAITING][known - 1],
        "renn_identity_recall": curves[RENN_IDENTITY][known - 1],
        "renn_identity_needs": true_states_needed(curves[RENN_IDENTITY]),
    }


def _largest_coefficients(analysis: Analysis) -> Float[Array, " m"]:
    """The largest |z| of each mode in the analysed states, where the mode's part of a state is Re(z u)."""
    coefficients = np.abs(kann.project(analysis.koopman, analysis.states.values)).max(axis=0)  # (r,)
    # The two members of a conjugate pair add up to twice the real part of one.
    return np.array([len(mode.indices) * coefficients[mode.indices[0]] for mode in analysis.koopman.modes])


def characters_by_mode(analysis: Analysis) -> list[list[int]]:
    """The characters that each mode alone makes the network answer, blank being 0, in the order of ``koopman.modes``.

    Each mode is multiplied by the 72nd roots of unity, and by five strengths up to the largest that it reaches.
    """
    unit_circle = np.exp(2j * np.pi * np.arange(72) / 72)
    unit_disc = np.linspace(0, 1, 5)[:, None] * unit_circle  # (5, 72)
    readout = analysis.network.readout
    return [
        np.unique(kann.decision_map(analysis.koopman, mode, readout, radius * unit_disc)).tolist()
        for mode, radius in zip(analysis.koopman.modes, _largest_coefficients(analysis), strict=True)
    ]
