"""The commands that work on a user's own files: record, fit, report."""

import doctest
import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import kann
from kann.cli import loading
from kann.data.files import save_npz
from tests.reporting.html_pages import turning_states

MODEL = """
import torch

def build():
    return torch.nn.GRU(3, 4, batch_first=True)

def nothing():
    return 7
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """The folder of the command has states, an operator, data and a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "model_for_tests", raising=False)
    states = turning_states()
    states.save("states.zarr")
    kann.fit(states).save("operator.npz")
    kann.Moments.of(states).save("moments.npz")
    (tmp_path / "model_for_tests.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    np.save("data.npy", rng.normal(size=(5, 7, 3)).astype(np.float32))
    np.savez("data.npz", data=rng.normal(size=(3, 7, 3)).astype(np.float32), lengths=np.array([7, 2, 4]))


@pytest.mark.parametrize("source", ["states.zarr", "moments.npz"])
def test_fit_writes_the_operator(run, source):
    result = run("fit", source, "-o", "new.npz")
    assert result.exit_code == 0, result.output
    assert "rank 5" in result.stdout
    np.testing.assert_allclose(kann.Koopman.load("new.npz").matrix, kann.fit(turning_states()).matrix, atol=1e-9)


def test_fit_takes_its_settings_and_prints_json(run):
    result = run("fit", "states.zarr", "-o", "new.npz", "--rank", "2", "--basis", "pca", "--json")
    assert result.exit_code == 0, result.output
    numbers = json.loads(result.stdout)
    assert numbers["rank"] == 2
    assert len(numbers["modes"]) in (1, 2)
    assert np.abs(kann.Koopman.load("new.npz").mean).max() > 0
    assert json.loads(run("fit", "states.zarr", "-o", "n.npz", "--rank", "0.5", "--json").stdout)["rank"] < 5


def test_record_then_fit_then_report(run, tmp_path):
    torch.manual_seed(1)
    network = torch.nn.GRU(3, 4, batch_first=True)
    save_file(network.state_dict(), "weights.safetensors")
    torch.save(network.state_dict(), "weights.pt")
    expected = kann.record(network, torch.from_numpy(np.load("data.npy")), progress=False)
    for name in ("weights.safetensors", "weights.pt"):
        arguments = ("--weights", name, "--data", "data.npy", "-o", "s.zarr", "--inputs", "--force", "--json")
        result = run("record", "model_for_tests:build", *arguments)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["states"] == 35
        np.testing.assert_allclose(kann.States.open("s.zarr").values[:], expected.values, atol=1e-6)
    assert run("fit", "s.zarr", "-o", "auto.npz").exit_code == 0
    assert run("fit", "s.zarr", "-o", "driven.npz", "--driven").exit_code == 0
    words = [["a"] * 7] * 5
    (tmp_path / "tokens.json").write_text(json.dumps(words))
    (tmp_path / "labels.json").write_text(json.dumps([1, 2, 3, 4, 5]))
    files = ("--tokens", "tokens.json", "--labels", "labels.json", "--driven", "driven.npz")
    result = run("report", "auto.npz", "s.zarr", *files, "--title", "Ours")
    assert result.exit_code == 0, result.output
    assert "<title>Ours</title>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_record_reads_lengths(run):
    result = run("record", "model_for_tests:build", "--data", "data.npz", "-o", "s.zarr")
    assert result.exit_code == 0, result.output
    assert kann.States.open("s.zarr").lengths.tolist() == [7, 2, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "nowhere.zarr", "-o", "n.npz"], "no states at nowhere.zarr"),
        (["fit", "operator.npz", "-o", "n.npz"], "holds kann.Koopman, not kann.Moments"),
        (["fit", "labels.txt.npz", "-o", "n.npz"], "labels.txt.npz"),
        (["fit", "named.npz", "-o", "n.npz"], "named.npz"),
        (["fit", "steering.npz", "-o", "n.npz"], "steering.npz holds ␛]0;owned␇"),
        (["fit", "states.zarr"], "operator.npz exists; pass --force"),
        (["fit", "states.zarr", "-o", "n.npz", "--rank", "nine"], "--rank nine is not a number"),
        (["fit", "states.zarr", "-o", "n.npz", "--rank", "80"], "rank=80 exceeds"),
        (["fit", "states.zarr", "-o", "n.npz", "--driven"], "driven=True needs the inputs"),
        (["report", "moments.npz", "states.zarr"], "holds kann.Moments, not kann.Koopman"),
        (["report", "operator.npz", "data.npy"], "the operator has 5"),
        (["report", "operator.npz", "states.zarr", "-o", "folder", "--force"], "folder is a folder"),
        (["report", "operator.npz", "states.zarr", "--tokens", "numbers.json"], "tokens of sequence 0 are int"),
        (["report", "operator.npz", "states.zarr", "--tokens", "strings.json"], "tokens of sequence 0 are str"),
        (["highlight", "Good.", "--html", "folder", "--force"], "folder is a folder"),
        (["report", "operator.npz", "states.zarr", "--tokens", "operator.npz"], "operator.npz is not JSON"),
        (["report", "operator.npz", "states.zarr", "--tokens", "object.json"], "object.json holds a dict, not a list"),
        (
            ["record", "model_for_tests:build", "--data", "labels.txt.npz", "-o", "n.zarr"],
            "labels.txt.npz holds no data",
        ),
        (["record", "model_for_tests:build", "--data", "named.npz", "-o", "n.zarr"], "named.npz holds no data"),
        (["record", "model_for_tests:build", "--data", "named.npy", "-o", "n.zarr"], "named.npy holds no data"),
        (["record", "model_for_tests:build", "--data", "words.npy", "-o", "n.zarr"], "words.npy holds no data"),
        (["record", ":build", "--data", "data.npy", "-o", "n.zarr"], "names no function"),
        (["record", "model_for_tests", "--data", "data.npy", "-o", "n.zarr"], "names no function"),
        (["record", "model_for_tests:absent", "--data", "data.npy", "-o", "n.zarr"], "cannot be imported"),
        (["record", "no_such_module:f", "--data", "data.npy", "-o", "n.zarr"], "cannot be imported"),
        (["record", "model_for_tests:nothing", "--data", "data.npy", "-o", "n.zarr"], "returned int"),
        (["record", "model_for_tests:build", "--data", "nowhere.npy", "-o", "n.zarr"], "no data at nowhere.npy"),
        (["record", "model_for_tests:build", "--data", "object.json", "-o", "n.zarr"], "object.json holds no data"),
        (["record", "model_for_tests:build", "--data", "data.npy", "-o", "states.zarr"], "states.zarr exists"),
        (
            ["record", "model_for_tests:build", "--data", "data.npy", "-o", "n.zarr", "--weights", "data.npy"],
            "data.npy holds no weights",
        ),
        (
            ["record", "model_for_tests:build", "--data", "data.npy", "-o", "n.zarr", "--weights", "nowhere.pt"],
            "no weights at nowhere.pt",
        ),
        (
            ["record", "model_for_tests:build", "--data", "data.npy", "-o", "n.zarr", "--weights", "other.pt"],
            "other.pt does not fit the model",
        ),
        (
            ["record", "model_for_tests:build", "--data", "data.npy", "-o", "n.zarr", "--layer", "*"],
            "may name several layers",
        ),
    ],
)
def test_bad_input_is_told_in_one_line(run, tmp_path, arguments, message):
    (tmp_path / "object.json").write_text("{}")
    (tmp_path / "labels.txt.npz").write_bytes(b"no archive")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").touch()
    (tmp_path / "numbers.json").write_text("[1, 1, 1, 1, 1, 1]")
    (tmp_path / "strings.json").write_text(json.dumps(["a" * length for length in range(30, 36)]))
    (tmp_path / "named.npz").write_bytes((tmp_path / "data.npy").read_bytes())
    (tmp_path / "named.npy").write_bytes((tmp_path / "data.npz").read_bytes())
    np.save("words.npy", np.array([["a", "b"]]))
    save_npz("steering.npz", kind="\x1b]0;owned\x07", version=1, arrays={})
    torch.save({"weight": torch.zeros(1)}, "other.pt")
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / "n.npz").exists()
    assert (tmp_path / "folder" / "thesis.txt").exists()
    assert "\x1b" not in result.output


def test_json_has_no_infinity(run):
    np.save("eye.npy", np.eye(3)[None])
    with pytest.warns(kann.ConditionWarning):
        result = run("fit", "eye.npy", "-o", "n.npz", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["condition"] is None


@pytest.mark.parametrize(("text", "expected"), [("16", 16), (" 16 ", 16), ("-3", -3), ("0.99", 0.99), ("1.0", 1.0)])
def test_a_rank_is_whole_if_it_is_written_so(text, expected):
    assert loading.number(text) == expected
    assert type(loading.number(text)) is type(expected)


def test_the_examples_run():
    result = doctest.testmod(loading)
    assert result.attempted
    assert not result.failed
