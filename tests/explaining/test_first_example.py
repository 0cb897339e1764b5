"""The first example of the README delivers its sentence; benchmarks/first_example.py has 20 seeds."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "reviews.py"


def without_numbers(text):
    """The text with one space between words and with # for each number, which other processors round otherwise."""
    return re.sub(r"\d+(\.\d+)?", "#", " ".join(text.replace("\n> ", " ").split()))


def test_one_coordinate_of_256_keeps_nine_in_ten_decisions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(EXAMPLE))["found"]
    printed = capsys.readouterr().out
    assert printed == f"{found}\n"
    assert found.verdict == "found"
    kept = found.facts.live.fewest
    assert kept.count == 1
    assert kept.score >= 0.9
    assert found.sentences[0].startswith("One balanced coordinate of 256, kept after every step, keeps 9")
    assert without_numbers(found.sentences[0]) in without_numbers((ROOT / "README.md").read_text(encoding="utf-8"))
    remembered = found.facts.remembered
    assert remembered.late_left > 0.1
    assert remembered.late_untrained < 1e-3
    assert (tmp_path / "report.html").exists()
    code = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines()[1:] if line]
    assert len(code) < 12
