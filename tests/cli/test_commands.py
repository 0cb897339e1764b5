"""Help, version and usage of all commands."""

import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def test_help_needs_neither_torch_nor_matplotlib():
    code = "import sys, runpy; sys.argv = ['kann', '--help']\n"
    code += "try: runpy.run_module('kann', run_name='__main__')\n"
    code += "except SystemExit as end: assert not end.code\n"
    code += "assert not {'torch', 'matplotlib'} & sys.modules.keys()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "reproduce" in done.stdout


def required_by(extra):
    """Distributions that kann with an extra installs, with all that they require themselves."""
    found, left = set(), [("kann", extra)]
    while left:
        name, extras = left.pop()
        for text in metadata.requires(name) or []:
            needed = Requirement(text)
            asked = needed.marker is None or any(needed.marker.evaluate({"extra": each}) for each in (extras, ""))
            if asked and (found_name := canonicalize_name(needed.name)) not in found:
                found.add(found_name)
                left.append((needed.name, next(iter(needed.extras), "")))
    return found


def test_the_extra_of_the_command_line_runs_its_commands():
    allowed = required_by("cli") | {"kann", "kann-experiments"}
    absent = [name for name, of in metadata.packages_distributions().items() if canonicalize_name(of[0]) not in allowed]
    assert "onnx" in absent
    assert "tokenizers" not in absent
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); sys.argv = ['kann', 'highlight', 'fine']\n"
    code += "import runpy; runpy.run_module('kann', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout


COMMANDS = ["record", "fit", "report", "highlight", "demo", "data list", "data fetch", "data path"]


@pytest.mark.parametrize("command", [*COMMANDS, "reproduce copy", "reproduce ecg", "reproduce sentiment"])
def test_help_shows_an_example(run, command):
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Example: kann {command}" in result.stdout
