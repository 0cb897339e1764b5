"""Read ECG5000 from the files that the UCR archive publishes, and check that it is ECG5000.

Each of the two splits is published as ``.txt`` (class first, blanks between), ``.ts`` (class last, behind a colon) and
``.arff`` (class last, behind a comma); the archive's zip holds all six files. The classes are 1 for normal and 2 to 5
for four kinds of anomaly. Copies in which every anomaly is called 2 are read too: nothing here tells them apart.
"""

import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from kann.errors import KannError
from kann.zoo.heartbeats import Beats

CLASSES = (1, 2, 3, 4, 5)

LARGEST = 64 * 2**20
"""Bytes of a file inside a zip beyond which it is not read: the largest official one has 10 MB."""

NORMALISED = 1e-3
"""The archive's beats have mean 0 and variance 1 to the seven digits that are printed, so to 1e-6 at worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many beats there should be."""

    train: int
    """Beats of the file ``_TRAIN``."""
    test: int
    """Beats of the file ``_TEST``."""
    normal: int
    """Normal ones in both."""
    samples: int
    """Samples of each beat."""


OFFICIAL = Counts(train=500, test=4500, normal=2919, samples=140)


def read_beats(path: str | os.PathLike[str], *, counts: Counts = OFFICIAL) -> Beats:
    """All beats of a folder or a zip with both splits, those of ``_TRAIN`` first."""
    path = Path(path)
    files = _zipped(path) if path.is_file() else _unpacked(path)
    splits = []
    for split, expected in (("TRAIN", counts.train), ("TEST", counts.test)):
        name = _pick(list(files), split, path)
        splits.append(parse(files[name], name=name, samples=counts.samples))
        got = len(splits[-1].labels)
        if got != expected:
            raise KannError(f"{name} in {path} holds {got} beats; there should be {expected}; fetch it again")
    beats = Beats(
        values=np.concatenate([each.values for each in splits]), labels=np.concatenate([each.labels for each in splits])
    )
    _require_official(beats, counts, path)
    return beats


def read_file(path: str | os.PathLike[str], *, samples: int = OFFICIAL.samples) -> Beats:
    """The beats of one ``.txt``, ``.ts`` or ``.arff`` file."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KannError(f"{path} cannot be read ({error.strerror or error}); pass a file of ECG5000") from error
    return parse(content, name=path.name, samples=samples)


def parse(content: bytes, *, name: str, samples: int = OFFICIAL.samples) -> Beats:
    """The beats of a file with this name and content."""
    rows = ROWS.get(PurePosixPath(name).suffix.lower())
    if rows is None:
        raise KannError(f"{name} is of no known kind; pass one of {', '.join(ROWS)}")
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise KannError(f"{name} is no text ({error.reason} at byte {error.start}); fetch it again") from error
    values, labels = [], []
    for number, label, entries in rows(lines):
        where = f"{name}, line {number}"
        if len(entries) != samples:
            raise KannError(f"{where}: {len(entries)} samples; a beat has {samples}; fetch the file again")
        values.append(_numbers(entries, where))
        labels.append(_label(label, where))
    if not labels:
        raise KannError(f"{name} holds no beats; fetch it again")
    return Beats(values=np.array(values), labels=np.array(labels))


def _numbers(entries: list[str], where: str) -> list[float]:
    try:
        numbers = [float(entry) for entry in entries]
    except ValueError as error:
        raise KannError(f"{where}: {error}; fetch the file again") from error
    if not np.isfinite(numbers).all():
        raise KannError(f"{where}: a sample is not finite; fetch the file again")
    return numbers


def _label(text: str, where: str) -> int:
    """A class; the text files write it as ``1.0000000e+00``."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if value not in CLASSES:
        raise KannError(f"{where}: class {text!r} is none of {', '.join(map(str, CLASSES))}; fetch the file again")
    return int(value)


Rows = Iterator[tuple[int, str, list[str]]]
"""The number of a line, the class, and the samples, as text."""


def _rows_of_txt(lines: list[str]) -> Rows:
    for number, line in enumerate(lines, start=1):
        entries = line.split()
        if entries:
            yield number, entries[0], entries[1:]


def _rows_of_arff(lines: list[str]) -> Rows:
    for number, line in _behind_header(lines, comment="%"):
        *entries, label = line.split(",")
        yield number, label.strip(), entries


def _rows_of_ts(lines: list[str]) -> Rows:
    for number, line in _behind_header(lines, comment="#"):
        series, _, label = line.rpartition(":")
        yield number, label.strip(), series.split(",")


def _behind_header(lines: list[str], *, comment: str) -> Iterator[tuple[int, str]]:
    """Lines behind ``@data``."""
    inside = False
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if inside and line and not line.startswith(comment):
            yield number, line
        inside = inside or line.lower() == "@data"


ROWS = {".txt": _rows_of_txt, ".ts": _rows_of_ts, ".arff": _rows_of_arff}
"""How each kind of file is read, the preferred one first."""


def _pick(names: list[str], split: str, path: Path) -> str:
    """The file of a split."""
    for suffix in ROWS:
        for name in names:
            if PurePosixPath(name).name == f"ECG5000_{split}{suffix}":
                return name
    kinds = ", ".join(ROWS)
    raise KannError(f"{path} has no ECG5000_{split} ({kinds}); put the file there, or fetch the zip again")


def _unpacked(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    if not folder.is_dir():
        raise KannError(f"there is nothing at {folder}; pass the folder or the zip of ECG5000")
    wanted = [file for file in sorted(folder.glob("ECG5000_*")) if file.suffix in ROWS]
    return {file.name: file.read_bytes() for file in wanted}


def _zipped(path: Path) -> dict[str, bytes]:
    """The wanted files of a zip. Nothing is unpacked, so nothing can be written outside a folder; still, refuse it."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            for member in members:
                _require_tame(member, path)
            wanted = [each for each in members if PurePosixPath(each.filename).name.startswith("ECG5000_")]
            return {each.filename: archive.read(each) for each in wanted if not each.is_dir()}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise KannError(f"{path} is no whole zip ({error}); fetch it again") from error


def _require_tame(member: zipfile.ZipInfo, path: Path) -> None:
    name = PurePosixPath(member.filename.replace("\\", "/"))
    if name.is_absolute() or ".." in name.parts or ":" in member.filename:
        raise KannError(f"{path} holds {member.filename!r}, a path that leaves its folder; do not use this file")
    if member.file_size > LARGEST:
        raise KannError(f"{member.filename} in {path} has {member.file_size} bytes; no file of ECG5000 is as large")


def _require_official(beats: Beats, counts: Counts, path: Path) -> None:
    got = len(beats.normal)
    if got != counts.normal:
        raise KannError(f"{path} holds {got} normal beats; there should be {counts.normal}; fetch it again")
    off = np.abs(beats.values.mean(axis=1)), np.abs(beats.values.std(axis=1, ddof=1) - 1)
    worst = float(max(each.max() for each in off))
    if worst > NORMALISED:
        raise KannError(
            f"{path} holds beats whose mean is not 0 or whose variance is not 1 (off by {worst:.2g}); fetch it again"
        )
