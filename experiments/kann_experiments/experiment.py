"""How every experiment begins and ends: settings and a folder first, ``results.json`` and the table last."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, runtime_checkable

from kann.progress import progress
from kann_experiments.configs import Config, choose, differences
from kann_experiments.results import Printed, Quantity, Reproduction, common_json, tabulate, write_json
from kann_experiments.training import require_run_folder


@runtime_checkable
class Measured(Protocol):
    """What was found about one trained network; each experiment has a class of its own for it."""

    @property
    def numbers(self) -> dict[str, float]:
        """What was measured, by the keys of the experiment's quantities."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Generic[Config]):
    """One architecture of an experiment, trained and analysed once for each seed."""

    experiment: str
    """The name of the experiment in ``results.json``."""
    title: str
    """What the progress bar and the table are headed with."""
    config: Config
    """How the networks are trained."""
    printed_config: Config
    """How the paper's table says that they are trained."""
    seeds: tuple[int, ...]
    folder: Path
    """Where results, figures and networks are written."""

    def seeds_and_folders(self) -> Iterator[tuple[int, Path]]:
        """Each seed and the folder of its network, with a progress bar."""
        for seed in progress(self.seeds, what=self.title, total=len(self.seeds), unit="seed"):
            yield seed, self.folder / f"seed-{seed}"

    def by_seed(self, values: Iterable[Any]) -> dict[str, Any]:
        """One value for each seed, as ``results.json`` holds them: by the seed, which JSON wants as text."""
        return dict(zip(map(str, self.seeds), values, strict=True))


def start_run(
    experiment: str,
    arch: str,
    *,
    title: str,
    configs: Mapping[str, Config],
    printed_configs: Mapping[str, Config],
    printed: bool,
    seeds: Sequence[int],
    out: str | os.PathLike[str],
    suffix: str = "",
) -> Run[Config]:
    """Choose the settings of an architecture and make the folder for its results.

    With ``printed`` the settings are those of the paper's table, and the folder is another one. The name of the folder
    ends with ``suffix``.
    """
    config = choose(arch, printed_configs if printed else configs)
    folder = require_run_folder(out, arch, seeds=seeds, printed=printed, suffix=suffix)
    return Run(
        experiment=experiment,
        title=title,
        config=config,
        printed_config=printed_configs[arch],
        seeds=tuple(seeds),
        folder=folder,
    )


def write_results(
    run: Run[Any],
    studies: Sequence[Measured],
    *,
    quantities: Sequence[Quantity],
    printed: Mapping[str, Printed],
    details: Mapping[str, Any],
) -> Reproduction:
    """Compare what was measured with what the paper printed, and write ``results.json``.

    ``details`` are the entries of that file that only this experiment has. The reproduction lists this one file: the
    caller adds those that it writes afterwards.
    """
    rows = tabulate(quantities, [study.numbers for study in studies], printed)
    common = common_json(
        run.experiment, config=run.config, printed_config=run.printed_config, seeds=run.seeds, rows=rows
    )
    path = run.folder / "results.json"
    write_json(path, common | dict(details))
    return Reproduction(
        title=run.title,
        seeds=run.seeds,
        rows=rows,
        notes=differences(run.config, run.printed_config),
        studies=tuple(studies),
        files=(path,),
    )
