import base64
import gzip
import hashlib
import json
import re
import time

import numpy as np
import pytest

import kann
from kann.errors import KannError
from kann.reporting.packing import pack
from kann.reporting.page import report
from kann.reporting.verdict import verdict
from tests.reporting.html_pages import NASTY, Linear, signal_report, text_report, turning_states


def unpacked(text, name):
    data = re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', text, re.S)[1]
    return gzip.decompress(base64.b64decode(data))


def content_of(path):
    """The page, its JSON, and its packed tables as numbers (n, m)."""
    text = path.read_text(encoding="utf-8")
    page = json.loads(unpacked(text, "content"))
    tables = {}
    for name, entry in page["tables"].items():
        numbers = np.frombuffer(unpacked(text, f"table-{name}"), dtype={8: np.int8, 16: np.int16}[entry["bits"]])
        tables[name] = numbers.reshape(len(entry["scale"]), -1).T * np.array(entry["scale"])
    return text, page, tables


def test_the_page_shows_what_the_operator_says(tmp_path):
    states = turning_states()
    _, page, tables = content_of(text_report(tmp_path / "r.html", states=states))
    koopman = kann.fit(states)
    assert page["fit"]["error"] == pytest.approx(kann.relative_error(koopman, states))
    assert [row["modulus"] for row in page["modes"]] == pytest.approx([mode.modulus for mode in koopman.modes])
    assert sum(row["importance"] for row in page["modes"]) == pytest.approx(kann.importance(koopman, states).sum())
    firsts = [koopman.modes[number].indices[0] for number in page["shown"]]
    expected = kann.magnitude(koopman, states.values)[:, firsts]
    np.testing.assert_allclose(tables["magnitude"], expected, atol=expected.max() / 250)
    assert [entry["length"] for entry in page["sequences"]] == states.lengths.tolist()


def test_shares_are_the_contributions(tmp_path):
    states = turning_states()
    _, page, tables = content_of(text_report(tmp_path / "r.html", states=states))
    koopman, rng = kann.fit(states), np.random.default_rng(1)
    weight, bias = rng.normal(size=(1, 5)), rng.normal(size=1)
    expected = kann.contributions(koopman, states.values, weight, bias).modes[:, page["shown"], 0]
    np.testing.assert_allclose(tables["share"], expected, atol=np.abs(expected).max() / 65_000)


def test_shares_of_several_outputs_are_those_of_the_winner_less_the_mean(tmp_path):
    states = turning_states()
    _, page, tables = content_of(text_report(tmp_path / "r.html", states=states, outputs=3))
    koopman, rng = kann.fit(states), np.random.default_rng(1)
    weight, bias = rng.normal(size=(3, 5)), rng.normal(size=3)
    parts = kann.contributions(koopman, states.values, weight, bias)
    ends = states.starts + states.lengths - 1
    winners = np.repeat(parts.total[ends].argmax(axis=1), states.lengths)
    expected = parts.modes[np.arange(len(winners)), :, winners] - parts.modes.mean(axis=2)
    np.testing.assert_allclose(tables["share"], expected[:, page["shown"]], atol=np.abs(expected).max() / 65_000)
    assert page["sequences"][0]["prediction"] == f"class {winners[0]}"


def test_signals_come_with_what_each_mode_decodes_to(tmp_path):
    _, page, tables = content_of(signal_report(tmp_path / "r.html"))
    states = turning_states()
    koopman = kann.fit(states)
    np.testing.assert_allclose(tables["whole"][:, 0], states.values[:, 0], atol=1e-3)
    alone = kann.reconstruct(koopman, states.values, page["shown"][1])[:, 0]
    np.testing.assert_allclose(tables["alone"][:, 1], alone, atol=1e-3)
    assert "share" not in tables


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
    for script in (own.encode(), unpacked(text, "drawing")):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" in policy


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


def test_a_single_unit_has_one_component(tmp_path, rng):
    states = kann.States.from_padded(rng.normal(size=(2, 9, 1)))
    _, page, _ = content_of(report(tmp_path / "r.html", kann.fit(states), states))
    assert all(second == 0 for _, second in page["embedding"]["at"])


def test_a_lone_half_of_a_sign_is_replaced(tmp_path):
    states = turning_states(count=1, steps=3)
    report(tmp_path / "r.html", kann.fit(states, rank=1), states, tokens=[["a", "\ud800", "b"]], title="\ud800")
    _, page, _ = content_of(tmp_path / "r.html")
    assert page["sequences"][0]["tokens"] == ["a", "?", "b"]


def test_errors_say_what_does_not_fit(tmp_path):
    states, path = turning_states(), tmp_path / "r.html"
    koopman = kann.fit(states)
    with pytest.raises(KannError, match="tokens for 1 sequences and states for 6"):
        report(path, koopman, states, tokens=[["a"]])
    with pytest.raises(KannError, match="sequence 0 has 30 states and 1 tokens"):
        report(path, koopman, states, tokens=[["a"]] * 6)
    with pytest.raises(KannError, match="there are 2 labels for 6 sequences"):
        report(path, koopman, states, labels=["a", "b"])
    with pytest.raises(KannError, match=r"decode= gave shape \(3,\) for 30 states"):
        report(path, koopman, states, signals=[h[:, 0] for h in states], decode=lambda h: h[:3, 0])
    with pytest.raises(KannError, match="classes= has 1 names"):
        report(path, koopman, states, readout=Linear(np.ones((1, 5)), np.array([99.0])), classes=["bad"])
    with pytest.raises(KannError, match="the operator has 5"):
        report(path, koopman, np.zeros((2, 4, 3)))
    with pytest.raises(KannError, match="tokens of sequence 0 are str; pass a list"):
        report(path, koopman, states, tokens=["a" * length for length in states.lengths])
    with pytest.raises(KannError, match="the signal of sequence 1 holds NaN or Inf"):
        report(path, koopman, states, signals=[np.full(len(h), np.nan if i == 1 else 0) for i, h in enumerate(states)])
    with pytest.raises(KannError, match="decode= gave NaN or Inf"):
        report(path, koopman, states, signals=[h[:, 0] for h in states], decode=lambda h: np.full(len(h), np.nan))
    assert not path.exists()


@pytest.mark.parametrize("wide", [False, True])
def test_packed_numbers_are_within_half_a_step(rng, wide):
    values = rng.normal(size=(50, 3)) * np.array([1.0, 1e-6, 0.0])
    packed = pack(values, wide=wide)
    kind = np.int16 if wide else np.int8
    numbers = np.frombuffer(gzip.decompress(base64.b64decode(packed.data)), dtype=kind).reshape(3, 50).T
    assert (np.abs(numbers * packed.scale - values) <= np.array(packed.scale) / 2 * 1.001).all()


@pytest.mark.parametrize(("error", "words"), [(0.01, "closely"), (0.2, "roughly"), (0.6, "not be relied on")])
def test_the_verdict_follows_the_error(error, words):
    koopman = kann.fit(turning_states())
    numbers = {"error": error, "agreement": 0.9, "driven": False, "explained": 0.5, "condition": None}
    says = " ".join(verdict(koopman, numbers, {"error": error / 10}))
    assert words in says
    assert "10 times less" in says
    assert "part of what decides lies outside" in says
    assert "a higher rank would hold more" in says
    assert "nearly dependent" in says
    alike = " ".join(verdict(koopman, numbers, {"error": error}))
    assert "hardly better" in alike
    assert ("evolve mostly by themselves" in alike) == (error < 0.3)
