"""Reviews as the authors' published code reads them, and their trained GRU, for users who have both files.

The repository azencot-group/KANN holds them in its folder ``notebook``: ``imdb.vocab`` and ``gru_weights_….pt``. Texts
are split at blanks and into word pieces, reviews of more than 1,000 pieces are left out, and reviews are padded with
``<unk>``, whose vector is trained. The published training also carries the state from one batch to the next; here each
review starts at zero, as in the published analysis.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor

from kann.data.archives import damage_explained, require_file
from kann.errors import KannError
from kann.zoo.sentiment_network import UNKNOWN, SentimentNetwork, Vocabulary
from kann_experiments.data import obtain
from kann_experiments.sentiment.archive import read_archive
from kann_experiments.sentiment.corpus import Corpus, in_order, number_reviews
from kann_experiments.sentiment.task import Config

NAMES = {
    "embedding.weight": "embedding.weight",
    "rnn.weight_ih": "recurrent.weight_ih_l0",
    "rnn.weight_hh": "recurrent.weight_hh_l0",
    "rnn.bias_ih": "recurrent.bias_ih_l0",
    "rnn.bias_hh": "recurrent.bias_hh_l0",
    "linear.weight": "readout.weight",
    "linear.bias": "readout.bias",
}
"""Weights of the published model, which steps a GRUCell, and their names here. Both order the gates alike."""

LONGEST_WORD = 100
"""Characters of a word that is split into pieces; a longer one is unknown. The published code counts bytes."""


def with_reading(configs: Mapping[str, Config], pieces: bool) -> dict[str, Config]:
    """Return the same configurations, with the vector that pads trained if reviews are read as word pieces."""
    return {arch: replace(config, padding_trained=pieces) for arch, config in configs.items()}


def load_pieces(path: str | os.PathLike[str], *, archive: str | os.PathLike[str] | None = None) -> Corpus:
    """Read the reviews as pieces of the words in the authors' list at ``path``, one piece in each line."""
    vocabulary = read_pieces(path)
    texts = in_order(read_archive(archive or obtain("imdb")))
    train, test = (
        number_reviews(texts[split, "neg"], texts[split, "pos"], vocabulary, cut=False) for split in ("train", "test")
    )
    return Corpus(train=train, test=test, vocabulary=vocabulary)


def read_pieces(path: str | os.PathLike[str]) -> Vocabulary:
    """Read a list of word pieces. Its first line is ``<unk>``, and pieces inside a word begin with ``##``."""
    path = Path(path)
    require_file(path)
    with damage_explained(path, problem="is no list of word pieces", remedy="pass the published imdb.vocab"):
        # Only line feeds end a line: some pieces are control characters at which splitlines() would split too.
        pieces = path.read_bytes().decode().removesuffix("\n").split("\n")
    if pieces[0] != UNKNOWN or len(set(pieces)) != len(pieces):
        raise KannError(f"{path} does not list {UNKNOWN} first and each piece once; pass the published imdb.vocab")
    numbers = {piece: number for number, piece in enumerate(pieces)}
    model = models.WordPiece(
        numbers, unk_token=UNKNOWN, continuing_subword_prefix="##", max_input_chars_per_word=LONGEST_WORD
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return Vocabulary(tokenizer)


def read_authors_network(path: str | os.PathLike[str], *, words: int) -> SentimentNetwork:
    """Read the published weights into a network of the same size; ``words`` is the number of word pieces."""
    path = Path(path)
    require_file(path)
    with damage_explained(path, problem="is no file of weights", remedy="pass the published gru_weights_….pt"):
        weights: Any = torch.load(path, map_location="cpu", weights_only=True)
        found = {name: tuple(value.shape) for name, value in weights.items() if isinstance(value, Tensor)}
    if found.keys() != NAMES.keys():
        raise KannError(f"{path} holds {', '.join(found) or 'no tensors'}; the published model has {', '.join(NAMES)}")
    known, embedding = found["embedding.weight"]
    if known != words:
        raise KannError(
            f"the weights in {path} are for {known} word pieces and the list has {words}; pass its own list"
        )
    network = SentimentNetwork(words=words, arch="gru", units=found["linear.weight"][1], embedding=embedding)
    with damage_explained(path, problem="does not fit a GRU", remedy="pass the published gru_weights_….pt"):
        network.load_state_dict({NAMES[name]: value for name, value in weights.items()})
    return network.eval().requires_grad_(False)
