"""The folder of a saved explanation: which files it has, and the one that holds the results."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.data.archives import damage_explained
from kann.data.files import load_npz, save_npz
from kann.data.placing import remove
from kann.data.states import States
from kann.errors import KannError
from kann.explaining.keeping import Keeper, Reader
from kann.explaining.reading import AbsentReadout, head_of, with_head

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
