"""A small Mamba on tasks of memory: which coordinates of its state carry the answer, and for how long.

An LSTM of about the same size is analysed in the same way; a transformer, which carries no state, is only trained.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from kann.progress import progress
from kann_experiments.results import Quantity, Reproduction, Row, common_json, tabulate, write_json
from kann_experiments.state_space.analysis import (
    COUNTS,
    FITTED,
    JUDGED,
    METHODS,
    NETWORKS,
    STATES,
    accuracy,
    lasting_numbers,
    measure,
    quantities,
    trained,
)
from kann_experiments.state_space.figures import draw_task
from kann_experiments.state_space.networks import STATE, Transformer
from kann_experiments.state_space.task import TASKS
from kann_experiments.training import repeatable, require_folder

__all__ = ["SIZES", "quick", "reproduce", "sizes"]

SEEDS = range(3)

SIZES, SIZED = (4, STATE, 16), "recall"
"""State sizes that are compared, and the task."""


def reproduce(
    *, out: str | os.PathLike[str] = "runs/state-space", seeds: Sequence[int] = SEEDS
) -> Iterator[Reproduction]:
    """Run all tasks, and compare state sizes; what is in ``out`` already is read."""
    for name in TASKS:
        yield study(name, out=out, seeds=seeds)
    yield sizes(out=out, seeds=seeds)


def quick(out: str | os.PathLike[str] = "runs/state-space") -> Iterator[Reproduction]:
    """Run one seed of the copy task."""
    yield study("copying", out=Path(out) / "quick", seeds=[0])


def study(
    name: str,
    *,
    out: str | os.PathLike[str],
    seeds: Sequence[int],
    iterations: int | None = None,
    size: tuple[int, int] = (FITTED, JUDGED),
) -> Reproduction:
    """Train and measure the three networks of a task."""
    folder = require_folder(Path(out) / name)
    settings: dict[str, Any] = {"folder": folder, "iterations": iterations, "size": size}
    with repeatable():
        measured = [
            _merged([_measured(name, kind, seed=seed, **settings) for kind in NETWORKS])
            for seed in progress(seeds, what=name, total=len(seeds), unit="seed")
        ]
    rows = tabulate(quantities(), [each["numbers"] for each in measured], {})
    lines = {"kept": kept_lines(rows), "needed": needed_lines(rows)}
    return _finish(f"state, {TASKS[name]().title}", folder, seeds, rows, lines, draw_task(measured, folder))


def sizes(
    *,
    out: str | os.PathLike[str],
    seeds: Sequence[int],
    iterations: int | None = None,
    size: tuple[int, int] = (FITTED, JUDGED),
) -> Reproduction:
    """Train and measure Mambas of several state sizes."""
    folder = require_folder(Path(out) / "sizes")
    settings: dict[str, Any] = {"iterations": iterations, "size": size}
    tables = {}
    with repeatable():
        for state in progress(SIZES, what="sizes", total=len(SIZES), unit="size"):
            own = Path(out) / SIZED if state == STATE else folder
            tables[state] = [
                _measured(SIZED, "mamba", seed=seed, state=state, folder=require_folder(own), **settings)["numbers"]
                for seed in seeds
            ]
    rows = []
    for quantity in quantities():
        if quantity.key.startswith("mamba_"):
            for state, numbers in tables.items():
                key, what = f"{quantity.key}_{state}", f"{quantity.what.strip()}, state size {state}"
                named = Quantity(key=key, what=what, format=quantity.format)
                rows += tabulate([named], [{key: own.get(quantity.key, np.nan)} for own in numbers], {})
    return _finish("state sizes", folder, seeds, tuple(rows), {"sizes": size_lines(tables)}, ())


def _measured(
    name: str,
    kind: str,
    *,
    seed: int,
    folder: Path,
    size: tuple[int, int],
    iterations: int | None = None,
    state: int = STATE,
) -> dict[str, Any]:
    """Train and measure one network; what is in the folder already is read."""
    path = folder / f"{kind}{state if kind == 'mamba' else ''}-{seed}.json"
    if not path.is_file():
        task = TASKS[name]()
        network = trained(name, kind, seed=seed, folder=folder, state=state, iterations=iterations)
        numbers, curves = {"accuracy": accuracy(network, task), "parameters": _parameters(network)}, {}
        if not isinstance(network, Transformer):
            found = measure(network, task, seed=seed, size=size)
            numbers, curves = numbers | found.numbers, found.curves
        own = {"numbers": numbers, "curves": curves}
        write_json(path, {kept: {f"{kind}_{key}": each for key, each in own[kept].items()} for kept in own})
    content = json.loads(path.read_text(encoding="utf-8"))
    numbers = {key: float(value) for key, value in content["numbers"].items()}
    if content["curves"]:
        numbers |= lasting_numbers(content["curves"], kind)
    return content | {"numbers": numbers}


def _parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: {key: own for part in parts for key, own in part[name].items()} for name in ("numbers", "curves")}


def kept_lines(rows: Sequence[Row]) -> list[str]:
    """Write answers kept as lines of Markdown: mean and lowest over seeds, a column for each number of coordinates."""
    by_key = {row.quantity.key: row for row in rows}
    lines = ["| state | coordinates kept | " + " | ".join(map(str, COUNTS)) + " |", "|---" * (len(COUNTS) + 2) + "|"]
    for part, name in STATES.items():
        heading = f"{name}: {by_key[f'{part}_width'].mean:.0f} numbers"
        for method, what in METHODS.items():
            own = [by_key[f"{part}_{method}_{k}"] for k in COUNTS if f"{part}_{method}_{k}" in by_key]
            if own:
                cells = " | ".join(f"{100 * row.mean:.1f} (≥ {100 * min(row.values):.1f})" for row in own)
                lines.append(f"| {heading} | {what} | {cells} |")
                heading = ""
        lines.append(
            f"| | none: state held at its mean | {100 * by_key[f'{part}_none'].mean:.1f} |" + " |" * (len(COUNTS) - 1)
        )
    return lines


def needed_lines(rows: Sequence[Row]) -> list[str]:
    """Write the fewest coordinates that keep 90 % of the answers as lines of Markdown, one number for each seed."""
    by_key = {row.quantity.key: row for row in rows}
    lines = ["| state | " + " | ".join(METHODS.values()) + " |", "|---" * (len(METHODS) + 1) + "|"]
    for part, name in STATES.items():
        own = [by_key.get(f"{part}_needed_{method}") for method in METHODS]
        lines.append(f"| {name} | " + " | ".join(_counts(row.values) if row else "–" for row in own) + " |")
    return lines


def size_lines(tables: Mapping[int, Sequence[Mapping[str, float]]]) -> list[str]:
    """Write one line of Markdown for each state size: means over seeds, and the coordinates of each seed."""
    columns = {
        "accuracy": ("mamba_accuracy", lambda own: ", ".join(f"{100 * value:.1f} %" for value in own)),
        "numbers in the state": ("mamba_width", lambda own: f"{own[0]:.0f}"),
        "balanced coordinates that keep 90 %": ("mamba_needed_balanced", _counts),
        "principal components": ("mamba_needed_pca", _counts),
        "steps until half of a token is left in the state": ("mamba_lasts", _span),
        "in the answer": ("mamba_answer_lasts", _span),
        "exp(ΔA) while idle, median": ("mamba_decay_middle", _span),
        "weighted by share": ("mamba_decay_weighted", _span),
        "slowest": ("mamba_decay_slowest", _span),
        "largest ∣λ∣ while idle": ("mamba_slowest", _span),
    }
    lines = ["| state size | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for state, numbers in tables.items():
        cells = [text([own[key] for own in numbers]) for key, text in columns.values()]
        lines.append(f"| {state} | " + " | ".join(cells) + " |")
    return lines


def _counts(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" if np.isfinite(value) else f"> {COUNTS[-1]}" for value in values)


def _span(values: Sequence[float]) -> str:
    low, high = (f"{value:.3g}" if np.isfinite(value) else "∞" for value in (min(values), max(values)))
    return low if low == high else f"{low} – {high}"


def _finish(
    title: str,
    folder: Path,
    seeds: Sequence[int],
    rows: tuple[Row, ...],
    lines: Mapping[str, list[str]],
    figures: tuple[Path, ...],
) -> Reproduction:
    """Write ``results.json``, from which the manual is filled."""
    path = folder / "results.json"
    write_json(path, common_json(f"state-space/{folder.name}", seeds=seeds, rows=rows) | {"lines": dict(lines)})
    return Reproduction(title=title, seeds=tuple(seeds), rows=rows, notes=(), studies=(), files=(path, *figures))
