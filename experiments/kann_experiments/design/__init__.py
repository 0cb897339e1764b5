"""During, and before, training: the future work of the paper.

`during` watches the paper's networks while they train. `sizes` asks whether the balanced coordinates of a large network
tell how small a network suffices. `memory` starts and trains networks so that their operator remembers.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kann.progress import progress
from kann_experiments.design import long_memory, small_networks, trainings
from kann_experiments.design.figures import draw_accuracies, draw_recalls, draw_training
from kann_experiments.results import Quantity, Reproduction, Row, common_json, tabulate, write_json
from kann_experiments.training import repeatable, require_folder

__all__ = ["PARTS", "quick", "reproduce"]

PARTS = ("during", "sizes", "memory")
"""The three experiments."""


def reproduce(
    part: str, *, out: str | os.PathLike[str] = "runs/design", seeds: Sequence[int] | None = None
) -> Iterator[Reproduction]:
    """Run one of `PARTS`; what is in ``out`` already is read. The default seeds are those of the manual."""
    if part == "during":
        for name in trainings.CASES:
            yield during(name, out=out, seeds=range(1 if name == "ecg-lstm" else 3) if seeds is None else seeds)
    elif part == "sizes":
        yield sizes(out=out, seeds=range(3) if seeds is None else seeds)
    else:
        for arch in long_memory.NETWORKS:
            yield memory(arch, out=out, seeds=long_memory.OPEN if seeds is None else seeds)


def quick(out: str | os.PathLike[str] = "runs/design") -> Iterator[Reproduction]:
    """Run a little of each part."""
    out = Path(out) / "quick"
    yield during("copy-gru", out=out, seeds=[0], iterations=500)
    yield sizes(out=out, seeds=[0], tasks=("counting-3", "parity"), archs=("gru",), iterations=300)
    yield memory("rnn", out=out, seeds=[2], most=600, arms=("orthogonal", "soft", "penalty"))


def during(
    name: str, *, out: str | os.PathLike[str], seeds: Sequence[int], iterations: int | None = None
) -> Reproduction:
    """Watch the trainings of a network."""
    folder = require_folder(Path(out) / name)
    with repeatable():
        runs = [
            trainings.watched(name, seed=seed, folder=folder, iterations=iterations)
            for seed in progress(seeds, what=name, total=len(seeds), unit="seed")
        ]
    rows = tabulate(trainings.QUANTITIES, [trainings.numbers(run) for run in runs], {})
    return _finish(f"training, {name}", folder, seeds=seeds, rows=rows, figures=draw_training(runs[0], folder))


def sizes(
    *,
    out: str | os.PathLike[str],
    seeds: Sequence[int],
    tasks: Sequence[str] = tuple(small_networks.CASES),
    archs: Sequence[str] = small_networks.ARCHITECTURES,
    iterations: int | None = None,
) -> Reproduction:
    """Train small and large networks of all tasks and architectures, and judge the predictions."""
    folder = require_folder(Path(out) / "sizes")
    cells = [(task, arch) for task in tasks for arch in archs]
    with repeatable():
        contents = {
            (task, arch): small_networks.measured(task, arch, seeds=seeds, folder=folder, iterations=iterations)
            for task, arch in progress(cells, what="sizes", total=len(cells), unit="cell")
        }
    learned = {cell: content for cell, content in contents.items() if small_networks.is_learned(cell[0], content)}
    judged = small_networks.judge(list(learned.values())) if learned else {}
    lines = {"sizes": size_lines(contents), "predictions": prediction_lines(judged)}
    quantities = [
        Quantity(key=f"{name}_{kind}", what=f"{what}: {kind}")
        for name, what in small_networks.PREDICTORS.items()
        for kind in small_networks.KINDS
    ]
    numbers = {f"{name}_{kind}": value for name, own in judged.items() for kind, value in own.items()}
    numbers |= {"cells": len(cells), "learned": len(learned), "predictions": len(learned) * len(seeds)}
    quantities += [
        Quantity(key="cells", what="tasks and architectures"),
        Quantity(key="learned", what="of which the large networks learned"),
        Quantity(key="predictions", what="large networks that predict a size"),
    ]
    rows = tabulate(quantities, [numbers], {})
    figures = draw_accuracies(learned, folder) if learned else ()
    return _finish("sizes", folder, seeds=seeds, rows=rows, lines=lines, figures=figures)


def memory(
    arch: str,
    *,
    out: str | os.PathLike[str],
    seeds: Sequence[int],
    most: int | None = None,
    arms: Sequence[str] | None = None,
) -> Reproduction:
    """Train a network on the copy task in several ways until it is learned."""
    folder = require_folder(Path(out) / f"memory-{arch}")
    arms = arms or long_memory.ARMS_OF[arch]
    with repeatable():
        runs = {
            arm: [long_memory.trained(arch, arm, seed=seed, folder=folder, most=most) for seed in seeds]
            for arm in progress(arms, what=f"copy task, {arch}", total=len(arms), unit="arm")
        }
    baseline = long_memory.best_baseline(runs)
    quantities, numbers = long_memory.summary(runs, baseline)
    rows = tabulate(quantities, [numbers], {})
    lines = {"arms": long_memory.arm_lines(runs, baseline)}
    figures = draw_recalls(runs, folder)
    return _finish(f"memory, {arch}", folder, seeds=seeds, rows=rows, lines=lines, figures=figures)


def size_lines(contents: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[str]:
    """A line for each task: what suffices, and what the counts of the large networks are."""
    archs = list(dict.fromkeys(arch for _, arch in contents))
    head = "".join(f" {arch.upper()}: suffices | count | keep it | accuracy of 48 units |" for arch in archs)
    lines = [f"| task |{head}", "|---" * (1 + 4 * len(archs)) + "|"]
    for task in dict.fromkeys(task for task, _ in contents):
        cells = [_size_cells(task, contents[task, arch]) for arch in archs]
        lines.append(f"| {small_networks.CASES[task][0]} | " + " | ".join(cells) + " |")
    return lines


def _size_cells(task: str, content: Mapping[str, Any]) -> str:
    accuracy = f"{100 * np.median(content['large']):.1f} %"
    if not small_networks.is_learned(task, content):
        return f"not learned | – | – | {accuracy}"
    enough = small_networks.sufficient(content)
    counts = [
        ", ".join("–" if each[name] is None else str(each[name]) for each in content["analyses"])
        for name in ("count", "live")
    ]
    return f"**{f'{enough:.0f}' if np.isfinite(enough) else '> 16'}** | {counts[0]} | {counts[1]} | {accuracy}"


def prediction_lines(judged: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each way to predict the size."""
    lines = ["| predicted by | right | too small | too large | no prediction |", "|---|---|---|---|---|"]
    for name, own in judged.items():
        lines.append(
            f"| {small_networks.PREDICTORS[name]} | "
            + " | ".join(f"{own[kind]:.0f}" for kind in small_networks.KINDS)
            + " |"
        )
    return lines


def _finish(
    title: str,
    folder: Path,
    *,
    seeds: Sequence[int],
    rows: tuple[Row, ...],
    figures: tuple[Path, ...],
    lines: Mapping[str, Any] | None = None,
) -> Reproduction:
    """Write ``results.json``, from which the manual is filled."""
    path = folder / "results.json"
    write_json(path, common_json(f"design/{folder.name}", seeds=seeds, rows=rows) | {"lines": dict(lines or {})})
    return Reproduction(title=title, seeds=tuple(seeds), rows=rows, notes=(), studies=(), files=(path, *figures))
