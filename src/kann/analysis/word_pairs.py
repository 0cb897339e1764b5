"""One coordinate that words gate: every word is a pair of numbers, how much it keeps and how much it adds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann._display import in_columns
from kann.backends.arrays import as_numpy
from kann.checks import require_instance, require_whole_number
from kann.data.reduction import take_rows
from kann.data.serialization import Saved, require_finite_fields
from kann.data.states import States, checked_tokens
from kann.errors import KannError
from kann.fitting.bilinear import Bilinear
from kann.fitting.readout import Readout
from kann.typing import Array, Float, Int

BLOCK_ROWS = 2**16
"""Steps whose features are computed at a time."""

LEAST_READ = 20
"""Words that are read less often are left out of tables and plots by default: few data support their numbers."""

SHOWN = 8
"""Words in each part of a printed table."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WordPairs(Saved):
    """The effect of each word on one number s: after the word it is keeps · s + adds. See `kann.stand_ins.word_pairs`.

    Words are in the order of how often they are read, the most frequent first.
    """

    words: tuple[str, ...]
    """Only words that occur in the data."""
    counts: Int[Array, " w"]
    """Number of steps at which each is read."""
    keeps: Float[Array, " w"]
    """The factor of the number: 1 keeps it, 0 erases it, -1 changes its sign."""
    adds: Float[Array, " w"]
    """The number that a word adds: the number after it where it was zero before."""
    number: str
    """"output" of a readout, or "coordinate": in units of the coordinate, zero at the mean state."""

    def table(self, count: int = SHOWN, *, least: int = LEAST_READ) -> str:
        """Write the words that add most, add least and keep least, of those that are read ``least`` times."""
        count, often = require_whole_number(count, "count"), self.read_often(least)
        up = often[np.argsort(-self.adds[often], kind="stable")]
        less = often[np.argsort(self.keeps[often], kind="stable")]
        rows = [["", "word", "keeps", "adds", "read"]]
        for title, chosen in (
            ("adds most", up[:count]),
            ("adds least", up[::-1][:count]),
            ("keeps least", less[:count]),
        ):
            for place, i in enumerate(chosen.tolist()):
                cells = (f"{self.keeps[i]:.3f}", f"{self.adds[i]:+.3f}", f"{self.counts[i]}")
                rows.append(["" if place else title, self.words[i], *cells])
        return "\n".join(in_columns(rows))

    def read_often(self, least: int = LEAST_READ) -> Int[Array, " k"]:
        """Return the numbers of words that are read at least ``least`` times."""
        found = np.flatnonzero(self.counts >= require_whole_number(least, "least"))
        if not len(found):
            raise KannError(f"no word is read {least} times; pass least<={self.counts.max()}")
        return found

    def _check(self) -> None:
        require_finite_fields(self)
        if len(self.words) != len(self.counts) or self.counts.min() < 1:
            raise ValueError("its words and their counts do not belong together")

    def __repr__(self) -> str:
        return f"WordPairs({len(self.words)} words, what they keep of the {self.number} and add to it)"

    def __str__(self) -> str:
        return f"{self!r}\n{self.table(least=min(LEAST_READ, int(self.counts.max())))}"


def word_pairs(
    koopman: Bilinear, states: States, tokens: Sequence[Any], *, readout: Readout | None = None
) -> WordPairs:
    """Find for each word how much of the one coordinate of a bilinear operator it keeps, and how much it adds.

    While a word is read, z becomes z (C + Σ φ_k E_k) + (φ D + c): two numbers. With the readout y = z w + b these are
    numbers of the output: y becomes keeps · y + adds. Where the features of a word differ from place to place, as those
    of numbers that come with it, both are means over the places.

    >>> import kann
    >>> rng = np.random.default_rng(0)
    >>> number = rng.integers(0, 3, size=(30, 40, 1))
    >>> keeps, adds = np.array([0.9, 0.9, 0.0]), np.array([1.0, -1.0, 0.0])
    >>> score = np.zeros((30, 40, 1))
    >>> for t in range(1, 40):
    ...     score[:, t] = keeps[number[:, t]] * score[:, t - 1] + adds[number[:, t]]
    >>> states = kann.States.from_padded(score, inputs=number.astype(float))
    >>> koopman = kann.fit(states, driven="bilinear", features="tokens", ridge=0.0)
    >>> tokens = np.array(["good", "bad", "forget"])[number[..., 0]].tolist()
    >>> readout = kann.stand_ins.fit_readout(koopman, states, score, products=False)
    >>> pairs = word_pairs(koopman, states, tokens, readout=readout)
    >>> for word in ("good", "bad", "forget"):
    ...     i = pairs.words.index(word)
    ...     print(f"{word}: {abs(pairs.keeps[i]):.2f} {pairs.adds[i] + 0.0001:+.2f}")
    good: 0.90 +1.00
    bad: 0.90 -1.00
    forget: 0.00 +0.00

    Parameters
    ----------
    koopman
        An operator with one coordinate, as ``kann.fit(states, driven="bilinear", basis=balance, rank=1)`` returns it.
    states
        Recorded states with their inputs.
    tokens
        The token read at each step, a list for each sequence. The first of a sequence is not counted: it leads
        to the first state, from which no state was recorded before.
    readout
        The readout of one output from the coordinate, without products; None for numbers of the coordinate.

    Returns
    -------
    WordPairs
        ``keeps`` and ``adds`` of each word, the most frequent first.
    """
    require_instance(koopman, Bilinear, "koopman")
    require_instance(states, States, "states")
    if koopman.rank != 1 or koopman.squares is not None:
        lift = "" if koopman.squares is None else " with products"
        raise KannError(f"the operator has {koopman.rank} coordinates{lift}; fit one with rank=1 and without lift")
    if states.inputs is None:
        raise KannError("the states have no inputs, so what a word does is not known; record with inputs=True")
    slope, constant = _line(readout)
    own = [word for words in checked_tokens(tokens, states) for word in words]
    after = np.setdiff1d(np.arange(len(own)), states.starts)
    if not len(after):
        raise KannError("no sequence has two steps, so no step is known; pass longer sequences")
    names, places = np.unique(np.array(own, dtype=object)[after].astype(str), return_inverse=True)
    sums = np.zeros((2, len(names)))
    for first in range(0, len(after), BLOCK_ROWS):
        at = slice(first, first + BLOCK_ROWS)
        inputs = take_rows(states.inputs, after[at])
        pair = as_numpy(koopman.matrices(inputs))[:, 0, 0], as_numpy(koopman.pushes(inputs))[:, 0]
        sums += [np.bincount(places[at], weights=each, minlength=len(names)) for each in pair]
    counts = np.bincount(places)
    keeps, adds = sums / counts
    order = np.argsort(-counts, kind="stable")
    return WordPairs(
        words=tuple(names[order].tolist()),
        counts=counts[order],
        keeps=keeps[order],
        adds=(slope * adds + constant * (1 - keeps))[order],  # zero is where the output is zero
        number="coordinate" if readout is None else "output",
    )


def _line(readout: Readout | None) -> tuple[float, float]:
    """Return slope and constant of the output along the coordinate."""
    if readout is None:
        return 1.0, 0.0
    require_instance(readout, Readout, "readout")
    if readout.weight.shape != (1, 1):
        raise KannError(f"{readout!r} is no line; fit one output with products=False")
    return float(readout.weight[0, 0]), float(readout.constant[0])
