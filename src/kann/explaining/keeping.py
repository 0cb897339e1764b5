"""What an explanation holds, as text and flat arrays: a file can keep these, and reading it runs no code."""

import math
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.analysis.live_effects import Effects, Tried
from kann.analysis.movers import Movers
from kann.analysis.phrases import Phrase
from kann.analysis.step_trust import StepTrust
from kann.analysis.trust import ModeTrust, Trust
from kann.backends.arrays import as_numpy
from kann.explaining.reading import LinearReadout, PartReadout, RectifiedReadout
from kann.fitting.koopman import Koopman
from kann.fitting.rank import RankCurve
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
