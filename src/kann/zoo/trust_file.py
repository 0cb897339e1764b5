"""How far the operator of a shipped network can be trusted, as a file beside it."""

import json
from dataclasses import fields
from typing import Any

import numpy as np

from kann.analysis.trust import ModeTrust, Trust

CURVES = ("horizons", "error", "copying_error")
"""Fields of `Trust` that are arrays."""


def trust_as_json(trust: Trust) -> str:
    """Every field of a `Trust` and of its modes, except those of the untrained network."""
    content: dict[str, Any] = {field.name: getattr(trust, field.name) for field in fields(Trust)}
    content |= {name: content[name].tolist() for name in CURVES} | {"untrained": None}
    content["modes"] = [
        {field.name: getattr(mode, field.name) for field in fields(ModeTrust)}
        | {"eigenvalue": [mode.eigenvalue.real, mode.eigenvalue.imag]}
        for mode in trust.modes
    ]
    return json.dumps(content, indent=1) + "\n"


def trust_from_json(text: str) -> Trust:
    """Read what `trust_as_json` wrote."""
    content = json.loads(text)
    content |= {name: np.array(content[name]) for name in CURVES}
    content["modes"] = tuple(_mode(mode) for mode in content["modes"])
    return Trust(**content)


def _mode(content: dict[str, Any]) -> ModeTrust:
    """One mode; JSON has neither complex numbers nor tuples."""
    content |= {name: tuple(content[name]) for name in ("interval", "angle", "subspace")}
    content["eigenvalue"] = complex(*content["eigenvalue"])
    return ModeTrust(**content)
