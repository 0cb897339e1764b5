"""How errors and interrupts are told, whatever the command."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import typer

import kann
from kann.cli.errors import SHOW_TRACEBACKS, one_line_errors


@pytest.fixture(autouse=True)
def without_debug():
    """No test sees the --debug of another one."""
    SHOW_TRACEBACKS.set(False)


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


def test_what_the_user_can_mend_is_told_in_one_line(capsys):
    lost = type("CommClosedError", (Exception,), {"__module__": "distributed.comm.core"})
    for error, line in (
        (ImportError("No module named 'pooch'"), "error: No module named 'pooch'; pip install 'kann[cli]'"),
        (ImportError("figures need x: pip install 'x'"), "error: figures need x: pip install 'x'"),
        (OSError("no space\n  left"), "error: no space left"),
        (lost("in <worker>:\nclosed"), "error: the Dask cluster gave up (in <worker>: closed)"),
    ):
        with pytest.raises(typer.Exit) as ended, one_line_errors():
            raise error
        assert ended.value.exit_code == 1
        assert capsys.readouterr().err == f"{line}\n"


def warn_twice():
    with one_line_errors():
        warnings.warn("few\n  pairs", kann.errors.FewPairsWarning, stacklevel=1)
        warnings.warn("of somebody else", UserWarning, stacklevel=1)


def test_warnings_are_told_in_one_line_and_those_of_others_as_always(capsys):
    with pytest.warns(UserWarning, match="of somebody else") as others:
        warn_twice()
    assert len(others) == 1
    assert capsys.readouterr().err == "warning: few pairs\n"
