"""``kann demo``: what kann does, in a minute and without data. Two networks are explained, each in a report of its own.

The first ships with kann and judges film reviews; the reviews that it reads here were written for the demo. The second
is trained on the spot to remember digits.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import kann
from kann.analysis.contributions import contribution_changes
from kann.cli.errors import one_line_errors
from kann.typing import Array, Float, Int

SEED = 0
"""The seed with which the network of the copy task is trained."""

WORDS_NAMED = 5
"""How many words are named that push a mode up, and as many that push it down."""


def demo(out: Annotated[Path, typer.Option(help="Folder for the reports.")] = Path("demo")) -> None:
    """Explain two networks in a report each: one that ships with kann, and one that is trained on the spot."""
    with one_line_errors():
        for written in write_reports(out):
            typer.echo("\n".join([*written.sentences, f"  -> open {written.path}", ""]))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """A report, and in a few sentences what it shows."""

    path: Path
    sentences: tuple[str, ...]


def write_reports(out: Path) -> Iterator[WrittenReport]:
    """Write the reports into a folder, one after the other."""
    out.mkdir(parents=True, exist_ok=True)
    yield explain_sentiment(out / "report.html")
    yield explain_copy_task(out / "copy.html", folder=out / "networks")


def explain_sentiment(path: Path) -> WrittenReport:
    """Explain the network that ships with kann, on reviews that were written for the demo."""
    from kann import zoo

    model = zoo.load("sentiment")
    reviews = json.loads(resources.files("kann.cli").joinpath("demo_reviews.json").read_text(encoding="utf-8"))
    texts, labels = [review["text"] for review in reviews], [review["label"] for review in reviews]
    located = [model.vocabulary.locate(text) for text in texts]
    tokens = [[text[a:b] for a, b in spans] for text, (_, spans) in zip(texts, located, strict=True)]
    states = _record(model.network, [ids for ids, _ in located])
    kann.report(
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
    return WrittenReport(path=path, sentences=_sentiment_sentences(model, states, labels, tokens))


def _record(network: Any, ids: list[Any]) -> kann.States:
    import torch

    words = [torch.from_numpy(np.asarray(each)) for each in ids]
    return kann.record(network, words, layer="recurrent", progress=False)


def _sentiment_sentences(
    model: Any, states: kann.States, labels: list[str], tokens: list[list[str]]
) -> tuple[str, ...]:
    """How often the network is right, how much its leading mode decides, and which words push that mode."""
    readout, number = model.network.readout, model.modes[0]
    leading = model.koopman.modes[number]
    parts = kann.contributions(model.koopman, states.values, readout.weight, readout.bias)
    ends = states.starts + states.lengths - 1
    logits, own = parts.total[ends, 0], parts.modes[ends, number, 0]
    positive = np.array([label == "positive" for label in labels])
    right = np.mean((logits > 0) == positive)
    # The mode alone: everything else counts with its mean over the reviews.
    alone = np.mean((own + (logits - own).mean() > 0) == (logits > 0))
    return (
        f"A GRU of 256 units that judges film reviews is right on {right:.0%} of "
        f"{len(labels)} reviews written for this demo.",
        f"Mode {number} (|λ| = {leading.modulus:.3f}, residual {leading.residual:.2f}) alone decides "
        f"{alone:.0%} of them as the network does.",
        _words_that_push(parts.modes[:, number, 0], states, tokens),
    )


def _words_that_push(contribution: Float[Array, " n"], states: kann.States, tokens: list[list[str]]) -> str:
    """Which words change a mode's contribution most, on average over the places where they are read."""
    changes: dict[str, list[float]] = {}
    for i, words in enumerate(tokens):
        for word, change in zip(words, contribution_changes(contribution[states.span(i)]), strict=True):
            changes.setdefault(word.lower(), []).append(float(change))
    ranked = sorted(changes, key=lambda word: np.mean(changes[word]))
    up, down = ranked[: -WORDS_NAMED - 1 : -1], ranked[:WORDS_NAMED]
    return f"Words that push it up most: {', '.join(up)}. Down most: {', '.join(down)}."


def explain_copy_task(path: Path, *, folder: Path) -> WrittenReport:
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
    kann.report(
        path,
        analysis.koopman,
        analysis.states,
        tokens=_characters_read(analysis.inputs, characters),
        readout=network.readout,
        classes=characters[:-1],
        driven=analysis.driven,
        fixed_points=analysis.points,
        title="A network that remembers three digits over thirty blanks",
        about="48 units with an orthogonal hidden matrix, just trained. It reads three digits, waits, and repeats them "
        "when it reads the sign ':'.",
    )
    sentences = (
        f"An orthogonal network of 48 units, just trained, repeats {numbers['accuracy']:.0%} of the digits.",
        f"{numbers['unit_eigenvalues']:.0f} of its {analysis.koopman.rank} eigenvalues are within 0.05 of the unit "
        "circle: that is why it does not forget.",
        "In sequences that were not fitted, a linear operator recalls from three true states "
        f"{numbers['held_out_recall']:.0%} of the digits 33 steps later, one that also reads the inputs "
        f"{numbers['driven_held_out_recall']:.0%}; copying the third state recalls {numbers['copying_recall']:.0%}.",
    )
    return WrittenReport(path=path, sentences=sentences)


def _characters_read(inputs: Float[Array, "s t c"], characters: list[str]) -> list[list[str]]:
    """The character that the network reads at each step, of inputs that are 1 in the column of that character."""
    codes: Int[Array, "s t"] = np.argmax(inputs, axis=-1)
    return [[characters[code] for code in row] for row in codes.tolist()]
