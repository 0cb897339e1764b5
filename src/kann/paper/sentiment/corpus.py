"""The IMDB reviews: read from the archive, numbered, cached, and put into batches of similar length."""

import hashlib
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kann.data.files import load_npz, save_npz
from kann.errors import KannError
from kann.paper.data import cache_folder, obtain
from kann.typing import Array, Int, Shaped
from kann.zoo.vocabulary import LINE_BREAK, WORD, Vocabulary

FOLDERS = tuple((split, feeling) for split in ("train", "test") for feeling in ("neg", "pos"))
PER_FOLDER = 12_500
"""Reviews in each of the four folders of the official archive."""

MEMBER = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d{1,9})_(\d{1,2})\.txt")
"""A review: its number and its stars."""

LARGEST = 2**20
"""Bytes of a review; the longest of the official ones has 14 thousand."""

LONGEST = 1000
"""Words of a review that are read, as in the paper."""

VOCABULARY = 10_000
"""Words of the vocabulary. The paper does not say."""

POOL = 50
"""So many batches' worth of reviews, drawn at random, are sorted by length and cut into batches."""

KIND, VERSION = "kann.Reviews", 1

Text = tuple[int, str]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reviews:
    """Reviews as numbers of words, one after the other."""

    words: Shaped[Array, " n"]
    """Numbers of the words of all reviews."""
    lengths: Int[Array, " s"]
    """(S,) words of each review."""
    positive: Int[Array, " s"]
    """(S,) 1 where the author liked the film."""
    starts: Int[Array, " s"] = field(init=False, repr=False)
    """(S,) where each review begins in ``words``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.cumsum(self.lengths) - self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: Any) -> Int[Array, " t"]:
        """The words of one review."""
        return self.words[self.starts[i] : self.starts[i] + self.lengths[i]].astype(np.int64)

    def take(self, which: Any) -> "Reviews":
        """Some of the reviews."""
        which = np.asarray(which)
        parts = [self.words[self.starts[i] : self.starts[i] + self.lengths[i]] for i in which]
        joined = np.concatenate(parts) if parts else self.words[:0]
        return Reviews(words=joined, lengths=self.lengths[which], positive=self.positive[which])

    def batch(self, which: Any, *, length: int | None = None) -> tuple[Int[Tensor, "b t"], Int[Tensor, " b"]]:
        """Some reviews padded with zeros to the longest of them, or to ``length``, and their lengths."""
        lengths = torch.as_tensor(self.lengths[which])
        ids = torch.zeros(len(lengths), length or int(lengths.max()), dtype=torch.int64)
        for row, i in enumerate(which):
            ids[row, : int(self.lengths[i])] = torch.from_numpy(self[i])
        return ids, lengths


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Corpus:
    """All reviews and the vocabulary in which they are written."""

    train: Reviews
    test: Reviews
    vocabulary: Vocabulary


def load_corpus(
    path: str | os.PathLike[str] | None = None, *, words: int | None = None, cache: str | os.PathLike[str] | None = None
) -> Corpus:
    """The reviews of the archive at ``path``, or wherever the archive is found.

    ``words`` is the size of the vocabulary. What was numbered once is kept in the folder ``cache``.
    """
    words = VOCABULARY if words is None else words
    archive = Path(obtain("imdb") if path is None else path)
    folder = Path(cache_folder() if cache is None else cache)
    kept = folder / f"imdb-{_settings(archive, words)}.npz"
    if kept.exists():
        try:
            return _from_arrays(load_npz(kept, kind=KIND, version=VERSION), source=kept)
        except KannError:  # what is broken or foreign is made anew
            kept.unlink()
    arrays = _number(read_archive(archive), words)
    folder.mkdir(parents=True, exist_ok=True)
    save_npz(kept, kind=KIND, version=VERSION, arrays=arrays)
    return _from_arrays(arrays, source=kept)


def _settings(archive: Path, words: int) -> str:
    """A name for everything that numbers of words depend on."""
    with _opened(archive) as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(json.dumps([content, words, LONGEST, LINE_BREAK, WORD]).encode()).hexdigest()[:16]


def _opened(archive: Path) -> BufferedReader:
    try:
        return open(archive, "rb")
    except OSError as error:
        raise KannError(f"the archive {archive} cannot be read ({error.strerror}); pass the path of a file") from error


def _number(texts: dict[tuple[str, str], list[Text]], words: int) -> dict[str, Array]:
    """Train the vocabulary on the training split, and number both."""
    ordered = {folder: [text for _, text in sorted(entries)] for folder, entries in texts.items()}
    vocabulary = Vocabulary.train((text for folder in FOLDERS[:2] for text in ordered[folder]), size=words)
    arrays: dict[str, Array] = {"vocabulary": np.frombuffer(vocabulary.to_json().encode(), dtype=np.uint8)}
    kind = np.uint16 if len(vocabulary) <= 2**16 else np.uint32
    for split in ("train", "test"):
        numbered = [ids[:LONGEST] for feeling in ("neg", "pos") for ids in vocabulary.encode(ordered[split, feeling])]
        positive = np.repeat([0, 1], [len(ordered[split, "neg"]), len(ordered[split, "pos"])])
        written = np.array([len(ids) > 0 for ids in numbered])
        arrays[f"{split}_words"] = np.concatenate(numbered).astype(kind)
        arrays[f"{split}_lengths"] = np.array([len(ids) for ids in numbered])[written]  # a review of no word is none
        arrays[f"{split}_positive"] = positive[written]
    return arrays


def _from_arrays(arrays: dict[str, Array], *, source: Path) -> Corpus:
    try:
        train, test = (
            Reviews(**{name: arrays[f"{split}_{name}"] for name in ("words", "lengths", "positive")})
            for split in ("train", "test")
        )
        text = bytes(arrays["vocabulary"]).decode()
    except KeyError as error:
        raise KannError(f"{source} lacks {error}; remove it") from error
    return Corpus(train=train, test=test, vocabulary=Vocabulary.from_json(text, source=source))


def read_archive(path: str | os.PathLike[str], *, per_folder: int | None = None) -> dict[tuple[str, str], list[Text]]:
    """Number and text of each review, by split and feeling. Nothing is written to disk, whatever the archive holds."""
    texts: dict[tuple[str, str], list[Text]] = {folder: [] for folder in FOLDERS}
    wanted = PER_FOLDER if per_folder is None else per_folder
    with _opened(Path(path)) as file:
        try:
            with tarfile.open(fileobj=file, mode="r|*") as archive:  # a stream: one member at a time
                for folder, number, text in _reviews(archive):
                    texts[folder].append((number, text))
                    if len(texts[folder]) > wanted:
                        where = "/".join(folder)
                        raise KannError(f"{path} holds more than {wanted} reviews in {where}; fetch it again")
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise KannError(f"{path} is no whole tar archive ({error}); fetch it again") from error
    if any(len(entries) != wanted for entries in texts.values()):
        _refuse_counts(path, texts, wanted)
    return texts


def _refuse_counts(path: Any, texts: dict[tuple[str, str], list[Text]], wanted: int) -> None:
    found = ", ".join(f"{len(entries)} in {split}/{feeling}" for (split, feeling), entries in texts.items())
    missing = [f"aclImdb/{split}/{feeling}" for (split, feeling), entries in texts.items() if not entries]
    what = f"lacks the folder {missing[0]}" if missing else "does not hold as many reviews as it should"
    raise KannError(f"{path} {what}: {found}, where {wanted} each are due; fetch it again")


def _reviews(archive: tarfile.TarFile) -> Iterator[tuple[tuple[str, str], int, str]]:
    """Every review of a stream, checked; other files are passed over, and whatever could lead elsewhere is refused."""
    for member in archive:
        name = member.name
        if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or re.match(r"[A-Za-z]:", name):
            raise KannError(f"the archive holds {name!r}, which leads out of its folder; fetch the official one")
        if member.issym() or member.islnk():
            raise KannError(f"the archive holds the link {name!r}; the official one has none, fetch it again")
        match = MEMBER.fullmatch(name)
        if match is None or not member.isreg():
            continue
        if member.size > LARGEST:
            raise KannError(f"{name} has {member.size} bytes; a review has at most {LARGEST}; fetch the archive again")
        content: Any = archive.extractfile(member)
        try:
            text = content.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise KannError(f"{name} is not UTF-8 text ({error}); fetch the archive again") from error
        yield (match[1], match[2]), int(match[3]), text


def batches_of(
    lengths: Int[Array, " s"], *, size: int, rng: np.random.Generator, pool: int = POOL
) -> list[Int[Array, " _"]]:
    """All reviews once, in random batches whose members have similar lengths."""
    order = rng.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), pool * size):
        chunk = order[start : start + pool * size]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def by_length(lengths: Int[Array, " s"], *, tokens: int = 2**16) -> list[Int[Array, " _"]]:
    """All reviews once, the longest first, in batches of at most so many words, padding included."""
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, tokens // int(lengths[order[start]]))
        batches.append(order[start : start + size])
        start += size
    return batches
