import pytest
from typer.testing import CliRunner


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command in a folder of its own."""
    from kann.cli import app  # not before pytest has set up the checks of shapes, which watch the import of kann

    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **settings: CliRunner().invoke(app, list(map(str, arguments)), **settings)
