"""The networks of the paper while they train: when memories and balanced coordinates form."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kann
from kann.recording.runner import evaluation_mode
from kann.typing import Array, Float
from kann_experiments.copy import task as copy
from kann_experiments.data import obtain
from kann_experiments.ecg import task as ecg
from kann_experiments.ecg.beats import read_beats
from kann_experiments.results import Quantity, write_json
from kann_experiments.sentiment import task as reviews
from kann_experiments.sentiment.corpus import Reviews, load_corpus
from kann_experiments.training import Training, generator, require_folder, train

PROBED, JUDGED = 128, 512
"""Sequences of the probe, and held-out sequences that accuracy and decisions kept are measured on."""

CHECKPOINTS = 40
"""Checkpoints of a training, evenly spaced."""

MEMORY = 0.98
"""A trusted mode with |λ| from here on counts as memory: half of it is left after 34 steps."""

LEARNED = 0.9
"""The network has learned when accuracy has gone this fraction of the way from the first to the best checkpoint. Its
coordinates have formed when they alone reach the same accuracy."""

MODES, VALUES = 8, 12
"""Leading |λ| and singular values that are written down and drawn."""

UNITS, WORDS, EPOCHS = 32, 100, 2
"""The sentiment GRU of this experiment: 256 units and 1,000 words take hours on a processor."""

ECG_EPOCHS = 50
"""Epochs of the autoencoder, of 150 in the other experiments."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """A network that is about to train."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], Tensor]
    """The loss of a batch by its number."""
    plan: Training
    probe: Any
    """Sequences that the operator and the balanced coordinates are fitted to."""
    judged: Any
    """Held-out sequences."""
    decided: Callable[[Tensor], Array]
    """From outputs for ``judged`` to decisions (s, …)."""
    right: Array
    """The correct decisions."""
    counts: tuple[int, ...]
    """Numbers of balanced coordinates that are kept after every step."""
    layer: str = "recurrent"
    state: str = "h"
    has_inputs: bool = True
    outputs: str = "class"


def _copy(arch: str, seed: int) -> Case:
    config = copy.CONFIGS[arch]
    network, task = copy.build(config, seed=seed), config.task

    def loss(iteration: int) -> Tensor:
        x, answer = task.sequences(task.draw(generator(seed, copy.TRAINING, iteration), config.batch))
        return nn.functional.cross_entropy(network(x).flatten(0, 1), answer.flatten())

    drawn = task.draw(generator(seed, copy.ANALYSED), PROBED + JUDGED)
    inputs, answers = task.sequences(drawn)
    return Case(
        network=network,
        optimizer=copy.build_optimizer(network, config),
        loss=loss,
        plan=config.training,
        probe=inputs[:PROBED],
        judged=inputs[PROBED:],
        decided=lambda scores: scores[:, -task.digits :].argmax(-1).numpy(),
        right=answers[PROBED:, -task.digits :].numpy(),
        counts=(8, 16, 32),
        layer="recurrent.state" if arch == "dtriv" else "recurrent",
        has_inputs=arch != "dtriv",  # its states pass an identity, which reads nothing else
    )


def _ecg(seed: int) -> Case:
    config = replace(ecg.CONFIGS["lstm"], epochs=ECG_EPOCHS)
    parts = ecg.split(read_beats(obtain("ecg5000")), seed=seed)
    network = ecg.build(config, seed=seed)
    half = min(len(parts.validation), JUDGED // 2)
    judged = torch.cat([parts.validation[:half], parts.anomalous[:half]])

    def loss(iteration: int) -> Tensor:
        batch = ecg.training_batch(parts.train, config, seed=seed, iteration=iteration)
        return ecg.losses(network(batch), batch).mean()

    return Case(
        network=network,
        optimizer=torch.optim.Adam(network.parameters(), lr=config.rate),
        loss=loss,
        plan=ecg.training_plan(config, len(parts.train)),
        probe=parts.train[:PROBED],
        judged=judged,
        decided=lambda beats: (ecg.losses(beats, judged) > ecg.THRESHOLD).numpy(),
        right=np.arange(len(judged)) >= half,
        counts=(4, 8, 16),
        layer="encoder",
        state="hc",
        outputs="values",
    )


def _sentiment(seed: int) -> Case:
    config = replace(reviews.CONFIGS["gru"], units=UNITS, epochs=EPOCHS)
    corpus = load_corpus()
    network = reviews.build(config, words=len(corpus.vocabulary), seed=seed)
    known, _ = reviews.split(corpus.train)
    plan = config.training(len(known))

    def last_words(own: Reviews, chosen: Array) -> tuple[Tensor, Tensor]:
        ids, lengths = own.batch(chosen)
        kept = lengths.clamp(max=WORDS)
        at = (lengths - kept)[:, None] + torch.arange(WORDS)  # the last words of each, padded behind
        return ids.gather(1, at.clamp(max=ids.shape[1] - 1)), kept

    def loss(iteration: int) -> Tensor:
        epoch, place = divmod(iteration, plan.every)
        order = generator(seed, reviews.TRAINING, epoch).permutation(len(known))
        chosen = order[place * config.batch : (place + 1) * config.batch]
        wanted = torch.as_tensor(known.positive[chosen], dtype=torch.float32)
        return nn.functional.binary_cross_entropy_with_logits(network(*last_words(known, chosen)), wanted)

    drawn = generator(seed, reviews.JUDGED).permutation(len(corpus.test))[: PROBED + JUDGED]
    judged = drawn[PROBED:]
    return Case(
        network=network,
        optimizer=torch.optim.Adam(network.parameters(), lr=config.rate, weight_decay=config.weight_decay),
        loss=loss,
        plan=plan,
        probe=[last_words(corpus.test, drawn[:PROBED])],
        judged=[last_words(corpus.test, judged)],
        decided=lambda logits: (logits > 0).numpy(),
        right=corpus.test.positive[judged] > 0,
        counts=(1, 2, 4),
    )


CASES: dict[str, Callable[[int], Case]] = {
    "copy-dtriv": lambda seed: _copy("dtriv", seed),
    "copy-gru": lambda seed: _copy("gru", seed),
    "ecg-lstm": _ecg,
    "sentiment-gru": _sentiment,
}
"""What makes each network, by seed."""


def watched(name: str, *, seed: int, folder: Path, iterations: int | None = None) -> dict[str, Any]:
    """Train a network and measure it at every checkpoint; one that is in ``folder`` already is read."""
    path = require_folder(folder) / f"seed-{seed}.json"
    if not path.is_file():
        case = CASES[name](seed)
        if iterations is not None:
            case = replace(case, plan=replace(case.plan, iterations=iterations))
        write_json(path, _watch(case, made_by={"experiment": "design", "name": name, "seed": seed}, path=path))
    return json.loads(path.read_text(encoding="utf-8"))


def _watch(case: Case, *, made_by: dict[str, Any], path: Path) -> dict[str, Any]:
    where = {"layer": case.layer, "inputs": case.has_inputs}
    monitor = kann.Monitor(
        case.network, case.probe, every=1, balance={"outputs": case.outputs, "state": case.state}, **where
    )
    every = max(1, case.plan.iterations // CHECKPOINTS)
    rows: list[dict[str, Any]] = []

    def measure(iteration: int, loss: float) -> None:
        monitor.update(step=iteration, loss=loss)
        rows.append({"step": iteration, "loss": loss, **_measured(case, monitor)})

    def loss(iteration: int) -> Tensor:
        value = case.loss(iteration)
        if iteration % every == 0:
            measure(iteration, value.item())
        return value

    network_path = path.with_suffix(".safetensors")
    network_path.unlink(missing_ok=True)  # a training that was stopped has been watched only in part
    losses = train(case.network, case.optimizer, loss, plan=case.plan, path=network_path, made_by=made_by)
    measure(len(losses), float(losses[-every:].mean()))
    monitor.history.save(path.with_suffix(".npz"))
    return {"counts": list(case.counts), "checkpoints": rows}


def _measured(case: Case, monitor: kann.Monitor) -> dict[str, Any]:
    """Accuracy, also with only some balanced coordinates kept, |λ| and singular values at a checkpoint."""
    latest, network = monitor.history[-1], case.network
    with evaluation_mode(network), torch.no_grad():
        decided = case.decided(_outputs(network, case.judged))
        kept = []
        if len(latest.values):
            where: dict[str, Any] = {"layer": case.layer, "state": case.state}
            rank = monitor.balance.rank if monitor.balance is not None else 0
            states = kann.record(network, case.probe, progress=False, **where)
            for count in case.counts:
                with kann.intervene(network, monitor.balance, states, keep=range(min(count, rank)), **where):
                    kept.append(float((case.decided(_outputs(network, case.judged)) == case.right).mean()))
    order = np.argsort(-np.abs(latest.eigenvalues))[:MODES]
    return {
        "accuracy": float((decided == case.right).mean()),
        "kept": kept,
        "coordinates": latest.figures["coordinates"],
        "slow": latest.figures["slow"],
        "moduli": np.abs(latest.eigenvalues[order]).round(4),
        "trusted": latest.trusted[order].astype(int),
        "values": latest.values[:VALUES].round(4),
    }


def _outputs(network: nn.Module, data: Any) -> Tensor:
    return network(*data[0]) if isinstance(data, list) else network(data)


QUANTITIES = (
    Quantity(key="first_accuracy", what="accuracy before training", format="percent"),
    Quantity(key="accuracy", what="accuracy at the end", format="percent"),
    Quantity(key="first_slow", what="slowest trusted |λ| before training"),
    Quantity(key="slow", what="slowest trusted |λ| at the end"),
    Quantity(key="first_number", what="effective number of balanced coordinates before training"),
    Quantity(key="number", what="effective number of balanced coordinates at the end"),
    Quantity(key="count", what="coordinates before the gap at the end"),
    Quantity(key="end", what="iterations"),
    Quantity(key="memory_at", what=f"iteration of the first trusted mode with |λ| ≥ {MEMORY}"),
    Quantity(key="learned_at", what="iteration at which accuracy has gone nine tenths of its way"),
    Quantity(key="formed_at", what="iteration at which balanced coordinates alone reach that accuracy"),
    Quantity(key="lead", what="iterations by which the memory precedes nine tenths of the accuracy"),
)


def numbers(run: dict[str, Any]) -> dict[str, float]:
    """Summarise a training."""
    rows = run["checkpoints"]
    steps = np.array([row["step"] for row in rows], dtype=float)
    accuracy = np.array([row["accuracy"] for row in rows])
    slow = np.array([float(row["slow"]) for row in rows])
    keeps = np.array([row["kept"][-1] if row["kept"] else math.nan for row in rows])
    goal = accuracy[0] + LEARNED * (accuracy.max() - accuracy[0])
    memory_at, learned_at = _first(steps, slow >= MEMORY), _first(steps, accuracy >= goal)
    found = {
        "first_accuracy": accuracy[0],
        "accuracy": accuracy[-1],
        "first_slow": slow[0],
        "slow": slow[-1],
        "first_number": effective_number(rows[0]["values"]),
        "number": effective_number(rows[-1]["values"]),
        "count": float(rows[-1]["coordinates"]),
        "end": steps[-1],
        "memory_at": memory_at,
        "learned_at": learned_at,
        "formed_at": _first(steps, keeps >= goal),
        "lead": learned_at - memory_at,
    }
    return {key: float(value) for key, value in found.items()}


def effective_number(values: Sequence[float] | Float[Array, " _"]) -> float:
    """Return (Σ σ)² / Σ σ² of the leading singular values: 1 if one dominates, their number if all are equal.

    >>> effective_number([1, 1, 0]), effective_number([])
    (2.0, nan)
    """
    sigma: Float[Array, " k"] = np.asarray(values, dtype=float)
    return float(sigma.sum() ** 2 / (sigma**2).sum()) if len(sigma) else math.nan


def _first(steps: Float[Array, " k"], is_so: Array) -> float:
    """Return the first step at which something is so; NaN if it never is."""
    return float(steps[is_so][0]) if is_so.any() else math.nan
