"""Write an explanation to a folder and read it back."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kann.backends.arrays import as_numpy
from kann.data.serialization import Decoder, Stored
from kann.data.states import States
from kann.errors import KannError
from kann.explaining.readout_search import (
    AbsentReadout,
    LinearReadout,
    PartReadout,
    RectifiedReadout,
    head_of,
    with_head,
)
from kann.fitting.bilinear import Bilinear
from kann.typing import Array

RESULTS_FILE, GATED_FILE, STATES_FILE = "explanation.npz", "gated.npz", "states.npz"

OWN_FILES = (RESULTS_FILE, GATED_FILE, STATES_FILE, "states.zarr", "koopman.npz", "explanation.json", "report.html")
"""All that `Explanation.save` writes, and what it wrote in version 1."""

WITHOUT_READOUT = (
    "It was opened without its readout, which is not linear, so that no file holds it: the page shows no outputs at "
    "single steps. Pass kann.Explanation.open(folder, readout=...) to have them."
)
"""The choice that is added for a readout that is missing."""


def require_free(place: Path, *, overwrite: bool) -> None:
    """Raise for a file in place of the folder, and to replace what is in it unless the user says so."""
    if place.exists() and not place.is_dir():
        raise KannError(f"{place} is a file; pass the name of a folder")
    there = next((name for name in OWN_FILES if (place / name).exists()), None)
    if there is not None and not overwrite:
        raise KannError(f"{place / there} exists; pass overwrite=True to replace it, or another folder")


def require_saved(place: Path) -> None:
    """Raise for what is no folder of a saved explanation."""
    if not place.exists():
        raise FileNotFoundError(f"there is no folder {place}")
    if not (place / RESULTS_FILE).is_file():
        raise KannError(f"{place} holds no {RESULTS_FILE}; pass a folder that Explanation.save() wrote whole")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SavedReadout(Stored):
    """A readout as a file holds it: a linear layer, or what is read of a state before the head."""

    readout: str
    """The name of its class."""
    head: "SavedReadout | str | None" = None
    """The head behind `PartReadout` and `RectifiedReadout`; its text if no file can hold it."""
    units: int = 0
    weight: Array | None = None
    bias: Array | None = None

    @staticmethod
    def of(readout: Any) -> "SavedReadout | str":
        """Return what a file can hold of a readout: its text if it is not linear."""
        name = type(readout).__name__
        if isinstance(readout, PartReadout):
            return SavedReadout(readout=name, head=SavedReadout.of(readout.head), units=readout.units)
        if isinstance(readout, RectifiedReadout):
            return SavedReadout(readout=name, head=SavedReadout.of(readout.head))
        # A layer with a ``forward`` of its own may do anything.
        if isinstance(readout, LinearReadout) or getattr(type(readout), "forward", None) is nn.Linear.forward:
            bias = None if readout.bias is None else as_numpy(readout.bias)
            return SavedReadout(readout=name, weight=as_numpy(readout.weight), bias=bias)
        return str(readout)

    def restored(self) -> Any:
        """Return the readout."""
        head = self.head.restored() if isinstance(self.head, SavedReadout) else self.head
        if self.readout == PartReadout.__name__:
            return PartReadout(head, self.units)
        if self.readout == RectifiedReadout.__name__:
            return RectifiedReadout(head)
        if self.weight is None:
            raise ValueError("its readout has no weight")
        if self.readout == LinearReadout.__name__:
            return LinearReadout(self.weight, self.bias)  # pyright: ignore[reportArgumentType]
        width, outputs = self.weight.shape[::-1]
        linear = nn.Linear(width, outputs, bias=self.bias is not None, dtype=torch.from_numpy(self.weight).dtype)
        kept = {"weight": self.weight, "bias": self.bias}
        linear.load_state_dict({name: torch.from_numpy(each.copy()) for name, each in kept.items() if each is not None})
        return linear


def saved_states(states: States) -> dict[str, Any]:
    """Return states as named arrays, which `States.open` reads from an ``.npz`` file too."""
    arrays = {"values": as_numpy(states.values[:]), "lengths": states.lengths, "reverse": np.array(states.reverse)}
    return arrays if states.inputs is None else arrays | {"inputs": as_numpy(states.inputs[:])}


def restored_states(arrays: dict[str, Any]) -> States:
    """Return the states that `saved_states` turned into arrays."""
    return States(**arrays | {"reverse": bool(arrays["reverse"])})


def content_of_version_1(arrays: dict[str, Array], place: Path) -> dict[str, Any]:
    """Return the content of a folder that kann 0.2 wrote: results by name, with flat arrays, and two more files."""

    def as_now(plain: dict[str, Any]) -> dict[str, Any]:
        if "start" in plain:
            name, shape, start = f"array {len(arrays)}", tuple(plain["shape"]), plain["start"]
            flat = arrays[plain["array"]][start : start + math.prod(shape)]
            arrays[name] = flat.reshape(shape, order=plain["order"])
            return {"array": name}
        if "readout" in plain and "fields" not in plain:
            return {"result": SavedReadout.__name__, "fields": plain}
        return plain

    plain = json.loads(bytes(arrays["content"]), object_hook=as_now)
    decoder = Decoder(arrays, upgrade=True)
    content = {name: decoder.value(value) for name, value in plain.items()}
    states = States.open(place / "states.zarr")
    gated = Bilinear.load(place / GATED_FILE) if (place / GATED_FILE).exists() else None
    return content | {"states": saved_states(states), "gated": gated}


def with_readout(explanation: Any, readout: Any) -> Any:
    """Put the user's readout where the saved one was, behind what it read of a state; say so if it is missing."""
    page = dict(explanation.page)
    choices = tuple(choice for choice in explanation.choices if choice != WITHOUT_READOUT)
    kept = page.get("readout")
    if readout is not None:
        page["readout"] = with_head(kept, readout) if head_of(readout) is readout else readout
    elif isinstance(head_of(kept), str):  # its text alone could be kept
        page["readout"] = with_head(kept, AbsentReadout(head_of(kept)))
        choices += (WITHOUT_READOUT,)
    return replace(explanation, page=page, choices=choices)
