"""Every ``kann …`` line of README and the manual names a command and options that exist."""

import shlex

import pytest
import typer

from kann.cli import app
from tests.documentation import blocks

COMMANDS = [found for page in blocks.PAGES for found in blocks.commands_of(page)]


def wrong_parts(line):
    """Parts of a command line that kann does not have."""
    known = typer.main.get_command(app)
    for part in shlex.split(line, comments=True)[1:]:
        if part.startswith("-"):
            option = part.split("=")[0]
            if option not in {name for parameter in known.params for name in parameter.opts + parameter.secondary_opts}:
                return [part]
        elif hasattr(known, "commands"):
            if part not in known.commands:
                return [part]
            known = known.commands[part]
    return []


@pytest.mark.parametrize(("where", "line"), COMMANDS, ids=[f"{where} {line[:30]}" for where, line in COMMANDS])
def test_a_command_exists(where, line):
    assert wrong_parts(line) == [], where


def test_commands_are_found():
    assert len(COMMANDS) > 20
    assert wrong_parts("kann fit states.zarr --rnak 3  # a comment") == ["--rnak"]
    assert wrong_parts("kann fti") == ["fti"]
    assert wrong_parts("kann reproduce nothing") == ["nothing"]
