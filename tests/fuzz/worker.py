"""Damage files and read them, in a process of its own that may use 1 GB of memory and 5 s for each.

``python -m tests.fuzz.worker FOLDER --seed 7 --case 1234`` repeats one case, shows what happened, and leaves the
damaged file in FOLDER.
Without ``--case`` the cases from ``--first`` to ``--last`` run, and each failure is a line of JSON.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kann.errors import KannError, KannWarning
from tests.fuzz import damage
from tests.fuzz.targets import NO_CHECKSUM, TARGETS, Knows, Target, change_folder, fingerprint

MEMORY = 2**30
SECONDS = 5.0
FINE = (KannError, FileNotFoundError, IsADirectoryError)
FOLDER_KNOWS = NO_CHECKSUM + ": a chunk that takes the place of another of its size has a true one"


class TooSlowError(BaseException):
    """Raised by the alarm; no ``except Exception`` on the way catches it."""


def own_seconds() -> float:
    """A clock that stands still while this thread waits for a core that others use."""
    waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    return time.perf_counter() - waited


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TooSlowError` if the block takes longer. On a busy machine, waiting for a core does not count."""
    start = own_seconds()

    def stop(number: int, frame: Any) -> None:
        if own_seconds() - start >= seconds:
            raise TooSlowError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    # Again each second: leaving a pool of threads waits for its threads, and that must be interrupted too.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def limit_memory(more: int) -> None:
    """Allow this process so many bytes more than it has now: libraries alone map gigabytes that they never touch."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class Originals:
    """One good file for each target, made once, and what is read from it."""

    def __init__(self, folder: Path):
        self._folder, self._results = folder, {}

    def path(self, target: Target) -> Path:
        """The good file or folder of a target."""
        path = self._folder / f"{target.name.replace(' ', '-')}" / f"original{target.suffix}"
        if not path.exists():
            path.parent.mkdir(parents=True)
            target.make(path)
        return path

    def result(self, target: Target) -> str:
        """The fingerprint of what is read from a copy of it."""
        if target.name not in self._results:
            copy = self.copy(target, self._folder / "copy")
            self._results[target.name] = fingerprint(target.use(copy))
        return self._results[target.name]

    def copy(self, target: Target, folder: Path) -> Path:
        """A fresh copy in a fresh folder."""
        source = self.path(target)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        copy = folder / source.name
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copyfile(source, copy)
        return copy


def damage_one(target: Target, path: Path, rng: np.random.Generator) -> tuple[str, Knows]:
    """Damage the file or the folder at ``path``; returns what was done, and why the result may differ."""
    if target.whole_folder and rng.random() < 0.2:
        return change_folder(path, rng), FOLDER_KNOWS
    kind, (damages, knows) = damage.chosen(rng, target.damages.items())
    file = path
    if path.is_dir():
        file = damage.chosen(rng, [file for file in sorted(path.rglob("*")) if matches(file, path, kind)])
    function = damage.chosen(rng, damages)
    file.write_bytes(function(file.read_bytes(), rng))
    return f"{function.__name__} of {file.relative_to(path.parent)}", knows


def matches(file: Path, folder: Path, kind: str) -> bool:
    """Whether a damage of this kind is for this file."""
    if not file.is_file():
        return False
    if kind == "c/*":
        return "c" in file.relative_to(folder).parts
    return file.name.endswith(kind.split(" ")[0])


def run_case(originals: Originals, seed: int, case: int, folder: Path) -> dict[str, Any]:
    """Damage one file and read it. The outcome is "same", "differs", "refused", or what went wrong."""
    rng = np.random.default_rng((seed, case))
    target = TARGETS[case % len(TARGETS)]
    expected = originals.result(target)
    path = originals.copy(target, folder)
    done, knows = damage_one(target, path, rng)
    start = own_seconds()
    outcome, told = outcome_of(target, path, expected, knows)
    return {
        "case": case,
        "target": target.name,
        "damage": done,
        "outcome": outcome,
        "told": told,
        "seconds": round(own_seconds() - start, 2),
    }


def outcome_of(target: Target, path: Path, expected: str, knows: Knows) -> tuple[str, str]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            with within(SECONDS):
                found = fingerprint(target.use(path))
        except FINE as error:
            return refusal(error)
        except (Exception, TooSlowError) as error:
            where = traceback.extract_tb(error.__traceback__)
            ours = [entry for entry in where if "/kann/" in entry.filename]
            at = ""
            if ours:
                at = f" at {ours[-1].filename.split('/kann/')[-1]}:{ours[-1].lineno}"
            return "failed", f"{type(error).__name__}: {str(error)[:200]!r}{at}"
    is_told = any(issubclass(warning.category, KannWarning) for warning in given)
    if found == expected:
        return "same", ""
    if knows is None and not is_told:
        return "failed", "SilentlyDifferent: another result, though the format can tell"
    return "differs", knows or "a warning was given"


def refusal(error: BaseException) -> tuple[str, str]:
    """An error is one line that says something."""
    text = str(error)
    if "\n" in text.strip() or len(text) > 1000 or not text:
        return "failed", f"LongError: not one clear line: {type(error).__name__}: {text[:200]!r}"
    return "refused", text


def peak_bytes():
    """The most memory that this process held. What getrusage says would begin with the memory of the test suite."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--case", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--last", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    originals = Originals(arguments.folder / "originals")
    if arguments.case is not None:
        json.dump(run_case(originals, arguments.seed, arguments.case, arguments.folder / "case"), sys.stdout, indent=1)
        return
    for target in TARGETS:
        originals.result(target)  # before memory is limited, so that every library has its own
    limit_memory(MEMORY)
    current = arguments.folder / "current"
    for case in range(arguments.first, arguments.last, arguments.step):
        current.write_text(str(case))  # whoever started this process reads here what killed it
        found = run_case(originals, arguments.seed, case, arguments.folder / "case")
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()  # what was found before a case that kills the process is kept
    sys.stdout.write(json.dumps({"peak": peak_bytes()}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a thread that still waits for a FIFO would keep the process


if __name__ == "__main__":
    main()
