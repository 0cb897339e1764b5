"""The film of a training in a real browser, opened from disk."""

import pytest

import kann
from tests.reporting.histories import history


@pytest.fixture
def visit(browser, tmp_path):
    """Open a film; at the end nothing may have gone wrong, and nothing may have been asked of any network."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    troubles, requests = [], []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))

    def visit(histories):
        page.goto(kann.plots.film(tmp_path / "film.html", histories).as_uri())
        page.wait_for_selector("html[data-ready=true]")
        return page

    yield visit
    page.close()
    assert troubles == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)


def shown_dots(page):
    trace = "document.getElementById('plane').data.at(-1)"
    return page.evaluate(f"{trace}.x.map((x, i) => [x, {trace}.y[i]])")


def move_to(page, place):
    page.eval_on_selector("#place", f"s => {{ s.value = {place}; s.dispatchEvent(new Event('input')); }}")
    page.wait_for_selector(f"html[data-shown='{place}']")


def test_the_slider_moves_the_eigenvalues(visit):
    page = visit(history())
    assert page.inner_text("#step") == "step 50 (6 of 6)"
    last = shown_dots(page)
    assert last[0] == [1, 0]
    assert len(last) == 3  # a pair is two dots
    move_to(page, 0)
    assert page.inner_text("#step") == "step 0 (1 of 6)"
    assert shown_dots(page)[0] == [0.5, 0]
    assert page.evaluate("document.getElementById('loss').layout.shapes[0].x0") == 0
    assert page.evaluate("document.getElementById('moduli').data.length") == 2


def test_it_plays_and_shows_several_runs_and_unknown_checkpoints(visit):
    page = visit({"one": history(), "<i>two": history(3, first=5, dead=1)})
    assert page.evaluate("document.getElementById('loss').data.map((run) => run.name)") == ["one", "&lt;i>two"]
    move_to(page, 3)  # step 15: nothing is known of the second run
    assert shown_dots(page) == []
    page.select_option("#figure", "slow")
    page.click("#play")
    page.wait_for_selector("html[data-shown='8']")
    assert page.inner_text("#play") == "Play"
