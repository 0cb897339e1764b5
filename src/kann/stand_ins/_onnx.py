"""One step of a stand-in as an ONNX file, to run where there is no Python."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kann.checks import require_path
from kann.data.atomic_write import replacing
from kann.errors import KannError
from kann.fitting.bilinear import Bilinear
from kann.fitting.features import ComponentFeatures, FeatureMap, FourierFeatures, FunctionFeatures, TokenFeatures
from kann.fitting.koopman import Koopman
from kann.stand_ins._stand_in import operator_weights, require_driven
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


def save_onnx(koopman: Koopman | Bilinear, path: str | os.PathLike[str]) -> None:
    """Write one step of a driven or bilinear operator as an ONNX model, in float32.

    It takes ``z`` (n, r), the coordinates before the step, and ``u`` (n, p), what is read in it, and gives ``next``
    (n, r), the coordinates after it, and ``state`` (n, d), the hidden state that they stand for. A network starts from
    the coordinates of its first state, ``koopman.encode(h)``. Needs ``kann[onnx]``.

    >>> import pathlib, tempfile
    >>> import numpy as np, kann
    >>> rng = np.random.default_rng(0)
    >>> pulses = (rng.random((30, 50, 1)) < 0.2) * rng.choice([-1.0, 1.0], size=(30, 50, 1))
    >>> held = np.ones((30, 50, 1))
    >>> for t in range(1, 50):
    ...     held[:, t] = np.where(pulses[:, t] == 0, held[:, t - 1], pulses[:, t])
    >>> states = kann.States.from_padded(held, inputs=pulses)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kann.save_onnx(kann.fit(states, driven=True), pathlib.Path(folder) / "step.onnx")
    ...     print([file.name for file in pathlib.Path(folder).iterdir()])
    ['step.onnx']
    """
    require_driven(koopman)
    require_path(path)
    graph, rank = Graph(), koopman.rank
    weights = {name: graph.constant(name, values) for name, values in operator_weights(koopman).items()}
    inputs = len(koopman.drive)  # type: ignore[arg-type]
    phi = "u"
    if isinstance(koopman, Bilinear):
        inputs = koopman.features.inputs
        phi = _features(graph, koopman.features)
    after = graph.add("Add", graph.add("MatMul", "z", weights["matrix"]), weights["offset"])
    after = graph.add("Add", after, graph.add("MatMul", phi, weights["drive"]))
    if isinstance(koopman, Bilinear):
        after = graph.add("Add", after, _gated(graph, phi, weights["gates"]))
        if koopman.squares is not None:
            after = graph.add("Add", after, _lifted(graph, rank, weights["squares"]))
        after = graph.add("Max", after, weights["low"])
        after = graph.add("Min", after, weights["high"])
    graph.add("Identity", after, output="next")
    decoder = graph.constant("decoder", koopman.basis.T)
    graph.add("Add", graph.add("MatMul", after, decoder), weights["mean"], output="state")
    model = graph.model(
        name="stand-in",
        inputs={"z": ("n", rank), "u": ("n", inputs)},
        outputs={"next": ("n", rank), "state": ("n", koopman.dim)},
    )
    with replacing(path) as temporary:
        temporary.write_bytes(model)


def _features(graph: "Graph", features: FeatureMap) -> str:
    """The features of ``u``."""
    if isinstance(features, FunctionFeatures):
        raise KannError("features that are a Python function cannot be written to ONNX; fit with features by name")
    if isinstance(features, TokenFeatures):
        numbers = graph.constant("numbers", np.arange(features.count, dtype=np.float64))
        return graph.add("Cast", graph.add("Equal", "u", numbers), to=1)
    if features.kind == "squares":
        return graph.add("Concat", "u", graph.add("Mul", "u", "u"), axis=1)
    if not isinstance(features, ComponentFeatures | FourierFeatures):
        return "u"
    shifted = graph.add("Sub", "u", graph.constant("centre", features.centre))
    mapped = graph.add("MatMul", shifted, graph.constant("projection", features.matrix))
    if isinstance(features, ComponentFeatures):
        return mapped
    angle = graph.add("Add", mapped, graph.constant("phase", features.phase))
    return graph.add("Mul", graph.add("Cos", angle), graph.constant("root", np.array(2**0.5)))


def _gated(graph: "Graph", phi: str, gates: str) -> str:
    """Σ φ_k z E_k: the products of all features with all coordinates, times one matrix."""
    columns = graph.add("Unsqueeze", phi, graph.constant("last_axis", np.array([2])))
    rows = graph.add("Unsqueeze", "z", graph.constant("middle_axis", np.array([1])))
    products = graph.add("Flatten", graph.add("Mul", columns, rows), axis=1)
    return graph.add("MatMul", products, gates)


def _lifted(graph: "Graph", rank: int, squares: str) -> str:
    """What products of coordinates add."""
    first, second = (graph.constant(name, part) for name, part in zip("ij", np.triu_indices(rank), strict=True))
    products = graph.add("Mul", graph.add("Gather", "z", first, axis=1), graph.add("Gather", "z", second, axis=1))
    return graph.add("MatMul", products, squares)
