"""Along depth the page says which layers are linear, and praises no mean that one layer makes."""

import numpy as np
import pytest

import kann
from kann.errors import KannError
from kann.reporting.operators import where_copying_is_better
from tests.reporting.html_pages import NASTY, content_of, layered_states, layers_report, turning_states


def test_the_page_has_the_errors_of_each_layer(tmp_path, rng):
    text, page, _ = content_of(layers_report(tmp_path / "r.html"))
    states = layered_states(np.random.default_rng(0))
    trust = kann.depth.trust(kann.depth.fit(states), states)
    layers = page["layers"]["layers"]
    assert [layer["number"] for layer in layers] == [1, 2, 3, 4]
    assert [layer["name"] for layer in layers] == ["b.0", "b.1", NASTY, "b.3"]
    for name in ("identity", "one", "each"):
        assert [layer[name][0] for layer in layers] == trust.errors[name].tolist()
        assert [layer[name][1:] for layer in layers] == trust.intervals[name].tolist()
    assert [layer["linear_part"] for layer in layers] == trust.linear_part.tolist()
    assert [layer["number"] - 1 for layer in layers if layer["better"]] == list(trust.better_than_identity)
    assert NASTY not in text
    assert "240 paths" not in text
    assert "60 paths through the layers shown" in page["line"]


@pytest.mark.parametrize("with_maps", [True, False])
def test_where_copying_is_better_at_most_layers_nothing_praises_the_mean(tmp_path, with_maps):
    """With maps of layers, and without them, where the states shown say it."""
    settings = {}
    if not with_maps:
        settings = {"steps": None, "step_names": None}
    text, page, _ = content_of(layers_report(tmp_path / "r.html", **settings))
    assert page["fit"]["error"] < page["copying"]["error"] / 2  # so that it would be praised
    says = {row["asked"]: row["says"] for row in page["trust_table"]}
    expected = "a mean that says little: copying is better at 3 of the 4 layers"
    assert says["Error of one layer, held out"] == says["Error of one layer, sequences shown"] == expected
    assert "knows how states move" not in text
    assert "below the better baseline" not in text
    assert ("Copying is better at 3 of the 4 layers than the one operator." in text) == with_maps


def test_an_operator_that_is_better_at_each_layer_is_judged_as_before(tmp_path):
    states = kann.States.from_padded(np.random.default_rng(0).normal(size=(40, 1, 3)) * 0.5 ** np.arange(4)[:, None])
    page = content_of(kann.report(tmp_path / "r.html", kann.fit(states), states, step_name="layer"))[1]
    assert page["layers"] is None
    assert any("times below the better baseline" in row["says"] for row in page["trust_table"])


def test_along_time_a_mean_over_steps_is_what_it_is():
    errors = {"times": {"error": [2.0, 2.0, None]}}, {"times": {"error": [1.0, 1.0, None]}}
    assert where_copying_is_better(*errors, steps=None, step_name="step") == ""
    assert where_copying_is_better(*errors, steps=None, step_name="layer") == "copying is better at 2 of the 2 layers"


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(KannError, match="step_names= has 2 names and steps= 4 steps; pass one name for each"):
        layers_report(tmp_path / "r.html", step_names=["a", "b"])
    with pytest.raises(KannError, match="step_names= has 4 names and steps= 0 steps"):
        layers_report(tmp_path / "r.html", steps=None)
    states = turning_states(count=8, steps=30)
    rows = layered_states(np.random.default_rng(0))
    other = kann.depth.trust(kann.depth.fit(rows), rows)
    with pytest.raises(KannError, match="steps= is of 4 steps and the states shown have 36; pass what "):
        kann.report(tmp_path / "r.html", kann.fit(states), states, steps=other)
