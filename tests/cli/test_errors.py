"""How errors and interrupts are told, whatever the command."""

import subprocess
import sys

import numpy as np
import pytest

import kann
from kann.cli.errors import one_line_errors


def test_debug_shows_the_traceback(run):
    result = run("--debug", "fit", "nowhere.zarr")
    assert isinstance(result.exception, kann.KannError | OSError)


def test_output_that_nobody_reads_is_no_error(tmp_path, rng):
    np.save(tmp_path / "states.npy", rng.normal(size=(2, 30, 5)))
    command = [sys.executable, "-m", "kann", "fit", "states.npy", "-o", "n.npz", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("missing", ["torch", "safetensors", "matplotlib"])
def test_what_is_not_installed_is_named(missing):
    code = f"import sys; sys.modules['{missing}'] = None; sys.argv = ['kann', 'reproduce', 'copy']\n"
    code += "import runpy; runpy.run_module('kann', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert missing in done.stderr
    assert "pip install 'kann[" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), one_line_errors():
        raise ZeroDivisionError
