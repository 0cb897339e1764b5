"""``kann explain``: a network explained from files."""

import json

import numpy as np
import pytest

MODEL = """
from torch import nn

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])

def build():
    return Reader()
"""


@pytest.fixture
def explain(run, tmp_path, monkeypatch, rng):
    """Run the command on a model and data in the current folder."""
    (tmp_path / "explained_reader.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    np.save(tmp_path / "x.npy", rng.normal(size=(24, 6, 3)).astype(np.float32))
    return lambda *options: run("explain", "explained_reader:build", "--data", "x.npy", *options)


def test_sentences_and_a_page(explain, tmp_path):
    (tmp_path / "labels.json").write_text(json.dumps([0, 1] * 12))
    found = explain(
        "--labels",
        "labels.json",
        "--classes",
        "no, yes",
        "--readout",
        "head",
        "--layer",
        "rnn",
        "--channels",
        "a, b, c",
        "--json",
    )
    assert found.exit_code == 0, found.output
    numbers = json.loads(found.stdout)
    assert 3 <= len(numbers["sentences"]) <= 5
    assert numbers["choices"][0] == "Layer 'rnn' is explained, as you asked."
    assert numbers["units"] == 4
    named = {each["name"] for side in numbers["movers"]["modes"].values() for each in side["up"] + side["down"]}
    assert named == {"a", "b", "c"}
    assert (tmp_path / "report.html").stat().st_size == (tmp_path / numbers["path"]).stat().st_size > 1e5
    again = explain()
    assert again.exit_code == 1
    assert "report.html exists; pass --force" in again.stderr


def test_mistakes_are_one_line(explain, tmp_path):
    (tmp_path / "labels.json").write_text("[0, 1]")
    found = explain("--labels", "labels.json")
    assert found.exit_code == 1
    assert found.stderr.strip() == "error: there are 2 labels for 24 sequences; pass one for each sequence"
