"""The page and the drawings of a comparison."""

import numpy as np
import pytest
from matplotlib import pyplot

import kann
from kann.reporting import comparison_page, plots


@pytest.fixture(scope="module")
def found():
    values = np.array([0.0, 1.0, 1.1, 0.1])
    matrix = np.abs(values[:, None] - values)
    nan = np.full((4, 4), np.nan)
    low = nan.copy()
    low[0, 3] = 0.05
    return kann.Comparison(
        kind="spectrum",
        names=("a", "b", "c", "<d>"),
        matrix=matrix,
        low=low,
        high=low + 0.2,
        floor=np.full(4, 0.02),
        level=0.95,
    )


def test_the_map_has_clusters_side_by_side_and_floors_on_its_diagonal(found):
    ax = plots.draw_comparison(found)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert {frozenset(names[:2]), frozenset(names[2:])} == {frozenset("bc"), frozenset({"a", "<d>"})}
    shown = np.asarray(ax.images[0].get_array())
    np.testing.assert_allclose(np.diag(shown), 0.02)
    places = [found.names.index(name) for name in names]
    assert shown[0, 2] == found.matrix[places[0], places[2]]
    pyplot.close(ax.figure)


def test_networks_are_points_with_names(found):
    ax = plots.draw_networks(found)
    assert [text.get_text() for text in ax.texts] == list(found.names)
    pyplot.close(ax.figure)


def test_the_page_lists_pairs_nearest_first_and_runs_no_script(found, tmp_path):
    text = comparison_page.write(tmp_path / "c.html", found, title="A <b> title").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "A &lt;b&gt; title" in text
    rows = text.split("<tbody>")[1].split("</tr>")
    assert "<td>a</td><td>&lt;d&gt;</td><td>0.1</td><td>0.05 to 0.25</td><td>0.02</td>" in rows[0] + rows[1]
    assert text.count("data:image/png") == 2


def test_wrong_arguments_are_refused(found, tmp_path, untyped):
    with pytest.raises(kann.KannError, match="is a folder; pass the name of a file"):
        comparison_page.write(tmp_path, found)
    with pytest.raises(kann.KannError, match="comparison=3 is no Comparison"):
        comparison_page.write(tmp_path / "c.html", 3)
    with pytest.raises(kann.KannError, match="comparison=3 is no Comparison"):
        plots.draw_comparison(3)
