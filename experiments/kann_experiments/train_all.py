"""Train and analyse all networks of the experiments in parallel processes: ``python -m kann_experiments.train_all``.

For example ``python -m kann_experiments.train_all --tasks copy ecg --processes 16 --device cuda --out runs`` trains the
networks of both experiments, all architectures, settings and seeds, and then analyses them. Networks that are there are
used again, and trainings that were interrupted go on, so that the same command may be given repeatedly.
"""

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kann_experiments.training import repeatable, run_name

TASKS = {
    # task: architectures, and the settings of `reproduce` that they are trained with
    "copy": (
        ("dtriv", "dtriv100", "rnn", "gru", "lstm"),
        ({}, {"printed": True}, {"zero_blanks": True}, {"printed": True, "zero_blanks": True}),
    ),
    "ecg": (("lstm", "gru"), ({}, {"printed": True}, {"notebook": True})),
    "sentiment": (("gru", "lstm", "rnn"), ({}, {"printed": True})),
    "flipflop": (("gru",), ({},)),
}
"""Everything that is trained."""

SUFFIXES = {"zero_blanks": "-zero-blanks", "notebook": "-as-notebook"}
"""Ends of folders' names, by setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The networks of one architecture and setting."""

    task: str
    arch: str
    settings: dict[str, bool]
    out: Path
    device: str

    @property
    def folder(self) -> Path:
        """The folder of its results, as ``kann reproduce`` names it."""
        suffix = "".join(SUFFIXES[name] for name in self.settings if name in SUFFIXES)
        return self.out / self.task / run_name(self.arch, printed="printed" in self.settings, suffix=suffix)

    @property
    def name(self) -> str:
        """Its name, such as ``ecg/lstm-as-notebook``."""
        return f"{self.task}/{self.folder.name}"


def jobs(tasks: Sequence[str], *, out: Path, device: str, only: Sequence[str] = ()) -> Iterator[Job]:
    """All jobs of some tasks; with ``only`` those whose name contains one of these texts."""
    for task in tasks:
        archs, settings = TASKS[task]
        for arch, chosen in itertools.product(archs, settings):
            # These small networks are trained faster on a processor.
            place = "cpu" if task in ("copy", "flipflop") else device
            job = Job(task=task, arch=arch, settings=dict(chosen), out=out, device=place)
            if not only or any(text in job.name for text in only):
                yield job


def train_one(job: Job, seed: int) -> None:
    """Train one network; one that is there is only read."""
    folder = job.folder / f"seed-{seed}"
    torch.set_num_threads(1)
    with repeatable():
        if job.task == "copy":
            from kann_experiments import copy
            from kann_experiments.copy.task import CONFIGS, PRINTED

            configs = copy.with_blanks(PRINTED if "printed" in job.settings else CONFIGS, "zero_blanks" in job.settings)
            copy.trained(configs[job.arch], seed=seed, folder=folder, device=job.device)
        elif job.task == "ecg":
            from kann_experiments import ecg
            from kann_experiments.data import obtain
            from kann_experiments.ecg import beats, task

            known = task.NOTEBOOK if "notebook" in job.settings else task.PRINTED
            config = (known if job.settings else task.CONFIGS)[job.arch]
            parts = ecg.split(beats.read_beats(obtain("ecg5000")), seed=seed)
            ecg.trained(config, parts, seed=seed, folder=folder, device=job.device)
        elif job.task == "sentiment":
            from kann_experiments.sentiment import task as reviews
            from kann_experiments.sentiment.corpus import load_corpus

            known = reviews.PRINTED if "printed" in job.settings else reviews.CONFIGS
            reviews.trained(known[job.arch], load_corpus(), seed=seed, folder=folder, device=job.device)
        else:
            from kann_experiments import flipflop

            flipflop.trained(flipflop.CONFIGS[job.arch], seed=seed, folder=folder, device=job.device)


def analyse(job: Job, seeds: Sequence[int]) -> None:
    """Analyse the networks of a job, draw its figures and write ``results.json``."""
    import importlib

    torch.set_num_threads(1)
    experiment = importlib.import_module(f"kann_experiments.{job.task}")
    experiment.reproduce(job.arch, out=job.out / job.task, seeds=seeds, device=job.device, **job.settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, analyse, and return the number of failures."""
    parser = argparse.ArgumentParser(prog="python -m kann_experiments.train_all", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--only", nargs="+", default=[], help="Parts of names, such as ecg/lstm or as-printed.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--train-only", action="store_true", help="Leave the analysis to kann reproduce.")
    chosen = parser.parse_args(arguments)
    found = list(jobs(chosen.tasks, out=chosen.out, device=chosen.device, only=chosen.only))
    # Processes are started anew: those that are forked cannot use a GPU.
    pool = ProcessPoolExecutor(chosen.processes, mp_context=multiprocessing.get_context("spawn"))
    with pool:
        failed = _run(
            pool, train_one, [(f"{job.name} {seed}", job, seed) for job in found for seed in range(chosen.seeds)]
        )
        if not chosen.train_only:
            failed += _run(pool, analyse, [(f"{job.name} analysed", job, range(chosen.seeds)) for job in found])
    return failed


def _run(pool: ProcessPoolExecutor, function: Callable[..., None], tasks: list[tuple[Any, ...]]) -> int:
    """Run a function on all of these, say what is done, and count what failed."""
    failed = 0
    futures = {pool.submit(function, *arguments): name for name, *arguments in tasks}
    for future in as_completed(futures):
        problem = future.exception()
        failed += problem is not None
        sys.stdout.write(f"{futures[future]}{f': {problem}' if problem else ''}\n")
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main())
