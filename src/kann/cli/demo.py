"""``kann demo``: explain the two networks that ship with kann, in a report each, without data.

The first classifies film reviews; the reviews were written for the demo. The second remembers digits.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import kann
from kann.cli.errors import one_line_errors

SEED = 0
"""Seed of the reviews."""

REVIEWS, SENTENCES = 120, 3
"""How many reviews are read, and of how many written ones each is put together."""

COPIES = 120
"""Number of sequences of digits that the network of the copy task reads."""


def demo(out: Annotated[Path, typer.Option(help="Folder for the reports.")] = Path("demo")) -> None:
    """Explain two networks that ship with kann, in a report each."""
    with one_line_errors():
        out.mkdir(parents=True, exist_ok=True)
        for name, explain in (("report.html", explain_sentiment), ("copy.html", explain_copy_task)):
            found, page = explain()
            found.report(out / name, **page)
            typer.echo("\n".join([*found.sentences, f"  -> open {out / name}", ""]))


def explain_sentiment() -> tuple[Any, dict[str, str]]:
    """Explain the network that classifies film reviews. Return also the words of its page."""
    from kann import zoo

    model = zoo.load("sentiment")
    texts, labels = _reviews()
    located = [model.vocabulary.locate(text) for text in texts]
    found = kann.explain(
        model.network,
        [ids for ids, _ in located],
        tokens=[[text[a:b].lower() for a, b in spans] for text, (_, spans) in zip(texts, located, strict=True)],
        labels=labels,
        classes=["negative", "positive"],
    )
    about = (
        "256 units, trained on 25,000 reviews of the Large Movie Review Dataset, 89 % right on another 25,000. "
        f"The {len(texts)} reviews that it reads here were put together from sentences written for this page, so that "
        "the same sentence is in several of them."
    )
    return found, {"title": "A GRU that judges film reviews", "about": about}


def _reviews() -> tuple[list[str], list[str]]:
    """Reviews and their labels: each is put together from some that were written for the demo, of one label."""
    written = json.loads(resources.files("kann.cli").joinpath("demo_reviews.json").read_text(encoding="utf-8"))
    rng = np.random.default_rng(SEED)
    labels = [written[number % len(written)]["label"] for number in range(REVIEWS)]
    texts = []
    for label in labels:
        own = [review["text"] for review in written if review["label"] == label]
        texts.append(" ".join(rng.choice(own, size=SENTENCES, replace=False)))
    return texts, labels


def explain_copy_task() -> tuple[Any, dict[str, str]]:
    """Explain the network that remembers digits. Return also the words of its page."""
    from kann import zoo
    from kann.live.evaluation import IGNORED

    model = zoo.load("copy")
    inputs, answers = model.draw(COPIES)
    answers = answers.masked_fill(answers == model.characters.index("-"), IGNORED)  # while it waits, nothing is asked
    found = kann.explain(
        model.network,
        inputs,
        labels=answers.tolist(),
        tokens=[[model.characters[code] for code in row] for row in inputs.argmax(-1).tolist()],
        classes=model.characters[:-1],
    )
    about = (
        "48 units with an orthogonal hidden matrix. It reads three digits, waits, and repeats them when it reads the "
        "sign ':'."
    )
    return found, {"title": "A network that remembers three digits over thirty blanks", "about": about}
