"""The numbers of an operator that run in place of a network, in torch as well as in an ONNX runtime."""

from typing import Any

import numpy as np

from kann.checks import shown
from kann.errors import KannError
from kann.fitting.bilinear import Bilinear
from kann.fitting.koopman import Koopman
from kann.typing import Array


def require_driven(koopman: Any) -> None:
    """Refuse what is no operator, and one that reads nothing."""
    if not isinstance(koopman, Koopman | Bilinear):
        raise KannError(f"koopman={shown(koopman)} is no operator; pass what kann.fit returns")
    if koopman.drive is None:
        raise KannError("this operator is autonomous and reads no inputs; fit with driven=True or driven='bilinear'")


def operator_weights(koopman: Koopman | Bilinear) -> dict[str, Array]:
    """The arrays that a step and the decoding need."""
    rank = koopman.rank
    weights = {name: getattr(koopman, name) for name in ("matrix", "drive", "basis", "mean")}
    offset = koopman.offset
    if offset is None:
        offset = np.zeros(rank)
    weights |= {"offset": offset, "low": np.full(rank, -np.inf), "high": np.full(rank, np.inf)}
    if isinstance(koopman, Bilinear):
        weights |= {"gates": koopman.gates.reshape(-1, rank), "low": koopman.bounds[0], "high": koopman.bounds[1]}
        if koopman.squares is not None:
            weights["squares"] = koopman.squares
    return weights
