"""The report in a real browser, opened from disk."""

import pytest

from tests.browser.conftest import READY, wait_until
from tests.reporting.html_pages import NASTY


def shading(page):
    return page.eval_on_selector_all("#text span", "words => words.map(word => word.style.background)")


def selected(page):
    return page.get_attribute("#table tbody tr[aria-selected=true]", "data-mode")


def test_clicking_an_eigenvalue_selects_its_mode_everywhere(visit):
    page = visit("text")
    before, chosen = shading(page), selected(page)
    # The dots of the last trace are the eigenvalues: click one that is not selected and not covered by another.
    dots = page.locator("#plane .scatterlayer .trace").last.locator(".points path")
    numbers = page.evaluate("document.getElementById('plane').data.at(-1).customdata")
    place = next(i for i, number in enumerate(numbers) if str(number) != chosen)
    dots.nth(place).scroll_into_view_if_needed()
    box = dots.nth(place).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#plane .hovertext")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector(f"#table tr[data-mode='{numbers[place]}'][aria-selected=true]")
    assert shading(page) != before
    assert page.input_value("#mode-picker") == str(numbers[place])


def test_rows_are_selected_by_click_and_by_keys(visit):
    page = visit("text")
    page.click("#table tbody tr[data-mode='2']")
    assert selected(page) == "2"
    page.keyboard.press("Tab")
    page.focus("#table tbody tr[aria-selected=true]")
    page.keyboard.press("ArrowDown")
    assert selected(page) == "3"
    page.select_option("#mode-picker", "2")
    assert selected(page) == "2"


def test_the_table_sorts(visit):
    page = visit("text")
    modes = "rows => rows.map(row => row.dataset.mode)"
    first = page.eval_on_selector_all("#table tbody tr", modes)
    page.click("text=Importance")
    by_importance = page.eval_on_selector_all("#table tbody tr", modes)
    headings = page.eval_on_selector_all("#table thead th", "cells => cells.map(cell => cell.textContent)")
    column = next(i for i, heading in enumerate(headings) if heading.startswith("Importance"))
    numbers = f"rows => rows.map(row => Number(row.cells[{column}].textContent))"
    values = page.eval_on_selector_all("#table tbody tr", numbers)
    assert values == sorted(values, reverse=True)
    assert by_importance != first
    page.click("#table thead button:text-is('Mode')")
    assert page.eval_on_selector_all("#table tbody tr", modes) == first
    page.click("#table thead button:text-is('Mode ↑')")
    assert page.eval_on_selector_all("#table tbody tr", modes) == first[::-1]


def test_search_and_picker(visit):
    page = visit("text")
    assert page.locator("#picker option").count() == 6
    page.fill("#search", "needle")
    assert page.locator("#picker option").count() == 1
    assert page.inner_text("#text").startswith("needle")
    page.fill("#search", "nowhere")
    assert page.locator("#picker option").count() == 0
    assert "No sequence matches" in page.inner_text("#sequence-note")
    page.fill("#search", "")
    assert "No sequence matches" not in page.inner_text("#sequence-note")
    page.select_option("#picker", "3")
    assert "33 steps" in page.inner_text("#sequence-note")


def test_views_differ(visit):
    page = visit("text")
    seen = []
    for view in ("magnitude", "contribution", "change"):
        page.check(f"input[value={view}]")
        seen.append(tuple(shading(page)))
    assert len(set(seen)) == 3
    title = page.get_attribute("#text span:nth-child(3)", "title")
    assert title.startswith("word2: ")
    float(title.split(": ")[1])


def test_a_token_that_looks_like_markup_is_text(visit):
    page = visit("text")
    page.select_option("#picker", "0")
    assert page.inner_text("#text span:nth-child(2)") == NASTY
    assert page.locator("img, svg a").count() == 0
    assert NASTY in page.text_content("#embedding .legend")
    assert NASTY in page.text_content("#errors .legend")
    assert page.inner_text("h1") == f"Text {NASTY}"


def test_dark_and_light(visit):
    page = visit("text")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.click("#theme")
    assert page.evaluate(colour) != light
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    page.click("#theme")
    assert page.evaluate(colour) == light


@pytest.mark.parametrize(
    ("button", "rows"),
    [("#modes-csv", "#table tbody tr"), ("#sequence-csv", "#text span"), ("#fits-csv", "#fits tbody tr")],
)
def test_tables_are_saved(visit, button, rows):
    page = visit("text")
    with page.expect_download() as waiting:
        page.click(button)
    lines = waiting.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + page.locator(rows).count()


@pytest.mark.parametrize(("kind", "begins"), [("SVG", b"<svg"), ("PNG", b"\x89PNG")])
def test_figures_are_saved(visit, kind, begins):
    page = visit("text")
    page.hover("#decay")
    with page.expect_download() as waiting:
        page.click(f"#decay [data-title='Save as {kind}']")
    assert waiting.value.path().read_bytes().startswith(begins)


def test_signals_are_drawn_with_the_selected_modes(visit):
    page = visit("signal")
    names = "document.getElementById('over-time').data.map(trace => trace.name)"
    assert page.evaluate(names)[0] == "signal"
    assert page.is_hidden("#text")
    page.check("#table tbody tr[data-mode='2'] input")
    page.click("#table tbody tr[data-mode='1']")
    page.wait_for_selector("#over-time .legend :text('mode 1')")  # charts are drawn soon, not at once
    assert page.evaluate(names) == ["signal", "mode 1", "mode 2"]


def test_without_a_readout_there_is_one_view_and_no_choice_of_it(visit):
    assert visit("signal").is_hidden("#views")
    assert visit("text").is_visible("#views")


def test_a_report_of_very_many_sequences(visit):
    page = visit("many")
    assert page.locator("#picker option").count() == 2001
    assert "more: search for one by its number" in page.text_content("#picker option:last-child")
    page.fill("#search", "129999")
    wait_until(page, "document.querySelectorAll('#picker option').length === 1")
    assert page.inner_text("#text") == "good film"
    assert len(set(shading(page))) > 1


def test_a_report_of_a_very_long_text(visit):
    page = visit("long")
    assert page.locator("#text span").count() == 5000
    page.fill("#from", "149990")
    page.press("#from", "Tab")
    wait_until(page, "document.querySelectorAll('#text span').length === 10")
    assert page.inner_text("#text").startswith("w149990")
    with page.expect_download() as waiting:
        page.click("#sequence-csv")
    assert len(waiting.value.path().read_text(encoding="utf-8").splitlines()) == 150_001


def test_kinds_of_points_are_text(visit):
    page = visit("odd")
    legend = page.text_content("#embedding .legend")
    assert f"{NASTY} points" in legend
    assert "<a href='https://example.org'>here</a> points" in legend
    assert page.locator("#embedding .legend a").count() == 0


def test_an_infinite_residual_is_doubtful_and_a_reverse_direction_says_so(visit):
    page = visit("odd")
    residuals = page.eval_on_selector_all("#table tbody tr", "rows => rows.map(row => row.cells[6].textContent)")
    doubtful = page.eval_on_selector_all("#table tbody tr", "rows => rows.map(row => row.className === 'doubtful')")
    assert "∞" in residuals
    assert all(grey for text, grey in zip(residuals, doubtful, strict=True) if text == "∞")
    assert "read from the end" in page.inner_text("#sequence-note")
    assert page.inner_text("#text").startswith("word19 word18")


def test_no_button_sends_a_chart_anywhere(visit):
    page = visit("text")
    titles = page.eval_on_selector_all(".modebar-btn", "all => all.map(button => button.dataset.title)")
    assert set(titles) == {"Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes", "Save as SVG", "Save as PNG"}


@pytest.mark.parametrize("name", ["text", "explained"])
def test_a_narrow_screen_does_not_scroll_sideways(browser, file_of, name):
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(file_of(name).as_uri())
    page.wait_for_selector(READY)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.close()


def test_the_page_draws_what_held_out_sequences_say(visit):
    page = visit("text")
    assert page.locator("#loading").is_hidden()
    assert page.evaluate("document.getElementById('horizons').data.map(trace => trace.name)") == [
        "this operator",
        "copying the state",
        "predicting the mean",
    ]
    assert page.evaluate("document.getElementById('pseudospectrum').data") is None  # on demand
    page.click("#more-spectrum summary")
    wait_until(page, "document.getElementById('pseudospectrum').data?.[0].text.length > 100")
    names = page.evaluate("document.getElementById('plane').data.map(trace => trace.name)")
    assert {"shuffled states", "95 % interval", "trusted"} <= set(names)
    head = page.eval_on_selector_all("#table thead th", "cells => cells.map(cell => cell.textContent)")
    row = page.eval_on_selector_all("#table tbody tr[data-mode='0'] td", "cells => cells.map(cell => cell.textContent)")
    cells = dict(zip(head, row, strict=True))
    assert cells["Trusted"] == "yes"
    assert "held-out sequences" in cells["Why"]


def test_a_wide_operator_of_which_some_modes_are_judged(visit):
    page = visit("wide")
    page.click("#more-spectrum summary")
    head = page.eval_on_selector_all("#table thead th", "cells => cells.map(cell => cell.textContent)")
    rows = page.eval_on_selector_all(
        "#table tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    assert sum(own["Trusted"] == "yes" for own in cells) == 3
    others = [own for own in cells if "even where it was fitted" in own["Why"]]
    interval = next(name for name in head if "|λ|" in name and "%" in name)
    assert others
    assert all(own[interval] == "–" for own in others)


def test_where_nothing_was_held_out_nothing_is_said_to_be_trusted(visit):
    page = visit("single")
    assert page.locator("#horizons").count() == 0
    assert "not tested" in page.inner_text("#trust-table")
    assert page.locator("#modes").count() == 0
    assert "Trusted" not in page.inner_text("#table thead")
    assert "fitted data" in page.text_content("#plane")
