"""What kann does, in a minute and without data: two networks, explained, each in a report of its own.

The first ships with kann and judges film reviews, of which some were written for this page. The second is trained here
and now to remember digits.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

import kann
from kann import zoo
from kann.analysis.contributions import contributions
from kann.reporting.page import report

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A report, and what is to be seen in it."""

    path: Path
    says: tuple[str, ...]


def run(out: Path) -> Iterator[Shown]:
    """Write the reports into a folder, one after the other."""
    out.mkdir(parents=True, exist_ok=True)
    yield sentiment(out / "report.html")
    yield copy_task(out / "copy.html", folder=out / "networks")


def sentiment(path: Path) -> Shown:
    """The shipped network on reviews that were written for the demo."""
    model = zoo.load("sentiment")
    reviews = json.loads(resources.files("kann.cli").joinpath("demo_reviews.json").read_text(encoding="utf-8"))
    texts, labels = [review["text"] for review in reviews], [review["label"] for review in reviews]
    located = [model.vocabulary.locate(text) for text in texts]
    tokens = [[text[a:b] for a, b in spans] for text, (_, spans) in zip(texts, located, strict=True)]
    states = _record(model.network, [ids for ids, _ in located])
    mode = model.modes[0]
    report(
        path,
        model.koopman,
        states,
        tokens=tokens,
        readout=model.network.readout,
        labels=labels,
        classes=["negative", "positive"],
        title="A GRU that judges film reviews",
        about="256 units, trained on 25,000 reviews of the Large Movie Review Dataset, 89 % right on another 25,000. "
        "The operator was fitted to 5,000 training reviews; the reviews below were written for this page.",
    )
    shares = contributions(model.koopman, states.values, model.network.readout.weight, model.network.readout.bias)
    leading = model.koopman.modes[mode]
    return Shown(
        path=path,
        says=(
            f"A GRU of 256 units that judges film reviews is right on {_right(shares, states, labels):.0%} of "
            f"{len(labels)} reviews written for this demo.",
            f"Mode {mode} (|λ| = {leading.modulus:.3f}, residual {leading.residual:.2f}) alone decides "
            f"{_alone(shares, states, mode):.0%} of them as the network does.",
            _words(shares.modes[:, mode, 0], states, tokens),
        ),
    )


def _record(network: Any, ids: list[Any]) -> kann.States:
    import torch

    words = [torch.from_numpy(np.asarray(each)) for each in ids]
    return kann.record(network, words, layer="recurrent", progress=False)


def _ends(states: kann.States) -> Any:
    return states.starts + states.lengths - 1


def _right(shares: kann.Contributions, states: kann.States, labels: list[str]) -> float:
    positive = np.array([label == "positive" for label in labels])
    return float(np.mean((shares.total[_ends(states), 0] > 0) == positive))


def _alone(shares: kann.Contributions, states: kann.States, mode: int) -> float:
    """Share of sequences that one mode decides as the network does; the other modes count with their mean."""
    total, own = shares.total[_ends(states), 0], shares.modes[_ends(states), mode, 0]
    return float(np.mean((own + (total - own).mean() > 0) == (total > 0)))


def _words(share: Any, states: kann.States, tokens: list[list[str]]) -> str:
    """Which words moved a mode's share most."""
    change: dict[str, list[float]] = {}
    for i, words in enumerate(tokens):
        for word, step in zip(words, np.diff(share[states.span(i)], prepend=0.0), strict=True):
            change.setdefault(word.lower(), []).append(float(step))
    ranked = sorted(change, key=lambda word: np.mean(change[word]))
    return f"Words that push it up most: {', '.join(ranked[:-6:-1])}. Down most: {', '.join(ranked[:5])}."


def copy_task(path: Path, *, folder: Path) -> Shown:
    """Train a network on the copy task, and explain it."""
    from kann.paper.copy import trained
    from kann.paper.copy.analysis import study_network
    from kann.paper.copy.task import CONFIGS
    from kann.paper.training import repeatable

    config = CONFIGS["dtriv"]
    with repeatable():
        network = trained(config, seed=SEED, folder=folder)
        found = study_network(network, config, seed=SEED)
    analysis, numbers = found.analysis, found.numbers
    characters = ["-", *map(str, range(1, config.task.letters + 1)), ":"]
    read = np.argmax(analysis.inputs, axis=-1)
    report(
        path,
        analysis.koopman,
        analysis.states,
        tokens=[[characters[code] for code in row] for row in read.tolist()],
        readout=network.readout,
        classes=characters[:-1],
        driven=analysis.driven,
        fixed_points=analysis.points,
        title="A network that remembers three digits over thirty blanks",
        about="48 units with an orthogonal hidden matrix, just trained. It reads three digits, waits, and repeats them "
        "when it reads the sign ':'.",
    )
    return Shown(
        path=path,
        says=(
            f"An orthogonal network of 48 units, just trained, repeats {numbers['accuracy']:.0%} of the digits.",
            f"{numbers['unit_eigenvalues']:.0f} of its {analysis.koopman.rank} eigenvalues are within 0.05 of the unit "
            "circle: that is how it does not forget.",
            f"From three true states, a linear operator recalls {numbers['recall']:.0%} of the digits 33 steps on; one "
            f"that reads the inputs, {numbers['driven_recall']:.0%}.",
        ),
    )
