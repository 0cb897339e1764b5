"""The file of a saved bilinear operator: what it holds, and which of its fields must agree."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from kann.checks import require_path
from kann.data.fields import Field
from kann.data.files import load_npz, save_npz
from kann.errors import KannError
from kann.fitting.basis import ORTHONORMAL_TO
from kann.fitting.features import (
    KINDS,
    ComponentFeatures,
    FeatureMap,
    FourierFeatures,
    FunctionFeatures,
    InputFeatures,
    SquareFeatures,
    TokenFeatures,
)
from kann.fitting.monomials import pair_count
from kann.fitting.ridge import RidgeCurve
from kann.typing import Array

KIND = "kann.Bilinear"
VERSION = 1

FIELDS = {
    "matrix": Field(axes="r r"),
    "drive": Field(axes="k r"),
    "gates": Field(axes="k r r"),
    "offset": Field(axes="r"),
    "squares": Field(axes="s r", group="lift"),
    "feature_mean": Field(axes="k"),
    "basis": Field(axes="d r"),
    "mean": Field(axes="d"),
    "explained": Field(axes="r"),
    "bounds": Field(axes="two r"),
    "residual_gram": Field(axes="r r"),
    "state_gram": Field(axes="r r"),
    "ridge": Field(),
    "ridges": Field(axes="n", group="curve"),
    "ridge_errors": Field(axes="n", group="curve", may_be_infinite=True),
    "kind": Field(numbers="whole"),
    "inputs": Field(numbers="whole"),
    "feature_centre": Field(axes="p", group="map"),
    "feature_matrix": Field(axes="p k", group="map"),
    "feature_phase": Field(axes="k", group="phase"),
}
"""What a saved bilinear operator holds."""

PLAIN = (
    "matrix",
    "drive",
    "gates",
    "offset",
    "squares",
    "feature_mean",
    "basis",
    "mean",
    "explained",
    "bounds",
    "residual_gram",
    "state_gram",
)
"""Fields that are saved as they are."""

SYMMETRIC_TO = 1e-6
"""How far a saved Gram matrix may be from a symmetric one, relative to its largest entry."""


def save_bilinear(koopman: Any, path: str | os.PathLike[str]) -> None:
    """Write the operator. Of features that are a function, only their number is kept."""
    features = koopman.features
    arrays: dict[str, Any] = {name: getattr(koopman, name) for name in PLAIN}
    arrays |= {"ridge": np.array(koopman.ridge), "inputs": np.array(features.inputs)}
    arrays["kind"] = np.array(KINDS.index(type(features)))
    if koopman.ridge_curve is not None:
        arrays |= {"ridges": koopman.ridge_curve.ridges, "ridge_errors": koopman.ridge_curve.errors}
    if isinstance(features, ComponentFeatures | FourierFeatures):
        arrays |= {"feature_centre": features.centre, "feature_matrix": features.matrix}
    if isinstance(features, FourierFeatures):
        arrays["feature_phase"] = features.phase
    save_npz(path, kind=KIND, version=VERSION, arrays=arrays)


def load_bilinear(path: str | os.PathLike[str], *, features: Any) -> dict[str, Any]:
    """The fields of the operator that a file holds; ``features`` is its function, if it has one."""
    require_path(path)
    arrays = load_npz(path, kind=KIND, version=VERSION, fields=FIELDS, check=_require_consistent)
    values: dict[str, Any] = {name: arrays.get(name) for name in PLAIN}
    values["ridge"] = float(arrays["ridge"])
    if "ridges" in arrays:
        values["ridge_curve"] = RidgeCurve(ridges=arrays["ridges"], errors=arrays["ridge_errors"])
    values["features"] = _features(arrays, features, path)
    return values


def _features(arrays: dict[str, Array], function: Any, path: str | os.PathLike[str]) -> FeatureMap:
    """The features that the fields describe."""
    kind, width = KINDS[int(arrays["kind"])], int(arrays["inputs"])
    if kind is FunctionFeatures:
        if not isinstance(function, Callable):
            raise KannError(
                f"{path} was fitted with features that are a function, which no file can hold; pass it: "
                "kann.Bilinear.load(path, features=...)"
            )
        return FunctionFeatures(function=function, width=width, columns=len(arrays["drive"]))
    if function is not None:
        raise KannError(f"{path} knows its features; leave features= out")
    if kind is TokenFeatures:
        return TokenFeatures(vocabulary=len(arrays["drive"]))
    if kind is ComponentFeatures:
        return ComponentFeatures(centre=arrays["feature_centre"], matrix=arrays["feature_matrix"])
    if kind is FourierFeatures:
        return FourierFeatures(
            centre=arrays["feature_centre"], matrix=arrays["feature_matrix"], phase=arrays["feature_phase"]
        )
    if kind is SquareFeatures:
        return SquareFeatures(width=width)
    return InputFeatures(width=width)


def _require_consistent(arrays: dict[str, Array]) -> None:
    """Refuse fields that contradict each other."""
    basis, rank = arrays["basis"], len(arrays["matrix"])
    if np.abs(basis.T @ basis - np.eye(rank)).max() > rank * ORTHONORMAL_TO:
        raise ValueError("its basis is not orthonormal")
    if "squares" in arrays and len(arrays["squares"]) != pair_count(rank):
        raise ValueError(f"'squares' has {len(arrays['squares'])} rows for {pair_count(rank)} products of coordinates")
    if len(arrays["bounds"]) != 2 or (arrays["bounds"][0] > arrays["bounds"][1]).any():
        raise ValueError("'bounds' are no smallest and largest coordinates")
    for name in ("residual_gram", "state_gram"):
        gram = arrays[name]
        noise = SYMMETRIC_TO * np.abs(gram).max()
        if np.abs(gram - gram.T).max() > noise or gram.diagonal().min() < -noise:
            raise ValueError(f"{name!r} is no Gram matrix: it is not symmetric, or has negative squares")
    for name in ("explained", "ridge", "ridges", "ridge_errors"):
        if name in arrays and arrays[name].min() < 0:
            raise ValueError(f"{name!r} holds negative numbers")
    _require_known_features(arrays)


def _require_known_features(arrays: dict[str, Array]) -> None:
    """Refuse features that are unknown, or whose number is not what their kind says."""
    number, inputs, count = int(arrays["kind"]), int(arrays["inputs"]), len(arrays["drive"])
    if number >= len(KINDS) or not inputs:
        raise ValueError(f"kind {number} of {inputs} inputs is none that features have")
    kind = KINDS[number]
    if ("feature_matrix" in arrays) != (kind in (ComponentFeatures, FourierFeatures)):
        raise ValueError(f"its features are {kind.kind!r}, which does not fit the fields it holds")
    if ("feature_phase" in arrays) != (kind is FourierFeatures):
        raise ValueError(f"its features are {kind.kind!r}, which does not fit the fields it holds")
    fits = True
    if "feature_matrix" in arrays:
        fits = len(arrays["feature_matrix"]) == inputs
    elif kind is not FunctionFeatures:
        fits = {InputFeatures: count == inputs, SquareFeatures: count == 2 * inputs, TokenFeatures: inputs == 1}[kind]
    if not fits:
        raise ValueError(f"{count} features of kind {kind.kind!r} do not fit {inputs} inputs")
