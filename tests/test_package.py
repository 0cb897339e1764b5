"""What importing kann costs, and that its documentation runs."""

import doctest
import importlib
import subprocess
import sys

import pytest

import kann

HEAVY = ("torch", "matplotlib", "zarr", "sklearn", "dask", "pandas", "plotly", "typer")


def test_importing_kann_pulls_in_none_of_the_heavy_packages():
    code = f"import sys, kann; print([name for name in {HEAVY} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_kann_works_without_jaxtyping():
    code = (
        "import sys; sys.modules['jaxtyping'] = None; import numpy, kann;"
        "print(kann.fit(numpy.random.default_rng(0).normal(size=(2, 9, 3))).rank)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "3"


def test_every_public_name_exists():
    assert sorted(kann.__all__) == list(kann.__all__)
    for name in kann.__all__:
        assert getattr(kann, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fti'"):
        kann.fti  # noqa: B018


@pytest.mark.parametrize("name", ["data.states", "data.moments", "fitting.fit"])
def test_the_examples_in_the_documentation_run(name):
    module = importlib.import_module(f"kann.{name}")
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
