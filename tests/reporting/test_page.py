import base64
import hashlib
import re
import time

import numpy as np
import pytest

import kann
import kann._display
from kann._format import percent
from kann.errors import KannError
from kann.reporting._report import report
from tests.reporting.html_pages import NASTY, content_of, text_report, turning_states, unpacked


def test_the_page_shows_what_the_operator_says(tmp_path):
    states = turning_states()
    _, page, tables = content_of(text_report(tmp_path / "r.html", states=states))
    koopman = kann.fit(states)
    missed = np.concatenate([np.sum((koopman.predict(h[:-1]) - h[1:]) ** 2, axis=1) for h in states])
    variance = np.var(np.concatenate([h[1:] for h in states]), axis=0).sum()
    assert page["fit"]["error"] == pytest.approx(missed.mean() / variance)
    assert [row["modulus"] for row in page["modes"]] == pytest.approx([mode.modulus for mode in koopman.modes])
    assert sum(row["importance"] for row in page["modes"]) == pytest.approx(kann.importance(koopman, states).sum())
    firsts = [koopman.modes[number].indices[0] for number in page["shown"]]
    expected = kann.project(koopman, states.values)[:, firsts]
    re, im = np.split(tables["coordinate"], 2, axis=1)
    np.testing.assert_allclose(re + 1j * im, expected, atol=np.abs(expected).max() / 4000)
    assert [entry["length"] for entry in page["sequences"]] == states.lengths.tolist()


def test_nothing_that_was_passed_becomes_markup(tmp_path):
    text, page, _ = content_of(text_report(tmp_path / "r.html"))
    assert NASTY not in text
    assert page["sequences"][0]["tokens"][1] == NASTY
    assert page["title"] == f"Text {NASTY}"


def test_the_policy_allows_these_scripts_and_no_address(tmp_path):
    text = text_report(tmp_path / "r.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    (own,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    for script in (own.encode(), unpacked(text, "plotly")):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" in policy


def test_lines_of_the_page_do_not_break_before_a_percent_sign(tmp_path):
    text, _, _ = content_of(text_report(tmp_path / "r.html"))
    shown = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S)
    assert re.search(r"\d\N{NO-BREAK SPACE}%", shown)
    assert not re.search(r"\d %", shown)


def test_the_same_report_is_the_same_file(tmp_path):
    assert text_report(tmp_path / "a.html").read_bytes() == text_report(tmp_path / "b.html").read_bytes()


def test_a_large_report_is_small_and_soon_written(tmp_path, rng):
    steps = np.arange(1000)[:, None] / np.array([50, 20, 11, 7, 5, 3])
    base = np.concatenate([np.sin(steps), np.cos(steps)], axis=1)
    sequences = [(base + rng.normal(size=base.shape)) @ rng.normal(size=(12, 40)) for _ in range(64)]
    states = kann.States.from_sequences(sequences)
    start = time.perf_counter()
    path = text_report(tmp_path / "r.html", states=states)
    assert time.perf_counter() - start < 30  # 10 s on a quiet machine
    assert path.stat().st_size < 8e6


def test_a_folder_is_never_replaced(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").touch()
    with pytest.raises(KannError, match="precious is a folder; pass the name of a file"):
        text_report(tmp_path / "precious")
    assert (tmp_path / "precious" / "thesis.txt").exists()


def test_a_lone_half_of_a_sign_is_replaced(tmp_path):
    states = turning_states(count=1, steps=3)
    report(tmp_path / "r.html", kann.fit(states, rank=1), states, tokens=[["a", "\ud800", "b"]], title="\ud800")
    _, page, _ = content_of(tmp_path / "r.html")
    assert page["sequences"][0]["tokens"] == ["a", "?", "b"]


def test_the_page_says_what_trust_says(tmp_path):
    states = turning_states()
    koopman = kann.fit(states)
    trust = kann.trust(koopman, states, folds=5)
    text, page, _ = content_of(report(tmp_path / "r.html", koopman, states, trust=trust))
    assert page["trust"]["folds"] == 5
    assert page["trust"]["trusted"] == list(trust.trusted) == [m["number"] for m in page["modes"] if m["trusted"]]
    assert page["trust"]["error"] == trust.error.tolist()
    assert page["trust"]["copying"] == trust.copying_error.tolist()
    for row, mode in zip(page["modes"], trust.modes, strict=True):
        assert row["interval"] == list(mode.interval)
        assert (row["held_out"], row["copying"], row["shuffled"]) == (mode.residual, mode.copying, mode.null)
        assert row["why"] == mode.why
        assert row["verdict"] == mode.verdict
    assert "can be read as the network&#39;s own" in text


def test_numbers_of_noise_are_written_for_people(tmp_path, rng):
    noise = rng.normal(size=(20, 30, 4))
    text, page, _ = content_of(report(tmp_path / "r.html", kann.fit(noise, rank=1), noise))
    assert "e+" not in text.split("<h2>")[0].split("<body>")[1]
    assert "No mode can be read" in text
    assert page["fit"]["error"] == pytest.approx(page["trust"]["error"][0], rel=0.05)  # of the same unit
    assert "of the energy" not in text


def test_percents():
    assert [percent(value) for value in (0.9962, 1.0, 0.0, 12.3)] == ["99.6 %", "100.0 %", "0.0 %", "1,230.0 %"]


def test_states_that_were_fitted_are_held_out_in_turn(tmp_path):
    states = turning_states()
    _, page, _ = content_of(report(tmp_path / "r.html", kann.fit(states), states))
    assert page["trust"]["folds"] == len(states)
    assert page["fit"]["trusted"] == len(page["trust"]["trusted"]) > 0


@pytest.mark.parametrize(
    ("shown", "reason"),
    [(turning_states(seed=5), "was not fitted to these sequences"), (turning_states()[:2], "cannot be held out")],
)
def test_where_nothing_was_held_out_no_mode_is_trusted(tmp_path, shown, reason):
    states = turning_states()[:2] if reason == "cannot be held out" else turning_states()
    text, page, _ = content_of(report(tmp_path / "r.html", kann.fit(states), shown))
    assert page["trust"] is page["fit"]["trusted"] is None
    assert not any("trusted" in row for row in page["modes"])
    assert "nothing was held out" in page["trust_table"][0]["says"]
    assert reason in page["trust_table"][0]["says"]
    assert "not tested" in text
    assert "network&#39;s own" not in text


def test_of_noise_no_mode_is_the_networks_own(tmp_path, rng):
    states = kann.States.from_padded(rng.normal(size=(20, 40, 8)))
    _, page, _ = content_of(report(tmp_path / "r.html", kann.fit(states), states))
    assert page["trust"]["trusted"] == []
    assert "no mode can be read" in page["trust_table"][0]["says"]
    # Of noise, copying misses twice the variance, and the mean as little as any operator.
    assert "does not say how states move" in page["trust_table"][1]["says"]


def test_the_trust_of_another_operator_is_refused(tmp_path):
    states = turning_states()
    koopman = kann.fit(states)
    with pytest.raises(KannError, match="trust= is of another operator"):
        report(tmp_path / "r.html", kann.fit(states, rank=2), states, trust=kann.trust(koopman, states, folds=4))


def test_the_pseudospectrum_on_the_page_is_that_of_the_library(tmp_path):
    states = turning_states()
    koopman = kann.fit(states)
    _, page, _ = content_of(report(tmp_path / "r.html", koopman, states))
    axis = np.array(page["plane"]["axis"])
    expected = kann.pseudospectrum(koopman, states, grid=axis + 1j * axis[:, None]).residual
    np.testing.assert_allclose(page["plane"]["log_residual"], np.log10(expected), atol=1e-3)
