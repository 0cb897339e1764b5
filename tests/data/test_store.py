import json
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import zarr

import kann
from kann.data import store
from kann.data import store as recordings
from kann.errors import KannError, UnfinishedWarning


@pytest.fixture
def states(rng):
    lengths = rng.integers(1, 30, 60)
    rows = rng.normal(size=(lengths.sum(), 4)).astype(np.float32)
    return kann.States(values=rows, lengths=lengths, inputs=rng.normal(size=(lengths.sum(), 2)))


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of 50 rows, so that a small store has many."""
    monkeypatch.setattr(store, "PART_BYTES", 50 * 4 * 4)


def test_a_store_gives_back_what_was_saved(tmp_path, states, small_parts):
    states.save(tmp_path / "s.zarr")
    opened = kann.States.open(tmp_path / "s.zarr")
    np.testing.assert_array_equal(opened.lengths, states.lengths)
    np.testing.assert_array_equal(np.asarray(opened.values), states.values)
    np.testing.assert_array_equal(np.asarray(opened.inputs), states.inputs)
    np.testing.assert_array_equal(opened[7], states[7])
    np.testing.assert_array_equal(opened.values[3:200:7], states.values[3:200:7])
    np.testing.assert_array_equal(opened.values[[5, -1, 200]], states.values[[5, -1, 200]])
    np.testing.assert_array_equal(opened.values[17], states.values[17])
    assert opened.values[4:4].shape == (0, 4)
    assert len(opened.values) == len(states.values)
    assert opened.values.dtype == np.float32


def test_chunks_end_where_sequences_end(tmp_path, states, small_parts):
    states.save(tmp_path / "s.zarr")
    root = zarr.open_group(str(tmp_path / "s.zarr"), mode="r")
    parts = [root[f"values/{i:06d}"] for i in range(root.attrs["parts"])]
    assert len(parts) > 5
    for part in parts:
        assert part.chunks[0] == part.shape[0] == sum(part.attrs["lengths"])
    assert [n for part in parts for n in part.attrs["lengths"]] == states.lengths.tolist()


def test_a_sequence_longer_than_a_part_is_read_in_pieces(tmp_path, rng, small_parts):
    rows = rng.normal(size=(1000, 4)).astype(np.float32)
    kann.States.from_sequences([rows]).save(tmp_path / "long.zarr")
    opened = kann.States.open(tmp_path / "long.zarr")
    assert opened.values._parts[0].chunks[0] < 200
    np.testing.assert_array_equal(opened.values[150:420], rows[150:420])


def test_opening_reads_nothing_but_metadata(tmp_path, states, small_parts):
    states.save(tmp_path / "s.zarr")
    for chunk in (tmp_path / "s.zarr").glob("values/*/c/*/*"):
        chunk.unlink()
    opened = kann.States.open(tmp_path / "s.zarr")
    assert opened.lengths.tolist() == states.lengths.tolist()
    with pytest.raises(KannError, match=r"part 0 of .* is missing or empty"):
        kann.fit(opened)


def test_an_operator_fitted_from_disk_is_the_one_from_memory(tmp_path, states, small_parts):
    states.save(tmp_path / "s.zarr")
    opened = kann.States.open(tmp_path / "s.zarr")
    for driven in (False, True):
        disk, memory = kann.fit(opened, driven=driven), kann.fit(states, driven=driven)
        np.testing.assert_allclose(disk.matrix, memory.matrix, atol=1e-12)
        np.testing.assert_allclose(
            kann.relative_error(disk, opened), kann.relative_error(memory, states), rtol=1e-10
        )  # summed in other blocks
    assert kann.agreement(kann.fit(opened), opened, lambda h: h[:, :2]) <= 1


def test_a_damaged_store_is_refused(tmp_path, states, small_parts):
    states.save(tmp_path / "s.zarr")
    chunk = next((tmp_path / "s.zarr").glob("values/000002/c/0/0"))
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with pytest.raises(KannError, match=r"part 2 of .* is damaged"):
        kann.fit(kann.States.open(tmp_path / "s.zarr"))
    (tmp_path / "s.zarr" / "values" / "000001" / "zarr.json").unlink()
    with pytest.raises(KannError, match="is truncated"):
        kann.States.open(tmp_path / "s.zarr")


def _edit_root(path, **attributes):
    meta = path / "zarr.json"
    content = json.loads(meta.read_text())
    content["attributes"] |= attributes
    meta.write_text(json.dumps(content))


def test_a_store_from_a_newer_version_is_refused(tmp_path, states):
    states.save(tmp_path / "s.zarr")
    _edit_root(tmp_path / "s.zarr", version=99)
    with pytest.raises(KannError, match=r"format 99; this release reads up to 1; upgrade kann"):
        kann.States.open(tmp_path / "s.zarr")


def test_a_store_whose_writer_was_killed_opens_with_what_was_finished(tmp_path, states, small_parts):
    writer = store.Writer(tmp_path / "s.zarr")
    writer.append(states.values, states.lengths)  # and never close: as if the process had died here
    with pytest.warns(UnfinishedWarning, match=r"unfinished: .* holds \d+ sequences with \d+ states; record again"):
        opened = kann.States.open(tmp_path / "s.zarr")
    finished = len(opened)
    assert 0 < finished <= len(states)
    np.testing.assert_array_equal(np.asarray(opened.values), states[:finished].values)


def test_an_exception_while_writing_keeps_what_was_appended(tmp_path, states):
    with pytest.raises(KeyboardInterrupt), store.Writer(tmp_path / "s.zarr") as writer:
        writer.append(states.values, states.lengths)
        raise KeyboardInterrupt
    with pytest.warns(UnfinishedWarning, match="holds 60 sequences"):
        assert len(kann.States.open(tmp_path / "s.zarr")) == len(states)


def test_a_store_without_a_part_is_refused(tmp_path):
    store.Writer(tmp_path / "s.zarr").close()
    with pytest.raises(KannError, match="holds no sequences"):
        kann.States.open(tmp_path / "s.zarr")


def test_zarr_written_by_others_opens(tmp_path, rng):
    padded = rng.normal(size=(3, 5, 2))
    zarr.save_array(str(tmp_path / "padded.zarr"), padded)
    np.testing.assert_array_equal(kann.States.open(tmp_path / "padded.zarr").padded(), padded)
    group = zarr.open_group(str(tmp_path / "group.zarr"), mode="w")
    group.create_array("values", data=padded)
    group.create_array("lengths", data=np.array([5, 2, 3]))
    states = kann.States.open(tmp_path / "group.zarr")
    np.testing.assert_array_equal(states[1], padded[1, :2])
    np.testing.assert_allclose(kann.fit(states).matrix, kann.fit(padded, lengths=[5, 2, 3]).matrix, atol=1e-12)
    zarr.open_group(str(tmp_path / "other.zarr"), mode="w").create_array("weights", data=padded)
    with pytest.raises(KannError, match="no array 'values'"):
        kann.States.open(tmp_path / "other.zarr")
    (tmp_path / "folder").mkdir()
    with pytest.raises(KannError, match="is not a zarr store"):
        kann.States.open(tmp_path / "folder")


def test_saving_replaces_a_store_and_nothing_else(tmp_path, states):
    states.save(tmp_path / "s.zarr")
    states[:3].save(tmp_path / "s.zarr")
    assert len(kann.States.open(tmp_path / "s.zarr")) == 3
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    with pytest.raises(KannError, match="exists and is no store of states"):
        states.save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "precious"


FULL_DISK = """
import resource, signal, sys
import numpy as np, kann
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
big = kann.States.from_sequences([np.random.default_rng(0).normal(size=(5000, 8))])
thing = {"states": big, "moments": kann.Moments.of(big), "koopman": kann.fit(big, rank=1)}[sys.argv[2]]
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # from here on no file can grow beyond 100 bytes
try:
    thing.save(sys.argv[1])
except OSError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("what", ["states", "moments", "koopman"])
def test_a_full_disk_leaves_what_was_there(tmp_path, what):
    """A limit on file size stands for a full disk: the operating system refuses the write half way."""
    old = kann.States.from_sequences([np.eye(3)])
    path = tmp_path / "saved"
    saved = {"states": old, "moments": kann.Moments.of(old), "koopman": kann.fit(old, rank=1)}[what]
    saved.save(path)
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FULL_DISK, str(path), what], capture_output=True, text=True, check=True
    )
    assert "could not save" in answer.stdout
    assert "what was there before is unchanged" in answer.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    reopen = {"states": kann.States.open, "moments": kann.Moments.load, "koopman": kann.Koopman.load}[what]
    assert repr(reopen(path)) == repr(saved)


def test_the_limit_used_above_is_real():
    assert hasattr(resource, "RLIMIT_FSIZE")
    assert hasattr(signal, "SIGXFSZ")


def test_without_zarr_the_error_names_the_extra(monkeypatch, tmp_path, states):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"pip install 'kann\[zarr\]'"):
        states.save(tmp_path / "s.zarr")


def test_saving_never_replaces_what_is_not_its_own(tmp_path, states):
    zarr.open_group(str(tmp_path / "other.zarr"), mode="w").create_array("precious", data=np.ones(3))
    with pytest.raises(KannError, match="is no store of states"):
        states.save(tmp_path / "other.zarr")
    (tmp_path / "results").mkdir()
    for thing in (kann.Moments.of(states), kann.fit(states)):
        with pytest.raises(KannError, match="results is a folder; pass the name of a file"):
            thing.save(tmp_path / "results")
    with pytest.raises(KannError, match=r"would be read as a numpy file; pass a name such as s\.zarr"):
        states.save(tmp_path / "s.npz")


def _flip(path, place, bit=3):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("what", ["values", "inputs"])
def test_a_flipped_bit_in_a_chunk_is_an_error_that_names_the_part(tmp_path, rng, states, small_parts, what):
    states.save(tmp_path / "s.zarr")
    chunk = tmp_path / "s.zarr" / what / "000003" / "c" / "0" / "0"
    _flip(chunk, int(rng.integers(len(chunk.read_bytes()))))
    opened = kann.States.open(tmp_path / "s.zarr")
    with pytest.raises(KannError, match=r"part 3 of .*s\.zarr is damaged \(.*checksum.*\); record or save it again"):
        kann.Moments.of(opened)


def test_a_flipped_bit_in_metadata_is_never_believed(tmp_path, rng, states, small_parts):
    """Whatever it hits: the states are those that were saved, or an error says that they are damaged."""
    path = tmp_path / "s.zarr"
    states.save(path)
    files = [path / place / "zarr.json" for place in ("", "values", "inputs", "values/000001", "inputs/000002")]
    for _ in range(150):
        file = files[int(rng.integers(len(files)))]
        whole = file.read_bytes()
        _flip(file, int(rng.integers(len(whole))), int(rng.integers(8)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                opened = kann.States.open(path)
                np.testing.assert_array_equal(opened.lengths, states.lengths)
                np.testing.assert_array_equal(np.asarray(opened.values), states.values)
                np.testing.assert_array_equal(np.asarray(opened.inputs), states.inputs)
            except KannError as error:
                assert "\n" not in str(error)  # noqa: PT017
        file.write_bytes(whole)


@pytest.mark.parametrize(
    "attributes",
    [
        {"parts": 10**9},
        {"parts": -1},
        {"parts": 1.5},
        {"parts": None},
        {"parts": "3"},
        {"parts": 2},
        {"complete": "yes"},
        {"sequences": 61},
        {"states": 0},
        {"version": None},
        {"version": "1"},
        {"version": [1]},
    ],
)
def test_edited_metadata_are_refused_at_once(tmp_path, states, small_parts, attributes):
    states.save(tmp_path / "s.zarr")
    _edit_root(tmp_path / "s.zarr", **attributes)
    with pytest.raises(KannError, match=r"s\.zarr (is truncated or damaged|has no valid format)"):
        kann.States.open(tmp_path / "s.zarr")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"[" * 10**5, b"\xff", b'{"zarr_format": 9}'])
@pytest.mark.parametrize("where", ["zarr.json", "values/000001/zarr.json"])
def test_metadata_that_are_no_metadata_are_refused(tmp_path, states, small_parts, content, where):
    states.save(tmp_path / "s.zarr")
    (tmp_path / "s.zarr" / where).write_bytes(content)
    with pytest.raises(KannError, match=r"s\.zarr (is truncated or damaged|is not a zarr store)"):
        kann.States.open(tmp_path / "s.zarr")


def test_a_part_that_claims_more_than_its_chunks_hold_takes_no_memory(tmp_path, states):
    kann.States(values=states.values, lengths=states.lengths).save(tmp_path / "s.zarr")
    meta = tmp_path / "s.zarr" / "values" / "000000" / "zarr.json"
    content = json.loads(meta.read_text())
    content["shape"][0] = content["chunk_grid"]["configuration"]["chunk_shape"][0] = 10**12
    content["attributes"]["lengths"] = [10**12]
    meta.write_text(json.dumps(content))
    _edit_root(tmp_path / "s.zarr", sequences=1, states=10**12)
    values, _, _ = store.read(tmp_path / "s.zarr", slice(0, 1))
    with pytest.raises(KannError, match=r"part 0 of .* is damaged \(chunk 0 has \d+ bytes, not"):
        values.read(0, 5)


@pytest.mark.parametrize("edited", ["values", "lengths"])
def test_zarr_that_claims_more_sequences_than_it_holds_takes_no_memory(tmp_path, rng, monkeypatch, edited):
    path = tmp_path / "s.zarr"
    group = zarr.open_group(str(path), mode="w")
    group.create_array("values", data=rng.normal(size=(3, 5, 2)))
    if edited == "lengths":
        group.create_array("lengths", data=np.array([5, 2, 3]))
    with monkeypatch.context() as small:
        small.setattr(store, "ALWAYS_UNPACKED", 8)
        assert len(kann.States.open(path)) == 3  # an honest claim
    meta = path / edited / "zarr.json"
    content = json.loads(meta.read_text())
    for count in (10**10, 2**62):
        content["shape"][0] = count
        meta.write_text(json.dumps(content))
        for opened in {"values": [path, path / "values"], "lengths": [path]}[edited]:
            with pytest.raises(KannError, match=rf"claims {count} sequences .* holds \d+ bytes; write it again"):
                kann.States.open(opened)


def test_zarr_that_claims_values_without_chunks_is_refused(tmp_path):
    """Missing chunks read as zeros: a few hundred bytes would be hours of them."""
    zarr.create_array(str(tmp_path / "s.zarr"), shape=(10**6, 10**4, 64), chunks=(1, 10**4, 64), dtype="f4")
    with pytest.raises(KannError, match=r"claims 1000000 sequences .* and holds \d+ bytes; write it again"):
        kann.States.open(tmp_path / "s.zarr")


def test_stores_of_older_releases_open_as_before(tmp_path, rng):
    """Without checksums, without an identity, and without a word on whether they are complete."""
    rows = rng.normal(size=(7, 3))
    root = zarr.open_group(str(tmp_path / "old.zarr"), mode="w", zarr_format=3)
    root.attrs.update({"kind": "kann.States", "version": 1, "parts": 2})
    for number, (part, lengths) in enumerate([(rows[:5], [2, 3]), (rows[5:], [2])]):
        root.create_array(
            f"values/{number:06d}",
            data=part,
            chunks=part.shape,
            compressors=None,
            fill_value=np.nan,
            attributes={"lengths": lengths},
        )
    opened = kann.States.open(tmp_path / "old.zarr")
    assert opened.lengths.tolist() == [2, 3, 2]
    np.testing.assert_array_equal(np.asarray(opened.values), rows)
    opened[:2].save(tmp_path / "old.zarr")  # and are replaced
    assert len(kann.States.open(tmp_path / "old.zarr")) == 2


def test_a_store_that_is_replaced_while_it_is_read_is_noticed(tmp_path, states, small_parts):
    states.save(tmp_path / "s.zarr")
    opened = kann.States.open(tmp_path / "s.zarr")
    opened.values[0:3]
    kann.States(values=2 * states.values, lengths=states.lengths, inputs=states.inputs).save(tmp_path / "s.zarr")
    with pytest.raises(KannError, match=r"s\.zarr was replaced or removed after it was opened; open it again"):
        kann.fit(opened)
    shutil.rmtree(tmp_path / "s.zarr")
    with pytest.raises(KannError, match="was replaced or removed"):
        opened[5]


def test_ctrl_c_while_a_part_is_written_loses_nothing(tmp_path, states, small_parts, monkeypatch):
    """The first write of the fourth part is interrupted, whatever that part had on disk by then."""
    write, calls = store.Writer._write, []

    def interrupted(self, what, sequences):
        write(self, what, sequences)
        calls.append(what)
        if len(calls) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(store.Writer, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt), store.Writer(tmp_path / "s.zarr") as writer:
        for i in range(len(states)):
            rows = states.span(i)
            writer.append(states.values[rows], states.lengths[i : i + 1], states.inputs[rows])
    with pytest.warns(UnfinishedWarning):
        opened = kann.States.open(tmp_path / "s.zarr")
    assert 3 < len(opened) < len(states)
    np.testing.assert_array_equal(np.asarray(opened.values), states[: len(opened)].values)
    np.testing.assert_array_equal(np.asarray(opened.inputs), states[: len(opened)].inputs)


RECORDING = """
import signal, sys, numpy as np
from kann.data import store
from kann.data.store import recording_to
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and their children, ignore it
store.PART_BYTES = 10 * 8 * 8
with recording_to(sys.argv[1]) as writer:
    for n in range(10**6):
        writer.append(np.full((4, 8), float(n)), np.array([4]))
        if n == 20:
            print("ready", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("taken", [False, True])
def test_a_recording_that_is_stopped_keeps_what_was_finished(tmp_path, rng, states, how, taken):
    path = tmp_path / "s.zarr"
    if taken:
        states.save(path)
    command = [sys.executable, "-c", RECORDING, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        run.stdout.readline()
        time.sleep(rng.uniform(0.2, 0.5))
        run.send_signal(how)
        _, said = run.communicate()
    kept = path
    if taken or how == signal.SIGKILL:
        (kept,) = tmp_path.glob("s.zarr.*.unfinished")
    with pytest.warns(UnfinishedWarning):
        opened = kann.States.open(kept)
    assert len(opened) > 1
    np.testing.assert_array_equal(np.asarray(opened.values)[::4, 0], np.arange(len(opened)))
    if taken:
        assert len(kann.States.open(path)) == len(states)
    elif how == signal.SIGKILL:
        with pytest.raises(FileNotFoundError, match=rf"no states at .*; a recording that was stopped is at {kept}"):
            kann.States.open(path)
    if how == signal.SIGINT:
        assert f"{len(opened)} finished sequences are in {kept}" in said


def test_a_folder_that_also_holds_other_files_is_never_replaced(tmp_path, states):
    path = tmp_path / "s.zarr"
    states.save(path)
    for place in ("thesis.tex", "values/notes.md", "values/000000/c/0/mine", "plots/a.png"):
        file = path / place
        file.parent.mkdir(exist_ok=True)
        file.write_text("precious")
        with pytest.raises(KannError, match=r"s\.zarr also holds .*, which is not part of a store; move it away"):
            states.save(path)
        with pytest.raises(KannError, match="which is not part of a store"), recordings.recording_to(path):
            pass
        assert file.read_text() == "precious"
        file.unlink()
        if place.startswith("plots"):
            file.parent.rmdir()
    (path / "values" / "000000" / "zarr.0123abcd.partial").touch()  # what a kill in zarr leaves
    states.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.zarr"]


def test_a_folder_into_which_files_came_meanwhile_is_not_replaced(tmp_path, states):
    path = tmp_path / "s.zarr"
    states.save(path)
    with pytest.raises(KannError, match="which is not part of a store") as caught, recordings.recording_to(path) as new:
        new.append(states.values, states.lengths)
        (path / "notes.md").write_text("precious")
    assert (path / "notes.md").read_text() == "precious"
    (kept,) = tmp_path.glob("s.zarr.*.unfinished")
    assert caught.value.__notes__ == [f"60 finished sequences are in {kept}; {path} is as before"]
    assert len(kann.States.open(kept)) == 60  # and complete


def test_damaged_chunks_of_zarr_written_by_others_are_named(tmp_path, rng):
    zarr.save_array(str(tmp_path / "padded.zarr"), rng.normal(size=(3, 5, 2)))
    (chunk,) = (tmp_path / "padded.zarr").glob("c/*/*/*")
    chunk.write_bytes(b"no chunk")
    with pytest.raises(KannError, match=r"padded\.zarr.* is damaged \(.*\); write it again"):
        kann.fit(kann.States.open(tmp_path / "padded.zarr"))
