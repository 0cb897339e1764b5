"""The film of a training: what it holds, and what is refused."""

import pytest

import kann
from kann.reporting.plots import film_content
from tests.reporting.histories import history

MANY = {"one": history(), "<two>": history(3, first=5, dead=1)}


def test_a_page_holds_all_runs_and_reaches_no_network(tmp_path):
    path = kann.plots.film(tmp_path / "film.html", MANY, title="Of <b>two</b>", about="Some & more")
    text = path.read_text(encoding="utf-8")
    assert "Of &lt;b&gt;two&lt;/b&gt;" in text
    assert "Some &amp; more" in text
    assert "default-src &#39;none&#39;" in text
    content = film_content(MANY)
    assert content["steps"] == [0, 5, 10, 15, 20, 25, 30, 40, 50]
    assert [len(run["modes"]) for run in content["runs"]] == [6, 3]
    assert content["runs"][1]["modes"][1] == []
    assert content["runs"][1]["loss"][1] is None
    assert content["runs"][0]["figures"]["horizon"] == [None] * 6


REFUSED = {
    "empty": (
        lambda p: kann.plots.film(p / "f.html", kann.live.History()),
        "the history is empty, so there is nothing to show",
    ),
    "no runs": (lambda p: kann.plots.film(p / "f.html", {}), "holds no history"),
    "other": (lambda p: kann.plots.film(p / "f.html", {"a": 3}), "history=3 is no History"),
    "ending": (lambda p: kann.plots.film(p / "f.gif", history()), "unknown ending; pass a name that ends in .html"),
    "folder": (lambda p: kann.plots.film(p, history()), "is a folder"),
    "title": (lambda p: kann.plots.film(p / "f.html", history(), title=3), "title=3 is no text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shown_is_refused(case, tmp_path, untyped):
    call, text = REFUSED[case]
    with pytest.raises(kann.KannError, match=text):
        call(tmp_path)
