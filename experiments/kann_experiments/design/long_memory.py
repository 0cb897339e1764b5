"""Start or train networks so that their operator remembers, and count the iterations until the copy task is learned.

Two ideas are taken from the operator: a start whose fitted operator is orthogonal, and a penalty on the distance of its
eigenvalues from the unit circle. The baselines are torch's start; an orthogonal hidden matrix; that and a penalty that
keeps it nearly orthogonal (Vorontsov et al. 2017); for the GRU biases of the update gate drawn for the length of the
task (chrono initialisation, Tallec and Ollivier 2018); and the eigenvalue penalty in principal components.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kann
from kann.typing import Array, Float
from kann.zoo.copy_task import CopyNetwork
from kann_experiments.copy.task import ANALYSED, CONFIGS, TRAINING, Config, Task, build, build_optimizer
from kann_experiments.design.trainings import VALUES, effective_number
from kann_experiments.results import Quantity, write_json
from kann_experiments.training import generator, require_folder, seeded

NETWORKS: dict[str, Config] = {
    "gru": CONFIGS["gru"],
    "rnn": replace(CONFIGS["rnn"], orthogonal_start=False, batch=32),
}
"""The paper's GRU and RNN on the paper's task, three digits over thirty blanks. The rate is constant here."""

MOST = {"gru": 2000, "rnn": 3000}
"""Iterations at most."""

LEARNED, EVERY = 0.99, 20
"""Recall at which the task is learned, and how often it is measured."""

ARMS = {
    "default": "torch's start",
    "orthogonal": "orthogonal hidden matrix at the start",
    "soft": "the same, and a penalty that keeps it nearly orthogonal",
    "chrono": "chrono biases of the update gate",
    "start": "orthogonal operator at the start",
    "penalty": "penalty on the operator's eigenvalues",
    "components": "the same in principal components",
    "both": "orthogonal operator at the start, and the penalty",
}
"""Ways to train, by name; the first four are baselines."""

ARMS_OF = {
    "gru": ("default", "orthogonal", "chrono", "start", "penalty", "components", "both"),
    "rnn": ("default", "orthogonal", "soft", "start", "penalty", "components", "both"),
}
"""The ways to train each network: soft orthogonality is for the RNN, and chrono biases are for gates."""

SETTLED, OPEN = range(2), range(2, 7)
"""Seeds on which the settings below were chosen, and seeds that they are judged on."""

COORDINATES, WEIGHT, REFRESHED = 16, 1.0, 100
"""Balanced coordinates whose operator is penalised, the weight of the penalty, and iterations after which the
coordinates are found anew."""

SOFT = 100.0
"""The weight of the penalty on the hidden matrix."""

ROUNDS, SPREAD = 30, 0.3
"""Corrections of the hidden matrix, and the standard deviation of the states that the operator is fitted to."""


def trained(arch: str, arm: str, *, seed: int, folder: Path, most: int | None = None) -> dict[str, Any]:
    """Train until the task is learned; what is in ``folder`` already is read."""
    path = require_folder(folder) / f"{arch}-{arm}-{seed}.json"
    if not path.is_file():
        write_json(path, _train(NETWORKS[arch], arm, seed=seed, most=most or MOST[arch]))
    return json.loads(path.read_text(encoding="utf-8"))


def _train(config: Config, arm: str, *, seed: int, most: int) -> dict[str, Any]:
    network = build(config, seed=seed)
    start(network, config, arm, seed=seed)
    optimizer = build_optimizer(network, config)
    task, penalty = config.task, _Penalty(config, seed, is_balanced=arm != "components")
    inputs, answers = task.sequences(task.draw(generator(seed, ANALYSED), 256))
    recalls: list[float] = []
    for iteration in range(most):
        if iteration % EVERY == 0:
            recalls.append(recall(network, inputs, answers, task))
            if recalls[-1] >= LEARNED:
                break
        x, answer = task.sequences(task.draw(generator(seed, TRAINING, iteration), config.batch))
        states = network.recurrent(x)[0]
        loss = nn.functional.cross_entropy(network.readout(states).flatten(0, 1), answer.flatten())
        if arm in ("penalty", "components", "both"):
            loss = loss + WEIGHT * penalty(network, states, iteration)
        if arm == "soft":
            loss = loss + SOFT * distance_from_orthogonal(network)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    learned = recalls[-1] >= LEARNED
    found = kann.balance(network, inputs, layer="recurrent", outputs="class", progress=False)
    return {
        "iterations": float(EVERY * (len(recalls) - 1) if learned else math.inf),
        "recall": recalls[-1],
        "number": effective_number(found.values[:VALUES]),
        "recalls": recalls,
    }


@torch.no_grad()
def recall(network: CopyNetwork, inputs: Tensor, answers: Tensor, task: Task) -> float:
    """The fraction of digits that are right."""
    right = network(inputs).argmax(-1) == answers
    return float(right[:, -task.digits :].float().mean())


@torch.no_grad()
def start(network: CopyNetwork, config: Config, arm: str, *, seed: int) -> None:
    """Give an untrained network the starting weights of an arm."""
    layer: Any = network.recurrent
    with seeded(seed):
        if arm in ("orthogonal", "soft"):
            for block in layer.weight_hh_l0.split(config.units):
                nn.init.orthogonal_(block)
        if arm == "chrono":  # torch's GRU has its gates in the order reset, update, new; an open update gate keeps
            longest = config.task.blanks + config.task.digits
            layer.bias_hh_l0[config.units : 2 * config.units] = torch.log(
                torch.empty(config.units).uniform_(1, longest - 1)
            )
    if arm in ("start", "both"):
        make_operator_orthogonal(network, config, seed=seed)


def make_operator_orthogonal(network: CopyNetwork, config: Config, *, seed: int) -> None:
    """Correct the hidden matrix until the operator that is fitted to states while the network waits is orthogonal.

    Each round fits C to states that start at random and read blanks, and moves the block of the hidden matrix that
    makes new states (the last one) towards the orthogonal matrix nearest to C, by the distance from C.
    """
    layer: Any = network.recurrent
    block = layer.weight_hh_l0[-config.units :]
    for number in range(ROUNDS):
        operator = waiting_operator(network, config, rng=generator(seed, 9, number))
        left, _, right = np.linalg.svd(operator)
        # Rows are states: h' = h C, and torch computes h' = W h.
        block += torch.from_numpy((left @ right - operator).T).to(block)


def waiting_operator(network: CopyNetwork, config: Config, *, rng: np.random.Generator) -> Float[Array, "d d"]:
    """Fit an operator to states that start at random and read blanks."""
    layer: Any = network.recurrent
    h = torch.from_numpy(rng.normal(size=(1, 8 * config.units, config.units)) * SPREAD).float()
    blanks = torch.zeros(h.shape[1], 4, config.task.width)
    blanks[..., 0] = 1.0
    states = torch.cat([h.transpose(0, 1), layer(blanks, h)[0]], dim=1).numpy()
    return kann.fit(states, basis=np.eye(config.units)).matrix


def distance_from_orthogonal(network: CopyNetwork) -> Tensor:
    """Mean squared entry of WᵀW − I for the hidden matrix W, times its size."""
    layer: Any = network.recurrent
    matrix = layer.weight_hh_l0
    return (matrix.T @ matrix - torch.eye(len(matrix))).square().sum() / len(matrix)


class _Penalty:
    """How far eigenvalues of the operator of the leading balanced coordinates are from the unit circle.

    The operator is fitted to the batch's states while the network waits, about their mean at each step: the part of the
    state that depends on what was read.
    """

    def __init__(self, config: Config, seed: int, *, is_balanced: bool):
        task, self._is_balanced = config.task, is_balanced
        self._waiting = slice(task.digits - 1, task.digits + task.blanks)
        self._probe = task.sequences(task.draw(generator(seed, ANALYSED, 1), 64))[0]
        self._directions = torch.zeros(0)

    def __call__(self, network: CopyNetwork, states: Float[Tensor, "s t d"], iteration: int) -> Tensor:
        if iteration % REFRESHED == 0:
            run: Any = {"layer": "recurrent", "progress": False}
            if self._is_balanced:
                found = kann.balance(network, self._probe, outputs="class", draws=1, **run)
            else:
                found = kann.Balance.of_states(kann.record(network, self._probe, **run))
            self._directions = torch.from_numpy(found.directions[:, :COORDINATES]).float()
        waiting = states[:, self._waiting] @ self._directions
        waiting = waiting - waiting.mean(dim=0)
        before, after = (part.flatten(0, 1).double() for part in (waiting[:, :-1], waiting[:, 1:]))
        gram = before.T @ before
        ridge = 1e-6 * gram.diagonal().mean() * torch.eye(len(gram))
        moduli = torch.linalg.eigvals(torch.linalg.solve(gram + ridge, before.T @ after)).abs()
        return (moduli - 1).square().mean().float()


BASELINES = ("default", "orthogonal", "soft", "chrono")
"""Ways to train that know nothing of the operator."""


def best_baseline(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the baseline with the lowest median of iterations."""
    known = [arm for arm in runs if arm in BASELINES]
    return min(known, key=lambda arm: median(runs[arm]))


def median(runs: Sequence[Mapping[str, Any]]) -> float:
    """Return the median of iterations; infinite if most runs did not learn the task."""
    return float(np.median(_iterations(runs)))


def _iterations(runs: Sequence[Mapping[str, Any]]) -> Float[Array, " s"]:
    return np.array([float(run["iterations"]) for run in runs])


def summary(runs: Mapping[str, Sequence[Mapping[str, Any]]], baseline: str) -> tuple[list[Quantity], dict[str, float]]:
    """Summarise all ways to train: quantities and numbers."""
    quantities, numbers = [], {}
    for arm, own in runs.items():
        found = {
            "median": (median(own), "median of iterations"),
            "learned": (float(np.isfinite(_iterations(own)).sum()), "seeds that learn the task"),
            "faster": (float(np.sum(_iterations(own) < _iterations(runs[baseline]))), f"seeds faster than {baseline}"),
            "number": (float(np.median([run["number"] for run in own])), "effective number of balanced coordinates"),
        }
        for key, (value, what) in found.items():
            quantities.append(Quantity(key=f"{arm}_{key}", what=f"{ARMS[arm]}: {what}"))
            numbers[f"{arm}_{key}"] = value
    return quantities, numbers


def arm_lines(runs: Mapping[str, Sequence[Mapping[str, Any]]], baseline: str) -> list[str]:
    """A line for each way to train."""
    count = len(runs[baseline])
    head = f"iterations to {100 * LEARNED:.0f} % recall, median | from – to | seeds that learn"
    lines = [f"| | {head} | faster than the best baseline | effective number of coordinates |", "|---" * 6 + "|"]
    quantities, numbers = summary(runs, baseline)
    text = {quantity.key: quantity.text(numbers[quantity.key]) for quantity in quantities}
    for arm, own in runs.items():
        low, high = (
            Quantity(key="", what="").text(value) for value in (_iterations(own).min(), _iterations(own).max())
        )
        name = f"{ARMS[arm]} (best baseline)" if arm == baseline else ARMS[arm]
        faster = "–" if arm == baseline else f"{text[f'{arm}_faster']} of {count}"
        learned = f"{text[f'{arm}_learned']} of {count}"
        lines.append(
            f"| {name} | {text[f'{arm}_median']} | {low} – {high} | {learned} | {faster} | {text[f'{arm}_number']} |"
        )
    return lines
