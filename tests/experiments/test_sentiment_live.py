"""Live tests of a network whose answer is known: one unit adds up what words say, others only make noise."""

import doctest
import json
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from kann_experiments.sentiment import stand_ins
from kann_experiments.sentiment.corpus import Corpus, Reviews, train_vocabulary
from kann_experiments.sentiment.groups import Groups
from kann_experiments.sentiment.live import attributions, bench, measurements, store, words
from kann_experiments.sentiment.live.measurements import PaperGroups, measure_live
from kann_experiments.sentiment.quantities import LIVE

import kann
from kann.errors import KannWarning
from kann.zoo.sentiment_network import SentimentNetwork

GOOD, BAD = range(2, 6), range(6, 10)
WORDS = 40


def reviews(count, seed):
    """Reviews of random words; of each every fifth word is good or bad, mostly as its author means it."""
    rng = np.random.default_rng(seed)
    lengths, positive = rng.integers(12, 25, size=count), rng.integers(0, 2, size=count)
    texts = []
    for length, liked in zip(lengths, positive, strict=True):
        text = rng.integers(10, WORDS, size=length)
        kinds = np.where(rng.random(length) < 0.75, liked, 1 - liked)
        telling = np.where(kinds == 1, rng.choice(GOOD, size=length), rng.choice(BAD, size=length))
        texts.append(np.where(np.arange(length) % 5 == 2, telling, text))
    return Reviews(words=np.concatenate(texts), lengths=lengths, positive=positive)


def network_of(arch):
    """Unit 0 remembers good and bad words and is read out; the other units follow noise, and forget."""
    torch.manual_seed(0)
    network = SentimentNetwork(words=WORDS, arch=arch, units=6, embedding=3)
    with torch.no_grad():
        network.embedding.weight.normal_()
        network.embedding.weight[:, 0] = 0
        network.embedding.weight[list(GOOD), 0] = 1.0
        network.embedding.weight[list(BAD), 0] = -1.0
        network.embedding.weight[0] = 0
        if arch == "rnn":
            layer = network.recurrent
            layer.weight_hh_l0.copy_(torch.diag(torch.tensor([0.98, 0.5, 0.5, 0.4, 0.3, 0.2])))
            layer.weight_ih_l0.normal_().mul_(0.3)
            layer.weight_ih_l0[:, 0] = torch.tensor([0.05, 0, 0, 0, 0, 0])
            layer.weight_ih_l0[0, 1:] = 0
            layer.bias_ih_l0.zero_()
            layer.bias_hh_l0.zero_()
            network.readout.weight.copy_(torch.tensor([[5.0, 0, 0, 0, 0, 0]]))
            network.readout.bias.zero_()
    return network.eval()


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "RECORDED_REVIEWS", 150)
        patch.setattr(bench, "JUDGED_ON_CPU", 160)
        patch.setattr(words, "WORDS_REVIEWS_ON_CPU", 100)
        patch.setattr(measurements, "COUNTS", (2, 4))
        patch.setattr(stand_ins, "COORDINATES", (6,))
        patch.setattr(stand_ins, "COMPONENTS", 5)
        patch.setattr(words, "captum_attributions", lambda _: {"gradient": telling})
        yield patch


def telling(ids, lengths):
    """A way to attribute that knows the answer."""
    table = np.zeros(WORDS)
    table[list(GOOD)], table[list(BAD)] = 1.0, -1.0
    return table[ids.numpy()]


@pytest.fixture(scope="module")
def corpus():
    vocabulary = train_vocabulary([" ".join(f"w{i}" for i in range(WORDS))], size=WORDS)
    return Corpus(train=reviews(900, 0), test=reviews(200, 1), vocabulary=vocabulary)


@pytest.fixture(scope="module")
def network():
    return network_of("rnn")


@pytest.fixture(scope="module")
def paper(network, corpus):
    states = kann.record(network, bench.sequences(corpus.test), layer="recurrent")
    return PaperGroups(koopman=kann.fit(states), groups=Groups(negative=(0,), positive=(1, 2), split=0.5))


@pytest.fixture(scope="module")
def result(small, network, corpus, paper):
    return measure_live(network, corpus, seed=0, paper=paper)


def test_one_coordinate_keeps_what_the_network_decides(result):
    numbers = result.numbers
    assert numbers["live_reviews"] == 160
    assert numbers["live_one"] > 0.97
    assert numbers["live_one_readout"] > 0.97
    assert numbers["live_one_pca"] < 0.7  # it follows the noise
    assert numbers["live_one_random"] < 0.9
    assert numbers["live_one_lead"] == pytest.approx(numbers["live_one"] - numbers["live_one_readout"])
    assert numbers["live_one_mode"] > 0.97
    assert abs(numbers["live_one_accuracy"] - numbers["live_accuracy"]) < 0.03


def test_without_it_hardly_more_than_chance_is_left(result):
    assert result.numbers["live_removed"] < 0.75
    assert result.numbers["live_removed_pca"] > result.numbers["live_removed"] + 0.1
    assert result.numbers["live_none"] < 0.7


def test_how_many_coordinates_it_takes(result):
    assert result.numbers["live_needs_balanced"] == 1
    assert result.numbers["live_needs_modes"] == 1
    assert result.numbers["live_needs_pca"] > 1
    assert result.numbers["live_modes_4"] > 0.97


def test_the_group_that_holds_the_slow_mode_decides_and_the_other_does_not(result):
    numbers = result.numbers
    assert numbers["live_group_negative"] > 0.95
    assert numbers["live_groups"] > 0.95
    assert numbers["live_group_positive"] < 0.8
    assert numbers["live_group_negative_removed"] < numbers["live_group_positive_removed"]
    assert 0 <= numbers["live_groups_split"] <= 1


def test_deleting_words_that_push_the_coordinate_flips_as_many_as_knowing_them(result):
    numbers = result.numbers
    assert numbers["words_mode"] > numbers["words_random"] + 0.1
    assert numbers["words_mode"] == pytest.approx(numbers["words_gradient"], abs=0.06)
    assert numbers["words_logit"] == pytest.approx(numbers["words_gradient"], abs=0.06)


def test_all_numbers_have_a_row(result):
    assert result.numbers.keys() <= {quantity.key for quantity in LIVE}
    assert result.details["rank of the modes"] == 6


def test_accuracy_is_that_of_the_changed_decisions(small, network, corpus):
    with torch.no_grad():
        own = bench.make_bench(network, corpus, seed=0)
    ids, lengths = own.judged.batch(np.arange(len(own.judged)))
    with torch.no_grad():
        logits = network(ids, lengths).numpy()
    np.testing.assert_array_equal(own.positive, logits > 0)
    everything = {"all": bench.Change(directions=np.eye(6))}
    assert own.kept(everything)["all"].all()


def test_a_bench_has_recorded_and_judged_reviews(small, network, corpus):
    with torch.no_grad():
        own = bench.make_bench(network, corpus, seed=0)
    assert len(own.judged) == 160
    recorded = len(own.states)
    assert recorded == 150


@pytest.mark.parametrize("arch", ["gru", "lstm"])
def test_gated_networks_run_too_an_lstm_with_its_cell(small, corpus, arch):
    network = network_of(arch)
    found = measure_live(network, corpus, seed=1)
    assert "live_groups" not in found.numbers
    assert 0 <= found.numbers["live_one"] <= 1
    with torch.no_grad():
        own = bench.make_bench(network, corpus, seed=1)
    assert own.state == {"gru": "h", "lstm": "hc"}[arch]
    assert own.spread.dim == {"gru": 6, "lstm": 12}[arch]
    assert own.weight.shape == (1, own.spread.dim)


def test_a_result_is_read_again_only_for_the_same_network(small, network, corpus, tmp_path, monkeypatch):
    calls = []

    def measure(*_, **__):
        calls.append(1)
        return store.LiveResult(numbers={"live_one": 0.5, "live_needs_pca": np.inf}, details={})

    monkeypatch.setattr(store, "measure_live", measure)
    path = tmp_path / "live.json"
    first = store.live_result(network, corpus, seed=0, path=path)
    again = store.live_result(network, corpus, seed=0, path=path)
    assert (len(calls), again.numbers) == (1, first.numbers)
    store.live_result(network, corpus, seed=1, path=path)
    path.write_text('{"made_by": 3}')
    store.live_result(network, corpus, seed=1, path=path)
    path.write_text("nothing")
    store.live_result(network, corpus, seed=1, path=path)
    store.live_result(network_of("gru"), corpus, seed=1, path=path)
    assert len(calls) == 5


def test_the_shipped_network_is_tested_where_its_seed_is(small, network, corpus, tmp_path, monkeypatch):
    shipped = types.SimpleNamespace(network=network, vocabulary=corpus.vocabulary)
    monkeypatch.setattr(store.zoo, "load", lambda _: shipped)
    monkeypatch.setattr(store.zoo, "provenance", lambda _: {"seed": 2})
    assert store.measure_shipped(corpus, seeds=[0, 1], folder=tmp_path / "shipped", device="cpu") == ()
    (path,) = store.measure_shipped(corpus, seeds=[1, 2], folder=tmp_path / "shipped", device="cpu")
    content = json.loads(path.read_text())
    assert content["rows"]["live_one"]["mean"] > 0.97
    assert content["rows"]["standin_6"]["mean"] > 0.9
    assert content["seeds"] == [2]
    other = replace(corpus, vocabulary=train_vocabulary(["one two"], size=4))
    assert store.measure_shipped(other, seeds=[2], folder=tmp_path / "shipped", device="cpu") == ()


def test_words_are_deleted_toward_the_decision():
    assert not doctest.testmod(words).failed
    both = Reviews(words=np.array([5, 6, 7, 8, 9]), lengths=np.array([4, 1]), positive=np.array([1, 0]))
    left = words.without_pushing(both, [np.array([0.0, 2.0, -3.0, 1.0]), np.array([1.0])], np.array([False, True]))
    assert left[0].tolist() == [5, 6, 8]
    assert left[1].tolist() == [9]  # one word is always left


def test_pushes_are_changes_of_the_state(small, network, corpus):
    with torch.no_grad():
        own = bench.make_bench(network, corpus, seed=0)
    some = own.judged.take(np.arange(7))
    pushes = words.pushes_of(network, some, words.along(own, np.eye(6)[0]))
    for i, push in enumerate(pushes):
        with torch.no_grad():
            h = network.states(torch.from_numpy(some[i])[None])[0].numpy()
        np.testing.assert_allclose(np.cumsum(push), h[:, 0], atol=1e-6)


def test_without_captum_its_rows_are_left_out(network, monkeypatch):
    monkeypatch.setattr(attributions, "captum_is_installed", lambda: False)
    with pytest.warns(KannWarning, match="Captum is not installed"):
        assert attributions.captum_attributions(network) == {}


class Gradient:
    """A stand-in for Captum's gradient × input, by torch's own gradients; integrated gradients of a linear function."""

    def __init__(self, forward):
        self.forward = forward

    def attribute(self, inputs, additional_forward_args=None, n_steps=None, internal_batch_size=None):
        """The input times its gradient."""
        (gradient,) = torch.autograd.grad(self.forward(inputs, additional_forward_args).sum(), [inputs])
        return inputs * gradient


def test_captum_is_given_embeddings_and_lengths(network, corpus, monkeypatch):
    fake = types.ModuleType("captum.attr")
    fake.InputXGradient = fake.IntegratedGradients = Gradient
    monkeypatch.setitem(sys.modules, "captum", types.ModuleType("captum"))
    monkeypatch.setitem(sys.modules, "captum.attr", fake)
    monkeypatch.setattr(attributions, "captum_is_installed", lambda: True)
    found = attributions.captum_attributions(network)
    assert set(found) == {"gradient", "integrated"}
    ids, lengths = corpus.test.batch(np.arange(5))
    for attribute in found.values():
        pushes = attribute(ids, lengths)
        assert pushes.shape == ids.shape
        after_the_end = np.arange(ids.shape[1]) >= lengths.numpy()[:, None]
        assert not pushes[after_the_end].any()
        good = np.isin(ids.numpy(), GOOD) & ~after_the_end
        assert (pushes[good] > 0).all()
    assert not network.recurrent.training


def test_captum_itself_if_it_is_there(network, corpus):
    pytest.importorskip("captum")
    found = attributions.captum_attributions(network)
    ids, lengths = corpus.test.batch(np.arange(4))
    with torch.no_grad():
        logits = network(ids, lengths).numpy()
    # Integrated gradients sum to the logit less that of a review without words, which is 0 here.
    np.testing.assert_allclose(found["integrated"](ids, lengths).sum(axis=1), logits, atol=1e-3)
