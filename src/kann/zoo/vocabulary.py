"""Words and their numbers: a vocabulary trained on reviews, which also finds the position of each word in a text."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.data.archives import damage_explained
from kann.errors import KannError
from kann.typing import Array, Int

try:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
except ImportError as error:
    raise ImportError("reviews are split into words with tokenizers: pip install 'kann[paper]'") from error

PAD, UNKNOWN = "<pad>", "<unk>"
"""Numbers 0 and 1. No word of a text can be one of them, since ``<`` and ``>`` are words of their own."""

LINE_BREAK = r"<br\s*/?>"
"""Reviews were written for web pages; their line breaks are read as blanks."""

WORD = r"\w+(?:'\w+)*|[^\w\s\p{C}]"
"""Letters and digits, with apostrophes inside ("don't" is one word), or a single other sign that can be seen."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Words that a network knows, in lower case, the most frequent first.

    >>> vocabulary = Vocabulary.train(["a good film", "a bad film"], size=6)
    >>> vocabulary.words
    ('<pad>', '<unk>', 'a', 'film', 'bad', 'good')
    >>> vocabulary.encode(["A good plot"])
    [array([2, 5, 1])]
    """

    tokenizer: Tokenizer

    @staticmethod
    def train(texts: Iterable[str], *, size: int) -> "Vocabulary":
        """The ``size`` most frequent words of some texts, `PAD` and `UNKNOWN` included."""
        tokenizer = _empty_tokenizer()
        trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=[PAD, UNKNOWN], show_progress=False)
        tokenizer.train_from_iterator(texts, trainer=trainer)
        return Vocabulary(_without_special_tokens(tokenizer))

    @staticmethod
    def from_json(text: str, *, source: Any = "the vocabulary") -> "Vocabulary":
        """The vocabulary that `to_json` wrote; ``source`` is what errors call it."""
        with damage_explained(source, problem="cannot be read as a vocabulary", remedy="build it anew"):
            tokenizer = Tokenizer.from_str(text)
        if (tokenizer.token_to_id(PAD), tokenizer.token_to_id(UNKNOWN)) != (0, 1):
            raise KannError(f"{source} does not begin with {PAD} and {UNKNOWN}; pass one that kann made")
        if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
            raise KannError(f"{source} does not number its words from 0 on without a gap; build it anew")
        if _settings(tokenizer) != _settings(_empty_tokenizer()):
            raise KannError(f"{source} splits words in another way than kann; pass one that kann made")
        return Vocabulary(tokenizer)

    def to_json(self) -> str:
        """The vocabulary as JSON, in the format of the tokenizers library."""
        return self.tokenizer.to_str()

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    @property
    def words(self) -> tuple[str, ...]:
        """Every word, in the order of its number."""
        numbered = self.tokenizer.get_vocab()
        return tuple(sorted(numbered, key=numbered.__getitem__))

    def number(self, word: str) -> int:
        """The number of a word that is in the vocabulary."""
        found = self.tokenizer.token_to_id(word)
        if found is None:
            raise KannError(f"the word {word!r} is not in the vocabulary of {len(self)} words; pass another one")
        return found

    def encode(self, texts: Sequence[str]) -> list[Int[Array, " _"]]:
        """Numbers of the words of each text."""
        return [np.array(each.ids, dtype=np.int64) for each in self.tokenizer.encode_batch_fast(list(texts))]

    def locate(self, text: str) -> tuple[Int[Array, " t"], list[tuple[int, int]]]:
        """Numbers of the words of a text, and where in the text each begins and ends."""
        found = self.tokenizer.encode(text)
        return np.array(found.ids, dtype=np.int64), list(found.offsets)


def _empty_tokenizer() -> Tokenizer:
    """A tokenizer that splits texts into words and knows none."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(  # type: ignore[assignment]
        [normalizers.Replace(Regex(LINE_BREAK), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)  # type: ignore[assignment]
    return tokenizer


def _settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything about a tokenizer but the words that it knows."""
    content = json.loads(tokenizer.to_str())
    content["model"].pop("vocab")
    return content


def _without_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer without special tokens, so that a ``<pad>`` that somebody types is not taken for padding."""
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(content))
