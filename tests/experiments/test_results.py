import json
import math

import numpy as np
import pytest
from kann_experiments.copy.analysis import QUANTITIES
from kann_experiments.results import Printed, Quantity, expected, tabulate, versions, write_json

import kann

FRACTION = Quantity(key="fraction", what="fraction", format="percent")
ERROR = Quantity(key="error", what="error")


def test_the_papers_numbers_of_the_copy_task():
    printed = expected("copy")
    assert printed["relative_error"].paper == 0.021
    assert printed["orthogonality"].paper == 0.0625
    assert printed["unit_eigenvalues"].paper == 44
    assert printed["horizon"].paper == 418
    assert printed["renn_identity"].paper == 0.11
    assert printed.keys() <= {quantity.key for quantity in QUANTITIES}


@pytest.mark.parametrize("task", ["copy", "ecg", "sentiment"])
def test_everything_printed_can_be_compared(task):
    for printed in expected(task).values():
        assert printed.holds in ("at most", "at least")
        assert math.isfinite(printed.paper)


def test_a_row_compares_the_mean_and_each_seed():
    rows = tabulate(
        (FRACTION, ERROR, Quantity(key="absent", what="absent")),
        [{"fraction": 0.9, "error": 0.1}, {"fraction": 0.75, "error": 0.3}],
        {
            "fraction": Printed(paper=0.8, holds="at least", as_printed="> 80 %"),
            "error": Printed(paper=0.15, holds="at most"),
        },
    )
    assert [row.quantity.key for row in rows] == ["fraction", "error"]
    fraction, error = rows
    assert (fraction.holds, fraction.seeds_that_hold) == (True, 1)
    assert (error.holds, error.seeds_that_hold) == (False, 1)
    assert fraction.cells() == ("fraction", "> 80 %", "82.5 %", "75.0 % – 90.0 %", "holds (1 of 2)")
    assert error.cells() == ("error", "0.15", "0.2", "0.1 – 0.3", "misses (1 of 2)")


def test_a_row_without_a_printed_number():
    (row,) = tabulate((ERROR,), [{"error": math.inf}, {"error": 2.0}], {})
    assert row.cells() == ("error", "–", "∞", "2 – ∞", "")
    assert row.holds is None
    assert row.as_json()["paper"] is None


def test_json_is_strict_and_whole(tmp_path):
    content = {"rows": {"a": np.float64(0.5)}, "curve": np.arange(3), "horizon": math.inf, "seeds": (1, 2), "no": None}
    write_json(tmp_path / "r.json", content)
    text = (tmp_path / "r.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "rows": {"a": 0.5},
        "curve": [0, 1, 2],
        "horizon": "inf",
        "seeds": [1, 2],
        "no": None,
    }
    with pytest.raises(TypeError):
        write_json(tmp_path / "r.json", {"bad": object()})
    assert (tmp_path / "r.json").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_versions_name_what_numbers_depend_on():
    assert versions()["kann"] == kann.__version__
    assert versions().keys() == {"kann", "python", "numpy", "scipy", "torch"}
