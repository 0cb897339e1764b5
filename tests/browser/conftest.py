"""One browser and one page of each report for the tests of a module: to open a page takes longer than most tests.

Not for the whole session: while Playwright runs, this thread has an event loop, which tests of other packages must not
meet.
"""

import os
import shutil
import time

import pytest

from tests.reporting import html_pages

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
READY = "html[data-drawn=true]"  # all charts that are not folded are drawn, also those below the first screen
UNFOLD = "for (const each of document.querySelectorAll('details:not(#more-spectrum)')) each.open = true"
ALL_DRAWN = "[...document.querySelectorAll('.chart:not(#pseudospectrum)')].every((each) => each.data)"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def file_of(tmp_path_factory):
    """The file of a report, made when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("reports"), {}

    def file_of(name):
        if name not in made:
            made[name] = getattr(html_pages, f"{name}_report")(folder / f"{name}.html")
        return made[name]

    return file_of


def wait_until(page, condition, *, seconds=10):
    """Wait until a condition in JavaScript holds.

    Not `page.wait_for_function`: it evaluates a string inside the page, which the page's security policy forbids.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"did not become true within {seconds} s: {condition}"
        page.wait_for_timeout(50)


class Opened:
    """Pages that are open, what went wrong in them, and what they asked of any network."""

    def __init__(self, browser, file_of):
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
        self.file_of, self.pages, self.troubles, self.requests = file_of, {}, [], []

    def visit(self, name):
        """The page of a report, opened and unfolded when it is first asked for; tests leave what they selected."""
        if name not in self.pages:
            page = self.pages[name] = self.context.new_page()
            page.on("console", lambda message: self.troubles.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: self.troubles.append(str(error)))
            page.on("dialog", lambda dialog: self.troubles.append(dialog.message))
            page.on("request", lambda request: self.requests.append(request.url))
            page.goto(self.file_of(name).as_uri())
            page.wait_for_selector(READY)
            page.evaluate(UNFOLD)
            wait_until(page, ALL_DRAWN)
        self.pages[name].bring_to_front()
        return self.pages[name]


@pytest.fixture(scope="module")
def opened(browser, file_of):
    opened = Opened(browser, file_of)
    yield opened
    opened.context.close()


@pytest.fixture
def visit(opened):
    """Open a report; at the end nothing may have gone wrong, and nothing may have been asked of any network."""
    yield opened.visit
    assert opened.troubles == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.requests)
