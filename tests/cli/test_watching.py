"""``kann watch``: the film of a folder of checkpoints."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import kann

MODEL = """
from torch import nn

def build():
    return nn.GRU(3, 4, batch_first=True)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, rng):
    """A factory, data, and three checkpoints, whose names do not sort as their steps do."""
    (tmp_path / "watched_network.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    np.save(tmp_path / "x.npy", rng.normal(size=(20, 8, 3)).astype(np.float32))
    (tmp_path / "run").mkdir()
    model = nn.GRU(3, 4, batch_first=True)
    for step in (5, 10, 100):
        save_file(model.state_dict(), tmp_path / "run" / f"step-{step}.safetensors")
        with torch.no_grad():
            model.weight_hh_l0 += 0.1
    (tmp_path / "run" / "notes.txt").touch()
    return tmp_path


def watch(run, *options):
    return run("watch", "watched_network:build", "--checkpoints", "run", "--data", "x.npy", *options)


def test_a_film_and_a_history_are_written(run, folder):
    found = watch(run, "-o", "film.html", "--history", "h.npz", "--json")
    assert found.exit_code == 0, found.output
    numbers = json.loads(found.output)
    assert numbers["steps"] == [5, 10, 100]
    assert len(set(numbers["figures"]["radius"])) == 3
    assert kann.live.History.load("h.npz").steps.tolist() == [5, 10, 100]
    assert "3 checkpoints of watched_network:build" in (folder / "film.html").read_text(encoding="utf-8")
    again = watch(run, "-o", "film.html")
    assert "film.html exists; pass --force" in again.output


def empty(folder):
    for file in (folder / "run").iterdir():
        file.unlink()


def doubled(folder):
    (folder / "run" / "again-5.pt").touch()


def other(folder):
    save_file({"weight": torch.ones(2)}, folder / "run" / "step-7.safetensors")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (empty, "run holds no checkpoint; pass a folder of .safetensors, .pt, .pth files"),
        (doubled, "again-5.pt and step-5.safetensors are both of step 5"),
        (other, "does not fit the model"),
        (lambda folder: np.save(folder / "x.npy", np.ones((2, 8, 3))), "the probe holds 2 sequences"),
    ],
)
def test_what_cannot_be_watched_is_one_line(run, folder, change, text):
    change(folder)
    found = watch(run)
    assert found.exit_code == 1
    assert text in found.output


def test_a_folder_that_is_none(run, folder):
    found = run("watch", "watched_network:build", "--checkpoints", "x.npy", "--data", "x.npy")
    assert "x.npy is no folder" in found.output
