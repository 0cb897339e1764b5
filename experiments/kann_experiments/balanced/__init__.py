"""How few coordinates trained networks compute with: balanced ones next to modes, components, readout and random."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kann_experiments.balanced.cases import CASES
from kann_experiments.balanced.measure import METHODS, quantities, sentiment_numbers, study
from kann_experiments.configs import choose
from kann_experiments.counting.task import CLASSES
from kann_experiments.results import Reproduction, Row, made_on, tabulate, versions, write_json
from kann_experiments.training import repeatable, require_folder

__all__ = ["ARCHITECTURES", "reproduce", "summarise_counting"]

ARCHITECTURES = {"sentiment": ("gru", "lstm", "rnn")} | {task: archs for task, (archs, _) in CASES.items()}
"""Architectures of each task."""


def reproduce(
    task: str,
    arch: str,
    *,
    out: str | os.PathLike[str] = "runs/balanced",
    runs: str | os.PathLike[str] = "runs",
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
) -> Reproduction:
    """Measure networks of one task and architecture; those that are in ``runs`` already are used again.

    Results of a seed that was measured before are read from ``out``, so that an interrupted run goes on.
    """
    choose(arch, dict.fromkeys(choose(task, ARCHITECTURES)))
    folder = require_folder(Path(out) / f"{task}-{arch}")
    measured = []
    for seed in seeds:
        path = folder / f"seed-{seed}.json"
        if not path.is_file():
            networks = Path(runs) / task / arch / f"seed-{seed}"
            with repeatable(threads=None):
                write_json(path, _measure(task, arch, seed=seed, networks=networks, device=device))
        measured.append(json.loads(path.read_text(encoding="utf-8")))
    numbers = [{key: float(value) for key, value in each["numbers"].items()} for each in measured]
    rows = tabulate(quantities(), numbers, {})
    content = {
        "experiment": f"balanced/{task}-{arch}",
        "versions": versions(),
        "made_on": made_on(),
        "seeds": list(seeds),
        "rows": {row.quantity.key: row.as_json() for row in rows},
        "lines": {"grid": grid(rows)},
        "details": {str(seed): each["details"] for seed, each in zip(seeds, measured, strict=True)},
    }
    write_json(folder / "results.json", content)
    return Reproduction(
        title=f"coordinates, {task}, {arch}",
        seeds=tuple(seeds),
        rows=rows,
        notes=(),
        studies=tuple(measured),
        files=(folder / "results.json",),
    )


def _measure(task: str, arch: str, *, seed: int, networks: Path, device: str) -> dict[str, Any]:
    if task == "sentiment":
        return {"numbers": sentiment_numbers(arch, seed, networks, device), "details": {}}
    found = study(CASES[task][1](arch, seed, networks, device), seed=seed)
    return {"numbers": found.numbers, "details": found.details}


def grid(rows: Sequence[Row]) -> list[str]:
    """Decisions kept as lines of Markdown: a line for each kind of coordinates, a column for each number of them."""
    by_key = {row.quantity.key: row for row in rows}
    counts = sorted({int(key.rpartition("_")[2]) for key in by_key if key.rpartition("_")[2].isdigit()})
    lines = ["| coordinates kept | " + " | ".join(map(str, counts)) + " |", "|---" * (len(counts) + 1) + "|"]
    for name, what in METHODS.items():
        own = [by_key.get(f"{name}_{count}") for count in counts]
        if any(own):
            lines.append(f"| {what} | " + " | ".join(_cell(row) for row in own) + " |")
    return lines


def _cell(row: Row | None) -> str:
    """Mean and lowest value over seeds, in percent."""
    return "–" if row is None else f"{100 * row.mean:.1f} (≥ {100 * min(row.values):.1f})"


def summarise_counting(out: str | os.PathLike[str] = "runs/balanced", *, seeds: Sequence[int] = range(5)) -> Path:
    """Collect the counting tasks in one table: whether the count is N − 1, and what N − 1 coordinates keep."""
    archs = ARCHITECTURES[f"counting-{CLASSES[0]}"]
    right: dict[str, list[bool]] = {arch: [] for arch in archs}
    lines = ["| classes N |" + "".join(f" {arch.upper()}: count N − 1 | kept, N − 1 coordinates |" for arch in archs)]
    lines.append("|---" * (1 + 2 * len(archs)) + "|")
    for classes in CLASSES:
        cells = []
        for arch in archs:
            found = [_seed_numbers(Path(out) / f"counting-{classes}-{arch}", seed) for seed in seeds]
            own = [numbers["count"] == classes - 1 for numbers in found]
            right[arch] += own
            kept = {name: np.mean([n.get(f"{name}_{classes - 1}", np.nan) for n in found]) for name in METHODS}
            cells.append(
                f"{sum(own)} of {len(own)} | {100 * kept['balanced']:.1f} % (components {100 * kept['pca']:.1f})"
            )
        lines.append(f"| {classes} | " + " | ".join(cells) + " |")
    totals = [f"{sum(each)} of {len(each)} | " for each in right.values()]
    lines.append("| all | " + " | ".join(totals) + " |")
    content = {"experiment": "balanced/counting", "versions": versions(), "made_on": made_on(), "seeds": list(seeds)}
    path = require_folder(Path(out) / "counting") / "results.json"
    write_json(path, content | {"rows": {}, "lines": {"grid": lines}})
    return path


def _seed_numbers(folder: Path, seed: int) -> Mapping[str, float]:
    content = json.loads((folder / f"seed-{seed}.json").read_text(encoding="utf-8"))
    return {key: float(value) for key, value in content["numbers"].items()}
