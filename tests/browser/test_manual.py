"""The manual in a real browser, opened from disk: pages, links, pictures, formulas and search. Needs ``make docs``."""

import json
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

SITE = Path(__file__).parents[2] / "docs" / "build" / "html"
PAGES = (
    "index",
    "start",
    "tutorials/lstm",
    "tutorials/memory",
    "concepts/operator",
    "concepts/inputs",
    "how_to/own_cells",
    "reference/fitting",
    "reference/plots",
    "sentiment",
    "paper",
)

pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the manual is not built: make docs")


@pytest.fixture(scope="module")
def site(browser):
    """A page to visit others with; at the end nothing may have gone wrong or been asked of any network."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    troubles, requests = [], []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("requestfailed", lambda request: troubles.append(request.url))
    context.on("request", lambda request: requests.append(request.url))
    yield page
    context.close()
    assert troubles == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def visit(page, name):
    page.goto((SITE / f"{name}.html").as_uri())
    return page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_with_its_pictures(site, name):
    page = visit(site, name)
    assert page.inner_text("h1").strip()
    broken = "[...document.images].filter((i) => !i.loading.includes('lazy') && i.naturalWidth === 0).map((i) => i.src)"
    assert page.evaluate(broken) == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0


def links_of(page):
    """Where the links of the open page lead, those to other sites left out."""
    found = page.evaluate("[...document.links].map((link) => link.href)")
    return {link for link in found if link.startswith("file:")}


def test_every_internal_link_leads_somewhere(site):
    """From the first page on, every page that can be reached is opened, and every anchor is looked up."""
    to_visit, anchors, targets = [(SITE / "index.html").as_uri()], {}, set()
    while to_visit:
        address = to_visit.pop()
        if address in anchors:
            continue
        file = Path(unquote(urlsplit(address).path))
        assert file.is_file(), address
        if file.suffix != ".html":
            anchors[address] = set()
            continue
        site.goto(address, wait_until="domcontentloaded")
        anchors[address] = set(site.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)"))
        links = links_of(site)
        targets |= links
        to_visit += [urldefrag(link).url for link in links]
    assert len(anchors) > 50
    missing = [link for link in targets if (parts := urldefrag(link)).fragment and not _has(anchors, parts)]
    assert missing == []


def _has(anchors, parts):
    return unquote(parts.fragment) in anchors[parts.url]


def test_every_tutorial_is_a_notebook_that_installs_kann_first(site):
    """The page links to it, and the other cells are the page's code."""
    for name in (page for page in PAGES if page.startswith("tutorials/") and page != "tutorials/index"):
        link = visit(site, name).locator("a[download]")
        file = SITE / "tutorials" / link.get_attribute("href")
        first, *rest = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
        assert "".join(first["source"]).startswith("%pip install")
        assert rest
        for cell in rest:
            compile("".join(cell["source"]), name, "exec")


def test_formulas_are_drawn_by_the_browser(site):
    page = visit(site, "concepts/operator")
    assert page.locator("math[display=block]").count() == 1
    assert page.locator("math[display=block]").bounding_box()["height"] > 10
    assert "$" not in page.inner_text("article")


def test_the_search_works_from_disk(site):
    page = visit(site, "search")
    page.goto((SITE / "search.html").as_uri() + "?q=bilinear")
    # Results come one after the other.
    page.wait_for_selector("#search-results li a:has-text('Inputs that gate')")
    assert page.locator("#search-results li a").count() > 1


def test_a_narrow_screen_shows_the_whole_page(site):
    site.set_viewport_size({"width": 390, "height": 800})
    for name in ("start", "concepts/spectrum", "paper"):
        page = visit(site, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    site.set_viewport_size({"width": 1280, "height": 900})
