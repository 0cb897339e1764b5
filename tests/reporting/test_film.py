"""The film of a training: what it holds, and what is refused."""

import numpy as np
import pytest
from matplotlib.animation import FFMpegWriter
from PIL import Image

import kann
from kann.reporting.plots import checkpoint_at, film_content
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


def test_a_run_is_shown_as_it_was_last():
    assert checkpoint_at(MANY["<two>"], 4) is None
    assert checkpoint_at(MANY["<two>"], 14).step == 5
    assert checkpoint_at(MANY["<two>"], 99).step == 25


def test_an_animation_has_a_picture_for_each_checkpoint(tmp_path):
    path = kann.plots.film(tmp_path / "film.gif", history(2))
    with Image.open(path) as picture:
        assert picture.n_frames == 2
        picture.seek(0)
        first = np.asarray(picture.convert("L"))
        picture.seek(1)
        assert (np.asarray(picture.convert("L")) != first).any()
    assert [each.name for each in tmp_path.iterdir()] == ["film.gif"]


REFUSED = {
    "empty": (
        lambda p: kann.plots.film(p / "f.html", kann.live.History()),
        "the history is empty, so there is nothing to show",
    ),
    "no runs": (lambda p: kann.plots.film(p / "f.html", {}), "holds no history"),
    "other": (lambda p: kann.plots.film(p / "f.html", {"a": 3}), "history=3 is no History"),
    "ending": (lambda p: kann.plots.film(p / "f.png", history()), "unknown ending; pass a name that ends in .html"),
    "folder": (lambda p: kann.plots.film(p, history()), "is a folder"),
    "title": (lambda p: kann.plots.film(p / "f.html", history(), title=3), "title=3 is no text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shown_is_refused(case, tmp_path, untyped):
    call, text = REFUSED[case]
    with pytest.raises(kann.KannError, match=text):
        call(tmp_path)


def test_mp4_needs_ffmpeg(tmp_path, monkeypatch):
    monkeypatch.setattr(FFMpegWriter, "isAvailable", classmethod(lambda cls: False))
    with pytest.raises(kann.KannError, match=r"needs ffmpeg, which is not installed; pass a name that ends in \.gif"):
        kann.plots.film(tmp_path / "film.mp4", history())
