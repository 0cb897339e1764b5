import base64
import gzip

import numpy as np
import pytest

from kann._format import finite_or_none
from kann.reporting.offline import pack


@pytest.mark.parametrize(("bits", "kind"), [(8, np.int8), (12, np.int16), (16, np.int16)])
def test_packed_numbers_are_within_half_a_step(rng, bits, kind):
    values = rng.normal(size=(50, 3)) * np.array([1.0, 1e-6, 0.0])
    data, known = pack(values, bits=bits)
    numbers = np.frombuffer(gzip.decompress(base64.b64decode(data)), dtype=kind).reshape(3, 50).T
    assert known["bits"] == bits
    assert (np.abs(numbers * known["scale"] - values) <= np.array(known["scale"]) / 2 * 1.001).all()


def test_what_json_cannot_say_is_none():
    assert [finite_or_none(value) for value in (1.5, np.inf, -np.inf, np.nan)] == [1.5, None, None, None]
