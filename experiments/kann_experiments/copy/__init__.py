"""The paper's first experiment: what a network that learnt the copy task does while it waits.

Train, record, fit, measure, draw. `reproduce` does it all for one architecture over several seeds.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from safetensors.torch import save_file
from torch import Tensor, nn

from kann.data.atomic_write import replacing
from kann.zoo import PROVENANCE, WEIGHTS
from kann_experiments.configs import as_json, known_settings
from kann_experiments.copy.analysis import QUANTITIES, study_network
from kann_experiments.copy.figures import draw_figures
from kann_experiments.copy.task import CONFIGS, PRINTED, TRAINING, Config, CopyNetwork, build, build_optimizer, rebase
from kann_experiments.experiment import start_run, write_results
from kann_experiments.results import Reproduction, printed_for, versions, write_json
from kann_experiments.training import generator, repeatable, require_device, require_folder, train


def reproduce(
    arch: str = "dtriv",
    *,
    out: str | os.PathLike[str] = "runs/copy",
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    printed: bool = False,
    zero_blanks: bool = False,
    suffix: str = "",
) -> Reproduction:
    """Train, analyse and draw one architecture; networks that are in ``out`` already are used again.

    With ``printed`` the networks are trained as the paper's table says, even where that does not suffice. With
    ``zero_blanks`` a blank is an input of zeros instead of a character like the others. The folder's name ends with
    ``suffix``.
    """
    run = start_run(
        "copy",
        arch,
        title=f"copy task, {arch}" + ", blanks are zeros" * zero_blanks,
        configs=with_blanks(CONFIGS, zero_blanks),
        printed_configs=with_blanks(PRINTED, zero_blanks),
        printed=printed,
        seeds=seeds,
        out=out,
        suffix="-zero-blanks" * zero_blanks + suffix,
    )

    with repeatable():
        studies = []
        for seed, folder in run.seeds_and_folders():
            network = trained(run.config, seed=seed, folder=folder, device=device)
            studies.append(study_network(network, run.config, seed=seed))
        details = {
            "measured": run.by_seed(study.numbers for study in studies),
            "curves": run.by_seed(study.curves for study in studies),
            "spanned": run.by_seed(study.characters for study in studies),
        }
        result = write_results(run, studies, quantities=QUANTITIES, printed=printed_for("copy", arch), details=details)
        figures = draw_figures(studies, folder=run.folder)
    return replace(result, files=(*result.files, *figures))


def with_blanks(configs: Mapping[str, Config], zero_blanks: bool) -> dict[str, Config]:
    """The same configurations with this coding of blanks."""
    return {
        arch: replace(config, task=replace(config.task, zero_blanks=zero_blanks)) for arch, config in configs.items()
    }


def trained(config: Config, *, seed: int, folder: str | os.PathLike[str], device: str = "cpu") -> CopyNetwork:
    """Train a network on the copy task; one that is in ``folder`` already is used again, or trained to the end."""
    path = require_folder(folder) / "network.safetensors"
    torch_device = require_device(device)
    network = build(config, seed=seed).to(torch_device)

    def loss(iteration: int) -> Tensor:
        if config.rebase and iteration % config.rebase == 0:
            rebase(network)
        # Each batch has random numbers of its own, so that a run that was killed goes on with the same batches.
        digits = config.task.draw(generator(seed, TRAINING, iteration), config.batch)  # (s, k)
        x, answer = config.task.sequences(digits)  # (s, t, p) and (s, t)
        scores = network(x.to(torch_device))  # (s, t, o)
        return nn.functional.cross_entropy(scores.flatten(0, 1), answer.to(torch_device).flatten())

    made_by = {"experiment": "copy", "seed": seed, "config": as_json(config)}
    train(network, build_optimizer(network, config), loss, plan=config.training, path=path, made_by=made_by)
    return network.cpu()


def ship(folder: str | os.PathLike[str], *, arch: str = "dtriv", seed: int = 0, runs: str = "runs/copy") -> None:
    """Train the network that `kann.zoo` holds, and write its weights and provenance into ``folder``."""
    config = CONFIGS[arch]
    with repeatable():
        network = trained(config, seed=seed, folder=runs)
        inputs, answers = config.task.sequences(config.task.every())
        right = (network(inputs).argmax(-1) == answers)[:, -config.task.digits :].float().mean().item()
    place = require_folder(folder)
    with replacing(place / WEIGHTS) as temporary:
        save_file({name: value.contiguous() for name, value in network.state_dict().items()}, temporary)
    made_by = {
        "model": "orthogonal RNN that remembers three digits over thirty blanks",
        "command": f"python -c \"from kann_experiments import copy; copy.ship('{place.name}')\"",
        "seed": seed,
        "units": config.units,
        "task": known_settings(config.task),
        "config": as_json(config),
        "measured": {"digits_right": right},
        "versions": versions(),
    }
    write_json(place / PROVENANCE, made_by)
