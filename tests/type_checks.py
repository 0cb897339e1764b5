"""Types and shapes are checked once for every kind of arguments, not once for every call.

jaxtyping looks at each argument and each result of each call, which takes a tenth of a millisecond, and it compiles the
checks of an inner function anew whenever the outer one runs: without what is here that is more than half of the time of
all tests. A call whose arguments have types, shapes and dtypes that this test has seen in this function is not checked
again; one whose arguments have others is.
"""

import dataclasses
import functools
import types
from collections import defaultdict

import jaxtyping

_check_every_call = jaxtyping.jaxtyped

seen: defaultdict[types.CodeType, set] = defaultdict(set)
"""The kinds of arguments that each function has been checked with in the test that runs."""


@functools.cache
def is_array(kind: type) -> bool:
    return all(hasattr(kind, name) for name in ("__array__", "shape", "dtype"))


def kind_of(value):
    """What an annotation can tell of a value: its type; shape and dtype of an array; the first item of a sequence."""
    kind = type(value)
    if is_array(kind):
        return kind, getattr(value, "shape", None), getattr(value, "dtype", None)  # none before __init__ is through
    if kind is str:
        return value  # it may be one of several that a Literal allows
    if kind in (list, tuple) and value:
        return kind, len(value), kind_of(value[0])
    return kind


def kinds_of(arguments: tuple, options: dict):
    """The kinds of all arguments of a call; None where they cannot be told, as those of a nested tensor."""
    try:
        kinds = (*map(kind_of, arguments), *((name, kind_of(value)) for name, value in options.items()))
        hash(kinds)
    except Exception:
        return None
    return kinds


def jaxtyped(fn=None, *, typechecker=None):
    """`jaxtyping.jaxtyped`, which checks where arguments are of a new kind, and is set up at the first such call."""
    if fn is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if dataclasses.is_dataclass(fn):
        if not hasattr(fn.__init__, "__wrapped__"):  # an inherited one is checked already
            fn.__init__ = jaxtyped(fn.__init__, typechecker=typechecker)
        return fn
    if not isinstance(fn, types.FunctionType):
        return _check_every_call(fn, typechecker=typechecker)
    checked = None

    @functools.wraps(fn)
    def called(*arguments, **options):
        __tracebackhide__ = True
        nonlocal checked
        kinds, known = kinds_of(arguments, options), seen[fn.__code__]
        if jaxtyping.config.jaxtyping_disable or kinds in known:
            return fn(*arguments, **options)
        if checked is None:
            checked = _check_every_call(fn, typechecker=typechecker)
        result = checked(*arguments, **options)
        if kinds is not None:
            known.add(kinds)
        return result

    return called


def install() -> None:
    """Take the place of `jaxtyping.jaxtyped`, which the import hook applies by this name; before kann is imported."""
    jaxtyping.jaxtyped = jaxtyped
