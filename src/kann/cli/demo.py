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
        trust=model.trust,
        tokens=tokens,
        readout=model.network.readout,
        labels=labels,
        classes=["negative", "positive"],
        title="A GRU that judges film reviews",
        about="256 units, trained on 25,000 reviews of the Large Movie Review Dataset, 89 % right on another 25,000. "
        "The operator was fitted to 5,000 training reviews, and what is said about trust was measured on those of them "
        "that were held out; the reviews below were written for this page.",
    )
    return WrittenReport(path=path, sentences=_sentiment_sentences(model, states, labels, tokens))


def _record(network: Any, ids: list[Any]) -> kann.States:
    import torch

    words = [torch.from_numpy(np.asarray(each)) for each in ids]
    return kann.record(network, words, layer="recurrent", progress=False)


def _sentiment_sentences(
    model: Any, states: kann.States, labels: list[str], tokens: list[list[str]]
) -> tuple[str, ...]:
    """How often the network is right, how far its modes can be trusted, and which words push the leading one."""
    readout, number = model.network.readout, _leading_mode(model)
    own_trust = model.trust.modes[number]
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
        f"{len(model.trust.trusted)} of the {len(model.trust.modes)} modes of its operator can be trusted, on reviews "
        "that were not fitted.",
        f"Mode {number} (|λ| = {abs(own_trust.eigenvalue):.3f}, {_trusted_or_not(own_trust)}), read out alone from "
        f"states that the whole network made, decides {alone:.0%} of the reviews as the network does.",
        _words_that_push(parts.modes[:, number, 0], states, tokens),
    )


def _leading_mode(model: Any) -> int:
    """The most important of the modes that are trusted; the most important of all if none is."""
    trusted = (number for number in model.modes if model.trust.modes[number].trusted)
    return next(trusted, model.modes[0])


def _trusted_or_not(mode: kann.ModeTrust) -> str:
    if mode.trusted:
        return "trusted"
    return f"not trusted: {mode.why}"


def _words_that_push(contribution: Float[Array, " n"], states: kann.States, tokens: list[list[str]]) -> str:
    """Which words change a mode's contribution most, on average over the places where they are read."""
    changes: dict[str, list[float]] = {}
    for i, words in enumerate(tokens):
        # The first word is left out: what it changes cannot be told from where the network starts.
        for word, change in zip(words[1:], np.diff(contribution[states.span(i)]), strict=True):
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
    koopman = kann.fit(analysis.states, rank="auto")
    trust = kann.trust(koopman, analysis.states)
    characters = ["-", *map(str, range(1, config.task.letters + 1)), ":"]
    kann.report(
        path,
        koopman,
        analysis.states,
        trust=trust,
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
        f"Its operator has rank {koopman.rank}, chosen by held-out sequences. {len(trust.trusted)} of its "
        f"{len(trust.modes)} modes can be trusted.",
        "In sequences that were not fitted, the paper's operator recalls from three true states "
        f"{numbers['held_out_recall']:.0%} of the digits 33 steps later, one that also reads the inputs "
        f"{numbers['driven_held_out_recall']:.0%}; copying the third state recalls {numbers['copying_recall']:.0%}.",
    )
    return WrittenReport(path=path, sentences=sentences)


def _characters_read(inputs: Float[Array, "s t c"], characters: list[str]) -> list[list[str]]:
    """The character that the network reads at each step, of inputs that are 1 in the column of that character."""
    codes: Int[Array, "s t"] = np.argmax(inputs, axis=-1)
    return [[characters[code] for code in row] for row in codes.tolist()]
