"""Write files and folders whole or not at all."""

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import platform
import re
import shutil
import stat
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from kann.errors import KannError

LEFTOVER = re.compile(r"\.kann-(?:([0-9a-f]{8})-([0-9a-f]+)-)?[0-9a-f]{16}\.tmp")
"""Names of temporary files and folders, with the machine and the process that writes; releases up to 0.2 named neither.
They are short: a name of 255 bytes leaves no room to add to it."""

STALE_SECONDS = 7 * 24 * 3600
"""Age at which temporary files are removed if their process cannot be asked for, as it ran on another machine. Clocks
may be wrong by hours, and removing a file that is being written loses it."""

ATTEMPTS = 10
"""Number of attempts when another process puts something under the same name at the same moment."""

LONGEST_STEM = 200
"""Bytes of a name to which an ending is added; most file systems allow 255 in all."""

_TURN = threading.Lock()
"""Threads of this process put things in place one after the other."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path next to ``path``; when the block ends well, put what was written there in its place.

    A link stays a link: its target is replaced. The new file or folder gets mode and owner of the old one. When
    the block fails, by a full disk or Ctrl-C included, the temporary file or folder is removed and ``path`` is as
    before. Only a process that is killed leaves one behind, and the next `replacing` in that folder sweeps it.
    """
    with _unchanged_on_failure(path):
        target = resolve_target(path)
        with _temporary(target.parent) as temporary:
            yield temporary
            put_in_place(temporary, target)


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Give a free name in a folder, and remove what is there in the end. Remove what killed processes left, too."""
    sweep(folder)
    temporary = folder / f".kann-{_machine()}-{os.getpid():x}-{uuid.uuid4().hex[:16]}.tmp"
    try:
        yield temporary
    finally:
        try:
            remove(temporary)
        except OSError:
            time.sleep(0.05)  # a thread of zarr that Ctrl-C did not reach may have been writing
            with contextlib.suppress(OSError):  # what still stays is swept later
                remove(temporary)


@contextlib.contextmanager
def _unchanged_on_failure(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno, f"could not save: {error.strerror or error}; what was there before is unchanged", str(path)
        ) from error


@contextlib.contextmanager
def replacing_files(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Give a temporary folder; when the block ends well, the files in it replace those of these names in ``folder``.

    Each name is replaced in one step, in the order of ``names``, and those not written this time are removed. When the
    block fails, ``folder`` is unchanged.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _unchanged_on_failure(folder), _temporary(folder) as temporary:
            temporary.mkdir()
            yield temporary
            for name in names:
                if (temporary / name).exists():
                    put_in_place(temporary / name, folder / name)
                else:
                    remove(folder / name)
    except BaseException:
        if not existed:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only if it is empty
        raise


def resolve_target(path: str | os.PathLike[str]) -> Path:
    """Return the file or folder that writing to ``path`` replaces, behind links; raise for devices, FIFOs, sockets."""
    with contextlib.suppress(FileNotFoundError):
        require_plain(path)
    return Path(os.path.realpath(path))


def require_plain(path: str | os.PathLike[str]) -> os.stat_result:
    """Raise for a device, a FIFO or a socket: replacing one would break it, and reading from one may never end."""
    try:
        found = os.stat(path)
    except ValueError as error:  # such as a null byte
        raise KannError(f"{os.fspath(path)!r} is no path ({error}); pass the name of a file") from error
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(found.st_mode), "a device")
        raise KannError(f"{path} is {kind}, not a regular file; pass the path of a file")
    return found


def require_plain_tree(path: str | os.PathLike[str]) -> None:
    """Raise for a FIFO, device or socket anywhere in a folder: reading a FIFO in place of a chunk would never end."""
    require_plain(path)
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                require_plain(Path(folder, name))
            except OSError as error:  # a link into nowhere or in a circle: zarr would take it as missing, or hang
                raise KannError(f"{Path(folder, name)} cannot be read ({error.strerror}); save it again") from error


def put_in_place(source: Path, target: Path) -> None:
    """Put ``source`` where ``target`` is, in one step; of two folders, the old one is then where ``source`` was."""
    if target.exists() and target.is_dir() != source.is_dir():
        kinds = ("file", "folder") if source.is_dir() else ("folder", "file")
        raise KannError(f"{target} is a {kinds[0]}; pass the name of a {kinds[1]}")
    _take_mode_of(target, source)
    if not source.is_dir():
        os.replace(source, target)
        return
    with _TURN:
        for _ in range(ATTEMPTS):
            try:
                if not target.exists():
                    os.replace(source, target)
                elif not exchange_atomically(source, target):
                    _put_aside(source, target)
                return
            except OSError as error:  # another process was faster
                if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY):
                    raise
    raise OSError(errno.EBUSY, "others write to the same path", str(target))


def _put_aside(source: Path, target: Path) -> None:
    """Replace a folder without an atomic exchange: the old one moves aside first, and comes back whatever happens."""
    aside = beside(target, "replaced")
    try:
        os.replace(target, aside)
        os.replace(source, target)
    finally:
        if not target.exists():
            os.replace(aside, target)
        remove(aside)


def exchange_atomically(one: Path, other: Path) -> bool:
    """Exchange two names in one step, as Linux can on most file systems; False where it cannot be done."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of <fcntl.h>
    if rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _take_mode_of(old: Path, new: Path) -> None:
    """Give what replaces ``old`` its owner, where we may, and its mode."""
    try:
        found = old.stat()
    except FileNotFoundError:
        return
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):
            os.chown(new, found.st_uid, found.st_gid)
    with contextlib.suppress(OSError):  # some file systems have no modes
        new.chmod(stat.S_IMODE(found.st_mode))


def beside(path: Path, ending: str) -> Path:
    """Return a free name in the same folder that begins like ``path``, for what its owner should be able to find."""
    return path.with_name(f"{_stem(path)}.{uuid.uuid4().hex[:8]}.{ending}")


def all_beside(path: Path, ending: str) -> list[Path]:
    """Return the temporary files of this path and ending, as named by `beside`."""
    named = re.compile(re.escape(_stem(path)) + r"\.[0-9a-f]{8}\." + re.escape(ending))
    try:
        return sorted(entry for entry in path.parent.iterdir() if named.fullmatch(entry.name))
    except OSError:
        return []


def _stem(path: Path) -> str:
    return os.fsencode(path.name)[:LONGEST_STEM].decode(errors="ignore")


def sweep(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left in this folder."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            name = LEFTOVER.fullmatch(entry.name)
            if name is not None and not entry.is_symlink():
                with contextlib.suppress(OSError):
                    if _is_abandoned(Path(entry), *name.groups()):
                        remove(Path(entry))


def _is_abandoned(path: Path, machine: str | None, process: str | None) -> bool:
    """Return whether a temporary file is abandoned: its process has ended or, if that is unknown, it is old."""
    if process is None or machine != _machine() or sys.platform == "win32":  # there, asking for a process ends it
        # A store's metadata are written to its folder after each of its parts.
        return path.lstat().st_mtime < time.time() - STALE_SECONDS
    try:
        os.kill(int(process, 16), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it runs, and belongs to somebody else
        pass
    return False


@functools.cache
def _machine() -> str:
    """Return a short name of this machine, or of the container in which process numbers are valid."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {namespace}".encode()).hexdigest()[:8]


def remove(path: Path) -> None:
    """Remove a file or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
