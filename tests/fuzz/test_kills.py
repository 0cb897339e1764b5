"""After a kill at any moment nothing that was finished is lost, and no half looks whole."""

import json
import os
import subprocess
import sys

from tests.fuzz.kills import KINDS
from tests.fuzz.running import ROOT


def test_kills_lose_nothing_that_was_finished(tmp_path, fuzz):
    command = [sys.executable, "-m", "tests.fuzz.kills", str(tmp_path), f"--seed={fuzz.seed}", f"--kills={fuzz.kills}"]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60 + 5 * fuzz.kills,
        check=False,
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert lines, ran.stderr
    assert lines[-1].get("kills") == fuzz.kills, ran.stderr[-2000:]
    assert fuzz.kills < 10 or set(lines[-1]["finished"]) == set(KINDS)
    wrong = "\n".join(f"kill {line['kill']}: {'; '.join(line['wrong'])}" for line in lines[:-1])
    assert not wrong, f"with --fuzz-seed={fuzz.seed}:\n{wrong}\n{ran.stderr[-1000:]}"
