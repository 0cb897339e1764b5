"""Tasks whose answer depends on earlier tokens: bracket depth, associative recall, copying."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kann.typing import Int

IGNORED = -100
"""The answer at steps that do not count, as in torch's losses."""

OPEN, CLOSE, IDLE = 0, 1, 2
"""Tokens of the bracket task; the third changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task: what to draw, and what to answer."""

    title: str
    tokens: int
    """Size of the vocabulary."""
    classes: int
    """Number of possible answers."""
    idle: int
    """The token that carries no information; the state is only held while it is read."""
    steps: int
    """Steps of a sequence."""
    draw: Callable[[np.random.Generator, int], Int[Tensor, "s t"]]
    """Draw sequences of tokens."""
    answers: Callable[[Int[Tensor, "s t"]], Int[Tensor, "s t"]]
    """From tokens to the class at each step, `IGNORED` at steps that do not count."""

    def sequences(self, rng: np.random.Generator, count: int) -> tuple[Int[Tensor, "s t"], Int[Tensor, "s t"]]:
        """Draw tokens and their answers."""
        tokens = self.draw(rng, count)
        return tokens, self.answers(tokens)


def brackets(*, deepest: int = 6, steps: int = 32) -> Task:
    """Make the bracket task: answer at every step how many brackets are open, 0 … ``deepest``."""

    def draw(rng: np.random.Generator, count: int) -> Int[Tensor, "s t"]:
        tokens, depth = rng.choice(3, size=(count, steps), p=(0.4, 0.4, 0.2)), np.zeros(count, dtype=np.int64)
        for now in tokens.T:  # columns are views
            now[(depth == 0) & (now == CLOSE)] = OPEN
            now[(depth == deepest) & (now == OPEN)] = CLOSE
            depth += (now == OPEN).astype(int) - (now == CLOSE)
        return torch.from_numpy(tokens)

    def answers(tokens: Int[Tensor, "s t"]) -> Int[Tensor, "s t"]:
        return ((tokens == OPEN).long() - (tokens == CLOSE).long()).cumsum(dim=1)

    return Task(
        title="bracket depth",
        tokens=3,
        classes=deepest + 1,
        idle=IDLE,
        steps=steps,
        draw=draw,
        answers=answers,
    )


def recall(*, keys: int = 6, values: int = 6, pairs: int = 3, blanks: int = 8) -> Task:
    """Make associative recall: read pairs of a key and a value, then blanks, then a key; answer its value.

    Tokens are keys from 0, values from ``keys``, and the blank.
    """
    blank, steps = keys + values, 2 * pairs + blanks + 1

    def draw(rng: np.random.Generator, count: int) -> Int[Tensor, "s t"]:
        tokens = np.full((count, steps), blank)
        own = rng.permuted(np.tile(np.arange(keys), (count, 1)), axis=1)[:, :pairs]  # the keys of a sequence differ
        tokens[:, 0 : 2 * pairs : 2] = own
        tokens[:, 1 : 2 * pairs : 2] = keys + rng.integers(values, size=own.shape)
        tokens[:, -1] = own[np.arange(count), rng.integers(pairs, size=count)]
        return torch.from_numpy(tokens)

    def answers(tokens: Int[Tensor, "s t"]) -> Int[Tensor, "s t"]:
        wanted = torch.full_like(tokens, IGNORED)
        is_asked = tokens[:, 0 : 2 * pairs : 2] == tokens[:, -1:]
        wanted[:, -1] = (tokens[:, 1 : 2 * pairs : 2] - keys)[is_asked]
        return wanted

    return Task(
        title=f"associative recall, {pairs} of {keys} keys",
        tokens=blank + 1,
        classes=values,
        idle=blank,
        steps=steps,
        draw=draw,
        answers=answers,
    )


def copying(*, letters: int = 6, length: int = 4, blanks: int = 8) -> Task:
    """Make the copy task: read letters, then blanks, then as long a cue; answer the letters in their order."""
    blank, cue, steps = letters, letters + 1, 2 * length + blanks

    def draw(rng: np.random.Generator, count: int) -> Int[Tensor, "s t"]:
        tokens = np.full((count, steps), blank)
        tokens[:, :length] = rng.integers(letters, size=(count, length))
        tokens[:, -length:] = cue
        return torch.from_numpy(tokens)

    def answers(tokens: Int[Tensor, "s t"]) -> Int[Tensor, "s t"]:
        wanted = torch.full_like(tokens, IGNORED)
        wanted[:, -length:] = tokens[:, :length]
        return wanted

    return Task(
        title="copying",
        tokens=cue + 1,
        classes=letters,
        idle=blank,
        steps=steps,
        draw=draw,
        answers=answers,
    )


TASKS: dict[str, Callable[[], Task]] = {
    "brackets": brackets,
    "recall": recall,
    "recall8": partial(recall, keys=8, values=8, pairs=4),
    "copying": copying,
}
"""Functions that make each task. The LSTM learns recall of 3 of 6 keys, but not of 4 of 8."""


def right(outputs: Tensor, answers: Int[Tensor, "s t"]) -> float:
    """Compute the fraction of the steps that count whose answer is right."""
    counts = answers != IGNORED
    return float((outputs.argmax(-1) == answers)[counts].float().mean())
