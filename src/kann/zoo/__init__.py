"""Small trained models that ship with the package, each with its provenance.

``load`` gives the model ready to be analysed. Its folder holds ``weights.safetensors`` and ``provenance.json``: the
command, seed, data and versions that made it, and how well it does.
"""

import json
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from kann.errors import KannError

MODELS = ("ecg", "sentiment")
"""The paper's experiment that each was made by, ``kann.paper.<name>``."""


def folder(name: str) -> Path:
    """The folder of a model's files."""
    if name not in MODELS:
        raise KannError(f"model {name!r} is unknown; pass one of {', '.join(MODELS)}")
    return Path(str(resources.files("kann.zoo"))) / name


def provenance(name: str) -> dict[str, Any]:
    """Where a model comes from: command, seed, data, versions, and what was measured."""
    path = folder(name) / "provenance.json"
    if not path.is_file():
        raise KannError(f"model {name!r} is not part of this installation ({path} is missing); reinstall kann")
    return json.loads(path.read_text(encoding="utf-8"))


def load(name: str) -> Any:
    """A trained model, ready to be analysed; needs torch."""
    folder(name)
    return import_module(f"kann.paper.{name}").pretrained()
