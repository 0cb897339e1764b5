"""The result: the page, the folder, and how it looks in a notebook."""

import json
import re

import pytest

import kann
from tests.explaining import networks
from tests.explaining.networks import numbers, seeded
from tests.reporting.html_pages import content_of


@pytest.fixture(scope="module")
def found():
    import torch

    generator = torch.Generator().manual_seed(0)
    return kann.explain(seeded(networks.LinearNetwork), numbers(generator), step_seconds=0.5, progress=False)


def test_it_says_what_it_found(found):
    assert str(found) == "\n".join(found.sentences)
    assert repr(found).startswith("Explanation(Koopman(driven by 2 inputs, 5 units")
    assert "half of it is left after 6.6 steps = 3.29 s" in str(found)  # of half a second each
    assert found.steps is None  # maps of single layers are for depth


def test_every_network_gets_a_memory_curve(found, tmp_path):
    left = found.memory.left(of="states")
    assert left[0] > 2 * left[-1]  # its slowest eigenvalue is 0.9
    assert found.facts.remembered.half_life == found.memory.half_life()
    curves = content_of(found.report(tmp_path / "report.html"))[1]["memory"]["curves"]
    untrained = ["outputs, untrained", "states, untrained"]
    assert [each["name"] for each in curves] == [
        "outputs",
        "states",
        *untrained,
        "outputs, input 0",
        "outputs, input 1",
    ]


def test_sentences_do_not_contradict_each_other(found):
    text = " ".join(found.sentences)
    assert "Nothing can be concluded" not in text
    assert all(sentence.endswith(".") for sentence in found.sentences + found.choices)


def test_a_folder_holds_everything(found, tmp_path):
    place = found.save(tmp_path / "explained")
    assert {each.name for each in place.iterdir()} == {
        "koopman.npz",
        "explanation.npz",
        "states.npz",
        "explanation.json",
        "report.html",
    }
    numbers_kept = json.loads((place / "explanation.json").read_text(encoding="utf-8"))
    assert numbers_kept["sentences"] == list(found.sentences)
    assert numbers_kept["effects"]["kept"]["modes"]["mean"][1] == 1.0
    assert numbers_kept["step_seconds"] == 0.5
    assert len(numbers_kept["modes"]) == len(found.koopman.modes)
    assert kann.Koopman.load(place / "koopman.npz").rank == found.koopman.rank
    assert len(kann.States.open(place / "states.npz")) == len(found.states)


def test_the_page_is_shown_inline_without_network(found, tmp_path):
    shown = found.show(height=400)
    html = shown._repr_html_()
    frame = re.fullmatch(r'<iframe (.*?) srcdoc="([^"]*)"></iframe>', html, flags=re.DOTALL)
    assert frame
    assert "height:400px" in frame[1]
    assert "src=" not in frame[1]
    from html import unescape

    assert unescape(frame[2]).lstrip().lower().startswith("<!doctype html>")
    assert re.match(r"InlinePage\(\d\.\d MB", repr(shown))


def test_in_a_notebook_it_shows_its_sentences(found):
    html = found._repr_html_()
    assert found.sentences[-1].replace("'", "&#x27;") in html
    assert "Chosen" in html
    for part in (found.trust, found.effects, found.movers, found.states):
        assert "<table>" in part._repr_html_()
