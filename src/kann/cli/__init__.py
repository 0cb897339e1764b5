"""The command line: parse, call, print."""

from kann.cli.commands import app

__all__ = ["app"]
