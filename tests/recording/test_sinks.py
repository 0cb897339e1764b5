"""Where recorded states go: memory, moments, a store on disk."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.data import store
from kann.errors import KannError, UnfinishedWarning
from kann.recording import sinks
from tests.recording.models import EXACT, Failure, Stops, Tagger, by_hand, same
from tests.recording.single_steps import reference


@pytest.mark.parametrize("block", [1, 64, 10**6])
@pytest.mark.parametrize("driven", [False, True])
def test_moments_give_the_operator_that_recording_and_then_fitting_gives(driven, block, rng, monkeypatch):
    monkeypatch.setattr(sinks, "block_rows", lambda values, width: block)  # how many rows are used at a time
    module = nn.LSTM(3, 6, num_layers=2, batch_first=True).double()
    data = [torch.tensor(rng.normal(size=(n, 3))) for n in rng.integers(1, 30, size=14)]
    options = {"layer": "*", "state": "hc", "inputs": driven, "batch_size": 4}
    recorders = (kann.recording.record_layers, kann.recording.record_layer_moments)
    states, moments = (record(module, data, **options) for record in recorders)
    with torch.no_grad():
        paths = [reference(module, sequence) for sequence in data]
    for name in ("l0", "l1"):
        inputs = [path[name]["inputs"].numpy() for path in paths] if driven else None
        expected = kann.States.from_sequences([path[name]["hc"].numpy() for path in paths], inputs=inputs)
        full = kann.fit(expected, driven=driven, rank=8)
        for recorded in (states[name], moments[name]):
            fitted = kann.fit(recorded, driven=driven, rank=8)
            np.testing.assert_allclose(fitted.matrix, full.matrix, atol=1e-10)
            np.testing.assert_allclose(fitted.eigenvalues, full.eigenvalues, atol=1e-10)
            if driven:
                np.testing.assert_allclose(fitted.drive, full.drive, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_float64(dtype, rng):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(dtype)
    data = torch.randn(50, 9, 4, dtype=dtype)
    recorders = (kann.record, kann.recording.record_moments)
    states, moments = (record(model, data, layer="1", batch_size=32) for record in recorders)
    with torch.no_grad():  # in the same batches: how half precision is rounded may depend on their size
        rows = torch.cat([model(part).flatten(0, 1) for part in data.split(32)])
    assert torch.equal(torch.as_tensor(states.values), rows)
    rows = rows.double()
    np.testing.assert_allclose(moments.hh, rows.T @ rows, rtol=1e-12)
    assert moments.rounding == torch.finfo(dtype).eps


def test_states_on_disk_equal_states_in_memory(tmp_path, words):
    model = Tagger(layers=2)
    path = tmp_path / "one.zarr"
    stored = kann.record(model, words, into=path, inputs=True, batch_size=2)
    held = kann.record(model, words, inputs=True, batch_size=2)
    with torch.no_grad():
        lower = [reference(model.rnn, model.embed(w))["l0"]["h"].numpy() for w in words]
    for states in (stored, kann.States.open(path), held):
        same(states, by_hand(model, words))
        np.testing.assert_allclose(np.asarray(states.inputs[:]), np.concatenate(lower), atol=EXACT)
    np.testing.assert_array_equal(np.asarray(stored.inputs[:]), held.inputs)
    several = kann.recording.record_layers(model, words, layer="rnn.*", into=str(tmp_path / "all"))
    assert list(several) == ["rnn.l0", "rnn.l1"]
    same(kann.States.open(tmp_path / "all" / "rnn.l0"), kann.States.from_sequences(lower))
    same(kann.States.open(tmp_path / "all" / "rnn.l1"), by_hand(model, words))
    with pytest.raises(KannError, match="is taken, and several layers need a folder"):
        kann.recording.record_layers(model, words, layer="rnn.*", into=path)


@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
def test_what_was_written_before_an_error_stays_readable(error, tmp_path, words):
    model = Stops(error)
    with pytest.raises(error):
        kann.record(model, words, into=tmp_path / "part.zarr", batch_size=2)
    with pytest.warns(UnfinishedWarning, match="holds 4 sequences"):
        kept = kann.States.open(tmp_path / "part.zarr")
    same(kept, by_hand(model, words[:4]))
    assert [path.name for path in tmp_path.iterdir()] == ["part.zarr"]


@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
def test_moments_that_are_added_to_keep_what_was_finished(error, words):
    model, moments = Stops(error), kann.Moments()
    with pytest.raises(error):
        kann.recording.record_moments(model, words, into=moments, batch_size=2)
    expected = kann.Moments.of(by_hand(model, words[:4]))
    assert (moments.sequences, moments.states) == (expected.sequences, expected.states)
    np.testing.assert_allclose(moments.xy, expected.xy, rtol=1e-5)
    assert kann.recording.record_moments(model, words[4:], into=moments) is moments
    np.testing.assert_allclose(moments.hh, kann.Moments.of(by_hand(model, words)).hh, rtol=1e-5)


def test_a_batch_that_is_not_finite_costs_no_other():
    batches = [torch.zeros(2, 5, 3), torch.ones(2, 5, 3), torch.full((2, 5, 3), torch.nan)]
    moments = kann.Moments()
    with pytest.raises(KannError, match="sequence 4, step 0"):
        kann.recording.record_moments(nn.GRU(3, 4, batch_first=True), iter(batches), into=moments)
    assert moments.sequences == 4

    def stopping():
        yield from batches[1:]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kann.recording.record_moments(nn.GRU(3, 4, batch_first=True), stopping(), into=moments)
    assert moments.sequences == 6


def test_moments_of_several_layers_are_not_added_to_one(words):
    with pytest.raises(KannError, match="several layers or directions"):
        kann.recording.record_moments(nn.GRU(3, 4, num_layers=2), torch.zeros(2, 5, 3), layer="*", into=kann.Moments())


def test_a_store_that_stands_there_survives_a_recording_that_never_begins(tmp_path, model, words):
    kann.record(model, words, into=tmp_path / "a.zarr")
    with pytest.raises(KannError):
        kann.record(model, [], into=tmp_path / "a.zarr")
    with pytest.raises(Failure):
        kann.record(model, words, into=tmp_path / "a.zarr", forward=lambda m, b: (_ for _ in ()).throw(Failure))
    same(kann.States.open(tmp_path / "a.zarr"), by_hand(model, words))


def test_a_mistyped_destination_makes_no_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KannError, match="record to a folder"):
        kann.record(nn.GRU(2, 3), torch.randn(4, 5, 2), into="s3://bucket/states.zarr")
    with pytest.raises(KannError, match=r"into='moment' is no path of a store; .* such as moment\.zarr"):
        kann.record(nn.GRU(3, 4), torch.randn(2, 5, 3), into="moment")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("record", [kann.record, kann.recording.record_moments])
@pytest.mark.parametrize("block", [1, 10**6])
def test_a_model_that_diverges_says_in_which_sequence_and_step(record, block, monkeypatch):
    monkeypatch.setattr(sinks, "block_rows", lambda values, width: block)
    model = nn.Sequential(nn.Identity())
    data = torch.randn(7, 5, 2)
    data[6, 3, 1] = torch.nan
    with pytest.raises(KannError, match="states of layer '0' hold NaN at sequence 6, step 3, unit 1"):
        record(model, data, layer="0", batch_size=2)
    data[2, 4, 0] = torch.inf
    with pytest.raises(KannError, match="states of layer '0' hold inf at sequence 1, step 1, unit 0"):
        record(model, [*data[1:2], data[2, 3:]], layer="0", batch_size=1)


def test_moments_of_another_width_are_refused_at_once():
    moments = kann.Moments().update(np.random.default_rng(0).normal(size=(2, 5, 7)))
    seen = []

    def batches():
        for number in range(50):
            seen.append(number)
            yield torch.randn(64, 100, 2)

    with pytest.raises(KannError, match="moments of 4 units and 0 inputs cannot be added to moments of 7"):
        kann.recording.record_moments(nn.GRU(2, 4, batch_first=True), batches(), into=moments)
    assert len(seen) < 50
    assert moments.states == 10


def test_errors_of_the_moments_come_through():
    huge = torch.full((2, 3, 2), 1e200, dtype=torch.float64)
    with pytest.raises(KannError, match="squares of the states exceed float64"):
        kann.recording.record_moments(nn.Identity(), huge, layer="")


@pytest.mark.parametrize("fault", ["nan", "full disk", "interrupt"])
def test_a_recording_that_fails_leaves_the_old_store_and_says_where_the_new_one_is(tmp_path, fault, monkeypatch):
    model, path = nn.GRU(3, 4, batch_first=True), tmp_path / "s.zarr"
    kann.record(model, torch.zeros(7, 5, 3), into=path)
    bad = {
        "nan": torch.full((2, 5, 3), torch.nan),
        "full disk": OSError(28, "No space left"),
        "interrupt": KeyboardInterrupt,
    }

    def batches():
        yield torch.ones(2, 5, 3)
        if not isinstance(bad[fault], torch.Tensor):
            raise bad[fault]
        yield bad[fault]

    # Parts of one sequence: on a full disk nothing more is written, and what waits is lost.
    monkeypatch.setattr(store, "PART_BYTES", 1)
    with pytest.raises((KannError, OSError, KeyboardInterrupt)) as caught:
        kann.record(model, batches(), into=path)
    assert len(kann.States.open(path)) == 7
    (kept,) = tmp_path.glob("s.zarr.*.unfinished")
    assert caught.value.__notes__ == [f"2 finished sequences are in {kept}; {path} is as before"]
    with pytest.warns(UnfinishedWarning, match="holds 2 sequences with 10 states"):
        assert len(kann.States.open(kept)) == 2
    kann.record(model, torch.zeros(3, 5, 3), into=path)
    assert len(kann.States.open(path)) == 3


def test_a_failure_in_the_first_batch_leaves_nothing(tmp_path):
    path = tmp_path / "s.zarr"
    with pytest.raises(KannError, match="hold NaN") as caught:
        kann.record(nn.GRU(3, 4, batch_first=True), torch.full((2, 5, 3), torch.nan), into=path)
    assert caught.value.__notes__ == [f"no sequence was finished; {path} is as before"]
    assert not list(tmp_path.iterdir())


def test_names_of_layers_never_lead_out_of_the_folder(tmp_path):
    outside = tmp_path / "outside"
    model = nn.Sequential()
    names = [str(outside), "a/b", "model", "con: 1", "x" * 300, "é"]
    for name in names:
        model.add_module(name, nn.Identity())
    stored = kann.recording.record_layers(model, torch.ones(2, 3, 4), layer=[*names, ""], into=tmp_path / "inside")
    assert list(stored) == [*names, ""]
    assert all(len(states) == 2 for states in stored.values())
    assert [entry.name for entry in tmp_path.iterdir()] == ["inside"]
    folders = [entry.name for entry in (tmp_path / "inside").iterdir()]
    assert len(folders) == len(names) + 1
    assert {"model", sinks.file_name("a/b")} <= set(folders)
    for hostile in ("..", ".", "../../etc", "\0", "\ud800"):
        assert "/" not in sinks.file_name(hostile)
        assert not sinks.file_name(hostile).startswith(".")


def test_a_recording_is_not_written_where_it_could_not_be_opened(tmp_path):
    with pytest.raises(KannError, match=r"would be read as a numpy file; pass a name such as x\.zarr"):
        kann.record(nn.GRU(3, 4), torch.randn(2, 5, 3), into=tmp_path / "x.npz")


def test_threads_that_record_into_one_path_each_write_a_whole_store(tmp_path):
    """The last one stays."""
    with ThreadPoolExecutor(4) as pool:
        models = [nn.GRU(3, 4, batch_first=True) for _ in range(4)]
        jobs = [
            pool.submit(kann.record, model, torch.zeros(n + 1, 5, 3), into=tmp_path / "s.zarr", progress=False)
            for n, model in enumerate(models)
        ]
        for job in jobs:
            job.exception()
    assert len(kann.States.open(tmp_path / "s.zarr")) in range(1, 5)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.zarr"]
