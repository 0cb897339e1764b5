"""How few coordinates trained networks compute with: balanced ones next to modes, components, readout and random."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from kann_experiments.balanced.cases import CASES
from kann_experiments.balanced.measure import Study, quantities, study
from kann_experiments.configs import choose
from kann_experiments.results import Reproduction, tabulate, versions, write_json
from kann_experiments.training import repeatable, require_run_folder

__all__ = ["CASES", "Study", "reproduce"]


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
    _, make = choose(task, CASES)
    folder = require_run_folder(Path(out) / task, arch, seeds=seeds, printed=False)
    measured = []
    for seed in seeds:
        path = folder / f"seed-{seed}.json"
        if not path.is_file():
            with repeatable(threads=None):
                network_folder = Path(runs) / task / arch / f"seed-{seed}"
                result = study(make(arch, seed, network_folder, device), seed=seed)
            write_json(path, {"numbers": result.numbers, "details": result.details, "device": _hardware(device)})
        measured.append(json.loads(path.read_text(encoding="utf-8")))
    numbers = [{key: float(value) for key, value in each["numbers"].items()} for each in measured]
    rows = tabulate(quantities(), numbers, {})
    content = {
        "experiment": f"balanced/{task}/{arch}",
        "versions": versions(),
        "seeds": list(seeds),
        "rows": {row.quantity.key: row.as_json() for row in rows},
        "details": dict(zip(map(str, seeds), (each["details"] for each in measured), strict=True)),
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


def _hardware(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
