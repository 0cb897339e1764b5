from dataclasses import replace

from kann_experiments.copy import task
from typer.testing import CliRunner

from kann.cli import app, demo
from tests.experiments.tiny import tiny
from tests.reporting.html_pages import content_of


def test_the_demo_explains_two_networks_and_says_what_it_found(tmp_path, monkeypatch):
    many = task.Task(digits=2, blanks=4, letters=9)  # 81 sequences, of which 24 draws leave some
    monkeypatch.setitem(task.CONFIGS, "dtriv", replace(tiny(iterations=30), task=many))
    monkeypatch.setattr(demo, "REVIEWS", 24)
    monkeypatch.setattr(demo, "COPIES", 24)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    for name in ("report.html", "copy.html"):
        assert f"open {tmp_path / 'demo' / name}" in result.stdout
        _, page, tables = content_of(tmp_path / "demo" / name)
        assert all(len(each["tokens"]) == each["length"] for each in page["sequences"])
        assert tables["coordinate"].shape == (page["steps"], 2 * len(page["shown"]))
    assert result.stdout.count("kept after every step") + result.stdout.count("Nothing can be concluded") >= 2
    assert "principal components" in result.stdout
    assert "of the effect of one token" in result.stdout
