"""Balanced coordinates of trained networks next to the baselines, on a network that trains in a second."""

import json

import kann_experiments.balanced.cases as cases
import numpy as np
import pytest
import torch
from kann_experiments import balanced
from kann_experiments.balanced import grid, learn, learned, reproduce, summarise_learned
from kann_experiments.counting.task import Config, draw
from kann_experiments.results import Quantity, Row
from kann_experiments.training import Training

import kann
from kann.data.moments import mean_and_covariance


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


@pytest.fixture
def case():
    """An untrained network, of which one coordinate keeps little, and sequences of several lengths."""
    torch.manual_seed(0)
    network = cases.counting.CountingNetwork(Config(classes=3, arch="lstm", units=6)).eval()
    draws = [torch.randn(length, 4) for length in np.random.default_rng(0).integers(5, 9, size=60)]
    whole = torch.randn(40, 6, 4)
    return cases.Case(network=network, fitted=whole, judged=torch.randn(30, 6, 4), learned_from=draws)


def test_a_learner_runs_the_network_with_its_state_completed(case):
    balance = kann.balance(case.network, case.fitted, progress=False)
    states = kann.record(case.network, case.fitted, state="hc", progress=False)
    learner = learned.Learner(case, mean_and_covariance(states), balance.directions, seed=0)
    sets = [balance.directions[:, :2], balance.directions[:, :1], learner.random_directions(2)]
    found = learner.outputs(case.fitted, learner._whitened(sets))
    for directions, outputs in zip(sets, found, strict=True):
        keep = range(directions.shape[1])
        with kann.intervene(case.network, directions, states, keep=keep, fill="linear", state="hc"):
            wanted = case.network(case.fitted)
        same = torch.isclose(outputs, wanted, atol=1e-5).all(dim=1)
        assert same.float().mean() > 0.8  # kann.intervene clips coordinates to their recorded range


def test_learning_lowers_the_loss_of_every_start(case):
    balance = kann.balance(case.network, case.fitted, progress=False)
    states = kann.record(case.network, case.fitted, state="hc", progress=False)
    learner = learned.Learner(case, mean_and_covariance(states), balance.directions, seed=0)
    starts = [learned.Start(learner.random_directions(count), rate=0.3) for count in (1, 2)]
    for start, path in zip(starts, learner.learn(starts, steps=50), strict=True):
        assert path[0].directions.shape == path[-1].directions.shape == start.directions.shape
        assert path[-1].loss < path[0].loss


@pytest.mark.parametrize("kind", ["class", "labels", "values"])
def test_outputs_as_they_were_have_no_divergence(kind):
    outputs = torch.randn(3, 5, 4)
    same = learned._divergence(outputs, outputs, kind)
    torch.testing.assert_close(same, torch.zeros(3), atol=1e-6, rtol=0)
    assert (learned._divergence(-outputs, outputs, kind) > 0.01).all()


def test_learned_subspaces_are_summarised(small, tmp_path, monkeypatch):
    monkeypatch.setattr(balanced, "LEARNED", {"counting-2": ("Counting", 2)})
    monkeypatch.setattr(learned, "COUNTS", (1,))
    folder = learn("counting-2", "gru", out=tmp_path, runs=tmp_path / "runs", seeds=[0])
    numbers = json.loads((folder / "seed-0.json").read_text())["numbers"]
    content = json.loads(summarise_learned(tmp_path).read_text())
    assert content["rows"]["counting-2-gru_1_balanced"]["mean"] == numbers["balanced_1"]
    assert content["lines"]["grid"][2].startswith("| Counting, GRU (1) | 1 | ")
