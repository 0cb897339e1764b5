"""What an experiment measured, compared with what the paper printed, as a table and as JSON."""

import json
import math
import os
import platform
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy
import torch

import kann
from kann.data.atomic_write import replacing
from kann_experiments.configs import as_json, differences

Format = Literal["number", "percent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A number that the paper printed."""

    paper: float
    """The number itself; for a statement in words, such as "near zero", the bound that it is read as."""
    holds: Literal["at most", "at least"]
    """On which side of it a reproduction must be."""
    as_printed: str = ""
    """The text of the paper, where that is more than the number."""

    def holds_for(self, value: float) -> bool:
        """Whether a measured value is on the right side."""
        if self.holds == "at most":
            return value <= self.paper
        return value >= self.paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Something that an experiment measures, and how it is written."""

    key: str
    """Its name in JSON and in ``expected.toml``."""
    what: str
    """Its name in the table."""
    format: Format = "number"
    """How its values are written."""

    def text(self, value: float) -> str:
        """A value as it stands in the table; "–" is one that could not be measured."""
        if value == math.inf:
            return "∞"
        if not math.isfinite(value):
            return "–"
        if self.format == "percent":
            return f"{100 * value:.1f} %"
        if abs(value) >= 10_000 and value == int(value):  # a count
            return f"{value:,.0f}"
        return f"{value:.4g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: a quantity over all seeds, and what the paper printed."""

    quantity: Quantity
    values: tuple[float, ...]
    """One for each seed."""
    printed: Printed | None
    """None where the paper printed nothing."""

    @property
    def mean(self) -> float:
        """Mean over the seeds; infinite if any value is."""
        return float(np.mean(self.values))

    @property
    def holds(self) -> bool | None:
        """Whether the mean confirms the paper; None where the paper printed nothing."""
        if self.printed is None:
            return None
        return self.printed.holds_for(self.mean)

    @property
    def seeds_that_hold(self) -> int | None:
        """How many seeds confirm the paper; None where the paper printed nothing."""
        if self.printed is None:
            return None
        return sum(map(self.printed.holds_for, self.values))

    def cells(self) -> tuple[str, str, str, str, str]:
        """The line as text: what, paper, ours, from – to, and whether it holds."""
        text = self.quantity.text
        return self.quantity.what, self._paper_text(), text(self.mean), self._range_text(), self._verdict()

    def _paper_text(self) -> str:
        """The text of the paper, "–" for nothing."""
        if self.printed is None:
            return "–"
        return self.printed.as_printed or self.quantity.text(self.printed.paper)

    def _range_text(self) -> str:
        """The smallest and the largest value; one of them if they are written alike."""
        low, high = self.quantity.text(min(self.values)), self.quantity.text(max(self.values))
        if low == high:
            return low
        return f"{low} – {high}"

    def _verdict(self) -> str:
        """Whether the paper is confirmed, and by how many seeds."""
        if self.printed is None:
            return ""
        word = "misses"
        if self.holds:
            word = "holds"
        return f"{word} ({self.seeds_that_hold} of {len(self.values)})"

    def as_json(self) -> dict[str, Any]:
        """The line as JSON."""
        deviation = math.nan  # where a value is infinite: numpy would warn
        if np.isfinite(self.values).all():
            deviation = float(np.std(self.values))
        paper, side, as_printed = None, None, None
        if self.printed is not None:
            paper, side, as_printed = self.printed.paper, self.printed.holds, self._paper_text()
        return {
            "what": self.quantity.what,
            "format": self.quantity.format,
            "paper": paper,
            "side": side,
            "as_printed": as_printed,
            "mean": self.mean,
            "deviation": deviation,
            "values": list(self.values),
            "holds": self.holds,
            "held": self.seeds_that_hold,
        }


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reproduction:
    """An experiment over several seeds."""

    title: str
    """What was repeated."""
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    """The table."""
    notes: tuple[str, ...]
    """How the training differs from what the paper printed."""
    studies: tuple[Any, ...]
    """What was measured, one for each seed."""
    files: tuple[Path, ...]
    """Results and figures, in the order in which they were written; the first is ``results.json``."""


def expected(task: str) -> dict[str, Printed]:
    """What the paper printed for a task, by key."""
    text = resources.files("kann_experiments").joinpath("expected.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)[task]
    return {key: Printed(**entry | {"paper": float(entry["paper"])}) for key, entry in entries.items()}


def tabulate(
    quantities: Sequence[Quantity], measured: Sequence[Mapping[str, float]], printed: Mapping[str, Printed]
) -> tuple[Row, ...]:
    """A line for each quantity that was measured in every seed, in the order of ``quantities``."""
    return tuple(
        Row(
            quantity=quantity,
            values=tuple(float(numbers[quantity.key]) for numbers in measured),
            printed=printed.get(quantity.key),
        )
        for quantity in quantities
        if all(quantity.key in numbers for numbers in measured)
    )


def markdown_table(rows: Sequence[Row]) -> list[str]:
    """Paper and ours as lines of Markdown, one for each quantity."""
    lines = ["| | paper | ours, mean | from – to | |", "|---|---|---|---|---|"]
    for row in rows:
        # A bar would end the cell.
        name, *cells = (cell.replace("|", "∣") for cell in row.cells())
        lines.append("| " + " | ".join([name.replace("    ", "– "), *cells]) + " |")
    return lines


def versions() -> dict[str, str]:
    """Versions of everything that the numbers depend on."""
    return {
        "kann": kann.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "torch": torch.__version__,
    }


def common_json(
    experiment: str, *, config: Any, printed_config: Any, seeds: Sequence[int], rows: Sequence[Row]
) -> dict[str, Any]:
    """What ``results.json`` of every experiment holds. Neither times nor paths: the same seeds give the same file."""
    return {
        "experiment": experiment,
        "versions": versions(),
        "config": as_json(config),
        "printed_config": as_json(printed_config),
        "differences": list(differences(config, printed_config)),
        "seeds": list(seeds),
        "rows": {row.quantity.key: row.as_json() for row in rows},
    }


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write results whole or not at all. JSON has no infinity: it is written as the string ``"inf"``."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(_as_json_types(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _as_json_types(value: Any) -> Any:
    """The same value in types that JSON knows: no arrays, no numpy numbers, no infinity."""
    if isinstance(value, Mapping):
        return {str(key): _as_json_types(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_as_json_types(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
