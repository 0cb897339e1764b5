"""What the page shows of the facts of an explanation: the line under its title, the verdict, cards and tables."""

import math
from typing import Any

from kann._format import confidence, percent
from kann.explaining.facts import Facts
from kann.explaining.outputs import Accuracy
from kann.live.mode_selection import MOST_MODES
from kann.reporting.inputs import PageTable

OUTPUTS = {"class": "gives a class", "labels": "gives yes-or-no answers", "values": "gives numbers"}
"""The kinds of outputs in words."""


def shown_facts(facts: Facts) -> dict[str, Any]:
    """Return the arguments of `kann.report` that are made from facts."""
    return {
        "line": line_of(facts),
        "verdict": (facts.verdict.word, figure_that_decides(facts)),
        "matter": [] if facts.verdict.word == "nothing" else modes_with_cards(facts),
        "tables": [table for table in (_scan(facts),) if table is not None],
    }


def modes_with_cards(facts: Facts) -> list[int]:
    """Return the modes that sentences name, and further learned ones up to the number of coordinates that decide."""
    fewest = facts.live and facts.live.fewest
    found = [each for each in facts.memories if each.is_named]
    for each in sorted(facts.learned, key=lambda mode: -(mode.kept or 0)):
        if each not in found and fewest and sum(mode.dimension for mode in found) < fewest.count:
            found.append(each)
    return [each.mode for each in found][:MOST_MODES]


def line_of(facts: Facts) -> str:
    """Write the line under the title: layer, outputs, whether inputs gate, accuracy."""
    network = facts.network
    layer = f"layers {network.layer}" if network.axis == "depth" else f"layer {network.layer!r}"
    parts = [
        f"{layer}, {network.units} units",
        facts.live and OUTPUTS[facts.live.outputs],
        facts.gates and "inputs gate it",
    ]
    return " · ".join(filter(None, [*parts, facts.accuracy and _accuracy(facts.accuracy)]))


def _accuracy(found: Accuracy) -> str:
    if found.outputs == "values":
        return f"R² {found.score:.3f}"
    of = "steps" if found.of_steps else "answers" if found.outputs == "labels" else "sequences"
    return f"right on {percent(found.score)} of held-out {of}"


def figure_that_decides(facts: Facts) -> str:
    """Write the figure that decides the verdict, next to its limit."""
    verdict, step = facts.verdict, facts.network.step_name
    figure, limit = percent(verdict.figure), confidence(verdict.limit)
    missed = (
        f"a {step} misses {figure} of its best mode (limit {limit})"
        if math.isfinite(verdict.figure)
        else "no mode holds"
    )
    return {
        "coordinates": f"few coordinates bring back {figure} of the score (enough: {limit})",
        "residual": missed,
        "learned": "modes of untrained copies last as long",
        "untested": "its modes were not compared with those of untrained copies",
        "held": "its outputs are the same with this state held at its mean",
        "score": "it does no better than guessing",
        "unmeasured": "how far modes can be trusted was not measured",
    }[verdict.decided_by]


def _scan(facts: Facts) -> PageTable | None:
    """Return the candidate layers, with what is left of the outputs while each is held at its mean."""
    if len(facts.scan) < 2:
        return None
    return PageTable(
        title="Layers and directions",
        about="Agreement with the untouched network while the layer's state is held at its mean: low where it matters.",
        head=("Layer", "Held at its mean", "Explained here"),
        rows=[(each.layer, percent(each.score), "yes" if each.is_explained else "") for each in facts.scan],
        folded=True,
    )
