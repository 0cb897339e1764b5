# ruff: noqa: D102  # models in tests say what they are by their names
"""The monitor: what it measures, that it disturbs nothing, and what it refuses."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.live.history import FIGURES, Checkpoint, History
from tests.recording.test_restoring import condition, equal


class Network(nn.Module):
    """A recurrent layer with dropout, batch norm and a readout: everything that a forward pass could disturb."""

    def __init__(self, units=6):
        super().__init__()
        self.rnn = nn.GRU(3, units, batch_first=True)
        self.norm = nn.BatchNorm1d(units)
        self.drop = nn.Dropout(0.3)
        self.readout = nn.Linear(units, 2)

    def forward(self, x):
        h = self.norm(self.rnn(x)[0].flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.readout(self.drop(h))


def network(seed=0, units=6):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Network(units)


def probe(sequences=24, steps=12, seed=1):
    return torch.randn(sequences, steps, 3, generator=torch.Generator().manual_seed(seed))


def trained(monitored, steps=12):
    """A short training with everything random, maybe watched; the weights, the optimizer and the random numbers."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  # what users may draw from
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watch = kann.Monitor(model, probe(), every=3, balance=True)
    for step in range(steps):
        scale = 1 + np.random.rand()  # noqa: NPY002
        loss = model(scale * torch.randn(8, 5, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if monitored:
            watch.update(step, loss=loss)  # between backward and step: gradients must stay
        optimizer.step()
    # Python's own random numbers are left out: beartype, which checks types in tests, draws from them.
    rng = (torch.get_rng_state(), np.random.get_state()[1].tolist())  # noqa: NPY002
    return model.state_dict(), optimizer.state_dict()["state"], rng, watch


def test_training_ends_with_the_same_bits():
    alone, watched = trained(False), trained(True)
    for left, right in zip(alone[:3], watched[:3], strict=True):
        assert equal(left, right)
    assert watched[3].history.steps.tolist() == [0, 3, 6, 9]
    assert np.isfinite(watched[3].history.loss).all()


def test_modes_buffers_gradients_and_hooks_are_as_before():
    model = network().train()
    model.drop.eval()
    model(probe()).sum().backward()
    before = copy.deepcopy(condition(model))
    kann.Monitor(model, probe(), every=1).update()
    after = condition(model)
    for key in before:
        assert equal(before[key], after[key]), key


def test_figures_are_those_of_fit_and_trust():
    model, quiet = (
        network(),
        0.1 * probe(48, 20),
    )  # on quiet inputs a network is nearly linear, so that modes are trusted
    found = kann.Monitor(model, quiet, every=1, groups=4).update(step=7)
    groups = kann.recording.record_grouped_moments(model, quiet, inputs=True, groups=4)
    koopman = kann.fit(sum(groups), rank=0.99, driven=True)
    judged = kann.trust(koopman, groups)
    slowest = koopman.modes[judged.trusted[0]]
    expected = {
        "slow": slowest.modulus,
        "radius": abs(koopman.eigenvalues[0]),
        "horizon": slowest.horizon(),
        "error": judged.error[0],
        "copying": judged.copying_error[0],
        "trusted": len(judged.trusted),
        "rank": koopman.rank,
        "coordinates": math.nan,
    }
    close = {f"koopman/{name}": pytest.approx(float(value), nan_ok=True) for name, value in expected.items()}
    assert found == close
    assert all(type(value) is float for value in found.values())


class LastStep(nn.Module):
    """A GRU whose output depends on one direction of its state."""

    def __init__(self):
        super().__init__()
        self.rnn, self.readout = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x):
        return self.readout(self.rnn(x)[0][:, -1])


def test_balanced_coordinates_are_those_of_the_probe_and_are_saved(tmp_path):
    model, path = LastStep(), tmp_path / "h.npz"
    monitor = kann.Monitor(model, probe(), every=1, balance={"sequences": 16})
    found = monitor.update()
    expected = kann.balance(model, probe(), sequences=16, progress=False)
    assert found["koopman/coordinates"] == pytest.approx(expected.count or math.nan, nan_ok=True)
    np.testing.assert_allclose(monitor.history[0].values, expected.values[:16])
    np.testing.assert_allclose(monitor.balance.directions, expected.directions)
    monitor.update()
    monitor.history.save(path)
    np.testing.assert_array_equal(kann.live.History.load(path).values, monitor.history.values)
    assert monitor.history.values.shape == (2, 16)


def test_it_works_at_every_nth_call_and_counts_by_itself():
    monitor = kann.Monitor(network(), probe(), every=3)
    found = [monitor.update() for _ in range(7)]
    assert [bool(each) for each in found] == [True, False, False] * 2 + [True]
    assert monitor.history.steps.tolist() == [0, 3, 6]
    assert math.isnan(monitor.history.loss[0])
    assert monitor.latest == found[6]


def set_weights(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0], ids=["nan", "inf", "constant states"])
def test_a_network_that_died_gives_nan_and_modes_go_on_afterwards(value, tmp_path):
    model = network()
    alive = copy.deepcopy(model.state_dict())
    monitor = kann.Monitor(model, probe(), every=1)
    monitor.update(loss=1.0)
    set_weights(model, value)
    found = monitor.update(loss=math.nan)
    assert set(found) == {f"koopman/{name}" for name in FIGURES}
    assert all(math.isnan(figure) for figure in found.values())
    model.load_state_dict(alive)
    monitor.update(loss=1.0)
    first, _, last = monitor.history
    np.testing.assert_array_equal(first.numbers, last.numbers)
    monitor.history.save(tmp_path / "h.npz")
    assert np.isnan(kann.live.History.load(tmp_path / "h.npz").figure("radius")).tolist() == [False, True, False]


def test_a_network_that_was_never_alive_can_be_saved(tmp_path):
    model = network()
    set_weights(model, math.nan)
    monitor = kann.Monitor(model, probe(), every=1)
    monitor.update()
    monitor.history.save(tmp_path / "h.npz")
    assert len(kann.live.History.load(tmp_path / "h.npz")[0].numbers) == 0


def operator(matrix, turn):
    """An operator of a linear system in rotated coordinates."""
    rng = np.random.default_rng(0)
    states = [rng.normal(size=(200, 1, len(matrix)))]
    for _ in range(6):
        states.append(states[-1] @ matrix)
    return kann.fit(np.concatenate(states, axis=1) @ turn)


def followed(history, koopman):
    """Numbers and eigenvalues of the modes of an operator, which is added to a history."""
    numbers, eigenvalues, directions = history.follow(koopman)
    modes = {"numbers": numbers, "eigenvalues": eigenvalues, "carried": np.ones(3), "trusted": np.ones(3, dtype=bool)}
    history.add(replace(Checkpoint.unknown(step=len(history), loss=0.0), **modes), directions)
    return dict(zip(numbers.tolist(), eigenvalues.real.round(3).tolist(), strict=True))


def test_modes_are_followed_by_eigenvalue_and_direction():
    turn, history = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0], History()
    assert followed(history, operator(np.diag([0.9, 0.5, 0.1]), turn)) == {0: 0.9, 1: 0.5, 2: 0.1}
    # The eigenvalues have changed places: only their directions tell which is which.
    assert followed(history, operator(np.diag([0.75, 0.8, 0.1]), turn)) == {0: 0.75, 1: 0.8, 2: 0.1}
    third = followed(history, operator(np.diag([0.75, -0.8, 0.1]), turn))
    assert third.keys() == {0, 2, 3}  # 0.8 → −0.8 is no continuation


def test_a_history_is_the_same_after_saving_and_goes_on(tmp_path):
    model = network()
    monitor = kann.Monitor(model, probe(), every=1)
    for step in (5, 10):
        monitor.update(step, loss=step)
        with torch.no_grad():
            model.rnn.weight_hh_l0 += 0.05 * torch.randn(18, 6, generator=torch.Generator().manual_seed(step))
    path = tmp_path / "history.npz"
    monitor.history.save(path)
    loaded = kann.live.History.load(path)
    assert loaded.steps.tolist() == [5, 10]
    for name in FIGURES:
        np.testing.assert_array_equal(loaded.figure(name), monitor.history.figure(name))
    for own, theirs in zip(monitor.history, loaded, strict=True):
        for name in ("numbers", "eigenvalues", "carried", "trusted"):
            np.testing.assert_array_equal(getattr(own, name), getattr(theirs, name))
    assert repr(loaded).startswith("History(2 checkpoints, steps 5 to 10, ")
    assert "slow" in loaded._repr_html_()
    assert loaded.traces().keys() == monitor.history.traces().keys()
    resumed = kann.Monitor(model, probe(), every=1, history=loaded)
    assert resumed.update() == monitor.update(11)
    np.testing.assert_array_equal(loaded[2].numbers, monitor.history[2].numbers)
    assert loaded.steps[2] == 11


def test_wrapped_models_are_run_without_their_wrapper():
    model = network()
    expected = kann.Monitor(model, probe(), every=1).update()
    compiled = torch.compile(model, backend="eager")
    assert kann.Monitor(compiled, probe(), every=1).update() == expected
    wrapped = nn.DataParallel(model)  # it goes to the GPU if there is one, which rounds differently
    assert kann.Monitor(wrapped, probe(), every=1).update() == pytest.approx(expected, rel=1e-3, nan_ok=True)


def test_other_layers_have_no_inputs_unless_asked():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
    found = kann.Monitor(model, probe(), every=1, layer="1").update()
    states = kann.record(model, probe(), layer="1")
    assert found["koopman/rank"] == kann.fit(states, rank=0.99).rank


def damaged(tmp_path, *, place=-1, directions=None, **changes):
    """Save a history with other fields in one of its checkpoints, and load it."""
    monitor = kann.Monitor(network(), probe(), every=1)
    monitor.update(0)
    monitor.update(1)
    history = monitor.history
    history.checkpoints[place] = replace(history[place], **changes)
    history.directions = history.directions if directions is None else directions
    history.save(tmp_path / "h.npz")
    return kann.live.History.load(tmp_path / "h.npz")


DAMAGED = {
    "steps": ({"place": 0, "step": 7}, "its steps are not in their order"),
    "numbers": ({"numbers": np.array([0, 0, 1, 2, 3])}, "two modes of the same number"),
    "carried": ({"carried": -np.ones(5)}, "modes hold numbers that they cannot hold"),
    "figures": ({"figures": {"slow": 1.0}}, "it holds 1 figures, not 8"),
    "directions": ({"directions": np.ones((1, 3), dtype=complex)}, "its directions are not those of the modes"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_histories_are_refused(name, tmp_path):
    changes, text = DAMAGED[name]
    with pytest.raises(kann.KannError, match=text):
        damaged(tmp_path, **changes)


def update(**options):
    given = {"model": network(), "probe": probe(), "every": 1} | options
    step, loss = given.pop("step", None), given.pop("loss", None)
    return kann.Monitor(given.pop("model"), given.pop("probe"), **given).update(step, loss=loss)


def twice(first, second):
    monitor = kann.Monitor(network(), probe(), every=1)
    monitor.update(first)
    monitor.update(second)


REFUSED = {
    "two sequences": (lambda: update(probe=probe(2)), "the probe holds 2 sequences of two steps or more"),
    "single steps": (lambda: update(probe=probe(20, 1)), "the probe holds 0 sequences of two steps or more"),
    "iterator": (lambda: update(probe=iter([probe()])), "probe is an iterator"),
    "every": (lambda: update(every=0), "every=0 never updates"),
    "groups": (lambda: update(groups=2), "groups=2 leaves too little to hold out"),
    "layers": (lambda: update(layer=["rnn", "norm"]), "names several layers"),
    "model": (lambda: update(model=3), "model is int"),
    "loss": (lambda: update(loss="low"), "loss='low' is no number"),
    "step": (lambda: update(step=-1), "step=-1"),
    "order": (lambda: twice(5, 5), "step=5 does not follow step 5"),
    "history": (lambda: update(history=3), "history=3 is no History"),
    "figure": (lambda: kann.live.History().figure("fast"), "name='fast' is unknown; pass 'slow' or"),
    "empty": (lambda: kann.live.History().save("h.npz"), "the history is empty, so there is nothing to save"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_watched_is_refused(case, untyped):
    call, text = REFUSED[case]
    with pytest.raises(kann.KannError, match=text):
        call()
