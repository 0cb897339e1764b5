"""The one way to write: whole under its name or not at all."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kann
from kann.data import atomic_write
from kann.data.atomic_write import replacing
from kann.errors import KannError


@pytest.fixture
def operator(rng):
    return kann.fit(rng.normal(size=(3, 20, 4)))


@pytest.fixture
def states(rng):
    return kann.States.from_padded(rng.normal(size=(3, 20, 4)))


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt("No space left on device")]
)
@pytest.mark.parametrize("step", [1, 2])
def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch, error, step):
    """Where two folders cannot be exchanged in one step, the old one moves aside and comes back after any error."""
    old, moves = tmp_path / "folder", []
    old.mkdir()
    (old / "kept").write_text("precious")
    move = os.replace

    def fail_once(source, target):
        moves.append((source, target))
        if len(moves) == step:
            raise error
        move(source, target)

    monkeypatch.setattr(atomic_write, "exchange_atomically", lambda one, other: False)
    monkeypatch.setattr(os, "replace", fail_once)
    with pytest.raises(type(error), match="No space left on device"), replacing(old) as temporary:
        temporary.mkdir()
    assert (old / "kept").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("atomic", [True, False])
def test_a_folder_takes_the_place_of_another(tmp_path, monkeypatch, atomic):
    if not atomic:
        monkeypatch.setattr(atomic_write, "exchange_atomically", lambda one, other: False)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    with replacing(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "new").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["folder", "folder/new"]


@pytest.mark.skipif(sys.platform != "linux", reason="the exchange is Linux's")
def test_two_folders_are_exchanged_in_one_step(tmp_path):
    """Between two renames a kill would leave nothing under the name."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert atomic_write.exchange_atomically(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "other").exists()
    assert (tmp_path / "other" / "one").exists()


@pytest.fixture
def device(tmp_path):
    """A null device of our own: as root, a faulty `replacing` would replace that of the machine."""
    try:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        return "/dev/null"  # which we cannot replace either
    return tmp_path / "null"


def test_devices_fifos_and_sockets_are_never_replaced(tmp_path, operator, states, device):
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
    (tmp_path / "link").symlink_to(device)
    for path, kind in ((device, "device"), (tmp_path / "link", "device"), (tmp_path / "fifo", "FIFO")):
        for thing in (operator, kann.Moments.of(states), states):
            with pytest.raises(KannError, match=f"is a {kind}, not a regular file|no store of states"):
                thing.save(path)
    with pytest.raises(KannError, match="is a socket, not a regular file"):
        operator.save(tmp_path / "socket")
    assert stat.S_ISCHR(os.stat(device).st_mode)
    assert stat.S_ISFIFO(os.stat(tmp_path / "fifo").st_mode)


def test_links_stay_links(tmp_path, operator, states):
    (tmp_path / "data").mkdir()
    for name, thing, load in (("k.npz", operator, kann.Koopman.load), ("s.zarr", states, kann.States.open)):
        link, target = tmp_path / f"link-{name}", tmp_path / "data" / name
        link.symlink_to(target)
        for _ in range(2):  # the first time the link leads nowhere
            thing.save(link)
            assert link.is_symlink()
            assert repr(load(target)) == repr(thing)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["k.npz", "s.zarr"]


def test_the_mode_of_what_is_replaced_is_kept(tmp_path, operator, states):
    for name, thing, mode in (("k.npz", operator, 0o600), ("s.zarr", states, 0o700)):
        thing.save(tmp_path / name)
        (tmp_path / name).chmod(mode)
        thing.save(tmp_path / name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


@pytest.mark.parametrize("length", [241, 242, 255])
def test_names_may_be_as_long_as_the_file_system_allows(tmp_path, operator, states, length):
    for thing, load in ((operator, kann.Koopman.load), (states, kann.States.open)):
        path = tmp_path / (type(thing).__name__[0] * length)
        for _ in range(2):
            thing.save(path)
        assert repr(load(path)) == repr(thing)
    with pytest.raises(OSError, match="could not save: File name too long"):
        operator.save(tmp_path / ("n" * 256))


def test_leftovers_of_killed_processes_are_swept_and_nothing_else(tmp_path, operator):
    ours, fresh = tmp_path / ".kann-0123456789abcdef.tmp", tmp_path / ".kann-fedcba9876543210.tmp"
    folder = tmp_path / ".kann-00000000000000aa.tmp"
    others = [
        tmp_path / ".kann-notes.tmp",
        tmp_path / ".other.0123abcd.tmp",
        tmp_path / ".kann-0123456789abcdef.tmp.md",
    ]
    link = tmp_path / ".kann-aaaaaaaaaaaaaaaa.tmp"
    (tmp_path / "precious").mkdir()
    link.symlink_to(tmp_path / "precious")
    folder.mkdir()
    (folder / "part").touch()
    for path in (ours, fresh, *others):
        path.touch()
    old = time.time() - 2 * atomic_write.STALE_SECONDS
    for path in (ours, folder, *others):
        os.utime(path, (old, old))
    operator.save(tmp_path / "k.npz")
    assert sorted(tmp_path.iterdir()) == sorted([fresh, *others, link, tmp_path / "precious", tmp_path / "k.npz"])


def test_a_save_that_runs_is_not_swept_whatever_the_clock_says(tmp_path, operator, states, monkeypatch):
    """Even years ahead. What a process that ended left is swept at once, and what other machines left is kept."""
    with atomic_write.replacing(tmp_path / "live.npz") as live:
        live.write_bytes(b"live")
        with subprocess.Popen([sys.executable, "-c", ""]) as ended:
            pass
        mine, process = live.name.split("-")[1:3]
        dead = live.with_name(f".kann-{mine}-{ended.pid:x}-0123456789abcdef.tmp")
        elsewhere = live.with_name(f".kann-00000000-{process}-0123456789abcdef.tmp")
        for path in (dead, elsewhere):
            path.write_bytes(b"")
        operator.save(tmp_path / "k.npz")
        assert {path.name for path in tmp_path.iterdir()} == {live.name, elsewhere.name, "k.npz"}
        later = time.time() + 1e9
        monkeypatch.setattr(atomic_write.time, "time", lambda: later)
        states.save(tmp_path / "s.zarr")
        assert live.exists()
    assert (tmp_path / "live.npz").read_bytes() == b"live"


def test_threads_that_save_to_one_path_do_not_collide(tmp_path, operator, states):
    errors = []

    def save(thing, path):
        try:
            for _ in range(15):
                thing.save(path)
        except BaseException as error:
            errors.append(error)

    for thing, name in ((operator, "k.npz"), (states, "s.zarr")):
        threads = [threading.Thread(target=save, args=(thing, tmp_path / name)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.npz", "s.zarr"]
    np.testing.assert_array_equal(np.asarray(kann.States.open(tmp_path / "s.zarr").values), states.values)


SAVING = """
import signal, sys, numpy as np, kann
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and their children, ignore it
states = kann.States.from_sequences([np.full((40, 8), float(n)) for n in range(200)])
states.save(sys.argv[1])
print("ready", flush=True)
while True:
    states.save(sys.argv[1])
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_save_that_is_stopped_leaves_a_whole_store(tmp_path, rng, monkeypatch, how):
    path = tmp_path / "s.zarr"
    with subprocess.Popen([sys.executable, "-c", SAVING, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.readline()
        time.sleep(rng.uniform(0.05, 0.3))
        run.send_signal(how)
        run.communicate()
    opened = kann.States.open(path)
    assert len(opened) == 200
    np.testing.assert_array_equal(np.asarray(opened.values)[::40, 0], np.arange(200))
    monkeypatch.setattr(atomic_write, "STALE_SECONDS", -1)
    opened[:3].save(tmp_path / "other.zarr")  # and sweeps what may be left
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.zarr", "s.zarr"]
