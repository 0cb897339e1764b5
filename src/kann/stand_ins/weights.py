"""The numbers that one step of an operator needs, as numpy arrays: for a torch module and for an ONNX file."""

from typing import Any

import numpy as np

from kann.checks import short_repr
from kann.errors import KannError
from kann.fitting.bilinear import Bilinear
from kann.fitting.features import FeatureMap
from kann.fitting.koopman import Koopman
from kann.fitting.readout import Readout
from kann.typing import Array


def require_step(koopman: Any, readout: Any) -> None:
    """Raise unless this is an operator that reads inputs, and the readout is None or reads its coordinates."""
    if not isinstance(koopman, Koopman | Bilinear):
        raise KannError(f"koopman={short_repr(koopman)} is no operator; pass what kann.fit returns")
    if koopman.drive is None:
        raise KannError("this operator is autonomous and reads no inputs; fit with driven=True or driven='bilinear'")
    if not isinstance(readout, Readout | None):
        raise KannError(
            f"readout={short_repr(readout)} is no fitted readout; pass what kann.stand_ins.fit_readout returns"
        )
    if readout is not None and readout.rank != koopman.rank:
        raise KannError(
            f"the readout is of {readout.rank} coordinates and the operator has {koopman.rank}; fit it to this operator"
        )


def features_of(koopman: Koopman | Bilinear) -> FeatureMap:
    """Return the features φ that drive the operator: the inputs themselves if it has no gates."""
    inputs = koopman.input_dim
    return koopman.features if isinstance(koopman, Bilinear) else FeatureMap(kind="inputs", inputs=inputs, count=inputs)


def operator_weights(koopman: Koopman | Bilinear) -> dict[str, Array]:
    """Return the arrays of a step and of the decoding: ``gates`` and ``squares`` only where the operator has them."""
    if isinstance(koopman, Bilinear):
        weights = koopman.step_weights | {"low": koopman.bounds[0], "high": koopman.bounds[1]}
    else:
        offset, unbounded = np.zeros(koopman.rank), np.full(koopman.rank, np.inf)
        weights: Any = {"matrix": koopman.matrix, "drive": koopman.drive, "low": -unbounded, "high": unbounded}
        weights["offset"] = offset if koopman.offset is None else koopman.offset
    decoder = {} if koopman.decoder is None else {"decoder": koopman.decoder}
    return weights | {"basis": koopman.basis, "mean": koopman.mean} | decoder
