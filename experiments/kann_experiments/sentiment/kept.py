"""Numbers that were measured about a network, kept in a file beside it with everything that they depend on."""

import hashlib
import json
from pathlib import Path
from typing import Any

from kann.backends.arrays import as_numpy
from kann.zoo.sentiment_network import SentimentNetwork


def read_kept(path: Path, made_by: dict[str, Any]) -> dict[str, Any] | None:
    """What the file holds, if it was made by the same; None if it is missing, damaged, or made by something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["made_by"] != made_by:
            return None
        content["numbers"] = {key: float(value) for key, value in content["numbers"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # what cannot be read is measured anew
        return None
    return content


def weights_digest(network: SentimentNetwork) -> str:
    """A text that changes with any weight of the network."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode() + as_numpy(value).tobytes())
    return digest.hexdigest()
