"""One step of several recurrent layers on top of each other, whose states are side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kann.checks import shown
from kann.errors import KannError
from kann.recording.layer_selection import Target, named, only_recurrent, require_module, select
from kann.typing import Float


def rnn_tanh_slopes(
    h: Float[Tensor, "n d"], _c: None, from_input: Tensor, from_state: Tensor, weight_hh: Float[Tensor, "d d"]
) -> Float[Tensor, "n d d"]:
    """∂h'/∂h of h' = tanh(a)."""
    return (1 - torch.tanh(from_input + from_state).square())[:, :, None] * weight_hh


def rnn_relu_slopes(
    h: Float[Tensor, "n d"], _c: None, from_input: Tensor, from_state: Tensor, weight_hh: Float[Tensor, "d d"]
) -> Float[Tensor, "n d d"]:
    """∂h'/∂h of h' = max(a, 0)."""
    return (from_input + from_state > 0).to(h.dtype)[:, :, None] * weight_hh


def gru_slopes(
    h: Float[Tensor, "n d"], _c: None, from_input: Tensor, from_state: Tensor, weight_hh: Float[Tensor, "d3 d"]
) -> Float[Tensor, "n d d"]:
    """∂h'/∂h of h' = n + z (h − n), with r, z = σ(a) and n = tanh(W x + r (U h))."""
    r_input, z_input, n_input = from_input.chunk(3, dim=-1)
    r_state, z_state, n_state = from_state.chunk(3, dim=-1)
    r, z = torch.sigmoid(r_input + r_state), torch.sigmoid(z_input + z_state)
    n = torch.tanh(n_input + r * n_state)
    of_n = (1 - z) * (1 - n.square())
    factors = (of_n * n_state * r * (1 - r), (h - n) * z * (1 - z), of_n * r)
    slopes = _summed_over_gates(factors, weight_hh)
    slopes.diagonal(dim1=1, dim2=2).add_(z)
    return slopes


def lstm_slopes(
    h: Float[Tensor, "n o"], c: Float[Tensor, "n d"], from_input: Tensor, from_state: Tensor, weight_hh: Tensor
) -> Float[Tensor, "n d2 od"]:
    """∂(o tanh(c'), c')/∂(h, c) of c' = f c + i g. Without a projection the first is the next h."""
    width, outputs = c.shape[1], h.shape[1]
    forget, of_cell, cell, output = _lstm_factors(c, from_input + from_state)
    slopes = h.new_zeros(len(h), 2 * width, outputs + width)
    slopes[:, width:, :outputs] = _summed_over_gates(cell, weight_hh[: 3 * width])
    slopes[:, :width, :outputs] = _summed_over_gates(output, weight_hh)
    slopes[:, width:, outputs:].diagonal(dim1=1, dim2=2).copy_(forget)
    slopes[:, :width, outputs:].diagonal(dim1=1, dim2=2).copy_(of_cell * forget)
    return slopes


def solve_lstm(
    h: Float[Tensor, "n d"],
    c: Float[Tensor, "n d"],
    from_input: Tensor,
    from_state: Tensor,
    weight_hh: Float[Tensor, "d4 d"],
    *,
    shift: Float[Tensor, " n"],
    residual: Float[Tensor, "n d2"],
) -> Float[Tensor, "n d2"]:
    """Solve (s I − J) δ = r for J = ∂(h', c')/∂(h, c) of an LSTM, by way of a system half as wide.

    ∂c'/∂c = f is diagonal, so that δc = (r_c + ∂c'/∂h δh) / (s − f), and only δh is left to be solved for.
    """
    forget, of_cell, cell, output = _lstm_factors(c, from_input + from_state)
    for_h, for_c = residual.chunk(2, dim=1)
    weight = of_cell * forget / (shift[:, None] - forget)  # ∂h'/∂c (s − f)⁻¹
    joined = (*(each + weight * own for each, own in zip(output, cell, strict=False)), output[-1])
    reduced = _summed_over_gates(joined, weight_hh)
    delta_h = solve_shifted(reduced, shift, for_h + weight * for_c)
    moved = _times_gates(cell, weight_hh[: 3 * c.shape[1]], delta_h)
    return torch.cat([delta_h, (for_c + moved) / (shift[:, None] - forget)], dim=1)


def solve_shifted(
    slopes: Float[Tensor, "n d d"], shift: Float[Tensor, " n"], residual: Float[Tensor, "n d"]
) -> Float[Tensor, "n d"]:
    """Solve (s I − J) δ = r for each row; ``slopes`` is overwritten, and where it is singular the result is not finite.

    By normal equations: a batch of Cholesky factors is quicker than one of LU, and float64 has digits to spare.
    """
    slopes.neg_().diagonal(dim1=1, dim2=2).add_(shift[:, None])
    factor, _ = torch.linalg.cholesky_ex(slopes.mT @ slopes)
    return torch.cholesky_solve(slopes.mT @ residual[:, :, None], factor)[:, :, 0]


def _lstm_factors(
    c: Float[Tensor, "n d"], sums: Float[Tensor, "n d4"]
) -> tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The forget gate, ∂h'/∂c', and what c' and h' change by with what each gate sums up: i, f, g, and o for h'."""
    i, f, g, o = sums.chunk(4, dim=-1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    squashed = torch.tanh(f * c + i * g)
    of_cell = o * (1 - squashed.square())
    cell = (g * i * (1 - i), c * f * (1 - f), i * (1 - g.square()))
    return f, of_cell, cell, (*(of_cell * factor for factor in cell), squashed * o * (1 - o))


def _summed_over_gates(factors: Sequence[Float[Tensor, "n d"]], weight: Float[Tensor, "g o"]) -> Float[Tensor, "n d o"]:
    """Σ over gates of diag(factor) U, for the U of each gate below each other in ``weight``."""
    stacked = weight.reshape(len(factors), -1, weight.shape[1])
    return torch.einsum("gnk,gkj->nkj", torch.stack(list(factors)), stacked)


def _times_gates(
    factors: Sequence[Float[Tensor, "n d"]], weight: Float[Tensor, "g o"], values: Float[Tensor, "n o"]
) -> Float[Tensor, "n d"]:
    """The product of `_summed_over_gates` and a vector for each row, without the matrices."""
    sums = (values @ weight.T).chunk(len(factors), dim=1)
    return torch.stack([factor * part for factor, part in zip(factors, sums, strict=True)]).sum(dim=0)


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
    slope_rule: Callable[..., Tensor]
    """From the same, with the weights of h in the place of the projection, to ∂(next state)/∂(state) of each row."""

    def __call__(self, h: Tensor, x: Tensor) -> Tensor:
        """The states after reading ``x``."""
        _require_tensor(h, "h")
        _require_tensor(x, "x")
        if not h.is_floating_point():  # the weights, brought to its type, would lose their digits
            raise KannError(f"step of {self.name!r} takes states of real numbers; got {h.dtype}; pass h.float()")
        if h.shape[-1] != self.dim or x.shape[-1] != self.input_dim:
            raise KannError(
                f"step of {self.name!r} takes states (n, {self.dim}) and inputs (n, {self.input_dim}); "
                f"got {tuple(h.shape)} and {tuple(x.shape)}"
            )
        parts, _, projection = self._parts(h, x)
        return self.rule(*parts, projection)

    def with_slopes(self, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"]) -> tuple[Tensor, Float[Tensor, "n d d"]]:
        """The states after reading ``x``, and ∂(next state)/∂(state) of each row, from the weights."""
        parts, weight_hh, projection = self._parts(h, x)
        slopes = self.slope_rule(*parts, weight_hh)
        if projection is not None:  # the layer gives h' = P (o tanh(c')), and reads that
            width = slopes.shape[1] // 2
            slopes = torch.cat([projection @ slopes[:, :width], slopes[:, width:]], dim=1)
        return self.rule(*parts, projection), slopes

    def implicit(
        self, h: Float[Tensor, "n d"], x: Float[Tensor, "n p"], leaps: Float[Tensor, " n"]
    ) -> Float[Tensor, "n d"]:
        """The states after an implicit step worth τ of the layer's own: h + ((1 + 1/τ) I − J)⁻¹ (step(h, x) − h)."""
        parts, weight_hh, projection = self._parts(h, x)
        residual = self.rule(*parts, projection) - h
        if self.slope_rule is lstm_slopes and projection is None:
            return h + solve_lstm(*parts, weight_hh, shift=1 + 1 / leaps, residual=residual)  # type: ignore[arg-type]
        return h + solve_shifted(self.with_slopes(h, x)[1], 1 + 1 / leaps, residual)

    def _parts(self, h: Tensor, x: Tensor) -> tuple[tuple[Tensor, Tensor | None, Tensor, Tensor], Tensor, Any]:
        """h, c, and what the input and h add to the gates; the weights of h; the projection."""
        weight_ih, weight_hh, bias_ih, bias_hh, projection = _converted(self.weights(), h.dtype)
        c = None
        if self.output_dim < self.dim:  # one split: two slices take longer to differentiate
            h, c = h.split([self.output_dim, self.dim - self.output_dim], dim=-1)
        from_input = linear(x.to(h.dtype), weight_ih, bias_ih)  # type: ignore[arg-type]
        from_state = linear(h, weight_hh, bias_hh)  # type: ignore[arg-type]
        return (h, c, from_input, from_state), weight_hh, projection  # type: ignore[return-value]

    def with_fixed_weights(self, like: Tensor) -> "RecurrentStep":
        """The same step with the weights of this moment, without gradients, in the dtype and on the device of ``like``.

        Many steps then convert the weights once, and not once a step.
        """
        with torch.no_grad():
            fixed = _converted(self.weights(), like, copy=True)
        return replace(self, weights=lambda: fixed)

    def __repr__(self) -> str:
        return f"RecurrentStep({self.name!r}, {self.dim} units, {self.input_dim} inputs)"


def _require_tensor(value: Any, name: str) -> None:
    if not isinstance(value, Tensor) or not value.ndim:
        raise KannError(f"{name} is {shown(value)}; pass a torch tensor with one row a state, as torch.as_tensor makes")


def _converted(weights: Sequence[Tensor | None], to: Tensor | torch.dtype, **options: Any) -> list[Tensor | None]:
    """Weights as ``Tensor.to`` converts them, and None for those that the layer lacks."""
    return [weight if weight is None else weight.to(to, **options) for weight in weights]


def _rnn_tanh(_h: Tensor, _c: None, from_input: Tensor, from_state: Tensor, _projection: None) -> Tensor:
    return torch.tanh(from_input + from_state)


def _rnn_relu(_h: Tensor, _c: None, from_input: Tensor, from_state: Tensor, _projection: None) -> Tensor:
    return torch.relu(from_input + from_state)


def _gru(h: Tensor, _c: None, from_input: Tensor, from_state: Tensor, _projection: None) -> Tensor:
    r, z, n = from_input.chunk(3, dim=-1)
    r_state, z_state, n_state = from_state.chunk(3, dim=-1)
    candidate = torch.tanh(n + torch.sigmoid(r + r_state) * n_state)
    # The same as (1 − z) n + z h with one product less; nn.GRUCell rounds like this too.
    return candidate + torch.sigmoid(z + z_state) * (h - candidate)


def _lstm(_h: Tensor, c: Tensor, from_input: Tensor, from_state: Tensor, projection: Tensor | None) -> Tensor:
    i, f, g, o = lstm_gates((from_input + from_state).chunk(4, dim=-1))
    c = f * c + i * g
    output = o * torch.tanh(c)
    if projection is not None:
        output = linear(output, projection)
    return torch.cat([output, c], dim=-1)


def lstm_with_projection(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor]
) -> tuple[Float[Tensor, "n o"], Float[Tensor, "n d"]]:
    """One step of an LSTM whose output is projected, which torch's own cell cannot do: the next h and c."""
    weight_ih, weight_hh, *biases, projection = weights
    bias_ih, bias_hh = biases or (None, None)
    both = _lstm(h, c, linear(x, weight_ih, bias_ih), linear(h, weight_hh, bias_hh), projection)
    output, cell = both.split([len(projection), c.shape[-1]], dim=-1)
    return output, cell


def lstm_gates(sums: Sequence[Tensor], *, in_place: bool = False) -> list[Tensor]:
    """The gates i, f, g, o of an LSTM, or the first of them, each from the sum of what the input and the state add.

    With them c ← f c + i g and h ← o tanh(c). In place, which must be without gradients, they overwrite the sums.
    """
    results: Sequence[Tensor | None] = [None] * len(sums)
    if in_place:
        results = sums
    activations = LSTM_ACTIVATIONS[: len(sums)]
    return [activate(part, out=out) for activate, part, out in zip(activations, sums, results, strict=True)]


def gate_values(target: Target) -> Callable[[Tensor], Tensor]:
    """What a recurrent layer's weights make of an input alone: its gates at a state of zeros, from inputs (..., p).

    Of a GRU r, z and the candidate n; of an LSTM i, f, g and o; of an RNN its next state. What zeros give is taken off,
    so that reading nothing is zero.
    """
    module: Any = target.module
    if not _is_recurrent(module):
        raise KannError(
            f"inputs='gates' are of torch's recurrent layers, and {target.path!r} is {type(module).__name__}; "
            "pass inputs=True"
        )
    suffix, rule = _parameter_suffix(target), _gate_rule(module)

    def gates(x: Tensor) -> Tensor:
        weight: Any = getattr(module, f"weight_ih{suffix}")
        bias, state_bias = (getattr(module, f"{name}{suffix}", None) for name in ("bias_ih", "bias_hh"))
        nothing = weight.new_zeros(1, weight.shape[1])
        values, at_zero = (rule(linear(part.to(weight.dtype), weight, bias), state_bias) for part in (x, nothing))
        return values - at_zero[0]

    return gates


def _gate_rule(module: Any) -> Callable[[Tensor, Tensor | None], Tensor]:
    """From what the input adds to the gates, and the bias of what the state adds, to the gates."""
    if isinstance(module, nn.GRU | nn.GRUCell):
        return _gru_gates
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return lambda sums, bias: torch.cat(lstm_gates(_plus(sums, bias).chunk(4, dim=-1)), dim=-1)
    activate = {"tanh": torch.tanh, "relu": torch.relu}[module.nonlinearity]
    return lambda sums, bias: activate(_plus(sums, bias))


def _gru_gates(sums: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        bias = sums.new_zeros(sums.shape[-1])
    r, z, n = sums.chunk(3, dim=-1)
    r_bias, z_bias, n_bias = bias.chunk(3)
    reset = torch.sigmoid(r + r_bias)
    return torch.cat([reset, torch.sigmoid(z + z_bias), torch.tanh(n + reset * n_bias)], dim=-1)


def _plus(sums: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return sums
    return sums + bias


def step_of(model: nn.Module, layer: str | None = None) -> RecurrentStep:
    """One step of a recurrent layer of the model, named as in `kann.record`; without a name, of the only one.

    >>> model = nn.Sequential(nn.Embedding(10, 3), nn.LSTM(3, 4))
    >>> step = step_of(model)
    >>> step.dim, step(torch.zeros(2, 8), torch.ones(2, 3)).shape
    (8, torch.Size([2, 8]))
    """
    target = _one_layer(model, layer)
    module: Any = target.module
    if not _is_recurrent(module):
        raise KannError(
            f"{target.path!r} is {type(module).__name__}, not one of torch's recurrent modules; "
            "pass a function step(h, x) of your own to the analysis"
        )
    suffix = _parameter_suffix(target)
    output_dim = _output_dim(module)
    dim = output_dim
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        dim += module.hidden_size
    return RecurrentStep(
        name=target.name,
        dim=dim,
        input_dim=getattr(module, f"weight_ih{suffix}").shape[1],
        output_dim=output_dim,
        weights=lambda: [getattr(module, f"{name}{suffix}", None) for name in PARAMETERS],
        rule=_rule(module),
        slope_rule=SLOPES[_rule(module)],
    )


def _is_recurrent(module: Any) -> bool:
    return isinstance(module, nn.RNNBase | nn.RNNCellBase)


def _output_dim(module: Any) -> int:
    """The width of what one direction of a recurrent module gives at each step."""
    return getattr(module, "proj_size", 0) or module.hidden_size


def _parameter_suffix(target: Target) -> str:
    """What torch appends to the parameters' names for one layer and direction: nothing for a cell."""
    if not isinstance(target.module, nn.RNNBase):
        return ""
    return f"_l{target.level}" + "_reverse" * target.reverse


def _rule(module: Any) -> Callable[..., Tensor]:
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return _lstm
    if isinstance(module, nn.GRU | nn.GRUCell):
        return _gru
    return {"tanh": _rnn_tanh, "relu": _rnn_relu}[module.nonlinearity]


SLOPES = {_lstm: lstm_slopes, _gru: gru_slopes, _rnn_tanh: rnn_tanh_slopes, _rnn_relu: rnn_relu_slopes}
"""The Jacobian that belongs to each rule."""


def _one_layer(model: nn.Module, layer: str | None) -> Target:
    targets, _ = select(model, layer)
    if len(targets) == 1:
        return targets[0]
    raise KannError(f"layer={layer!r} means {[target.name for target in targets]}; pass one of them")


def readout_of(model: nn.Module, layer: str | None = None, *, name: str | None = None) -> nn.Module:
    """The module from a recurrent layer's output to the model's output.

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
    width = _total_output_dim(module)
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
    """How wide what a linear layer reads is; None for any other module."""
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.Conv1d) and module.kernel_size == (1,) and module.groups == 1:
        return module.in_channels
    return None


def _as_linear(module: nn.Module) -> nn.Module:
    """A convolution over single steps as the linear layer that it is, with the same parameters."""
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
    """Refuse a part of a fused module that a readout does not read alone: a lower layer, or one of two directions."""
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
            f"{layer!r} is one direction of {target.path!r}, {_output_dim(module)} units, and a readout reads both "
            f"side by side; pass layer={target.path!r} for it, and take the columns of its weight that belong to one"
        )


def _total_output_dim(module: Any) -> int:
    """The width of what a recurrent module gives at each step, all directions side by side."""
    if not _is_recurrent(module):
        raise KannError(f"{type(module).__name__} is not recurrent, so its width is unknown; pass name= of the readout")
    return _output_dim(module) * (1 + getattr(module, "bidirectional", False))


def _with_following_layers(modules: dict[str, nn.Module], key: str) -> nn.Module:
    """The linear layer, or the sequence of layers whose first weights it holds."""
    parent, _, place = key.rpartition(".")
    sequence = modules[parent]
    if not isinstance(sequence, nn.Sequential) or key == parent:
        return modules[key]
    has_weights = [bool(list(part.parameters())) for part in sequence]
    at = list(sequence._modules).index(place)
    if any(has_weights[at + 1 :]) and not any(has_weights[:at]):
        return sequence
    return modules[key]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StackedStep:
    """Recurrent layers as one function ``step(h, x)``, each of which reads what the one below gives in the same step.

    The state is that of all layers side by side, the lowest first: of an LSTM (h_0, c_0, h_1, c_1, …).
    """

    layers: Sequence[RecurrentStep]
    """The steps of the layers, the lowest first."""

    @property
    def dim(self) -> int:
        """The width d of the state."""
        return sum(layer.dim for layer in self.layers)

    @property
    def input_dim(self) -> int:
        """The width p of the input."""
        return self.layers[0].input_dim

    def __call__(self, h: Tensor, x: Tensor) -> Tensor:
        """The states after reading ``x``."""
        if h.shape[-1] != self.dim:
            widths = ", ".join(str(layer.dim) for layer in self.layers)
            raise KannError(
                f"the step takes states (n, {self.dim}), those of layers {widths} wide; got {tuple(h.shape)}"
            )
        states = []
        for layer, own in zip(self.layers, h.split([layer.dim for layer in self.layers], dim=-1), strict=True):
            states.append(layer(own, x))
            x = states[-1][..., : layer.output_dim]
        return torch.cat(states, dim=-1)

    def with_fixed_weights(self, like: Tensor) -> "StackedStep":
        """The same step with the weights of this moment, without gradients, as those of `RecurrentStep`."""
        return StackedStep(layers=[layer.with_fixed_weights(like) for layer in self.layers])
