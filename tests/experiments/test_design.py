"""Design and training: networks that are stacked, what suffices, and the parts of the experiment, made small."""

import json
import math

import numpy as np
import pytest
import torch
from kann_experiments import design
from kann_experiments.copy import task as copy_task
from kann_experiments.design import long_memory, small_networks, trainings
from kann_experiments.design.stack import GATES, Network, train_together
from torch import nn

from tests.experiments.tiny import tiny


def draw(iteration):
    x = torch.randint(5, (16, 9), generator=torch.Generator().manual_seed(iteration))
    return x, x.cumsum(dim=1) % 3


def losses(outputs, answers):
    return torch.stack([nn.functional.cross_entropy(own.flatten(0, 1), answers.flatten()) for own in outputs])


@pytest.mark.parametrize("arch", GATES)
def test_networks_that_are_trained_together_end_as_if_alone(arch):
    def network(units):
        return Network(arch, inputs=5, units=units, outputs=3, seed=units, last=False)

    together, alone = [network(units) for units in (1, 2, 6)], network(2)
    train_together(together, draw, losses, iterations=10, rate=1e-2)
    train_together([alone], draw, losses, iterations=10, rate=1e-2)
    for own, other in zip(together[1].parameters(), alone.parameters(), strict=True):
        # Sums in another order, 1e-7 at each step, which Adam divides by gradients that may be small.
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-4)


def test_one_network_alone_is_trained_as_torch_trains_it():
    ours, torchs = (Network("gru", inputs=5, units=4, outputs=3, seed=0, last=False) for _ in range(2))
    train_together([ours], draw, losses, iterations=5, rate=1e-2)
    optimizer = torch.optim.Adam(torchs.parameters(), lr=1e-2)
    for iteration in range(5):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, 2 * (1 - iteration / 5))
        x, answers = draw(iteration)
        optimizer.zero_grad()
        losses(torchs(x)[None], answers).sum().backward()
        nn.utils.clip_grad_norm_(torchs.parameters(), 1.0)
        optimizer.step()
    for own, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-4)


def content(large, *sizes, counts=(2,)):
    analyses = [{"count": count, "live": 3, "live_components": None, "components": 20} for count in counts]
    return {"large": large, "sizes": list(sizes), "analyses": analyses, "seeds": [0] * len(counts), "outputs": 5}


def test_the_smallest_size_of_which_one_seed_is_good_enough_suffices():
    found = content([0.99, 0.97, 0.98], [0.5, 0.965, 0.6, 0.99, 1, 1], [0.5, 0.6, 0.975, 0.99, 1, 1])
    assert small_networks.sufficient(found) == 3
    assert small_networks.sufficient(content([0.99], [0.5] * 6)) == math.inf


def test_predictions_are_right_too_small_too_large_or_none():
    good = [0.5, 0.5, 0.98, 0.98, 1, 1]
    found = small_networks.judge([content([0.98], good, counts=(3, 2)), content([0.98], good, counts=(None, 17))])
    assert found["count"] == {"right": 1, "small": 1, "large": 1, "none": 1}
    assert found["live"]["right"] == found["constant"]["right"] == 4
    assert found["outputs"]["large"] == found["components"]["large"] == 4
    assert found["live_components"]["none"] == 4


@pytest.mark.parametrize("task", [name for name in small_networks.CASES if name != "reviews"])
def test_answers_can_be_right_and_wrong(task, rng):
    case = small_networks.CASES[task][1]()
    x, answers = case.draw(rng, 20, small_networks.TRAINING)
    if case.kind == "class":
        outputs = nn.functional.one_hot(answers, case.outputs).float()
        assert x.max() < case.inputs
    else:
        outputs = answers
    both = torch.stack([outputs, -outputs])
    right, wrong = case.right(both, answers)
    assert right == 1 > wrong
    low, high = case.loss(both, answers)
    assert low < high


@pytest.mark.parametrize("arch", ["gru", "rnn"])
def test_the_start_makes_the_operator_orthogonal(arch, monkeypatch):
    config = tiny(arch)
    network = copy_task.build(config, seed=0)
    with torch.no_grad():
        before = long_memory.waiting_operator(network, config, rng=np.random.default_rng(0))
        long_memory.start(network, config, "start", seed=0)
        after = long_memory.waiting_operator(network, config, rng=np.random.default_rng(0))
    assert np.linalg.svd(before)[1].min() < 0.7
    assert np.abs(np.linalg.svd(after)[1] - 1).max() < 0.15


def test_the_penalty_is_zero_for_states_that_turn_and_pulls_others_to_the_circle(rng):
    config = tiny("gru")
    network = copy_task.build(config, seed=0)
    penalty = long_memory._Penalty(config, seed=0, is_balanced=True)
    penalty(network, torch.from_numpy(rng.normal(size=(4, config.task.length, config.units))).float(), 0)
    penalty._directions = torch.eye(config.units)[:, :4]
    turn, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    for scale in (1.0, 0.8):
        states = torch.zeros(32, config.task.length, config.units)
        states[:, 0, :4] = torch.from_numpy(rng.normal(size=(32, 4)))
        for step in range(1, config.task.length):
            states[:, step, :4] = scale * states[:, step - 1, :4] @ torch.from_numpy(turn).float()
        assert float(penalty(network, states, 1)) == pytest.approx((1 - scale) ** 2, abs=1e-4)


def test_all_parts_run_and_go_on(tmp_path, monkeypatch):
    monkeypatch.setitem(copy_task.CONFIGS, "gru", tiny("gru", iterations=40))
    monkeypatch.setitem(long_memory.NETWORKS, "rnn", tiny("rnn"))
    monkeypatch.setattr(trainings, "CHECKPOINTS", 3)
    monkeypatch.setattr(small_networks, "JUDGED", 200)
    during = design.during("copy-gru", out=tmp_path, seeds=[0])
    sizes = {"out": tmp_path, "seeds": [0], "tasks": ["parity"], "archs": ["gru"], "iterations": 5}
    monkeypatch.setitem(small_networks.SOLVED, "parity", 0.0)
    first = design.sizes(**sizes)
    memory = design.memory("rnn", out=tmp_path, seeds=[0], most=40)
    monkeypatch.setattr(small_networks, "train_together", None)  # what is there is read
    assert design.sizes(**sizes).rows == first.rows
    for result in (during, first, memory):
        assert all(path.is_file() for path in result.files)
        assert any(path.suffix == ".png" for path in result.files)
    written = json.loads((tmp_path / "memory-rnn" / "results.json").read_text())
    assert len(written["lines"]["arms"]) == 2 + len(long_memory.ARMS_OF["rnn"])
    assert {row.quantity.key for row in during.rows} == {quantity.key for quantity in trainings.QUANTITIES}


def test_effects_of_training_are_found_where_they_happened():
    rows = [
        {"step": step, "accuracy": accuracy, "slow": slow, "kept": [kept], "values": [1, 1], "coordinates": "nan"}
        for step, accuracy, slow, kept in [
            (0, 0.1, "nan", 0.1),
            (10, 0.2, 0.99, 0.1),
            (20, 0.95, 0.9, 0.2),
            (30, 1, 1, 1),
        ]
    ]
    found = trainings.numbers({"checkpoints": rows})
    assert (found["memory_at"], found["learned_at"], found["formed_at"], found["lead"]) == (10, 20, 30, 10)
    assert found["number"] == 2
