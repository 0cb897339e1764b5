"""Damaged files give what was saved, an error of one line, or (where no format could tell) something else."""

import json
import time
from collections import Counter

import numpy as np
import pytest

from kann.errors import KannError
from tests.fuzz import damage
from tests.fuzz.running import failures_told, run_cases
from tests.fuzz.worker import MEMORY, TooSlowError, outcome_of, refusal, within


def test_damaged_files_are_refused_or_read_as_they_were(tmp_path, fuzz):
    found = run_cases(tmp_path, seed=fuzz.seed, cases=fuzz.cases, processes=fuzz.processes)
    peak = max(entry["peak"] for entry in found if "peak" in entry)
    cases = [entry for entry in found if "peak" not in entry]
    print(f"--fuzz-seed={fuzz.seed}: {Counter(case['outcome'] for case in cases)}, {peak / 2**20:.0f} MB")  # noqa: T201
    assert sorted(case["case"] for case in cases) == list(range(fuzz.cases))
    told = failures_told(cases, fuzz.seed)
    assert not told, told
    assert peak < MEMORY


@pytest.mark.parametrize("function", [*damage.RAW, damage.edit_zip_header, damage.rewrite_zip, damage.edit_json])
def test_damage_is_the_same_for_the_same_seed(function):
    data = damage.write_zip([("a.npy", damage.npy(np.arange(9.0))), ("b.npy", damage.npy(np.ones(2)))])
    if function is damage.edit_json:
        data = json.dumps({"a": [1, 2, {"b": "c"}], "d": None}).encode()
    results = {seed: function(data, np.random.default_rng(seed)) for seed in range(20)}
    for seed, result in results.items():
        assert function(data, np.random.default_rng(seed)) == result
    assert function is damage.empty or len(set(results.values())) > 4


class _Reader:
    """Stands for a target whose use does what a test wants."""

    def __init__(self, use):
        self.use = use


def fails():
    raise RuntimeError("raw")


@pytest.mark.parametrize(
    ("use", "knows", "outcome"),
    [
        (lambda path: 1, None, "same"),
        (lambda path: 2, "cannot know", "differs"),
        (lambda path: 2, None, "failed"),
        (lambda path: fails(), None, "failed"),
    ],
)
def test_outcomes_are_told_apart(use, knows, outcome, tmp_path):
    expected = outcome_of(_Reader(lambda path: 1), tmp_path, "", "any")
    assert expected[0] == "differs"
    from tests.fuzz.targets import fingerprint

    assert outcome_of(_Reader(use), tmp_path, fingerprint(1), knows)[0] == outcome


def test_an_error_of_several_lines_is_a_failure():
    assert refusal(KannError("one line"))[0] == "refused"
    assert refusal(KannError("two\nlines"))[0] == "failed"


def test_a_case_that_waits_too_long_is_stopped():
    with pytest.raises(TooSlowError, match=r"took more than 0.1 s"), within(0.1):
        time.sleep(5)
    with within(5):  # in time, and no alarm comes later
        pass
    time.sleep(0.3)
