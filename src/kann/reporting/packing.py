"""Tables of numbers for a page: rounded to small integers, compressed, and written as text."""

import base64
import gzip
import json
import math
from typing import Any

import numpy as np

from kann.typing import Array, Float

INTEGERS = {8: np.int8, 12: np.int16, 16: np.int16}
"""The integers that a page can read, by the bits that are used of them: compressed, 12 bits take less than 16."""


Packed = tuple[str, dict[str, Any]]
"""A table of small integers, column after column, gzipped and in base64; and what the page needs to read it: how many
bits there are, and the scale that turns the integers of each column back into numbers."""


def pack(values: Float[Array, "n m"], *, bits: int = 8) -> Packed:
    """Round each column to integers of 8, 12 or 16 bits: within 1/254, 1/4,094 or 1/65,534 of its largest value."""
    kind, largest_integer = INTEGERS[bits], 2 ** (bits - 1) - 1
    largest = np.abs(values).max(axis=0, initial=0).astype(np.float64)
    scale = np.where(largest > 0, largest, 1) / largest_integer
    integers = np.rint(values / scale).astype(kind)
    return compress(integers.T.tobytes()), {"scale": scale.tolist(), "bits": bits}


def compress_json(value: Any) -> str:
    """A value as compressed JSON: whatever text is in it, none of it can close the HTML element that holds it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return compress(text.encode("utf-8", "replace"))


def compress(data: bytes) -> str:
    """Base64 of the gzipped bytes. No time is stored, so that the same report is always the same file."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


def finite_or_none(value: float) -> float | None:
    """The number, or None where it is NaN or infinite, which JSON cannot say.

    >>> finite_or_none(2.5), finite_or_none(float("inf"))
    (2.5, None)
    """
    return value if math.isfinite(value) else None
