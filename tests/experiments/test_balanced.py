"""Balanced coordinates of trained networks next to the baselines, on a network that trains in a second."""

import json

import kann_experiments.balanced.cases as cases
import numpy as np
import pytest
from kann_experiments.balanced import grid, reproduce
from kann_experiments.counting.task import Config, draw
from kann_experiments.results import Quantity, Row
from kann_experiments.training import Training


def test_labels_are_the_classes_with_most_words(rng):
    x, labels = draw(rng, 50, Config(classes=4))
    counts = x.sum(dim=1)[:, :4].numpy()
    best = np.sort(counts, axis=1)
    assert (counts.argmax(axis=1) == labels.numpy()).all()
    assert (best[:, -1] > best[:, -2]).all()


@pytest.fixture
def small(monkeypatch):
    plan = Training(iterations=60, schedule="linear", clip=1.0)
    monkeypatch.setitem(cases.counting.CONFIGS, "gru", {"units": 12, "steps": 8, "training": plan})
    monkeypatch.setattr(cases, "SEQUENCES", 64)


def test_an_interrupted_run_goes_on_with_the_same_numbers(small, tmp_path):
    where = {"out": tmp_path / "balanced", "runs": tmp_path / "runs"}
    first = reproduce("counting-2", "gru", seeds=[0], **where)
    path = tmp_path / "balanced" / "counting-2-gru" / "seed-0.json"
    stamp = path.stat().st_mtime_ns
    both = reproduce("counting-2", "gru", seeds=[0, 1], **where)
    assert path.stat().st_mtime_ns == stamp
    kept = {row.quantity.key: row.values for row in both.rows}
    assert all(row.values[0] == kept[row.quantity.key][0] for row in first.rows if row.quantity.key != "count")
    assert all(0 <= value <= 1 for key, values in kept.items() if "_" in key for value in values)
    content = json.loads((path.parent / "results.json").read_text())
    assert content["lines"]["grid"][0].startswith("| coordinates kept | 1 | 2 |")


def test_an_unknown_task_is_named(tmp_path):
    with pytest.raises(Exception, match="unknown"):
        reproduce("counting-99", "gru", out=tmp_path)


def test_a_grid_has_the_mean_and_the_lowest_value():
    row = Row(quantity=Quantity(key="balanced_2", what="", format="percent"), values=(0.9, 0.8), printed=None)
    assert grid([row])[-1] == "| balanced coordinates | 85.0 (≥ 80.0) |"
