"""An ONNX graph under construction."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kann.typing import Array

try:
    from onnx import TensorProto, checker, helper, numpy_helper
except ImportError as error:
    raise ImportError("ONNX files need onnx: pip install 'kann[onnx]'") from error

IR_VERSION, OPSET = 8, 13
"""The versions of the format and of its operators: old enough for any runtime of the last years."""

Shapes = Mapping[str, Sequence[int | str]]
"""The shape of each array by name; a size that is text is a name for any number."""


class Graph:
    """Nodes in the order in which they are computed, and the numbers that they use."""

    def __init__(self):
        self._nodes, self._tensors = [], []

    def constant(self, name: str, values: Array) -> str:
        """Keep an array under a name, which is returned; numbers with a point are kept in float32."""
        values = np.asarray(values)
        if values.dtype.kind == "f":
            values = values.astype(np.float32)
        self._tensors.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node, and return the name of what it gives."""
        if output is None:
            output = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def model(self, *, name: str, inputs: Shapes, outputs: Shapes) -> bytes:
        """The whole model as the bytes of a file."""
        graph = helper.make_graph(self._nodes, name, _floats(inputs), _floats(outputs), self._tensors)
        model = helper.make_model(
            graph, producer_name="kann", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
        )
        checker.check_model(model, full_check=True)
        return model.SerializeToString()


def _floats(shapes: Shapes) -> list[Any]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
