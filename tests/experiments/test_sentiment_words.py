"""Words as matrices, in a network whose words are known: one turns the state round, others add to it."""

import doctest
import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from kann_experiments.pages import collect, filled
from kann_experiments.sentiment import stand_ins, word_matrices, word_pages, word_plane
from kann_experiments.sentiment.corpus import Reviews
from kann_experiments.sentiment.reading import read_reviews

import kann
from kann.errors import KannError
from tests.experiments.test_sentiment_live import BAD, GOOD, corpus, network_of  # noqa: F401  # corpus is a fixture
from tests.experiments.test_sentiment_stand_ins import FLIP, turning_network, with_flips


@pytest.fixture(scope="module")
def measured(corpus):  # noqa: F811
    """The network in which word 1 turns the sentiment round; its vocabulary names words by their numbers."""
    with pytest.MonkeyPatch.context() as patch:
        names = {number: corpus.vocabulary.tokenizer.id_to_token(number) for number in (FLIP, GOOD[0], BAD[0])}
        flip, good, bad = names.values()
        patch.setattr(stand_ins, "COMPONENTS", 2)
        patch.setattr(stand_ins, "RECORDED_ON_CPU", 200)
        patch.setattr(word_matrices, "NEXT_WORD", "w39")
        patch.setattr(word_matrices, "RANK", 1)
        patch.setattr(word_matrices, "FEWEST_CONTEXTS", 5)
        patch.setattr(word_matrices, "SINGLE_WORDS", (flip, good, bad, "nowhere"))
        patch.setattr(word_matrices, "PHRASES", ((flip, good), (good, flip)))
        patch.setattr(word_matrices, "PAPERS", ((flip, good),))
        found = word_matrices.measure_words(turning_network(), with_flips(corpus), seed=0)
        yield found, names


@pytest.fixture(scope="module")
def one_coordinate(corpus):  # noqa: F811
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand_ins, "RECORDED_ON_CPU", 200)
        patch.setattr(stand_ins, "COMPONENTS", 5)
        for module in (word_plane, word_pages):
            patch.setattr(module, "LEAST", 1)
        yield word_plane.measure_pairs(network_of("rnn"), corpus)


def test_a_word_that_turns_round_keeps_the_negative(measured):
    found, names = measured
    turned, good = found.words[names[FLIP]], found.words[names[GOOD[0]]]
    for kind in ("matrix", "operator", "network"):
        assert turned[kind].keeps.value < -0.9
        assert good[kind].keeps.value == pytest.approx(1.0, abs=0.1)
        assert good[kind].pushes.value > 0.0
    assert found.words[names[BAD[0]]]["network"].pushes.value < 0.0
    assert "nowhere" not in found.words
    assert found.fraction == pytest.approx(1.0, abs=0.05)  # one coordinate holds all of the logit


def test_what_a_word_moves_is_followed_over_the_next_word(measured):
    found, names = measured
    good, bad = found.courses[names[GOOD[0]]], found.courses[names[BAD[0]]]
    for kind in ("network", "operator"):
        first, second = good[kind].logit
        assert first.value > 10 * first.error
        assert second.value == pytest.approx(first.value, rel=0.2)  # the next word keeps it
        assert bad[kind].logit[0].value < 0.0
        assert len(good[kind].modes) == len(found.leading) == 1
    assert good["operator"].logit[0].value == pytest.approx(good["network"].logit[0].value, rel=0.2)


def test_a_push_after_the_turn_is_what_it_is_and_before_it_is_undone(measured):
    found, names = measured
    after = found.phrases[f"{names[FLIP]} {names[GOOD[0]]}"]
    assert after["network"].factor.value == pytest.approx(1.0, abs=0.15)
    assert after["operator"].factor.value == pytest.approx(after["network"].factor.value, abs=0.15)


def test_states_before_a_text_are_those_of_the_network(corpus):  # noqa: F811
    network, ids = network_of("gru"), (int(corpus.test[0][3]), int(corpus.test[0][4]))
    found = word_matrices.states_before(network, corpus.test, [ids], seed=0)[ids]
    places = word_matrices.find_text(corpus.test, ids)
    assert len(found) == len(places)
    (batch,) = read_reviews(network, corpus.test.take([0]))
    np.testing.assert_allclose(found[0], batch.h[0, 2].detach().numpy(), atol=1e-6)


def test_a_text_at_the_start_of_a_review_is_read_from_zero():
    one = Reviews(words=np.array([5, 6, 7]), lengths=np.array([3]), positive=np.array([1]))
    found = word_matrices.states_before(network_of("rnn"), one, [(5,), (7,)], seed=0)
    assert not found[5,].any()
    assert found[7,].any()


def test_an_lstm_is_refused(corpus):  # noqa: F811
    with pytest.raises(KannError, match="pass a network with a GRU or an RNN"):
        word_matrices.measure_words(network_of("lstm"), corpus, seed=0)


def test_an_operator_without_a_real_mode_is_refused():
    turn = np.array([[0.0, 0.9], [-0.9, 0.0]])
    rng = np.random.default_rng(0)
    h = np.zeros((40, 30, 2))
    u = rng.normal(size=(40, 30, 1))
    for t in range(1, 30):
        h[:, t] = h[:, t - 1] @ turn + u[:, t] * [1.0, 0.5]
    koopman = kann.fit(kann.States.from_padded(h, inputs=u), driven="bilinear")
    with pytest.raises(KannError, match="no mode of this operator is real"):
        word_matrices.sentiment_mode(koopman, np.ones(2))


def test_tables_and_figures_show_every_word_and_phrase(measured, one_coordinate, tmp_path):
    found, names = measured
    folder = tmp_path / "runs" / "words" / "gru"
    files = word_pages.write_words(found, one_coordinate, folder, provenance={"seed": 2})
    assert {path.name for path in files if path.suffix != ".svg"} == {
        "results.json",
        "words.json",
        "words.png",
        "word-plane.png",
    }
    (kept,) = collect(tmp_path / "runs", tmp_path / "results")
    content = json.loads(kept.read_text())
    assert content["rows"].keys() == {quantity.key for quantity in word_pages.QUANTITIES}
    assert any(f"| {names[FLIP]} |" in line for line in content["lines"]["words"])
    assert {line.split(" | ")[0][2:] for line in content["lines"]["phrases"][2:]} == set(found.phrases)
    assert "| adds most | " in content["lines"]["pairs"][2]
    page = "<!-- lines words/gru pairs -->\n<!-- value words/gru eigenvalue --><!-- end -->"
    assert "adds least" in filled(page, tmp_path / "results")
    details = json.loads((folder / "words.json").read_text())
    assert details["words"][names[FLIP]]["matrix"]["keeps"]["value"] == found.words[names[FLIP]]["matrix"].keeps.value
    figure = word_pages.draw_words(found)
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == list(found.phrases)


def test_jackknife_and_places_of_texts_by_example():
    assert not doctest.testmod(word_matrices).failed
    torch.manual_seed(0)
    draws = np.random.default_rng(0).normal(size=1000)
    (found,) = word_matrices.jackknife(
        np.array([draws.mean()]), [np.array([np.delete(draws, slice(i, None, 10)).mean()]) for i in range(10)]
    )
    assert found.error == pytest.approx(1 / np.sqrt(1000), rel=0.6)  # ten groups know it to a quarter


def test_words_are_pairs_along_one_balanced_coordinate(corpus, one_coordinate):  # noqa: F811
    found, pairs = one_coordinate, one_coordinate.pairs
    assert found.koopman.rank == 1
    assert found.agreement > 0.8
    names = corpus.vocabulary.words
    assert set(pairs.words) <= set(names)
    up = {pairs.words[i] for i in np.argsort(-pairs.adds)[: len(GOOD)]}
    down = {pairs.words[i] for i in np.argsort(pairs.adds)[: len(BAD)]}
    assert up == {names[number] for number in GOOD}
    assert down == {names[number] for number in BAD}
    figure = word_plane.word_plane(pairs)
    assert len(figure.axes[0].collections[0].get_offsets()) == len(pairs.words)
    plt.close(figure)
