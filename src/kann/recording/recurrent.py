"""One step of a recurrent layer, and what reads its states: for analyses that need the network's own dynamics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kann.errors import KannError
from kann.recording.selection import Target, named, only_recurrent, select


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Step:
    """A recurrent layer as a function ``step(h, x)``: from states (n, d) and inputs (n, p) to the next states (n, d).

    The state of an LSTM is "hc", its output and its cell state side by side. Each row is a network by itself. Steps are
    made in the precision of ``h`` and can be differentiated.
    """

    name: str
    """The layer's name."""
    dim: int
    """The width d of the state."""
    input_dim: int
    """The width p of the input."""
    output_dim: int
    """How many of the state's first columns are the layer's output h: all of them but for an LSTM."""
    weights: Callable[[], Sequence[Tensor | None]]
    """The layer's parameters as they are now: input, recurrent, their two biases, and the projection."""
    rule: Callable[..., Tensor]
    """From the state and the parts of the gates to the next state."""

    def __call__(self, h: Tensor, x: Tensor) -> Tensor:
        """The states after reading ``x``."""
        if h.shape[-1] != self.dim or x.shape[-1] != self.input_dim:
            raise KannError(
                f"step of {self.name!r} takes states (n, {self.dim}) and inputs (n, {self.input_dim}); "
                f"got {tuple(h.shape)} and {tuple(x.shape)}"
            )
        into, across, *rest = (None if part is None else part.to(h.dtype) for part in self.weights())
        driven = linear(x.to(h.dtype), into, rest[0])  # type: ignore[arg-type]
        recurrent = linear(h[..., : self.output_dim], across, rest[1])  # type: ignore[arg-type]
        return self.rule(h, driven, recurrent, rest[2])

    def __repr__(self) -> str:
        return f"Step({self.name!r}, {self.dim} units, {self.input_dim} inputs)"


def _tanh(h: Tensor, driven: Tensor, recurrent: Tensor, _: Tensor | None) -> Tensor:
    return torch.tanh(driven + recurrent)


def _relu(h: Tensor, driven: Tensor, recurrent: Tensor, _: Tensor | None) -> Tensor:
    return torch.relu(driven + recurrent)


def _gru(h: Tensor, driven: Tensor, recurrent: Tensor, _: Tensor | None) -> Tensor:
    (r, z, n), (hr, hz, hn) = driven.chunk(3, dim=-1), recurrent.chunk(3, dim=-1)
    z = torch.sigmoid(z + hz)
    return (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * h


def _lstm(h: Tensor, driven: Tensor, recurrent: Tensor, projection: Tensor | None) -> Tensor:
    i, f, g, o = (driven + recurrent).chunk(4, dim=-1)
    c = torch.sigmoid(f) * h[..., -i.shape[-1] :] + torch.sigmoid(i) * torch.tanh(g)
    output = torch.sigmoid(o) * torch.tanh(c)
    return torch.cat([output if projection is None else linear(output, projection), c], dim=-1)


def step_of(model: nn.Module, layer: str | None = None) -> Step:
    """One step of a recurrent layer of the model, named as in `kann.record`; without a name, of the only one.

    >>> model = nn.Sequential(nn.Embedding(10, 3), nn.LSTM(3, 4))
    >>> step = step_of(model)
    >>> step.dim, step(torch.zeros(2, 8), torch.ones(2, 3)).shape
    (8, torch.Size([2, 8]))
    """
    target = _one_layer(model, layer)
    module: Any = target.module
    if not isinstance(module, nn.RNNBase | nn.RNNCellBase):
        raise KannError(
            f"{target.path!r} is {type(module).__name__}, not one of torch's recurrent modules; "
            "pass a function step(h, x) of your own to the analysis"
        )
    suffix = f"_l{target.level}{'_reverse' if target.reverse else ''}" if isinstance(module, nn.RNNBase) else ""
    names = [f"{part}{suffix}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")]
    is_lstm = isinstance(module, nn.LSTM | nn.LSTMCell)
    output_dim = getattr(module, "proj_size", 0) or module.hidden_size
    return Step(
        name=target.name,
        dim=output_dim + (module.hidden_size if is_lstm else 0),
        input_dim=getattr(module, names[0]).shape[1],
        output_dim=output_dim,
        weights=lambda: [getattr(module, name, None) for name in names],
        rule=_rule(module),
    )


def _rule(module: Any) -> Callable[..., Tensor]:
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return _lstm
    if isinstance(module, nn.GRU | nn.GRUCell):
        return _gru
    return _relu if module.nonlinearity == "relu" else _tanh


def _one_layer(model: nn.Module, layer: str | None) -> Target:
    targets, _ = select(model, layer)
    if len(targets) == 1:
        return targets[0]
    raise KannError(f"layer={layer!r} means {[target.name for target in targets]}; pass one of them")


def readout_of(model: nn.Module, layer: str | None = None, *, name: str | None = None) -> nn.Module:
    """The module from a recurrent layer's output to the model's output.

    This is the only `nn.Linear` as wide as the layer's output, of several the only one that stands behind the layer in
    the model. If it begins an `nn.Sequential` with further layers, that is the readout. ``name`` names it outright.

    >>> model = nn.ModuleDict({"rnn": nn.GRU(3, 4), "head": nn.Linear(4, 2)})
    >>> readout_of(model)
    Linear(in_features=4, out_features=2, bias=True)
    """
    if name is not None:
        (target,) = named(model, name)[:1]
        if target.module is None:
            raise KannError(f"{name!r} is no module; pass a name of model.named_modules()")
        return target.module
    path, module = only_recurrent(model) if layer is None else _module_of(model, layer)
    width = _output_width(module)
    order = dict(model.named_modules())
    found = {key: part for key, part in order.items() if isinstance(part, nn.Linear) and part.in_features == width}
    behind = list(order)[list(order).index(path) :]
    candidates = found if len(found) == 1 else {key: part for key, part in found.items() if key in behind}
    if len(candidates) != 1:
        names = ", ".join(map(repr, candidates or found)) or "none"
        raise KannError(
            f"linear layers that read the {width} units of {path!r}: {names}; pass name= that of the readout"
        )
    return _head(order, *candidates)


def _module_of(model: nn.Module, layer: str) -> tuple[str, nn.Module]:
    target = named(model, layer)[0]
    if target.module is None:
        raise KannError(f"{layer!r} is no module; pass name= that of the readout")
    return target.path, target.module


def _output_width(module: Any) -> int:
    if not isinstance(module, nn.RNNBase | nn.RNNCellBase):
        raise KannError(f"{type(module).__name__} is not recurrent, so its width is unknown; pass name= of the readout")
    width = getattr(module, "proj_size", 0) or module.hidden_size
    return width * (2 if getattr(module, "bidirectional", False) else 1)


def _head(modules: dict[str, nn.Module], key: str) -> nn.Module:
    """The linear layer, or the sequence of layers that it begins."""
    parent, _, place = key.rpartition(".")
    around = modules[parent]
    if not isinstance(around, nn.Sequential) or key == parent:
        return modules[key]
    has_weights = [bool(list(part.parameters())) for part in around]
    at = list(around._modules).index(place)
    return around if any(has_weights[at + 1 :]) and not any(has_weights[:at]) else modules[key]
