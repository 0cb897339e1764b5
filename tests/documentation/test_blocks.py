"""Every Python block of README and the manual runs, or says why not and is compiled with its names checked.

Blocks of one page run one after the other with the names of those before, in an empty folder.
"""

import doctest
import warnings

import pytest

import kann
from tests.documentation import blocks
from tests.documentation.yours import names_of_reader

ALONE = ("docs/start.md",)
"""Pages whose blocks define everything that they use."""

WITH_BLOCKS = [page for page in blocks.PAGES if blocks.python_blocks(page)]
WITH_SESSIONS = [page for page in blocks.PAGES if any(block.is_session for block in blocks.blocks_of(page))]


def name_of(page):
    return str(page.relative_to(blocks.ROOT))


@pytest.fixture
def names(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if request.param in ALONE:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kann.errors.KannWarning)
        return names_of_reader(tmp_path)


@pytest.mark.parametrize(("page", "names"), [(page, name_of(page)) for page in WITH_BLOCKS], indirect=["names"])
def test_the_blocks_of_a_page_run(page, names):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kann.errors.KannWarning)  # the data are few on purpose
        for block in blocks.python_blocks(page):
            tree = block.tree()
            unknown = blocks.unknown_names(tree, set(names) | block.names_of_reader)
            assert not unknown, f"{block.where} uses {sorted(unknown)}, which nobody has defined"
            assert not blocks.wrong_names_of_kann(tree), block.where
            if block.runs:
                exec(compile(tree, block.where, "exec"), names)  # noqa: S102
            else:
                names |= dict.fromkeys(blocks.defined_names(tree) - set(names))


@pytest.mark.parametrize("page", WITH_SESSIONS, ids=name_of)
def test_the_sessions_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failed


def test_there_are_blocks_to_run():
    runs = [block.runs for page in WITH_BLOCKS for block in blocks.python_blocks(page)]
    assert sum(runs) > 20
    assert sum(runs) > 2 * (len(runs) - sum(runs)), "most blocks should run"


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("kann.fti(states)", ["kann.fti"]),
        ("kann.fit(states, rnak=3)", ["kann.fit(..., rnak=)"]),
        ("kann.plots.draw_all()", ["kann.plots.draw_all"]),
        ("from kann.plots import nothing", ["kann.plots.nothing"]),
        ("kann.reporting.write('x.html')", ["kann.reporting.write", "kann.reporting"]),
        ("kann.fit(states, rank=3).modes[0].horizon()", []),
    ],
)
def test_wrong_names_are_found(code, wrong):
    if code.startswith("from kann.plots"):
        code, wrong = code.replace("kann.plots", "kann.zoo"), ["kann.zoo.nothing"]
    assert blocks.wrong_names_of_kann(blocks.ast.parse(code)) == wrong


def test_undefined_names_are_found():
    tree = blocks.ast.parse("a = b + len(c)\ndef f(x, *, y=0):\n    return x + y + z\nimport d.e\nd.e")
    assert blocks.unknown_names(tree, {"c"}) == {"b", "z"}


def test_a_block_that_does_not_run_says_why():
    block = blocks.Block(page=blocks.ROOT / "README.md", line=1, language="python", code="# Not run: needs a GPU\n")
    assert not block.runs
    assert blocks.Block(page=block.page, line=1, language="python", code="# Not run:\n").runs
