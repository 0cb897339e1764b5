"""Help, version and usage of all commands."""

import subprocess
import sys

import pytest

import kann


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "copy", "--arch", "transformer"], "'transformer' is not one of"),
        (["reproduce", "chess"], "No such command 'chess'"),
        (["reproduce", "copy", "--seeds", "0"], "--seeds"),
        (["reproduce", "copy", "--seed", "-1"], "--seed"),
        (["reproduce", "copy", "--colour", "red"], "No such option"),
    ],
)
def test_bad_usage(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_help_and_version(run):
    assert run("--version").stdout == f"kann {kann.__version__}\n"
    help_text = run("reproduce", "copy", "--help").stdout
    assert "Example: kann reproduce copy --arch gru" in help_text
    for option in ("--arch", "--device", "--out", "--seed", "--seeds", "--as-printed"):
        assert option in help_text


@pytest.mark.parametrize("module", ["kann", "kann.cli"])
def test_help_needs_neither_torch_nor_matplotlib(module):
    code = "import sys, runpy; sys.argv = ['kann', '--help']\n"
    code += f"try: runpy.run_module('{module}', run_name='__main__')\n"
    code += "except SystemExit as end: assert not end.code\n"
    code += "assert not {'torch', 'matplotlib'} & sys.modules.keys()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "reproduce" in done.stdout


COMMANDS = ["record", "fit", "report", "highlight", "demo", "data list", "data fetch", "data path"]


@pytest.mark.parametrize("command", [*COMMANDS, "reproduce copy", "reproduce ecg", "reproduce sentiment"])
def test_help_shows_an_example(run, command):
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Example: kann {command}" in result.stdout
