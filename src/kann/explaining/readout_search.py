"""Find the readout of the explained states, and how the network's outputs come of it."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit
from torch import nn
from torch.nn.utils import skip_init

from kann.analysis.decisions import read_out
from kann.backends.arrays import as_numpy
from kann.checks import require_real
from kann.data.states import States
from kann.errors import KannError
from kann.explaining.layer_search import Place
from kann.live._intervene import width_of
from kann.recording.recurrent import readout_of
from kann.typing import Array, Float, Shaped

SAME_TO = 1e-3
"""Outputs are the same if they differ by less than this fraction of their spread: kernels round float32 differently."""

LEAST_PROBABILITY = 1e-12
"""Outputs of a sigmoid that round to 0 or 1 are taken to be this far from it, so that what made them is finite."""

WAYS = {
    "last": "of its last state",
    "every": "of the state at every step",
    "mean": "of the mean of its states",
    "max": "of the largest value of each unit over its states",
    "sum": "of the sum of its states",
}
"""How a network may come to its outputs, in words."""

POOLS: dict[str, Callable[[Array], Array]] = {
    "last": lambda h: h[-1],
    "mean": partial(np.mean, axis=0),
    "max": partial(np.max, axis=0),
    "sum": partial(np.sum, axis=0),
}
"""Parts of the states (t, d) of a sequence that a head may read if it decides once."""


NOT_FOUND = "No readout of these states was found."


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StateReadout:
    """The part of a state that a head reads: its first units, such as h where h and c were recorded side by side."""

    head: Any
    """A module or a function; the text of one that no file can hold."""
    units: int | None = None
    """None for all."""
    is_rectified: bool = False
    """True if the head reads them behind ReLU."""

    def __call__(self, h: Float[Array, "n d"]) -> Float[Array, "n ..."]:
        """Return the outputs of states."""
        if isinstance(self.head, str):
            raise KannError(
                f"the readout {self.head} was not saved, since it is not linear; pass it to "
                "kann.Explanation.open(folder, readout=...)"
            )
        h = h[:, : self.units]
        return read_out(self.head, np.maximum(h, 0) if self.is_rectified else h)


def head_of(readout: Any) -> Any:
    """Return the head that a readout of states calls in the end."""
    return head_of(readout.head) if isinstance(readout, StateReadout) else readout


def with_head(readout: Any, head: Any) -> Any:
    """Return a readout that reads the same of a state, and gives it to another head."""
    reads_all = not isinstance(readout, StateReadout) or (readout.units is None and not readout.is_rectified)
    return head if reads_all else replace(readout, head=with_head(readout.head, head))


def linear_readout(weight: Float[Array, "o d"], bias: Float[Array, " o"] | None) -> nn.Linear:
    """Return a linear layer with this weight, in its precision."""
    dtype = torch.from_numpy(weight).dtype
    linear: Any = skip_init(nn.Linear, *weight.shape[::-1], bias=bias is not None, dtype=dtype)
    known = {"weight": weight, "bias": bias}
    linear.load_state_dict({name: torch.from_numpy(each.copy()) for name, each in known.items() if each is not None})
    return linear


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reading:
    """The readout of the explained states."""

    why: str
    readout: Any = None
    """From states to the network's outputs, for the page; None if that is not known."""
    weight: Float[Array, "o d"] | None = None
    """The weight of the linear layer that reads the states; None if there is none."""
    is_output: bool = False
    """Whether the rows of the weight are the network's outputs."""
    before_sigmoid: bool = False
    """Whether the network's outputs are sigmoids of what the readout gives, which exceeds 0 where they exceed 0.5."""


def find_reading(
    model: nn.Module, place: Place, asked: Any, states: States, outputs: Shaped[Array, "s ..."]
) -> Reading:
    """Find the readout that the user names or the only one that fits; ``outputs`` are those for these states."""
    head = _head(model, place, asked)
    if head is None:
        return Reading(why=NOT_FOUND)
    if not hasattr(head, "parameters") and callable(head):
        read_out(head, as_numpy(states.values[:1]))  # raises if it cannot read such states
        return Reading(readout=head, why="The readout is the function that you passed.")
    linear = _first_linear(head)
    if linear is None:
        return Reading(readout=head, why="The readout is not linear.")
    weight = _as_wide(linear, place, states.dim, asked)
    if weight is None:
        return Reading(why=NOT_FOUND)
    if not isinstance(head, nn.Module):
        head = linear = linear_readout(weight, np.zeros(len(weight)))
    return _compared(head, linear, weight, place, states, outputs)


def _head(model: nn.Module, place: Place, asked: Any) -> Any:
    """Return the module, array or function that reads the states; None if none is known."""
    if isinstance(asked, str):
        return readout_of(model, name=asked)
    if asked is not None:
        return asked
    module: Any = place.target and place.target.module
    if place.target is None or module is None:
        return None
    if not isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return _only_linear_after(model, place.target.path)
    if not isinstance(module, nn.RNNBase) or place.target.level in (-1, module.num_layers - 1):
        with contextlib.suppress(KannError):
            return readout_of(model, place.target.path or None)
    return None  # the readout reads the last layer


def _only_linear_after(model: nn.Module, path: str) -> nn.Module | None:
    """Return the only linear layer that follows a module."""
    modules = list(model.named_modules())
    first = next(i for i, (name, _) in enumerate(modules) if name == path)
    after = [part for name, part in modules[first + 1 :] if not name.startswith(f"{path}.")]
    linear = [part for part in after if isinstance(part, nn.Linear)]
    return linear[0] if len(linear) == 1 else None


def _first_linear(head: Any) -> Any:
    """Return the linear layer that a head begins with, or a weight that was passed as it is."""
    if not isinstance(head, nn.Module) or isinstance(getattr(head, "weight", None), nn.Parameter):
        return head
    first = next((part for part in head.modules() if list(part.parameters(recurse=False))), None)
    return first if isinstance(first, nn.Linear) else None


def _as_wide(linear: Any, place: Place, width: int, asked: Any) -> Float[Array, "o d"] | None:
    """Return the weight for the recorded units: one of two directions, without the cell state."""
    weight = as_numpy(getattr(linear, "weight", linear))
    require_real(weight, what="readout weights")
    own = (place.target and "h" in place.state and width_of(place.target, "h")) or width
    if place.state == "c":
        return None
    if weight.ndim == 2 and weight.shape[1] == 2 * own and _is_bidirectional(place):
        weight = weight[:, own:] if place.target is not None and place.target.reverse else weight[:, :own]
    if weight.ndim == 2 and weight.shape[1] == own < width:
        weight = np.pad(weight, ((0, 0), (0, width - own)))
    if weight.ndim == 2 and weight.shape[1] == width:
        return weight.astype(np.float64)
    if asked is None:
        return None
    raise KannError(
        f"readout= has a weight of shape {weight.shape}, and the states of {place.layer!r} have {width} units "
        f"(state={place.state!r}); pass the layer that reads them, of (outputs, {own})"
    )


def _is_bidirectional(place: Place) -> bool:
    return bool(place.target is not None and getattr(place.target.module, "bidirectional", False))


def _compared(
    head: nn.Module,
    linear: Any,
    weight: Float[Array, "o d"],
    place: Place,
    states: States,
    outputs: Shaped[Array, "s ..."],
) -> Reading:
    """Find whether the head gives the network's outputs, and of which states."""
    units, is_linear, way, before_sigmoid = as_numpy(linear.weight).shape[1], linear is head, None, False
    what = "a linear readout" if is_linear else "a head that begins with a linear layer"
    if not _is_bidirectional(place):
        way = _way(head, units, states, outputs)
        behind_relu = StateReadout(head=head, units=units, is_rectified=True)
        for reader, rectified, more in ((behind_relu, False, ""), (head, True, ", each behind ReLU")):
            found = None if way else _way(reader, units, states, outputs, rectified=rectified)
            if found is not None:
                why = f"The network decides by a head behind ReLU {WAYS[found]}{more}, found and checked against its "
                return Reading(readout=behind_relu, weight=weight, why=f"{why}outputs.")
        before_sigmoid = way is None and outputs.size > 0 and bool(((outputs >= 0) & (outputs <= 1)).all())
        if before_sigmoid:
            way, what = _way(lambda h: expit(read_out(head, h)), units, states, outputs), f"the sigmoid of {what}"
    if way is not None:
        return Reading(
            readout=_for_page(head, weight, units, states.dim, is_linear=is_linear),
            weight=weight,
            is_output=is_linear,
            why=f"The network's outputs are {what} {WAYS[way]}, found and checked against them.",
            before_sigmoid=before_sigmoid,
        )
    flat = outputs.reshape(len(outputs), -1)
    if is_linear and outputs.ndim <= 2 and flat.shape[1] == len(weight):
        # The rest of what it reads counts with its mean, so that mean outputs are right.
        ends = as_numpy(states.values[states.starts + states.lengths - 1]).astype(np.float64)
        readout = linear_readout(weight, flat.mean(axis=0) - ends.mean(axis=0) @ weight.T)
        why = "The readout reads more than these states; the rest of what it reads counts with its mean."
        return Reading(readout=readout, weight=weight, is_output=True, why=why)
    return Reading(
        weight=weight, why="The layer that reads these states was found, but not how the outputs come of it."
    )


def outputs_before_sigmoid(readout: Any, ends: Float[Array, "s d"], outputs: Shaped[Array, "s ..."]) -> Array:
    """Return the argument of the sigmoid that gave these outputs: the readout of the last states if that fits.

    It is taken from the outputs if the readout reads other states too. In float32 they tell little from 10 on.
    """
    read = read_out(readout, ends)
    if _are_same(expit(read), outputs):
        return read
    return logit(np.clip(outputs.astype(np.float64), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))


def _for_page(head: Any, weight: Float[Array, "o d"], units: int, width: int, *, is_linear: bool) -> Any:
    """Return the readout as a function of the recorded states."""
    if units == width:
        return head
    if not is_linear:
        return StateReadout(head=head, units=units)
    bias = getattr(head, "bias", None)
    return linear_readout(weight, None if bias is None else as_numpy(bias).astype(np.float64))


def _way(
    head: Any, units: int, states: States, outputs: Shaped[Array, "s ..."], *, rectified: bool = False
) -> str | None:
    """Find the states from which the head computes the network's outputs; None if there are none."""
    rows = [np.maximum(own[:, :units], 0) if rectified else own[:, :units] for own in states]
    if outputs.ndim >= 3 or (outputs.ndim == 2 and outputs.shape[1] == states.lengths.max() > 1):
        made = [read_out(head, own) for own in rows]
        order = slice(None, None, -1 if states.reverse else 1)
        truth = [own[: len(part)][order] for own, part in zip(outputs, made, strict=True)]
        if _are_same(np.concatenate(made), np.concatenate(truth)):
            return "every"
    if outputs.ndim >= 3:
        return None
    # A network may also have as many outputs as a sequence has steps.
    pooled = ((name, read_out(head, np.stack([pool(own) for own in rows]))) for name, pool in POOLS.items())
    return next((name for name, made in pooled if _are_same(made, outputs)), None)


def _are_same(made: Array, truth: Array) -> bool:
    if made.size != truth.size:
        return False
    gap = np.abs(made.ravel() - truth.ravel()).max()
    return bool(gap <= SAME_TO * max(float(truth.std()), SAME_TO * float(np.abs(truth).max()), 1e-12))
