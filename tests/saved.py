"""Compare results, and make some of any class from the annotations of its fields."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch

from kann.typing import array_annotation


def assert_same(one, other):
    """Every number, text and array, also inside other results, is the same to the last bit."""
    if is_dataclass(one):
        assert type(one) is type(other)
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, torch.Tensor | np.ndarray):
        assert np.asarray(one).dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name, value in one.items():
            assert_same(value, other[name])
    elif isinstance(one, list | tuple):
        assert type(one) is type(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, float):
        np.testing.assert_equal(other, one)
    else:
        assert one == other


class Maker:
    """Makes objects of stored classes whose fields hold random values of the annotated types."""

    def __init__(self, rng: np.random.Generator, real: Mapping[type, Any]):
        self._rng, self._real = rng, real  # objects of classes whose fields must fit each other

    def instance(self, cls: type) -> Any:
        """An object of a class; axes of one name have one size."""
        if cls in self._real:
            return self._real[cls]
        sizes: dict[str, int] = {}
        hints = get_type_hints(cls, include_extras=True)
        return cls(**{each.name: self._value(hints[each.name], sizes) for each in fields(cls) if each.init})

    def _value(self, annotation: Any, sizes: dict[str, int]) -> Any:
        if array_annotation(annotation) is not None:
            return self._array(*array_annotation(annotation), sizes)
        if annotation is np.ndarray:
            return self._array("f", ["m"], sizes)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin in (Union, UnionType):
            return self._value(arguments[int(self._rng.integers(len(arguments)))], sizes)
        if origin is tuple:
            arguments = arguments[:1] * int(self._rng.integers(4)) if arguments[-1] is Ellipsis else arguments
            return tuple(self._value(each, sizes) for each in arguments)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            keys = [self._value(arguments[0], sizes) for _ in range(3)]
            return {key: self._value(arguments[1], sizes) for key in keys}
        return self._plain(annotation)

    def _plain(self, annotation: Any) -> Any:
        rng = self._rng
        makers = {
            NoneType: lambda: None,
            bool: lambda: bool(rng.integers(2)),
            int: lambda: int(rng.integers(-9, 2**40)),
            float: lambda: float(rng.choice([rng.normal(), np.nan, -np.inf])),
            complex: lambda: complex(rng.normal(), rng.normal()),
            str: lambda: (
                str(rng.choice(["", "λ", "a b", "header", "naïve\n", "\x00", "x" * 100])) + str(rng.integers(99))
            ),
            Any: lambda: [1, "a", (None, {0: 0.5})],
        }
        return makers[annotation]() if annotation in makers else self.instance(annotation)

    def _array(self, kinds: str, axes: list[str], sizes: dict[str, int]) -> np.ndarray:
        rng = self._rng
        shape = [int(axis) if axis.isdecimal() else sizes.setdefault(axis, int(rng.integers(0, 4))) for axis in axes]
        values = rng.normal(size=shape)
        dtypes = {"c": complex, "f": rng.choice([np.float64, np.float32]), "i": np.int64, "b": bool}
        array = values.astype(dtypes[kinds[0]])
        return np.asfortranarray(array) if rng.integers(2) else array
