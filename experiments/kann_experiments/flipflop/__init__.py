"""The field's standard example, which the paper does not have: networks that hold bits until pulses set them.

Train, record, fit, measure, draw. `reproduce` does it all over several seeds.
"""

import os
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from kann_experiments.configs import as_json
from kann_experiments.experiment import start_run, write_results
from kann_experiments.flipflop.analysis import QUANTITIES, study_network
from kann_experiments.flipflop.figures import draw_figures
from kann_experiments.flipflop.task import CONFIGS, TRAINING, Config, FlipFlopNetwork, build
from kann_experiments.results import Reproduction, printed_for
from kann_experiments.training import generator, repeatable, require_device, require_folder, train


def reproduce(
    arch: str = "gru",
    *,
    out: str | os.PathLike[str] = "runs/flipflop",
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    suffix: str = "",
) -> Reproduction:
    """Train, analyse and draw; networks that are in ``out`` already are used again.

    The folder's name ends with ``suffix``.
    """
    run = start_run(
        "flipflop",
        arch,
        title=f"flip-flop, {arch}",
        configs=CONFIGS,
        printed_configs=CONFIGS,
        printed=False,
        seeds=seeds,
        out=out,
        suffix=suffix,
    )
    with repeatable():
        studies = []
        for seed, folder in run.seeds_and_folders():
            network = trained(run.config, seed=seed, folder=folder, device=device)
            studies.append(study_network(network, run.config, seed=seed))
        details = {
            "measured": run.by_seed(study.numbers for study in studies),
            "leading": run.by_seed(study.leading for study in studies),
        }
        result = write_results(
            run, studies, quantities=QUANTITIES, printed=printed_for("flipflop", arch), details=details
        )
        figures = draw_figures(studies, folder=run.folder)
    return replace(result, files=(*result.files, *figures))


def trained(config: Config, *, seed: int, folder: str | os.PathLike[str], device: str = "cpu") -> FlipFlopNetwork:
    """Train a network on the flip-flop; one that is in ``folder`` already is used again, or trained to the end."""
    path = require_folder(folder) / "network.safetensors"
    torch_device = require_device(device)
    network = build(config, seed=seed).to(torch_device)

    def loss(iteration: int) -> Tensor:
        # Each batch has random numbers of its own, so that a run that was killed goes on with the same batches.
        pulses, answer = config.task.draw(generator(seed, TRAINING, iteration), config.batch)  # (s, t, b) both
        return nn.functional.mse_loss(network(pulses.to(torch_device)), answer.to(torch_device))

    optimizer = torch.optim.Adam(network.parameters(), lr=config.rate)
    made_by = {"experiment": "flipflop", "seed": seed, "config": as_json(config)}
    train(network, optimizer, loss, plan=config.training, path=path, made_by=made_by)
    return network.cpu()
