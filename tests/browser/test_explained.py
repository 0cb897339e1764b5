"""The parts of the page that say what a network learned, in a real browser."""

import re

import numpy as np
import pytest

from tests.browser.conftest import READY, UNFOLD, wait_until
from tests.reporting.html_pages import NASTY, content_of

TRACES = "id => document.getElementById(id).data.map(trace => trace.name)"


def test_the_sentences_come_first_and_the_rest_is_folded(browser, file_of):
    page = browser.new_page()
    page.goto(file_of("explained").as_uri())
    page.wait_for_selector(READY)
    assert page.eval_on_selector_all(".quotes li", "all => all.map(each => each.textContent)") == [
        "One mode decides.",
        f"It goes up on {NASTY}.",
    ]
    assert page.inner_text(".verdict") == "Found one mode keeps 98\N{NO-BREAK SPACE}%"
    assert page.inner_text(".line").startswith("layer 'rnn', 5 units")
    sections = page.eval_on_selector_all("main > section", "all => all.map(each => each.id)")
    assert sections == ["overview", "effects", "memory", "modes", "table-0", "sequences"]
    folded = page.eval_on_selector_all("#details > section", "all => all.map(each => each.id)")
    assert folded == ["more", "table-1", "figures", "spectrum", "states", "trust"]
    assert page.is_hidden("#more li")
    drawn = "all => all.filter(each => each.data).map(each => each.id)"
    assert page.eval_on_selector_all(".chart", drawn) == ["curve", "memory-curve", "table-0-chart", "over-time"]
    page.click("#details > summary")
    wait_until(page, "document.getElementById('errors').data?.length > 1")
    assert page.inner_text("#more li >> nth=2") == "Rank 5 was chosen."
    assert page.evaluate("document.getElementById('pseudospectrum').data") is None  # it has a fold of its own
    page.close()


def test_a_link_to_the_details_opens_them(browser, file_of):
    page = browser.new_page()
    page.goto(file_of("explained").as_uri())
    page.wait_for_selector(READY)
    page.click("nav a[href='#details']")
    wait_until(page, "document.getElementById('details').open")
    page.close()


def test_the_curve_shows_each_method_kept(visit):
    page = visit("explained")
    assert page.evaluate(TRACES, "curve") == ["modes", "components", "readout", "random"]
    assert page.evaluate("document.getElementById('curve').data[0].y") == [0.7, 0.98, 0.98]
    errors = page.evaluate("document.getElementById('curve').data[0].error_y.array")
    assert all(0 < error < 0.2 for error in errors)
    assert page.evaluate("document.getElementById('curve').layout.xaxis.ticktext") == ["1", "2", "4"]
    assert page.inner_text("#effects-table tbody tr:first-child td:nth-child(4)") == "98.0\N{NO-BREAK SPACE}%"
    assert page.locator("#effects-table tbody tr").count() == 8


def test_what_is_left_of_an_input_is_drawn_next_to_an_untrained_copy(visit):
    page = visit("explained")
    curves = "document.getElementById('memory-curve').data"
    assert page.evaluate(f"{curves}.map(each => [each.name, each.visible])") == [
        ["outputs", True],
        ["states", True],
        ["outputs, untrained", True],
        ["states, untrained", True],
        ["outputs, left", "legendonly"],
    ]
    assert page.evaluate(f"{curves}[0].y") == pytest.approx([1.0, 0.5, 0.25])
    assert "outputs 1 step = 500 ms" in page.inner_text("#memory figcaption")
    assert page.locator("#memory-table tbody tr").count() == 3


def test_tables_have_charts_of_their_figures(visit):
    page = visit("explained")
    (points,) = page.evaluate("document.getElementById('table-0-chart').data")
    assert points["text"] == ["good", NASTY[:17].replace("<", "&lt;") + "…", ""]
    assert points["y"] == [0.5, -0.5, 0.0]
    assert page.inner_text("#table-0 tbody tr:nth-child(2) th") == NASTY
    bars = page.evaluate("document.getElementById('table-1-chart').data")
    assert [(each["type"], each["name"], each["y"]) for each in bars] == [("bar", "skipped", [0.1, 0.6])]
    assert page.evaluate("document.getElementById('table-1-chart').layout.shapes[0].label.text") == "untouched"


def test_a_point_far_out_is_marked_at_the_edge_of_the_curve(visit):
    page = visit("far")
    curve = "document.getElementById('curve')"
    low, high = page.evaluate(f"{curve}.layout.yaxis.range")
    assert -1 < low < high < 2
    drawn = page.evaluate(f"{curve}.data.find(trace => trace.name === 'components')")
    assert low < drawn["y"][1] < low + 0.1 * (high - low)
    assert drawn["marker"]["symbol"] == ["circle", "triangle-down", "circle"]
    assert drawn["error_y"]["arrayminus"][1] == 0
    assert "-6" in drawn["customdata"][1]
    assert "Triangles at the edge lie outside the chart" in page.inner_text("#curve-caption")
    assert "Triangles" not in visit("explained").inner_text("#curve-caption")


def test_the_live_test_is_saved(visit):
    page = visit("explained")
    with page.expect_download() as waiting:
        page.click("#effects-csv")
    lines = waiting.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0] == "coordinates,method,count,mean,low,high"
    assert len(lines) == 1 + 2 * 4 * 3


def test_a_card_says_how_long_a_mode_remembers_and_what_it_does(visit, file_of):
    page = visit("explained")
    _, content, _ = content_of(file_of("explained"))
    assert content["matter"] == [2, 0]
    number = content["cards"][0]["number"]
    card = page.locator(f"#card-{number}")
    text = card.text_content()
    modulus = content["modes"][number]["modulus"]
    steps = np.log(0.5) / np.log(modulus)
    assert f"{steps:.2g} steps" in text
    assert f"{500 * steps:.3g} ms" in text
    assert "70.0\N{NO-BREAK SPACE}%" in text
    assert "60.0\N{NO-BREAK SPACE}%" in text
    bars = card.locator(".bars tr").count()
    assert bars == sum(len(content["cards"][0]["movers"][side]["bars"]) for side in ("up", "down")) > 0
    assert card.locator("svg polyline").count() >= 1


def test_modes_that_are_not_trusted_have_no_card(visit, file_of):
    _, content, _ = content_of(file_of("explained"))
    page = visit("explained")
    assert page.locator(".card").count() == len(content["matter"]) == 2
    assert all(card["trusted"] for card in content["cards"])
    assert page.locator("#table tbody tr").count() == len(content["modes"])


def test_an_example_leads_to_its_sequence(visit):
    page = visit("explained")
    button = page.locator(".card:visible .example .goto").last
    sequence, number = button.get_attribute("data-sequence"), button.get_attribute("data-mode")
    page.select_option("#picker", "0" if sequence != "0" else "1")
    button.click()
    assert page.input_value("#picker") == sequence
    assert page.input_value("#mode-picker") == number
    word = page.locator(".card:visible .example mark").last.text_content()
    assert word in page.inner_text("#text")


def test_the_mode_that_decides_most_is_preselected(browser, file_of):
    page = browser.new_page()
    page.goto(file_of("explained").as_uri())
    page.wait_for_selector(READY)
    assert page.input_value("#mode-picker") == "2"
    page.close()


def test_every_channel_has_an_axis_of_its_own(visit):
    page = visit("channels")
    layout = "document.getElementById('over-time').layout"
    titles = page.evaluate(f"Object.keys({layout}).filter(k => k.startsWith('yaxis')).map(k => {layout}[k].title.text)")
    assert titles[:3] == ["input 0", "input 1", "input 2"]
    names = page.evaluate(TRACES, "over-time")
    assert names.count("signal") == 3


def test_a_network_that_decides_at_every_step_is_shown_with_its_labels(visit):
    page = visit("channels")
    traces = "name => document.getElementById('over-time').data.find(trace => trace.name === name).y"
    assert page.evaluate(traces, "true class") == page.evaluate(traces, "class decided for")
    assert {"output: left", "output: middle", "output: right"} <= set(page.evaluate(TRACES, "over-time"))
    assert "label: " in page.inner_text("#sequence-note")


def test_any_output_can_be_chosen(visit):
    page = visit("channels")
    options = page.eval_on_selector_all("#output-picker option", "all => all.map(each => each.textContent)")
    assert options == ["the class decided for", "left", "middle", "right"]
    seen = []
    for option in ("0", "1"):
        page.select_option("#output-picker", option)
        assert f"“{options[int(option) + 1]}”" in page.inner_text("#over-time-caption")
        page.wait_for_timeout(300)
        seen.append(page.evaluate("document.getElementById('over-time').data.find(t => t.name.startsWith('mode')).y"))
    assert seen[0] != seen[1]


def test_stable_points_and_saddles_are_told_apart(visit):
    page = visit("channels")
    assert page.evaluate(TRACES, "embedding")[-4:] == ["stable points", "saddles", "unstable points", "slow points"]
    symbols = page.evaluate("document.getElementById('embedding').data.slice(-4).map(trace => trace.marker.symbol)")
    assert len(set(symbols)) == 4


def test_inputs_push_modes_with_the_signal_as_example(visit):
    page = visit("channels")
    assert page.locator(".card .bars th:text-matches('^input [012]$')").count() > 0
    assert page.locator(".card .example svg .here").count() > 0


def test_several_labels_are_named(visit):
    page = visit("labels")
    assert re.search(r"label: high · prediction: (none|high|loud|high, loud) ·", page.inner_text("#sequence-note"))
    assert page.eval_on_selector_all("#output-picker option", "all => all.map(each => each.textContent)") == [
        "high",
        "loud",
    ]
    assert "Answers that stay the network's" in page.inner_text("#effects")
    assert re.search("(high|loud): (yes|no)", page.text_content("#modes .key"))


def test_numbers_are_written_as_numbers(visit):
    page = visit("values")
    assert "label: 0.5, −1.25 · prediction: " in page.inner_text("#sequence-note")
    assert "R² with the network's own outputs" in page.inner_text("#effects")
    assert "R² of the outputs" in page.inner_text("#trust-table")
    assert "Decisions kept" not in page.inner_text("#trust")
    assert "above its median" in page.text_content("#modes .key")


def test_depth_is_called_depth(visit):
    page = visit("depth")
    assert page.evaluate("document.getElementById('over-time').layout.xaxis.title.text") == "layer"
    assert page.evaluate("document.getElementById('horizons').layout.xaxis.title.text") == "layers ahead"
    assert "Error of one layer, held out" in page.inner_text("#trust-table")
    assert "layers" in page.inner_text(".card .figures")
    assert "Pushed up at layers" in page.inner_text(".card")
    assert page.locator(".card .bars th:text-matches('^\\\\d+')").count() > 0
    words = page.inner_text("main")
    assert not re.search(r"\bsteps?\b", words.replace("one step misses", ""))


def test_which_layers_are_linear_is_a_chart_and_a_table(visit, file_of):
    page = visit("layers")
    assert page.locator("main > #layers").count() == 1  # not folded
    _, content, _ = content_of(file_of("layers"))
    layers = content["layers"]["layers"]
    assert page.evaluate(TRACES, "layer-errors") == ["copying the state", "one operator for all", "a map of its own"]
    drawn = page.evaluate("document.getElementById('layer-errors').data.map(trace => trace.y)")
    assert drawn == [[layer[name][0] for layer in layers] for name in ("identity", "one", "each")]
    bars = page.evaluate("document.getElementById('layer-errors').data[2].error_y.arrayminus")
    assert bars == pytest.approx([layer["each"][0] - layer["each"][1] for layer in layers])
    assert page.locator("#layers-table tbody tr").count() == 4
    assert page.inner_text("#layers-table tbody tr:nth-child(3) td:nth-child(2)") == NASTY
    with page.expect_download() as waiting:
        page.click("#layers-csv")
    lines = waiting.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("layer,name,identity,identity_low,identity_high,one,")
    assert len(lines) == 5
    page.emulate_media(media="print")
    assert page.is_hidden("#layers-csv")
    assert page.is_visible("#layers-table")
    page.emulate_media(media="screen")


def test_layers_are_whole_and_no_more_than_the_network_has(visit):
    page = visit("layers")
    for chart in ("layer-errors", "decay", "errors", "over-time"):
        axis = page.evaluate("id => document.getElementById(id)._fullLayout.xaxis", chart)
        assert axis["dtick"] == 1, chart
    reach = page.evaluate("Math.max(...document.getElementById('decay').data.flatMap(trace => trace.x))")
    assert reach == 4
    assert page.inner_text("#sequence-note") == "4 layers."
    for chart in page.query_selector_all(".js-plotly-plot"):
        assert chart.evaluate(LABELS_INSIDE), chart.get_attribute("id")


LABELS_INSIDE = """chart => [...chart.querySelectorAll('.ytick text, .ytitle')].every(
    each => each.getBoundingClientRect().left >= chart.getBoundingClientRect().left - 1)"""

APART = """chart => {
    const [bar, legend, plot] = ['.modebar', '.legend .bg', '.nsewdrag'].map(
        (each) => chart.querySelector(each).getBoundingClientRect());
    return legend.top >= bar.bottom - 1 && legend.bottom <= plot.top + 6; }"""


@pytest.mark.parametrize("name", ["layers", "explained", "channels"])
def test_legends_lie_between_the_toolbar_and_the_chart(visit, name):
    page = visit(name)
    charts = [chart for chart in page.query_selector_all(".js-plotly-plot") if chart.query_selector(".legend .bg")]
    assert len(charts) >= 4
    for chart in charts:
        assert chart.evaluate(APART), chart.get_attribute("id")


def test_the_table_of_modes_is_not_cut_off_at_the_width_of_a_laptop(visit):
    page = visit("layers")
    assert page.evaluate(
        "document.querySelector('.scroll').scrollWidth <= document.querySelector('.scroll').clientWidth"
    )


@pytest.mark.parametrize("width", [400, 1280])
def test_the_header_holds_what_is_in_it_and_no_name_is_cut_off(browser, file_of, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(file_of("phases").as_uri())
    page.wait_for_selector(READY)
    inside = "all => all.every(each => each.getBoundingClientRect().bottom <= each.closest('header').clientHeight)"
    assert page.eval_on_selector_all("header nav, header button", inside)
    assert page.locator(".bars th").count() > 0
    assert page.eval_on_selector_all(".bars th", "all => all.every(each => each.scrollWidth <= each.clientWidth)")
    page.close()


def test_what_does_not_matter_live_has_one_level(visit):
    page = visit("phases")
    levels = page.evaluate("document.getElementById('curve').layout.shapes.map(shape => shape.label.text)")
    assert levels == ["the untouched network, and nothing kept"]
    assert page.locator("#effects-table tbody tr").count() == 7  # one of the orders was kept alone


def test_printed_it_has_no_controls_and_nothing_that_is_folded(browser, file_of):
    page = browser.new_page()
    page.goto(file_of("labels").as_uri())
    page.wait_for_selector(READY)
    page.emulate_media(media="print")
    assert page.is_visible("#curve")
    assert page.is_hidden("#picker")
    assert page.is_hidden("#details")
    page.evaluate(UNFOLD)
    assert page.is_visible("#effects-table")
    page.close()


def test_what_is_drawn_has_a_name_for_screen_readers(visit):
    page = visit("explained")
    named = "all => all.length > 0 && all.every(each => each.getAttribute('aria-label'))"
    assert page.eval_on_selector_all(".chart, svg[role=img]", named)
    assert page.eval_on_selector_all(".wide, .scroll", named)
    assert page.locator("h1").count() == 1
