"""The flip-flop: its sequences, a small network that learns it, and what is measured of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from kann_experiments.flipflop import analysis, figures, reproduce, task, trained
from kann_experiments.flipflop.analysis import QUANTITIES, effect_numbers, point_numbers, same_bits, study_network
from kann_experiments.flipflop.task import CONFIGS, Task
from kann_experiments.results import expected
from kann_experiments.training import Training

import kann

SMALL = replace(
    CONFIGS["gru"],
    units=12,
    rate=1e-2,
    batch=32,
    training=Training(iterations=150, schedule="linear", clip=1.0),
    task=Task(steps=40),
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(task.CONFIGS, "gru", SMALL)
    sizes = {"RANK": 6, "SEQUENCES": 24, "STEPS": 40, "STARTS": 16, "LIVE_SEQUENCES": 24, "LIVE_STEPS": 10}
    for name, value in {**sizes, "EFFECT_COUNTS": (1, 3)}.items():
        monkeypatch.setattr(analysis, name, value)
    monkeypatch.setitem(figures.STYLE, "figure.dpi", 60)


def test_answers_are_the_last_pulses():
    pulses, answer = Task().draw(np.random.default_rng(0), 7, rate=0.2, steps=30)
    for sequence in range(7):
        for bit in range(3):
            held = None
            for t in range(30):
                if pulses[sequence, t, bit]:
                    held = pulses[sequence, t, bit]
                assert answer[sequence, t, bit] == held


def test_pulses_come_at_the_rate():
    pulses, _ = Task().draw(np.random.default_rng(0), 400, rate=0.1, steps=101)
    assert abs(float((pulses[:, 1:] != 0).float().mean()) - 0.1) < 0.005
    assert bool((pulses[:, 0] != 0).all())
    mixed, _ = Task().draw(np.random.default_rng(0), 400)
    rates = (mixed[:, 1:] != 0).float().mean(dim=(1, 2))
    assert float(rates.min()) < 0.03
    assert float(rates.max()) > 0.2


def test_what_is_asked_is_measured():
    assert set(expected("flipflop")) <= {quantity.key for quantity in QUANTITIES}


def test_the_experiment_runs_and_can_be_repeated(small, tmp_path):
    result = reproduce(out=tmp_path / "flipflop", seeds=(0,))
    assert {row.quantity.key for row in result.rows} == {quantity.key for quantity in QUANTITIES}
    content = json.loads((tmp_path / "flipflop" / "gru" / "results.json").read_text())
    assert content["leading"]["0"]["10"]["bilinear"] == sorted(content["leading"]["0"]["10"]["bilinear"], reverse=True)
    assert all(path.stat().st_size for path in result.files)
    assert {path.stem for path in result.files} == {"results", "memories", "effects", "spectra"}
    study = result.studies[0]
    # Also a network that is hardly trained: the bilinear operator predicts its steps better than the driven one.
    for name in ("30", "10"):
        assert study.numbers[f"gated_error_{name}"] < study.numbers[f"driven_error_{name}"]
    network = trained(SMALL, seed=0, folder=tmp_path / "flipflop" / "gru" / "seed-0")
    again = study_network(network, SMALL, seed=0)
    assert again.numbers == pytest.approx(study.numbers, nan_ok=True)


def test_bits_that_are_the_same():
    before = np.array([[[1.0, -2.0], [0.5, 0.5]], [[1.0, 1.0], [1.0, 1.0]]])
    np.testing.assert_array_equal(same_bits(before * [1, -1], before), [0.5, 0.5])


def test_networks_without_fixed_points_have_no_modulus():
    empty = kann.find_fixed_points(lambda h, x: h + 1, np.zeros((2, 3)), inputs=np.zeros(1), slow_tolerance=1e-9)
    numbers = point_numbers(empty)
    assert numbers["stable_points"] == 0
    assert np.isnan(numbers["point_modulus"])


@pytest.mark.usefixtures("untyped")
def test_effects_are_those_of_three_coordinates():
    class Kept:
        def __init__(self, offset):
            names = ("modes", "pca", "readout", "random")
            self.kept = {name: np.arange(5) / 10 + offset + i for i, name in enumerate(names)}

    numbers = effect_numbers({"modes": Kept(0.0), "driven": Kept(0.5)})
    assert numbers["kept_modes"] == pytest.approx(0.2)
    assert numbers["kept_pca"] == pytest.approx(1.2)
    assert numbers["kept_driven"] == pytest.approx(0.7)
