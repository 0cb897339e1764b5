"""Small trained networks that ship with the package, each with its provenance.

``load`` gives a network ready to be analysed. Its folder holds ``weights.safetensors`` and ``provenance.json``: the
command, seed, data and versions that made it, and how well it does.
"""

import json
from collections.abc import Callable
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from kann.data.archives import damage_explained
from kann.errors import KannError

__all__ = ["MODELS", "folder", "load", "provenance"]

MODELS = ("copy", "ecg", "sentiment")
"""Names of the networks; the files of each are in a folder of its name."""

ADDED_LATER = {"added later": True}
"""Metadata of a setting that earlier versions did not have. Checkpoints name it only where it is not the default."""

WEIGHTS, PROVENANCE = "weights.safetensors", "provenance.json"
"""Files that every network has."""


def load(name: str) -> Any:
    """Load a trained network with what is needed to analyse it; needs torch.

    Parameters
    ----------
    name
        "copy", "ecg" or "sentiment".

    Returns
    -------
    Pretrained
        `kann.zoo.copy_task.Pretrained`, `kann.zoo.autoencoder.Pretrained` or `kann.zoo.sentiment_network.Pretrained`:
        the network, and data or a vocabulary for it.

    Examples
    --------
    >>> from kann import zoo
    >>> model = zoo.load("sentiment")
    >>> model.network.readout
    Linear(in_features=256, out_features=1, bias=True)
    """
    folder(name)  # raise on an unknown name before torch is imported
    modules = {"copy": "copy_task", "ecg": "autoencoder", "sentiment": "sentiment_network"}
    try:
        return import_module(f"kann.zoo.{modules[name]}").pretrained()
    except ImportError as error:
        missing = error.__cause__ or error  # without the remedy that a module of kann may have added
        message = f"the networks of kann.zoo need more packages ({missing}): pip install 'kann[cli]'"
        raise ImportError(message) from error


def folder(name: str) -> Path:
    """Return the folder that holds the files of a network.

    Parameters
    ----------
    name
        The name of the network, one of `MODELS`.

    Returns
    -------
    pathlib.Path
        A folder of the installed package.

    Examples
    --------
    >>> from kann import zoo
    >>> zoo.folder("copy").name
    'copy'
    """
    if name not in MODELS:
        raise KannError(f"model {name!r} is unknown; pass one of {', '.join(MODELS)}")
    return Path(str(resources.files("kann.zoo"))) / name


def require_files(place: Path, *names: str) -> None:
    """Raise if a file of a network is missing or is no regular file: opening a FIFO would never end."""
    for name in names:
        if not (place / name).is_file():
            raise KannError(f"model {place.name!r} lacks {name} in {place}; reinstall kann")


def with_weights(path: Path, make: Callable[[dict[str, Any]], Any]) -> Any:
    """Load weights from a file into the network that ``make`` makes for them, ready to be analysed."""
    import torch
    from safetensors.torch import load_file

    with damage_explained(path, problem="holds no weights of this network", remedy="reinstall kann"):
        # Files may hold half precision, which is too coarse to compute with on a CPU.
        weights = {name: value.float() for name, value in load_file(path).items()}
        # A new network draws starting weights; the caller's random numbers must not depend on that.
        with torch.random.fork_rng(devices=[]):
            network = make(weights)
        network.load_state_dict(weights)
    return network.eval()


def provenance(name: str) -> dict[str, Any]:
    """Read the provenance of a network.

    Parameters
    ----------
    name
        The name of the network, one of `MODELS`.

    Returns
    -------
    dict
        Command, seed, data, versions, and measurements.

    Examples
    --------
    >>> from kann import zoo
    >>> zoo.provenance("sentiment")["seed"]
    2
    """
    return read_provenance(folder(name))


def read_provenance(place: Path) -> dict[str, Any]:
    """Read the provenance of the network whose files are in the folder ``place``."""
    path = place / PROVENANCE
    if not path.is_file():
        raise KannError(f"model {place.name!r} is not part of this installation ({path} is missing); reinstall kann")
    with damage_explained(path, problem="is damaged", remedy="reinstall kann"):
        return dict(json.loads(path.read_text(encoding="utf-8")))
