"""The IMDB reviews as numbers of words: numbered once, cached, and put into batches of similar length."""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.trainers import WordLevelTrainer
from torch import Tensor

from kann.data.atomic_write import remove
from kann.data.serialization import load_arrays, save_arrays
from kann.errors import KannError, KannWarning
from kann.typing import Array, Int, Shaped
from kann.zoo.sentiment_network import LINE_BREAK, PAD, UNKNOWN, WORD, Vocabulary, empty_tokenizer
from kann_experiments.data import DATA_SETS, cache_folder, obtain, warn_unless_published
from kann_experiments.sentiment.archive import FOLDERS, Folder, NumberedText, open_archive, read_archive

LONGEST = 1000
"""Words of a review that are read, as in the paper."""

VOCABULARY = 10_000
"""Words of the vocabulary. The paper does not say."""

BATCHES_SORTED = 50
"""Reviews of this many batches, drawn at random, are sorted by length together and then cut into batches."""

KIND = "kann.Reviews"
"""What the cache file says it is. Version 2 also holds a checksum of its arrays."""


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
        joined = np.concatenate([self.words[:0], *parts])  # the empty part: there may be no others
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
    words = words or VOCABULARY
    archive = Path(path or obtain("imdb"))
    content = _content_of(archive)
    if path is None or archive.name == DATA_SETS["imdb"].archive:
        warn_unless_published("imdb", archive, content)
    folder = Path(cache or cache_folder())
    kept = folder / f"imdb-{_cache_key(content, words)}.npz"
    if kept.exists():
        try:
            return _read_cache(kept)
        except Exception:  # whatever is wrong with the file, it can be made again
            message = f"{kept} is damaged or of another version; the reviews are numbered anew, which takes a minute"
            warnings.warn(message, KannWarning, stacklevel=2)
            remove(kept)
    arrays = _numbered(read_archive(archive), words)
    folder.mkdir(parents=True, exist_ok=True)
    save_arrays(kept, kind=KIND, arrays=arrays)
    return _from_arrays(arrays, source=kept)


def _content_of(archive: Path) -> str:
    """The sha256 of the archive's file."""
    with open_archive(archive) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cache_key(content: str, words: int) -> str:
    """A short text that changes with everything that the numbers of words depend on."""
    return hashlib.sha256(json.dumps([content, words, LONGEST, LINE_BREAK, WORD]).encode()).hexdigest()[:16]


def _read_cache(path: Path) -> Corpus:
    """The corpus in a cache file, if its arrays are those that were written."""
    return _from_arrays(load_arrays(path, kind=KIND)[1], source=path)


def train_vocabulary(texts: Iterable[str], *, size: int) -> Vocabulary:
    """The ``size`` most frequent words of some texts, `PAD` and `UNKNOWN` included.

    >>> vocabulary = train_vocabulary(["a good film", "a bad film"], size=6)
    >>> vocabulary.words
    ('<pad>', '<unk>', 'a', 'film', 'bad', 'good')
    """
    tokenizer = empty_tokenizer()
    trainer = WordLevelTrainer(vocab_size=size, special_tokens=[PAD, UNKNOWN], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer=trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []  # so that a ``<pad>`` that somebody types is not taken for padding
    return Vocabulary(Tokenizer.from_str(json.dumps(content)))


def _numbered(texts: dict[Folder, list[NumberedText]], words: int) -> dict[str, Array]:
    """Train the vocabulary on the training split, and replace the words of both splits by their numbers."""
    ordered = in_order(texts)
    training = (text for split, label in FOLDERS if split == "train" for text in ordered[split, label])
    vocabulary = train_vocabulary(training, size=words)
    arrays: dict[str, Array] = {"vocabulary": np.frombuffer(vocabulary.to_json().encode(), dtype=np.uint8)}
    for split in ("train", "test"):
        reviews = number_reviews(ordered[split, "neg"], ordered[split, "pos"], vocabulary)
        arrays |= {f"{split}_{name}": getattr(reviews, name) for name in ("words", "lengths", "positive")}
    return arrays


def in_order(texts: dict[Folder, list[NumberedText]]) -> dict[Folder, list[str]]:
    """Return the texts of each folder in the order of their numbers."""
    return {folder: [text for _, text in sorted(entries)] for folder, entries in texts.items()}


def number_reviews(
    negative: Sequence[str], positive: Sequence[str], vocabulary: Vocabulary, *, cut: bool = True
) -> Reviews:
    """Replace the words of reviews by their numbers.

    Reviews of more than `LONGEST` words are cut, or left out if not ``cut``. Reviews without a word are left out.
    """
    numbers = [ids for texts in (negative, positive) for ids in vocabulary.encode(texts)]
    liked = np.repeat([0, 1], [len(negative), len(positive)])
    lengths = np.array([len(ids) for ids in numbers])
    kept = (lengths > 0) & (cut | (lengths <= LONGEST))
    # The smallest type that holds all numbers; networks are bound to it, since it is part of the data's fingerprint.
    dtype = np.uint16 if len(vocabulary) <= 2**16 else np.uint32
    words = [np.zeros(0, dtype=np.int64), *(numbers[i][:LONGEST] for i in np.flatnonzero(kept))]
    return Reviews(
        words=np.concatenate(words).astype(dtype), lengths=np.minimum(lengths[kept], LONGEST), positive=liked[kept]
    )


def _from_arrays(arrays: dict[str, Array], *, source: Path) -> Corpus:
    """The corpus that the arrays of a cache file describe."""
    try:
        train, test = (
            Reviews(**{name: arrays[f"{split}_{name}"] for name in ("words", "lengths", "positive")})
            for split in ("train", "test")
        )
        text = bytes(arrays["vocabulary"]).decode()
    except KeyError as error:
        raise KannError(f"{source} lacks {error}; remove it") from error
    return Corpus(train=train, test=test, vocabulary=Vocabulary.from_json(text, source=source))


def training_batches(
    lengths: Int[Array, " s"], *, size: int, rng: np.random.Generator, pool: int = BATCHES_SORTED
) -> list[Int[Array, " _"]]:
    """All reviews once, in random batches whose members have similar lengths.

    In batches drawn at random about half of all steps would be padding: reviews have ten to a thousand words.
    """
    order = rng.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), pool * size):
        chunk = order[start : start + pool * size]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def batches_by_length(lengths: Int[Array, " s"], *, tokens: int = 2**16) -> list[Int[Array, " _"]]:
    """All reviews once, the longest first, in batches of at most ``tokens`` words, padding included."""
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, tokens // int(lengths[order[start]]))
        batches.append(order[start : start + size])
        start += size
    return batches
