"""Train the networks of a task, keep only a few coordinates of their states, and measure how long tokens last."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kann
from kann.typing import Array, Float, Int
from kann_experiments.results import Quantity
from kann_experiments.state_space.networks import LSTM, STATE, Mamba, Transformer, recurrent_form
from kann_experiments.state_space.task import IGNORED, TASKS, Task, right
from kann_experiments.training import Training, generator, seeded, train

COUNTS = (1, 2, 4, 8, 16, 32)
"""Numbers of coordinates that are kept after every step."""

METHODS = {
    "balanced": "balanced coordinates",
    "pca": "principal components",
    "random": "random directions of equal variance",
    "readout": "directions of the readout",
}
"""Kinds of coordinates, by the names that `kann.effects` has for them."""

STATES = {"mamba": "Mamba, h and buffer", "lstm": "LSTM, h and c"}
"""Networks whose states are analysed, and names of the states in tables."""

ENOUGH = 0.9
"""Fraction of the answers that coordinates have to keep."""

FITTED, JUDGED, CHANGED, TESTED = 384, 256, 64, 2000
"""Sequences that coordinates and fills are fitted to, those of the network that runs with few coordinates, those in
which one token is replaced, and those that the accuracy is measured on."""

BALANCED, DRAWS = 128, 1
"""Sequences whose adjoints are computed, and draws of random directions of each seed."""

RANK = 8
"""Balanced coordinates of the operator that is fitted to idle steps."""

QUANTILES = 65
"""Quantiles of exp(ΔA) that are drawn."""

TRAINING, ANALYSED, HELD_OUT, MEASURED = 0, 1, 2, 3
"""Purposes of random numbers."""

BATCH, LEARNING_RATE = 64, 5e-3

ITERATIONS = {
    "brackets": {"mamba": 600, "lstm": 800, "transformer": 800},
    "recall": {"mamba": 800, "lstm": 6000, "transformer": 800},
    "recall8": {"mamba": 1500, "lstm": 4000, "transformer": 800},
    "copying": {"mamba": 600, "lstm": 800, "transformer": 400},
}
"""Enough for accuracies near 100 %, except for the LSTM in recall of 8 keys: 8,000 iterations are not enough either."""


Network = Mamba | LSTM | Transformer


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Measurement:
    """Numbers of one network by key, and the curves of the figures."""

    numbers: dict[str, float]
    curves: dict[str, Any]


def trained(
    name: str, kind: str, *, seed: int, folder: Path, state: int = STATE, iterations: int | None = None
) -> Network:
    """Train a network of one kind; one that is in the folder already is read."""
    task = TASKS[name]()
    with seeded(seed):
        network = _untrained(task, kind, state)
    plan = Training(iterations=iterations or ITERATIONS[name][kind], schedule="linear", clip=1.0)

    def loss(iteration: int) -> Tensor:
        tokens, answers = task.sequences(generator(seed, TRAINING, iteration), BATCH)
        return nn.functional.cross_entropy(network(tokens).flatten(0, 1), answers.flatten(), ignore_index=IGNORED)

    made_by = {"experiment": "state-space", "task": name, "kind": kind, "state": state, "seed": seed}
    path = folder / f"{kind}{state if kind == 'mamba' else ''}-{seed}.safetensors"
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE)
    train(network, optimizer, loss, plan=plan, path=path, made_by=made_by | {"iterations": plan.iterations})
    return network


def _untrained(task: Task, kind: str, state: int) -> Network:
    if kind == "mamba":
        return Mamba(task.tokens, task.classes, state=state)
    return (
        LSTM(task.tokens, task.classes) if kind == "lstm" else Transformer(task.tokens, task.classes, steps=task.steps)
    )


@torch.no_grad()
def accuracy(network: nn.Module, task: Task) -> float:
    """Measure the accuracy on held-out sequences."""
    tokens, answers = task.sequences(generator(0, MEASURED), TESTED)
    return right(network(tokens), answers)


class Answers(nn.Module):
    """A network that returns only the answer: the outputs of the last steps that count together."""

    def __init__(self, network: nn.Module, steps: int):
        super().__init__()
        self.network, self.steps = network, steps

    def forward(self, tokens: Int[Tensor, "s t"]) -> Float[Tensor, "s o"]:
        """Compute the outputs of the last steps, as one row."""
        return self.network(tokens)[:, -self.steps :].flatten(1)


def measure(network: Mamba | LSTM, task: Task, *, seed: int, size: tuple[int, int] = (FITTED, JUDGED)) -> Measurement:
    """Measure a trained network; ``size`` is how many sequences are fitted and judged."""
    fitted, answers = task.sequences(generator(seed, ANALYSED), size[0])
    judged, wanted = task.sequences(generator(seed, HELD_OUT), size[1])
    model: nn.Module = network
    where: dict[str, Any] = {"layer": "recurrent", "state": "hc"}
    if isinstance(network, Mamba):
        model, where = recurrent_form(network, fitted[:8]), {"layer": "layers.state"}
    balance = kann.balance(
        model, fitted, outputs="class", labels=answers, sequences=BALANCED, draws=2, seed=seed, progress=False, **where
    )
    states = kann.record(model, fitted, batch_size=size[0], progress=False, **where)
    effects = kann.effects(
        model,
        judged,
        balance,
        states,
        counts=COUNTS,
        labels=wanted,
        metric="agreement",
        draws=DRAWS,
        seed=seed,
        batch_size=size[1],
        progress=False,
        **where,
    )
    numbers = {f"{name}_{k}": float(own[i]) for name, own in effects.kept.items() for i, k in enumerate(COUNTS)}
    numbers |= {f"needed_{name}": needed(own) for name, own in effects.kept.items()}
    numbers |= {"none": float(effects.none), "width": float(states.dim)}
    numbers["count"] = math.nan if balance.count is None else float(balance.count)
    numbers |= idle_numbers(states, fitted, balance, task)
    curves = {"values": balance.values[:64]} | _lasting(model, task, where, seed=seed)
    found = [Measurement(numbers=numbers, curves=curves)]
    if isinstance(network, Mamba):
        found.append(own_decays(network, fitted, balance, task))
        variances = np.asarray(states.values, dtype=float).var(axis=0)
        numbers["variance_h"] = float(variances[: network.block.log_rates.numel()].sum() / variances.sum())
    return Measurement(
        numbers={key: own for each in found for key, own in each.numbers.items()},
        curves={key: own for each in found for key, own in each.curves.items()},
    )


def needed(kept: Sequence[float] | Float[Array, " n"]) -> float:
    """Return the fewest coordinates from which on at least `ENOUGH` of the answers are kept; infinite if none."""
    enough = np.asarray(kept) >= ENOUGH
    lasts = np.logical_and.accumulate(enough[::-1])[::-1]
    return float(COUNTS[int(lasts.argmax())]) if lasts.any() else math.inf


def _lasting(model: nn.Module, task: Task, where: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
    """Measure how much of one replaced token is left in states, and in the answer at the end: curves over lags."""
    tokens, answers = task.sequences(generator(seed, MEASURED), CHANGED)
    steps = 1 if (answers != IGNORED).all() else int((answers[0] != IGNORED).sum())
    inside: dict[str, Any] = {"layer": f"network.{where['layer']}"}
    inside |= {key: own for key, own in where.items() if key != "layer"}
    memory = kann.memory(Answers(model, steps), tokens, sequences=CHANGED, seed=seed, progress=False, **inside)
    curves: dict[str, Any] = {"lags": memory.lags}
    for name, own in (("", memory), ("untrained_", memory.untrained)):
        assert own is not None  # noqa: S101  # an untrained copy is measured by default
        curves[f"{name}left_states"] = own.left(of="states")
        curves[f"{name}left_outputs"] = own.left(of="outputs")
    return curves


def lasting_numbers(curves: Mapping[str, Any], kind: str) -> dict[str, float]:
    """Compute how long a replaced token lasts, from the curves of a network."""
    names = {
        "lasts": "left_states",
        "untrained_lasts": "untrained_left_states",
        "answer_lasts": "left_outputs",
    }
    return {f"{kind}_{key}": lasts(curves[f"{kind}_lags"], curves[f"{kind}_{name}"]) for key, name in names.items()}


def lasts(lags: Sequence[int], left: Sequence[float]) -> float:
    """Return the steps after which less than half of the largest difference is left for good; infinite if never.

    `kann.Memory.half_life` counts from the largest difference on. A token stays in the buffer of the convolution for
    three steps, so that this is any of them.

    >>> lasts([0, 1, 2, 3, 4], [0.8, 0.8, 0.8, 0.2, 0.1])
    2.6666666666666665
    """
    values = np.array(left, dtype=float)
    half = values.max() / 2
    last = int(np.flatnonzero(values >= half)[-1])
    if last == len(values) - 1:
        return math.inf
    (a, b), (x, y) = values[last : last + 2], lags[last : last + 2]
    return float(x + (y - x) * (a - half) / (a - b))


def idle_numbers(
    states: kann.States, tokens: Int[Tensor, "s t"], balance: kann.Balance, task: Task
) -> dict[str, float]:
    """Fit an operator in balanced coordinates to the steps at which the idle token is read."""
    inputs = nn.functional.one_hot(tokens, task.tokens).flatten(0, 1).float().numpy()
    with_inputs = kann.States(values=states.values, lengths=states.lengths, inputs=inputs)

    def is_idle(read: Array) -> Array:
        return read[:, task.idle] == 1

    koopman = kann.fit(with_inputs, basis=balance, rank=min(RANK, balance.rank), where=is_idle)
    trust = kann.trust(koopman, with_inputs, where=is_idle)
    moduli = np.sort(np.abs(koopman.eigenvalues))[::-1]
    return {
        "slowest": float(moduli[0]),
        "middle": float(np.median(moduli)),
        "trusted": float(len(trust.trusted)),
    }


def own_decays(network: Mamba, tokens: Int[Tensor, "s t"], balance: kann.Balance, task: Task) -> Measurement:
    """Compute exp(ΔA) of every number in h at idle steps, and the share of each in the balanced coordinates.

    The share of unit u in coordinate i is A_ui W_iu, which adds up to 1 over units; coordinates are weighted by their
    singular values.
    """
    logs = network.decays(tokens)[tokens == task.idle].double().log()
    decays = logs.mean(dim=0).exp().flatten().numpy()
    count = min(COUNTS[-1], balance.rank)
    weights = balance.values[:count] / balance.values[:count].sum()
    share = ((balance.directions[:, :count] * balance.decoder[:count].T) @ weights)[: decays.size]
    weight = share.clip(min=0)
    numbers = {
        "share_h": share.sum(),
        "decay_slowest": decays.max(),
        "decay_middle": np.median(decays),
        "decay_weighted": weighted_median(decays, weight),
        "decay_lasting": (decays >= 0.5 ** (1 / task.steps)).mean(),
    }
    curves = {
        "decays": np.quantile(decays, np.linspace(0, 1, QUANTILES)),
        "decays_weighted": weighted_quantiles(decays, weight, QUANTILES),
    }
    return Measurement(numbers={key: float(value) for key, value in numbers.items()}, curves=curves)


def weighted_quantiles(values: Float[Array, " n"], weights: Float[Array, " n"], count: int) -> Float[Array, " q"]:
    """Compute evenly spaced quantiles of weighted values."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    at = np.searchsorted(reached, np.linspace(0, 1, count) - 1e-12).clip(max=len(values) - 1)
    return values[order][at]


def weighted_median(values: Float[Array, " n"], weights: Float[Array, " n"]) -> float:
    """Compute the value below which half of the weight lies.

    >>> weighted_median(np.array([3.0, 1.0, 2.0]), np.array([10.0, 1.0, 1.0]))
    3.0
    """
    return float(weighted_quantiles(values, weights, 3)[1])


NETWORKS = {"mamba": "Mamba", "lstm": "LSTM", "transformer": "transformer"}
"""Kinds of networks."""


def quantities() -> tuple[Quantity, ...]:
    """The rows of the table of one task."""
    rows = [Quantity(key=f"{kind}_parameters", what=f"parameters, {name}") for kind, name in NETWORKS.items()]
    rows += [
        Quantity(key=f"{kind}_accuracy", what=f"accuracy, {name}", format="percent") for kind, name in NETWORKS.items()
    ]
    for kind, name in STATES.items():
        rows += [
            Quantity(key=f"{kind}_width", what=f"numbers in the state, {name}"),
            Quantity(key=f"{kind}_none", what="    answers kept with the state held at its mean", format="percent"),
            Quantity(key=f"{kind}_count", what="    coordinates before the gap in the singular values"),
        ]
        for method, what in METHODS.items():
            rows += [
                Quantity(key=f"{kind}_{method}_{k}", what=f"    answers kept by {what}, {k}", format="percent")
                for k in COUNTS
            ]
            rows.append(Quantity(key=f"{kind}_needed_{method}", what=f"    coordinates that keep 90 %, {what}"))
        rows += [
            Quantity(key=f"{kind}_lasts", what=f"steps until less than half of a token is left in the state, {name}"),
            Quantity(key=f"{kind}_untrained_lasts", what="    before training"),
            Quantity(key=f"{kind}_answer_lasts", what="    in the answer at the end"),
            Quantity(key=f"{kind}_slowest", what=f"largest |λ| at idle steps, {RANK} coordinates, {name}"),
            Quantity(key=f"{kind}_middle", what="    median |λ|"),
            Quantity(key=f"{kind}_trusted", what="    trusted modes"),
        ]
    rows += [
        Quantity(key="mamba_share_h", what="share of h, not the buffer, in the balanced coordinates", format="percent"),
        Quantity(key="mamba_variance_h", what="    in the variance of the state", format="percent"),
        Quantity(key="mamba_decay_slowest", what="exp(ΔA) at idle steps, slowest number in h"),
        Quantity(key="mamba_decay_middle", what="    median"),
        Quantity(key="mamba_decay_weighted", what="    median, weighted by shares in balanced coordinates"),
        Quantity(key="mamba_decay_lasting", what="    fraction that half lasts a sequence", format="percent"),
    ]
    return tuple(rows)
