"""Types and shapes are enforced in tests, for every kind of arguments and for results."""

from dataclasses import dataclass

import numpy as np
import pytest
from beartype import beartype
from jaxtyping import TypeCheckError

from kann.data.reduction import sequence_ranges
from kann.typing import Array, Float
from tests import type_checks

checked = type_checks.jaxtyped(typechecker=beartype)


@checked
def rows_summed(x: Float[Array, "n d"], weights: Float[Array, " d"], *, how: str = "plain") -> Float[Array, " n"]:
    if how == "wrong":
        return x.sum(axis=1)[:-1]
    return x @ weights


def test_kann_itself_is_checked():
    with pytest.raises(TypeCheckError, match=r"parameters of kann\.data\.reduction\.sequence_ranges"):
        sequence_ranges(np.ones((2, 2), dtype=int), 3)


@pytest.mark.parametrize(
    ("x", "weights"),
    [
        (np.ones((4, 3)), np.ones(2)),
        (np.ones(4), np.ones(3)),
        (np.ones((4, 3), dtype=int), np.ones(3)),
        ([[1.0, 2.0, 3.0]], np.ones(3)),
    ],
)
def test_arguments_of_another_kind_are_refused_also_after_good_ones(x, weights):
    for _ in range(3):
        assert rows_summed(np.ones((4, 3)), np.ones(3)).tolist() == [3.0] * 4
    for _ in range(2):
        with pytest.raises(TypeCheckError, match=r"whilst checking the parameters of .*rows_summed"):
            rows_summed(x, weights)


def test_results_are_checked():
    assert len(rows_summed(np.ones((4, 3)), np.ones(3))) == 4
    with pytest.raises(TypeCheckError, match=r"whilst checking the return value of .*rows_summed"):
        rows_summed(np.ones((4, 3)), np.ones(3), how="wrong")


def test_fields_of_dataclasses_are_checked():
    @checked
    @dataclass
    class Line:
        slope: Float[Array, " d"]
        names: tuple[str, ...]

    assert Line(slope=np.ones(2), names=("a",)).slope.shape == (2,)
    with pytest.raises(TypeCheckError, match=r"parameters of .*__init__"):
        Line(slope=np.ones((2, 1)), names=("a",))
    with pytest.raises(TypeCheckError, match=r"parameters of .*__init__"):
        Line(slope=np.ones(2), names=(1,))


def test_what_was_seen_is_not_checked_again_and_inner_functions_are_set_up_once():
    set_up = []

    def counting(stub):
        set_up.append(stub)
        return stub

    def outer(value):
        @type_checks.jaxtyped(typechecker=counting)
        def inner(x):
            return x

        return inner(value)

    for _ in range(3):
        outer(np.ones(2))
    once = len(set_up)
    assert once  # one function for the parameters, one for the result
    outer(np.ones(3))
    assert len(set_up) == 2 * once
    type_checks.seen.clear()  # as before the next test
    outer(np.ones(3))
    assert len(set_up) == 3 * once


@pytest.mark.parametrize("shape", [RuntimeError("told to nobody"), [3]])
def test_arrays_whose_kind_cannot_be_told_are_checked_at_every_call(shape):
    class Odd:
        dtype = float
        __array__ = None

        @property
        def shape(self):
            if isinstance(shape, Exception):
                raise shape
            return shape

    calls = []

    @type_checks.jaxtyped(typechecker=lambda stub: lambda *arguments, **options: calls.append(arguments))
    def taken(x):
        return x

    for _ in range(3):
        taken(Odd())
    assert len(calls) >= 3
