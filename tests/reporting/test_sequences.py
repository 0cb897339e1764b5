"""The tables of a report that have a row for each state."""

import numpy as np

import kann
from kann.reporting._report import report
from tests.reporting.html_pages import content_of, signal_report, text_report, turning_states


def test_the_table_holds_the_contributions(tmp_path):
    states = turning_states()
    _, page, tables = content_of(text_report(tmp_path / "r.html", states=states))
    koopman, rng = kann.fit(states), np.random.default_rng(1)
    weight, bias = rng.normal(size=(1, 5)), rng.normal(size=1)
    expected = kann.contributions(koopman, states.values, weight, bias).modes[:, page["shown"], 0]
    np.testing.assert_allclose(
        contribution_on_page(page, tables, 0), expected, atol=np.abs(expected).max() / 1_500
    )  # of a pair, two numbers are rounded to a 4,094th each
    np.testing.assert_allclose(tables["output"], states.values @ weight.T + bias, atol=1e-3)
    assert page["outputs"]["names"] == ["class 1"]


def contribution_on_page(page, tables, output):
    """The contribution of each mode to an output, as the page's script computes it."""
    re, im = np.split(tables["coordinate"], 2, axis=1)
    gains = np.array(page["outputs"]["gains"])[:, output]
    return gains[:, 0] * re + gains[:, 1] * im


def test_contributions_to_several_outputs_are_less_the_mean_over_all(tmp_path):
    states = turning_states()
    _, page, tables = content_of(text_report(tmp_path / "r.html", states=states, outputs=3))
    koopman, rng = kann.fit(states), np.random.default_rng(1)
    weight, bias = rng.normal(size=(3, 5)), rng.normal(size=3)
    parts = kann.contributions(koopman, states.values, weight, bias)
    ends = states.starts + states.lengths - 1
    winners = np.repeat(parts.total[ends].argmax(axis=1), states.lengths)
    for output in range(3):
        expected = parts.modes[..., output] - parts.modes.mean(axis=2)
        found = contribution_on_page(page, tables, output)
        np.testing.assert_allclose(found, expected[:, page["shown"]], atol=np.abs(expected).max() / 1_000)
    assert page["sequences"][0]["prediction"] == f"class {winners[0]}"
    assert page["outputs"]["decided"] == winners[states.starts].tolist()
    assert page["outputs"]["names"] == page["output_names"] == ["class 0", "class 1", "class 2"]


def test_signals_are_kept_for_each_state(tmp_path):
    _, page, tables = content_of(signal_report(tmp_path / "r.html"))
    signals = [np.sin(np.arange(length) / 3) for length in turning_states().lengths]
    np.testing.assert_allclose(tables["signal"][:, 0], np.concatenate(signals), atol=1e-4)
    assert page["outputs"] is None


def test_a_single_unit_has_one_component(tmp_path, rng):
    states = kann.States.from_padded(rng.normal(size=(2, 9, 1)))
    _, page, _ = content_of(report(tmp_path / "r.html", kann.fit(states), states))
    assert all(second == 0 for _, second in page["embedding"]["at"])


def test_a_readout_that_is_not_linear_gives_classes_but_no_contributions(tmp_path):
    states = turning_states()
    path = report(tmp_path / "r.html", kann.fit(states), states, readout=lambda h: np.abs(h[:, :1]))
    _, page, tables = content_of(path)
    assert page["outputs"] is None
    np.testing.assert_allclose(tables["output"], np.abs(states.values[:, :1]), atol=1e-3)
    assert {row["prediction"] for row in page["sequences"]} == {"1"}
    assert {row["label"] for row in page["sequences"]} == {None}
