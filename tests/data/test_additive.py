"""Results are added field by field."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from kann.data.reduction import Additive


@dataclass(frozen=True, eq=False)
class Sums(Additive):
    """One field of each kind."""

    count: int
    total: np.ndarray
    groups: dict[str, Any]
    pieces: list[int]
    unknown: float | None = 1.0
    low: float = 0.0
    ADDED_BY: ClassVar = {"low": min}


def test_every_field_is_added_as_it_says():
    one = Sums(1, np.ones(2), {"a": {"x": 1}, "b": 2}, [1, 2], low=-1.0)
    other = Sums(2, np.ones(2), {"a": {"x": 10, "y": 3}}, [3, 4], unknown=None, low=2.0)
    total = one + other
    assert total.count == 3
    np.testing.assert_array_equal(total.total, [2.0, 2.0])
    assert total.groups == {"a": {"x": 11, "y": 3}, "b": 2}
    assert total.pieces == [4, 6]
    assert total.unknown is None
    assert total.low == -1.0
    assert one.groups == {"a": {"x": 1}, "b": 2}
    with pytest.raises(TypeError):
        one + 1


def test_sums_are_associative(rng):
    parts = [Sums(i, rng.integers(0, 9, 3), {str(i % 2): i}, [i]) for i in range(5)]
    left, right = (parts[0] + parts[1]) + (parts[2] + parts[3]), parts[0] + ((parts[1] + parts[2]) + parts[3])
    assert (left.groups, left.pieces, left.total.tolist()) == (right.groups, right.pieces, right.total.tolist())
