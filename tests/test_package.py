"""What importing kann costs, and that its documentation runs."""

import doctest
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import kann

HEAVY = ("torch", "matplotlib", "zarr", "sklearn", "dask", "pandas", "jinja2", "typer")


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


@pytest.mark.parametrize(("old", "new"), [("film", "kann.plots.film"), ("save_onnx", "kann.stand_ins.save_onnx")])
def test_a_name_that_moved_says_where_it_is(old, new):
    with pytest.raises(AttributeError, match=f"no attribute '{old}'; it is {new}"):
        getattr(kann, old)
    _, module, name = new.split(".")
    assert callable(getattr(getattr(kann, module), name))


MODULES = sorted(
    module.name for module in pkgutil.walk_packages(kann.__path__, "kann.") if "__main__" not in module.name
)
WITH_EXAMPLES = [name for name in MODULES if ">>> " in Path(importlib.util.find_spec(name).origin).read_text()]


def test_examples_are_found():
    assert {"kann.data.states", "kann.data.moments", "kann.fitting._fit"} <= set(WITH_EXAMPLES)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_in_the_documentation_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed
