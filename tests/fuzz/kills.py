"""Kill processes that save or record, at random moments, and look at what is left.

``python -m tests.fuzz.kills FOLDER --seed 7 --kills 500`` prints a line of JSON for each failure and then how many
writings of each kind were finished. This process imports everything once and forks a child for each kill, which takes
milliseconds instead of seconds; it opens no store itself, since the threads of zarr would not survive a fork.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import zarr  # noqa: F401 - imported before a fork, not after each
from torch import nn

import kann
from kann.data import store
from kann.errors import KannError, KannWarning

LONGEST = 0.6
"""Seconds until a child is killed, at most: all of its writings take place several times in that time."""

SHAPE = (6, 20, 8)


def states_of(version: int) -> kann.States:
    """States that say which version they are: each number is it."""
    return kann.States.from_padded(np.full(SHAPE, float(version)))


class Counting(nn.Module):
    """A layer whose output is a number that the data say, whatever else: recorded states tell their version."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x):
        """What came in."""
        return self.layer(x)


def save_koopman(path: Path, version: int) -> None:
    koopman = kann.fit(np.random.default_rng(0).normal(size=(4, 9, 3)))
    kann.Koopman(**{name: getattr(koopman, name) for name in koopman.__slots__} | {"condition": 1.0 + version}).save(
        path
    )


def save_moments(path: Path, version: int) -> None:
    kann.Moments.of(states_of(version + 1)).save(path)


def save_states(path: Path, version: int) -> None:
    states_of(version).save(path)


def record(path: Path, version: int) -> None:
    kann.record(Counting(), _batches(version), layer="layer", into=path)


def _batches(version: int) -> list[torch.Tensor]:
    return [torch.full((2, SHAPE[1], SHAPE[2]), float(version)) for _ in range(SHAPE[0] // 2)]


def version_of_koopman(path: Path) -> int:
    return int(kann.Koopman.load(path).condition) - 1


def version_of_moments(path: Path) -> int:
    moments = kann.Moments.load(path)
    return round(float(moments.sum_h[0]) / moments.states) - 1


def version_of_states(path: Path) -> int:
    states = kann.States.open(path)
    values = np.asarray(states.values[:])
    if values.shape != (SHAPE[0] * SHAPE[1], SHAPE[2]) or len(np.unique(values)) != 1:
        raise AssertionError(f"a half looks whole: {states!r} with the numbers {np.unique(values)[:5]}")
    return int(values[0, 0])


KINDS: dict[str, tuple[str, Callable, Callable]] = {
    "koopman": ("koopman.npz", save_koopman, version_of_koopman),
    "moments": ("moments.npz", save_moments, version_of_moments),
    "states": ("states.zarr", save_states, version_of_states),
    "record": ("recorded.zarr", record, version_of_states),
}


def write_for_ever(folder: Path, report: int, rng: np.random.Generator) -> None:
    """Write version after version of everything, and tell of each that is finished. Runs until it is killed."""
    store.PART_BYTES = 4 * 8 * SHAPE[1] * SHAPE[2]  # several parts, so that there is a half to be left behind
    version = 0
    while True:
        version += 1
        for kind in rng.permutation(list(KINDS)):  # so that the first of them is not killed most often
            name, write, _ = KINDS[kind]
            write(folder / name, version)
            os.write(report, f"{kind} {version}\n".encode())


def in_child(function: Callable[[], None]) -> int:
    """Run in a forked process, which never returns from here; gives its id."""
    child = os.fork()
    if child:
        return child
    try:
        function()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def look(folder: Path, finished: dict[str, int], result: Path) -> None:
    """Write down what is wrong with the files that a killed process left."""
    wrong = []
    for kind, (name, _, version_of) in KINDS.items():
        least, path = finished.get(kind, 0), folder / name
        if not path.exists():
            if least:
                wrong.append(f"{kind}: version {least} was finished and {name} is gone")
            continue
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            problem = _problem(kind, path, least, version_of, given)
        if problem:
            wrong.append(problem)
    result.write_text(json.dumps(wrong))


def _problem(kind: str, path: Path, least: int, version_of: Callable, given: list) -> str:
    try:
        version = version_of(path)
    except KannError as error:
        if least:
            return f"{kind}: version {least} was finished and cannot be read: {error}"
        return ""  # nothing was finished, and what is there says so
    except AssertionError as error:
        if any(issubclass(warning.category, KannWarning) for warning in given) and not least:
            return ""  # a half that says it is one, where nothing whole stood before
        return f"{kind}: {error}"
    except Exception as error:
        return f"{kind}: {type(error).__name__}: {error}"
    if not least <= version <= least + 1:
        return f"{kind}: version {least} was finished and {version} is read"
    return ""


def kill_once(folder: Path, rng: np.random.Generator, total: Counter) -> list[str]:
    """Let a child write, kill it, and return what is wrong with what it left. ``total`` counts what was finished."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    read, write = os.pipe()
    child = in_child(lambda: write_for_ever(folder, write, rng))
    os.close(write)
    time.sleep(float(rng.uniform(0, LONGEST)))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        finished = {kind: int(version) for kind, version in map(str.split, pipe.read().splitlines())}
    total.update(finished)
    if not os.WIFSIGNALED(status):
        return ["the child ended by itself; see stderr"]
    result = folder / "looked.json"
    os.waitpid(in_child(lambda: look(folder, finished, result)), 0)
    if not result.exists():
        return ["looking at the files ended the process; see stderr"]
    return json.loads(result.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kills", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kann.record(Counting(), _batches(0), layer="layer")  # what torch imports late is imported before the first fork
    total = Counter()
    for number in range(arguments.kills):
        wrong = kill_once(arguments.folder / "killed", np.random.default_rng((arguments.seed, number)), total)
        if wrong:
            sys.stdout.write(json.dumps({"kill": number, "wrong": wrong}) + "\n")
            sys.stdout.flush()
    sys.stdout.write(json.dumps({"kills": arguments.kills, "finished": total}) + "\n")


if __name__ == "__main__":
    main()
