"""Tables of numbers for a page: rounded to small integers, compressed, and written as text."""

import base64
import gzip
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from kann.typing import Array, Float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Packed:
    """A table whose columns are whole numbers times a scale of their own."""

    data: str
    """Base64 of the gzipped numbers, column after column."""
    scale: list[float]
    """What the numbers of each column are multiplied by."""
    bits: int
    """8 or 16."""

    def as_json(self) -> dict[str, Any]:
        """What the page reads; ``data`` stands elsewhere in it."""
        return {"scale": self.scale, "bits": self.bits}


def pack(values: Float[Array, "n m"], *, wide: bool = False) -> Packed:
    """Round each column to 8 bits, or 16 if ``wide``: within 1/254 or 1/65,534 of its largest value."""
    kind = np.int16 if wide else np.int8
    largest = np.abs(values).max(axis=0, initial=0).astype(np.float64)
    scale = np.where(largest > 0, largest, 1) / np.iinfo(kind).max
    numbers = np.rint(values / scale).astype(kind)
    return Packed(data=zipped(numbers.T.tobytes()), scale=scale.tolist(), bits=8 * kind().itemsize)


def zipped_json(content: Any) -> str:
    """JSON, packed: whatever is in it, nothing can end the element that it stands in."""
    return zipped(
        json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    )


def zipped(data: bytes) -> str:
    """Base64 of the gzipped bytes; without a time, so that the same report is the same file."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()
