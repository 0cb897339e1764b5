"""A small Mamba on tasks of memory: the tasks, both forms of the network, and the experiment, made small."""

import json
import math

import numpy as np
import pytest
import torch
from kann_experiments import state_space
from kann_experiments.state_space import analysis
from kann_experiments.state_space.networks import CHANNELS, KERNEL, LSTM, Mamba, Transformer, recurrent_form
from kann_experiments.state_space.task import IGNORED, TASKS, brackets, copying, recall, right
from kann_experiments.training import seeded

import kann


def rows(*lines):
    return torch.tensor(lines)


def test_depth_is_the_number_of_open_brackets():
    tokens = rows([0, 0, 2, 1, 0, 1, 1])  # ( ( · ) ( ) )
    assert brackets(steps=7).answers(tokens).tolist() == [[1, 2, 2, 1, 2, 1, 0]]


def test_drawn_brackets_stay_between_zero_and_the_deepest(rng):
    task = brackets(deepest=2, steps=60)
    tokens, depth = task.sequences(rng, 50)
    assert (depth.min(), depth.max()) == (0, 2)
    assert set(tokens.unique().tolist()) == {0, 1, 2}


def test_recall_answers_the_value_of_the_key_that_is_asked():
    task = recall(keys=3, values=2, pairs=2, blanks=1)
    tokens = rows([2, 3, 0, 4, 5, 0], [2, 3, 0, 4, 5, 2])  # values are 3 and 4, the blank is 5
    n = IGNORED
    assert task.answers(tokens).tolist() == [[n, n, n, n, n, 1], [n, n, n, n, n, 0]]


def test_each_key_of_a_drawn_sequence_occurs_once_and_one_is_asked(rng):
    task = recall(keys=4, values=3, pairs=3, blanks=2)
    tokens, answers = task.sequences(rng, 100)
    assert task.steps == tokens.shape[1] == 9
    keys = tokens[:, 0:6:2]
    assert (keys < 4).all()
    assert all(len(set(own)) == 3 for own in keys.tolist())
    assert ((keys == tokens[:, -1:]).sum(dim=1) == 1).all()
    assert (tokens[:, 6:8] == task.idle).all()
    assert set(answers[:, -1].tolist()) == {0, 1, 2}


def test_copying_answers_the_letters_in_their_order():
    task = copying(letters=3, length=2, blanks=1)
    assert task.answers(rows([2, 0, 3, 4, 4])).tolist() == [[IGNORED, IGNORED, IGNORED, 2, 0]]


@pytest.mark.parametrize("name", TASKS)
def test_only_steps_that_count_are_judged(name, rng):
    task = TASKS[name]()
    tokens, answers = task.sequences(rng, 20)
    assert tokens.max() < task.tokens
    assert (task.idle == tokens).any()
    outputs = torch.nn.functional.one_hot(answers.clamp(min=0), task.classes).float()
    assert right(outputs, answers) == 1
    assert right(-outputs, answers) == 0


def mamba(state=3):
    with seeded(0):
        network = Mamba(5, 4, state=state)
    with torch.no_grad():  # larger steps than at the start, so that what is kept differs from token to token
        network.block.step_size.bias.add_(3.0)
    return network.eval()


TOKENS = torch.arange(24).reshape(2, 12) * 3 % 5


def test_the_step_form_gives_the_outputs_of_the_scan():
    network = mamba()
    net = recurrent_form(network, TOKENS)
    with torch.no_grad():
        torch.testing.assert_close(net(TOKENS), network(TOKENS), atol=1e-5, rtol=1e-4)
    assert net.parts == {"state": ((CHANNELS, 3), (CHANNELS, KERNEL - 1))}


def test_the_recorded_state_is_the_sum_of_what_was_written_and_kept():
    network = mamba()
    states = kann.record(recurrent_form(network, TOKENS), TOKENS, layer="layers.state", progress=False)
    block = network.block
    with torch.no_grad():
        u = block.convolved(block.into(block.norm(network.embedding(TOKENS))).chunk(2, dim=-1)[0])
        decays, writes, _ = (own.double() for own in block.selected(u))
    np.testing.assert_allclose(network.decays(TOKENS), decays, rtol=1e-6)
    for t in (0, 5, 11):
        kept = [decays[:, s + 1 : t + 1].prod(dim=1) * writes[:, s] for s in range(t + 1)]
        own = states.padded()[:, t, : CHANNELS * 3]
        np.testing.assert_allclose(own, torch.stack(kept).sum(dim=0).flatten(1), atol=1e-5)


def test_a_replaced_state_goes_on_as_the_other_sequence():
    net = recurrent_form(mamba(), TOKENS)
    calls = []

    def exchange(module, arguments, output):
        calls.append(output)
        return output.flip(0) if len(calls) == 5 else None

    handle = net.layers["state"].register_forward_hook(exchange)
    with torch.no_grad():
        exchanged = net(TOKENS)
        handle.remove()
        joined = torch.cat([TOKENS.flip(0)[:, :5], TOKENS[:, 5:]], dim=1)
        torch.testing.assert_close(exchanged[:, 5:], net(joined)[:, 5:], atol=1e-6, rtol=1e-5)
        assert not torch.allclose(exchanged[:, 5:], net(TOKENS)[:, 5:], atol=1e-3)


@pytest.mark.parametrize(
    "network", [mamba(), LSTM(5, 4), Transformer(5, 4, steps=12)], ids=["mamba", "lstm", "transformer"]
)
def test_later_tokens_change_no_earlier_output(network):
    changed = TOKENS.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 5
    with torch.no_grad():
        before, after = network.eval()(TOKENS), network(changed)
    torch.testing.assert_close(before[:, :8], after[:, :8], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(before[:, 8:], after[:, 8:], atol=1e-3)


def test_coordinates_needed_keep_enough_from_there_on():
    assert analysis.needed([0.1, 0.95, 0.5, 0.92, 0.9, 1.0]) == 8
    assert analysis.needed([0.9] * 6) == 1
    assert analysis.needed([1, 1, 1, 1, 1, 0.5]) == math.inf


def test_a_token_lasts_until_less_than_half_of_it_is_left_for_good():
    assert analysis.lasts([0, 1, 2, 4], [1.0, 0.2, 0.6, 0.4]) == 3
    assert analysis.lasts([0, 1, 2, 4], [1.0, 0.2, 0.1, 0.7]) == math.inf
    assert analysis.lasts([0, 1, 2, 4], [0.2, 1.0, 0.0, 0.0]) == 1.5


def test_quantiles_are_weighted():
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 8.0])
    assert analysis.weighted_quantiles(values, weights, 3).tolist() == [1.0, 2.0, 3.0]


def test_the_operator_of_idle_steps_has_the_decays_of_a_linear_recurrence(rng):
    # h keeps 0.9 and 0.5 of itself while the idle token is read, and is drawn anew by all others.
    task = brackets(steps=40)
    tokens = task.draw(rng, 60)
    states = np.zeros((60, 40, 2))
    for t in range(1, 40):
        drawn = rng.normal(size=(60, 2))
        is_idle = (tokens[:, t] == task.idle).numpy()[:, None]
        states[:, t] = np.where(is_idle, states[:, t - 1] * [0.9, 0.5], drawn)
    states = kann.States.from_padded(states)
    numbers = analysis.idle_numbers(states, tokens, kann.Balance.of_states(states), task)
    assert numbers["slowest"] == pytest.approx(0.9, abs=1e-6)
    assert numbers["middle"] == pytest.approx(0.7, abs=1e-6)


def test_the_experiment_runs_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "BALANCED", 12)
    monkeypatch.setattr(analysis, "CHANGED", 8)
    monkeypatch.setattr(analysis, "TESTED", 50)
    monkeypatch.setattr(analysis, "COUNTS", (1, 4))
    monkeypatch.setattr(state_space, "COUNTS", (1, 4))
    monkeypatch.setattr("kann_experiments.state_space.figures.COUNTS", (1, 4))
    monkeypatch.setitem(TASKS, "recall", lambda: recall(keys=3, values=2, pairs=2, blanks=3))
    monkeypatch.setattr(state_space, "SIZES", (2, 8))
    small = {"out": tmp_path, "seeds": [0], "iterations": 3, "size": (24, 12)}
    found, sizes = state_space.study("recall", **small), state_space.sizes(**small)
    monkeypatch.setattr(state_space, "measure", None)  # what is there is read
    again = state_space.study("recall", **small)
    assert [row.cells() for row in again.rows] == [row.cells() for row in found.rows]
    assert {path.stem for path in found.files} == {"results", "kept", "lasting"}
    measured = {row.quantity.key for row in found.rows}
    wanted = {quantity.key for quantity in analysis.quantities()}
    assert wanted - measured == {key for key in wanted if key.startswith("mamba_") and "readout" in key}
    lines = json.loads((tmp_path / "recall" / "results.json").read_text())["lines"]
    assert [line.count("|") for line in lines["kept"]] == [5] * (2 + 4 + 5)
    assert len(lines["needed"]) == 4
    assert len(json.loads(sizes.files[0].read_text())["lines"]["sizes"]) == 4
    assert {row.quantity.key for row in sizes.rows} >= {"mamba_lasts_2", "mamba_lasts_8"}
