"""The states from which a search starts, and the inputs that are held constant, as float64 tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.backends.arrays import as_array, as_numpy
from kann.checks import require_float, require_width
from kann.data.states import States
from kann.errors import KannError
from kann.fixed_points.step_function import widths_of
from kann.typing import AnyArray, Float


def starting_tensors(
    step: Any, initial: AnyArray | States | Mapping[str, States], inputs: AnyArray | None
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n p"]]:
    """Initial states and one input for each, as float64 tensors on the device where the network is.

    Without inputs, a step whose input width is known gets zeros, and any other gets no columns.
    """
    state_width, input_width = widths_of(step) or (None, None)
    if isinstance(initial, Mapping):
        initial = np.concatenate([as_numpy(_rows_of(layer)) for layer in initial.values()], axis=1)
    initial = _rows_of(initial)
    states = as_array(initial)
    if states.ndim != 2 or 0 in states.shape:
        raise KannError(f"initial states have shape {tuple(states.shape)}; pass (n, d) with n, d >= 1")
    if state_width is not None:
        require_width(states, state_width, what="initial states", of=f"the state of {type(step).__name__}")
    device = _device_of(step, initial)
    h = _float64_copy(states, device, what="initial states")
    if inputs is None:
        return h, h.new_zeros(len(h), input_width or 0)
    rows = as_array(inputs)
    if rows.ndim not in (1, 2) or 0 in rows.shape or (rows.ndim == 2 and len(rows) not in (1, len(h))):
        raise KannError(
            f"inputs have shape {tuple(rows.shape)}; pass one constant input (p,), or one for each of the {len(h)} "
            f"initial states ({len(h)}, p)"
        )
    if input_width is not None:
        require_width(rows, input_width, what="inputs", of=type(step).__name__)
    x = _float64_copy(rows, device, what="inputs")
    return h, x.expand(len(h), x.shape[-1]).clone()


def _rows_of(initial: AnyArray | States) -> AnyArray:
    """The states themselves, one row each."""
    if isinstance(initial, States):
        return initial.values
    return initial


def _device_of(step: Any, initial: AnyArray) -> torch.device:
    """The device of the module's parameters or, for anything else, of the initial states."""
    device = torch.empty(0).device
    if isinstance(initial, Tensor):
        device = initial.device
    if isinstance(step, nn.Module):
        device = next((parameter.device for parameter in step.parameters()), device)
    if device.type == "mps":  # it has no float64
        return torch.device("cpu")
    return device


def _float64_copy(values: AnyArray, device: torch.device, *, what: str) -> Float[Tensor, "..."]:
    require_float(values, what=what)
    if not isinstance(values, Tensor):  # numpy knows types and orders of bytes that torch does not
        values = torch.from_numpy(values.astype(np.float64))
    tensor = values.detach().to(device=device, dtype=torch.float64, copy=True)
    bad = ~torch.isfinite(tensor).reshape(-1, tensor.shape[-1]).all(dim=-1)
    if bad.any():
        raise KannError(f"{what} hold NaN or Inf in row {int(bad.nonzero()[0])}; leave that row out")
    return tensor
