"""Options that several commands share, and what the user names with them: models, data, states, operators, lists."""

import asyncio
import contextlib
import functools
import importlib
import inspect
import json
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import typer

from kann._format import finite_or_none
from kann.cli.errors import named
from kann.data.archives import damage_explained, npz_names, read_npz, reason, require_file
from kann.data.moments import Moments
from kann.data.reduction import runs_on_dask
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.folds import FEWEST_FOLDS
from kann.fitting.koopman import Koopman
from kann.reporting.trust import KnownTrust, known_trust, mode_trust_rows, trust_numbers
from kann.typing import Array

Weights = Annotated[Path | None, typer.Option(help="The weights of the model: .safetensors or .pt.")]
Labels = Annotated[
    Path | None, typer.Option(help="JSON: the label of each sequence, or a list of the labels of its steps.")
]
Tokens = Annotated[Path | None, typer.Option(help="JSON: for each sequence a list of words.")]
Page = Annotated[Path, typer.Option("--out", "-o", help="The page to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network that a command runs, its data, and the layer to look at."""

    factory: Annotated[str, typer.Argument(metavar="PKG.MODULE:FACTORY", help="A function that returns the model.")]
    data: Annotated[Path, typer.Option(help="The inputs of the model: .npy, or .npz with 'data' and maybe 'lengths'.")]
    lengths: Annotated[
        Path | None,
        typer.Option(help="The number of real steps of each sequence: .npy; also for a model that reads it."),
    ] = None
    layer: Annotated[str | None, typer.Option(help="The layer to look at; not needed if only one is recurrent.")] = None
    state: Annotated[str | None, typer.Option(help="Which state of an LSTM: h, c or hc.")] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Number of sequences to run at once.")] = 128


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Make the fields of every group that a command takes options of the command line."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        types = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = parameter.empty if field.default is MISSING else field.default
            own = inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=types[field.name])
            parameters.append(own)

    @functools.wraps(command)
    def grouped(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    grouped.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return grouped


# What the user names

SCHEDULER_TIMEOUT = 10.0
"""Seconds that a Dask scheduler has to answer before we say that there is none."""


def number(text: str) -> int | float | str:
    """Parse the rank that the user typed: "auto", or a number, whole if it is written so. `kann.fit` checks it.

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
    """Return the rank that the user typed, by default "auto", or all directions if few sequences can be held out."""
    if text is not None:
        return number(text)
    return "auto" if isinstance(data, States) and int((data.lengths > 1).sum()) >= FEWEST_FOLDS else None


def states_or_moments(path: str) -> States | Moments:
    """Open saved moments, or states in any format that `States.open` reads."""
    # Files that kann saved have a header; a user's own .npz with an array of states has none.
    if path.endswith(".npz") and Path(path).exists() and "header" in npz_names(path):
        with damage_explained(path, problem="cannot be read as moments", remedy="save them again"):
            return Moments.load(path)
    return states(path)


def states(path: str) -> States:
    """Open states in any format that `States.open` reads."""
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
    """Raise if states were recorded without the inputs that a driven fit needs."""
    has_inputs = data.input_dim > 0 if isinstance(data, Moments) else data.inputs is not None
    if not has_inputs:
        raise KannError(
            f"--driven needs what the network read, and {path} has no inputs; record them with 'kann record --inputs', "
            "or save an .npz file with arrays 'values' and 'inputs', one input for each state"
        )


def operator(path: Path) -> Koopman:
    """Load the operator that ``kann fit`` wrote."""
    with damage_explained(path, problem="cannot be read as an operator", remedy="write it again with 'kann fit'"):
        return Koopman.load(path)


def operator_states_or_moments(path: str) -> Koopman | States | Moments:
    """Read an operator, or else moments or states."""
    if path.endswith(".npz") and Path(path).is_file() and "eigenvalues" in npz_names(path):
        return operator(Path(path))
    return states_or_moments(path)


def _require_no_folder_of_stores(path: str) -> None:
    """Name the stores in a folder that is none itself, such as one that several layers were recorded into."""
    folder = Path(path)
    if not folder.is_dir() or (folder / "zarr.json").exists():
        return
    stores = sorted(str(each.parent) for each in folder.glob("*/zarr.json"))
    if stores:
        raise KannError(f"{path} is a folder of {len(stores)} stores; pass one of them: {', '.join(stores[:8])}")


@contextlib.contextmanager
def dask_workers(address: str | None, data: States | Moments) -> Iterator[str]:
    """Let the workers of the Dask scheduler at this address do the work inside this block.

    Gives a line for the user on who does the work. Without an address Dask is not used, and the line is empty.
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
        workers = f"{count} Dask worker{'s' * (count != 1)}" if count else "waiting for Dask workers"
        yield f"{workers}; follow them at {client.dashboard_link}"


def _connect(address: str) -> Any:
    """Return a client of the Dask scheduler at this address."""
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


def json_lists(**paths: Path | None) -> dict[str, Any]:
    """Return the lists in JSON files by name, without those for which the user named no file."""
    return {name: _json_list(path) for name, path in paths.items() if path is not None}


def _json_list(path: Path) -> list[Any]:
    require_present(path, "file")
    with damage_explained(path, problem="is not JSON", remedy="pass a JSON list with one entry per sequence"):
        entries = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(entries, list):
        raise KannError(f"{path} holds a {type(entries).__name__}, not a list; pass a list with one entry per sequence")
    return entries


def model(factory: str, weights: Path | None) -> Any:
    """Build the torch module that ``package.module:factory`` returns, with these weights.

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
        raise KannError(f"{factory!r} cannot be imported ({named(error)}); 'kann --debug …' shows where") from error
    try:
        built = build()
    except Exception as error:
        raise KannError(f"{factory!r} failed ({named(error)}); 'kann --debug …' shows where") from error
    if not hasattr(built, "named_modules"):
        raise KannError(f"{factory!r} returned {type(built).__name__}; it must return a torch module")
    if weights is not None:
        load_weights(built, weights)
    return built


def load_weights(network: Any, path: Path) -> None:
    """Load weights into a network, without running any code that the file may hold."""
    require_present(path, "weights")
    with damage_explained(path, problem="holds no weights", remedy="pass a .safetensors file or a saved state_dict"):
        tensors = _tensors(path)
    with damage_explained(path, problem="does not fit the model", remedy="pass the weights of this model"):
        network.load_state_dict(tensors)


def _tensors(path: Path) -> Any:
    """Read the named tensors of a file."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, weights_only=True, map_location="cpu")


@contextlib.contextmanager
def model_and_data(
    network: Network, weights: Path | None = None, *, command: str
) -> Iterator[tuple[Any, Array, dict[str, Any]]]:
    """Build the model, read its data and the options of a run, and let the block run the model.

    Any exception of the user's model inside the block becomes a `KannError` that names the data.
    """
    data, arrays = network.data, _data_arrays(network.data)
    if "data" not in arrays:
        raise KannError(f"{data} holds no array 'data'; it has {sorted(arrays)}; pass numpy.savez(path, data=...)")
    values = arrays["data"]
    run = {"lengths": arrays.get("lengths") if network.lengths is None else _data_arrays(network.lengths)["data"]}
    run |= {"layer": network.layer, "state": network.state, "batch_size": network.batch_size}
    built = model(network.factory, weights)
    try:
        yield built, values, {name: value for name, value in run.items() if value is not None}
    except (KannError, OSError, ImportError):
        raise
    except Exception as error:  # the user's model may raise anything
        source = f"{data}, whose data are {values.dtype} of shape {values.shape}"
        raise KannError(f"the model cannot run on {source} ({named(error)}); see 'kann --debug {command}'") from error


def require_present(path: Path, what: str = "data") -> None:
    """Raise if a file is missing or is no plain file: a FIFO would block, and /dev/zero never ends."""
    if not path.exists():
        raise FileNotFoundError(f"no {what} at {path}")
    require_file(path)


def _data_arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of an ``.npz`` file by name, or that of an ``.npy`` file as ``data``: real numbers only.

    Whole numbers are in the type that embeddings take.
    """
    require_present(path)
    with damage_explained(path, problem="holds no data", remedy="pass .npy, or .npz with an array 'data'"):
        if path.suffix == ".npz":
            arrays = read_npz(path)
        else:
            with open(path, "rb") as file:
                arrays = {"data": np.lib.format.read_array(file, allow_pickle=False)}
        for name, array in arrays.items():
            if array.dtype.kind not in "biuf":
                raise ValueError(f"{name} is {array.dtype}, not real numbers")
    return {name: array if array.dtype.kind == "f" else array.astype(np.int64) for name, array in arrays.items()}


def trust_in(koopman: Koopman, data: States | Moments) -> KnownTrust:
    """Measure how far the operator can be trusted, on sequences of its data that are held out in turn."""
    if isinstance(data, Moments):
        return KnownTrust(trust=None, reason="moments of all sequences together leave nothing to hold out")
    return known_trust(koopman, data)


def trust_in_words(known: KnownTrust) -> str:
    """Describe which modes can be trusted, and which sequences were held out, in a line or two."""
    if known.trust is None:
        return f"no mode was tested: {known.reason}"
    names = ", ".join(str(number) for number in known.trust.trusted) or "none"
    return f"{known.trust!r}\ntrusted modes: {names}"


def operator_numbers(koopman: Koopman, known: KnownTrust) -> dict[str, Any]:
    """Return an operator in numbers, for ``--json``, with the evidence on each mode if trust was measured."""
    trusts = mode_trust_rows(known) or [{}] * len(koopman.modes)
    return {
        "units": koopman.dim,
        "rank": koopman.rank,
        "driven": koopman.drive is not None,
        "explained": float(koopman.explained.sum()),
        "condition": finite_or_none(koopman.condition),
        "modes": [
            {"re": mode.eigenvalue.real, "im": mode.eigenvalue.imag, "modulus": mode.modulus}
            | {"residual": finite_or_none(mode.residual)}
            | own
            for mode, own in zip(koopman.modes, trusts, strict=True)
        ],
        "trust": trust_numbers(known),
        "not_tested": known.reason,
    }
