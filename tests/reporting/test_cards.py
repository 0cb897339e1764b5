"""What the page says about the modes that matter, and about networks with outputs of every kind."""

from dataclasses import replace

import numpy as np
import pytest

import kann
from kann.reporting._report import report
from kann.reporting.sequences import kinds_of_points
from kann.reporting.trust import known_trust, null_radius
from tests.reporting.html_pages import (
    ORDER,
    Linear,
    SaddlePoints,
    channels_report,
    content_of,
    depth_report,
    explained_report,
    labels_report,
    made_effects,
    turning_states,
    values_report,
)


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    return content_of(explained_report(tmp_path_factory.mktemp("page") / "r.html"))


def pushed_states(seed=0):
    """A single unit that "good" pushes up and "bad" pushes down, and the words."""
    rng = np.random.default_rng(seed)
    words = rng.choice(["good", "bad", "the"], size=(30, 20))
    push = (words == "good") * 1.0 - (words == "bad") + 0.01 * rng.normal(size=words.shape)
    states = np.zeros_like(push)
    for t in range(1, words.shape[1]):
        states[:, t] = 0.9 * states[:, t - 1] + push[:, t]
    return kann.States.from_padded(states[..., None]), words.tolist()


@pytest.mark.parametrize("weight", [1.0, -1.0])
def test_examples_and_course_point_where_movers_point(tmp_path, weight):
    states, words = pushed_states()
    koopman, readout = kann.fit(states), Linear(np.array([[weight]]), 0.0)
    movers = kann.movers(koopman, states, words, readout=readout)
    effects = made_effects(koopman, (0,), (90,), counts=(1,))
    options = {"tokens": words, "readout": readout, "movers": movers, "effects": effects, "matter": [0]}
    path = report(tmp_path / "r.html", koopman, states, **options)
    _, page, _ = content_of(path)
    (card,) = page["cards"]
    up, down = card["movers"]["up"], card["movers"]["down"]
    expected = ("good", "bad")[:: int(weight)]
    assert (up["bars"][0]["name"], down["bars"][0]["name"]) == expected
    assert (up["examples"][0]["word"], down["examples"][0]["word"]) == expected
    example = up["examples"][0]
    assert words[example["sequence"]][example["step"]] == expected[0]
    groups = card["course"]["groups"]  # by what is decided: above or below zero
    assert groups["1"][-1] > groups["0"][-1]
    assert card["movers"]["moves"][0]["by"].startswith("+")


def test_without_a_readout_the_axis_still_points_as_movers_let_it(tmp_path):
    states, words = pushed_states()
    koopman = kann.fit(states)
    movers = kann.movers(koopman, states, words)
    turned = replace(movers, push=-movers.push, low=-movers.high, high=-movers.low)
    effects = made_effects(koopman, (0,), (90,), counts=(1,))
    for own in (movers, turned):
        path = report(tmp_path / "r.html", koopman, states, tokens=words, movers=own, effects=effects, matter=[0])
        _, page, _ = content_of(path)
        side = page["cards"][0]["movers"]["up"]
        assert side["examples"][0]["word"] == side["bars"][0]["name"] == own.up(0)[0].name


def test_bars_are_in_proportion_and_their_intervals_hold_them(explained):
    _, page, _ = explained
    bars = [bar for card in page["cards"] for side in ("up", "down") for bar in card["movers"][side]["bars"]]
    assert max(bar["width"] for bar in bars) == 80
    assert all(0 <= bar["from"] <= bar["width"] <= bar["to"] <= 100 for bar in bars)


def test_what_matters_is_always_shown(tmp_path):
    _, page, _ = content_of(explained_report(tmp_path / "r.html", modes=1))
    assert page["matter"] == [2, 0]
    assert set(page["matter"]) <= set(page["shown"])


def test_scores_of_single_modes_are_written_as_the_live_test_is(explained):
    text, page, _ = explained
    assert page["cards"][0]["alone"] == {"kept": "70.0 %", "removed": "60.0 %", "none": "50.0 %", "full": "100.0 %"}
    assert "Save as CSV" in text
    assert page["effects"]["score_in_full"] == "the fraction of decisions that stay the network's"


def test_own_sentences_stand_in_for_those_that_were_not_passed(tmp_path):
    states = turning_states()
    text, page, _ = content_of(report(tmp_path / "r.html", kann.fit(states), states))
    quotes = text.split('<ul class="quotes">')[1].split("</ul>")[0]
    assert quotes.count("<li>") == len(page["summary"]) == 3
    assert "What was chosen" not in text


def test_labels_at_every_step_are_kept_and_the_last_one_named(tmp_path):
    _, page, tables = content_of(channels_report(tmp_path / "r.html"))
    row = page["sequences"][0]
    assert len(row["at_steps"]) == row["length"]
    assert row["label"] == row["prediction"] == ["left", "middle", "right"][int(row["at_steps"][-1])]
    assert page["channels"] == tables["signal"].shape[1] == 3


def test_yes_or_no_answers_are_named(tmp_path):
    _, page, _ = content_of(labels_report(tmp_path / "r.html"))
    assert [row["label"] for row in page["sequences"]] == ["high"] * 4 + ["none"] * 4
    assert page["outputs"]["decided"] is None
    assert {row["prediction"] for row in page["sequences"]} <= {"none", "high", "loud", "high, loud"}


@pytest.mark.parametrize("kind", ["class", "labels"])
def test_behind_a_sigmoid_an_output_above_a_half_is_a_yes(kind, tmp_path):
    states = turning_states(count=8)
    koopman = kann.fit(states)

    def readout(h):  # never below 0, and above a half for half of the states
        return 1 / (1 + np.exp(-5 * (h[:, :1] - np.median(h[:, 0]))))

    pages = [
        content_of(report(tmp_path / "r.html", koopman, states, readout=readout, outputs=kind, threshold=threshold))[1]
        for threshold in (0.0, 0.5)
    ]
    said = [{row["prediction"] for row in page["sequences"]} for page in pages]
    yes, no = {"class": ("1", "0"), "labels": ("output", "none")}[kind]
    assert said == [{yes}, {yes, no}]
    assert pages[1]["threshold"] == 0.5
    assert pages[1]["outputs_kind"] == kind


def test_numbers_are_predicted_as_numbers(tmp_path):
    _, page, _ = content_of(values_report(tmp_path / "r.html"))
    assert page["sequences"][0]["label"] == "0.5, −1.25"
    assert len([float(part.replace("−", "-")) for part in page["sequences"][0]["prediction"].split(", ")]) == 2
    assert any(row["asked"] == "R² of the outputs" for row in page["trust_table"])


def test_depth_is_called_depth(tmp_path):
    text, page, _ = content_of(depth_report(tmp_path / "r.html"))
    assert any(row["asked"] == "Error of one layer, held out" for row in page["trust_table"])
    assert "one step" not in text.split("</main>")[0].split("<main>")[1]
    assert all("one step" not in row["why"] for row in page["modes"])


def test_no_half_life_is_longer_than_a_network_is_deep(tmp_path):
    """States that keep 99 % of a direction from layer to layer, in a network of four layers."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(80, 1, 2)) * np.array([0.99, 0.5]) ** np.arange(5)[:, None]
    states += 0.001 * rng.normal(size=states.shape)
    path = kann.report(tmp_path / "r.html", kann.fit(states), states, step_name="layer")
    cards = {card["number"]: card for card in content_of(path)[1]["cards"]}
    assert cards[0]["half_life"] == "more than 4 layers"
    assert cards[0]["half_life_interval"] is None
    assert cards[1]["half_life"] == "1 layer"


def test_kinds_of_points():
    assert kinds_of_points(SaddlePoints()) == ["stable", "saddle", "unstable", "slow"]


def test_shuffled_states_lie_within_the_radius(rng):
    states = kann.States.from_padded(rng.normal(size=(30, 40, 8)) @ rng.normal(size=(8, 8)))
    koopman = kann.fit(states, basis="pca")
    known = known_trust(koopman, states)
    radius = null_radius(koopman, known)
    # The circular law holds for many units; with eight, the largest of them lies within some tenths of the radius.
    assert 0.5 * radius < np.abs(koopman.eigenvalues).max() < 1.6 * radius
    assert null_radius(koopman, replace(known, trust=None)) is None


def test_what_no_mode_keeps_is_said_in_the_live_test_alone(tmp_path, rng):
    states = kann.States.from_padded(rng.normal(size=(20, 40, 5)))
    koopman = kann.fit(states)
    order = tuple(number for number in ORDER if number < len(koopman.modes))
    path = report(tmp_path / "r.html", koopman, states, effects=made_effects(koopman, order, (50, 50, 50)))
    text, page, _ = content_of(path)
    assert page["matter"] == page["cards"] == []
    assert 'id="effects"' in text
    assert 'id="modes"' not in text
