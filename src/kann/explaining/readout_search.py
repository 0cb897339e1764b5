"""Find the readout of the explained states, and how the network's outputs come of it."""

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

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


class PartReadout:
    """A readout of the first units of a state: a head that reads h where h and c were recorded side by side."""

    def __init__(self, head: Any, units: int):
        self.head, self.units = head, units

    def __call__(self, h: Float[Array, "n d"]) -> Float[Array, "n ..."]:
        """The outputs of states."""
        return read_out(self.head, h[:, : self.units])


class RectifiedReadout:
    """A head that reads states behind ReLU."""

    def __init__(self, head: Any):
        self.head = head

    def __call__(self, h: Float[Array, "n d"]) -> Float[Array, "n ..."]:
        """The outputs of states."""
        return read_out(self.head, np.maximum(h, 0))


class AbsentReadout:
    """In place of a head that no file can hold: its text, which says what it was."""

    def __init__(self, text: str):
        self._text = text

    def __call__(self, h: Float[Array, "n d"]) -> Float[Array, "n ..."]:
        """Refused, with what to do."""
        raise KannError(
            f"the readout {self._text} was not saved, since it is not linear; pass it to "
            "kann.Explanation.open(folder, readout=...)"
        )

    def __str__(self) -> str:
        return self._text


def head_of(readout: Any) -> Any:
    """The head that a readout of part of a state, or of rectified states, calls in the end."""
    while isinstance(readout, PartReadout | RectifiedReadout):
        readout = readout.head
    return readout


def with_head(readout: Any, head: Any) -> Any:
    """A readout that reads the same of a state, and gives it to another head."""
    if isinstance(readout, PartReadout):
        return PartReadout(with_head(readout.head, head), readout.units)
    if isinstance(readout, RectifiedReadout):
        return RectifiedReadout(with_head(readout.head, head))
    return head


class LinearReadout:
    """A linear readout by its weight: outputs are h @ weight.T + bias."""

    def __init__(self, weight: Float[Array, "o d"], bias: Float[Array, " o"]):
        self.weight, self.bias = weight, bias

    def __call__(self, h: Float[Array, "n d"]) -> Float[Array, "n o"]:
        """The outputs of states."""
        return h @ self.weight.T + self.bias


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reading:
    """What reads the explained states."""

    readout: Any
    """From states to the network's outputs, for the page; None if that is not known."""
    weight: Float[Array, "o d"] | None
    """The weight of the linear layer that reads the states; None if there is none."""
    is_output: bool
    """Whether the rows of the weight are the network's outputs."""
    why: str
    before_sigmoid: bool = False
    """Whether the network's outputs are sigmoids of what the readout gives, which exceeds 0 where they exceed 0.5."""


def find_reading(
    model: nn.Module, place: Place, asked: Any, states: States, outputs: Shaped[Array, "s ..."]
) -> Reading:
    """The readout that the user names or the only one that fits; ``outputs`` are the network's for these states."""
    head = _head(model, place, asked)
    if head is None:
        return Reading(readout=None, weight=None, is_output=False, why="No readout of these states was found.")
    if not hasattr(head, "parameters") and callable(head):
        read_out(head, as_numpy(states.values[:1]))  # refused here if it cannot read such states
        return Reading(readout=head, weight=None, is_output=False, why="The readout is the function that you passed.")
    linear = _first_linear(head)
    if linear is None:
        return Reading(readout=head, weight=None, is_output=False, why="The readout is not linear.")
    weight = _as_wide(linear, place, states.dim, asked)
    return _judged(head, linear, weight, place, states, outputs)


def _head(model: nn.Module, place: Place, asked: Any) -> Any:
    """The module, array or function that reads the states; None if none is known."""
    if isinstance(asked, str):
        return readout_of(model, name=asked)
    if asked is not None:
        return asked
    if place.axis == "depth" or place.target is None or place.target.module is None:
        return None
    module = place.target.module
    if isinstance(module, nn.RNNBase) and place.target.level not in (-1, module.num_layers - 1):
        return None  # the readout reads the last layer
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        with contextlib.suppress(KannError):
            return readout_of(model, place.target.path or None)
        return None
    return _only_linear_after(model, place.target.path)


def _only_linear_after(model: nn.Module, path: str) -> nn.Module | None:
    """The only linear layer that follows a module."""
    names = [name for name, _ in model.named_modules()]
    after = [
        part
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and names.index(name) > names.index(path) and not name.startswith(f"{path}.")
    ]
    if len(after) == 1:
        return after[0]
    return None


def _first_linear(head: Any) -> Any:
    """The linear layer that a head begins with, or a weight that was passed as it is."""
    if not isinstance(head, nn.Module):
        return head
    if isinstance(getattr(head, "weight", None), nn.Parameter):
        return head
    first = next((part for part in head.modules() if list(part.parameters(recurse=False))), None)
    if isinstance(first, nn.Linear):
        return first
    return None


def _as_wide(linear: Any, place: Place, width: int, asked: Any) -> Float[Array, "o d"] | None:
    """The weight for the recorded units: one of two directions, and nothing of the cell state."""
    weight = as_numpy(getattr(linear, "weight", linear))
    require_real(weight, what="readout weights")
    own = width
    if place.target is not None and "h" in place.state:
        own = width_of(place.target, "h") or width
    if place.state == "c":
        return None
    if weight.ndim == 2 and weight.shape[1] == 2 * own and _is_bidirectional(place):
        columns = slice(0, own)
        if place.target is not None and place.target.reverse:
            columns = slice(own, 2 * own)
        weight = weight[:, columns]
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


def _judged(
    head: Any,
    linear: Any,
    weight: Float[Array, "o d"] | None,
    place: Place,
    states: States,
    outputs: Shaped[Array, "s ..."],
) -> Reading:
    """Whether the head gives the network's outputs, and of which states."""
    if weight is None:
        return Reading(readout=None, weight=None, is_output=False, why="No readout of these states was found.")
    units = as_numpy(getattr(linear, "weight", linear)).shape[1]
    if not isinstance(head, nn.Module):
        head = LinearReadout(weight, np.zeros(len(weight)))
        units = weight.shape[1]
    way, behind = None, ""
    if not _is_bidirectional(place):
        way = _way(head, units, states, outputs)
        if way is None:
            way, behind = _way_behind_relu(head, units, states, outputs)
    if behind:
        return Reading(
            readout=PartReadout(RectifiedReadout(head), units),
            weight=weight,
            is_output=False,
            why=f"The network decides by a head behind ReLU {behind}, found and checked against its outputs.",
        )
    is_linear = linear is head or isinstance(head, LinearReadout)
    what = "a linear readout"
    if not is_linear:
        what = "a head that begins with a linear layer"
    before_sigmoid = way is None and not _is_bidirectional(place)
    if before_sigmoid:
        way, what = _way_before_sigmoid(head, units, states, outputs), f"the sigmoid of {what}"
    if way is not None:
        return Reading(
            readout=_for_page(head, weight, units, states.dim, is_linear=is_linear),
            weight=weight,
            is_output=is_linear,
            why=f"The network's outputs are {what} {WAYS[way]}, found and checked against them.",
            before_sigmoid=before_sigmoid,
        )
    if is_linear and outputs.ndim <= 2 and outputs.reshape(len(outputs), -1).shape[1] == len(weight):
        return _of_one_direction(weight, states, outputs)
    why = "The layer that reads these states was found, but not how the outputs come of it."
    return Reading(readout=None, weight=weight, is_output=False, why=why)


def _way_before_sigmoid(head: Any, units: int, states: States, outputs: Shaped[Array, "s ..."]) -> Any:
    """How the head reads states if the outputs are probabilities that a sigmoid made; None if they are not."""
    if not outputs.size or outputs.min() < 0 or outputs.max() > 1:
        return None
    return _way(lambda h: _sigmoid(read_out(head, h)), units, states, outputs)


def outputs_before_sigmoid(readout: Any, ends: Float[Array, "s d"], outputs: Shaped[Array, "s ..."]) -> Array:
    """What was put into the sigmoid that gave these outputs: what the readout gives for last states, if it is that.

    It is taken from the outputs if the readout reads other states too. In float32 they tell little from 10 on.
    """
    read = read_out(readout, ends)
    if _are_same(_sigmoid(read), outputs):
        return read
    return torch.logit(torch.from_numpy(outputs).double(), eps=LEAST_PROBABILITY).numpy()


def _sigmoid(values: Array) -> Array:
    return torch.sigmoid(torch.from_numpy(values)).numpy()


def _of_one_direction(weight: Float[Array, "o d"], states: States, outputs: Shaped[Array, "s ..."]) -> Reading:
    """A readout that reads more than these states: the rest counts with its mean, so that mean outputs are right."""
    ends = as_numpy(states.values[states.starts + states.lengths - 1]).astype(np.float64)
    bias = outputs.reshape(len(outputs), -1).mean(axis=0) - ends.mean(axis=0) @ weight.T
    why = "The readout reads more than these states; the rest of what it reads counts with its mean."
    return Reading(readout=LinearReadout(weight, bias), weight=weight, is_output=True, why=why)


def _for_page(head: Any, weight: Float[Array, "o d"], units: int, width: int, *, is_linear: bool) -> Any:
    """The readout as a function of the recorded states."""
    if units == width:
        return head
    if not is_linear:
        return PartReadout(head, units)
    bias = np.zeros(len(weight))
    if getattr(head, "bias", None) is not None:
        bias = as_numpy(head.bias).astype(np.float64)
    return LinearReadout(weight, bias)


def _way_behind_relu(head: Any, units: int, states: States, outputs: Shaped[Array, "s ..."]) -> tuple[str | None, str]:
    """The same for a head behind ReLU, of each state or of what they are pooled to, and in words; empty if of none."""
    way = _way(RectifiedReadout(head), units, states, outputs)
    if way is not None:
        return way, WAYS[way]
    way = _way(head, units, states, outputs, rectified=True)
    if way is not None:
        return way, f"{WAYS[way]}, each behind ReLU"
    return None, ""


def _way(
    head: Any, units: int, states: States, outputs: Shaped[Array, "s ..."], *, rectified: bool = False
) -> str | None:
    """Of which states the head gives the network's outputs; None if of none."""
    rows = [own[:, :units] for own in states]
    if rectified:
        rows = [np.maximum(own, 0) for own in rows]
    if outputs.ndim >= 3 or (outputs.ndim == 2 and outputs.shape[1] == states.lengths.max() > 1):
        made = [read_out(head, own) for own in rows]
        truth = [own[: len(part)] for own, part in zip(outputs, made, strict=True)]
        if states.reverse:
            truth = [own[::-1] for own in truth]
        if _are_same(np.concatenate(made), np.concatenate(truth)):
            return "every"
    if outputs.ndim >= 3:
        return None
    # A network may also have as many outputs as a sequence has steps.
    pooled = {
        "last": [own[-1] for own in rows],
        "mean": [own.mean(axis=0) for own in rows],
        "max": [own.max(axis=0) for own in rows],
        "sum": [own.sum(axis=0) for own in rows],
    }
    for name, each in pooled.items():
        if _are_same(read_out(head, np.stack(each)), outputs):
            return name
    return None


def _are_same(made: Array, truth: Array) -> bool:
    if made.size != truth.size:
        return False
    gap = np.abs(made.ravel() - truth.ravel()).max()
    return bool(gap <= SAME_TO * max(float(truth.std()), SAME_TO * float(np.abs(truth).max()), 1e-12))
