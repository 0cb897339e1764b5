"""Files and names that the user passes to a command, read and checked."""

import contextlib
import importlib
import json
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
from kann.reporting.packing import finite_or_none

SCHEDULER_TIMEOUT = 10.0
"""Seconds that a Dask scheduler has to answer before we say that there is none."""

UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, EOFError, AttributeError, zipfile.BadZipFile)
"""What numpy raises on files that are not what their names say."""


def number(text: str | None) -> int | float | None:
    """The rank that the user typed, as a number: whole if it is written so. `kann.fit` checks whether it makes sense.

    >>> number("16"), number("0.99"), number(None)
    (16, 0.99, None)
    """
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return int(text)
    try:
        return float(text)
    except ValueError:
        raise KannError(
            f"--rank {text} is not a number; pass a whole number such as 16, or a fraction such as 0.99"
        ) from None


def states_or_moments(path: str) -> States | Moments:
    """Saved moments, or states in any format that `States.open` reads."""
    # Files that kann saved have a header; a user's own .npz with an array of states has none.
    if path.endswith(".npz") and Path(path).exists() and "header" in _array_names(Path(path)):
        return Moments.load(path)
    return States.open(path)


def _array_names(path: Path) -> list[str]:
    """Names of the arrays in an ``.npz`` file; none if it cannot be read, which the function that opens it explains."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return list(archive.files)
    except UNREADABLE:
        return []


@contextlib.contextmanager
def dask_workers(address: str | None, data: States | Moments) -> Iterator[str]:
    """Let the workers of the Dask scheduler at this address do the work inside this block.

    Gives a line for the user on who does the work. Without an address nothing changes, and the line is empty.
    """
    if address is None:
        yield ""
        return
    client = _connect(address)
    import dask.config

    with client, dask.config.set(scheduler=client):
        if not (isinstance(data, States) and runs_on_dask(data)):
            raise KannError("--scheduler is for zarr stores, which workers can read; leave it out for other files")
        count = len(client.scheduler_info(n_workers=-1)["workers"])
        workers = "waiting for Dask workers"
        if count:
            workers = f"{count} Dask worker{'s' * (count != 1)}"
        yield f"{workers}; follow them at {client.dashboard_link}"


def _connect(address: str) -> Any:
    """A client of the Dask scheduler at this address."""
    try:
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port
    except ImportError as error:
        raise ImportError("--scheduler needs dask and distributed: pip install 'kann[dask]'") from error
    try:
        # A client that never connects keeps the process from ending, so we first see whether anything answers.
        socket.create_connection(get_address_host_port(address), timeout=SCHEDULER_TIMEOUT).close()
        return Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise KannError(f"no Dask scheduler answers at {address} ({error}); start one with 'dask scheduler'") from error


def json_list(path: Path) -> list[Any]:
    """The list in a JSON file."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise KannError(f"{path} is not JSON ({error})") from error
    if not isinstance(entries, list):
        raise KannError(f"{path} holds a {type(entries).__name__}, not a list; pass a list with one entry per sequence")
    return entries


def model(factory: str, weights: Path | None) -> Any:
    """The torch module that ``package.module:factory`` returns, with these weights.

    Modules in the current folder are found too.
    """
    module, _, name = factory.partition(":")
    if not module or not name:
        raise KannError(f"{factory!r} names no function; pass PKG.MODULE:FACTORY, such as mypackage.models:build")
    # The installed command `kann` starts without the current folder on its path, unlike `python -m kann`.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        build: Callable[[], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise KannError(f"{factory!r} cannot be imported ({error})") from error
    built = build()
    if not hasattr(built, "named_modules"):
        raise KannError(f"{factory!r} returned {type(built).__name__}; it must return a torch module")
    if weights is not None:
        _load_weights(built, weights)
    return built


def _load_weights(network: Any, path: Path) -> None:
    """Load weights into a network, without running any code that the file may hold."""
    from safetensors import SafetensorError

    if not path.exists():
        raise FileNotFoundError(f"no weights at {path}")
    try:
        network.load_state_dict(_tensors(path))
    except (SafetensorError, RuntimeError, TypeError, ValueError, EOFError) as error:
        raise KannError(f"{path} does not fit the model ({' '.join(str(error).split())})") from error
    except Exception as error:  # pickle raises anything at all on a file that is not a pickle
        raise KannError(f"{path} holds no weights ({type(error).__name__})") from error


def _tensors(path: Path) -> Any:
    """The named tensors of a file."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, weights_only=True, map_location="cpu")


def model_data(path: Path) -> tuple[Any, Any]:
    """What the model reads, and the lengths of the sequences if the file has them."""
    if not path.exists():
        raise FileNotFoundError(f"no data at {path}")
    import torch

    try:
        if path.suffix == ".npz":
            arrays = read_npz(path)
        else:
            with open(path, "rb") as file:  # given a path, numpy does not close a file of another format
                arrays = {"data": np.load(file, allow_pickle=False)}
        return torch.from_numpy(arrays["data"]), arrays.get("lengths")
    except UNREADABLE as error:
        raise KannError(f"{path} holds no data ({error}); pass .npy, or .npz with an array 'data'") from error


def operator_numbers(koopman: Koopman) -> dict[str, Any]:
    """An operator in numbers, for ``--json``."""
    return {
        "units": koopman.dim,
        "rank": koopman.rank,
        "driven": koopman.drive is not None,
        "explained": float(koopman.explained.sum()),
        "condition": finite_or_none(koopman.condition),
        "modes": [
            {
                "re": mode.eigenvalue.real,
                "im": mode.eigenvalue.imag,
                "modulus": mode.modulus,
                "residual": finite_or_none(mode.residual),
            }
            for mode in koopman.modes
        ],
    }
