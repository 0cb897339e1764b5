"""The paper's second experiment: what an autoencoder of heartbeats learnt.

Load, train, record, fit, measure, draw. `reproduce` does it all for one architecture over several seeds; `pretrained`
gives the network that ships with the package, and beats to show it on.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from kann import zoo
from kann.data.files import replacing
from kann.paper.configs import as_json, choose, differences
from kann.paper.data import obtain
from kann.paper.ecg.analysis import QUANTITIES, Study, study_network
from kann.paper.ecg.beats import Beats, read_beats
from kann.paper.ecg.figures import draw_figures
from kann.paper.ecg.modes import differences_at_features
from kann.paper.ecg.scikit import require_scikit_learn
from kann.paper.ecg.synthetic import draw_beats
from kann.paper.ecg.task import (
    CONFIGS,
    PRINTED,
    Autoencoder,
    Config,
    Split,
    build,
    losses,
    split,
    training_batch,
)
from kann.paper.results import Reproduction, Row, common_json, expected, tabulate, versions, write_json
from kann.paper.training import (
    fingerprint,
    generator,
    repeatable,
    require_device,
    require_folder,
    require_run_folder,
    train,
)
from kann.progress import progress

EXAMPLES = 64
"""Made-up beats of each kind, normal and anomalous, that come with the pretrained network."""


def reproduce(
    arch: str = "lstm",
    *,
    out: str | os.PathLike[str] = "runs/ecg",
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    printed: bool = False,
    beats: Beats | None = None,
) -> Reproduction:
    """Train, analyse and draw one architecture; networks that are in ``out`` already are used again.

    With ``printed`` the networks are trained as the paper's table says, even where that does not suffice. ``beats`` are
    others than those of ECG5000, which is looked for on this machine and else downloaded.
    """
    config = choose(arch, PRINTED if printed else CONFIGS)
    require_scikit_learn()  # before minutes of training, not behind them
    folder = require_run_folder(out, arch, seeds=seeds, printed=printed)
    beats = read_beats(obtain("ecg5000")) if beats is None else beats
    with repeatable():
        studies = []
        for seed in progress(seeds, what=f"ECG, {arch}", total=len(seeds), unit="seed"):
            parts = split(beats, seed=seed)
            network = trained(config, parts, seed=seed, folder=folder / f"seed-{seed}", device=device)
            studies.append(study_network(network, config, parts))
        # The paper's numbers are those of the LSTM.
        rows = tabulate(QUANTITIES, [each.numbers for each in studies], expected("ecg") if arch == "lstm" else {})
        notes = differences(config, PRINTED[arch])
        write_json(folder / "results.json", _report(config, seeds, rows, studies))
        figures = draw_figures(studies, folder=folder)
    return Reproduction(
        title=f"ECG, {arch}",
        seeds=tuple(seeds),
        rows=rows,
        notes=notes,
        studies=tuple(studies),
        files=(folder / "results.json", *figures),
    )


def trained(
    config: Config, parts: Split, *, seed: int, folder: str | os.PathLike[str], device: str = "cpu"
) -> Autoencoder:
    """An autoencoder of normal beats; one that stands in ``folder`` is used again or trained on."""
    path = require_folder(folder) / "network.safetensors"
    where = require_device(device)
    network = build(config, seed=seed).to(where)
    beats, held_out = parts.train.to(where), parts.validation.to(where)

    def loss(iteration: int) -> Tensor:
        x = training_batch(beats, config, seed=seed, iteration=iteration)
        return losses(network(x), x).mean()

    def validate() -> float:
        return losses(network(held_out), held_out).mean().item()

    data = fingerprint(parts.train.numpy(), parts.validation.numpy())
    made_by = {"experiment": "ecg", "seed": seed, "data": data, "config": as_json(config)}
    optimizer = torch.optim.Adam(network.parameters(), lr=config.rate)
    plan = config.training(len(beats))
    train(network, optimizer, loss, plan=plan, path=path, made_by=made_by, validate=validate)
    return network.cpu()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pretrained:
    """The autoencoder that ships with the package."""

    network: Autoencoder
    config: Config
    beats: Beats
    """Made up by `draw_beats`: normal ones, then as many anomalous ones."""
    provenance: dict[str, Any]
    """Command, seed, data, versions, and what was measured."""


def pretrained() -> Pretrained:
    """The autoencoder that ships with the package, and beats that need no data set."""
    from safetensors.torch import load_file

    provenance = zoo.provenance("ecg")
    config = _config_from(provenance["config"])
    network = build(config, seed=0)
    network.load_state_dict(load_file(zoo.folder("ecg") / "weights.safetensors"))
    beats = draw_beats(generator(0), normal=EXAMPLES, anomalous=EXAMPLES)
    return Pretrained(network=network.eval(), config=config, beats=beats, provenance=provenance)


def export(result: Study, folder: str | os.PathLike[str], *, seed: int, command: str) -> None:
    """Write the weights of a study, and where they come from, as they stand in the zoo."""
    from safetensors.torch import save

    folder = require_folder(folder)
    analysis = result.analysis
    parts = {entry.name: len(getattr(analysis.split, entry.name)) for entry in fields(analysis.split)}
    weights = {name: value.detach().contiguous() for name, value in analysis.network.state_dict().items()}
    with replacing(folder / "weights.safetensors") as temporary:
        temporary.write_bytes(save(weights))
    content = {
        "model": "LSTM autoencoder of normal heartbeats" if analysis.config.arch == "lstm" else "GRU autoencoder",
        "command": command,
        "seed": seed,
        "data": {"name": "ECG5000, UCR archive", "beats": parts},
        "config": as_json(analysis.config),
        "measured": result.numbers,
        "versions": versions(),
    }
    write_json(folder / "provenance.json", content)


def _report(config: Config, seeds: Sequence[int], rows: Sequence[Row], studies: Sequence[Study]) -> dict[str, Any]:
    """What ``results.json`` holds."""
    parts = studies[0].analysis.split
    common = common_json("ecg", config=config, printed_config=PRINTED[config.arch], seeds=seeds, rows=rows)
    return common | {
        "beats": {entry.name: len(getattr(parts, entry.name)) for entry in fields(parts)},
        "by_seed": {str(seed): _of_seed(each) for seed, each in zip(seeds, studies, strict=True)},
    }


def _of_seed(result: Study) -> dict[str, Any]:
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
        "losses": {name: result.losses[name] for name in ("test", "kann")},
    }


def _config_from(entries: dict[str, Any]) -> Config:
    settings: dict[str, Any] = {name: math.inf if value is None else value for name, value in entries.items()}
    return Config(**settings)
