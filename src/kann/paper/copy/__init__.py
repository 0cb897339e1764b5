"""The paper's first experiment: what a network that learnt the copy task does while it waits.

Train, record, fit, measure, draw. `reproduce` does it all for one architecture over several seeds.
"""

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from kann.paper.configs import as_json, choose, differences
from kann.paper.copy.analysis import QUANTITIES, Study, spanned, study
from kann.paper.copy.figures import draw_figures
from kann.paper.copy.task import CONFIGS, PRINTED, TRAINING, Config, CopyNetwork, build, optimizer_of
from kann.paper.results import Reproduction, Row, common_json, expected, tabulate, write_json
from kann.paper.training import generator, repeatable, require_device, require_folder, require_run_folder, train
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
    folder = require_run_folder(out, arch, seeds=seeds, printed=printed)
    with repeatable():
        studies = tuple(
            study(trained(config, seed=seed, folder=folder / f"seed-{seed}", device=device), config, seed=seed)
            for seed in progress(seeds, what=f"copy task, {arch}", total=len(seeds), unit="seed")
        )
        # The paper's numbers are those of dtriv.
        rows = tabulate(QUANTITIES, [each.numbers for each in studies], expected("copy") if arch == "dtriv" else {})
        notes = differences(config, PRINTED[arch])
        write_json(folder / "results.json", _report(config, seeds, rows, studies))
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


def _report(config: Config, seeds: Sequence[int], rows: Sequence[Row], studies: Sequence[Study]) -> dict[str, Any]:
    """What ``results.json`` holds."""
    by_seed = list(zip(map(str, seeds), studies, strict=True))
    common = common_json("copy", config=config, printed_config=PRINTED[config.arch], seeds=seeds, rows=rows)
    return common | {
        "measured": {seed: each.numbers for seed, each in by_seed},
        "curves": {seed: each.curves for seed, each in by_seed},
        "spanned": {seed: spanned(each.analysis) for seed, each in by_seed},
    }
