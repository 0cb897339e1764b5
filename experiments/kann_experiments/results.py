"""What an experiment measured, compared with what the paper printed, as a table and as JSON."""

import json
import math
import os
import platform
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
    baseline: str = ""
    """The key of a trivial method's number. If that is on the right side too, the claim says little."""
    undetermined: str = ""
    """Why no number can confirm or contradict the paper, where that is so."""
    source: Literal["paper", "asked"] = "paper"
    """Whether the paper printed the number, or it was asked of this project in advance."""

    def holds_for(self, value: float) -> bool:
        """Whether a measured value is on the right side."""
        return value <= self.paper if self.holds == "at most" else value >= self.paper


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
    baseline: tuple[float, ...] = ()
    """The baseline's values, one for each seed; empty where ``printed`` names none."""

    @property
    def mean(self) -> float:
        """Mean over the seeds; infinite if any value is."""
        return float(np.mean(self.values))

    @property
    def seeds_that_hold(self) -> int | None:
        """How many seeds confirm the paper; None where it printed nothing or nothing can be concluded."""
        if self.printed is None or self.printed.undetermined or np.isnan(self.values).any():
            return None
        return sum(map(self.printed.holds_for, self.values))

    @property
    def verdict(self) -> str:
        """Whether the paper is confirmed; empty where it printed nothing.

        One of "holds", "holds in n of m seeds", "does not hold" and "cannot be determined". A claim that the baseline
        meets in every seed has "; so does the baseline" added.
        """
        if self.printed is None:
            return ""
        held, count = self.seeds_that_hold, len(self.values)
        if held is None:
            return "cannot be determined"
        if not held:
            return "does not hold"
        text = "holds" if held == count else f"holds in {held} of {count} seeds"
        trivial = bool(self.baseline) and all(map(self.printed.holds_for, self.baseline))
        return text + "; so does the baseline" * trivial

    def cells(self) -> tuple[str, str, str, str, str]:
        """The line as text: what, paper, ours, from – to, and the verdict."""
        return self.quantity.what, self.paper_text, self.quantity.text(self.mean), self.range_text, self.verdict

    @property
    def paper_text(self) -> str:
        """The text of the paper, "–" for nothing."""
        if self.printed is None:
            return "–"
        return self.printed.as_printed or self.quantity.text(self.printed.paper)

    @property
    def range_text(self) -> str:
        """The smallest and the largest value; one of them if they are written alike, "–" if a seed has none."""
        if math.isnan(self.mean):
            return "–"
        low, high = self.quantity.text(min(self.values)), self.quantity.text(max(self.values))
        return low if low == high else f"{low} – {high}"

    def as_json(self) -> dict[str, Any]:
        """The line as JSON."""
        finite = np.isfinite(self.values).all()  # numpy would warn of a deviation of infinities
        return {
            "what": self.quantity.what,
            "format": self.quantity.format,
            "printed": None if self.printed is None else asdict(self.printed),
            "mean": self.mean,
            "deviation": float(np.std(self.values)) if finite else math.nan,
            "values": list(self.values),
            "baseline": list(self.baseline),
            "verdict": self.verdict,
        }

    @classmethod
    def from_json(cls, key: str, entry: Mapping[str, Any]) -> "Row":
        """The line that ``as_json`` wrote."""
        return cls(
            quantity=Quantity(key=key, what=entry["what"], format=entry["format"]),
            values=tuple(map(float, entry["values"])),  # JSON has no infinity: it is a string
            printed=None if entry["printed"] is None else Printed(**entry["printed"]),
            baseline=tuple(map(float, entry["baseline"])),
        )


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


REPORTED = {"copy": ("dtriv", "dtriv100"), "ecg": ("lstm",), "sentiment": ("gru",), "flipflop": ("gru",)}
"""Architectures whose results the paper prints. Of others it prints hyperparameters, or single numbers."""


def printed_for(experiment: str, arch: str) -> dict[str, Printed]:
    """Return what the paper printed for one architecture, by key.

    Keys of ``expected.toml`` that end in an architecture, such as ``positive_words_lstm``, are for it alone.
    """
    printed = expected(experiment)
    endings = ("_gru", "_lstm", "_rnn")
    numbers = {key.removesuffix(f"_{arch}"): value for key, value in printed.items() if key.endswith(f"_{arch}")}
    if arch in REPORTED.get(experiment, ()):
        numbers |= {key: value for key, value in printed.items() if not key.endswith(endings)}
    return numbers


def tabulate(
    quantities: Sequence[Quantity], measured: Sequence[Mapping[str, float]], printed: Mapping[str, Printed]
) -> tuple[Row, ...]:
    """A line for each quantity that was measured in every seed, in the order of ``quantities``."""
    rows = []
    for quantity in quantities:
        if all(quantity.key in numbers for numbers in measured):
            number = printed.get(quantity.key)
            baseline = _values(measured, number.baseline) if number and number.baseline else ()
            rows.append(
                Row(quantity=quantity, values=_values(measured, quantity.key), printed=number, baseline=baseline)
            )
    return tuple(rows)


def _values(measured: Sequence[Mapping[str, float]], key: str) -> tuple[float, ...]:
    return tuple(float(numbers[key]) for numbers in measured)


def columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """Titles of the table's columns; those of the paper and the verdict only where there is something to compare."""
    sources = {row.printed.source for row in rows if row.printed is not None}
    if not sources:
        return ("", "ours, mean", "from – to")
    return ("", "paper" if "paper" in sources else "asked", "ours, mean", "from – to", "")


def row_cells(row: Row, titles: Sequence[str]) -> tuple[str, ...]:
    """The cells of a row for these columns."""
    what, paper, mean, span, verdict = row.cells()
    return (what, mean, span) if len(titles) == 3 else (what, paper, mean, span, verdict)


def markdown_table(rows: Sequence[Row]) -> list[str]:
    """Paper and ours as lines of Markdown, one for each quantity."""
    titles = columns(rows)
    lines = ["| " + " | ".join(titles).strip() + " |", "|---" * len(titles) + "|"]
    for row in rows:
        # A bar would end the cell.
        name, *cells = (cell.replace("|", "∣") for cell in row_cells(row, titles))
        lines.append("| " + " | ".join([name.replace("    ", "– "), *cells]) + " |")
    return lines


def made_on() -> dict[str, Any]:
    """The commit and the hardware that numbers were made with. Without a repository the commit is null."""
    here = Path(__file__).parent

    def git(*command: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(here), *command], capture_output=True, text=True, check=True)  # noqa: S603, S607
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD")
    return {
        "commit": commit and commit + "+" * bool(git("status", "--porcelain", "--untracked-files=no", "--", str(here))),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


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
    experiment: str, *, seeds: Sequence[int], rows: Sequence[Row] = (), config: Any = None, printed_config: Any = None
) -> dict[str, Any]:
    """Return the entries of ``results.json`` that all experiments share, with the configuration where there is one.

    There are no times and no paths, so the same seeds, commit and machine give the same file.
    """
    content = {
        "experiment": experiment,
        "versions": versions(),
        "made_on": made_on(),
        "seeds": list(seeds),
        "rows": {row.quantity.key: row.as_json() for row in rows},
    }
    if config is not None:
        content["config"] = as_json(config)
    if printed_config is not None:
        content["printed_config"] = as_json(printed_config)
        content["differences"] = list(differences(config, printed_config))
    return content


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
