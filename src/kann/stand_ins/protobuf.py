"""Write ONNX files: the few messages of its protobuf format that a graph of matrix products needs.

Field numbers are those of ``onnx.proto3``, which never change. So no package is needed to write a file, and any ONNX
runtime reads it.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kann.typing import Array

FLOAT, INT64 = 1, 7
"""ONNX's numbers for the types of elements."""

IR_VERSION, OPSET = 8, 13
"""The versions of the format and of its operators: old enough for any runtime of the last years."""


def _varint(value: int) -> bytes:
    """A whole number, seven bits a byte, the lowest first."""
    parts = bytearray()
    value &= 2**64 - 1  # a negative number is written as its two's complement
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _number(place: int, value: int) -> bytes:
    return _varint(place << 3) + _varint(value)


def _bytes(place: int, value: bytes | str) -> bytes:
    """A field that holds text, bytes or another message."""
    if isinstance(value, str):
        value = value.encode()
    return _varint(place << 3 | 2) + _varint(len(value)) + value


def _tensor(name: str, values: Array) -> bytes:
    """A TensorProto with its numbers as raw little-endian bytes."""
    kind, dtype = FLOAT, "<f4"
    if values.dtype.kind == "i":
        kind, dtype = INT64, "<i8"
    sizes = b"".join(_number(1, size) for size in values.shape)
    return sizes + _number(2, kind) + _bytes(8, name) + _bytes(9, values.astype(dtype).tobytes())


def _value_info(name: str, shape: Sequence[int | str]) -> bytes:
    """A ValueInfoProto of floats; a size that is text is a name for any number."""
    sizes = b""
    for size in shape:
        if isinstance(size, str):
            sizes += _bytes(1, _bytes(2, size))
        else:
            sizes += _bytes(1, _number(1, size))
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, FLOAT) + _bytes(2, sizes)))


def _attribute(name: str, value: Any) -> bytes:
    """An AttributeProto that is a whole number, a list of them, or a number with a point."""
    if isinstance(value, float):
        return _bytes(1, name) + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return _bytes(1, name) + _number(3, value) + _number(20, 2)
    return _bytes(1, name) + b"".join(_number(8, part) for part in value) + _number(20, 7)


@dataclass(slots=True, eq=False)
class Graph:
    """A graph under construction: nodes in the order in which they are computed, and the numbers they use."""

    nodes: list[bytes] = field(default_factory=list)
    tensors: dict[str, Array] = field(default_factory=dict)

    def constant(self, name: str, values: Array) -> str:
        """Keep an array under a name, which is returned."""
        self.tensors[name] = np.asarray(values)
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node, and return the name of what it gives."""
        if output is None:
            output = f"{operator.lower()}_{len(self.nodes)}"
        node = b"".join(_bytes(1, name) for name in inputs) + _bytes(2, output) + _bytes(4, operator)
        node += b"".join(_bytes(5, _attribute(name, value)) for name, value in attributes.items())
        self.nodes.append(node)
        return output

    def model(
        self, *, name: str, inputs: Mapping[str, Sequence[int | str]], outputs: Mapping[str, Sequence[int | str]]
    ) -> bytes:
        """The whole model as the bytes of a file."""
        graph = b"".join(_bytes(1, node) for node in self.nodes) + _bytes(2, name)
        graph += b"".join(_bytes(5, _tensor(key, values)) for key, values in self.tensors.items())
        graph += b"".join(_bytes(11, _value_info(key, shape)) for key, shape in inputs.items())
        graph += b"".join(_bytes(12, _value_info(key, shape)) for key, shape in outputs.items())
        opset = _bytes(1, "") + _number(2, OPSET)
        return _number(1, IR_VERSION) + _bytes(2, "kann") + _bytes(7, graph) + _bytes(8, opset)
