"""The commands that work on a user's own files: record, fit, report."""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import kann
from kann.cli import loading
from kann.data.serialization import save_arrays
from tests.reporting.html_pages import rank_deficient_states, turning_states

MODEL = """
import torch
from torch import nn

def build():
    return torch.nn.GRU(3, 4, batch_first=True)

def both():
    return torch.nn.GRU(3, 4, batch_first=True, bidirectional=True)

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn = nn.Embedding(9, 3), nn.GRU(3, 4, batch_first=True)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.words(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.rnn(packed)[0]

class Needy(Reader):
    def forward(self, tokens, lengths, mood):
        pass

def fails():
    raise RuntimeError("the weights\\nare not here")

def stops():
    raise KeyboardInterrupt

class Stopped(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)

    def forward(self, x):
        Stopped.calls += 1
        if Stopped.calls == 3:
            raise KeyboardInterrupt
        return self.rnn(x)

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
    np.save("flat.npy", rng.normal(size=7))
    np.savez("data.npz", data=rng.normal(size=(3, 7, 3)).astype(np.float32), lengths=np.array([7, 2, 4]))


@pytest.mark.parametrize("source", ["states.zarr", "moments.npz"])
def test_fit_writes_the_operator(run, source):
    result = run("fit", source, "-o", "new.npz", "--rank", "5")
    assert result.exit_code == 0, result.output
    assert "rank 5" in result.stdout
    np.testing.assert_allclose(kann.Koopman.load("new.npz").matrix, kann.fit(turning_states()).matrix, atol=1e-9)


def test_fit_chooses_the_rank_and_says_what_to_trust(run):
    result = run("fit", "states.zarr", "-o", "new.npz")
    koopman = kann.Koopman.load("new.npz")
    assert koopman.rank == koopman.rank_curve.chosen
    trust = kann.trust(koopman, turning_states(), folds=6)
    assert f"trusted modes: {', '.join(map(str, trust.trusted))}" in result.stdout
    assert repr(trust) in result.stdout
    numbers = json.loads(run("fit", "states.zarr", "-o", "n.npz", "--rank", "auto", "--json").stdout)
    assert numbers["trust"]["folds"] == 6
    assert [mode["trusted"] for mode in numbers["modes"]] == [mode.trusted for mode in trust.modes]
    assert all(mode["interval"][0] < mode["modulus"] < mode["interval"][1] for mode in numbers["modes"])


def test_of_moments_no_mode_is_tested(run):
    result = run("fit", "moments.npz", "-o", "new.npz")
    assert "no mode was tested: moments of all sequences together leave nothing to hold out" in result.stdout
    numbers = json.loads(run("fit", "moments.npz", "-o", "n.npz", "--json").stdout)
    assert numbers["trust"] is None
    assert "trusted" not in numbers["modes"][0]


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


def test_record_takes_numpys_default_type(run):
    np.save("double.npy", np.load("data.npy").astype(np.float64))
    np.save("big.npy", np.load("data.npy").astype(">f4"))
    for name in ("double.npy", "big.npy"):
        result = run("record", "model_for_tests:build", "--data", name, "-o", "s.zarr", "--force")
        assert result.exit_code == 0, result.output
        assert kann.States.open("s.zarr").values.dtype == np.float32


def test_record_passes_lengths_to_a_model_that_reads_them(run):
    tokens, lengths = np.arange(21).reshape(3, 7) % 9, np.array([7, 2, 4])
    np.savez("tokens.npz", data=tokens.astype(np.int32), lengths=lengths)
    np.save("tokens.npy", tokens)
    np.save("lengths.npy", lengths)
    for source in (["tokens.npz"], ["tokens.npy", "--lengths", "lengths.npy"]):
        result = run("record", "model_for_tests:Reader", "--data", *source, "-o", "s.zarr", "--force", "--inputs")
        assert result.exit_code == 0, result.output
        assert kann.States.open("s.zarr").lengths.tolist() == [7, 2, 4]


def test_of_a_model_that_reads_lengths_all_steps_are_real_if_none_are_passed(run):
    np.save("tokens.npy", np.arange(21).reshape(3, 7) % 9)
    assert run("record", "model_for_tests:Reader", "--data", "tokens.npy", "-o", "s.zarr").exit_code == 0
    assert kann.States.open("s.zarr").lengths.tolist() == [7, 7, 7]


def test_record_takes_one_direction_of_a_bidirectional_model(run, tmp_path):
    asked = ("record", "model_for_tests:both", "--data", "data.npy", "-o", "s.zarr", "--inputs")
    result = run(*asked)
    assert result.exit_code == 1
    assert "several layers or directions (l0, l0_reverse); pass layer= one of them" in result.stderr
    assert not (tmp_path / "s.zarr").exists()
    assert run(*asked, "--layer", "l0_reverse").exit_code == 0
    assert kann.States.open("s.zarr").inputs.shape == (35, 3)


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_after_ctrl_c_record_says_what_is_there(run, tmp_path, force):
    asked = ["record", "model_for_tests:stops", "--data", "data.npy", "-o", "new.zarr"]
    result = run(*asked, *force)
    assert result.exit_code == 130
    assert result.stderr == "interrupted before anything was written to new.zarr; run the same command again\n"
    if force:
        turning_states().save("new.zarr")
        result = run(*asked, *force)
        assert "before anything was written to new.zarr" in result.stderr
        assert len(kann.States.open("new.zarr")) == 6


def test_after_ctrl_c_record_names_what_was_finished(run):
    asked = ["record", "model_for_tests:Stopped", "--data", "data.npy", "-o", "new.zarr", "--batch-size", "1"]
    result = run(*asked)
    assert result.exit_code == 130
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kann.errors.KannWarning)  # it is not finished
        assert len(kann.States.open("new.zarr")) == 2
    assert result.stderr.startswith("interrupted; 2 finished sequences are in ")
    assert result.stderr.endswith("new.zarr\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "states.zarr", "--force", "-o"],
        ["report", "operator.npz", "states.zarr", "--force", "-o"],
        ["record", "model_for_tests:build", "--data", "data.npy", "--force", "-o"],
        ["highlight", "Good.", "--force", "--html"],
    ],
)
def test_what_is_no_regular_file_is_not_replaced(run, tmp_path, arguments):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("pipe", "link"):
        result = run(*arguments, name)
        assert result.exit_code == 1
        assert result.stderr == f"error: {name} is not a regular file; pass another path\n"
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_of_stores_names_them(run, tmp_path):
    (tmp_path / "layers").mkdir()
    for name in ("a", "b"):
        turning_states().save(f"layers/{name}")
    for command in (["fit", "layers"], ["report", "operator.npz", "layers"]):
        result = run(*command, "-o", "new")
        assert result.stderr == "error: layers is a folder of 2 stores; pass one of them: layers/a, layers/b\n"


def whole_files(folder):
    """Arguments that read each kind of file that a command takes."""
    torch.save(torch.nn.GRU(3, 4, batch_first=True).state_dict(), folder / "weights.pt")
    save_file(torch.nn.GRU(3, 4, batch_first=True).state_dict(), folder / "weights.safetensors")
    (folder / "tokens.json").write_text(json.dumps([["a"] * length for length in range(30, 36)]))
    np.save(folder / "states.npy", np.random.default_rng(0).normal(size=(2, 9, 5)))
    np.savez_compressed(folder / "states.npz", values=np.random.default_rng(0).normal(size=(2, 9, 5)))
    record = ["record", "model_for_tests:build", "-o", "n.zarr", "--data"]
    return {
        "states.npy": ["fit", "states.npy", "-o", "n.npz"],
        "states.npz": ["fit", "states.npz", "-o", "n.npz"],
        "moments.npz": ["fit", "moments.npz", "-o", "n.npz"],
        "operator.npz": ["report", "operator.npz", "states.zarr"],
        "tokens.json": ["report", "operator.npz", "states.zarr", "--tokens", "tokens.json"],
        "data.npy": [*record, "data.npy"],
        "data.npz": [*record, "data.npz"],
        "weights.pt": [*record, "data.npy", "--weights", "weights.pt"],
        "weights.safetensors": [*record, "data.npy", "--weights", "weights.safetensors"],
    }


NAMES = ["states.npy", "states.npz", "moments.npz", "operator.npz", "tokens.json", "data.npy", "data.npz"]


@pytest.mark.parametrize("name", [*NAMES, "weights.pt", "weights.safetensors"])
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_is_told_in_one_line(run, tmp_path, rng, name):
    arguments = whole_files(tmp_path)[name]
    whole = (tmp_path / name).read_bytes()
    for _ in range(12):
        damaged = bytearray(whole)
        # Most damage that matters is in the first bytes: names, types and sizes.
        places = rng.integers(min(len(whole), 400), size=3) if rng.random() < 0.7 else rng.integers(len(whole), size=3)
        for place in places.tolist():
            damaged[place] = int(rng.integers(256))
        (tmp_path / name).write_bytes(damaged[: int(rng.integers(1, 2 * len(whole)))])
        result = run(*arguments, "--force")
        if result.exit_code:
            assert isinstance(result.exception, SystemExit), (type(result.exception), damaged[:200])
            assert result.stderr.startswith("error: ")
            assert result.stderr.count("\n") == 1


def nested(path):
    path.write_text("[" * 100_000)


def pickled_module(path):
    torch.save(torch.nn.Linear(1, 1), path)


def python_source(path):
    path.write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (" + b" " * 66 + b"\n")


def endless(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "name", "before"),
    [
        (nested, "t.json", ["report", "operator.npz", "states.zarr", "--tokens"]),
        (
            pickled_module,
            "w.pt",
            ["record", "model_for_tests:build", "--data", "data.npy", "-o", "n.zarr", "--weights"],
        ),
        (python_source, "d.npy", ["record", "model_for_tests:build", "-o", "n.zarr", "--data"]),
        (python_source, "d.npy", ["fit", "-o", "n.npz"]),
        (os.mkfifo, "t.json", ["report", "operator.npz", "states.zarr", "--tokens"]),
        (os.mkfifo, "t.json", ["report", "operator.npz", "states.zarr", "--labels"]),
        (endless, "t.json", ["report", "operator.npz", "states.zarr", "--tokens"]),
        (os.mkfifo, "d.npy", ["record", "model_for_tests:build", "-o", "n.zarr", "--data"]),
        (os.mkfifo, "w.pt", ["record", "model_for_tests:build", "--data", "data.npy", "-o", "n.zarr", "--weights"]),
    ],
)
def test_a_file_made_to_confuse_is_told_in_one_line(run, tmp_path, make, name, before):
    make(tmp_path / name)
    result = run(*before, name)
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ")
    assert name in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"\xff" * 100])
def test_what_is_no_dask_scheduler_is_told_in_time(run, monkeypatch, greeting):
    pytest.importorskip("distributed")
    monkeypatch.setattr(loading, "SCHEDULER_TIMEOUT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            kept = []
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    kept[-1].sendall(greeting)

        threading.Thread(target=answer, daemon=True).start()
        start = time.monotonic()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        result = run("fit", "states.zarr", "-o", "n.npz", "--scheduler", address)
    assert time.monotonic() - start < 20
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: no Dask scheduler answers at {address}")


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
        (
            ["fit", "states.zarr", "-o", "n.npz", "--driven"],
            "--driven needs what the network read, and states.zarr has no inputs; record them with 'kann record "
            "--inputs', or save an .npz file with arrays 'values' and 'inputs'",
        ),
        (["fit", "nowhere.npy"], "nowhere.npy"),  # and not that operator.npz exists
        (["report", "nowhere.npz", "states.zarr", "-o", "operator.npz"], "nowhere.npz"),
        (["record", "model_for_tests:build", "--data", "nowhere.npy", "-o", "states.zarr"], "no data at nowhere.npy"),
        (
            ["fit", "flat.npy", "-o", "n.npz"],
            "flat.npy holds no states (padded states have axes (sequence, time, unit); got shape (7,)); save an array "
            "of (sequences, steps, units), or of (steps, units)",
        ),
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
            "labels.txt.npz cannot be read as plain arrays",
        ),
        (
            ["record", "model_for_tests:build", "--data", "named.npz", "-o", "n.zarr"],
            "named.npz cannot be read as plain arrays",
        ),
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
        (["record", "model_for_tests:build", "--data", "data.npy", "-o", "x.npz"], "would be read as a numpy file"),
        (["record", "model_for_tests:build", "--data", "data.npy", "-o", "s3://b/x.zarr"], "is an address"),
        (["record", "model_for_tests:fails", "--data", "data.npy", "-o", "n.zarr"], "the weights are not here"),
        (
            ["record", "model_for_tests:build", "--data", "wide.npy", "-o", "n.zarr"],
            "the model cannot read a batch of shape",
        ),
        (["record", "model_for_tests:Needy", "--data", "data.npz", "-o", "n.zarr"], "'mood'"),
        (["fit", "states.zarr", "-o", "-"], "results are not written to standard output"),
        (["report", "operator.npz", "states.zarr", "-o", "-"], "pass the name of a file"),
        (["record", "model_for_tests:build", "--data", "complex.npy", "-o", "n.zarr"], "complex.npy holds no data"),
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
    np.save("wide.npy", np.zeros((5, 7, 9), dtype=np.float32))
    np.save("complex.npy", np.zeros((5, 7, 3), dtype=np.complex64))
    save_arrays("steering.npz", kind="\x1b]0;owned\x07", arrays={})
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


def test_json_has_no_infinite_residual(run):
    np.save("flat.npy", rank_deficient_states().padded())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kann.errors.KannWarning)
        result = run("fit", "flat.npy", "-o", "n.npz", "--rank", "6", "--basis", "fourier", "--json")
    assert result.exit_code == 0, result.output
    assert None in [mode["residual"] for mode in json.loads(result.stdout)["modes"]]


def test_json_has_no_infinity(run):
    np.save("eye.npy", np.eye(3)[None])
    with warnings.catch_warnings():
        warnings.simplefilter("default", kann.errors.KannWarning)
        result = run("fit", "eye.npy", "-o", "n.npz", "--basis", "svd", "--no-offset", "--json")
    assert result.exit_code == 0, result.output
    assert "warning: the eigenvectors" in result.stderr
    assert ".py:" not in result.stderr
    assert json.loads(result.stdout)["condition"] is None


@pytest.mark.parametrize(("text", "expected"), [("16", 16), (" 16 ", 16), ("-3", -3), ("0.99", 0.99), ("1.0", 1.0)])
def test_a_rank_is_whole_if_it_is_written_so(text, expected):
    assert loading.number(text) == expected
    assert type(loading.number(text)) is type(expected)
