"""Save results to npz files and load them without executing code.

Every result class uses the same container: an ``.npz`` archive of ``header`` (JSON: kind, version, checksum),
``content`` (JSON: the values of all fields) and the arrays, each named after the field that holds it. One checksum
covers content and arrays together, so that a field copied from another valid file is noticed.

A class takes part by deriving from `Stored`, and gets ``save`` and ``load`` from `Saved`. The annotations of its fields
say what a file may hold; `Stored._check` compares the fields with each other.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from kann.backends.arrays import as_numpy
from kann.checks import file_to_write, require_path, short_repr
from kann.data.archives import NpzReader, damage_explained, require_file
from kann.data.atomic_write import replacing
from kann.errors import KannError
from kann.typing import Array, array_annotation

VERSION = 2
"""The version of the container. Version 1 was written by kann 0.1 and 0.2, without content and checksum."""

LONGEST_HEADER = 10_000
"""Bytes of a header that are read; ours have some hundreds."""

LONGEST_KIND = 80
"""Characters of the kind that a foreign file claims to be which are shown."""

ARRAY_KINDS = "biufcU"
"""The kinds of numpy types that are saved as arrays: numbers, truth values and text, but no Python objects."""

STORED: dict[str, type["Stored"]] = {}
"""The only classes that a file may name."""

T = TypeVar("T", bound="Stored")


class Stored:
    """A class whose objects may be part of a saved result. Its fields are saved and must fit their annotations."""

    __slots__ = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        known = STORED.setdefault(cls.__name__, cls)
        if known.__module__ != cls.__module__:
            raise TypeError(f"{known.__module__} and {cls.__module__} both define a stored class {cls.__name__}")
        STORED[cls.__name__] = cls  # a dataclass with slots is made twice; the second class is the one that is used

    def _content(self) -> dict[str, Any]:
        """Return what to save, by name: the fields of a dataclass."""
        return {name: getattr(self, name) for name in _fields(type(self))}

    @classmethod
    def _from_content(cls: type[T], content: dict[str, Any]) -> T:
        """Make the object again from what `_content` gave."""
        return cls(**content)

    @classmethod
    def _upgraded(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content for this release, given that of a part of a file of version 1; unknown fields are lost."""
        known = _fields(cls)
        return {name: value for name, value in content.items() if name in known}

    @classmethod
    def _from_version_1(cls, arrays: dict[str, Array], path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the content of a file of version 1, given its arrays."""
        raise ValueError(f"version 1 had no {cls.__name__}")

    def _check(self) -> None:
        """Raise ValueError if fields contradict each other. Their types and shapes have been compared before."""


class Saved(Stored):
    """A result that can be saved to a file by itself."""

    __slots__ = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` file that `load` reads."""
        save_npz(path, self)

    @classmethod
    def load(cls: type[T], path: str | os.PathLike[str]) -> T:
        """Read what `save` wrote; raise if the file is damaged, edited, of another kind, or of a later release."""
        return load_npz(path, cls)


def _fields(cls: type) -> dict[str, Field]:
    return {field.name: field for field in fields(cls) if field.init} if is_dataclass(cls) else {}


def save_npz(path: str | os.PathLike[str], result: Stored, *, as_plain: Callable[[Any], Any] | None = None) -> None:
    """Write a result. ``as_plain`` turns values of other kinds into some that can be saved; by default they raise."""
    encoder = Encoder(as_plain)
    content = json.dumps(encoder.plain(result, ""), allow_nan=False)
    arrays = {"content": np.frombuffer(content.encode(), dtype=np.uint8), **encoder.arrays}
    save_arrays(path, kind=kind_of(type(result)), arrays=arrays)


def load_npz(path: str | os.PathLike[str], cls: type[T]) -> T:
    """Read a result of this class; raise if the file is damaged, edited, of another kind, or of a later release."""
    with _explained(path):
        version, arrays = load_arrays(path, kind=kind_of(cls))
        if version == 1:
            return made(cls, cls._from_version_1(arrays, path))
        result = Decoder(arrays).value(json.loads(bytes(arrays["content"])))
        if type(result) is not cls:
            raise ValueError(f"its content is {short_repr(result)}")
        return result


def save_arrays(path: str | os.PathLike[str], *, kind: str, arrays: Mapping[str, Array]) -> None:
    """Write named arrays, with a header that holds their kind and checksum."""
    path = file_to_write(path)
    header = json.dumps({"kind": kind, "version": VERSION, "checksum": checksum(arrays)})
    members: dict[str, Any] = {"header": np.frombuffer(header.encode(), dtype=np.uint8), **arrays}
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **members)


def load_arrays(path: str | os.PathLike[str], *, kind: str) -> tuple[int, dict[str, Array]]:
    """Read what `save_arrays` wrote: the version of the file and its arrays."""
    require_path(path)
    require_file(path)
    with _explained(path), open(path, "rb") as file:
        reader = NpzReader(file)
        header = _header(reader)
        require_format(header, kind=kind, version=VERSION, path=path)
        arrays = {name: reader.read(name) for name in reader.names if name != "header"}
        if header["version"] == 1:
            lost = [name for name in header.get("arrays", ()) if name not in arrays]
            if lost:
                raise ValueError(f"it lacks {short_repr(lost)}")
        elif header["checksum"] != checksum(arrays):
            raise ValueError("its checksum is not that of its content: it was edited, or mixed from several files")
        return header["version"], arrays


def _explained(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    return damage_explained(path, problem="is not a whole kann file", remedy="save it again with .save()")


def kind_of(cls: type) -> str:
    """Return what the header of a file calls a class."""
    return f"kann.{cls.__name__}"


def checksum(arrays: Mapping[str, Array]) -> str:
    """Return the SHA-256 of names, types, shapes and numbers of all arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        native = array.dtype.newbyteorder("<")  # what is hashed must not depend on the machine
        digest.update(f"{name} {native.str} {array.shape} {order}\n".encode())
        rows = np.ascontiguousarray(array.T if order == "F" else array, dtype=native)
        digest.update(rows.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _header(reader: NpzReader) -> Any:
    """Return the header of a file."""
    if "header" not in reader.names:
        raise ValueError("it has no header")
    shape, dtype = reader.array_header("header")
    if dtype != np.uint8 or len(shape) != 1 or shape[0] > LONGEST_HEADER:
        raise ValueError("its header is no text")
    return json.loads(bytes(reader.read("header")))


def require_format(header: Any, *, kind: str, version: int, path: str | os.PathLike[str]) -> None:
    """Raise if a header is of another kind, or of a version that this release does not know."""
    name = kind.removeprefix("kann.")
    found = header.get("kind") if isinstance(header, Mapping) else None
    if not isinstance(found, str) or found.removeprefix("kann.") != name:
        found = found[:LONGEST_KIND] if isinstance(found, str) and found else "something else"
        raise KannError(f"{path} holds {found}, not {kind}; pass a file that {kind}.save() wrote")
    number = header.get("version")
    if type(number) is not int or number < 1:
        raise KannError(f"{path} has no valid format version; save it again with {kind}.save()")
    if number > version:
        raise KannError(f"{path} has format {number}; this release reads up to {version}; upgrade kann to read it")


class Encoder:
    """Turns values into JSON, and collects their arrays by the path of the field that holds them."""

    def __init__(self, as_plain: Callable[[Any], Any] | None = None):
        self.arrays: dict[str, Array] = {}
        self._as_plain = as_plain
        self._results: list[Stored] = []  # kept alive, so that no other object takes their place in memory

    def plain(self, value: Any, path: str) -> Any:
        """Return the value as JSON; an object that was met before, such as an operator, only by its number."""
        if isinstance(value, Stored):
            known = next((number for number, each in enumerate(self._results) if each is value), None)
            if known is not None:
                return {"again": known}
            self._results.append(value)
            content = value._content()
            return {
                "result": type(value).__name__,
                "fields": {name: self.plain(each, _join(path, name)) for name, each in content.items()},
            }
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, np.generic):
            return self.plain(value.item(), path)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"number": str(value)}
        if isinstance(value, complex):
            return {"complex": [self.plain(value.real, path), self.plain(value.imag, path)]}
        if isinstance(value, list | tuple | Mapping):
            return self._container(value, path)
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return self._array(as_numpy(value), path)
        if self._as_plain is None:
            raise KannError(f"{path} is {short_repr(value)}, which no file can hold")
        return self.plain(self._as_plain(value), path)

    def _container(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            entries = [
                [self.plain(key, path), self.plain(each, _join(path, _name(key, i)))]
                for i, (key, each) in enumerate(value.items())
            ]
            return {"dict": entries}
        entries = [self.plain(each, _join(path, str(i))) for i, each in enumerate(value)]
        return entries if isinstance(value, list) else {"tuple": entries}

    def _array(self, array: Array, path: str) -> Any:
        if array.dtype.kind not in ARRAY_KINDS:
            return self.plain(array.tolist(), path)
        self.arrays[path] = array
        return {"array": path}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name(key: Any, number: int) -> str:
    """Return the name of an entry of a mapping: its key if that is a short word, else its number."""
    return key if isinstance(key, str) and re.fullmatch(r"[A-Za-z_]\w{0,30}", key, re.ASCII) else str(number)


class Decoder:
    """Turns the JSON of `Encoder` back into values; raises all sorts of errors on what it did not write.

    With ``upgrade`` it reads content of version 1: unknown fields are dropped, and results that no longer exist
    are None.
    """

    def __init__(self, arrays: Mapping[str, Array], *, upgrade: bool = False):
        self._arrays, self._upgrade = arrays, upgrade
        self._results: list[Any] = []

    def value(self, plain: Any) -> Any:
        """Return the value that a piece of JSON stands for."""
        if isinstance(plain, list):
            return [self.value(each) for each in plain]
        if not isinstance(plain, dict):
            return plain
        if "number" in plain:
            return float(plain["number"])
        if "complex" in plain:
            return complex(*self.value(plain["complex"]))
        if "array" in plain:
            return self._arrays[plain["array"]]
        if "tuple" in plain:
            return tuple(self.value(plain["tuple"]))
        if "dict" in plain:
            return {self.value(key): self.value(each) for key, each in plain["dict"]}
        if "again" in plain:
            return self._results[plain["again"]]
        number = len(self._results)
        self._results.append(None)  # results are numbered in the order in which they begin
        content = {name: self.value(each) for name, each in plain["fields"].items()}
        cls = STORED.get(plain["result"]) if self._upgrade else STORED[plain["result"]]
        if cls is not None:
            self._results[number] = made(cls, cls._upgraded(content) if self._upgrade else content)
        return self._results[number]


def made(cls: type[T], content: dict[str, Any]) -> T:
    """Make a stored object; raise ValueError if its content does not fit the class."""
    names = _fields(cls)
    if names:
        required = [name for name, field in names.items() if field.default is field.default_factory is MISSING]
        for problem, those in (("lacks", set(required) - set(content)), ("also holds", set(content) - set(names))):
            if those:
                raise ValueError(f"{cls.__name__} {problem} {short_repr(sorted(those))}")
    result = cls._from_content(content)
    annotations = get_type_hints(cls, include_extras=True)
    require_annotations({name: getattr(result, name) for name in names}, annotations)
    result._check()
    return result


def require_annotations(values: Mapping[str, Any], annotations: Mapping[str, Any]) -> None:
    """Raise ValueError if a value does not have the type and shape of its annotation.

    Axes of one name have one size in all of them, as ``r`` in ``Float[Array, "d r"]``.
    """
    sizes: dict[str, int] = {}
    for name, value in values.items():
        if not _fits(value, annotations[name], sizes):
            expected = getattr(annotations[name], "__name__", str(annotations[name])).replace("ndarray, ", "")
            raise ValueError(f"{name!r} is {short_repr(value)}, not {expected} with axes {sizes}")


def _fits(value: Any, annotation: Any, sizes: dict[str, int]) -> bool:
    """Return whether a value is of an annotated type. ``sizes`` are those of the axes so far, and are added to."""
    if annotation is Any:
        return True
    array = array_annotation(annotation)
    if array is not None:
        return _array_fits(value, *array, sizes=sizes)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, each, sizes) for each in arguments)
    if origin in (tuple, list):
        if not isinstance(value, origin):
            return False
        expected = arguments if origin is tuple and Ellipsis not in arguments else arguments[:1] * len(value)
        return len(value) == len(expected) and all(map(_fits, value, expected, repeat(sizes)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, arguments[0], {}) and _fits(each, arguments[1], sizes) for key, each in value.items()
        )
    if annotation in (int, float, complex):
        numbers = {int: int, float: int | float, complex: int | float | complex}[annotation]
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, NoneType if annotation is None else origin or annotation)


def _array_fits(value: Any, kinds: str, axes: list[str], *, sizes: dict[str, int]) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
        return False
    if "..." in axes:
        return value.ndim >= len(axes) - 1
    if len(axes) != value.ndim:
        return False
    known = dict(sizes)
    for axis, size in zip(axes, value.shape, strict=True):
        expected = int(axis) if axis.isdecimal() else size if axis == "_" else known.setdefault(axis, size)
        if expected != size:
            return False
    sizes.update(known)
    return True


def require_finite_fields(result: Stored, *, except_for: tuple[str, ...] = ()) -> None:
    """Raise ValueError if an array is empty, or a number of a field is NaN or infinite."""
    for name, value in result._content().items():
        if isinstance(value, np.ndarray | float):
            if name not in except_for and not np.isfinite(value).all():
                raise ValueError(f"{name!r} holds NaN or infinite numbers")
            if not np.size(value):
                raise ValueError(f"{name!r} is empty")


def without_axes(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return the arrays of a file of version 1, with those that have no axes as numbers."""
    return {name: array if array.ndim else array.item() for name, array in arrays.items()}
