"""Write an explanation to a folder and read it back."""

import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.analysis._movers import Movers, Phrase
from kann.analysis._trust import ModeTrust, Trust
from kann.backends.arrays import as_numpy
from kann.data.archives import damage_explained
from kann.data.atomic_write import remove
from kann.data.serialization import load_npz, save_npz
from kann.data.states import States
from kann.depth._trust import StepTrust
from kann.errors import KannError
from kann.explaining.readout_search import (
    AbsentReadout,
    LinearReadout,
    PartReadout,
    RectifiedReadout,
    head_of,
    with_head,
)
from kann.fitting.basis import RankCurve
from kann.fitting.koopman import Koopman
from kann.live.results import Effects, Tried
from kann.typing import Array

RESULTS = {
    each.__name__: each for each in (Effects, Koopman, ModeTrust, Movers, Phrase, RankCurve, StepTrust, Tried, Trust)
}
"""The results that may be kept, by name: a file can name these and nothing else."""


class Keeper:
    """Turns values into what JSON takes, and gathers their arrays, those of one type in one flat array."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Array]] = {}
        self._sizes: dict[str, int] = {}
        self._results: list[Any] = []  # kept alive, so that no other object takes their place in memory

    @property
    def arrays(self) -> dict[str, Array]:
        """The numbers of all arrays by the name of their type."""
        return {name: np.concatenate(pieces) for name, pieces in self._pieces.items()}

    def plain(self, value: Any) -> Any:
        """The value as JSON takes it; what is of no known kind is kept as its text."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, np.generic):
            return self.plain(value.item())
        if isinstance(value, float):
            if math.isfinite(value):
                return value
            return {"number": str(value)}
        if isinstance(value, complex):
            return {"complex": [self.plain(value.real), self.plain(value.imag)]}
        if isinstance(value, np.ndarray | Tensor):
            return self._array(as_numpy(value))
        if isinstance(value, list):
            return [self.plain(each) for each in value]
        if isinstance(value, tuple):
            return {"tuple": [self.plain(each) for each in value]}
        if isinstance(value, dict):
            return {"dict": [[self.plain(key), self.plain(each)] for key, each in value.items()]}
        return self._result(value)

    def _result(self, value: Any) -> Any:
        """A result with its fields; one that was kept before, such as an operator, only by its number."""
        known = next((number for number, each in enumerate(self._results) if each is value), None)
        if known is not None:
            return {"again": known}
        if isinstance(value, PartReadout):
            return {"readout": "PartReadout", "head": self.plain(value.head), "units": value.units}
        if isinstance(value, RectifiedReadout):
            return {"readout": "RectifiedReadout", "head": self.plain(value.head)}
        if isinstance(value, LinearReadout) or _is_plain_linear(value):
            return {"readout": type(value).__name__, "weight": self.plain(value.weight), "bias": self.plain(value.bias)}
        kind = type(value).__name__
        if RESULTS.get(kind) is not type(value):
            return str(value)
        self._results.append(value)
        return {
            "result": kind,
            "fields": {field.name: self.plain(getattr(value, field.name)) for field in fields(value)},
        }

    def _array(self, values: Array) -> Any:
        if values.dtype.kind not in "biufc":
            return self.plain(values.tolist())
        name = values.dtype.name
        start = self._sizes.get(name, 0)
        self._sizes[name] = start + values.size
        order: Any = "C"
        if values.flags.f_contiguous:  # the order in memory decides how products round, so that figures stay the same
            order = "F"
        self._pieces.setdefault(name, []).append(values.ravel(order=order))
        return {"array": name, "start": start, "shape": list(values.shape), "order": order}


def _is_plain_linear(value: Any) -> bool:
    """Whether a module does what its weight and bias say; one with a ``forward`` of its own may do anything."""
    return isinstance(value, nn.Linear) and type(value).forward is nn.Linear.forward


class Reader:
    """Turns what `Keeper` wrote back into values; raises all sorts of errors on what it did not write."""

    def __init__(self, arrays: dict[str, Array]):
        self._arrays = arrays
        self._results: list[Any] = []

    def value(self, plain: Any) -> Any:
        """The value that a piece of JSON stands for."""
        if isinstance(plain, list):
            return [self.value(each) for each in plain]
        if not isinstance(plain, dict):
            return plain
        if "number" in plain:
            return float(plain["number"])
        if "complex" in plain:
            return complex(*self.value(plain["complex"]))
        if "array" in plain:
            return self._array(plain)
        if "tuple" in plain:
            return tuple(self.value(plain["tuple"]))
        if "dict" in plain:
            return {self.value(key): self.value(each) for key, each in plain["dict"]}
        if "again" in plain:
            return self._results[plain["again"]]
        if "readout" in plain:
            return self._readout(plain)
        return self._result(plain)

    def _result(self, plain: dict[str, Any]) -> Any:
        place = len(self._results)
        self._results.append(None)  # results are numbered in the order in which they begin
        content = {name: self.value(each) for name, each in plain["fields"].items()}
        self._results[place] = RESULTS[plain["result"]](**content)
        return self._results[place]

    def _array(self, plain: dict[str, Any]) -> Array:
        shape, start = tuple(plain["shape"]), plain["start"]
        return self._arrays[plain["array"]][start : start + math.prod(shape)].reshape(shape, order=plain["order"])

    def _readout(self, plain: dict[str, Any]) -> Any:
        if plain["readout"] == "PartReadout":
            return PartReadout(self.value(plain["head"]), plain["units"])
        if plain["readout"] == "RectifiedReadout":
            return RectifiedReadout(self.value(plain["head"]))
        weight, bias = self.value(plain["weight"]), self.value(plain["bias"])
        if plain["readout"] == LinearReadout.__name__:
            return LinearReadout(weight, bias)
        head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.from_numpy(weight).dtype)
        kept = {"weight": weight, "bias": bias}
        head.load_state_dict({name: torch.from_numpy(each.copy()) for name, each in kept.items() if each is not None})
        return head


RESULTS_FILE, GATED_FILE, STATES_FOLDER = "explanation.npz", "gated.npz", "states.zarr"
"""What `Explanation.open` reads."""

OWN_FILES = (RESULTS_FILE, GATED_FILE, STATES_FOLDER, "koopman.npz", "explanation.json", "report.html")
"""All that `Explanation.save` writes."""

KIND, VERSION = "Explanation", 1

WITHOUT_READOUT = (
    "It was opened without its readout, which is not linear, so that no file holds it: the page shows no outputs at "
    "single steps. Pass kann.Explanation.open(folder, readout=...) to have them."
)
"""The choice that is added for a readout that is missing."""


def require_free(place: Path, *, overwrite: bool) -> None:
    """Refuse a file in place of the folder, and to replace what is in it unless the user says so."""
    if place.exists() and not place.is_dir():
        raise KannError(f"{place} is a file; pass the name of a folder")
    there = next((name for name in OWN_FILES if (place / name).exists()), None)
    if there is not None and not overwrite:
        raise KannError(f"{place / there} exists; pass overwrite=True to replace it, or another folder")


def require_saved(place: Path) -> None:
    """Refuse what is no folder of a saved explanation."""
    if not place.exists():
        raise FileNotFoundError(f"there is no folder {place}")
    if not (place / RESULTS_FILE).is_file():
        raise KannError(f"{place} holds no {RESULTS_FILE}; pass a folder that Explanation.save() wrote whole")


def remove_if_there(path: Path) -> None:
    """Remove a file of an earlier explanation."""
    if path.exists():
        remove(path)


def in_memory(states: States) -> States:
    """States of a store as arrays: they are few, and the folder may be replaced or removed."""
    inputs = states.inputs
    if inputs is not None:
        inputs = as_numpy(inputs[:])
    return replace(states, values=as_numpy(states.values[:]), inputs=inputs)


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Write all results by name: text that says what they are, and their numbers."""
    keeper = Keeper()
    text = json.dumps({name: keeper.plain(value) for name, value in content.items()}, allow_nan=False)
    arrays: dict[str, Any] = {**keeper.arrays, "content": np.frombuffer(text.encode(), dtype=np.uint8)}
    save_npz(path, kind=KIND, version=VERSION, arrays=arrays)


def read_results(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read what `write_results` wrote; refuse what is damaged, or lacks one of these results."""
    with damage_explained(path, problem="is not a whole explanation", remedy="save it again with .save()"):
        arrays = load_npz(path, kind=KIND, version=VERSION)
        reader = Reader(arrays)
        content = {name: reader.value(plain) for name, plain in json.loads(bytes(arrays["content"])).items()}
        return {name: content[name] for name in names}


def put_readout(content: dict[str, Any], readout: Any) -> None:
    """Put the user's readout where the saved one was, behind what it read of a state; say so if it is missing."""
    page = content["page"]
    content["choices"] = tuple(choice for choice in content["choices"] if choice != WITHOUT_READOUT)
    kept = page.get("readout")
    if readout is not None and head_of(readout) is readout:
        readout = with_head(kept, readout)
    if readout is not None:
        page["readout"] = readout
    elif isinstance(head_of(kept), str):  # its text alone could be kept
        page["readout"] = with_head(kept, AbsentReadout(head_of(kept)))
        content["choices"] += (WITHOUT_READOUT,)
