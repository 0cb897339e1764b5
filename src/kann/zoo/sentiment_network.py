"""The network that judges film reviews, and the trained one that ships with the package."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from kann.analysis.trust import Trust
from kann.data.archives import damage_explained
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.typing import Float, Int
from kann.zoo.files import PROVENANCE, WEIGHTS, folder, read_provenance, require_files
from kann.zoo.trust_file import trust_from_json
from kann.zoo.vocabulary import Vocabulary

VOCABULARY, OPERATOR, TRUST = "vocabulary.json", "koopman.npz", "trust.json"
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
        """How many words the network knows."""
        return self.embedding.num_embeddings

    def states(self, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """The hidden state after each word."""
        return self.recurrent(self.embedding(ids))[0]

    def forward(self, ids: Int[Tensor, "b t"], lengths: Any = None) -> Float[Tensor, " b"]:
        """The logit of each review, read out after its last word; what follows the last word is padding."""
        h = self.states(ids)  # (b, t, d)
        if lengths is None:
            last = h[:, -1]
        else:
            ends = torch.as_tensor(lengths, device=h.device) - 1
            last = h[torch.arange(len(ids), device=h.device), ends]
        return self.readout(last).squeeze(-1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pretrained:
    """A network that judges film reviews, ready to be analysed."""

    network: SentimentNetwork
    vocabulary: Vocabulary
    koopman: Koopman
    """The operator fitted to 5,000 training reviews, without padding."""
    trust: Trust
    """How far its modes can be trusted, measured on those of the reviews that were held out in turn."""
    modes: tuple[int, ...]
    """Its modes by how much their contribution to the logit varies, the most important first."""


def pretrained(place: str | os.PathLike[str] | None = None) -> Pretrained:
    """The network that ships with the package, or the one in the folder ``place``."""
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
    with damage_explained(place / TRUST, problem="does not say how far modes can be trusted", remedy="reinstall kann"):
        trust = trust_from_json((place / TRUST).read_text(encoding="utf-8"))
        if len(trust.modes) != len(koopman.modes):
            raise ValueError(f"it has {len(trust.modes)} modes and the operator {len(koopman.modes)}")
    provenance = read_provenance(place)
    with damage_explained(place / PROVENANCE, problem="does not name the modes", remedy="reinstall kann"):
        modes = tuple(range(len(koopman.modes))[mode] for mode in provenance["modes"])
    return Pretrained(network=network, vocabulary=vocabulary, koopman=koopman, trust=trust, modes=modes)


def read_network(path: Path, *, words: int) -> SentimentNetwork:
    """A GRU of the size that its weights have; ``words`` is the size of the vocabulary that came with them."""
    with damage_explained(path, problem="holds no sentiment network", remedy="reinstall kann"):
        weights = load_file(path)
        known, embedding = weights["embedding.weight"].shape
        units = weights["readout.weight"].shape[1]
    if known != words:
        raise KannError(
            f"the vocabulary has {words} words and the weights in {path} are for {known}; "
            "pass the vocabulary that the network was trained with"
        )
    # A new network draws starting weights; the caller's random numbers must not depend on that.
    with torch.random.fork_rng(devices=[]):
        network = SentimentNetwork(words=words, arch="gru", units=units, embedding=embedding)
    with damage_explained(path, problem="holds weights that are not those of a sentiment GRU", remedy="reinstall kann"):
        # Files hold half precision, which is too coarse to compute with on a CPU.
        network.load_state_dict({name: value.float() for name, value in weights.items()})
    network.requires_grad_(False)
    return network.eval()
