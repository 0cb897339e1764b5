"""``kann demo``: explain the two networks that ship with kann, in a report each, without data.

The first classifies film reviews; the reviews were written for the demo. The second remembers digits.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

import kann
from kann.cli.errors import one_line_errors

REVIEWS = 120
"""Number of reviews that are read."""

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
    numbers, words, labels = model.draw(REVIEWS)
    found = kann.explain(model.network, numbers, tokens=words, labels=labels, classes=["negative", "positive"])
    about = (
        "256 units, trained on 25,000 reviews of the Large Movie Review Dataset, 89 % right on another 25,000. "
        f"The {REVIEWS} reviews that it reads here were put together from sentences written for this page, so that "
        "the same sentence is in several of them."
    )
    return found, {"title": "A GRU that judges film reviews", "about": about}


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
