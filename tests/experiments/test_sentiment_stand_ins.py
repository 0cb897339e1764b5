"""Stand-ins of networks whose answer is known: words that add up need no gates, words that turn others round do."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from kann_experiments.sentiment import operators, stand_in_bases, stand_ins
from kann_experiments.sentiment.quantities import QUANTITIES
from kann_experiments.sentiment.task import CONFIGS

import kann
from tests.experiments.test_sentiment_live import WORDS, corpus, network_of  # noqa: F401  # corpus is a fixture

FLIP = 1
"""The word that turns round what was read before it."""


@pytest.fixture(scope="module")
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand_ins, "RECORDED_ON_CPU", 200)
        patch.setattr(stand_ins, "COORDINATES", (2, 6, 7))
        patch.setattr(stand_ins, "COMPONENTS", 5)
        yield patch


def turning_network():
    """A GRU whose update gate opens for one word alone, at which it takes the negative of its state."""
    network = network_of("gru")
    layer, units = network.recurrent, network.recurrent.hidden_size
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
        network.embedding.weight[:, 1:] = 0
        network.embedding.weight[FLIP] = torch.tensor([0.0, 1.0, 0.0])
        own = torch.arange(units)
        layer.weight_ih_l0[units : 2 * units, 1] = -12.0  # z = σ(6 − 12 u): keeps, but for that word
        layer.bias_ih_l0[:units] = 12.0  # r = 1
        layer.bias_ih_l0[units : 2 * units] = 6.0
        layer.weight_hh_l0[2 * units + own, own] = -1.0
        layer.weight_ih_l0[2 * units, 0] = 40.0  # good and bad words push through the almost closed gate
        network.readout.weight.zero_()
        network.readout.weight[0, 0] = 1.0
        network.readout.bias.zero_()
    return network


def with_flips(corpus):  # noqa: F811
    """The same reviews, in which every seventh word turns what was read round."""
    parts = {}
    for name in ("train", "test"):
        words = getattr(corpus, name).words.copy()
        words[::7] = FLIP
        parts[name] = replace(getattr(corpus, name), words=words)
    return replace(corpus, **parts)


def test_words_that_add_up_need_no_gates(few, corpus):  # noqa: F811
    numbers = stand_ins.measure_stand_ins(network_of("rnn"), corpus, seed=0)
    assert numbers["standin_recorded"] == 200
    assert numbers["standin_reviews"] == len(corpus.test)  # without a GPU too
    assert numbers["standin_6"] > 0.97
    assert numbers["driven_6"] > 0.97
    assert abs(numbers["standin_6_accuracy"] - numbers["standin_network"]) <= 1 - numbers["standin_6"]
    assert "standin_7" not in numbers  # the state has six units
    rows = {quantity.key for quantity in stand_ins.stand_in_quantities()}
    assert numbers.keys() == {key for key in rows if "_7" not in key}


def test_the_experiment_has_rows_for_all_sizes():
    keys = {quantity.key for quantity in QUANTITIES}
    assert {"standin_24", "standin_24_accuracy", "driven_24", "driven_32_accuracy", "standin_reviews"} <= keys


def test_a_word_that_turns_others_round_needs_a_matrix(few, corpus):  # noqa: F811
    few.setattr(stand_ins, "COORDINATES", (1,))
    few.setattr(stand_ins, "COMPONENTS", 2)
    numbers = stand_ins.measure_stand_ins(turning_network(), with_flips(corpus), seed=0)
    few.setattr(stand_ins, "COMPONENTS", 5)
    assert numbers["standin_1"] > 0.95
    assert numbers["driven_1"] < 0.8


@pytest.mark.parametrize(("arch", "dim"), [("gru", 6), ("lstm", 12)])
def test_logits_are_those_of_the_operator_in_place_of_the_network(few, corpus, arch, dim):  # noqa: F811
    network = network_of(arch)
    recorded = stand_ins.record_for_stand_ins(network, corpus.train.take(np.arange(150)))
    assert recorded.states.dim == dim
    koopman = stand_ins.fit_gated(recorded, 3)
    logits = stand_ins.simulated_logits(koopman, recorded.words, network, corpus.test)
    weight, bias = (each.detach().double().numpy() for each in (network.readout.weight, network.readout.bias))
    for i in (0, 5):
        last = koopman.simulate(recorded.words[corpus.test[i]])[-1]
        assert logits[i] == pytest.approx(float(weight[0] @ last[:6] + bias[0]), abs=1e-4)  # modules are in float32


def test_inputs_are_components_of_the_gates_that_record_finds(few, corpus):  # noqa: F811
    network = network_of("gru")
    reviews = corpus.train.take(np.arange(40))
    recorded = stand_ins.record_for_stand_ins(network, reviews)
    texts = [torch.from_numpy(reviews[i]) for i in np.argsort(reviews.lengths, kind="stable")]
    gates = kann.record(network, texts, layer="recurrent", inputs="gates", initial=True, batch_size=128)
    np.testing.assert_allclose(recorded.states.values, gates.values, atol=1e-6)
    after = np.setdiff1d(np.arange(len(gates.values)), gates.starts)
    read = gates.inputs[after].astype(np.float64)
    values, vectors = np.linalg.eigh(np.cov(read.T))
    own = recorded.states.inputs[after]
    np.testing.assert_allclose(np.cov(own.T, bias=True).diagonal(), values[::-1][:5] * (1 - 1 / len(own)), rtol=1e-4)
    components = (read - read.mean(axis=0)) @ vectors[:, ::-1][:, :5]
    np.testing.assert_allclose(np.abs(own), np.abs(components), atol=1e-4)


def test_numbers_are_kept_beside_the_network(few, corpus, tmp_path, monkeypatch):  # noqa: F811
    calls = []

    def measure(*_, **__):
        calls.append(1)
        return {"standin_4": 0.5}

    monkeypatch.setattr(stand_ins, "measure_stand_ins", measure)
    path = tmp_path / "stand_ins.json"
    for _ in range(2):
        assert stand_ins.stand_in_numbers(network_of("rnn"), corpus, seed=0, path=path) == {"standin_4": 0.5}
    assert len(calls) == 1
    stand_ins.stand_in_numbers(network_of("rnn"), corpus, seed=1, path=path)
    stand_ins.stand_in_numbers(network_of("gru"), corpus, seed=1, path=path)
    path.write_text("[]")
    stand_ins.stand_in_numbers(network_of("gru"), corpus, seed=1, path=path)
    assert len(calls) == 4


def test_a_trained_network_is_measured_by_its_folder(few, corpus, tmp_path, monkeypatch):  # noqa: F811
    config = replace(CONFIGS["gru"], units=6, embedding=3, epochs=1)
    monkeypatch.setitem(stand_ins.CONFIGS, "gru", config)
    monkeypatch.setattr(stand_ins, "load_corpus", lambda: corpus)
    monkeypatch.setattr(operators, "FITTED_REVIEWS", 200)
    numbers = stand_ins.measure_seed("gru", seed=0, out=tmp_path, device="cpu")
    kept = json.loads((tmp_path / "gru" / "seed-0" / "stand_ins.json").read_text())
    assert kept["numbers"] == numbers
    assert kept["made_by"]["device"] == "cpu"


def test_few_balanced_coordinates_decide_as_the_network_does(few, corpus, tmp_path, monkeypatch):  # noqa: F811
    network = network_of("gru")
    monkeypatch.setattr(stand_in_bases, "load_corpus", lambda: corpus)
    monkeypatch.setattr(stand_in_bases, "trained", lambda *_, **__: network)
    monkeypatch.setattr(stand_in_bases, "RESULTS", tmp_path)
    path = stand_in_bases.compare_seeds("gru", seeds=(0, 1), out=tmp_path, counts=(1, 2))
    found = json.loads(path.read_text())
    assert path == tmp_path / "sentiment-stand-ins" / "gru.json"
    assert found["seeds"] == [0, 1]
    assert {"versions", "made_on"} <= found.keys()
    rows = found["rows"]
    assert rows["recorded"]["mean"] == 200
    assert rows["reviews"]["mean"] == min(stand_in_bases.JUDGED_ON_CPU, len(corpus.test))
    assert {f"{kind}_{count}" for kind in stand_in_bases.KINDS for count in (1, 2)} <= rows.keys()
    assert "balanced_4" not in rows
    assert rows["balanced_2"]["mean"] > 0.9
