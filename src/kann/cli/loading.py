"""Files and names that the user passes to a command, read and checked."""

import asyncio
import contextlib
import importlib
import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kann.data.archives import damage_explained, reason, require_file
from kann.data.files import read_npz
from kann.data.moments import Moments
from kann.data.reduction import require_on_dask
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.folds import FEWEST_FOLDS
from kann.fitting.koopman import Koopman
from kann.reporting.packing import finite_or_none
from kann.reporting.trusting import KnownTrust, known_trust, mode_trust_rows, trust_numbers

SCHEDULER_TIMEOUT = 10.0
"""Seconds that a Dask scheduler has to answer before we say that there is none."""


def number(text: str) -> int | float | str:
    """The rank that the user typed: "auto", or a number, whole if it is written so. `kann.fit` checks it.

    >>> number("16"), number("0.99"), number("auto")
    (16, 0.99, 'auto')
    """
    if text == "auto":
        return text
    with contextlib.suppress(ValueError):
        return int(text)
    try:
        return float(text)
    except ValueError:
        raise KannError(
            f"--rank {text} is not a number; pass a whole number such as 16, a fraction such as 0.99, or auto"
        ) from None


def rank(text: str | None, data: States | Moments) -> int | float | str | None:
    """The rank that the user typed; "auto" if none was, or all directions if too few sequences could be held out."""
    if text is not None:
        return number(text)
    if isinstance(data, States) and int((data.lengths > 1).sum()) >= FEWEST_FOLDS:
        return "auto"
    return None


def states_or_moments(path: str) -> States | Moments:
    """Saved moments, or states in any format that `States.open` reads."""
    # Files that kann saved have a header; a user's own .npz with an array of states has none.
    if path.endswith(".npz") and Path(path).exists() and "header" in _array_names(Path(path)):
        with damage_explained(path, problem="cannot be read as moments", remedy="save them again"):
            return Moments.load(path)
    return states(path)


def states(path: str) -> States:
    """States in any format that `States.open` reads."""
    _require_no_folder_of_stores(path)
    try:
        with damage_explained(path, problem="cannot be read as states", remedy="record or save them again"):
            return States.open(path)
    except KannError as error:
        if path in str(error):
            raise
        raise KannError(
            f"{path} holds no states ({error}); save an array of (sequences, steps, units), or of (steps, units) for a "
            "single sequence"
        ) from error


def require_inputs(data: States | Moments, path: str) -> None:
    """Refuse to fit what inputs do to states that were recorded without them."""
    has_inputs = isinstance(data, Moments) and data.input_dim > 0
    if isinstance(data, States):
        has_inputs = data.inputs is not None
    if not has_inputs:
        raise KannError(
            f"--driven needs what the network read, and {path} has no inputs; record them with 'kann record --inputs', "
            "or save an .npz file with arrays 'values' and 'inputs', one input for each state"
        )


def operator(path: Path) -> Koopman:
    """The operator that ``kann fit`` wrote."""
    with damage_explained(path, problem="cannot be read as an operator", remedy="write it again with 'kann fit'"):
        return Koopman.load(path)


def is_operator(path: str) -> bool:
    """Whether a file holds an operator, and neither moments nor states."""
    return Path(path).is_file() and "eigenvalues" in _array_names(Path(path))


def _require_no_folder_of_stores(path: str) -> None:
    """Say which stores are in a folder that is none itself, such as one that several layers were recorded into."""
    folder = Path(path)
    if not folder.is_dir() or (folder / "zarr.json").exists():
        return
    stores = sorted(str(each.parent) for each in folder.glob("*/zarr.json"))
    if stores:
        raise KannError(f"{path} is a folder of {len(stores)} stores; pass one of them: {', '.join(stores[:8])}")


def _array_names(path: Path) -> list[str]:
    """Names of the arrays in an ``.npz`` file."""
    require_file(path)
    with (
        damage_explained(path, problem="is no whole .npz file", remedy="save it again"),
        open(path, "rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        return list(archive.files)


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
        require_on_dask(data)
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
        # A client that never connects keeps the process from ending, so we first see whether anything answers, and
        # then whether it is a scheduler.
        socket.create_connection(get_address_host_port(address), timeout=SCHEDULER_TIMEOUT).close()
        asyncio.run(_greet(address))
        return Client(address, set_as_default=False, timeout=SCHEDULER_TIMEOUT)
    except Exception as error:  # what is no scheduler may answer anything, which Dask takes for sizes of messages
        raise KannError(
            f"no Dask scheduler answers at {address} ({reason(error)}); start one with 'dask scheduler', and pass the "
            "address that it prints, whose port is 8786 unless you chose another"
        ) from error


async def _greet(address: str) -> None:
    """Ask whoever is at this address for its identity; only a Dask scheduler has one, and within some seconds."""
    from distributed.core import rpc

    server: Any = rpc(address, timeout=SCHEDULER_TIMEOUT)
    try:
        answer: Any = await asyncio.wait_for(server.identity(), SCHEDULER_TIMEOUT)
        if answer.get("type") != "Scheduler":
            raise ValueError(f"a Dask {answer.get('type')} answers there")
    finally:
        await server.close_rpc()


def json_list(path: Path) -> list[Any]:
    """The list in a JSON file."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    with damage_explained(path, problem="is not JSON", remedy="pass a JSON list with one entry per sequence"):
        entries = json.loads(path.read_text(encoding="utf-8"))
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
    except Exception as error:  # the user's module may raise anything
        raise KannError(f"{factory!r} cannot be imported ({_named(error)}); 'kann --debug …' shows where") from error
    try:
        built = build()
    except Exception as error:
        raise KannError(f"{factory!r} failed ({_named(error)}); 'kann --debug …' shows where") from error
    if not hasattr(built, "named_modules"):
        raise KannError(f"{factory!r} returned {type(built).__name__}; it must return a torch module")
    if weights is not None:
        load_weights(built, weights)
    return built


def _named(error: Exception) -> str:
    """The name of an error and what it says."""
    return f"{type(error).__name__}: {reason(error)}"


def load_weights(network: Any, path: Path) -> None:
    """Load weights into a network, without running any code that the file may hold."""
    if not path.exists():
        raise FileNotFoundError(f"no weights at {path}")
    require_file(path)
    with damage_explained(path, problem="holds no weights", remedy="pass a .safetensors file or a saved state_dict"):
        tensors = _tensors(path)
    with damage_explained(path, problem="does not fit the model", remedy="pass the weights of this model"):
        network.load_state_dict(tensors)


def _tensors(path: Path) -> Any:
    """The named tensors of a file."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, weights_only=True, map_location="cpu")


def model_data(path: Path) -> tuple[Any, Any]:
    """What the model reads, and the lengths of the sequences if the file has them."""
    if path.suffix == ".npz":
        arrays = _data_arrays(path)
        if "data" not in arrays:
            raise KannError(f"{path} holds no array 'data'; it has {sorted(arrays)}; pass numpy.savez(path, data=...)")
        return arrays["data"], arrays.get("lengths")
    return _data_arrays(path)["data"], None


def require_data(path: Path) -> None:
    """Refuse a file of data that is not there."""
    if not path.exists():
        raise FileNotFoundError(f"no data at {path}")


def sequence_lengths(path: Path) -> Any:
    """The lengths in an ``.npy`` file."""
    return _data_arrays(path)["data"]


def _data_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an ``.npz`` file by name, or that of an ``.npy`` file as ``data``; numbers only."""
    require_data(path)
    require_file(path)
    with damage_explained(path, problem="holds no data", remedy="pass .npy, or .npz with an array 'data'"):
        if path.suffix == ".npz":
            arrays = read_npz(path)
        else:
            with open(path, "rb") as file:  # given a path, numpy does not close a file of another format
                arrays = {"data": np.load(file, allow_pickle=False)}
        return {name: _plain_numbers(array, name) for name, array in arrays.items()}


def _plain_numbers(array: Any, name: str) -> Any:
    """An array of real numbers in this machine's byte order; whole ones in the type that embeddings take."""
    if not isinstance(array, np.ndarray):
        raise ValueError("it holds several arrays")
    if array.dtype.kind in "iub":
        return array.astype(np.int64)
    if array.dtype.kind != "f":
        raise ValueError(f"{name} is {array.dtype}, not real numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def trust_in(koopman: Koopman, data: States | Moments) -> KnownTrust:
    """How far the operator can be trusted, measured on sequences of its own data that are held out in turn."""
    if isinstance(data, Moments):
        return KnownTrust(trust=None, reason="moments of all sequences together leave nothing to hold out")
    return known_trust(koopman, data)


def trust_in_words(known: KnownTrust) -> str:
    """Which modes can be trusted, and what was held out, in a line or two."""
    if known.trust is None:
        return f"no mode was tested: {known.reason}"
    names = ", ".join(str(number) for number in known.trust.trusted) or "none"
    return f"{known.trust!r}\ntrusted modes: {names}"


def operator_numbers(koopman: Koopman, known: KnownTrust) -> dict[str, Any]:
    """An operator in numbers, for ``--json``, with what held-out sequences say about each mode if that is known."""
    trusts = mode_trust_rows(known) or [{}] * len(koopman.modes)
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
                **own,
            }
            for mode, own in zip(koopman.modes, trusts, strict=True)
        ],
        "trust": trust_numbers(known),
        "not_tested": known.reason,
    }
