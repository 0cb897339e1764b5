import pytest
from typer.testing import CliRunner

from kann.cli import app


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **settings: CliRunner().invoke(app, list(map(str, arguments)), **settings)
