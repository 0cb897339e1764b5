"""``kann record``: a single layer of any model, over data in a file."""

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kann
from kann.cli.errors import errors_of_model
from kann.data.recordings import NUMPY_FILES
from kann.errors import KannError
from kann.typing import Array


def require_store_name(out: Path) -> None:
    """Refuse names under which a store would not be found again."""
    if out.suffix in NUMPY_FILES:
        raise KannError(f"{out} would be read as a numpy file; pass a name such as {out.stem}.zarr")
    if ":/" in str(out):
        raise KannError(f"{out} is an address; record to a folder, and copy it there with fsspec or your cloud's tools")


def record(
    model: Any, values: Array, lengths: Array | None, *, source: Path, options: Mapping[str, Any]
) -> kann.States:
    """Run the model over the data that came from the file ``source``, and record a single layer."""
    _require_one_layer(model, options)
    data, lengths_of = as_called(model, values, lengths)
    with errors_of_model(f"{source}, whose data are {values.dtype} of shape {values.shape}", command="record"):
        return kann.record(model, data, lengths=lengths_of, **options)


def _require_one_layer(model: Any, options: Mapping[str, Any]) -> None:
    """Refuse what names several layers, such as the two directions of a bidirectional one, which need a store each."""
    from kann.recording.tracers import make_tracers
    from kann.recording.tracing import StateOptions

    wanted = StateOptions(state=options["state"], inputs=options["inputs"], initial=False)
    tracers, single = make_tracers(model, options["layer"], wanted, axis="time", embedding=None)
    if not single:
        names = ", ".join(name for tracer in tracers for name in tracer.names())
        raise KannError(f"the model has several layers or directions to record; pass --layer with one of {names}")


def as_called(model: Any, values: Array, lengths: Array | None) -> tuple[Any, Any]:
    """The data and their lengths as `kann.record` takes them; by name for a model that reads the lengths itself."""
    names, required = _arguments(model)
    if required > 2 or (required == 2 and lengths is None):
        raise KannError(
            f"the model's forward needs {', '.join(names[:required])}; kann passes data and lengths "
            "(--lengths, or 'lengths' in an .npz); for anything else call kann from Python with forward="
        )
    if lengths is None:
        return values, None
    name = None
    if required == 2:
        name = names[1]
    elif "lengths" in names[1:]:
        name = "lengths"
    if name is None:
        return values, lengths
    if len(lengths) != len(values):
        raise KannError(f"there are {len(lengths)} lengths for {len(values)} sequences; pass one for each")
    return _tensors(model, {names[0]: values, name: lengths}), name


def _arguments(model: Any) -> tuple[list[str], int]:
    """Names of what the model's forward takes by position, and how many of them have no default."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # compiled code may have no signature
        return [], 0
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [parameter for parameter in parameters if parameter.kind in by_position]
    return [parameter.name for parameter in found], sum(parameter.default is parameter.empty for parameter in found)


def _tensors(model: Any, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Arrays as tensors; real numbers in the type of the model's parameters."""
    import torch

    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    kind = next(kinds, torch.get_default_dtype())
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return tensors | {name: each.to(kind) for name, each in tensors.items() if each.is_floating_point()}


def what_is_left(out: Path) -> Callable[[], str]:
    """A function that says, after Ctrl-C, what of the recording is at ``out``; call this before the recording."""
    before = _version(out)

    def say() -> str:
        now = _version(out)
        if now is None:
            return f"interrupted before anything was written to {out}; run the same command again"
        if now == before:
            return f"interrupted; nothing new was written, and {out} is as it was before"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is not finished is what we are about to say
                count = len(kann.States.open(out))
        except Exception:
            return f"interrupted before the first part was written; {out} cannot be used; pass --force to start again"
        return f"interrupted; the {count} sequences that were finished are in {out}; pass --force to start again"

    return say


def _version(store: Path) -> tuple[int, int] | None:
    """What changes whenever a store is written: the number and time of its metadata file; None if there is none."""
    try:
        found = os.stat(store / "zarr.json")
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
