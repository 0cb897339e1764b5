"""``python -m kann`` is the command ``kann``."""

from kann.cli import app

app(prog_name="kann")
