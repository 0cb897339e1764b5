from dataclasses import replace

from typer.testing import CliRunner

from kann.cli import app
from kann.paper.copy import task
from tests.paper.tiny import tiny
from tests.reporting.html_pages import content_of


def test_the_demo_writes_two_reports_and_says_what_is_in_them(tmp_path, monkeypatch):
    many = task.Task(digits=2, blanks=4, letters=9)  # 81 sequences, of which 32 draws leave some
    monkeypatch.setitem(task.CONFIGS, "dtriv", replace(tiny(iterations=30), task=many))
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    for name in ("report.html", "copy.html"):
        assert f"open {tmp_path / 'demo' / name}" in result.stdout
        _, page, tables = content_of(tmp_path / "demo" / name)
        assert len(page["verdict"]) >= 3
        assert all(len(each["tokens"]) == each["length"] for each in page["sequences"])
        assert tables["coordinate"].shape == (page["steps"], 2 * len(page["shown"]))
        assert len(page["outputs"]["gains"]) == len(page["shown"])
    assert "Words that push it up most:" in result.stdout
    assert "In sequences that were not fitted, the paper's operator recalls" in result.stdout
    assert "copying the third state recalls" in result.stdout
