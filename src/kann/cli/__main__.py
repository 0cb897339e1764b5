"""``python -m kann.cli``: the command line where the script ``kann`` is not on the path."""

from kann.cli.commands import app

if __name__ == "__main__":
    app(prog_name="kann")
