import json
from pathlib import Path

import pytest
from kann_experiments.copy.analysis import QUANTITIES as COPY
from kann_experiments.ecg.analysis import QUANTITIES as ECG
from kann_experiments.pages import TABLE, fill_tables
from kann_experiments.results import Printed, Quantity, Row
from kann_experiments.sentiment.quantities import QUANTITIES as SENTIMENT

from kann.errors import KannError

PAGE = """# A page

<!-- results copy/gru -->
| old |
|---|
| 1 |

<!-- results copy/gru copy/rnn: kept bound -->

Text.

<!-- results copy/absent -->
| stays |
"""


def write_results(folder, *, kept):
    rows = (
        Row(
            quantity=Quantity(key="kept", what="    decisions |kept|", format="percent"),
            values=kept,
            printed=Printed(paper=0.9, holds="at least", as_printed="> 90 %"),
        ),
        Row(quantity=Quantity(key="bound", what="bound"), values=(0.5, 0.5), printed=None),
    )
    folder.mkdir(parents=True)
    content = {"rows": {row.quantity.key: row.as_json() for row in rows}}
    (folder / "results.json").write_text(json.dumps(content))


@pytest.fixture
def filled(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    write_results(tmp_path / "runs" / "copy" / "gru", kept=(0.95, 0.97))
    write_results(tmp_path / "runs" / "copy" / "rnn", kept=(0.5, 0.5))
    return tmp_path


def test_rows_can_be_left_out_by_how_their_keys_begin(filled):
    page = filled / "docs" / "page.md"
    page.write_text("<!-- results copy/gru: -bou -->\n")
    fill_tables(filled / "runs", filled / "docs")
    assert "decisions" in page.read_text()
    assert "| bound" not in page.read_text()


def test_tables_are_filled_where_results_are(filled):
    found = fill_tables(filled / "runs", filled / "docs")
    assert found == ("page.md: copy/gru", "page.md: copy/gru copy/rnn")
    text = (filled / "docs" / "page.md").read_text()
    assert "| old |" not in text
    assert "| – decisions ∣kept∣ | > 90 % | 96.0 % | 95.0 % – 97.0 % | holds (2 of 2) |" in text
    assert "| – decisions ∣kept∣ | 96.0 % (95.0 % – 97.0 %) *> 90 %* | 50.0 % *> 90 %* |" in text
    assert "| bound | 0.5 | 0.5 |" in text
    assert text.endswith("<!-- results copy/absent -->\n| stays |\n")


def test_a_second_filling_changes_nothing(filled):
    fill_tables(filled / "runs", filled / "docs")
    before = (filled / "docs" / "page.md").read_text()
    fill_tables(filled / "runs", filled / "docs")
    assert (filled / "docs" / "page.md").read_text() == before


def test_an_unknown_row_is_refused(filled):
    page = filled / "docs" / "page.md"
    page.write_text(PAGE.replace("kept bound", "kept unbound"))
    with pytest.raises(KannError, match="the results of GRU have no row 'unbound'; run the experiment again"):
        fill_tables(filled / "runs", filled / "docs")
    assert "| old |" in page.read_text()


@pytest.mark.parametrize(("page", "quantities"), [("copy", COPY), ("ecg", ECG), ("sentiment", SENTIMENT)])
def test_the_manual_asks_for_rows_that_are_measured(page, quantities):
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    asked = [key for match in TABLE.finditer(text) for key in (match[2] or "").split()]
    assert asked
    keys = {quantity.key for quantity in quantities}
    left_out = [key[1:] for key in asked if key.startswith("-")]
    assert {key for key in asked if not key.startswith("-")} <= keys
    assert all(any(key.startswith(start) for key in keys) for start in left_out)
