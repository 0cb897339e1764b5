"""The experiments with many networks: which are alike, and when they learn, on trainings of a few iterations."""

import json

import numpy as np
import pytest
from kann_experiments import comparing, learning
from kann_experiments.comparing import methods
from kann_experiments.comparing.methods import Measured, measured_by_all, pairs_of_each_kind
from kann_experiments.comparing.networks import CONFIGS, Trained, train_all
from kann_experiments.learning.runs import EVERY, Watched, _parts

import kann
from kann.live.history import FIGURES, Checkpoint, History


def test_networks_are_trained_once_and_compared_by_every_method(tmp_path):
    found = comparing.reproduce(out=tmp_path, seeds=[0], iterations=2)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert len(written) == 6
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert len(numbers["networks"]) == 6
    own = {f"{kind}, {weights} weights" for kind in ("response", "spectrum") for weights in ("carried", "equal")}
    assert own | {"CKA"} <= {each["method"] for each in numbers["tried"]}
    for each in numbers["tried"]:
        matrix = np.array(each["matrix"])
        assert matrix.shape == (6, 6)
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-9)
    assert not numbers["judged"]
    assert found.title == "6 networks, 15 pairs"
    list(train_all(tmp_path, seeds=[0], iterations=2))
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_settings_are_chosen_on_some_networks_and_judged_on_others(tmp_path, monkeypatch):
    """One setting is right for the seeds on which settings are chosen, another one for the fresh seeds."""
    names = ("gru", "lstm")
    sets = {seed: [trained(arch, np.ones((5, 2)), seed=seed) for arch in names for _ in range(2)] for seed in (0, 1)}
    right = np.array([[0, 1, 2, 2], [1, 0, 2, 2], [2, 2, 0, 1], [2, 2, 1, 0.0]])
    wrong = right[[0, 2, 1, 3]][:, [0, 2, 1, 3]]

    def measured(networks):
        if not networks:
            return []
        first, second = (right, wrong) if networks[0].seed == 0 else (wrong, right)
        settings = {"first": first, "second": second}
        return [Measured(method="m", setting=name, matrix=each, seconds=1.0) for name, each in settings.items()]

    monkeypatch.setattr(comparing, "train_all", lambda out, *, seeds, iterations: [n for s in seeds for n in sets[s]])
    monkeypatch.setattr(comparing, "measured_by_all", measured)
    comparing.reproduce(out=tmp_path, seeds=[0], fresh=[1])
    numbers = json.loads((tmp_path / "results.json").read_text())["numbers"]
    assert numbers["m (first): same architecture"] == 1
    assert numbers["fresh networks, m (first): same architecture"] == 0
    assert numbers["fresh networks, m, best of 2 settings: same architecture"] == 1


def test_pairs_are_drawn_of_every_kind():
    networks = [trained(arch, np.ones((5, 2)), task=task, seed=s) for task in "ab" for arch in "012" for s in range(3)]
    found = pairs_of_each_kind(networks, each=4)
    assert {kind: len(pairs) for kind, pairs in found.items()} == dict.fromkeys(
        ("same task and architecture", "same task", "same architecture", "same nothing"), 4
    )
    for kind, pairs in found.items():
        assert len({(a.name, b.name) for a, b in pairs}) == 4
        for a, b in pairs:
            assert (a.task == b.task, a.arch == b.arch) == ("task" in kind, "architecture" in kind)
    assert len(pairs_of_each_kind(networks, each=100)["same task and architecture"]) == 6 * 3


def test_the_angular_distance_of_all_pairs_is_estimated_from_some(monkeypatch):
    networks = [trained(arch, np.ones((5, 2)), seed=seed) for arch in ("gru", "lstm") for seed in range(3)]
    seconds = {True: 1.0, False: 3.0}  # of pairs of one architecture, and of two

    def angular(pair):
        taken = seconds[pair[0].arch == pair[1].arch]
        return Measured(method="DSA, angular", setting="", matrix=np.zeros((2, 2)), seconds=taken)

    monkeypatch.setattr(methods, "angular", angular)
    found = comparing._angular(networks, pairs=2, seeds=[])
    assert found["DSA, angular: CPU seconds for all pairs, from the means of each kind"] == 6 * 1 + 9 * 3
    assert found["DSA, angular, same task: CPU seconds a pair, most of 2"] == 3


def test_cka_of_rotated_states_is_one(rng):
    values = rng.normal(size=(50, 4))
    turned = 3 * values @ np.linalg.qr(rng.normal(size=(4, 4)))[0]
    states = [values, turned, rng.normal(size=(50, 4))]
    networks = [trained("gru", each, seed=seed) for seed, each in enumerate(states)]
    (found,) = [each for each in measured_by_all(networks) if each.method == "CKA"]
    assert found.matrix[0, 1] == pytest.approx(0, abs=1e-12)
    assert found.matrix[0, 2] > 0.5


def trained(arch, common, *, task="copy", seed=0):
    rng = np.random.default_rng(seed)
    states = kann.States.from_sequences(list(rng.normal(size=(12, 20, 3))), inputs=list(rng.normal(size=(12, 20, 2))))
    return Trained(task=task, arch=arch, seed=seed, accuracy=1.0, states=states, common=common)


def test_the_nearest_network_decides():
    matrix = np.array([[0, 1, 5], [1, 0, 5], [5, 4, 0.0]])
    found = Measured(method="m", setting="s", matrix=matrix, seconds=1.0)
    assert found.right(["a", "a", "b"]) == pytest.approx(2 / 3)


def run_with(slow, losses, gradients):
    history = History()
    for place, value in enumerate(slow):
        figures = dict.fromkeys(FIGURES, 0.0) | {"slow": value}
        unknown = Checkpoint.unknown(step=EVERY * place, loss=1.0)
        history.add(
            Checkpoint(
                step=unknown.step,
                loss=1.0,
                figures=figures,
                numbers=unknown.numbers,
                eigenvalues=unknown.eigenvalues,
                carried=unknown.carried,
                trusted=unknown.trusted,
            )
        )
    return Watched(task="copy", seed=0, history=history, losses=losses, gradients=gradients)


def test_times_are_when_things_happened():
    losses = np.ones(200)
    losses[100:] = 0.01
    gradients = np.ones(200)
    gradients[0], gradients[80] = 99, 9  # the first iterations do not count
    found = learning.times_of(run_with([0.5, np.nan, 0.985, 0.99], losses, gradients))
    assert (found.circle, found.gradient) == (2 * EVERY, 80)
    assert found.loss == 100 + EVERY - 2  # when all but one or two of the last twenty are low
    assert found.pays == 100 + EVERY - 4  # of these, three or four may still be at 1: without memory it is 0.193
    assert learning.times_of(run_with([0.5, 0.96], losses, gradients), circle=0.95).circle == EVERY
    never = learning.times_of(run_with([0.5], np.ones(200), gradients))
    assert np.isnan([never.circle, never.loss]).all()
    assert (found.numbers["reached"], never.numbers["reached"]) == (1, 0)


@pytest.mark.parametrize("task", ["copy", "flipflop"])
def test_trainings_are_watched_once(task, tmp_path):
    found = learning.reproduce(task, out=tmp_path, seeds=[0], iterations=EVERY + 1)
    assert [path.name for path in found.files] == ["results.json", "film.html"]
    history = tmp_path / "gru" / task / "seed-0" / "history.npz"
    before = history.stat().st_mtime_ns
    assert History.load(history).steps.tolist() == [0, EVERY]
    learning.reproduce(task, out=tmp_path, seeds=[0], iterations=EVERY + 1)
    assert history.stat().st_mtime_ns == before


@pytest.mark.parametrize("shuffled", [False, True])
def test_with_shuffled_answers_nothing_is_learnt(shuffled):
    """Of the same seed and the same sequences, the loss falls only with their own answers."""
    _, optimizer, loss = _parts("flipflop", CONFIGS["flipflop", "gru"], 0, shuffled=shuffled)
    losses = []
    for iteration in range(40):
        losses.append(value := loss(iteration))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert (losses[-1] > 0.9 * losses[0]) == shuffled
    assert (losses[-1] < 0.7 * losses[0]) != shuffled
