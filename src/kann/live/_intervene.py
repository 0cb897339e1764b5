"""Replace a layer's state after every step while the model runs."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.analysis.modes import mode_directions
from kann.checks import (
    array_of,
    require_all_finite,
    require_choice,
    require_real,
    require_whole_number,
    short_repr,
)
from kann.data.states import as_states
from kann.errors import KannError
from kann.fitting.balance import Balance
from kann.fitting.koopman import Koopman
from kann.fitting.spectrum import Mode
from kann.live.completion import fit_fills
from kann.recording.fused import (
    Intercept,
    Kernel,
    observe_forward,
    run_layers,
    states_replaced,
)
from kann.recording.layer_selection import Target, select, state_widths
from kann.recording.recurrent import lstm_with_projection
from kann.recording.runner import every_module_called, exclusive
from kann.recording.sequence_data import is_state, tensors_of, with_tensors
from kann.recording.tracer import as_complex, as_real, has_channels_first, hook_last
from kann.typing import Array, Float

Replace = Callable[[Tensor], Tensor]
"""From states (n, d) to the states that the network goes on with."""

CELLS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.gru: torch.gru_cell,
    torch.rnn_tanh: torch.rnn_tanh_cell,
    torch.rnn_relu: torch.rnn_relu_cell,
    torch.lstm: torch.lstm_cell,
}
"""One step of each kernel."""


def run_step_by_step(kernel: Kernel, replace: Replace, *, state: str, reverse: bool) -> tuple[Tensor, ...]:
    """Return the result of a single layer's kernel, (output, h) or (output, h, c), with states replaced at every step.

    ``state`` names the replaced part: "h", "c" or "hc"; ``reverse`` the direction. The other direction runs as usual.
    Steps are run by torch's cells: multiplying the inputs of many steps by their weights at once is not faster.
    """
    at = int(reverse)
    weights = kernel.weights_of(at)
    data = kernel.data if kernel.sizes is not None else kernel.data.flatten(0, 1)  # a copy in order of time
    steps = data.split(kernel.flat_sizes().tolist())
    outputs, finished = [], []
    initial = tuple(part[at] for part in kernel.hidden)
    states = tuple(part[:0] for part in initial)
    # Sequences are sorted by length, so that each step holds the first of them. Read from the end, the shorter ones
    # begin later.
    for x in steps[::-1] if reverse else steps:
        running, known = len(x), len(states[0])
        if running < known:
            finished.append(tuple(part[running:] for part in states))
            states = tuple(part[:running] for part in states)
        elif running > known:
            states = tuple(torch.cat([part, first[known:running]]) for part, first in zip(states, initial, strict=True))
        states = replaced_states(_next_states(kernel, weights, x, states), replace, state)
        outputs.append(states[0])
    finished.append(states)
    ends = [torch.cat(parts[::-1]) for parts in zip(*finished, strict=True)]
    output = torch.cat(outputs[::-1] if reverse else outputs).unflatten(0, kernel.data.shape[:-1])
    if kernel.directions == 1:
        return output, *(end[None] for end in ends)
    whole, *hidden = kernel.run()
    both = torch.cat(_with_half(whole.chunk(2, dim=-1), at, output), dim=-1)
    return both, *(torch.stack(_with_half(part, at, end)) for part, end in zip(hidden, ends, strict=True))


def _with_half(halves: Sequence[Tensor] | Tensor, at: int, half: Tensor) -> list[Tensor]:
    """Combine the results of two directions, one of them replaced."""
    results = list(halves)
    results[at] = half
    return results


def _next_states(
    kernel: Kernel, weights: Sequence[Tensor], x: Tensor, states: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Run one step of a layer from its inputs and its states, h or h and c."""
    if kernel.function is torch.lstm and len(weights) > 2 + 2 * kernel.bias:
        return lstm_with_projection(x, states[0], states[1], weights)
    after = CELLS[kernel.function](x, states if kernel.function is torch.lstm else states[0], *weights)
    return after if kernel.function is torch.lstm else (after,)


def replaced_states(states: tuple[Tensor, ...], replace: Replace, state: str) -> tuple[Tensor, ...]:
    """Return the states (h,) or (h, c) with those that ``state`` names replaced, side by side if it names both."""
    if state == "h":
        return replace(states[0]), *states[1:]
    if state == "c":
        return states[0], replace(states[1])
    both = replace(torch.cat(states, dim=-1))
    return both.split([part.shape[-1] for part in states], dim=-1)


def only_target(model: nn.Module, layer: Any, state: str) -> Target:
    """Find the one layer that ``layer`` names, if its state can be replaced while the model runs."""
    require_choice(state, "state", ("h", "c", "hc"))
    targets, _ = select(model, layer)
    if len(targets) > 1:
        names = [target.name for target in targets]
        raise KannError(f"layer={layer!r} means {names}; states of one layer are replaced; pass one of them")
    target = targets[0]
    if target.module is None:
        raise KannError(
            f"layer {target.name!r} is read off the model's output, and nothing would follow from replacing it; pass "
            "the name of the module that gives these states"
        )
    if "c" in state and "".join(state_widths(target.module)) == "h":
        raise KannError(f"state={state!r} is for LSTMs; {target.path!r} is {type(target.module).__name__}")
    return target


def width_of(target: Target, state: str) -> int | None:
    """Return the width of a layer's state; None if only its calls show it."""
    widths = state_widths(target.module)
    return sum(widths[part] for part in state) if widths else None


@contextlib.contextmanager
def replaced(
    model: nn.Module, target: Target, replace: Replace, *, state: str, width: int, whole: bool = False
) -> Iterator[None]:
    """Run a model so that a layer's states, ``width`` units wide, become ``replace(states)`` after every step.

    ``replace`` gets rows (n, d), or with ``whole`` the states as they are, such as (B, T, d).
    """
    replacement = _Replacement(target, replace, state=state, width=width, whole=whole)
    refusal = KannError(
        f"the states of {target.path!r} are being replaced already, in this thread or another; leave the other "
        "kann.intervene first, and keep or remove all modes in one"
    )
    with exclusive(states_replaced(replacement.module), lambda: refusal), contextlib.ExitStack() as stack:
        stack.enter_context(every_module_called())
        if isinstance(replacement.module, nn.RNNBase):
            observe_forward(replacement.module, replacement.on_forward, stack, first=True)
        else:
            hook_last(replacement.module, replacement.on_call, stack)
        yield


def only_in_this_thread(path: str, block: str) -> Callable[[], None]:
    """Make a function that raises in any thread except the one that entered the block where a layer is replaced."""
    own = threading.get_ident()

    def require() -> None:
        if threading.get_ident() != own:
            raise KannError(
                f"another thread runs {path!r} inside of {block} and must not touch it; wait until it is done, or give "
                "each thread a copy of the model"
            )

    return require


class _Replacement:
    """Replaces the states of one layer in the thread that asked for it, and refuses to run in others."""

    def __init__(self, target: Target, replace: Replace, *, state: str, width: int, whole: bool):
        self.module: Any = target.module
        self._target, self._replace, self._state, self._width, self._whole = target, replace, state, width, whole
        self._require_own_thread = only_in_this_thread(target.path, "kann.intervene")

    # Fused recurrent modules

    def on_forward(self, forward: Callable[[], Any], arguments: Sequence[Any]) -> Any:
        """Run ``forward`` with its kernels run layer by layer."""
        self._require_own_thread()
        with Intercept(arguments, self._on_kernel_call):
            return forward()

    def _on_kernel_call(self, kernel: Kernel, run: Callable[[], Any]) -> Any:
        first = self._first_level(kernel)
        if not first <= self._target.level < first + kernel.layers:  # the recorder runs layers one by one
            return run()

        def run_layer(level: int, single: Kernel) -> tuple[Tensor, ...]:
            if first + level != self._target.level:
                return single.run()
            return run_step_by_step(single, self._rows_replaced, state=self._state, reverse=self._target.reverse)

        return run_layers(kernel, run_layer)[0]

    def _first_level(self, kernel: Kernel) -> int:
        """Find the first of the module's layers that a call of its kernel runs, by the weights that it gets."""
        weights = self.module._flat_weights
        place = next((i for i, weight in enumerate(weights) if weight is kernel.weights[0]), 0)
        return place * self.module.num_layers // len(weights)

    # Cells and other modules

    def on_call(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Give back the output with its states replaced; a forward hook that is last."""
        self._require_own_thread()
        found = [part for part in tensors_of(output) if is_state(part)]
        if len(found) < len(self._state) or (self._state == "c" and len(found) < 2):
            raise KannError(
                f"state={self._state!r} is not among what {self._target.path!r} ({type(module).__name__}) gives: "
                f"{len(found)} tensors of real numbers; pass state='h', or a layer that gives real numbers"
            )
        states = tuple(found[:2])
        if self._state == "h":
            # A cell may give an output before its state: the first that is as wide as the operator counts.
            states = (next((part for part in found if _width_in_all(part) == self._width), found[0]),)
            if states[0].is_complex() or states[0].shape[-1] != self._width == _width_in_all(states[0]):
                rows = self._rows_replaced(as_real(states[0]).flatten(1))
                new = as_complex(rows.reshape(as_real(states[0]).shape), states[0])
                return with_tensors(output, {id(states[0]): new})
        # (B, C, H, W) with as many channels as the operator has units, as along depth.
        is_image = states[0].ndim == 4 and states[0].shape[-1] != self._width == states[0].shape[1]
        turned = has_channels_first(module, states[0]) or is_image
        new = replaced_states(tuple(turned_if(turned, part) for part in states), self._rows_replaced, self._state)
        pairs = zip(states, new, strict=True)
        return with_tensors(output, {id(old): turned_back_if(turned, part) for old, part in pairs})

    def _rows_replaced(self, values: Tensor) -> Tensor:
        """Replace each of the states (..., d)."""
        if values.shape[-1:] != (self._width,):
            raise KannError(
                f"the coordinates are for {self._width} units; layer {self._target.path!r} gave {tuple(values.shape)}; "
                "pass the layer= and the state= that the states were recorded from"
            )
        if values.ndim == 2 or self._whole:
            return self._replace(values)
        return self._replace(values.reshape(-1, self._width)).reshape(values.shape)


def _width_in_all(values: Tensor) -> int:
    """Count the real numbers in the state of a sequence, over all axes; complex numbers count twice."""
    return as_real(values[:1]).numel()


def turned_if(turned: bool, values: Tensor) -> Tensor:
    """Move channels to the last axis if they are on the second."""
    return values.movedim(1, -1) if turned else values


def turned_back_if(turned: bool, values: Tensor) -> Tensor:
    """Move channels back to the second axis if `turned_if` moved them to the last."""
    return values.movedim(-1, 1) if turned else values


Chosen = int | Mode | Iterable[int | Mode]
"""Modes of an operator, by themselves or by their numbers in ``koopman.modes``, or numbers of directions."""


@contextlib.contextmanager
def intervene(
    model: nn.Module,
    coordinates: Any,
    states: Any,
    *,
    keep: Chosen | None = None,
    remove: Chosen | None = None,
    fill: str = "auto",
    layer: str | None = None,
    state: str | None = None,
) -> Iterator[None]:
    """Run a model with its state replaced after every step: keep only some coordinates of it, or remove some.

    >>> import kann
    >>> model, words = nn.Sequential(nn.Embedding(10, 3), nn.GRU(3, 4, batch_first=True)), torch.arange(8).reshape(2, 4)
    >>> states = kann.record(model, words)
    >>> koopman = kann.fit(states, basis="pca")
    >>> with kann.intervene(model, koopman, states, keep=[0]), torch.no_grad():
    ...     outputs, _ = model(words)
    >>> outputs.shape
    torch.Size([2, 4, 4])

    Inside the block, call the model as always, in the thread that entered the block; its mode and gradients stay as
    they are. Of modules that are not recurrent, every position of the output is replaced. `kann.record` inside the
    block records the replaced states. Afterwards the model is as it was, also after an error.

    Parameters
    ----------
    model
        The model that the states were recorded from.
    coordinates
        A `Balance`, a `Koopman` (its modes) or an array of directions (d, k).
    states
        Recorded states, as `States`, an array (S, T, d) or the path of a store. The fill is fitted to them once, when
        the block is entered.
    keep
        Numbers of the coordinates to keep: of modes in ``koopman.modes``, of columns of the directions. The rest of the
        state is filled. An empty list holds the state at its mean.
    remove
        Numbers of the coordinates to remove: h − (what ``keep`` would give) + mean.
    fill
        How to complete a state from its kept coordinates s: by its linear regression on them (``"linear"``), by its
        mean given s (``"curve"``: in bins along one coordinate, by a quadratic regression on several), or by the one of
        the two with the smaller error on held-out sequences (``"auto"``). Coordinates are clipped to their recorded
        range.
    layer
        The layer whose states were recorded, named as in `kann.record`. Default: the only recurrent one.
    state
        The recorded state of an LSTM: "h", "c" or "hc". Default: "hc" if the states are as wide as both, else "h".
    """
    if (keep is None) == (remove is None):
        raise KannError("pass either keep= or remove=, numbers of coordinates, and not both")
    directions = chosen_directions(coordinates, remove if keep is None else keep)
    recorded = as_states(states)
    require_same_width(len(directions), recorded.dim, "the recorded states have")
    target, state = replaced_layer(model, layer, state, recorded.dim)
    (fitted,) = fit_fills([directions], recorded, fill)
    with replaced(model, target, replacement(fitted, keep=remove is None), state=state, width=recorded.dim):
        yield


def directions_of(coordinates: Any) -> Float[Array, "d k"]:
    """Return the directions of a `Balance`, or an array of directions (d, k) that the user passed."""
    directions = array_of(coordinates.directions if isinstance(coordinates, Balance) else coordinates)
    if directions.ndim != 2 or not directions.shape[1] or directions.dtype.kind not in "biufc":
        raise KannError(
            f"coordinates={short_repr(coordinates)} must be a Balance, a Koopman or an array of directions (units, "
            "count); for a single direction pass direction[:, None]"
        )
    require_real(directions, what="directions")
    directions = directions.astype(np.float64)
    require_all_finite(directions, what="directions", remedy="pass finite ones")
    return directions


def chosen_directions(coordinates: Any, chosen: Any) -> Float[Array, "d k"]:
    """Select modes of a `Koopman`, or directions of a `Balance` or an array (d, k), by their numbers."""
    if isinstance(coordinates, Koopman):
        return mode_directions(coordinates, chosen)
    directions = directions_of(coordinates)
    numbers = [chosen] if isinstance(chosen, str) or np.ndim(chosen) == 0 else list(chosen)
    for number in numbers:
        if not 0 <= require_whole_number(number, "coordinate", least=0) < directions.shape[1]:
            raise KannError(f"coordinate {number} does not exist; there are coordinates 0 to {directions.shape[1] - 1}")
    return directions[:, [int(number) for number in numbers]]


def replaced_layer(model: nn.Module, layer: str | None, state: str | None, width: int) -> tuple[Target, str]:
    """Find the layer whose states, ``width`` units wide, are replaced, and which state of it."""
    target = only_target(model, layer, state or "h")
    if state is None:
        widths = state_widths(target.module)
        state = "hc" if "c" in widths and width == sum(widths.values()) else "h"
    own = width_of(target, state)
    if own is not None:  # that of other modules shows when they are called
        require_same_width(width, own, f"state={state!r} of {target.path!r} has")
    return target, state


def require_same_width(width: int, found: int, what: str) -> None:
    """Raise if states and coordinates have different numbers of units."""
    if found != width:
        raise KannError(
            f"the coordinates are for {width} units; {what} {found}; pass coordinates, states, layer= and state= that "
            'belong together, such as kann.record(..., state="hc") with kann.balance of an LSTM'
        )


def replacement(fill: Any, *, keep: bool) -> Replace:
    """Turn a fill into a function of tensors, in their precision, or in float32 where theirs is coarser.

    The arrays of the fill are converted once for each device and precision. The fill is one of `kann.live.completion`,
    or anything else with ``on`` and ``kept``, such as a map that replaces a layer.
    """
    known: dict[Any, Replace] = {}

    def replace(h: Tensor) -> Tensor:
        precise = torch.promote_types(h.dtype, torch.float32)
        key = h.device, precise
        if key not in known:
            own = fill.on(lambda values: torch.from_numpy(values.copy()).to(h.device, precise))
            known[key] = own.kept if keep else own.removed
        return known[key](h.to(precise)).to(h.dtype)

    return replace
