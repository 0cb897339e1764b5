"""Read ECG5000 from the files that the UCR archive publishes, and check that it is ECG5000.

Each of the two splits is published as ``.txt`` (class first, blanks between), ``.ts`` (class last, behind a colon) and
``.arff`` (class last, behind a comma); the archive's zip holds all six files. The classes are 1 for normal and 2 to 5
for four kinds of anomaly. Copies in which every anomaly is called 2 are read too: nothing here tells them apart.
"""

import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from kann.checks import short_repr
from kann.data.archives import damage_explained
from kann.errors import KannError
from kann.zoo.autoencoder import Beats

CLASSES = (1, 2, 3, 4, 5)

LARGEST_FILE = 32 * 2**20
"""Bytes of a file, on disk or inside a zip, beyond which it is not read: the largest official one has 10 MB."""

NORMALISATION_TOLERANCE = 1e-3
"""How far mean and deviation of a beat may be from 0 and 1. The archive prints seven digits, so 1e-6 is its worst."""


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
"""What the UCR archive publishes."""


def read_beats(path: str | os.PathLike[str], *, counts: Counts = OFFICIAL) -> Beats:
    """All beats of a folder or a zip with both splits, those of ``_TRAIN`` first."""
    path = Path(path)
    parts = []
    for name, content, expected in _read_splits(path, counts):
        part = parse(content, name=name, samples=counts.samples)
        if len(part.labels) != expected:
            raise KannError(
                f"{name} in {path} holds {len(part.labels)} beats; there should be {expected}; fetch it again"
            )
        parts.append(part)
    values = np.concatenate([part.values for part in parts])  # (n, t)
    labels = np.concatenate([part.labels for part in parts])  # (n,)
    beats = Beats(values=values, labels=labels)
    _require_official(beats, counts, path)
    return beats


def read_file(path: str | os.PathLike[str], *, samples: int = OFFICIAL.samples) -> Beats:
    """The beats of one ``.txt``, ``.ts`` or ``.arff`` file."""
    path = Path(path)
    return parse(_content(path), name=path.name, samples=samples)


def _content(path: Path) -> bytes:
    """The content of a regular file that is no larger than a file of ECG5000 can be."""
    if path.exists() and not path.is_file():  # to open a named pipe would wait until somebody writes to it
        raise KannError(f"{path} is not a regular file; pass a file of ECG5000")
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise KannError(f"{path} has {size} bytes; no file of ECG5000 is as large; fetch it again")
        return path.read_bytes()
    except OSError as error:
        raise KannError(f"{path} cannot be read ({error.strerror or error}); pass a file of ECG5000") from error


def parse(content: bytes, *, name: str, samples: int = OFFICIAL.samples) -> Beats:
    """The beats of a file with this name and content."""
    read_rows = READERS.get(PurePosixPath(name).suffix.lower())
    if read_rows is None:
        raise KannError(f"{name} is of no known kind; pass one of {', '.join(READERS)}")
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise KannError(f"{name} is no text ({error.reason} at byte {error.start}); fetch it again") from error
    values, labels = [], []
    for number, label, entries in read_rows(lines):
        where = f"{name}, line {number}"
        if len(entries) != samples:
            raise KannError(f"{where}: {len(entries)} samples; a beat has {samples}; fetch the file again")
        values.append(_numbers(entries, where))
        labels.append(_label(label, where))
    if not labels:
        raise KannError(f"{name} holds no beats; fetch it again")
    return Beats(values=np.array(values), labels=np.array(labels))


def _numbers(entries: list[str], where: str) -> list[float]:
    """The samples of a beat; ``where`` is the file and the line, for an error."""
    try:
        numbers = [float(entry) for entry in entries]
    except ValueError as error:
        raise KannError(f"{where}: {error}; fetch the file again") from error
    if not np.isfinite(numbers).all():
        raise KannError(f"{where}: a sample is not finite; fetch the file again")
    return numbers


def _label(text: str, where: str) -> int:
    """The class of a beat; the text files write it as ``1.0000000e+00``."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0  # no class, so it is refused below
    if value not in CLASSES:
        raise KannError(
            f"{where}: class {short_repr(text)} is none of {', '.join(map(str, CLASSES))}; fetch the file again"
        )
    return int(value)


Rows = Iterator[tuple[int, str, list[str]]]
"""For each beat the number of its line, its class as text, and its samples as text."""


def _rows_of_txt(lines: list[str]) -> Rows:
    for number, line in enumerate(lines, start=1):
        entries = line.split()
        if entries:
            yield number, entries[0], entries[1:]


def _rows_of_arff(lines: list[str]) -> Rows:
    for number, line in _lines_after_header(lines, comment="%"):
        *entries, label = line.split(",")
        yield number, label.strip(), entries


def _rows_of_ts(lines: list[str]) -> Rows:
    for number, line in _lines_after_header(lines, comment="#"):
        series, _, label = line.rpartition(":")
        yield number, label.strip(), series.split(",")


def _lines_after_header(lines: list[str], *, comment: str) -> Iterator[tuple[int, str]]:
    """The lines after ``@data`` that are neither empty nor a comment, with their numbers."""
    in_data = False
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if in_data and line and not line.startswith(comment):
            yield number, line
        in_data = in_data or line.lower() == "@data"


READERS = {".txt": _rows_of_txt, ".ts": _rows_of_ts, ".arff": _rows_of_arff}
"""How each kind of file is read, the preferred one first."""


def _file_of_split(names: list[str], split: str, path: Path) -> str:
    """The name of the file that holds a split, of the preferred kind if there are several."""
    for suffix in READERS:
        for name in names:
            if PurePosixPath(name).name == f"ECG5000_{split}{suffix}":
                return name
    kinds = ", ".join(READERS)
    raise KannError(f"{path} has no ECG5000_{split} ({kinds}); put the file there, or fetch the zip again")


def _read_splits(path: Path, counts: Counts) -> Iterator[tuple[str, bytes, int]]:
    """For each split the name and content of its file in a folder or a zip, and how many beats it should hold."""
    splits = {"TRAIN": counts.train, "TEST": counts.test}
    if path.is_file():
        yield from _read_zip(path, splits)
        return
    if not path.is_dir():
        raise KannError(f"there is nothing at {path}; pass the folder or the zip of ECG5000")
    found = [file.name for file in sorted(path.glob("ECG5000_*"))]
    for split, expected in splits.items():
        name = _file_of_split(found, split, path)
        yield name, _content(path / name), expected


def _read_zip(path: Path, splits: dict[str, int]) -> Iterator[tuple[str, bytes, int]]:
    """The same of a zip. Nothing is unpacked to disk, and in memory only the two files that are used."""
    with (
        damage_explained(path, problem="is no whole zip", remedy="fetch it again"),
        zipfile.ZipFile(path) as archive,
    ):
        members = archive.infolist()
        for member in members:
            _refuse_dangerous(member, path)
        found = [member.filename for member in members if not member.is_dir()]
        for split, expected in splits.items():
            name = _file_of_split(found, split, path)
            yield name, archive.read(name), expected


def _refuse_dangerous(member: zipfile.ZipInfo, path: Path) -> None:
    """Refuse a member that is too large, or whose path would leave the folder.

    Such a path does no harm here, where nothing is unpacked; but whoever made the file meant harm.
    """
    name = PurePosixPath(member.filename.replace("\\", "/"))
    if name.is_absolute() or ".." in name.parts or ":" in member.filename:
        raise KannError(
            f"{path} holds {short_repr(member.filename)}, a path that leaves its folder; do not use this file"
        )
    if member.file_size > LARGEST_FILE:
        raise KannError(f"{member.filename} in {path} has {member.file_size} bytes; no file of ECG5000 is as large")


def _require_official(beats: Beats, counts: Counts, path: Path) -> None:
    """Refuse beats that are not those of the archive, by their number and by how they are normalised."""
    normal = len(beats.normal)
    if normal != counts.normal:
        raise KannError(f"{path} holds {normal} normal beats; there should be {counts.normal}; fetch it again")
    means, deviations = beats.values.mean(axis=1), beats.values.std(axis=1, ddof=1)
    worst = max(float(np.abs(means).max()), float(np.abs(deviations - 1).max()))
    if worst > NORMALISATION_TOLERANCE:
        raise KannError(
            f"{path} holds beats whose mean is not 0 or whose variance is not 1 (off by {worst:.2g}); fetch it again"
        )
