"""Find the paper's data sets on this machine, or download them whole and check them.

They are looked for in ``KANN_DATA_DIR``, if that is set, and then in the user's cache folder, where downloads go.
"""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kann.data.atomic_write import replacing
from kann.errors import KannError, KannWarning

VARIABLE = "KANN_DATA_DIR"
"""Environment variable: a folder in which data sets are looked for first."""

DOWNLOAD_TIMEOUT = 60
"""Seconds without an answer after which a download has failed."""


def _no_check(path: Path) -> None:
    """Accept any download: one that has a checksum needs no further check."""


def _check_beats(path: Path) -> None:
    """Read the beats: there is no published checksum, so what the archive holds is checked instead."""
    from kann_experiments.ecg.beats import read_beats

    read_beats(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set: where it is downloaded from, and which files it consists of."""

    name: str
    about: str
    """What it is, in a line."""
    source: str
    """Its official address."""
    archive: str
    """The name of the file that is downloaded."""
    size: int
    """Bytes of the download, roughly where the address does not promise them."""
    sha256: str | None = None
    """Checksum of the download, if one is known."""
    unpacked: tuple[str, ...] = ()
    """Patterns of files that can stand in place of the archive; all must be there."""
    check: Callable[[Path], None] = _no_check
    """Raises KannError if a download is not what it should be."""


DATA_SETS = {
    "ecg5000": DataSet(
        name="ecg5000",
        about="ECG5000 of the UCR archive: 5,000 heartbeats of 140 samples",
        source="https://www.timeseriesclassification.com/aeon-toolkit/ECG5000.zip",
        archive="ECG5000.zip",
        size=10_500_000,
        unpacked=("ECG5000_TRAIN.*", "ECG5000_TEST.*"),
        check=_check_beats,
    ),
    "imdb": DataSet(
        name="imdb",
        about="Large Movie Review Dataset (Maas et al. 2011): 50,000 labelled reviews",
        source="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        archive="aclImdb_v1.tar.gz",
        size=84_125_825,
        sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A data set, and where it is on this machine."""

    name: str
    about: str
    source: str
    size: int
    """Bytes of the download."""
    path: Path | None
    """The archive or folder on this machine; None if it is not there."""


def status() -> list[Status]:
    """Every data set that the experiments use, and where it is on this machine."""
    return [
        Status(name=each.name, about=each.about, source=each.source, size=each.size, path=find(name))
        for name, each in DATA_SETS.items()
    ]


def cache_folder() -> Path:
    """The folder that downloads go to: the user's cache folder, as the operating system has it."""
    return Path(_pooch().os_cache("kann"))


def find(name: str) -> Path | None:
    """The archive or the folder of a data set, or None if it is not on this machine."""
    data = _known(name)
    for parent in _folders():
        for folder in (parent / name, parent):
            if data.unpacked and all(_has_file(folder, pattern) for pattern in data.unpacked):
                return folder
            if (folder / data.archive).is_file():
                return folder / data.archive
    return None


def _has_file(folder: Path, pattern: str) -> bool:
    """Whether a folder has a regular file of this pattern; a named pipe, say, is none."""
    return any(path.is_file() for path in folder.glob(pattern))


def locate(name: str) -> Path:
    """The archive or the folder of a data set that is on this machine."""
    path = find(name)
    if path is None:
        raise KannError(f"the data set {name} is not on this machine; {_remedy(_known(name))}")
    return path


def fetch(name: str) -> Path:
    """Download a data set into the cache folder, whole or not at all, and check it."""
    data = _known(name)
    target = cache_folder() / name / data.archive
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(target) as temporary:
            _download(data, temporary)
    finally:
        with contextlib.suppress(OSError):  # not empty: it holds this download, or an earlier one
            target.parent.rmdir()
    return target


def _download(data: DataSet, target: Path) -> None:
    """Download a data set to ``target`` and check it."""
    pooch = _pooch()
    try:
        with _quiet(pooch.get_logger()):
            pooch.retrieve(
                data.source,
                known_hash=data.sha256 and f"sha256:{data.sha256}",
                fname=target.name,
                path=target.parent,
                downloader=pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=DOWNLOAD_TIMEOUT),
            )
        data.check(target)
    except (OSError, ValueError) as error:
        # Every failure of requests is an OSError; a wrong checksum, or what `check` says, is a ValueError.
        reason = _reason(error).replace(target.name, data.archive)
        raise KannError(f"{data.source} gave no usable {data.archive} ({reason}); {_remedy(data)}") from error


def _reason(error: Exception) -> str:
    """What went wrong, in one line."""
    text = str(error)
    cause = getattr(next(iter(error.args), None), "reason", None)
    if cause is not None:
        # A connection failed: requests names the pool, the address and the number of tries before the reason itself.
        text = str(cause).rpartition("): ")[2]
    return " ".join(text.split()).rstrip(".")


def obtain(name: str) -> Path:
    """The data set from this machine, or else from the network."""
    return find(name) or fetch(name)


def warn_unless_published(name: str, path: Path, sha256: str) -> None:
    """Warn if a file with this checksum is not the one that is published. It may be a copy that was packed again."""
    data = _known(name)
    if data.sha256 is not None and sha256 != data.sha256:
        warnings.warn(
            f"{path} is not the published {data.archive} (its sha256 begins with {sha256[:8]}, not {data.sha256[:8]}); "
            f"if you did not pack it again yourself, remove it and run 'kann data fetch {name}'",
            KannWarning,
            stacklevel=3,
        )


def _known(name: str) -> DataSet:
    """The data set of this name, or an error that lists those that there are."""
    if name not in DATA_SETS:
        raise KannError(f"data set {name!r} is unknown; pass one of {', '.join(DATA_SETS)}")
    return DATA_SETS[name]


def _users_folder() -> Path | None:
    """The folder that the environment variable names, if it is set."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    return Path(folder).expanduser()


def _folders() -> Iterator[Path]:
    """Where to look for data sets, in this order."""
    folder = _users_folder()
    if folder is not None:
        yield folder
    try:
        cache = cache_folder()
    except ImportError:  # without pooch nothing is downloaded, but what the user has is found
        return
    yield cache


def _remedy(data: DataSet) -> str:
    """What to do if the data set is not there."""
    folder, setting = _users_folder(), ""
    if folder is None:
        folder, setting = Path("FOLDER"), f" and set {VARIABLE}=FOLDER"
    return (
        f"run 'kann data fetch {data.name}', or download {data.source} yourself and put it at "
        f"{folder / data.name / data.archive}{setting}"
    )


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch from announcing what the caller announces."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _pooch() -> Any:
    """The module pooch, or an error that names the extra to install."""
    try:
        import pooch
    except ImportError as error:
        raise ImportError("finding and downloading data needs pooch: pip install -e experiments") from error
    return pooch
