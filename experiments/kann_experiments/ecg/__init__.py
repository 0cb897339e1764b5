"""The paper's second experiment: what an autoencoder of heartbeats learnt.

Load, train, record, fit, measure, draw: `reproduce` does it all for one architecture over several seeds. A trained
network ships with the package, see `kann.zoo`; `export` writes its files.
"""

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from kann.data.atomic_write import replacing
from kann.zoo import PROVENANCE, WEIGHTS
from kann.zoo.autoencoder import Autoencoder, Beats
from kann_experiments.configs import as_json
from kann_experiments.data import obtain
from kann_experiments.ecg.analysis import QUANTITIES, Study, study_network
from kann_experiments.ecg.beats import read_beats
from kann_experiments.ecg.figures import draw_figures
from kann_experiments.ecg.modes import differences_at_features
from kann_experiments.ecg.scikit import require_scikit_learn
from kann_experiments.ecg.task import (
    CONFIGS,
    NOTEBOOK,
    PRINTED,
    Config,
    Split,
    build,
    losses,
    split,
    training_batch,
    training_plan,
)
from kann_experiments.experiment import start_run, write_results
from kann_experiments.results import Reproduction, printed_for, versions, write_json
from kann_experiments.training import fingerprint, repeatable, require_device, require_folder, train


def reproduce(
    arch: str = "lstm",
    *,
    out: str | os.PathLike[str] = "runs/ecg",
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    printed: bool = False,
    notebook: bool = False,
    beats: Beats | None = None,
) -> Reproduction:
    """Train, analyse and draw one architecture; networks that are in ``out`` already are used again.

    With ``printed`` the networks are trained as the paper's table says, even where that does not suffice, with
    ``notebook`` as the authors' published notebook does. ``beats`` are others than those of ECG5000, which is looked
    for on this machine and else downloaded.
    """
    require_scikit_learn()  # before minutes of training, not after them
    title = f"ECG, {arch}"
    run = start_run(
        "ecg",
        arch,
        title=title,
        configs=NOTEBOOK if notebook else CONFIGS,
        printed_configs=PRINTED,
        printed=printed and not notebook,
        seeds=seeds,
        out=out,
        suffix="-as-notebook" * notebook,
    )
    if beats is None:
        beats = read_beats(obtain("ecg5000"))

    with repeatable():
        studies = []
        for seed, folder in run.seeds_and_folders():
            parts = split(beats, seed=seed)
            network = trained(run.config, parts, seed=seed, folder=folder, device=device)
            studies.append(study_network(network, run.config, parts))
        details = {
            "beats": _count_beats(studies[0].analysis.split),
            "by_seed": run.by_seed(_details(study) for study in studies),
        }
        result = write_results(run, studies, quantities=QUANTITIES, printed=printed_for("ecg", arch), details=details)
        figures = draw_figures(studies, folder=run.folder)
    return replace(result, files=(*result.files, *figures))


def trained(
    config: Config, parts: Split, *, seed: int, folder: str | os.PathLike[str], device: str = "cpu"
) -> Autoencoder:
    """An autoencoder trained on normal beats; one that ``folder`` holds is used or trained further."""
    path = require_folder(folder) / "network.safetensors"
    torch_device = require_device(device)
    network = build(config, seed=seed).to(torch_device)
    beats, held_out = parts.train.to(torch_device), parts.validation.to(torch_device)  # (a, t) and (b, t)

    def loss(iteration: int) -> Tensor:
        x = training_batch(beats, config, seed=seed, iteration=iteration)
        return losses(network(x), x).mean()

    def validate() -> float:
        return losses(network(held_out), held_out).mean().item()

    data = fingerprint(parts.train.numpy(), parts.validation.numpy())
    made_by = {"experiment": "ecg", "seed": seed, "data": data, "config": as_json(config)}
    optimizer = torch.optim.Adam(network.parameters(), lr=config.rate, weight_decay=config.weight_decay)
    plan = training_plan(config, len(beats))
    train(network, optimizer, loss, plan=plan, path=path, made_by=made_by, validate=validate)
    return network.cpu()


def export(result: Study, folder: str | os.PathLike[str], *, seed: int, command: str) -> None:
    """Write the weights of a study and their provenance: the files that `kann.zoo` holds."""
    folder = require_folder(folder)
    analysis = result.analysis
    weights = {name: value.detach().contiguous() for name, value in analysis.network.state_dict().items()}
    with replacing(folder / WEIGHTS) as temporary:
        temporary.write_bytes(save(weights))
    content = {
        "model": f"{analysis.config.arch.upper()} autoencoder of normal heartbeats",
        "command": command,
        "seed": seed,
        "data": {"name": "ECG5000, UCR archive", "beats": _count_beats(analysis.split)},
        "config": as_json(analysis.config),
        "measured": result.numbers,
        "versions": versions(),
    }
    write_json(folder / PROVENANCE, content)


def _count_beats(parts: Split) -> dict[str, int]:
    """How many beats each part of the data has."""
    return {entry.name: len(getattr(parts, entry.name)) for entry in fields(parts)}


def _details(result: Study) -> dict[str, Any]:
    """Everything that was measured about one network."""
    return {
        "measured": result.numbers,
        "pairs": [
            {"eigenvalue": [mode.eigenvalue.real, mode.eigenvalue.imag], "residual": mode.residual}
            for mode in result.analysis.pairs
        ],
        "contrast": differences_at_features(result.bands["normal"], result.bands["anomalous"]),
        "distances": result.distances,
        "silhouettes": result.silhouettes,
        "losses": {name: result.losses[name] for name in ("test", "kann", "copying")},
    }
