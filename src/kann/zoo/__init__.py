"""Small trained networks that ship with the package, each with its provenance.

``load`` gives a network ready to be analysed. Its folder holds ``weights.safetensors`` and ``provenance.json``: the
command, seed, data and versions that made it, and how well it does.
"""

from importlib import import_module
from typing import Any

from kann.zoo.files import MODELS, folder, provenance

__all__ = ["MODELS", "folder", "load", "provenance"]


def load(name: str) -> Any:
    """A trained network with what is needed to analyse it; needs torch.

    ``name`` is "copy" (`kann.zoo.copy_task.Pretrained`), "ecg" (`kann.zoo.autoencoder.Pretrained`) or "sentiment"
    (`kann.zoo.sentiment_network.Pretrained`).

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
