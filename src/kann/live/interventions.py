"""Keep or remove modes of a network's state while the network runs."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kann.analysis.coordinates import Coordinates
from kann.analysis.filling import fit_fills
from kann.analysis.fills import Fill, converted, in_few_operations
from kann.backends.arrays import as_numpy
from kann.checks import require_instance
from kann.data.states import as_states
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.live.replacing import only_target, replaced, width_of
from kann.live.stepping import Replace
from kann.recording.selection import Target

Modes = int | Mode | Iterable[int | Mode]
"""Modes of an operator, by themselves or by their numbers in ``koopman.modes``."""


@contextlib.contextmanager
def intervene(
    model: nn.Module,
    koopman: Koopman,
    states: Any,
    *,
    keep: Modes | None = None,
    remove: Modes | None = None,
    fill: str = "curve",
    layer: str | None = None,
    state: str = "h",
) -> Iterator[None]:
    """Let a model run with its state replaced after every step: only some modes are kept of it, or some are removed.

    >>> import kann
    >>> model, words = nn.Sequential(nn.Embedding(10, 3), nn.GRU(3, 4, batch_first=True)), torch.arange(8).reshape(2, 4)
    >>> states = kann.record(model, words)
    >>> koopman = kann.fit(states, basis="pca")
    >>> with kann.intervene(model, koopman, states, keep=[0], fill="linear"), torch.no_grad():
    ...     outputs, _ = model(words)
    >>> outputs.shape
    torch.Size([2, 4, 4])

    Inside the block the model is called as always, in the mode it is in and with gradients if they are on; call it in
    the thread that entered the block. Of other modules than recurrent ones every position of the output is
    replaced. `kann.record` inside the block records the replaced states. Afterwards the model is as it was, also after
    an error.

    Parameters
    ----------
    model
        The model that the states were recorded from.
    koopman
        The operator whose modes are kept or removed.
    states
        Recorded states, as `States`, an array (S, T, d) or the path of a store: what is filled in is learnt from them,
        once, when the block is entered.
    keep
        Numbers of the modes in ``koopman.modes`` that are kept; all else is filled. An empty list holds the state at
        its mean.
    remove
        Numbers of the modes whose share is taken off instead: h − (what ``keep`` would give) + mean.
    fill
        What the rest of a state becomes, given the kept coordinates s: its mean given s (``"curve"``: in bins along one
        coordinate, else by a quadratic regression; ``"linear"``: by a linear one), its mean (``"mean"``: along the
        eigenvectors, as `kann.reconstruct` has it), or that of a recorded state with nearby coordinates
        (``"resample"``; if modes are removed, their coordinates become those of a recorded state drawn at random).
        The mean of the states is taken off first, and coordinates are clipped to the range that was recorded.
    layer
        The layer whose states were recorded, named as in `kann.record`; without a name, the only recurrent one.
    state
        Which state of an LSTM was recorded: "h", "c" or "hc".
    """
    require_instance(koopman, Koopman, "koopman")
    modes, is_kept = _chosen(keep, remove)
    target = only_target(model, layer, state)
    recorded = as_states(states)
    require_same_width(koopman.dim, recorded.dim, "the recorded states have")
    require_layer_width(target, state, koopman.dim)
    (fitted,) = fit_fills([Coordinates.of_modes(koopman, modes)], recorded, fill)
    with replaced(model, target, replacement(fitted, keep=is_kept), state=state, width=koopman.dim):
        yield


def _chosen(keep: Modes | None, remove: Modes | None) -> tuple[Modes, bool]:
    """The modes, and whether they are kept."""
    if keep is not None and remove is None:
        return keep, True
    if remove is not None and keep is None:
        return remove, False
    raise KannError("pass either keep= or remove=, numbers of koopman.modes, and not both")


def require_same_width(width: int, found: int, what: str) -> None:
    """Refuse states of another number of units than the operator has."""
    if found != width:
        raise KannError(
            f"the operator is for {width} units; {what} {found}; pass the operator, the states, the layer= and the "
            "state= that belong together"
        )


def require_layer_width(target: Target, state: str, width: int) -> None:
    """Refuse a recurrent layer of another width; the width of other modules shows when they are called."""
    found = width_of(target, state)
    if found is not None:
        require_same_width(width, found, f"state={state!r} of {target.path!r} has")


def replacement(fill: Fill, *, keep: bool) -> Replace:
    """A fill as a function of tensors, in their precision, or in float32 where theirs is coarser.

    The arrays of the fill are converted once for each device and precision.
    """
    known: dict[Any, Callable[[Tensor], Tensor]] = {}

    def replace(h: Tensor) -> Tensor:
        precise = torch.promote_types(h.dtype, torch.float32)
        key = h.device, precise
        if key not in known:
            known[key] = _on_tensors(fill, h.device, precise, keep=keep)
        return known[key](h.to(precise)).to(h.dtype)

    return replace


def as_tensors(fill: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """The fill with tensors in place of its arrays."""

    def convert(values: Any) -> Tensor:
        tensor = torch.from_numpy(as_numpy(values).copy())
        if tensor.is_floating_point():
            tensor = tensor.to(dtype)
        return tensor.to(device)

    return converted(fill, convert)


def _on_tensors(fill: Fill, device: torch.device, dtype: torch.dtype, *, keep: bool) -> Callable[[Tensor], Tensor]:
    own = as_tensors(in_few_operations(fill), device, dtype)
    if keep:
        return own.kept
    if not isinstance(own, Fill):
        return lambda h: h - own.kept(h) + own.mean
    # Random numbers of its own, the same in every block: those of torch stay as they are.
    generator = torch.Generator(device=device).manual_seed(0)

    def draw(most: int, count: int) -> Tensor:
        return torch.randint(most, (count,), generator=generator, device=device)

    return lambda h: own.removed(h, draw=draw)
