"""The paper's first experiment: what a network that learnt the copy task does while it waits.

Train, record, fit, measure, draw. `reproduce` does it all for one architecture over several seeds.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kann.errors import KannError
from kann.paper.configs import as_json, choose, differences
from kann.paper.copy.analysis import QUANTITIES, Study, spanned, study
from kann.paper.copy.figures import draw_figures
from kann.paper.copy.task import CONFIGS, PRINTED, TRAINING, Config, CopyNetwork, build, optimizer_of
from kann.paper.results import Reproduction, Row, expected, tabulate, versions, write_json
from kann.paper.training import generator, repeatable, require_device, require_folder, train
from kann.progress import progress


def reproduce(
    arch: str = "dtriv",
    *,
    out: str | os.PathLike[str] = "runs/copy",
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    printed: bool = False,
) -> Reproduction:
    """Train, analyse and draw one architecture; networks that are in ``out`` already are used again.

    With ``printed`` the networks are trained as the paper's table says, even where that does not suffice.
    """
    config = choose(arch, PRINTED if printed else CONFIGS)
    if not seeds:
        raise KannError("there are no seeds; pass at least one")
    folder = require_folder(Path(out) / (f"{arch}-as-printed" if printed else arch))
    with repeatable():
        studies = tuple(
            study(trained(config, seed=seed, folder=folder / f"seed-{seed}", device=device), config, seed=seed)
            for seed in progress(seeds, what=f"copy task, {arch}", total=len(seeds), unit="seed")
        )
        # The paper's numbers are those of dtriv.
        rows = tabulate(QUANTITIES, [each.numbers for each in studies], expected("copy") if arch == "dtriv" else {})
        notes = differences(config, PRINTED[arch])
        write_json(folder / "results.json", _report(config, seeds, rows, notes, studies))
        figures = draw_figures(studies, folder=folder)
    return Reproduction(
        title=f"copy task, {arch}",
        seeds=tuple(seeds),
        rows=rows,
        notes=notes,
        studies=studies,
        files=(folder / "results.json", *figures),
    )


def trained(config: Config, *, seed: int, folder: str | os.PathLike[str], device: str = "cpu") -> CopyNetwork:
    """A network that has learnt the task; one that stands in ``folder`` is used again or trained on."""
    path = require_folder(folder) / "network.safetensors"
    where = require_device(device)
    network = build(config, seed=seed).to(where)

    def loss(iteration: int) -> Tensor:
        x, y = config.task.sequences(config.task.draw(generator(seed, TRAINING, iteration), config.batch))
        return nn.functional.cross_entropy(network(x.to(where)).flatten(0, 1), y.to(where).flatten())

    made_by = {"experiment": "copy", "seed": seed, "config": as_json(config)}
    train(network, optimizer_of(network, config), loss, plan=config.training, path=path, made_by=made_by)
    return network.cpu()


def _report(
    config: Config, seeds: Sequence[int], rows: Sequence[Row], notes: Sequence[str], studies: Sequence[Study]
) -> dict[str, Any]:
    """What ``results.json`` holds. Neither times nor paths: the same seeds give the same file."""
    return {
        "experiment": "copy",
        "versions": versions(),
        "config": as_json(config),
        "printed_config": as_json(PRINTED[config.arch]),
        "differences": list(notes),
        "seeds": list(seeds),
        "rows": {row.quantity.key: row.as_json() for row in rows},
        "measured": {str(seed): each.numbers for seed, each in zip(seeds, studies, strict=True)},
        "curves": {str(seed): each.curves for seed, each in zip(seeds, studies, strict=True)},
        "spanned": {str(seed): spanned(each.analysis) for seed, each in zip(seeds, studies, strict=True)},
    }
