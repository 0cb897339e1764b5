import json
import re
from itertools import takewhile

import pytest
from kann_experiments import pages
from kann_experiments.copy.analysis import QUANTITIES as COPY
from kann_experiments.ecg.analysis import QUANTITIES as ECG
from kann_experiments.pages import BLOCK, DOCS, FIGURE, RESULTS, VALUE, collect, collect_figures, fill, filled
from kann_experiments.results import Printed, Quantity, Row
from kann_experiments.sentiment.quantities import QUANTITIES as SENTIMENT
from kann_experiments.sentiment.stand_in_bases import basis_quantities

from kann.errors import KannError

PAGE = """# A page

<!-- results copy/gru -->
| old |
|---|
| 1 |

<!-- results copy/gru copy/rnn-as-printed: kept bound -->

Of all decisions <!-- value copy/gru kept -->no<!-- end --> (<!-- value copy/gru kept range --><!-- end -->) are kept:
<!-- value copy/gru kept verdict -->it is unclear<!-- end -->.

<!-- claims copy/gru copy/rnn-as-printed -->

<!-- lines copy/gru paths -->

<!-- results copy/absent -->
| stays |
"""


def write_run(folder, *, kept):
    rows = (
        Row(
            quantity=Quantity(key="kept", what="    decisions |kept|", format="percent"),
            values=kept,
            printed=Printed(paper=0.9, holds="at least", as_printed="> 90 %"),
        ),
        Row(quantity=Quantity(key="bound", what="bound"), values=(0.5, 0.5), printed=None),
        Row(quantity=Quantity(key="bound_held", what="bound held"), values=(0.5, 0.5), printed=None),
        Row(quantity=Quantity(key="bounds", what="number of bounds"), values=(2, 2), printed=None),
    )
    folder.mkdir(parents=True)
    content = {
        "rows": {row.quantity.key: row.as_json() for row in rows},
        "made_on": {"commit": "abc"},
        "seeds": [0, 1],
        "experiment": "copy",
        "config": {"arch": "gru"},
        "lines": {"paths": ["| t |", "|---|"]},
        "curves": [1] * 1000,
    }
    (folder / "results.json").write_text(json.dumps(content))


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "SEEDS", 2)
    printed = {"kept": Printed(paper=0.9, holds="at least", as_printed="> 90 %")}
    monkeypatch.setattr(pages, "printed_for", lambda experiment, arch: printed)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    write_run(tmp_path / "runs" / "copy" / "gru", kept=(0.95, 0.97))
    write_run(tmp_path / "runs" / "copy" / "rnn-as-printed", kept=(0.5, 0.5))
    collect(tmp_path / "runs", tmp_path / "results")
    return tmp_path


def page_after_filling(places):
    fill(places / "docs", places / "results")
    return (places / "docs" / "page.md").read_text()


def test_committed_results_are_small_and_say_where_they_come_from(places):
    content = json.loads((places / "results" / "copy" / "gru.json").read_text())
    assert content["made_on"] == {"commit": "abc"}
    assert "curves" not in content


def test_rows_are_left_out_by_whole_words_of_their_keys(places):
    (places / "docs" / "page.md").write_text("<!-- results copy/gru: -bound -->\n")
    text = page_after_filling(places)
    assert "decisions" in text
    assert "number of bounds" in text
    assert "| bound" not in text


def test_tables_are_filled_where_results_are(places):
    text = page_after_filling(places)
    assert "| old |" not in text
    assert "| – decisions ∣kept∣ | > 90 % | 96.0 % | 95.0 % – 97.0 % | holds |" in text
    assert "| | GRU | RNN, as printed |" in text
    assert "| – decisions ∣kept∣ | 96.0 % (95.0 % – 97.0 %) *> 90 %* | 50.0 % *> 90 %* |" in text
    assert "| bound | 0.5 | 0.5 |" in text
    assert "<!-- lines copy/gru paths -->\n| t |\n|---|\n" in text
    assert text.endswith("<!-- results copy/absent -->\n| stays |\n")


def test_claims_have_a_verdict_for_each_run(places):
    text = page_after_filling(places)
    assert "| | paper | GRU | RNN, as printed |" in text
    row = "| – decisions ∣kept∣ | > 90 % | 96.0 % (95.0 % – 97.0 %)<br>**holds** | 50.0 %<br>**does not hold** |"
    assert row in text


def test_a_run_without_results_has_no_column_and_few_seeds_are_named(places):
    text = filled("<!-- results copy/absent copy/gru: bound -->\n", places / "results")
    assert "| | GRU |\n" in text
    path = places / "results" / "copy" / "gru.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seeds": [0]}))
    assert "| | GRU (1 seed) |\n" in filled("<!-- results copy/gru: bound -->\n", places / "results")


def test_claims_can_be_left_out(places):
    (places / "docs" / "page.md").write_text("<!-- claims copy/gru: -kept -->\n")
    assert "decisions" not in page_after_filling(places)
    (places / "docs" / "page.md").write_text("<!-- claims copy/gru: -bound -->\n")
    assert "decisions" in page_after_filling(places)


@pytest.mark.parametrize("keys", ["accuracy kept", "kept"])
def test_a_row_that_goes_on_with_another_is_shown_below_it(places, keys):
    path = places / "results" / "copy" / "gru.json"
    content = json.loads(path.read_text())
    heads = {key: content["rows"]["bound"] | {"what": key} for key in ("accuracy", "decisions")}
    path.write_text(json.dumps(content | {"rows": heads | content["rows"]}))
    table = "<!-- results copy/gru: {} -->\n"
    with pytest.raises(KannError, match="the row 'kept' goes on with 'decisions'"):
        filled(table.format(keys), places / "results")
    assert "| – decisions" in filled(table.format("accuracy decisions kept"), places / "results")


def test_numbers_in_the_text_are_filled(places):
    text = page_after_filling(places)
    assert "<!-- value copy/gru kept -->96.0 %<!-- end -->" in text
    assert "<!-- value copy/gru kept range -->95.0 % – 97.0 %<!-- end -->" in text
    assert "<!-- value copy/gru kept verdict -->holds<!-- end -->" in text


def test_a_second_filling_changes_nothing(places):
    before = page_after_filling(places)
    assert fill(places / "docs", places / "results") == ()
    assert page_after_filling(places) == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kept bound -->", "kept unbound -->", "the results of GRU have no row 'unbound'"),
        ("copy/gru kept verdict", "copy/gru kept median", "have no 'kept' median"),
        ("copy/gru paths", "copy/gru words", "have no lines 'words'"),
    ],
)
def test_what_was_not_measured_is_an_error(places, old, new, message):
    with pytest.raises(KannError, match=message):
        filled(PAGE.replace(old, new), places / "results")


@pytest.mark.parametrize(
    ("page", "quantities"), [("copy", COPY), ("ecg", ECG), ("sentiment", (*SENTIMENT, *basis_quantities()))]
)
def test_the_manual_asks_for_rows_that_are_measured(page, quantities):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    of_task = [match for match in BLOCK.finditer(text) if match[2].startswith(f"{page}/")]
    asked = [key for match in of_task for key in (match[3] or "").split()]
    assert asked
    keys = {quantity.key for quantity in quantities}
    left_out = [key[1:] for key in asked if key.startswith("-")]
    assert {key for key in asked if not key.startswith("-")} <= keys
    assert all(any(key.startswith(start) for key in keys) for start in left_out)
    assert {match[2] for match in VALUE.finditer(text) if match[1].startswith(f"{page}/")} <= keys


README = DOCS.parent / "README.md"


@pytest.mark.parametrize("page", [README, *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.stem)
def test_pages_agree_with_the_committed_results(page):
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text, "run python -m kann_experiments.pages"


def test_numbers_that_readme_writes_out_are_committed_results():
    text = README.read_text(encoding="utf-8")
    counting = json.loads((RESULTS / "balanced" / "counting.json").read_text(encoding="utf-8"))
    counted = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+)", counting["lines"]["grid"][-1])]
    right, networks = map(sum, zip(*counted, strict=True))
    assert f"{right} of {networks} networks" in text
    kept = [
        row["values"]
        for arch in ("gru", "lstm", "rnn")
        for key, row in json.loads((RESULTS / "balanced" / f"sentiment-{arch}.json").read_text())["rows"].items()
        if key == "balanced_1"
    ]
    assert f"keeps only {100 * min(map(min, kept)):.1f} %" in text
    assert len(text.splitlines()) < 120


UNFILLED = {
    "copy": "0.05 0.85",
    "ecg": "",
    "sentiment": ".3 .5 .6 .7 .8 .99 0.1 % 3.3",
    "paper": "0.095 0.0347",
    "figures": "",
    "running": "",
    "flipflop": "0.01 0.3",
    "state_space": "90 %",
}
"""Numbers in the text of result pages that are no results: of the paper, settings, thresholds, versions and wishes."""

NUMBER = re.compile(r"(?<![\w.=,])(?:\d*\.\d+(?: %)?|\d[\d,]* %)")
"""A number with a decimal point, or a percentage."""


def text_of(page):
    """The text of a page without code, links, and what is filled from results."""
    text = re.sub(r"```.*?```", "", (DOCS / f"{page}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    text = VALUE.sub("", BLOCK.sub("", text))
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


@pytest.mark.parametrize("page", UNFILLED)
def test_every_measured_number_of_a_result_page_is_filled_from_results(page):
    allowed = set(NUMBER.findall(UNFILLED[page]))
    found = {number: line for line in text_of(page).splitlines() for number in NUMBER.findall(line)}
    assert found.keys() <= allowed, {number: found[number] for number in found.keys() - allowed}


@pytest.mark.parametrize("page", UNFILLED)
def test_a_result_page_has_at_most_250_lines(page):
    assert len((DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()) <= 250


@pytest.mark.parametrize("page", UNFILLED)
def test_columns_of_the_paper_hold_numbers_of_the_paper(page):
    lines = (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    for number, row in enumerate(cells):
        if "paper" in row and lines[number].startswith("|"):
            rest = takewhile(lambda at: lines[at].startswith("|"), range(number + 2, len(lines)))
            column = [cells[at][row.index("paper")] for at in rest]
            assert any(re.search(r"\d|all|both|lowest|zero", cell) for cell in column), lines[number]


def test_committed_results_can_be_traced():
    for path in RESULTS.rglob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["made_on"].keys() >= {"commit", "machine", "cores", "gpu"}, path
        assert content["seeds"], path
        assert content["versions"], path
        assert path.stat().st_size < 100_000, path


def test_figures_that_pages_show_are_copied_and_small(places):
    from PIL import Image

    run = places / "runs" / "copy" / "gru"
    Image.effect_noise((1400, 900), 50).convert("RGB").save(run / "accuracy.png")
    Image.new("RGB", (10, 10)).save(run / "hidden.png")
    (places / "docs" / "page.md").write_text("![](images/paper/copy.gru.accuracy.png) ![](images/paper/copy.no.a.png)")
    (copied,) = collect_figures(places / "runs", places / "docs")
    assert copied == places / "docs" / "images" / "paper" / "copy.gru.accuracy.png"
    with Image.open(copied) as image:
        assert image.size[0] == 1000
    assert copied.stat().st_size < (run / "accuracy.png").stat().st_size


def test_every_figure_that_a_page_shows_is_there():
    for page in DOCS.rglob("*.md"):
        for match in FIGURE.finditer(page.read_text(encoding="utf-8")):
            picture = DOCS / "images" / "paper" / match[1]
            assert picture.is_file(), f"{page.name} shows {match[1]}"
            assert picture.stat().st_size < 100_000, match[1]
