"""Steps, gates and readouts of recurrent layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kann.checks import short_repr
from kann.errors import KannError
from kann.recording.layer_selection import Target, named, only_recurrent, require_module, select, state_widths
from kann.typing import Float

LSTM_ACTIVATIONS = (torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid)
"""Activations of an LSTM's input gate i, forget gate f, candidate g and output gate o, in the order of its weights."""

PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
"""torch's names for what one recurrent layer holds; biases are optional, and weight_hr is an LSTM's projection."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecurrentStep:
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
    """Returns the layer's parameters as they are now, in the order of `PARAMETERS`; None for one that it lacks."""
    rule: Callable[..., Tensor]
    """From h, c, what the input and h add to the gates, and the projection, to the next state; c is None but for an
    LSTM."""

    def __call__(self, h: Tensor, x: Tensor) -> Tensor:
        """Return the states after reading ``x``."""
        _require_tensor(h, "h")
        _require_tensor(x, "x")
        if not h.is_floating_point():  # the weights, brought to its type, would lose their digits
            raise KannError(f"step of {self.name!r} takes states of real numbers; got {h.dtype}; pass h.float()")
        if h.shape[-1] != self.dim or x.shape[-1] != self.input_dim:
            raise KannError(
                f"step of {self.name!r} takes states (n, {self.dim}) and inputs (n, {self.input_dim}); "
                f"got {tuple(h.shape)} and {tuple(x.shape)}"
            )
        parts, _, projection = self.parts(h, x)
        return self.rule(*parts, projection)

    def parts(self, h: Tensor, x: Tensor) -> tuple[tuple[Tensor, Tensor | None, Tensor, Tensor], Tensor, Any]:
        """Return h, c, the sums of the gates from input and h, the weights of h, and the projection."""
        weight_ih, weight_hh, bias_ih, bias_hh, projection = _converted(self.weights(), h.dtype)
        c = None
        if self.output_dim < self.dim:  # one split: two slices take longer to differentiate
            h, c = h.split([self.output_dim, self.dim - self.output_dim], dim=-1)
        from_input = linear(x.to(h.dtype), weight_ih, bias_ih)  # type: ignore[arg-type]
        from_state = linear(h, weight_hh, bias_hh)  # type: ignore[arg-type]
        return (h, c, from_input, from_state), weight_hh, projection  # type: ignore[return-value]

    def with_fixed_weights(self, like: Tensor) -> "RecurrentStep":
        """Freeze the step with its present weights, without gradients, with the dtype and device of ``like``.

        Many steps then convert the weights once, and not once a step.
        """
        with torch.no_grad():
            fixed = _converted(self.weights(), like, copy=True)
        return replace(self, weights=lambda: fixed)

    def __repr__(self) -> str:
        return f"RecurrentStep({self.name!r}, {self.dim} units, {self.input_dim} inputs)"


def _require_tensor(value: Any, name: str) -> None:
    if not isinstance(value, Tensor) or not value.ndim:
        raise KannError(
            f"{name} is {short_repr(value)}; pass a torch tensor with one row a state, as torch.as_tensor makes"
        )


def _converted(weights: Sequence[Tensor | None], to: Tensor | torch.dtype, **options: Any) -> list[Tensor | None]:
    """Return weights as ``Tensor.to`` converts them, and None for those that the layer lacks."""
    return [weight if weight is None else weight.to(to, **options) for weight in weights]


def rnn_tanh_rule(_h: Tensor, _c: None, from_input: Tensor, from_state: Tensor, _projection: None) -> Tensor:
    """Compute h' = tanh(a)."""
    return torch.tanh(from_input + from_state)


def rnn_relu_rule(_h: Tensor, _c: None, from_input: Tensor, from_state: Tensor, _projection: None) -> Tensor:
    """Compute h' = max(a, 0)."""
    return torch.relu(from_input + from_state)


def gru_rule(h: Tensor, _c: None, from_input: Tensor, from_state: Tensor, _projection: None) -> Tensor:
    """Compute h' = n + z (h − n), with r, z = σ(a) and n = tanh(W x + r (U h))."""
    _, z, candidate = gru_gates(from_input, from_state)
    # The same as (1 − z) n + z h with one product less; nn.GRUCell rounds like this too.
    return candidate + z * (h - candidate)


def lstm_rule(_h: Tensor, c: Tensor, from_input: Tensor, from_state: Tensor, projection: Tensor | None) -> Tensor:
    """Compute c' = f c + i g and h' = o tanh(c'), side by side."""
    i, f, g, o = lstm_gates((from_input + from_state).chunk(4, dim=-1))
    c = f * c + i * g
    output = o * torch.tanh(c)
    return torch.cat([output if projection is None else linear(output, projection), c], dim=-1)


def lstm_with_projection(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor]
) -> tuple[Float[Tensor, "n o"], Float[Tensor, "n d"]]:
    """Return one step of an LSTM whose output is projected, which torch's own cell cannot do: the next h and c."""
    weight_ih, weight_hh, *biases, projection = weights
    bias_ih, bias_hh = biases or (None, None)
    both = lstm_rule(h, c, linear(x, weight_ih, bias_ih), linear(h, weight_hh, bias_hh), projection)
    output, cell = both.split([len(projection), c.shape[-1]], dim=-1)
    return output, cell


def lstm_gates(sums: Sequence[Tensor], *, in_place: bool = False) -> list[Tensor]:
    """Compute the gates i, f, g, o of an LSTM, or the first of them, each from the sum of input and state terms.

    With them c ← f c + i g and h ← o tanh(c). In place, which must be without gradients, they overwrite the sums.
    """
    results: Sequence[Tensor | None] = sums if in_place else [None] * len(sums)
    activations = LSTM_ACTIVATIONS[: len(sums)]
    return [activate(part, out=out) for activate, part, out in zip(activations, sums, results, strict=True)]


def gru_gates(from_input: Tensor, from_state: Tensor) -> list[Tensor]:
    """Return the gates r and z and the candidate n of a GRU."""
    r, z, n = from_input.chunk(3, dim=-1)
    r_state, z_state, n_state = from_state.chunk(3, dim=-1)
    reset = torch.sigmoid(r + r_state)
    return [reset, torch.sigmoid(z + z_state), torch.tanh(n + reset * n_state)]


def gate_values(target: Target) -> Callable[[Tensor], Tensor]:
    """Make a function from inputs (..., p) to the gates of a recurrent layer at a state of zeros.

    Of a GRU r, z and the candidate n; of an LSTM i, f, g and o; of an RNN its next state. The value for zeros is
    subtracted, so that an input of zeros gives zeros.
    """
    module: Any = target.module
    if not state_widths(module):
        raise KannError(
            f"inputs='gates' are of torch's recurrent layers, and {target.path!r} is {type(module).__name__}; "
            "pass inputs=True"
        )
    step = _step(target)

    def gates(x: Tensor) -> Tensor:
        weight: Any = step.weights()[0]
        h, nothing = weight.new_zeros(1, step.dim), weight.new_zeros(1, step.input_dim)
        values, at_zero = (_gates(module, *step.parts(h, read)[0][2:]) for read in (x, nothing))
        return values - at_zero[0]

    return gates


def _gates(module: Any, from_input: Tensor, from_state: Tensor) -> Tensor:
    """Return all gates of a recurrent layer, from what the input and the state add to them."""
    if isinstance(module, nn.GRU | nn.GRUCell):
        return torch.cat(gru_gates(from_input, from_state), dim=-1)
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return torch.cat(lstm_gates((from_input + from_state).chunk(4, dim=-1)), dim=-1)
    return _rule(module)(from_state, None, from_input, from_state, None)


def step_of(model: nn.Module, layer: str | None = None) -> RecurrentStep:
    """Return one step of a recurrent layer of the model, named as in `kann.record`; without a name, of the only one.

    >>> model = nn.Sequential(nn.Embedding(10, 3), nn.LSTM(3, 4))
    >>> step = step_of(model)
    >>> step.dim, step(torch.zeros(2, 8), torch.ones(2, 3)).shape
    (8, torch.Size([2, 8]))
    """
    targets, _ = select(model, layer)
    if len(targets) != 1:
        raise KannError(f"layer={layer!r} means {[target.name for target in targets]}; pass one of them")
    (target,) = targets
    if not state_widths(target.module):
        raise KannError(
            f"{target.path!r} is {type(target.module).__name__}, not one of torch's recurrent modules; "
            "pass a function step(h, x) of your own to the analysis"
        )
    return _step(target)


def _step(target: Target) -> RecurrentStep:
    """Return one step of a recurrent layer."""
    module: Any = target.module
    widths, suffix = state_widths(module), ""
    if isinstance(module, nn.RNNBase):
        suffix = f"_l{target.level}" + "_reverse" * target.reverse
    return RecurrentStep(
        name=target.name,
        dim=sum(widths.values()),
        input_dim=getattr(module, f"weight_ih{suffix}").shape[1],
        output_dim=widths["h"],
        weights=lambda: [getattr(module, f"{name}{suffix}", None) for name in PARAMETERS],
        rule=_rule(module),
    )


def _rule(module: Any) -> Callable[..., Tensor]:
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return lstm_rule
    if isinstance(module, nn.GRU | nn.GRUCell):
        return gru_rule
    return {"tanh": rnn_tanh_rule, "relu": rnn_relu_rule}[module.nonlinearity]


def readout_of(model: nn.Module, layer: str | None = None, *, name: str | None = None) -> nn.Module:
    """Return the module from a recurrent layer's output to the model's output.

    This is the only `nn.Linear` as wide as the layer's output (or convolution over single steps, which comes back as
    the linear layer that it is), of several the only one that comes after the layer in
    the model. If it begins an `nn.Sequential` with further layers, that is the readout. ``name`` names it outright.

    >>> model = nn.ModuleDict({"rnn": nn.GRU(3, 4), "head": nn.Linear(4, 2)})
    >>> readout_of(model)
    Linear(in_features=4, out_features=2, bias=True)
    """
    require_module(model)
    if name is not None:
        return _named_module(model, name, remedy="pass a name of model.named_modules()")[1]
    if layer is None:
        path, module = only_recurrent(model)
    else:
        path, module = _named_module(model, layer, remedy="pass name= that of the readout")
        _require_what_is_read(named(model, layer)[0], layer)
    if not state_widths(module):
        raise KannError(f"{type(module).__name__} is not recurrent, so its width is unknown; pass name= of the readout")
    width = state_widths(module)["h"] * (1 + getattr(module, "bidirectional", False))
    modules = dict(model.named_modules())
    fitting = [key for key, part in modules.items() if _input_width(part) == width]
    candidates = fitting
    # Several layers may be as wide, such as one that feeds the recurrent layer: the order of modules decides.
    if len(fitting) > 1:
        paths = list(modules)
        candidates = [key for key in fitting if paths.index(key) > paths.index(path)]
    if len(candidates) != 1:
        names = ", ".join(map(repr, candidates or fitting)) or "none"
        raise KannError(
            f"linear layers that read the {width} units of {path!r}: {names}; pass name= that of the readout"
        )
    return _as_linear(_with_following_layers(modules, candidates[0]))


def _input_width(module: nn.Module) -> int | None:
    """Return the width of a linear layer's input; None for any other module."""
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.Conv1d) and module.kernel_size == (1,) and module.groups == 1:
        return module.in_channels
    return None


def _as_linear(module: nn.Module) -> nn.Module:
    """Return a convolution over single steps as the linear layer that it is, with the same parameters."""
    if not isinstance(module, nn.Conv1d):
        return module
    linear = nn.Linear(module.in_channels, module.out_channels, bias=module.bias is not None)
    linear.weight = nn.Parameter(module.weight.detach()[:, :, 0])
    if module.bias is not None:
        linear.bias = nn.Parameter(module.bias.detach())
    return linear


def _named_module(model: nn.Module, name: str, *, remedy: str) -> tuple[str, nn.Module]:
    target = named(model, name)[0]
    if target.module is None:
        raise KannError(f"{name!r} is no module; {remedy}")
    return target.path, target.module


def _require_what_is_read(target: Target, layer: str) -> None:
    """Raise for a part of a fused module that no readout reads alone: a lower layer, or one of two directions."""
    module = target.module
    if not isinstance(module, nn.RNNBase) or layer == target.path:
        return
    if target.level < module.num_layers - 1:
        raise KannError(
            f"{layer!r} is read by the next layer of {target.path!r}, and by no readout; pass layer={target.path!r} "
            "for the readout of its last layer"
        )
    if module.bidirectional:
        raise KannError(
            f"{layer!r} is one direction of {target.path!r}, {state_widths(module)['h']} units, and a readout reads "
            f"both side by side; pass layer={target.path!r}, and take the columns of its weight that belong to one"
        )


def _with_following_layers(modules: dict[str, nn.Module], key: str) -> nn.Module:
    """Return the linear layer, or the sequence of layers whose first weights it holds."""
    parent, _, place = key.rpartition(".")
    sequence = modules[parent]
    if not isinstance(sequence, nn.Sequential) or key == parent:
        return modules[key]
    has_weights = [bool(list(part.parameters())) for part in sequence]
    at = list(sequence._modules).index(place)
    return sequence if any(has_weights[at + 1 :]) and not any(has_weights[:at]) else modules[key]
