"""An explanation in notebooks, in a real browser: as JupyterLab and VS Code show what a cell gives."""

import pytest
import torch

import kann
from tests.browser.conftest import READY
from tests.explaining import networks

JUPYTERLAB = """<!doctype html><html><head><style>
  .jp-RenderedHTMLCommon { color: rgb(1, 2, 3); font-family: serif; }
  .jp-RenderedHTMLCommon table { border: 9px solid red; }
</style></head><body><div class="jp-OutputArea-output jp-RenderedHTMLCommon"></div></body></html>"""
"""JupyterLab puts the HTML of a trusted cell into an element of its own page, with its styles."""

VSCODE = """<!doctype html><html><head><meta http-equiv="Content-Security-Policy" content="default-src 'none';
  script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; font-src data:;
  connect-src 'none'; child-src https: data:;"></head><body><div class="jp-RenderedHTMLCommon"></div></body></html>"""
"""VS Code puts it into a frame whose policy what is inside inherits; here it forbids all addresses."""

FRAME = "allow-scripts allow-same-origin allow-forms allow-pointer-lock allow-downloads"
"""What VS Code allows that frame to do."""


@pytest.fixture(scope="module")
def found():
    generator = torch.Generator().manual_seed(0)
    x = networks.numbers(generator)[:, :8]
    return kann.explain(networks.seeded(networks.LinearNetwork), x, progress=False)


@pytest.fixture
def put(browser):
    """Put the HTML of a cell into a notebook; at the end nothing may have gone wrong, or been asked of any network."""
    context = browser.new_context(viewport={"width": 1000, "height": 800}, color_scheme="light")
    page = context.new_page()
    troubles, requests = [], []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))

    def put(host, html):
        page.set_content("<!doctype html><html><body></body></html>")
        frame = page.main_frame
        if host is VSCODE:
            page.evaluate(
                "([sandbox, host]) => document.body.append(Object.assign(document.createElement('iframe'), "
                "{ srcdoc: host, width: 980, height: 780, sandbox }))",
                [FRAME, host],
            )
            frame = page.wait_for_selector("iframe").content_frame()
            frame.wait_for_load_state()
        else:
            page.set_content(host)
        frame.evaluate("html => document.querySelector('.jp-RenderedHTMLCommon').innerHTML = html", html)
        return frame

    yield put
    context.close()
    assert troubles == []
    assert [url for url in requests if not url.startswith(("data:", "blob:", "about:"))] == []


@pytest.mark.parametrize("host", [JUPYTERLAB, VSCODE], ids=["jupyterlab", "vscode"])
def test_the_whole_page_is_shown_in_a_cell(host, put, found):
    cell = put(host, found.show(height=600)._repr_html_())
    frame = cell.wait_for_selector("iframe[title=Explanation]")
    assert frame.bounding_box()["height"] == 600
    page = frame.content_frame()
    page.wait_for_selector(READY)
    quoted = page.eval_on_selector_all(".quotes li", "all => all.map(each => each.textContent)")
    quoted = [sentence.replace("\N{NO-BREAK SPACE}%", " %") for sentence in quoted]
    assert quoted == list(found.sentences[: len(quoted)]) != []
    page.click("#details > summary")
    page.wait_for_selector("#plane .main-svg")  # charts are drawn once their section is open
    assert page.evaluate("getComputedStyle(document.querySelector('main p')).color") != "rgb(1, 2, 3)"
    selected = "#table tbody tr[aria-selected=true]"
    assert page.get_attribute(selected, "data-mode") != "2"
    page.click("#table tbody tr[data-mode='2']")
    assert page.get_attribute(selected, "data-mode") == "2"
    page.focus("#theme")
    page.press("#theme", "Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    with cell.page.expect_download() as waiting:
        page.click("#effects-csv")
    assert waiting.value.path().read_text(encoding="utf-8").startswith("coordinates,method,count")


@pytest.mark.parametrize("host", [JUPYTERLAB, VSCODE], ids=["jupyterlab", "vscode"])
def test_sentences_and_tables_are_shown_without_scripts(host, put, found):
    html = "".join(part._repr_html_() for part in (found, found.trust, found.effects, found.movers, found.states))
    assert "<script" not in html
    cell = put(host, html)
    text = cell.inner_text("body")
    assert all(sentence in text for sentence in found.sentences)
    assert cell.locator("table").count() >= 4
    assert cell.evaluate("document.documentElement.scrollWidth <= innerWidth")
