"""Places in the sequences shown where a mode was pushed most: words in context, or a piece of a signal."""

from typing import Any

import numpy as np

from kann.reporting.inputs import ReportInputs
from kann.reporting.pushed import PushedMode
from kann.typing import Array, Float, Int

WORDS_BEFORE, WORDS_AFTER = 7, 4
"""Words of context of an example: what was read before it matters more than what came after."""

STEPS_AROUND = 25
"""Steps of a signal to both sides of an example."""

CHANNELS_DRAWN = 4
"""Channels in the small picture of an example."""


def word_example(inputs: ReportInputs, mode: PushedMode, word: str, *, sign: int) -> dict[str, Any] | None:
    """The place where a word pushed the mode most in the direction of ``sign``; None if no sequence shown has it."""
    assert inputs.tokens is not None  # noqa: S101 - only asked for where there are tokens
    rows = _rows_of(inputs, word)
    rows = rows[sign * mode.push[rows] > 0]  # at first states it is NaN, and so not larger
    if not len(rows):
        return None
    sequence, step = _place(inputs, int(rows[np.argmax(sign * mode.push[rows])]))
    words = inputs.tokens[sequence]
    return {
        "sequence": sequence,
        "step": step,
        "before": _context(words[max(0, step - WORDS_BEFORE) : step], cut=step > WORDS_BEFORE, at_start=True),
        "word": words[step],
        "after": _context(
            words[step + 1 : step + 1 + WORDS_AFTER], cut=step + 1 + WORDS_AFTER < len(words), at_start=False
        ),
    }


def _rows_of(inputs: ReportInputs, word: str) -> Int[Array, " k"]:
    """The rows of all states at which a word was read."""
    found = []
    for start, own in zip(inputs.states.starts.tolist(), inputs.tokens or [], strict=True):
        found += [start + step for step, each in enumerate(own) if each == word]
    return np.array(found, dtype=int)


def _context(words: list[str], *, cut: bool, at_start: bool) -> str:
    text = " ".join(words)
    if not cut:
        return text
    if at_start:
        return f"… {text}"
    return f"{text} …"


def signal_example(inputs: ReportInputs, mode: PushedMode, *, sign: int) -> dict[str, Any] | None:
    """The place where the mode was pushed most in the direction of ``sign``, with the signal around it."""
    strength = np.nan_to_num(sign * mode.push, nan=-np.inf)
    row = int(np.argmax(strength))
    if not strength[row] > 0:
        return None
    sequence, step = _place(inputs, row)
    example: dict[str, Any] = {"sequence": sequence, "step": step, "push": float(mode.push[row]), "lines": []}
    if inputs.signals is not None:
        signal = inputs.signals[sequence]
        first, last = max(0, step - STEPS_AROUND), min(len(signal), step + STEPS_AROUND + 1)
        piece = signal[first:last, :CHANNELS_DRAWN]
        example |= {"lines": [_as_path(column) for column in piece.T], "mark": (step - first) / max(1, len(piece) - 1)}
    return example


def _place(inputs: ReportInputs, row: int) -> tuple[int, int]:
    """The sequence and the step of a row of the states."""
    sequence = int(np.searchsorted(inputs.states.starts, row, side="right")) - 1
    return sequence, row - int(inputs.states.starts[sequence])


def _as_path(values: Float[Array, " k"]) -> list[float]:
    """The values between 0, the lowest, and 1, the highest."""
    low, high = float(values.min()), float(values.max())
    return ((values - low) / max(high - low, np.finfo(float).tiny)).round(3).tolist()
