"""Run many cases in worker processes, start again behind a case that killed its process, and tell what failed."""

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
HANGS_AFTER = 60
"""Seconds without a new case after which a worker is called hung; its own alarm should have ended it before."""

STARTS_WITHIN = 240
"""Seconds that a worker may take to import everything on a busy machine."""

SHOWN = 60
"""How many different failures are told, each with one case to repeat."""


def run_cases(folder: Path, *, seed: int, cases: int, processes: int) -> list[dict]:
    """What became of each case, in several processes that take every n-th of them."""
    run = partial(_run_share, folder, seed=seed, cases=cases, processes=processes)
    with ThreadPoolExecutor(processes) as pool:
        return [entry for share in pool.map(run, range(processes)) for entry in share]


def _run_share(folder: Path, first: int, *, seed: int, cases: int, processes: int) -> list[dict]:
    folder, found = folder / f"process-{first}", []
    folder.mkdir()
    while first < cases:
        command = [sys.executable, "-m", "tests.fuzz.worker", folder, "--seed", seed]
        command += ["--first", first, "--step", processes, "--last", cases]
        code, printed = _run(list(map(str, command)), folder)
        found += [json.loads(line) for line in printed.splitlines() if line.endswith("}")]
        if found and "peak" in found[-1]:
            break
        current = folder / "current"
        if not current.exists():
            raise RuntimeError(f"the worker cannot start: {(folder / 'stderr').read_text()[-2000:]}")
        killed = int(current.read_text())
        told = f"Killed: the process ended with {code}: {(folder / 'stderr').read_text()[-200:]!r}"
        found.append({"case": killed, "target": "?", "damage": "?", "outcome": "failed", "told": told})
        first = killed + processes
    return found


def _run(command: list[str], folder: Path) -> tuple[object, str]:
    """The exit code of a process (or that it hung), and what it printed. A case that hangs is ended with it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    (folder / "current").unlink(missing_ok=True)  # that of the process before
    with (folder / "stdout").open("w+") as out, (folder / "stderr").open("w") as err:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err)
        code: object = None
        started = time.time()
        while code is None:
            try:
                code = process.wait(1)
            except subprocess.TimeoutExpired:
                if time.time() - (_last_begun(folder) or started + STARTS_WITHIN) > HANGS_AFTER:
                    process.kill()
                    process.wait()
                    code = "a hang"
        out.seek(0)
        return code, out.read()


def _last_begun(folder: Path) -> float:
    """When the worker began its last case; 0 if it has not begun any."""
    current = folder / "current"
    if not current.exists():
        return 0.0
    return current.stat().st_mtime


def failures_told(found: list[dict], seed: int) -> str:
    """Failures of one kind together: how many, what happened, and how to repeat the first."""
    kinds = defaultdict(list)
    for entry in found:
        if entry.get("outcome") == "failed":
            kinds[entry["target"], _without_places(entry["told"])].append(entry)
    if not kinds:
        return ""
    count = sum(map(len, kinds.values()))
    lines = [f"{count} of {len(found)} cases failed in {len(kinds)} ways with --fuzz-seed={seed}:"]
    for (target, _), entries in sorted(kinds.items(), key=lambda item: -len(item[1]))[:SHOWN]:
        first = entries[0]
        lines.append(f"{len(entries):5d} × {target}: {first['damage']}: {first['told']}")
        lines.append(f"        python -m tests.fuzz.worker /tmp/again --seed {seed} --case {first['case']}")
    return "\n".join(lines)


def _without_places(text: str) -> str:
    """An error without numbers and quoted words, so that errors of one cause are counted together."""
    head, _, place = text.rpartition(" at ")
    return "".join(letter for letter in head[:60] if not letter.isdigit()) + place
