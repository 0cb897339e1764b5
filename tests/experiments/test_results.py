import json
import math

import numpy as np
import pytest
from kann_experiments.copy.analysis import QUANTITIES
from kann_experiments.results import Printed, Quantity, Row, columns, expected, tabulate, versions, write_json

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
    assert (fraction.seeds_that_hold, error.seeds_that_hold) == (1, 1)
    assert fraction.cells() == ("fraction", "> 80 %", "82.5 %", "75.0 % – 90.0 %", "holds in 1 of 2 seeds")
    assert error.cells() == ("error", "0.15", "0.2", "0.1 – 0.3", "holds in 1 of 2 seeds")


def test_a_row_without_a_printed_number():
    (row,) = tabulate((ERROR,), [{"error": math.inf}, {"error": 2.0}], {})
    assert row.cells() == ("error", "–", "∞", "2 – ∞", "")
    assert row.as_json()["printed"] is None
    assert columns([row]) == ("", "ours, mean", "from – to")


def test_a_row_without_a_number_for_a_seed_has_neither_mean_nor_range():
    (row,) = tabulate((ERROR,), [{"error": math.nan}, {"error": 2.0}], {})
    assert row.cells() == ("error", "–", "–", "–", "")


def verdict(values, *, baseline=(), **settings):
    printed = Printed(paper=0.8, holds="at least", **settings)
    return Row(quantity=FRACTION, values=values, printed=printed, baseline=baseline).verdict


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.9, 0.8), "holds"),
        ((0.9, 0.7), "holds in 1 of 2 seeds"),
        ((0.1, 0.7), "does not hold"),
        ((0.9, math.nan), "cannot be determined"),
    ],
)
def test_verdicts_follow_from_the_numbers(values, expected):
    assert verdict(values) == expected


def test_a_verdict_names_what_makes_it_worthless():
    assert verdict((0.9, 0.9), undetermined="no scale is given") == "cannot be determined"
    assert verdict((0.9, 0.9), baseline=(0.9, 0.85)) == "holds; so does the baseline"
    assert verdict((0.9, 0.9), baseline=(0.9, 0.7)) == "holds"


def test_a_row_is_read_back_from_json(tmp_path):
    rows = tabulate(
        (ERROR,),
        [{"error": math.inf, "copying": 1.0}, {"error": 2.0, "copying": 2.0}],
        {"error": Printed(paper=1.0, holds="at most", baseline="copying")},
    )
    write_json(tmp_path / "r.json", {"rows": {"error": rows[0].as_json()}})
    read = json.loads((tmp_path / "r.json").read_text())
    assert Row.from_json("error", read["rows"]["error"]) == rows[0]


def test_numbers_that_were_asked_for_have_a_column_of_their_own():
    printed = Printed(paper=0.97, holds="at least", source="asked")
    assert columns([Row(quantity=ERROR, values=(1.0,), printed=printed)])[1] == "asked"


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
