"""One step of a stand-in as an ONNX file, to run where there is no Python.

The graph is written by tracing: the formulas of a step and of its features are evaluated on arrays that add a node to
the graph for each operation. ``torch.onnx.export`` would need torch, onnxscript and onnx_ir of versions that fit each
other, and takes four seconds for these dozen nodes.
"""

import os
from types import SimpleNamespace
from typing import Any

import numpy as np

from kann.checks import require_path
from kann.data.atomic_write import replacing
from kann.errors import KannError
from kann.fitting.bilinear import Bilinear
from kann.fitting.koopman import Koopman
from kann.fitting.readout import Readout, require_step
from kann.typing import Array

try:
    from onnx import TensorProto, checker, helper, numpy_helper
except ImportError as error:
    raise ImportError("ONNX files need onnx: pip install 'kann[onnx]'") from error

IR_VERSION, OPSET = 8, 13
"""Versions of the format and of its operators, of 2021: old enough for any runtime in use."""


class Traced:
    """An array of the graph. Arithmetic adds nodes."""

    dtype = TensorProto.FLOAT

    def __init__(self, graph: "Graph", name: str):
        self.graph, self.name = graph, name

    def __add__(self, other: "Traced") -> "Traced":
        return self.graph.add("Add", self, other)

    def __sub__(self, other: "Traced") -> "Traced":
        return self.graph.add("Sub", self, other)

    def __mul__(self, other: "Traced") -> "Traced":
        return self.graph.add("Mul", self, other)

    def __rmul__(self, factor: float) -> "Traced":
        return self.graph.add("Mul", self, self.graph.constant(np.array(factor)))

    def __matmul__(self, other: "Traced") -> "Traced":
        return self.graph.add("MatMul", self, other)

    def __eq__(self, other: "Traced") -> "Traced":  # type: ignore[override]
        return self.graph.add("Equal", self, other)

    __hash__ = None  # type: ignore[assignment]


class Graph:
    """Nodes in the order in which they are computed, and the constants that they use."""

    def __init__(self):
        self.nodes, self.tensors = [], []
        self.operations = SimpleNamespace(
            concat=lambda arrays, axis: self.add("Concat", *arrays, axis=axis),
            cos=lambda array: self.add("Cos", array),
            astype=lambda array, dtype: self.add("Cast", array, to=dtype),
        )
        """The array namespace that `FeatureMap.formula` computes with."""

    def constant(self, values: Array) -> Traced:
        """Add an array; floating-point numbers become float32."""
        name = f"constant_{len(self.tensors)}"
        values = np.asarray(values, dtype=np.float32 if np.asarray(values).dtype.kind == "f" else None)
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return Traced(self, name)

    def add(self, operator: str, *inputs: Traced, output: str | None = None, **attributes: Any) -> Traced:
        """Add a node and return its output."""
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        names = [each.name for each in inputs]
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return Traced(self, output)

    def to_bytes(self, *, inputs: dict[str, int], outputs: dict[str, int]) -> bytes:
        """Return the model as the bytes of a file, for any number of rows, with these widths of inputs and outputs."""
        given, found = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", width)) for name, width in widths.items()]
            for widths in (inputs, outputs)
        )
        model = helper.make_model(
            helper.make_graph(self.nodes, "stand-in", given, found, self.tensors),
            producer_name="kann",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        checker.check_model(model, full_check=True)
        return model.SerializeToString()


def save_onnx(koopman: Koopman | Bilinear, path: str | os.PathLike[str], *, readout: Readout | None = None) -> None:
    """Write one step of a driven or bilinear operator as an ONNX model, in float32.

    The model maps ``z`` (n, r), the coordinates before the step, and ``u`` (n, p), the inputs, to ``next`` (n, r), the
    coordinates after the step, and ``state`` (n, d), the hidden state. To run a sequence, start from
    ``koopman.encode(h)`` and pass ``next`` as ``z`` of the following step. Needs ``kann[onnx]``, and no torch.

    Parameters
    ----------
    koopman
        A driven operator, or one that its inputs gate.
    path
        The file to write; one that exists is replaced.
    readout
        A readout from `kann.stand_ins.fit_readout`: the model then also gives ``output`` (n, o).

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np, kann
    >>> rng = np.random.default_rng(0)
    >>> pulses = (rng.random((30, 50, 1)) < 0.2) * rng.choice([-1.0, 1.0], size=(30, 50, 1))
    >>> held = np.ones((30, 50, 1))
    >>> for t in range(1, 50):
    ...     held[:, t] = np.where(pulses[:, t] == 0, held[:, t - 1], pulses[:, t])
    >>> states = kann.States.from_padded(held, inputs=pulses)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kann.stand_ins.save_onnx(kann.fit(states, driven=True), pathlib.Path(folder) / "step.onnx")
    ...     print([file.name for file in pathlib.Path(folder).iterdir()])
    ['step.onnx']
    """
    require_step(koopman, readout)
    require_path(path)
    features = koopman.features
    if features.kind == "function":
        raise KannError("features that are a Python function cannot be written to ONNX; fit with features by name")
    graph = Graph()
    z, u = Traced(graph, "z"), Traced(graph, "u")
    arrays = {name: graph.constant(values) for name, values in features.arrays.items()}
    after = _after(graph, koopman, z, features.formula(graph.operations, u, arrays))
    graph.add("Identity", after, output="next")
    decoded = after @ graph.constant(koopman.state_vectors)
    graph.add("Add", decoded, graph.constant(koopman.mean), output="state")
    outputs = {"next": koopman.rank, "state": koopman.dim}
    if readout is not None:
        columns = after
        if readout.has_products:
            columns = graph.add("Concat", after, _products(graph, after, koopman.rank), axis=1)
        read = columns @ graph.constant(readout.weight)
        graph.add("Add", read, graph.constant(readout.constant), output="output")
        outputs["output"] = len(readout.constant)
    content = graph.to_bytes(inputs={"z": koopman.rank, "u": features.inputs}, outputs=outputs)
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _after(graph: Graph, koopman: Koopman | Bilinear, z: Traced, phi: Traced) -> Traced:
    """Add a step to the graph: z C + φ D + c + Σ φ_k z E_k and the term of products of coordinates, within bounds."""
    weights = koopman.step_weights
    matrix, offset, drive = (graph.constant(weights[name]) for name in ("matrix", "offset", "drive"))
    after = z @ matrix + offset + phi @ drive
    if not isinstance(koopman, Bilinear):
        return after
    columns = graph.add("Unsqueeze", phi, graph.constant(np.array([2])))
    rows = graph.add("Unsqueeze", z, graph.constant(np.array([1])))
    after = after + graph.add("Flatten", columns * rows, axis=1) @ graph.constant(weights["gates"])
    if koopman.squares is not None:
        after = after + _products(graph, z, koopman.rank) @ graph.constant(weights["squares"])
    low, high = (graph.constant(bound) for bound in koopman.bounds)
    return graph.add("Min", graph.add("Max", after, low), high)


def _products(graph: Graph, z: Traced, rank: int) -> Traced:
    """Add the products z_i z_j, i ≤ j, of coordinates to the graph."""
    first, second = map(graph.constant, np.triu_indices(rank))
    return graph.add("Gather", z, first, axis=1) * graph.add("Gather", z, second, axis=1)
