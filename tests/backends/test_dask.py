"""The same sums on Dask: any chunks, any scheduler, stores at addresses, and what goes wrong there."""

import itertools
import os
import pickle
import shutil
import signal
import sys
import threading
import time
from types import SimpleNamespace

import dask
import dask.array as da
import fsspec
import numpy as np
import pytest
import torch
import zarr
from distributed import Client, KilledWorker, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import kann
from kann.cli import app
from kann.data import chunks, store
from kann.data.moments import moments_of
from kann.data.reduction import Projection, runs_on_dask
from kann.data.store import ForeignArray
from kann.errors import KannError
from tests.data.test_moments import assert_same, plain, ragged_states
from tests.systems import full_operator, noisy_states, relative

SAME = 1e-9
"""Sums of float64 numbers in another order: far below this, and far above it if a pair were lost or invented."""

UNKIND = [(12, 16, 10), (5, 7, 10), (1, 1, 10), (4, 5, 3), (12, 1, 10), ((0, 11, 1), (15, 0, 1), (10,))]
"""Whole, and cut through sequences, into single states, through units, at every step, and beside empty chunks."""


@pytest.fixture(scope="module")
def workers():
    """Two processes that all tests share: starting them takes seconds."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=100) as two:
        yield two


@pytest.fixture
def two_workers(workers):
    with Client(workers) as client:
        client.wait_for_workers(2)  # a test may have killed one, which is then started again
        yield client
        client.run(os.chdir, os.getcwd())


@pytest.fixture
def padded(rng):
    lengths = rng.integers(1, 41, 30)
    lengths[:3] = 1, 40, 2
    return noisy_states(rng, sequences=30, steps=40), lengths, rng.normal(size=(30, 40, 3))


@pytest.fixture
def states(padded):
    values, lengths, inputs = padded
    return kann.States.from_padded(values, lengths, inputs=inputs)


def assert_same_operator(ours, theirs):
    assert relative(full_operator(ours), full_operator(theirs)) < SAME
    np.testing.assert_allclose(ours.eigenvalues, theirs.eigenvalues, atol=SAME)
    np.testing.assert_allclose(ours.residuals, theirs.residuals, atol=1e-7)  # roots of differences


@given(states=ragged_states(), data=st.data())
@settings(max_examples=30)
def test_moments_do_not_depend_on_how_rows_are_chunked(states, data):
    rows = len(states.values)
    cuts = data.draw(st.lists(st.integers(0, rows), max_size=6))
    sizes = tuple(np.diff([0, *sorted(cuts), rows]).tolist())
    inputs = None if states.inputs is None else da.from_array(states.inputs, chunks=(rows, 1))
    lazy = kann.States(values=da.from_array(states.values, chunks=(sizes, 2)), lengths=states.lengths, inputs=inputs)
    with dask.config.set(scheduler="synchronous"):
        moments = kann.Moments.of(lazy)
    assert_same(moments, plain(states))
    assert (moments.sequences, moments.states, moments.pairs) == (len(states), rows, rows - len(states))


@pytest.mark.parametrize("chunks", UNKIND)
@pytest.mark.parametrize("driven", [False, True])
def test_padded_dask_arrays_give_the_operator_of_numpy_arrays(padded, chunks, driven):
    values, lengths, inputs = padded[0][:12, :16], padded[1][:12].clip(max=16), padded[2][:12, :16]
    states = kann.States.from_padded(values, lengths, inputs=inputs)
    junk = np.where(np.arange(16)[None, :, None] < lengths[:, None, None], values, np.nan)  # padding must not be read
    lazy = kann.States.from_padded(da.from_array(junk, chunks=chunks), lengths, inputs=inputs)
    assert runs_on_dask(lazy)
    assert_same_operator(kann.fit(lazy, driven=driven), kann.fit(states, driven=driven))


def test_fit_takes_dask_arrays_padded_or_as_rows_with_lengths(padded, states):
    values, lengths, _ = padded
    expected = kann.fit(states)
    assert_same_operator(kann.fit(da.from_array(values, chunks=(7, 11, 4)), lengths=da.from_array(lengths)), expected)
    assert_same_operator(kann.fit(da.from_array(states.values, chunks=(13, 4)), lengths=lengths), expected)
    assert_same_operator(kann.fit(states.values, lengths=lengths), expected)
    every = kann.fit(da.from_array(values, chunks=(7, 11, 4)))
    assert_same_operator(every, kann.fit(values))


def test_update_takes_dask_arrays(padded, states):
    values, lengths, inputs = padded
    moments = kann.Moments().update(da.from_array(values, chunks=(7, 11, 10)), lengths, inputs=inputs)
    assert_same(moments, plain(states))


def test_two_workers_give_the_operator_of_numpy_and_torch(two_workers, padded, states, tmp_path):
    values, lengths, inputs = padded
    states.save(tmp_path / "states.zarr")
    expected = kann.fit(states, driven=True)
    tensors = kann.States.from_padded(torch.tensor(values), lengths, inputs=torch.tensor(inputs))
    assert_same_operator(kann.fit(tensors, driven=True), expected)
    lazy = kann.States.from_padded(da.from_array(values, chunks=(7, 11, 4)), lengths, inputs=inputs)
    assert_same_operator(kann.fit(lazy, driven=True), expected)
    stored = kann.States.open(tmp_path / "states.zarr")
    assert runs_on_dask(stored)
    assert_same_operator(kann.fit(stored, driven=True), expected)


def test_killing_a_worker_in_the_middle_of_a_fit_does_not_change_the_result(two_workers, padded, states, tmp_path):
    values, lengths, _ = padded
    log = tmp_path / "log"
    log.touch()

    def slowly(block):
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.1)
        return block

    lazy = da.from_array(values, chunks=(7, 11, 10)).map_blocks(slowly, dtype=values.dtype)
    found = []
    fitting = threading.Thread(target=lambda: found.append(kann.fit(lazy, lengths=lengths)))
    victim = two_workers.run(os.getpid).popitem()[1]
    fitting.start()
    until = time.monotonic() + 30
    while log.read_text().split().count(str(victim)) < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(victim, signal.SIGKILL)
    fitting.join(timeout=60)
    read = log.read_text().split()
    assert len(set(read)) > 1
    assert len(read) > lazy.npartitions, "it had finished before the worker died, so that nothing was read again"
    assert_same_operator(found[0], kann.fit(states))


@pytest.mark.parametrize("address", ["file://{}", "memory://{}"])
def test_a_store_is_opened_by_its_address(states, tmp_path, address):
    states.save(tmp_path / "states.zarr")
    url = address.format(tmp_path / "states.zarr")
    fsspec.filesystem("memory").put(str(tmp_path / "states.zarr"), str(tmp_path / "states.zarr"), recursive=True)
    opened = kann.States.open(url)
    np.testing.assert_array_equal(opened.values[:], states.values)
    assert runs_on_dask(opened)
    assert_same_operator(kann.fit(url, driven=True), kann.fit(states, driven=True))
    koopman = kann.fit(states)
    assert kann.relative_error(koopman, url) == pytest.approx(kann.relative_error(koopman, states), rel=SAME)


def test_a_plain_zarr_array_is_opened_by_its_address(padded, states, tmp_path):
    values, lengths, inputs = padded
    group = zarr.open_group(str(tmp_path / "theirs.zarr"), mode="w")
    for name, array in {"values": values, "lengths": lengths, "inputs": inputs}.items():
        group.create_array(name, data=array, chunks=(7, 11, 2)[: array.ndim])
    opened = kann.States.open(f"file://{tmp_path}/theirs.zarr")
    assert runs_on_dask(opened)
    assert not runs_on_dask(kann.States.open(tmp_path / "theirs.zarr"))
    assert_same_operator(kann.fit(opened, driven=True), kann.fit(states, driven=True))
    rows = zarr.open_group(str(tmp_path / "rows.zarr"), mode="w")
    rows.create_array("values", data=states.values, chunks=(7, 3))
    rows.create_array("lengths", data=lengths)
    assert_same_operator(kann.fit(f"file://{tmp_path}/rows.zarr"), kann.fit(states))


def test_runs_of_parts_add_up_to_the_store(states, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "PART_BYTES", 1000)
    monkeypatch.setattr(chunks, "MIN_TASK_BYTES", 3000)
    monkeypatch.setattr(chunks, "MIN_TASK_ROWS_PER_UNIT", 1)
    states.save(tmp_path / "states.zarr")
    stored = kann.States.open(f"file://{tmp_path}/states.zarr")
    assert len(list(chunks._tasks(stored, inputs=True, pairs=True))) > 5
    assert_same(kann.Moments.of(stored), plain(states))


class SlowReadout(torch.nn.Module):
    """A readout that takes its time, and refuses to be called in training mode."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(10, dtype=torch.float64))

    def forward(self, h):
        """One output of each state."""
        time.sleep(0.002)
        if self.training:
            raise RuntimeError("called in training mode")
        return h @ self.weight


def test_threads_do_not_end_the_evaluation_of_each_others_readout(states):
    rows = kann.States(values=da.from_array(states.values, chunks=(13, 10)), lengths=states.lengths)
    readout = SlowReadout().train()
    found = kann.agreement(kann.copying, rows, readout, at="every")
    assert found == kann.agreement(kann.copying, states, readout, at="every")
    assert readout.training


def test_errors_streams_and_magnitudes_over_chunks_are_those_in_memory(padded, tmp_path):
    values, lengths, inputs = padded[0][:14, :22], padded[1][:14].clip(max=22), padded[2][:14, :22]
    states = kann.States.from_padded(values, lengths, inputs=inputs)
    koopman = kann.fit(states, driven=True)
    lazy = kann.States.from_padded(da.from_array(values, chunks=(7, 11, 4)), lengths, inputs=inputs)
    rows = kann.States(values=da.from_array(states.values, chunks=(13, 4)), lengths=lengths, inputs=states.inputs)
    for chunked in (lazy, rows):
        ours = kann.relative_error(koopman, chunked, reduce="none")
        np.testing.assert_allclose(ours, kann.relative_error(koopman, states, reduce="none"), rtol=SAME)
        assert kann.relative_error(koopman, chunked) == pytest.approx(kann.relative_error(koopman, states), rel=SAME)
        np.testing.assert_allclose(kann.importance(koopman, chunked), kann.importance(koopman, states), rtol=SAME)
        for predictor, outputs in itertools.product((koopman, kann.copying), ("class", "labels", "values")):
            ours, theirs = (
                kann.agreement(predictor, each, lambda h: h[:, :3], at="every", outputs=outputs)
                for each in (chunked, states)
            )
            assert ours == pytest.approx(theirs, rel=SAME)
    lazily = kann.magnitude(koopman, da.from_array(values, chunks=(7, 11, 4)))
    assert lazily.shape == (14, 22, 10)
    assert lazily.chunks[:2] == da.from_array(values, chunks=(7, 11, 4)).chunks[:2]
    np.testing.assert_allclose(lazily.compute(), kann.magnitude(koopman, values), rtol=SAME)
    projected = kann.project(koopman, da.from_array(values, chunks=(7, 11, 4)))
    np.testing.assert_allclose(projected.compute(), kann.project(koopman, values), rtol=SAME, atol=SAME)
    states.save(tmp_path / "states.zarr")
    stored = kann.States.open(tmp_path / "states.zarr")
    for several in (stored.values, stored, tmp_path / "states.zarr", f"file://{tmp_path}/states.zarr"):
        ours = kann.magnitude(koopman, several)
        np.testing.assert_allclose(ours, kann.magnitude(koopman, states.values), rtol=SAME)


def test_float64_states_that_a_gram_blurs_are_read_again_on_dask(rng):
    values = noisy_states(rng, sequences=30, steps=40) * np.logspace(0, -7, 10)
    lazy = da.from_array(values, chunks=(7, 11, 10))
    ours, theirs = kann.fit(lazy), kann.fit(values)
    assert ours.rank == 10
    np.testing.assert_allclose(np.abs(ours.eigenvalues), np.abs(theirs.eigenvalues), rtol=1e-6)


def test_nan_is_named_with_its_chunk_and_place(padded):
    values, lengths, inputs = padded
    lengths[12] = 40
    bad = values.copy()
    bad[12, 20, 3] = np.nan
    with pytest.raises(KannError, match=r"chunk \(1, 1\).*sequences 7 to 13, steps 11 to 21.*sequence 12, step 20, un"):
        kann.fit(da.from_array(bad, chunks=(7, 11, 10)), lengths=lengths)
    rows = kann.States.from_padded(bad, lengths)
    with pytest.raises(KannError, match=r"chunk \d+ of the dask array \(rows .* NaN at sequence 12, step 20, unit 3"):
        kann.fit(da.from_array(rows.values, chunks=(17, 10)), lengths=lengths)
    after_a_cut = r"chunk \(1, 2\).*inputs hold NaN at sequence 12, step 22"
    for step, place in ((20, r"chunk \(1, 1\).*inputs hold NaN at sequence 12, step 20"), (22, after_a_cut)):
        drive = inputs.copy()
        drive[12, step, 1] = np.nan
        lazy = kann.States.from_padded(da.from_array(values, chunks=(7, 11, 10)), lengths, inputs=drive)
        with pytest.raises(KannError, match=place):
            kann.fit(lazy, driven=True)
    first = inputs.copy()
    first[:, 0] = np.nan  # what led to first states belongs to no pair
    lazy = kann.States.from_padded(da.from_array(values, chunks=(7, 11, 10)), lengths, inputs=first)
    kann.fit(lazy, driven=True)


def test_a_chunk_that_cannot_be_read_is_said_in_one_line(padded):
    values, lengths, _ = padded

    def fail(block, block_info=None):
        if block_info[0]["chunk-location"] == (2, 0, 0):
            raise OSError("no such object")
        return block

    lazy = da.from_array(values, chunks=(7, 11, 10)).map_blocks(fail, dtype=values.dtype)
    with pytest.raises(KannError, match=r"a chunk of the states cannot be read \(OSError: no such object\)"):
        kann.fit(lazy, lengths=lengths)


def test_squares_that_overflow_are_found_at_cuts_too(padded):
    values, lengths, inputs = padded
    lengths[:] = 40
    for step in (10, 11):  # the last of a chunk, and the first of the next one
        large = inputs.copy()
        large[3, step] = 1e200
        lazy = kann.States.from_padded(da.from_array(values, chunks=(7, 11, 10)), inputs=large)
        with pytest.raises(KannError, match="squares of the states exceed float64"):
            kann.fit(lazy, driven=True)
    large = values.copy()
    large[[0, 20], 5] = 1.2e154  # finite squares, whose sum is not
    with pytest.raises(KannError, match="squares of the states exceed float64"):
        kann.fit(da.from_array(large, chunks=(7, 11, 10)))


def test_numpy_inputs_beside_dask_states(padded):
    values, _, inputs = padded
    expected = kann.fit(kann.States.from_padded(values, inputs=inputs), driven=True)
    lazy = da.from_array(values, chunks=(7, 11, 10))
    assert_same_operator(kann.fit(kann.States.from_padded(lazy, inputs=inputs), driven=True), expected)
    assert_same_operator(kann.fit(kann.Moments().update(lazy, inputs=inputs), driven=True), expected)


def test_an_operator_is_in_the_graph_once(padded):
    values, lengths, _ = padded
    koopman = kann.fit(values, lengths=lengths)
    graph = dict(kann.magnitude(koopman, da.from_array(values, chunks=(1, 40, 10))).__dask_graph__())
    sizes = sorted(len(pickle.dumps(task)) for task in graph.values())
    assert len(sizes) > 30
    assert sizes[-2] < koopman.right.nbytes + values[0].nbytes


def test_the_second_reading_of_a_store_gives_the_moments_of_coordinates(rng, states, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "PART_BYTES", 1000)
    monkeypatch.setattr(chunks, "MIN_TASK_BYTES", 3000)
    monkeypatch.setattr(chunks, "MIN_TASK_ROWS_PER_UNIT", 0)
    states.save(tmp_path / "states.zarr")
    stored = kann.States.open(f"file://{tmp_path}/states.zarr")
    assert len(list(chunks._tasks(stored, inputs=False, pairs=True))) > 5
    matrix, mean = rng.normal(size=(10, 2)), rng.normal(size=10)
    coordinates = kann.States(values=(states.values - mean) @ matrix, lengths=states.lengths)
    assert_same(moments_of(stored, inputs=False, projection=Projection(matrix=matrix, mean=mean)), plain(coordinates))


def test_a_damaged_part_of_a_store_is_named(states, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "PART_BYTES", 1000)
    states.save(tmp_path / "states.zarr")
    url = f"file://{tmp_path}/states.zarr"
    opened = kann.States.open(url)
    shutil.rmtree(tmp_path / "states.zarr" / "values" / "000002" / "c")
    with pytest.raises(KannError, match=r"part 2 of file:.*is missing or empty"):
        kann.fit(opened)
    shutil.rmtree(tmp_path / "states.zarr")
    with pytest.raises(KannError, match=r"of file:.*: a worker finds no states there"):
        kann.fit(opened)


def test_paths_mean_the_same_to_workers_that_stand_elsewhere(two_workers, padded, states, tmp_path, monkeypatch):
    values = padded[0]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    states.save("states.zarr")
    zarr.open_group("theirs.zarr", mode="w").create_array("values", data=values, chunks=(7, 11, 10))
    states[:4].save("elsewhere/states.zarr")
    two_workers.run(os.chdir, str(tmp_path / "elsewhere"))
    assert_same(kann.Moments.of("states.zarr"), plain(states))
    assert_same(kann.Moments.of("theirs.zarr"), plain(kann.States.from_padded(values)))
    opened, theirs = kann.States.open("states.zarr"), ForeignArray(zarr.open_group("theirs.zarr", mode="r")["values"])
    states[:4].save("states.zarr")
    with pytest.raises(KannError, match="a worker finds other states there"):
        kann.Moments.of(opened)
    at_address = ForeignArray(zarr.open_group(f"file://{tmp_path}/theirs.zarr", mode="r")["values"])
    np.testing.assert_array_equal(at_address[:1], values[:1])
    zarr.open_group("theirs.zarr", mode="w").create_array("values", data=values[:3])
    for array in (theirs, at_address):
        with pytest.raises(KannError, match="there are other states at"):
            array[:1]
    shutil.rmtree("states.zarr")
    shutil.rmtree("theirs.zarr")
    with pytest.raises(KannError, match="a worker finds no states there"):
        kann.Moments.of(opened)
    for array in (theirs, at_address):
        with pytest.raises(KannError, match="there are no states at"):
            array[:1]


def test_dask_arrays_that_cannot_be_used_say_why(rng):
    unknown = da.from_array(rng.normal(size=(20, 3)), chunks=5)
    unknown = unknown[unknown[:, 0] > 0]
    with pytest.raises(KannError, match="compute_chunk_sizes"):
        kann.fit(unknown, lengths=[5])
    with pytest.raises(KannError, match="pass one length"):
        kann.fit(da.ones((20, 3), chunks=5), lengths=[5])
    with pytest.raises(KannError, match="rows of all sequences with their lengths"):
        kann.fit(da.ones((20, 3), chunks=5))
    with pytest.raises(KannError, match="states have 3 columns"):
        kann.magnitude(kann.fit(rng.normal(size=(4, 9, 2))), da.ones((2, 5, 3)))


@pytest.mark.parametrize("address", ["file:///nowhere.zarr", "nonsense://x"])
def test_an_address_without_a_store_says_so(address):
    with pytest.raises(KannError, match=f"there is no zarr store at {address}"):
        kann.fit(address)


def test_a_cluster_that_gives_up_is_said_in_one_line(states, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise KilledWorker("a task", SimpleNamespace(address="tcp://worker:1"), 3)

    states.save(tmp_path / "states.zarr")
    monkeypatch.setattr(kann, "fit", fail)
    failed = CliRunner().invoke(app, ["fit", str(tmp_path / "states.zarr"), "-o", str(tmp_path / "operator.npz")])
    assert failed.exit_code == 1
    assert failed.output.startswith("error: the Dask cluster gave up (")
    assert failed.output.count("\n") == 1


def test_without_dask_the_extra_is_named(states, tmp_path, monkeypatch):
    states.save(tmp_path / "states.zarr")
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.delitem(sys.modules, "dask.array", raising=False)  # others ask whether it was imported
    with pytest.raises(ImportError, match=r"pip install 'kann\[dask\]'"):
        kann.fit(f"file://{tmp_path}/states.zarr")
    kann.fit(tmp_path / "states.zarr")


@pytest.mark.usefixtures("two_workers")
def test_the_command_line_fits_a_store_on_workers(workers, states, tmp_path):
    states.save(tmp_path / "states.zarr")
    np.save(tmp_path / "states.npy", states.padded())
    call = CliRunner().invoke
    address, out = workers.scheduler_address, tmp_path / "operator.npz"
    done = call(app, ["fit", str(tmp_path / "states.zarr"), "-o", str(out), "--scheduler", address, "--driven"])
    assert done.exit_code == 0, done.output
    assert "2 Dask workers; follow them at http" in done.stderr
    assert_same_operator(kann.Koopman.load(out), kann.fit(states, driven=True))
    done = call(app, ["fit", f"file://{tmp_path}/states.zarr", "-o", str(out), "--force"])
    assert done.exit_code == 0, done.output
    assert_same_operator(kann.Koopman.load(out), kann.fit(states))
    refused = call(app, ["fit", str(tmp_path / "states.npy"), "-o", str(out), "--force", "--scheduler", address])
    assert refused.exit_code == 1
    assert "--scheduler is for zarr stores" in refused.output


def test_the_command_line_says_that_no_scheduler_answers(states, tmp_path, monkeypatch):
    states.save(tmp_path / "states.zarr")
    arguments = ["fit", str(tmp_path / "states.zarr"), "-o", str(tmp_path / "operator.npz"), "--scheduler"]
    failed = CliRunner().invoke(app, [*arguments, "tcp://127.0.0.1:1"])
    assert failed.exit_code == 1
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in failed.output
    for nonsense in ("nonsense://x", "x", ""):
        failed = CliRunner().invoke(app, [*arguments, nonsense])
        assert f"no Dask scheduler answers at {nonsense}" in failed.output
    monkeypatch.setitem(sys.modules, "distributed", None)
    failed = CliRunner().invoke(app, [*arguments, "tcp://127.0.0.1:1"])
    assert "pip install 'kann[dask]'" in failed.output


def test_states_are_not_saved_to_an_address(states):
    with pytest.raises(KannError, match="save to a folder"):
        states.save("memory://states.zarr")
