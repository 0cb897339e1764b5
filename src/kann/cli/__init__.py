"""The command line: parse, call, print."""

try:
    import typer  # noqa: F401 - imported here so that its absence is explained once, for all commands
except ImportError as error:
    raise ImportError("the command line needs typer and rich: pip install 'kann[cli]'") from error

from kann.cli.commands import app

__all__ = ["app"]
