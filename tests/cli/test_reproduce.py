import importlib
import json

import pytest
from kann_experiments import copy as copy_module
from kann_experiments.copy import analysis
from kann_experiments.copy import task as task_module
from kann_experiments.results import Reproduction

from tests.experiments.tiny import tiny


@pytest.fixture(autouse=True)
def small_networks(monkeypatch):
    """Networks that are trained in a second, and no figures."""
    monkeypatch.setattr(copy_module, "draw_figures", lambda studies, *, folder: ())
    for slow in ("live_numbers", "stand_in_numbers"):
        monkeypatch.setattr(analysis, slow, lambda *_, **__: {})
    for arch in ("dtriv", "dtriv100", "rnn", "gru", "lstm"):
        monkeypatch.setitem(task_module.CONFIGS, arch, tiny(arch.removesuffix("100"), iterations=30))


def test_the_table_and_the_results(run, tmp_path):
    result = run("reproduce", "copy", "--out", tmp_path, "--seed", 3, "--seeds", 2)
    assert result.exit_code == 0, result.output
    assert "copy task, dtriv, 2 seeds" in result.stdout
    lines = {line.strip().split("  ")[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert "0.021" in lines["relative error of one step, fitted sequences"]
    assert "does not hold" in lines["relative error of one step, fitted sequences"]
    assert "44 of 47" in lines["eigenvalues within 0.05 of unit modulus, ||λ| − 1| < 0.05"]
    assert "Trained otherwise than the paper's table says: units 12 (not 48)" in result.stdout
    content = json.loads((tmp_path / "dtriv" / "results.json").read_text())
    assert content["seeds"] == [3, 4]


def test_one_architecture_or_all(run, tmp_path):
    assert run("reproduce", "copy", "--arch", "gru", "--seeds", 1, "--out", tmp_path / "one").exit_code == 0
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["gru"]
    result = run("reproduce", "copy", "--arch", "all", "--seeds", 1, "--out", tmp_path / "all")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"dtriv", "dtriv100", "rnn", "gru", "lstm"}
    assert result.stdout.count("copy task,") == 5


def test_a_failure_is_one_line_without_a_traceback(run, tmp_path):
    (tmp_path / "file").write_text("here")
    for arguments, message in (
        (["--out", tmp_path / "file" / "below"], "error: results cannot be written to"),
        (["--out", tmp_path, "--device", "cuda:77"], "error: device 'cuda:77' cannot be used"),
    ):
        result = run("reproduce", "copy", *arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith(message)
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""


def test_a_damaged_network_is_one_line_too(run, tmp_path):
    (tmp_path / "dtriv" / "seed-0").mkdir(parents=True)
    (tmp_path / "dtriv" / "seed-0" / "network.safetensors").write_bytes(b"damaged")
    result = run("reproduce", "copy", "--out", tmp_path)
    assert result.exit_code == 1
    assert "is no whole checkpoint" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_interrupt_says_how_to_go_on(run, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(copy_module, "trained", interrupted)
    result = run("reproduce", "copy", "--out", tmp_path)
    assert result.exit_code == 130
    assert "run the same command again to go on" in result.stderr


@pytest.mark.parametrize(("task", "archs"), [("ecg", ["lstm", "gru"]), ("sentiment", ["gru", "lstm", "rnn"])])
def test_other_experiments_are_called_for_one_architecture_or_all(run, tmp_path, monkeypatch, task, archs):
    called = []

    def reproduce(arch, **settings):
        called.append((arch, settings))
        files = (tmp_path / "results.json",)
        return Reproduction(title=f"{task}, {arch}", seeds=(2,), rows=(), notes=("rate 1",), studies=(), files=files)

    monkeypatch.setattr(importlib.import_module(f"kann_experiments.{task}"), "reproduce", reproduce)
    result = run("reproduce", task, "--arch", "all", "--seed", 2, "--out", tmp_path, "--device", "cuda", "--as-printed")
    assert result.exit_code == 0, result.output
    settings = {"device": "cuda", "out": tmp_path, "seeds": range(2, 3), "printed": True}
    settings |= {"notebook": False} if task == "ecg" else {"pieces": None, "weights": None}
    assert called == [(arch, settings) for arch in archs]
    assert f"{task}, {archs[0]}, 1 seed" in result.stdout
    assert run("reproduce", task).exit_code == 0
    assert called[-1][0] == archs[0]


@pytest.mark.parametrize(
    ("experiment", "package", "options", "settings"),
    [
        (
            "compare",
            "comparing",
            ["--seed", 1, "--seeds", 2, "--fresh", 3, "--angular-pairs", 4],
            {"seeds": range(1, 3), "fresh": range(3, 6), "angular_pairs": 4, "angular_seeds": 0},
        ),
        (
            "training",
            "learning",
            ["--seeds", 2, "--shuffled"],
            {"arch": "gru", "seeds": range(2), "shuffled": True},
        ),
    ],
)
def test_experiments_with_many_networks_get_their_options(
    run, tmp_path, monkeypatch, experiment, package, options, settings
):
    called = []

    def reproduce(*task, **given):
        called.append(given)
        files = (tmp_path / "results.json",)
        return Reproduction(title=" ".join(task), seeds=(0,), rows=(), notes=(), studies=(), files=files)

    monkeypatch.setattr(importlib.import_module(f"kann_experiments.{package}"), "reproduce", reproduce)
    result = run("reproduce", experiment, "--out", tmp_path, *options)
    assert result.exit_code == 0, result.output
    assert called[0] == settings | {"out": tmp_path}


def test_design_runs_one_part_all_or_a_little_of_each(run, tmp_path, monkeypatch):
    from kann_experiments import design

    called = []

    def results(name, *, out):
        called.append(name)
        files = (out / "results.json",)
        yield Reproduction(title=name, seeds=(0,), rows=(), notes=(), studies=(), files=files)

    monkeypatch.setattr(design, "reproduce", results)
    monkeypatch.setattr(design, "quick", lambda out: results("quick", out=out))
    assert run("reproduce", "design", "--part", "memory", "--out", tmp_path).exit_code == 0
    assert run("reproduce", "design", "--out", tmp_path).exit_code == 0
    assert run("reproduce", "design", "--quick", "--out", tmp_path).exit_code == 0
    assert called == ["memory", "during", "sizes", "memory", "quick"]
