"""Read the reviews out of the IMDB archive, checked against its official layout, without extracting anything."""

import bz2
import gzip
import lzma
import os
import re
import tarfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from kann.checks import short_repr
from kann.data.archives import damage_explained
from kann.errors import KannError

Folder = tuple[str, str]
"""A folder of the archive: the split ("train" or "test") and the label ("neg" or "pos")."""

NumberedText = tuple[int, str]
"""A review: its number in the archive and its text."""

FOLDERS: tuple[Folder, ...] = tuple((split, label) for split in ("train", "test") for label in ("neg", "pos"))

PER_FOLDER = 12_500
"""Reviews in each of the four folders of the official archive."""

REVIEW_PATH = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d{1,9})_(\d{1,2})\.txt")
"""Path of a review in the archive: split, label, number and stars."""

MAX_REVIEW_BYTES = 2**20
"""A larger review is refused; the longest of the official ones has 14 thousand bytes."""

MAX_UNPACKED_BYTES = 2**30
"""An archive that declares more is refused; the official one has about 300 million bytes."""

MAX_MEMBERS = 200_000
"""An archive with more members is refused; the official one has about 100,000."""

DECOMPRESSORS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
"""What unpacks an archive that begins with these bytes; any other is read as it is."""


def read_archive(path: str | os.PathLike[str], *, per_folder: int | None = None) -> dict[Folder, list[NumberedText]]:
    """All reviews by folder, each with its number. Nothing is written to disk, whatever the archive holds."""
    texts: dict[Folder, list[NumberedText]] = {folder: [] for folder in FOLDERS}
    wanted = per_folder or PER_FOLDER
    with (
        open_archive(Path(path)) as file,
        damage_explained(path, problem="is no whole tar archive", remedy="fetch it again"),
    ):
        unpacked = BoundedReader(_decompressed(file))
        with tarfile.open(fileobj=unpacked, mode="r:") as archive:  # type: ignore[arg-type]
            for folder, number, text in iterate_reviews(archive):
                texts[folder].append((number, text))
                if len(texts[folder]) > wanted:
                    where = "/".join(folder)
                    raise KannError(f"{path} holds more than {wanted} reviews in {where}; fetch it again")
        unpacked.read_to_end()
    _require_counts(path, texts, wanted)
    return texts


def open_archive(path: Path) -> BufferedReader:
    """The archive's file, or an error that names it."""
    if path.exists() and not path.is_file():  # to open a named pipe would wait until somebody writes to it
        raise KannError(f"the archive {path} is not a regular file; pass the path of a file")
    try:
        return open(path, "rb")
    except OSError as error:
        raise KannError(f"the archive {path} cannot be read ({error.strerror}); pass the path of a file") from error


def _decompressed(file: BufferedReader) -> Any:
    """The file as it was before it was compressed; what unpacks it compares the checksums in it."""
    decompressor = DECOMPRESSORS.get(file.peek(2)[:2])
    if decompressor is None:
        return file
    return decompressor(file, "rb")


class BoundedReader:
    """The unpacked bytes of an archive, as far as an honest one goes. It goes forward only, as tarfile does.

    tarfile's own streams skip what a member declares block by block, far beyond the end of the file, and do not compare
    the checksum of a gzip file.
    """

    def __init__(self, file: Any):
        self._file = file

    def tell(self) -> int:
        """The position in the unpacked archive."""
        return self._file.tell()

    def seek(self, position: int) -> int:
        """Go to a position, if an honest archive can be that long."""
        if position > MAX_UNPACKED_BYTES:
            raise KannError(
                f"the archive declares {position} bytes or more; the official one has less than {MAX_UNPACKED_BYTES}, "
                "fetch it again"
            )
        return self._file.seek(position)

    def read(self, size: int) -> bytes:
        """Read this many bytes, or fewer at the end; no part of the archive that is kept is longer than a review."""
        if size > 2 * MAX_REVIEW_BYTES or self.tell() > MAX_UNPACKED_BYTES:
            raise KannError(f"the archive declares an entry of {size} bytes that no official one has; fetch it again")
        return self._file.read(size)

    def read_to_end(self) -> None:
        """Read the rest, so that the checksum at the end of a compressed file is compared."""
        while self.read(2**16):
            pass


def _require_counts(path: Any, texts: dict[Folder, list[NumberedText]], wanted: int) -> None:
    """Refuse an archive whose folders do not hold the official number of reviews."""
    if all(len(entries) == wanted for entries in texts.values()):
        return
    found = ", ".join(f"{len(entries)} in {split}/{label}" for (split, label), entries in texts.items())
    missing = [f"aclImdb/{split}/{label}" for (split, label), entries in texts.items() if not entries]
    what = "does not hold as many reviews as it should"
    if missing:
        what = f"lacks the folder {missing[0]}"
    raise KannError(f"{path} {what}: {found}, where {wanted} each are due; fetch it again")


def iterate_reviews(archive: tarfile.TarFile) -> Iterator[tuple[Folder, int, str]]:
    """Folder, number and text of every review. Links and paths out of the archive are refused."""
    for count, member in enumerate(archive):
        if count == MAX_MEMBERS:
            raise KannError(f"the archive has more than {MAX_MEMBERS} members; fetch the official one")
        name = member.name
        if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or re.match(r"[A-Za-z]:", name):
            raise KannError(
                f"the archive holds {short_repr(name)}, which leads out of its folder; fetch the official one"
            )
        if member.issym() or member.islnk():
            raise KannError(f"the archive holds the link {short_repr(name)}; the official one has none, fetch it again")
        match = REVIEW_PATH.fullmatch(name)
        if match is None or not member.isreg():
            continue  # the archive also holds a README, lists of addresses and reviews without labels
        if member.size > MAX_REVIEW_BYTES:
            raise KannError(
                f"{name} has {member.size} bytes; a review has at most {MAX_REVIEW_BYTES}; fetch the archive again"
            )
        content: Any = archive.extractfile(member)
        try:
            text = content.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise KannError(f"{name} is not UTF-8 text ({error}); fetch the archive again") from error
        yield (match[1], match[2]), int(match[3]), text
