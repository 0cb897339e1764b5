import html
import io
import os
import re
import subprocess
import sys
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import kann
import kann.cli.highlight
from kann import zoo
from kann._display import DIRECTION_MARKS
from kann._format import signed
from kann.cli import app
from kann.cli.highlight import read_text, shade
from kann.errors import KannError
from kann.reporting.offline import write_page
from kann.reporting.shaded_text import layers, print_shading, shading_page

SENTENCE = "The plot is not bad at all, and the acting is amazing. The ending was awful."


@pytest.fixture(scope="module")
def model():
    return zoo.load("sentiment")


def printed(shading, *, colour=None):
    stream = io.StringIO()
    print_shading(shading, Console(file=stream, force_terminal=colour is not None, color_system=colour, width=100))
    return stream.getvalue()


def test_amazing_and_awful_push_in_opposite_directions(model):
    shading = shade(SENTENCE, model=model)
    good, bad = (shading.words.index(word) for word in ("amazing", "awful"))
    assert shading.changes[good] > 0 > shading.changes[bad]
    leading = shading.modes[0]
    assert leading.changes[good] > 0 > leading.changes[bad]


def test_what_words_add_sums_to_the_logit(model):
    shading = shade(SENTENCE, model=model)
    bias = float(model.network.readout.bias)
    np.testing.assert_allclose(bias + np.cumsum(shading.changes), shading.logits, atol=1e-9)


def test_modes_are_those_of_the_library(model):
    every = range(len(model.koopman.modes))
    shading = shade(SENTENCE, modes=every, model=model)
    ids, _ = model.vocabulary.locate(SENTENCE)
    import torch

    h = model.network.states(torch.from_numpy(ids)[None])[0].double().numpy()
    weight = model.network.readout.weight.numpy()
    shares, before = (kann.contributions(model.koopman, states, weight) for states in (h, np.zeros((1, 256))))
    for each in shading.modes:
        # What was there before anything was read, plus what each word changed.
        own = before.modes[0, each.mode, 0] + np.cumsum(each.changes)
        np.testing.assert_allclose(own, shares.modes[:, each.mode, 0], atol=1e-9)
    changed = sum(each.changes.sum() for each in shading.modes) + shares.rest[-1, 0] - before.rest[0, 0]
    assert changed + float(model.network.readout.bias) == pytest.approx(shading.logits[-1], abs=1e-4)


def test_magnitudes_go_from_0_to_1(model):
    for each in shade(SENTENCE, model=model).modes:
        assert (each.magnitudes.min(), each.magnitudes.max()) == (0, pytest.approx(1))


def test_words_stand_where_they_stood(model):
    shading = shade(SENTENCE, model=model)
    assert shading.text == SENTENCE
    assert "".join(shading.words) == SENTENCE.replace(" ", "")


def test_the_most_important_trusted_modes_are_shown_first(model):
    trusted = [mode for mode in model.modes if model.trust.modes[mode].trusted]
    expected = trusted[:2] or list(model.modes[:2])
    assert [each.mode for each in shade("fine", model=model).modes] == expected
    assert [each.mode for each in shade("fine", modes=[3, 1, 3], model=model).modes] == [3, 1]
    assert [each.mode for each in shade("fine", modes=[], model=model).modes] == expected


@pytest.mark.parametrize("trusted", [True, False])
def test_modes_that_are_not_trusted_are_said_to_be_so(model, trusted):
    modes = tuple(replace(mode, trusted=trusted and number == 2) for number, mode in enumerate(model.trust.modes))
    judged = replace(model, trust=replace(model.trust, modes=modes), modes=(0, 1, 2))
    shading = shade("fine", model=judged)
    assert [each.mode for each in shading.modes] == ([2] if trusted else [0, 1])
    titles = [layer.title for layer in layers(shading)[1:]]
    assert all(("not trusted" in title) == (not trusted) for title in titles)


@pytest.mark.parametrize("mode", [-1, 10_000])
def test_a_mode_that_does_not_exist(model, mode):
    with pytest.raises(KannError, match=f"mode {mode} does not exist; the network's operator has modes 0 to"):
        shade("fine", modes=[mode], model=model)


@pytest.mark.parametrize("text", ["", " \n\t ", "\u200f"])
def test_a_text_without_words(model, text):
    shading = shade(text, model=model)
    assert not shading.spans
    assert "there are no words to read" in printed(shading)
    assert "there are no words to read" in shading_page(shading)


def test_unknown_words_are_counted_and_marked(model):
    shading = shade("qwxyzzy great שלום 😀", model=model)
    assert shading.unknown == (True, False, True, True)
    assert "4 words, 3 of them unknown" in shading.verdict
    assert shading_page(shading).count('class="unknown"') == 3 * len(layers(shading))
    for word in ("שלום", "😀"):
        assert word in printed(shading)
        assert word in shading_page(shading)


def test_ten_thousand_words(model):
    shading = shade("the acting was amazing . " * 2000, model=model)
    assert len(shading.words) == 10_000
    assert np.isfinite(shading.logits).all()
    assert len(printed(shading)) > 50_000


SGR = re.compile(r"\x1b\[[0-9;]*m")


@settings(max_examples=60)
@example("\x1b]0;title\x07\x1b[2Jgood\r\n\x9b31mbad\x7f\x00")
@example("good \u202ebad\u202c \u2066x\u2069 \ud800")
@given(st.text(st.characters(), max_size=60))
def test_nothing_steers_the_terminal(text):
    shading = shade(text, model=zoo_model())
    for colour in (None, "truecolor"):
        left = SGR.sub("", printed(shading, colour=colour))
        assert all(sign == "\n" or unicodedata.category(sign) not in ("Cc", "Cs") for sign in left)
        assert not DIRECTION_MARKS & set(left)


def zoo_model(kept=[]):  # noqa: B006 - hypothesis cannot take the fixture, and loading it each time is slow
    if not kept:
        kept.append(zoo.load("sentiment"))
    return kept[0]


def test_colours_tell_the_direction(model):
    text = printed(shade(SENTENCE, modes=[model.modes[0]], model=model), colour="truecolor")
    grounds = {}
    for word in ("amazing", "awful"):
        red, _, blue = map(int, re.search(rf"48;2;(\d+);(\d+);(\d+)m{word}", text).groups())
        grounds[word] = red - blue
    assert grounds["amazing"] > 0 > grounds["awful"]  # orange and blue


def test_without_colour_numbers_stand_behind_words(model):
    shading = shade(SENTENCE, model=model)
    text = printed(shading)
    for word in ("amazing", "awful"):
        change = shading.changes[shading.words.index(word)]
        assert re.search(rf"{word}\[([+−]\d\.\d)\]", text)[1] == signed(change, 1)
    assert "\x1b" not in text


class Page(HTMLParser):
    """Tags and text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = set(), []

    def handle_starttag(self, tag, attrs):  # noqa: D102
        self.tags.add(tag)
        assert not {"src", "href", "onclick", "onerror"} & {name for name, _ in attrs}

    def handle_data(self, data):  # noqa: D102
        self.text.append(data)


def test_a_page_is_escaped_and_needs_nothing_else(model):
    hostile = "good <script>alert('x')</script> & \"bad\" <img src=x onerror=alert(1)>"
    shading = shade(hostile, model=model)
    parser = Page()
    parser.feed(shading_page(shading))
    assert not parser.tags & {"script", "img", "link", "iframe"}
    assert "".join(parser.text).count(hostile) == len(layers(shading))
    assert "http:" not in shading_page(shading)
    assert "https:" not in shading_page(shading)


def test_a_page_may_do_nothing_but_show_itself(model):
    (policy,) = re.findall(
        r'http-equiv="Content-Security-Policy" content="(.*?)"', shading_page(shade("a", model=model))
    )
    policy = html.unescape(policy)
    assert policy.startswith("default-src 'none'; script-src 'none'; style-src 'unsafe-inline'")
    assert "http" not in policy


def test_a_page_is_written_whole_or_not_at_all(model, tmp_path):
    shading = shade("great", model=model)
    write_page(tmp_path / "page.html", shading_page(shading))
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == shading_page(shading)
    with pytest.raises(OSError, match="could not save"):
        write_page(tmp_path / "none" / "page.html", shading_page(shading))
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_text_comes_from_the_argument_or_from_standard_input():
    stream = io.BytesIO("größe ".encode() + b"\xff")
    assert read_text("fine", None) == "fine"
    assert read_text(None, stream) == "größe \ufffd"
    assert read_text("-", io.BytesIO(b"ok")) == "ok"


def test_highlight_prints_or_writes_a_page(run, tmp_path):
    result = run("highlight", "An amazing plot, but awful acting.", "--mode", "0")
    assert result.exit_code == 0, result.output
    assert "amazing" in result.stdout
    assert "mode 0" in result.stdout
    assert run("highlight", "Good.", "--html", "page.html").stdout.strip() == "page.html"
    assert "Good" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "page.html exists" in run("highlight", "Good.", "--html", "page.html").stderr
    assert "mode 999 does not exist" in run("highlight", "Good.", "--mode", "999").stderr


def test_a_terminal_that_knows_few_characters_gets_question_marks(tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "kann", "highlight", "A naïve plot."]
    done = subprocess.run(command, capture_output=True, env=environment, cwd=tmp_path, check=True)
    assert b"na?ve" in done.stdout


def test_highlight_reads_standard_input(run):
    result = run("highlight", input="Simply wonderful")
    assert result.exit_code == 0, result.output
    assert "wonderful" in result.stdout


@pytest.mark.parametrize("text", ["", " \n", "\u200f"])
def test_a_text_without_words_is_an_error_of_the_command(text):
    result = CliRunner().invoke(app, ["highlight", text])
    assert result.exit_code != 0
    assert "the text has no words to read; pass some" in result.output


def test_the_help_says_how_magnitudes_are_scaled(run):
    text = " ".join(run("highlight", "--help").stdout.replace("│", " ").split())
    assert (
        "A mode's magnitude is scaled to each text: 0 where it is smallest in the text, 1 where it is largest." in text
    )
