"""How small a network suffices, and whether the balanced coordinates of a large one predict it."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kann
from kann.typing import Array, Float
from kann_experiments.copy.task import Task as CopyTask
from kann_experiments.counting import task as counting
from kann_experiments.design.stack import Network, train_together
from kann_experiments.flipflop.task import Task as FlipFlopTask
from kann_experiments.results import write_json
from kann_experiments.sentiment.corpus import load_corpus
from kann_experiments.training import generator, require_folder

SIZES, LARGE = (1, 2, 3, 4, 8, 16), 48
"""Units of the small networks, and of the large one that is analysed."""

BATCH = 32
RATES, ITERATIONS = {"gru": 1e-2, "lstm": 1e-2, "rnn": 3e-3}, {"gru": 600, "lstm": 600, "rnn": 1500}
"""What trains the large networks to the end in most tasks."""

SOLVED = {"reviews": 0.7}
"""The accuracy from which on large networks count as trained, 0.95 but for these. Other cells are left out."""

POINT = 0.01
"""A network is as good as another if its accuracy is at most this much lower."""

VARIANCE = 0.95
"""Principal components are counted up to this fraction of the variance."""

FITTED, JUDGED, LIVE = 256, 2000, 500
"""Sequences that coordinates are fitted to, that accuracy is measured on, and those of the network that runs with only
some coordinates kept."""

TRAINING, ANALYSED, TESTED = 0, 1, 2
"""Purposes of random numbers."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """A task."""

    draw: Callable[[np.random.Generator, int, int], tuple[Tensor, Tensor]]
    """Sequences and answers, from random numbers, how many, and the purpose."""
    inputs: int
    outputs: int
    last: bool = False
    """Whether only the output of the last step is judged."""
    answered: int | None = None
    """How many steps at the end are judged; None for all."""
    kind: str = "class"
    """As ``outputs`` of `kann.balance`."""

    def right(self, outputs: Tensor, answers: Tensor) -> Float[Tensor, " e"]:
        """The fraction of answers of each network that are right."""
        if self.kind == "class":
            is_right = outputs.argmax(-1) == answers
        else:
            is_right = (outputs.squeeze(-1) if self.last else outputs).sign() == answers.sign()
        is_right = is_right if self.answered is None else is_right[..., -self.answered :]
        return is_right.float().flatten(1).mean(dim=1)

    def loss(self, outputs: Float[Tensor, "e s ..."], answers: Tensor) -> Float[Tensor, " e"]:
        """The loss of each network."""
        if self.kind == "class":
            wanted = answers.expand(len(outputs), *answers.shape)
            losses = nn.functional.cross_entropy(outputs.movedim(-1, 1).flatten(2), wanted.flatten(1), reduction="none")
        elif self.last:
            losses = nn.functional.softplus(-answers * outputs.squeeze(-1))
        else:
            losses = (outputs - answers).square()
        return losses.flatten(1).mean(dim=1)


def _counting(classes: int) -> Case:
    config = counting.Config(classes=classes, steps=20)

    def draw(rng: np.random.Generator, count: int, purpose: int) -> tuple[Tensor, Tensor]:
        x, labels = counting.draw(rng, count, config)
        return x.argmax(-1), labels

    return Case(draw=draw, inputs=config.words, outputs=classes, last=True)


def _flipflop(bits: int) -> Case:
    def draw(rng: np.random.Generator, count: int, purpose: int) -> tuple[Tensor, Tensor]:
        return FlipFlopTask(bits=bits, steps=30).draw(rng, count, rate=0.15)

    return Case(draw=draw, inputs=bits, outputs=bits, kind="labels")


def _modulo(number: int) -> Case:
    def draw(rng: np.random.Generator, count: int, purpose: int) -> tuple[Tensor, Tensor]:
        pulses = torch.as_tensor(rng.random((count, 20)) < 0.3).long()
        return pulses, pulses.cumsum(dim=1) % number

    return Case(draw=draw, inputs=2, outputs=number)


def _copy(digits: int) -> Case:
    task = CopyTask(digits=digits, blanks=3, letters=2)

    def draw(rng: np.random.Generator, count: int, purpose: int) -> tuple[Tensor, Tensor]:
        x, answers = task.sequences(task.draw(rng, count))
        return x.argmax(-1), answers

    return Case(draw=draw, inputs=task.width, outputs=task.letters + 1, answered=digits)


def _reviews(words: int = 1000, steps: int = 40) -> Case:
    corpus = load_corpus()

    def draw(rng: np.random.Generator, count: int, purpose: int) -> tuple[Tensor, Tensor]:
        reviews = corpus.train if purpose == TRAINING else corpus.test
        chosen = rng.choice(len(reviews), size=count, replace=False)
        x = np.zeros((count, steps), dtype=np.int64)  # padded in front, so that the last word is read last
        for row, own in zip(x, chosen, strict=True):
            last = reviews[own][-steps:]
            row[len(row) - len(last) :] = np.where(last < words, last, 1)  # rare words are the unknown word
        return torch.from_numpy(x), torch.as_tensor(reviews.positive[chosen] * 2.0 - 1, dtype=torch.float32)

    return Case(draw=draw, inputs=words, outputs=1, last=True, kind="values")


CASES: dict[str, tuple[str, Callable[[], Case]]] = {
    **{f"counting-{n}": (f"counting, {n} classes", lambda n=n: _counting(n)) for n in range(2, 7)},
    "flipflop": ("flip-flop, 3 bits", lambda: _flipflop(3)),
    "parity": ("parity of pulses", lambda: _modulo(2)),
    "modulo": ("pulses modulo 3", lambda: _modulo(3)),
    "copy": ("copy, 3 binary digits", lambda: _copy(3)),
    "reviews": ("reviews, last 40 words", _reviews),
}
"""Tasks: their names in the table, and what makes them."""

ARCHITECTURES = ("gru", "lstm", "rnn")


def measured(
    task: str, arch: str, *, seeds: Sequence[int], folder: Path, iterations: int | None = None
) -> dict[str, Any]:
    """Train networks of all sizes and seeds and analyse the large ones; what is in ``folder`` already is read."""
    path = require_folder(folder) / f"{task}-{arch}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    case = CASES[task][1]()
    drawn = case.draw(generator(0, TESTED), JUDGED, TESTED)
    accuracies, large = [], []
    for sizes in (SIZES, (LARGE,)):
        networks = [_network(case, arch, units, seed) for seed, units in itertools.product(seeds, sizes)]
        train_together(
            networks,
            lambda i: case.draw(generator(0, TRAINING, i), BATCH, TRAINING),
            case.loss,
            iterations=iterations or ITERATIONS[arch],
            rate=RATES[arch],
        )
        with torch.no_grad():
            found = [float(case.right(network(drawn[0])[None], drawn[1])) for network in networks]
        accuracies.append(np.reshape(found, (len(seeds), len(sizes))))
        large = networks
    content = {
        "seeds": list(seeds),
        "sizes": accuracies[0].round(4),
        "large": accuracies[1][:, 0].round(4),
        "outputs": case.outputs,
        "analyses": [analysis(case, network, drawn, seed=seed) for network, seed in zip(large, seeds, strict=True)],
    }
    write_json(path, content)
    return json.loads(path.read_text(encoding="utf-8"))


def _network(case: Case, arch: str, units: int, seed: int) -> Network:
    where = {"inputs": case.inputs, "outputs": case.outputs, "last": case.last}
    return Network(arch, units=units, seed=seed * 1000 + units, **where)


def analysis(case: Case, network: Network, drawn: tuple[Tensor, Tensor], *, seed: int) -> dict[str, Any]:
    """Return how many coordinates the large network seems to need, by several measures."""
    x, _ = case.draw(generator(seed, ANALYSED), FITTED, ANALYSED)
    where: dict[str, Any] = {"layer": "recurrent", "state": "hc" if network.arch == "lstm" else "h"}
    balance = kann.balance(network, x, outputs=case.kind, seed=seed, progress=False, **where)
    states = kann.record(network, x, progress=False, **where)
    variances = np.linalg.eigvalsh(np.cov(states.values.T))[::-1]
    components = 1 + int(np.searchsorted(np.cumsum(variances) / variances.sum(), VARIANCE))
    few = drawn[0][:LIVE], drawn[1][:LIVE]
    kept = {
        name: _fewest(case, network, coordinates, states, few, where)
        for name, coordinates in {"live": balance, "live_components": kann.Balance.of_states(states)}.items()
    }
    return {"values": balance.values[:12].round(4), "count": balance.count, "components": components, **kept}


@torch.no_grad()
def _fewest(
    case: Case, network: Network, balance: Any, states: Any, drawn: tuple[Tensor, Tensor], where: Any
) -> int | None:
    """Return the fewest coordinates that keep the accuracy within a point when the network runs with them alone."""
    x, answers = drawn
    full = float(case.right(network(x)[None], answers))
    for count in SIZES:
        if count > balance.rank:
            break
        with kann.intervene(network, balance, states, keep=range(count), **where):
            if float(case.right(network(x)[None], answers)) >= full - POINT:
                return count
    return None


KINDS = ("right", "small", "large", "none")
"""What a prediction can be: right, too small, too large, or none."""

PREDICTORS = {
    "count": "count of balanced coordinates",
    "live": "balanced coordinates that keep the accuracy",
    "live_components": "principal components that keep it",
    "components": "components for 95 % of the variance",
    "outputs": "number of outputs",
    "constant": "the same size everywhere, the best in hindsight",
}
"""Ways to predict the size that suffices."""


def sufficient(content: Mapping[str, Any]) -> float:
    """Return the smallest size whose best seed is within a point of the median large network; infinite if none is.

    The best seed, since a small network that got stuck says nothing about its size.
    """
    goal = np.median(content["large"]) - POINT
    best = np.max(content["sizes"], axis=0)
    return float(next((size for size, accuracy in zip(SIZES, best, strict=True) if accuracy >= goal), math.inf))


def is_learned(task: str, content: Mapping[str, Any]) -> bool:
    """Return whether the median large network has learned the task."""
    return bool(np.median(content["large"]) >= SOLVED.get(task, 0.95))


def predicted(content: Mapping[str, Any], name: str) -> list[float]:
    """Return the size that each large network predicts, among those that were trained; NaN if it predicts none."""
    own = [content["outputs"] if name == "outputs" else each[name] for each in content["analyses"]]
    return [math.nan if count is None else as_size(count) for count in own]


def as_size(count: float) -> float:
    """Return the smallest size that was trained and has this number of units; infinite beyond them.

    >>> as_size(5), as_size(17)
    (8.0, inf)
    """
    return float(next((size for size in SIZES if size >= count), math.inf))


def judge(contents: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Count for each predictor how often it is right, too small, too large, or makes no prediction."""
    wanted = [sufficient(content) for content in contents for _ in content["seeds"]]
    guesses = {
        name: [guess for content in contents for guess in predicted(content, name)]
        for name in PREDICTORS
        if name != "constant"
    }
    best = max(SIZES, key=lambda size: wanted.count(float(size)))
    guesses["constant"] = [float(best)] * len(wanted)
    return {name: _counts(np.array(own), np.array(wanted)) for name, own in guesses.items()}


def _counts(guesses: Float[Array, " n"], wanted: Float[Array, " n"]) -> dict[str, float]:
    found = {
        "right": guesses == wanted,
        "small": guesses < wanted,
        "large": guesses > wanted,
        "none": np.isnan(guesses),
    }
    return {name: float(np.sum(own)) for name, own in found.items()}
