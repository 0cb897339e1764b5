"""Wrong arguments give a result or a `KannError` of one line, for every public name."""

import inspect
import io
import warnings
from collections import defaultdict
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import torch
import torch._dynamo  # torch imports it when first needed; an alarm in the middle of that would leave half of it
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

import kann
from tests.fuzz.arguments import NOT_CALLED, NOT_PASSED, Good, anything, calls
from tests.fuzz.worker import FINE, SECONDS, refusal, within

NAMES = sorted(calls(Good(Path())))
SLOW = {"effects": 20, "explain": 20, "find_fixed_points": 10, "report": 20, "report all": 20}
"""These take so many times longer than the others, and get so many times fewer cases."""

pytestmark = pytest.mark.usefixtures("untyped")


def test_every_public_name_is_called():
    called = {name.split(".")[0].split(" ")[0] for name in NAMES}
    assert set(kann.__all__) <= called | set(NOT_CALLED)
    assert not called & set(NOT_CALLED)


def test_every_argument_is_passed_by_some_call():
    passed = defaultdict(set)
    for function, arguments in calls(Good(Path())).values():
        passed[getattr(function, "__func__", function)] |= set(arguments) | {"self", "cls"}
    for function, names in passed.items():
        parameters = inspect.signature(function).parameters.items()
        named = {name for name, parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
        assert not named - names - set(NOT_PASSED), function


@pytest.mark.parametrize("name", NAMES)
def test_good_arguments_are_taken(name, tmp_path):
    function, arguments = calls(Good(tmp_path))[name]
    if name.endswith((".load", ".open")):
        with pytest.raises(FileNotFoundError):
            function(**arguments)
    else:
        function(**arguments)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_are_refused_in_one_line(name, tmp_path, fuzz, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a wrong path may be a good name for a file
    count = max(3, fuzz.arguments // len(NAMES) // SLOW.get(name, 1))

    @seeded(fuzz.seed)
    @settings(
        max_examples=count,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=True,
    )
    @given(st.data())
    def call(data):
        function, arguments = calls(Good(tmp_path))[name]
        wrong = data.draw(
            st.lists(st.sampled_from(sorted(arguments)), min_size=1, max_size=2, unique=True), label="wrong"
        )
        arguments |= {key: data.draw(anything(), label=key) for key in wrong}
        result_or_refusal(function, arguments)

    call()


def result_or_refusal(function, arguments):
    """Call; anything but a result or an error of one line is raised, and so is a call that takes too long."""
    with warnings.catch_warnings(), within(SECONDS), redirect_stderr(io.StringIO()), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            function(**arguments)
        except FINE as error:
            outcome, told = refusal(error)
            assert outcome == "refused", told
