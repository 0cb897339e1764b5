"""What the command line is given as files, read and checked."""

import contextlib
import importlib
import json
import math
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kann.data.files import read_npz
from kann.data.moments import Moments
from kann.data.reduction import runs_on_dask
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.koopman import Koopman

PATIENCE = 10.0
"""Seconds for a Dask scheduler to answer."""

UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, EOFError, AttributeError, zipfile.BadZipFile)
"""What numpy raises on files that are not what their names say."""


def require_free(path: Path, *, force: bool) -> None:
    """Refuse to replace what is there."""
    if path.exists() and not force:
        raise KannError(f"{path} exists; pass --force to replace it, or another path")


def rank(text: str | None) -> int | float | None:
    """A number of directions, or a share of the variance."""
    if text is None:
        return None
    try:
        return int(text) if text.strip().isdigit() else float(text)
    except ValueError:
        raise KannError(f"--rank {text} is no number; pass one such as 16, or a share such as 0.99") from None


def states_or_moments(path: str) -> States | Moments:
    """Saved moments, or states of any kind."""
    is_kann_file = path.endswith(".npz") and Path(path).exists() and "header" in _names(Path(path))
    return Moments.load(path) if is_kann_file else States.open(path)


@contextlib.contextmanager
def workers_for(found: States | Moments, scheduler: str | None) -> Iterator[str]:
    """Connect to the Dask scheduler at this address, if there is one, for as long as the block runs.

    Gives a line on who will do the work, or nothing if it is this process.
    """
    if scheduler is None:
        yield ""
        return
    try:
        import dask.config
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port
    except ImportError as error:
        raise ImportError("--scheduler needs dask and distributed: pip install 'kann[dask]'") from error
    try:
        # A client that does not connect would keep the process from ending, so somebody must answer first.
        socket.create_connection(get_address_host_port(scheduler), timeout=PATIENCE).close()
        client = Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as error:
        raise KannError(
            f"no Dask scheduler answers at {scheduler} ({error}); start one with 'dask scheduler'"
        ) from error
    with client, dask.config.set(scheduler=client):
        if not (isinstance(found, States) and runs_on_dask(found)):
            raise KannError("--scheduler is for zarr stores, which workers can read; leave it out for other files")
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        who = f"{workers} Dask worker{'s' * (workers != 1)}" if workers else "waiting for Dask workers"
        yield f"{who}; follow them at {client.dashboard_link}"


def _names(path: Path) -> list[str]:
    """Names of the arrays in an ``.npz`` file; none if it cannot be read, which whoever reads it next explains."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return list(archive.files)
    except UNREADABLE:
        return []


def json_list(path: Path) -> list[Any]:
    """A list from a JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise KannError(f"{path} is no JSON ({error})") from error
    if not isinstance(content, list):
        raise KannError(f"{path} holds no list but {type(content).__name__}; pass one entry for each sequence")
    return content


def model(factory: str, weights: Path | None) -> Any:
    """The model that ``package.module:factory`` makes, with these weights; modules of this folder are found too."""
    module, _, name = factory.partition(":")
    if not module or not name:
        raise KannError(f"{factory!r} names no function; pass PKG.MODULE:FACTORY, such as mypackage.models:build")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        make: Callable[[], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise KannError(f"{factory!r} cannot be imported ({error})") from error
    made = make()
    if not hasattr(made, "named_modules"):
        raise KannError(f"{factory!r} returned {type(made).__name__}; it must return a torch module")
    if weights is not None:
        _load_weights(made, weights)
    return made


def _load_weights(made: Any, path: Path) -> None:
    """Weights from a file that cannot run code."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.exists():
        raise FileNotFoundError(f"no weights at {path}")
    try:
        named = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, weights_only=True, map_location="cpu")
        )
        made.load_state_dict(named)
    except (SafetensorError, RuntimeError, TypeError, ValueError, EOFError) as error:
        raise KannError(f"{path} does not fit the model ({' '.join(str(error).split())})") from error
    except Exception as error:  # pickle raises anything at all on a file that is none
        raise KannError(f"{path} holds no weights ({type(error).__name__})") from error


def model_data(path: Path) -> tuple[Any, Any]:
    """What a model reads, and the lengths of the sequences if they are given."""
    if not path.exists():
        raise FileNotFoundError(f"no data at {path}")
    import torch

    try:
        if path.suffix == ".npz":
            arrays = read_npz(path)
        else:
            with open(path, "rb") as file:  # numpy leaves it open when it is something else
                arrays = {"data": np.load(file, allow_pickle=False)}
        return torch.from_numpy(arrays["data"]), arrays.get("lengths")
    except UNREADABLE as error:
        raise KannError(f"{path} holds no data ({error}); pass .npy, or .npz with an array 'data'") from error


def summary(koopman: Koopman) -> dict[str, Any]:
    """An operator in numbers."""
    return {
        "units": koopman.dim,
        "rank": koopman.rank,
        "driven": koopman.drive is not None,
        "explained": float(koopman.explained.sum()),
        "condition": koopman.condition if math.isfinite(koopman.condition) else None,  # JSON has no infinity
        "modes": [
            {"re": mode.eigenvalue.real, "im": mode.eigenvalue.imag, "modulus": mode.modulus, "residual": mode.residual}
            for mode in koopman.modes
        ],
    }
