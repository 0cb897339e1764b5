"""The one gate for what users pass: numbers and arrays are checked here, with the same words in every error."""

import math
import numbers
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import array_api_compat
import numpy as np

from kann.errors import KannError
from kann.typing import AnyArray, Array

LONGEST_SHOWN = 60
"""Largest number of characters of a wrong value that an error repeats."""

LONGEST_REASON = 200
"""Largest number of characters of a foreign error that are repeated: some libraries quote the whole file."""


def short_repr(value: Any) -> str:
    """Return a value as an error repeats it, on one short line; of an array only type, dtype and shape."""
    try:
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return f"{type(value).__name__} of {value.dtype}, shape {tuple(value.shape)}"
        text = " ".join(repr(value).split())
    except Exception:  # a foreign repr may fail in any way, and must not hide the error that is reported
        text = f"<{type(value).__name__}>"
    if len(text) > LONGEST_SHOWN:
        text = f"{text[:LONGEST_SHOWN]}…"
    return text


def require_whole_number(value: Any, name: str, *, least: int | None = 1, too_small: str = "is too small") -> int:
    """Return a whole number of at least ``least``; ``too_small`` describes a smaller one."""
    remedy = "pass one" if least is None else f"pass {name}>={least}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_):
        raise KannError(f"{name}={short_repr(value)} is not a whole number; {remedy}")
    if least is not None and number < least:
        raise KannError(f"{name}={short_repr(number)} {too_small}; {remedy}")
    return number


def require_number(value: Any, name: str, *, remedy: str) -> float:
    """Return a finite real number; ``remedy`` names the numbers that can be used, such as ``"pass ridge>=0"``."""
    number = math.nan
    is_number = isinstance(value, numbers.Real)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype"):
        is_number = "float" in _kind(value) or "int" in _kind(value)  # an array of text would be read as a number
    if is_number and not isinstance(value, bool | np.bool_):
        try:
            number = float(value)
        except (OverflowError, TypeError, ValueError, RuntimeError):
            number = math.nan  # refused below: too large for float64, or a 0-d array of something else
    if not math.isfinite(number):
        raise KannError(f"{name}={short_repr(value)} is not a finite number; {remedy}")
    return number


def require_instance(value: Any, kind: type, name: str) -> None:
    """Raise unless the value is of this class. Its attribute ``instead``, if any, is the remedy in the error."""
    if not isinstance(value, kind):
        raise KannError(f"{name}={short_repr(value)} is no {kind.__name__}; {getattr(value, 'instead', 'pass one')}")


def require_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raise unless the value is one of several words."""
    if not isinstance(value, str) or value not in choices:
        raise KannError(f"{name}={short_repr(value)} is unknown; pass {' or '.join(map(repr, choices))}")


def require_flag(value: Any, name: str) -> None:
    """Raise unless the value is true or false; an array of several truth values is neither."""
    try:
        bool(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise KannError(f"{name}={short_repr(value)} is neither True nor False; pass one of them") from error


def require_text(value: Any, name: str) -> None:
    """Raise unless the value is text."""
    if not isinstance(value, str):
        raise KannError(f"{name}={short_repr(value)} is no text; pass a string")


def require_sequence(value: Any, name: str, *, remedy: str = "pass one entry for each sequence") -> None:
    """Raise unless the value is a sequence; a single number is none."""
    try:
        require_dense(value)
        len(value)
        iter(value)
    except TypeError as error:
        raise KannError(f"{name}={short_repr(value)} is no list; {remedy}") from error


def require_names(value: Any, count: int, name: str, *, of: str) -> tuple[str, ...]:
    """Return ``count`` different names as text; ``of`` is what they name, such as "the network reads 4 channels"."""
    remedy = f"pass a list of {count} names"
    if isinstance(value, str):
        raise KannError(f"{name}={short_repr(value)} is one text; {remedy}")
    require_sequence(value, name, remedy=remedy)
    names = tuple(str(each) for each in value)
    if len(names) != count:
        raise KannError(f"{name}= has {len(names)} names, and {of}; pass one name for each")
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise KannError(f"{name}= has {short_repr(twice)} twice; pass different names")
    return names


def entries_by_name(value: Any, name: str, *, remedy: str) -> dict[str, Any]:
    """Return the entries of a mapping whose keys are text; None has none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise KannError(f"{name}={short_repr(value)} has no entries by name; {remedy}")
    return dict(value)


def call_of_user(function: Any, argument: Any, *, what: str, on: str, remedy: str) -> Any:
    """Call a function of the user; turn any error into one line that names ``on`` what it was called."""
    try:
        return function(argument)
    except KannError:
        raise
    except Exception as error:  # it may raise anything
        reason = " ".join(str(error).split())
        raise KannError(
            f"{what} failed on {on} ({type(error).__name__}: {reason[:LONGEST_REASON]}); {remedy}"
        ) from error


def require_path(path: Any) -> None:
    """Raise unless the value is a path."""
    if not isinstance(path, str | os.PathLike):
        raise KannError(f"{short_repr(path)} is no path; pass a string or a pathlib.Path")


def file_to_write(path: Any) -> Path:
    """Return the path of a file to write; raise for a folder before anything is computed."""
    require_path(path)
    if os.path.isdir(path):
        raise KannError(f"{path} is a folder; pass the name of a file")
    return Path(path)


def require_dense(values: Any) -> None:
    """Raise for arrays whose numbers are not simply all there: masked, sparse, nested, or on torch's meta device."""
    if isinstance(values, np.ma.MaskedArray):
        raise KannError(
            "a masked array was passed, whose mask would be ignored; leave the masked rows out and pass lengths, or "
            "pass array.data to use every number"
        )
    if array_api_compat.is_torch_array(values):
        if values.is_meta:
            raise KannError("a tensor on the meta device was passed, which holds no numbers; pass one on cpu or cuda")
        if values.is_nested:
            raise KannError("a nested tensor was passed; pass the list of its parts, tensor.unbind()")
        if str(values.layout) != "torch.strided":
            raise KannError(f"a tensor of layout {values.layout} was passed; pass a dense one, tensor.to_dense()")
    elif hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise KannError(f"a sparse {type(values).__name__} was passed; pass a dense array, array.toarray()")


def array_of(values: Any) -> Array:
    """Return what is no tensor as a numpy array; refuse what numpy cannot read as one."""
    require_dense(values)
    try:
        return np.asarray(values)
    except KannError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if hasattr(values, "dtype"):  # an array of another library, which says best what is wrong
            raise
        reason = str(error).splitlines()[0]
        raise KannError(
            f"{short_repr(values)} cannot be read as an array ({reason}); pass numbers in a regular shape"
        ) from error


def require_array(values: Any, *, what: str) -> None:
    """Raise unless the values are an array, or rows that are read when sliced."""
    require_dense(values)  # first: to ask a nested tensor for its shape is an error of torch's
    if not all(hasattr(values, name) for name in ("ndim", "shape", "dtype")):
        raise KannError(f"{what} are {short_repr(values)}; pass a numpy array or a torch tensor")


def require_real(values: AnyArray, *, what: str) -> None:
    """Raise unless the values are real numbers; whole numbers and truth values are."""
    kind = _kind(values)
    if "complex" in kind:
        raise KannError(f"{what} are {kind}; pass real numbers, such as the real and imaginary parts side by side")
    if not ("float" in kind or "int" in kind or "bool" in kind):
        raise KannError(f"{what} are {kind}; pass real numbers")


def require_float(values: AnyArray, *, what: str) -> None:
    """Raise for complex and integer values."""
    require_real(values, what=what)
    kind = _kind(values)
    if "float" not in kind:
        raise KannError(f"{what} are {kind}; pass floating-point numbers, such as {what}.astype('float32')")


def _kind(values: AnyArray) -> str:
    """Return the name of the values' type, such as ``"float32"``, in whichever byte order they are stored."""
    return values.dtype.name if isinstance(values.dtype, np.dtype) else str(values.dtype).removeprefix("torch.")


def require_width(values: AnyArray, width: int, *, what: str, of: str) -> None:
    """Raise unless the last axis of the values has ``width`` entries."""
    got = values.shape[-1] if values.ndim else 0
    if got != width:
        raise KannError(f"{what} have {got} columns; {of} has {width}; pass an array of shape (..., {width})")


def require_all_finite(values: Array, *, what: str, remedy: str) -> None:
    """Raise if a numpy array holds NaN or an infinite number, and say where the first one is."""
    bad = ~np.isfinite(values)
    if bad.any():
        place = tuple(np.argwhere(bad)[0].tolist())
        raise KannError(f"{what} hold {str(values[place]).replace('nan', 'NaN')} at {place}; {remedy}")
