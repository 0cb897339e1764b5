"""Run a session of ONNX Runtime as if it were a torch module, so that its outputs can be recorded."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kann.backends.arrays import as_numpy
from kann.errors import KannError
from kann.recording.layer_selection import require_module

NUMBERS = {"float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32}
"""What ONNX calls types of numbers, and what numpy does; any other input is passed as it is."""


def _is_session(model: Any) -> bool:
    """Whether this is a session of ONNX Runtime, told by its methods, so that the package need not be there."""
    return all(callable(getattr(model, name, None)) for name in ("run", "get_inputs", "get_outputs"))


def as_module(model: Any, layer: Any) -> tuple[nn.Module, Any]:
    """A module that runs a session, and the function from its outputs to the states; raise for any other model."""
    if not _is_session(model):
        require_module(model)
        return model, layer
    return SessionModule(model), layer if callable(layer) else _output_named(model, layer)


def _output_named(session: Any, layer: Any) -> Callable[[Any], Any]:
    """From what a session gives to one of its outputs: the one named, or the only one with three axes."""
    shapes = {output.name: output.shape for output in session.get_outputs()}
    whole = [name for name, shape in shapes.items() if shape is not None and len(shape) == 3]
    if layer is None and len(whole) == 1:
        layer = whole[0]
    if not isinstance(layer, str) or layer not in shapes:
        raise KannError(
            f"layer={layer!r} is no output of the session, which gives {shapes}; pass the name of the one that holds "
            "states of all steps, (sequences, steps, units). If it makes one step a call, run it in a loop and pass "
            "the states that it gives to kann.fit, as an array"
        )
    return lambda outputs: outputs[layer]


class SessionModule(nn.Module):
    """Runs a session on tensors; its arguments have the names of the session's inputs."""

    def __init__(self, session: Any):
        super().__init__()
        self._inputs = {re.sub(r"\W", "_", each.name): each for each in session.get_inputs()}
        self._outputs = [output.name for output in session.get_outputs()]

        def forward(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            given = signature.bind(*args, **kwargs).arguments
            feed = {self._inputs[name].name: _as_fed(value, self._inputs[name].type) for name, value in given.items()}
            return dict(zip(self._outputs, map(torch.from_numpy, session.run(None, feed)), strict=True))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in self._inputs])
        forward.__signature__ = signature  # type: ignore[attr-defined]  # tells the recorder what a batch must hold
        self.forward = forward


def _as_fed(value: Any, kind: str) -> Any:
    """An array in the type that the session wants, such as ``tensor(float)``."""
    wanted = NUMBERS.get(kind.removeprefix("tensor(").removesuffix(")"))
    return as_numpy(value).astype(wanted)
