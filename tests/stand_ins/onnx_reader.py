"""Read and run the ONNX files that kann writes, with nothing of what writes them: the wire format, and numpy."""

import struct

import numpy as np


def fields(data):
    """(place, value) of every field of a message: a whole number, bytes, or four bytes of a float."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    found = []
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        elif key & 7 == 2:
            size = varint()
            found.append((key >> 3, data[at : at + size]))
            at += size
        elif key & 7 == 5:
            found.append((key >> 3, struct.unpack("<f", data[at : at + 4])[0]))
            at += 4
        else:
            raise ValueError(f"wire type {key & 7}")
    assert at == len(data)
    return found


def every(message, place):
    return [value for key, value in message if key == place]


def tensor(data):
    message = fields(data)
    dtype = {1: "<f4", 7: "<i8"}[every(message, 2)[0]]
    return every(message, 8)[0].decode(), np.frombuffer(every(message, 9)[0], dtype).reshape(every(message, 1))


OPERATORS = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
    "MatMul": np.matmul,
    "Cos": np.cos,
    "Identity": np.positive,
    "Equal": np.equal,
    "Cast": lambda x, to: x.astype({1: np.float32}[to]),
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Gather": lambda x, places, axis: np.take(x, places, axis),
    "Flatten": lambda x, axis: x.reshape(*x.shape[:axis], -1),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes.tolist())),
}


def run(data, **values):
    """What the model gives for these inputs, by name."""
    model = fields(data)
    graph = fields(every(model, 7)[0])
    names = [fields(part) for part in every(graph, 11)]
    assert {every(name, 1)[0].decode() for name in names} == set(values)
    values |= dict(tensor(part) for part in every(graph, 5))
    for part in every(graph, 1):
        node = fields(part)
        attributes = {}
        for entry in every(node, 5):
            attribute = fields(entry)
            assert every(attribute, 20) == [2]  # whole numbers alone are used
            attributes[every(attribute, 1)[0].decode()] = every(attribute, 3)[0]
        arguments = [values[name.decode()] for name in every(node, 1)]
        operator = OPERATORS[every(node, 4)[0].decode()]
        values[every(node, 2)[0].decode()] = operator(*arguments, **attributes)
    outputs = [every(fields(part), 1)[0].decode() for part in every(graph, 12)]
    return {name: values[name] for name in outputs}
