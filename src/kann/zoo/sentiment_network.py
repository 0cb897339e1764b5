"""The network that classifies film reviews, and the trained one that ships with the package."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from kann.analysis._trust import Trust
from kann.data.archives import damage_explained
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Array, Float, Int
from kann.zoo import PROVENANCE, WEIGHTS, folder, read_provenance, require_files, with_weights

try:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
except ImportError as error:
    raise ImportError("reviews are split into words with tokenizers: pip install 'kann[cli]'") from error

PAD, UNKNOWN = "<pad>", "<unk>"
"""Numbers 0 and 1. No word of a text can be one of them, since ``<`` and ``>`` are separate words."""

LINE_BREAK = r"<br\s*/?>"
"""Line breaks of web pages, which reviews contain, are read as blanks."""

WORD = r"\w+(?:'\w+)*|[^\w\s\p{C}]"
"""Letters and digits, with apostrophes inside ("don't" is one word), or a single other sign that can be seen."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Words that a network knows, in lower case, the most frequent first.

    >>> from kann import zoo
    >>> vocabulary = zoo.load("sentiment").vocabulary
    >>> vocabulary.words[:4]
    ('<pad>', '<unk>', 'the', '.')
    >>> vocabulary.encode(["A good, unheardofable plot"])
    [array([  6,  58,   4,   1, 124])]
    """

    tokenizer: Tokenizer

    @staticmethod
    def from_json(text: str, *, source: Any = "the vocabulary") -> "Vocabulary":
        """Return the vocabulary that `to_json` wrote; ``source`` is what errors call it."""
        with damage_explained(source, problem="cannot be read as a vocabulary", remedy="build it anew"):
            tokenizer = Tokenizer.from_str(text)
        if (tokenizer.token_to_id(PAD), tokenizer.token_to_id(UNKNOWN)) != (0, 1):
            raise KannError(f"{source} does not begin with {PAD} and {UNKNOWN}; pass one that kann made")
        if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
            raise KannError(f"{source} does not number its words from 0 on without a gap; build it anew")
        if _settings(tokenizer) != _settings(empty_tokenizer()):
            raise KannError(f"{source} splits words in another way than kann; pass one that kann made")
        return Vocabulary(tokenizer)

    def to_json(self) -> str:
        """Return the vocabulary as JSON, in the format of the tokenizers library."""
        return self.tokenizer.to_str()

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    @property
    def words(self) -> tuple[str, ...]:
        """Every word, in the order of its number."""
        numbered = self.tokenizer.get_vocab()
        return tuple(sorted(numbered, key=numbered.__getitem__))

    def number(self, word: str) -> int:
        """Return the number of a word that is in the vocabulary."""
        found = self.tokenizer.token_to_id(word)
        if found is None:
            raise KannError(f"the word {word!r} is not in the vocabulary of {len(self)} words; pass another one")
        return found

    def encode(self, texts: Sequence[str]) -> list[Int[Array, " _"]]:
        """Return numbers of the words of each text."""
        return [np.array(each.ids, dtype=np.int64) for each in self.tokenizer.encode_batch_fast(list(texts))]

    def locate(self, text: str) -> tuple[Int[Array, " t"], list[tuple[int, int]]]:
        """Return numbers of the words of a text, and where in the text each begins and ends."""
        found = self.tokenizer.encode(text)
        return np.array(found.ids, dtype=np.int64), list(found.offsets)


def empty_tokenizer() -> Tokenizer:
    """Return a tokenizer that splits texts into words and knows none."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(  # type: ignore[assignment]
        [normalizers.Replace(Regex(LINE_BREAK), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)  # type: ignore[assignment]
    return tokenizer


def _settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return everything about a tokenizer but the words that it knows."""
    content = json.loads(tokenizer.to_str())
    content["model"].pop("vocab")
    return content


REVIEWS, JOINED = "reviews.json", 3
"""The file of written reviews, and how many of them make one that is read."""

VOCABULARY, OPERATOR, TRUST = "vocabulary.json", "koopman.npz", "trust.npz"
"""Files that this network has besides its weights and provenance."""

Arch = Literal["gru", "lstm", "rnn"]


class SentimentNetwork(nn.Module):
    """Word embedding, recurrent layer, and a linear readout of its last state: positive for a positive review."""

    def __init__(self, *, words: int, arch: Arch, units: int, embedding: int):
        super().__init__()
        self.embedding = nn.Embedding(words, embedding, padding_idx=0)
        layer = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[arch]
        self.recurrent = layer(embedding, units, batch_first=True)
        self.readout = nn.Linear(units, 1)

    @property
    def words(self) -> int:
        """The number of words that the network knows."""
        return self.embedding.num_embeddings

    def states(self, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """Return the hidden state after each word."""
        return self.recurrent(self.embedding(ids))[0]

    def forward(self, ids: Int[Tensor, "b t"], lengths: Any = None) -> Float[Tensor, " b"]:
        """Return the logit of each review, read out after its last word; what follows the last word is padding."""
        h = self.states(ids)  # (b, t, d)
        ends = -1 if lengths is None else torch.as_tensor(lengths, device=h.device) - 1
        return self.readout(h[torch.arange(len(ids), device=h.device), ends]).squeeze(-1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pretrained:
    """A network that classifies film reviews, ready to be analysed."""

    network: SentimentNetwork
    vocabulary: Vocabulary
    koopman: Koopman
    """The operator fitted to 5,000 training reviews, without padding."""
    trust: Trust
    """The trust in its modes, on held-out reviews."""
    modes: tuple[int, ...]
    """Its modes in order of the variance of their contribution to the logit, largest first."""

    def reviews(self, count: int, *, seed: int = 0) -> tuple[list[str], list[str]]:
        """Return reviews and their labels, "negative" or "positive": each is put together from some of one label.

        These were written for kann, so that the same sentence is in several reviews.
        """
        written = json.loads((folder("sentiment") / REVIEWS).read_text(encoding="utf-8"))
        rng = np.random.default_rng(seed)
        labels = [written[number % len(written)]["label"] for number in range(count)]
        texts = []
        for label in labels:
            own = [review["text"] for review in written if review["label"] == label]
            texts.append(" ".join(rng.choice(own, size=JOINED, replace=False)))
        return texts, labels

    def draw(self, count: int, *, seed: int = 0) -> tuple[list[Int[Array, " _"]], list[list[str]], list[str]]:
        """Return `reviews` as the network reads them: the numbers of the words, the words, and the labels."""
        texts, labels = self.reviews(count, seed=seed)
        located = [self.vocabulary.locate(text) for text in texts]
        words = [[text[a:b].lower() for a, b in ends] for text, (_, ends) in zip(texts, located, strict=True)]
        return [numbers for numbers, _ in located], words, labels


def pretrained(place: str | os.PathLike[str] | None = None) -> Pretrained:
    """Return the network that ships with the package, or the one in the folder ``place``."""
    place = Path(place or folder("sentiment"))
    require_files(place, WEIGHTS, VOCABULARY, OPERATOR, TRUST, PROVENANCE)
    with damage_explained(place / VOCABULARY, problem="is no text", remedy="reinstall kann"):
        words = (place / VOCABULARY).read_text(encoding="utf-8")
    vocabulary = Vocabulary.from_json(words, source=place / VOCABULARY)
    network = read_network(place / WEIGHTS, words=len(vocabulary))
    koopman = Koopman.load(place / OPERATOR)
    if koopman.dim != network.readout.in_features:
        raise KannError(
            f"the operator in {place} is for {koopman.dim} hidden units; the network has "
            f"{network.readout.in_features}; reinstall kann"
        )
    trust = Trust.load(place / TRUST)
    if len(trust.modes) != len(koopman.modes):
        raise KannError(
            f"{place / TRUST} has {len(trust.modes)} modes and the operator {len(koopman.modes)}; reinstall kann"
        )
    provenance = read_provenance(place)
    with damage_explained(place / PROVENANCE, problem="does not name the modes", remedy="reinstall kann"):
        modes = tuple(range(len(koopman.modes))[mode] for mode in provenance["modes"])
    return Pretrained(network=network, vocabulary=vocabulary, koopman=koopman, trust=trust, modes=modes)


def read_network(path: Path, *, words: int) -> SentimentNetwork:
    """Return a GRU of the size that its weights have; ``words`` is the size of the vocabulary that came with them."""

    def make(weights: dict[str, Tensor]) -> SentimentNetwork:
        known, embedding = weights["embedding.weight"].shape
        if known != words:
            raise KannError(
                f"the vocabulary has {words} words and the weights in {path} are for {known}; "
                "pass the vocabulary that the network was trained with"
            )
        units = weights["readout.weight"].shape[1]
        return SentimentNetwork(words=words, arch="gru", units=units, embedding=embedding)

    return with_weights(path, make).requires_grad_(False)
