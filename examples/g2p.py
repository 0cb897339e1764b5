"""Whether a network that turns spelling into sounds counts letters, and which clock runs to the end of a word.

    pip install 'kann[gallery]'
    python examples/g2p.py gallery

The package g2p_en has a GRU encoder that reads letters and a GRU decoder that says sounds, 256 units each, with its
weights in a file. They are rebuilt here as torch modules; the sounds of 1,000 words are compared with the package's
first. Words come from Python's own documentation, so that nothing is downloaded.
"""

import importlib
import re
import sys
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import kann

WORDS, COMPARED = 2000, 1000
"""How many words are looked at, and of how many the sounds are compared with the package's."""

START, END, LONGEST = 2, 3, 20
"""The package's numbers of the sounds <s> and </s>, and how many sounds it says at most."""


def package() -> object:
    """The package's own network, without the dictionaries of nltk that it would download when it is imported."""
    try:
        nltk = importlib.import_module("nltk")
        nltk.download = lambda *_, **__: False  # only words that are not in its dictionary come to the network
        made = object.__new__(importlib.import_module("g2p_en.g2p").G2p)
    except ImportError as error:
        raise SystemExit(f"g2p_en is not installed ({error}): pip install 'kann[gallery]'") from error
    try:
        made.__init__()
    except LookupError:  # the dictionary is read after the letters and sounds, and before the weights
        made.load_variables()
    return made


class Encoder(nn.Module):
    """Letters to states."""

    def __init__(self, units: int = 256):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(29, units), nn.GRU(units, units, batch_first=True)

    def forward(self, letters: Tensor, lengths: Tensor) -> Tensor:
        """The last state of each word, (b, units)."""
        packed = pack_padded_sequence(self.embed(letters), lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.rnn(packed)[1][0]


class Decoder(nn.Module):
    """What the network heard itself say, and where the encoder ended, to the next sound."""

    def __init__(self, units: int = 256):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(74, units), nn.GRUCell(units, units), nn.Linear(units, 74)

    def forward(self, sounds: Tensor, start: Tensor) -> Tensor:
        """The logits of the next sound after each of these, (b, t, 74)."""
        h, given = start, []
        for sound in self.embed(sounds).unbind(1):
            h = self.cell(sound, h)
            given.append(self.head(h))
        return torch.stack(given, dim=1)


def ported(made: object) -> tuple[Encoder, Decoder]:
    """The package's network as torch modules."""
    theirs = {name: torch.from_numpy(np.array(made.variables[name])) for name in made.variables.files}  # type: ignore[attr-defined]
    encoder, decoder = Encoder(theirs["enc_w_hh"].shape[1]), Decoder(theirs["dec_w_hh"].shape[1])
    parts = {"w_ih": "weight_ih", "w_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
    encoder.load_state_dict(
        {"embed.weight": theirs["enc_emb"]} | {f"rnn.{own}_l0": theirs[f"enc_{name}"] for name, own in parts.items()}
    )
    decoder.load_state_dict(
        {"embed.weight": theirs["dec_emb"], "head.weight": theirs["fc_w"], "head.bias": theirs["fc_b"]}
        | {f"cell.{own}": theirs[f"dec_{name}"] for name, own in parts.items()}
    )
    return encoder.eval(), decoder.eval()


def common_words(count: int) -> list[str]:
    """The commonest words of Python's documentation that have at least three letters."""
    found = Counter(re.findall(r"\b[a-z]{3,}\b", " ".join(topics.values()).lower()))
    return [word for word, _ in found.most_common(count)]


@torch.no_grad()
def said(decoder: Decoder, start: Tensor) -> list[list[int]]:
    """The sounds that the network says by itself for each word, without the end."""
    h, sound, rows = start, torch.full((len(start),), START), []
    for _ in range(LONGEST):
        h = decoder.cell(decoder.embed(sound), h)
        sound = decoder.head(h).argmax(dim=1)
        rows.append(sound)
    spoken = torch.stack(rows, dim=1).tolist()
    return [row[: row.index(END)] if END in row else row for row in spoken]


def probed(
    states: np.ndarray, wanted: np.ndarray, groups: np.ndarray, *, folds: int = 10
) -> tuple[float, float, float]:
    """R² of a linear ridge reading on words that were not fitted, and its 95 % interval over words."""
    rng, predicted = np.random.default_rng(0), np.zeros(len(wanted))
    fold_of = rng.permutation(groups.max() + 1)[groups] % folds
    for fold in range(folds):
        out = fold_of == fold
        x = states[~out] - states[~out].mean(axis=0)
        gram = x.T @ x + 1e-3 * np.trace(x.T @ x) / x.shape[1] * np.eye(x.shape[1])
        weight = np.linalg.solve(gram, x.T @ (wanted[~out] - wanted[~out].mean()))
        predicted[out] = (states[out] - states[~out].mean(axis=0)) @ weight + wanted[~out].mean()
    errors, around = (wanted - predicted) ** 2, (wanted - wanted.mean()) ** 2
    sums = np.stack([np.bincount(groups, weights=each) for each in (errors, around)])
    drawn = []
    for _ in range(1000):
        chosen = rng.integers(sums.shape[1], size=sums.shape[1])
        drawn.append(1 - sums[0, chosen].sum() / sums[1, chosen].sum())
    low, high = np.quantile(drawn, [0.025, 0.975])
    return 1 - errors.sum() / around.sum(), float(low), float(high)


def steps_of(states: kann.States) -> np.ndarray:
    """How many steps each state is from the beginning of its word, from 1 on."""
    return np.concatenate([np.arange(1.0, length + 1) for length in states.lengths])


def print_probe(what: str, *args: np.ndarray) -> None:
    """Print how well something can be read off states."""
    value, low, high = probed(*args)
    print(f"  {what}: R² {value:.3f} (95 %: {low:.3f} to {high:.3f})")


def count_letters(encoder: Encoder, letters: list[Tensor]) -> None:
    """Print whether the encoder knows how many letters it has read, beside an untrained one."""
    trained = kann.record(encoder, letters, layer="rnn", inputs=True, progress=False)
    untrained = kann.record(kann.recording.untrained_twin(encoder), letters, layer="rnn", progress=False)
    words, place = np.repeat(np.arange(len(trained)), trained.lengths), steps_of(trained)
    print("letters read so far, from the encoder's state:")
    for name, states in (("trained", trained), ("untrained", untrained)):
        print_probe(name, np.asarray(states.values, dtype=np.float64), place, words)
    koopman = kann.fit(trained, rank="auto", driven=True)
    trust = kann.trust(koopman, trained)
    coordinates = kann.project(koopman, np.asarray(trained.values, dtype=np.float64))
    print(koopman, trust, sep="\n")
    alone = []
    for mode in koopman.modes:
        own = coordinates[:, list(mode.indices)]
        alone.append((*probed(np.concatenate([own.real, own.imag], axis=1), place, words), mode.modulus))
    value, low, high, modulus = max(alone)
    best = f"R² {value:.3f} (95 %: {low:.3f} to {high:.3f}), |λ| {modulus:.3f}"
    print(f"  from the best of {len(alone)} modes alone: {best}")
    repeated = [torch.tensor([3 + letter] * 25) for letter in range(26)]
    far = kann.record(encoder, repeated, layer="rnn", progress=False)
    moved = np.linalg.norm(np.diff(far.padded(), axis=1), axis=2) / np.linalg.norm(far.padded()[:, 1:], axis=2)
    at = ", ".join(f"{moved[:, letter - 2].mean():.1%} at letter {letter}" for letter in (5, 15, 25))
    print(f"  the same letter again and again moves the state by {at}; a counter would go on")


def main(folder: str = "gallery") -> None:
    """Compare with the package, ask about counting and the clock, and write the page that explains the decoder."""
    made = package()
    encoder, decoder = ported(made)
    words = common_words(WORDS)
    letters = [torch.tensor([made.g2idx[letter] for letter in [*word, "</s>"]]) for word in words]  # type: ignore[attr-defined]
    lengths = torch.tensor([len(each) for each in letters])
    with torch.no_grad():
        start = encoder(pad_sequence(letters, batch_first=True), lengths)
    spoken = said(decoder, start)
    names = [[made.idx2p[sound] for sound in row] for row in spoken]  # type: ignore[attr-defined]
    same = sum(made.predict(word) == own for word, own in zip(words[:COMPARED], names, strict=False))  # type: ignore[attr-defined]
    print(f"{same} of {COMPARED} words sound as in the package, such as {words[0]}: {' '.join(names[0])}")
    count_letters(encoder, letters)
    heard = [torch.tensor([START, *row]) for row in spoken]
    found = explained(decoder, heard, start, tokens=[["<s>", *row] for row in names], classes=list(made.idx2p.values()))  # type: ignore[attr-defined]
    Path(folder).mkdir(parents=True, exist_ok=True)
    print(*found.sentences, found.report(Path(folder) / "g2p.html"), sep="\n")


def coordinates(decoder: Decoder, data: dict[str, Tensor]) -> None:
    """Print how few balanced coordinates keep the next sounds of words that were not fitted, next to the baselines."""
    where = {"layer": "cell", "lengths": "lengths"}
    fitted, judged = ({name: each[part] for name, each in data.items()} for part in (slice(1500), slice(1500, None)))
    balance = kann.balance(decoder, fitted, **where)
    states = kann.record(decoder, fitted, progress=False, **where)
    counts = (1, 16, 64)
    print(balance, kann.effects(decoder, judged, balance, states, counts=counts, progress=False, **where), sep="\n")


def explained(decoder: Decoder, heard: list[Tensor], start: Tensor, **names: Any) -> kann.Explanation:
    """Print how well the decoder knows how much is left to say, and explain it."""
    lengths = np.array([len(each) for each in heard])
    data = {"sounds": pad_sequence(heard, batch_first=True), "start": start, "lengths": torch.from_numpy(lengths)}
    states = kann.record(decoder, data, layer="cell", lengths="lengths", progress=False)
    untrained = kann.record(
        kann.recording.untrained_twin(decoder), data, layer="cell", lengths="lengths", progress=False
    )
    words, so_far = np.repeat(np.arange(len(lengths)), lengths), steps_of(states)
    left = np.repeat(lengths, lengths) - so_far
    coordinates(decoder, data)
    print("sounds left to say, from the decoder's state:")
    print_probe("trained", np.asarray(states.values, dtype=np.float64), left, words)
    print_probe("untrained", np.asarray(untrained.values, dtype=np.float64), left, words)
    print_probe("from how many were said, and no state", so_far[:, None].astype(np.float64), left, words)
    begun = np.repeat(start.numpy().astype(np.float64), lengths, axis=0)
    print_probe("from where the encoder ended and how many were said", np.column_stack([begun, so_far]), left, words)
    return kann.explain(decoder, data, layer="cell", lengths="lengths", **names)


if __name__ == "__main__":
    main(*sys.argv[1:])
