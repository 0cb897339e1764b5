"""How few coordinates trained networks compute with: balanced ones next to modes, components, readout and random."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kann_experiments.balanced.cases import CASES
from kann_experiments.balanced.learned import ROUNDS, STEPS, learned_numbers
from kann_experiments.balanced.measure import METHODS, quantities, sentiment_numbers, study
from kann_experiments.configs import choose
from kann_experiments.counting.task import CLASSES
from kann_experiments.results import Quantity, Reproduction, Row, common_json, tabulate, write_json
from kann_experiments.training import repeatable, require_folder

__all__ = ["ARCHITECTURES", "LEARNED", "learn", "reproduce", "summarise_counting", "summarise_learned"]

ARCHITECTURES = {"sentiment": ("gru", "lstm", "rnn")} | {task: archs for task, (archs, _) in CASES.items()}
"""Architectures of each task."""

LEARNED = {
    "small-sentiment": ("Sentiment, 32 units", 100),
    "shipped-sentiment": ("Sentiment, 256 units, shipped", 100),
    "counting-4": ("Counting 4 classes", 500),
    "flipflop": ("Flip-flop", 400),
    "shipped-ecg": ("Heartbeats, shipped", 150),
}
"""Tasks whose subspaces are compared with learned ones: how the table calls them, and the steps of learning in a round.
A step of long sequences takes longer."""


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
    details = {str(seed): each["details"] for seed, each in zip(seeds, measured, strict=True)}
    content = common_json(f"balanced/{task}-{arch}", seeds=seeds, rows=rows)
    write_json(folder / "results.json", content | {"lines": {"grid": grid(rows)}, "details": details})
    return Reproduction(
        title=f"coordinates, {task}, {arch}",
        seeds=tuple(seeds),
        rows=rows,
        notes=(),
        studies=tuple(measured),
        files=(folder / "results.json",),
    )


def learn(
    task: str,
    arch: str,
    *,
    out: str | os.PathLike[str] = "runs/balanced",
    runs: str | os.PathLike[str] = "runs",
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    steps: int | None = None,
) -> Path:
    """Learn subspaces of networks of one task and architecture; returns the folder with a file for each seed.

    Networks and results that are there already are used again.
    """
    choose(arch, dict.fromkeys(choose(task, CASES)[0]))
    steps = steps or LEARNED.get(task, ("", STEPS))[1]
    folder = require_folder(Path(out) / f"learned-{task}-{arch}")
    for seed in seeds:
        path = folder / f"seed-{seed}.json"
        if not path.is_file():
            with repeatable(threads=None):
                case = CASES[task][1](arch, seed, Path(runs) / task / arch / f"seed-{seed}", device)
                numbers, details = learned_numbers(case, seed=seed, steps=steps)
            write_json(path, {"numbers": numbers, "details": details | {"steps": steps}})
    return folder


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
            found = [_seed_numbers(Path(out) / f"counting-{classes}-{arch}" / f"seed-{seed}.json") for seed in seeds]
            own = [numbers["count"] == classes - 1 for numbers in found]
            right[arch] += own
            kept = {name: np.mean([n.get(f"{name}_{classes - 1}", np.nan) for n in found]) for name in METHODS}
            cells.append(
                f"{sum(own)} of {len(own)} | {100 * kept['balanced']:.1f} % (components {100 * kept['pca']:.1f})"
            )
        lines.append(f"| {classes} | " + " | ".join(cells) + " |")
    totals = [f"{sum(each)} of {len(each)} | " for each in right.values()]
    lines.append("| all | " + " | ".join(totals) + " |")
    path = require_folder(Path(out) / "counting") / "results.json"
    write_json(path, common_json("balanced/counting", seeds=seeds) | {"lines": {"grid": lines}})
    return path


def summarise_learned(out: str | os.PathLike[str] = "runs/balanced") -> Path:
    """Collect what was learned in one table: balanced coordinates, and the best of the learned subspaces.

    Of a learned subspace the better completion counts, that of `kann.effects` or the linear one that it was learned
    with, and in the last column the better of both starts. Chosen on the judged sequences, this favours learning.
    Networks that have not been measured are left out; their number is in parentheses.
    """
    names = ["balanced", "balanced_linear", "from_balanced", "from_random"]
    lines = ["| networks | kept | balanced | balanced, linear | learned from balanced | learned from random | gain |"]
    lines.append("|---" * (len(names) + 3) + "|")
    rows: dict[str, Any] = {}
    seeds: set[int] = set()
    for task, (title, _) in LEARNED.items():
        for arch in CASES[task][0]:
            paths = sorted((Path(out) / f"learned-{task}-{arch}").glob("seed-*.json"))
            seeds |= {int(path.stem.removeprefix("seed-")) for path in paths}
            found = [_seed_numbers(path) for path in paths]
            if not found:
                continue
            counts = sorted(int(key.removeprefix("balanced_")) for key in found[0] if key[9:].isdigit())
            for count in counts:
                table = [_with_learned(numbers, count) for numbers in found]
                row = {row.quantity.key: row for row in tabulate(learned_quantities(), table, {})}
                networks = f"{title}, {arch.upper()} ({len(found)})" if count == counts[0] else ""
                cells = " | ".join(_cell(row[name]) for name in names)
                lead = row["lead"]
                lines.append(
                    f"| {networks} | {count} | {cells} | {100 * lead.mean:+.1f} (≤ {100 * max(lead.values):+.1f}) |"
                )
                rows |= {f"{task}-{arch}_{count}_{key}": own.as_json() for key, own in row.items()}
    path = require_folder(Path(out) / "learned") / "results.json"
    write_json(path, common_json("balanced/learned", seeds=sorted(seeds)) | {"rows": rows, "lines": {"grid": lines}})
    return path


def learned_quantities() -> tuple[Quantity, ...]:
    """The rows of learned subspaces of one number of coordinates."""
    return (
        Quantity(key="accuracy", what="accuracy of the untouched networks on the judged sequences", format="percent"),
        Quantity(key="balanced", what="decisions kept by balanced coordinates", format="percent"),
        Quantity(key="balanced_linear", what="the same, completed linearly", format="percent"),
        Quantity(key="from_balanced", what="by subspaces learned from balanced ones", format="percent"),
        Quantity(key="from_random", what="by subspaces learned from random ones", format="percent"),
        Quantity(key="lead", what="by the better of these less by balanced ones", format="percent"),
        Quantity(key="last_round", what="gain of the last round on training reviews, balanced start", format="percent"),
        Quantity(key="last_round_random", what="the same, random start", format="percent"),
    )


def _with_learned(numbers: Mapping[str, float], count: int) -> dict[str, float]:
    """The numbers of one network and one number of coordinates, by the keys of `learned_quantities`."""
    kept = numbers[f"balanced_{count}"]
    learned, gain = {}, {}
    for kind in ("balanced", "random"):
        name = f"{kind}_{count}"
        learned[kind] = max(numbers[f"learned_{name}"], numbers[f"learned_{name}_linear"])
        gain[kind] = numbers[f"tested_{name}_round{ROUNDS}"] - numbers[f"tested_{name}_round{ROUNDS - 1}"]
    own = {
        "balanced": kept,
        "balanced_linear": numbers[f"balanced_{count}_linear"],
        "from_balanced": learned["balanced"],
        "from_random": learned["random"],
        "lead": max(learned.values()) - kept,
        "last_round": gain["balanced"],
        "last_round_random": gain["random"],
    }
    return own | {key: numbers[key] for key in ("accuracy",) if key in numbers}


def _seed_numbers(path: Path) -> Mapping[str, float]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return {key: float(value) for key, value in content["numbers"].items()}
