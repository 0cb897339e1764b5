"""``kann effects``: modes tested in the running network, from files."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import kann
from kann.cli import app

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
def folder(tmp_path, monkeypatch, rng):
    """A model, its weights, data, states and operator, in files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "live_reader.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    import live_reader  # type: ignore[import-not-found]

    model = live_reader.build()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    data = rng.normal(size=(24, 5, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    states = kann.record(model, torch.from_numpy(data), progress=False)
    states.save(tmp_path / "states.zarr")
    kann.fit(states, basis="pca").save(tmp_path / "operator.npz")
    return tmp_path


def run(*options):
    files = {"weights": "w.safetensors", "data": "x.npy", "operator": "operator.npz", "states": "states.zarr"}
    named = [part for name, file in files.items() for part in (f"--{name}", file)]
    return CliRunner().invoke(app, ["effects", "live_reader:build", *named, "--fill", "linear", *options])


def test_a_table_is_printed_and_a_figure_written(folder):
    found = run("--counts", "1,4", "--plot", "effects.svg")
    assert found.exit_code == 0, found.output
    assert "modes, largest contribution first" in found.output
    assert "untouched 1.000" in found.output
    assert (folder / "effects.svg").read_text().startswith("<?xml")
    again = run("--counts", "1,4", "--plot", "effects.svg")
    assert again.exit_code == 1
    assert "pass --force" in again.stderr


def test_numbers_for_programs(folder):
    (folder / "labels.json").write_text(json.dumps([0, 1] * 12))
    found = run("--counts", "4", "--json", "--labels", "labels.json")
    assert found.exit_code == 0, found.output
    numbers = json.loads(found.output)
    assert numbers["metric"] == "accuracy"
    assert numbers["kept"]["modes"]["mean"] == [numbers["full"]]
    assert numbers["sequences"] == 24


def test_mistakes_are_one_line(folder):
    found = run("--counts", "1,two")
    assert found.exit_code == 1
    assert found.stderr.strip().startswith("error: --counts 1,two are not whole numbers")
    np.save(folder / "x.npy", np.zeros((24, 5, 7), dtype=np.float32))
    found = run("--counts", "1")
    assert found.exit_code == 1
    assert "cannot read a batch of shape (24, 5, 7)" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
